//! Registries and links that fail: what is mended is mended with few bytes more than the image has, and what cannot be is
//! said with the right word and the name of the thing.

use serde_json::json;
use stoker_testbed::containerd::Version;
use stoker_testbed::registry::{self, Auth, Fault, On};

use crate::bed::{Node, Registry, bound, on_both};
use crate::wishes::noise;

/// A node and a link that sends this much a second.
async fn paced(version: Version, pace: u64) -> Option<(Node, Registry)> {
    let registry = Registry::start(Default::default()).await?;
    let node = Node::start(version).await?;
    registry.link.pace(Some(pace));
    Some((node, registry))
}

async fn an_image_that_is_not_there(version: Version) {
    let Some((node, registry)) = paced(version, 1 << 30).await else { return };
    let name = registry.push("shop/web", "v1", &noise(1, 1_000, 1)).await.replace(":v1", ":v9");
    node.wish("gone", &name, &[], json!({"retries": 0})).await;
    let (reason, message) = node.failure("gone").await;
    assert_eq!(reason, "NotFound", "{message}");
    assert!(message.contains(&name), "{message}");
    assert!(!node.names().await.contains(&name));
}
on_both!(an_image_that_is_not_there);

async fn a_registry_is_down_and_comes_back(version: Version) {
    let Some((node, registry)) = paced(version, 1 << 30).await else { return };
    let name = registry.push("shop/web", "v1", &noise(1, 200_000, 2)).await;
    registry.link.down().await;
    node.wish("patient", &name, &[], json!({"retries": 10})).await;
    let report = node.report(|report| report.reason == "Unreachable").await;
    assert!(report.message.contains(&registry.link.host()), "{report:?}");
    let why = node.up.run(&["why", "patient"]).await;
    why.exits(0).says("this node is asking the registry").says("last: Unreachable").says(&registry.link.host());
    registry.link.up().await;
    assert_eq!(node.end("patient").await["phase"], "Succeeded");
}
on_both!(a_registry_is_down_and_comes_back);

async fn a_registry_is_restarted_in_the_middle(version: Version) {
    let Some((node, mut registry)) = paced(version, 10_000_000).await else { return };
    let image = noise(2, 10_000_000, 3);
    let name = registry.push("shop/web", "v1", &image).await;
    node.begin("restarted", &name, &[]).await;
    registry.link.wait_for_bytes(5_000_000).await.unwrap();
    registry.real.restart().await.unwrap();
    registry.link.pace(None);
    assert_eq!(node.end("restarted").await["phase"], "Succeeded");
    registry.sent_at_most(&image, 2);
}
on_both!(a_registry_is_restarted_in_the_middle);

async fn a_link_that_cuts_every_five_megabytes(version: Version) {
    let Some((node, registry)) = paced(version, 40_000_000).await else { return };
    let image = noise(1, 32_000_000, 4);
    let name = registry.push("shop/web", "v1", &image).await;
    registry.link.cut_every(Some(5 << 20));
    node.pull(&name).await.exits(0);
    let cuts = image.layer_bytes() / (5 << 20);
    registry.sent_at_most(&image, cuts);
    assert!(registry.link.connections() > cuts, "{}", registry.link.connections());
}
on_both!(a_link_that_cuts_every_five_megabytes);

async fn a_byte_that_is_wrong_is_fetched_again(version: Version) {
    let Some((node, registry)) = paced(version, 1 << 30).await else { return };
    let image = noise(2, 4_000_000, 5);
    let name = registry.push("shop/web", "v1", &image).await;
    registry.link.flip_after(3_000_000);
    node.pull(&name).await.exits(0);
    // One layer twice, and not the whole image.
    let (fetched, layers) = (registry.link.received(), image.layer_bytes());
    assert!(fetched > layers + layers / 4, "the byte was not wrong: {fetched} of {layers}");
    assert!(fetched <= bound(&image, 1) + layers / 2, "{fetched} of {layers}");
    let mount = node.containerd.mount(&name).await.unwrap();
    assert_eq!(std::fs::metadata(mount.join("noise-1")).unwrap().len(), 4_000_000);
}
on_both!(a_byte_that_is_wrong_is_fetched_again);

/// Bytes that stay wrong, tokens that live for two requests, patience that is asked for, and other hosts.
async fn a_registry_with_ways_of_its_own(version: Version) {
    let (registry, elsewhere) =
        (registry::Registry::start().await.unwrap(), registry::Registry::start().await.unwrap());
    let Some(node) = Node::start(version).await else { return };
    let image = |seed: u64| noise(4, 50_000, 100 * seed);

    let corrupt = image(1);
    let name = corrupt.put(&registry, "shop/corrupt", "v1");
    registry.fault(On::Path(corrupt.layers[2].digest.clone()), usize::MAX, Fault::CorruptAt(10_000));
    node.wish("corrupt", &name, &[], json!({"retries": 0})).await;
    let (reason, message) = node.failure("corrupt").await;
    assert_eq!(reason, "DigestMismatch", "{message}");
    assert!(message.contains(&corrupt.layers[2].digest) && message.contains(&name), "{message}");
    assert!(!node.names().await.contains(&name), "what is wrong is not there");

    let name = image(2).put(&registry, "shop/busy", "v1");
    registry.fault(On::Heads, 1, Fault::Status(429, Some("1".into())));
    registry.fault(On::Blobs, 2, Fault::Status(429, Some("1".into())));
    node.pull(&name).await.exits(0);
    let name = image(3).put(&registry, "shop/tired", "v1");
    registry.fault(On::Path("tired/manifests".into()), usize::MAX, Fault::Status(429, Some("3600".into())));
    node.wish("tired", &name, &[], json!({"retries": 0})).await;
    let (reason, message) = node.failure("tired").await;
    assert_eq!(reason, "RateLimited", "{message}");
    assert!(message.contains(&name) && message.contains("3600"), "{message}");

    let tokens = image(4);
    let name = tokens.put(&registry, "shop/tokens", "v1");
    registry.protect(Auth::Bearer { login: Some("ada:hunter2".into()), uses: 2, realm: None, expires_in: 300 });
    node.login("ada", &registry.host(), "ada", "hunter2").await;
    node.pull_with(&name, &["ada"]).await.exits(0);
    assert!(registry.requests("/token").iter().filter(|seen| seen.status == 200).count() >= 3);
    let blobs = registry.requests("tokens/blobs").into_iter().filter(|seen| seen.status == 200);
    let sent: u64 = blobs.map(|seen| seen.body_bytes).sum();
    assert_eq!(sent, tokens.layer_bytes() + tokens.configs[0].bytes.len() as u64, "no byte twice");

    // Redirected: the other host must not see who we are.
    let moved = image(5);
    let name = moved.put(&registry, "shop/moved", "v1");
    moved.put(&elsewhere, "shop/moved", "v1");
    registry.protect(Auth::Basic { login: "ada:hunter2".into() });
    registry.fault(On::Path("moved/blobs".into()), usize::MAX, Fault::Redirect(format!("http://{}", elsewhere.host())));
    node.pull_with(&name, &["ada"]).await.exits(0);
    let there = elsewhere.requests("/blobs/");
    assert_eq!(there.len(), 5, "{there:#?}");
    assert!(there.iter().all(|seen| seen.authorization.is_none() && seen.status == 200), "{there:#?}");
}
on_both!(a_registry_with_ways_of_its_own);

/// Nothing comes for a minute, and the connection is still there: another one brings the rest.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_registry_that_stalls_is_asked_again() {
    let registry = registry::Registry::start().await.unwrap();
    let Some(node) = Node::start(Version::Debian).await else { return };
    let image = noise(1, 2_000_000, 6);
    let name = image.put(&registry, "shop/web", "v1");
    registry.fault(On::Path(image.layers[0].digest.clone()), 1, Fault::StallAfter(1_500_000));
    node.pull(&name).await.exits(0);
    let ranges = registry.requests(&image.layers[0].digest);
    assert_eq!(ranges.len(), 2, "{ranges:#?}");
    assert!(registry.body_bytes(&image.layers[0].digest) <= image.layer_bytes() + (128 << 10), "{ranges:#?}");
}

/// A link that stalls for longer than the job allows an attempt: the next one goes on.
async fn an_attempt_that_takes_too_long(version: Version) {
    let Some((node, registry)) = paced(version, 1 << 30).await else { return };
    let image = noise(1, 6_000_000, 7);
    let name = registry.push("shop/web", "v1", &image).await;
    registry.link.stall_after(3_000_000);
    // Time enough for what comes before the stall and after it, on a busy machine too.
    node.wish("slow", &name, &[], json!({"timeout": "10s", "retries": 20})).await;
    let report = node.report(|report| report.reason == "Timeout").await;
    assert!(report.message.contains(&name) && report.message.contains("10 s"), "{report:?}");
    registry.link.let_go();
    assert_eq!(node.end("slow").await["phase"], "Succeeded");
    registry.sent_at_most(&image, 2);
}
on_both!(an_attempt_that_takes_too_long);
