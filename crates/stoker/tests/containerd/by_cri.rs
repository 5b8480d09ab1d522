//! `--runtime cri`: the runtime pulls by itself, and what comes of it is told in the same words.

use serde_json::json;
use stoker_testbed::containerd::{self, Version};
use stoker_testbed::docker_registry::Options;
use stoker_testbed::image::{Compression, Flavor, Image, ImageBuilder, LayerBuilder};
use stoker_testbed::registry::{self, Fault, On};

use crate::bed::{Node, Registry, on_both};
use crate::up::{eventually, every_object};
use crate::wishes::{node, noise};

/// A node that leaves its pulls to containerd.
async fn leaves_it(version: Version, options: containerd::Options) -> Option<Node> {
    node(version, options, &["--runtime", "cri"], &[]).await.map(|(node, _)| node)
}

/// How often containerd has said this.
fn said(node: &Node, words: &str) -> usize {
    node.containerd.log().matches(words).count()
}

/// Waits until containerd has said this so often: it keeps no other record of pulls that it dropped.
async fn logs(node: &Node, words: &str, times: usize) {
    eventually(&format!("containerd says: {words}"), async || said(node, words) >= times).await;
}

async fn tags_digests_and_policies(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = leaves_it(version, Default::default()).await else { return };
    let (first, second) = (noise(1, 300_000, 1), noise(1, 300_000, 2));
    let name = registry.push("shop/web", "v1", &first).await;
    node.pull(&name).await.exits(0).says("on all 1 nodes");
    assert!(node.names().await.contains(&name));
    let nodes = node.up.run(&["get", "nodes"]).await;
    nodes.exits(0).says("cri: containerd");

    // The tag moves. IfNotPresent is content; Always asks, and what is there is not fetched again.
    registry.push("shop/web", "v1", &second).await;
    let before = registry.link.received();
    node.wish("content", &name, &[], json!({})).await;
    assert_eq!(node.end("content").await["phase"], "Succeeded");
    assert_eq!(registry.link.received(), before, "nobody was asked");
    node.up.run(&["get", "content"]).await.exits(0).says(&first.digest()[..19]);
    node.wish("always", &name, &[], json!({"policy": "Always"})).await;
    let status = node.end("always").await;
    assert!(status["digests"].to_string().contains(second.digest()), "{status:#}");
    let before = registry.link.received();
    node.wish("again", &name, &[], json!({"policy": "Always"})).await;
    assert_eq!(node.end("again").await["phase"], "Succeeded");
    assert!(registry.link.received() - before < 3_000, "{}", registry.link.received() - before);

    // By a mirror: the digest is the one that the runtime gets, too.
    let third = noise(1, 300_000, 3);
    registry.push("shop/mirrored", "v1", &third).await;
    node.containerd.set_hosts("shop.example", &format!("[host.\"http://{}\"]", registry.link.host())).unwrap();
    node.wish("mirrored", "shop.example/shop/mirrored:v1", &[], json!({"retries": 0})).await;
    let status = node.end("mirrored").await;
    assert!(status["digests"].to_string().contains(third.digest()), "{status:#}");

    registry.push("shop/pinned", "v1", &third).await;
    let pinned = format!("{}/shop/pinned@{}", registry.link.host(), third.digest());
    node.pull(&pinned).await.exits(0);
    assert!(node.names().await.contains(&pinned));
}
on_both!(quick tags_digests_and_policies);

/// Each trouble has the reason that it has when we pull ourselves.
async fn troubles_have_the_same_words(version: Version) {
    let Some(mut open) = Registry::start(Default::default()).await else { return };
    let accounts = vec![("ada".to_owned(), "hunter2".to_owned())];
    let Some(private) = Registry::start(Options { accounts, tls: false }).await else { return };
    let Some((node, log)) = node(version, Default::default(), &["--runtime", "cri"], &[]).await else { return };
    let secret = private.push("shop/secret", "v1", &noise(1, 100_000, 4)).await;
    let host = private.link.host();
    node.login("right", &host, "ada", "hunter2").await;
    node.login("wrong", &host, "ada", "wrong").await;
    let fails = async |name: &str, image: &str, secrets: &[&str], reason: &str| {
        node.wish(name, image, secrets, json!({"retries": 0})).await;
        let (told, message) = node.failure(name).await;
        assert_eq!(told, reason, "{message}");
        assert!(message.contains(image), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
    };
    fails("anonymous", &secret, &[], "Unauthorized").await;
    fails("wrong", &secret, &["wrong"], "Unauthorized").await;
    node.pull_with(&secret, &["wrong", "right"]).await.exits(0);
    let name = open.push("shop/web", "v1", &noise(1, 1_000, 5)).await;
    fails("gone", &name.replace(":v1", ":v9"), &[], "NotFound").await;
    let odd = registry::Registry::start().await.unwrap();
    node.containerd.set_hosts(&odd.host(), &format!("[host.\"http://{}\"]", odd.host())).unwrap();
    let far = Image::index(Flavor::Oci, &[ImageBuilder::new().architecture("s390x").build()]);
    fails("far", &far.put(&odd, "shop/far", "v1"), &[], "PlatformMissing").await;
    let corrupt = noise(1, 1_000, 10);
    odd.fault(On::Path(corrupt.layers[0].digest.clone()), usize::MAX, Fault::CorruptAt(500));
    fails("corrupt", &corrupt.put(&odd, "shop/corrupt", "v1"), &[], "DigestMismatch").await;
    odd.fault(On::Path("busy".into()), usize::MAX, Fault::Status(429, None));
    fails("busy", &noise(1, 1_000, 11).put(&odd, "shop/busy", "v1"), &[], "RateLimited").await;
    odd.fault(On::Path("broken".into()), usize::MAX, Fault::Status(503, None));
    fails("broken", &noise(1, 1_000, 12).put(&odd, "shop/broken", "v1"), &[], "RegistryError").await;
    open.real.stop();
    open.link.down().await;
    fails("down", &name, &[], "Unreachable").await;
    let (log, encoded) = (std::fs::read_to_string(log.path()).unwrap(), "YWRhOmh1bnRlcjI=");
    assert!(!log.contains("hunter2") && !log.contains(encoded), "{log}");
    let objects = every_object(&node.up.client().await).await;
    assert!(!node.containerd.log().contains("hunter2") && !objects.contains("hunter2"));
}
on_both!(troubles_have_the_same_words);

async fn a_disk_that_is_full(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let options = containerd::Options { disk: Some(24 << 20), sandbox: false, ..Default::default() };
    let args = ["--runtime", "cri", "--max-disk", "95"];
    let Some((node, _log)) = node(version, options, &args, &[]).await else { return };
    // One that is seen to be too large before it is begun, and one that turns out to be.
    let zeros = LayerBuilder::new().file("zeros", vec![0; 60_000_000]).build(Compression::Gzip).unwrap();
    // Of the second one either the runtime says that there is no space, or the agent sees it coming.
    let small = ("nospace", &["NoSpace", "Disk"][..], ImageBuilder::new().layer(&zeros).build());
    for (job, wanted, image) in [("disk", &["Disk"][..], noise(1, 30_000_000, 6)), small] {
        let name = registry.push(&format!("shop/{job}"), "v1", &image).await;
        node.wish(job, &name, &[], json!({"retries": 0})).await;
        let (reason, message) = node.failure(job).await;
        assert!(wanted.contains(&reason.as_str()), "{reason}: {message}");
        assert!(message.contains(&name), "{message}");
    }
}
on_both!(a_disk_that_is_full);

/// containerd is killed in the middle: the agent says so, waits, and asks it again.
async fn a_runtime_that_dies_is_waited_for(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(mut node) = leaves_it(version, Default::default()).await else { return };
    let image = noise(2, 6_000_000, 7);
    let name = registry.push("shop/web", "v1", &image).await;
    registry.link.stall_after(3_000_000);
    node.wish("patient", &name, &[], json!({"retries": 0})).await;
    registry.link.wait_for_bytes(3_000_000).await.unwrap();
    node.containerd.kill();
    let report = node.report(|report| report.reason == "RuntimeUnavailable").await;
    assert!(report.message.contains(&node.containerd.socket().display().to_string()), "{report:?}");
    registry.link.let_go();
    node.containerd.restart().await.unwrap();
    assert_eq!(node.end("patient").await["phase"], "Succeeded");
    assert!(node.names().await.contains(&name));
}
on_both!(a_runtime_that_dies_is_waited_for);

/// A pull that takes too long is given up, and one whose job is deleted is taken back: nothing more is fetched.
async fn pulls_are_stopped(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = leaves_it(version, Default::default()).await else { return };
    let name = registry.push("shop/web", "v1", &noise(1, 30_000_000, 8)).await;
    registry.link.stall_after(3_000_000);
    // Time enough to get as far as to containerd, on a busy machine too.
    node.wish("slow", &name, &[], json!({"timeout": "10s", "retries": 0})).await;
    let (reason, message) = node.failure("slow").await;
    assert_eq!(reason, "Timeout", "{message}");
    assert!(message.contains(&name) && message.contains("10 s"), "{message}");

    logs(&node, "context canceled", 1).await;
    let (before, canceled) = (registry.link.received(), said(&node, "context canceled"));
    registry.link.stall_after(3_000_000);
    node.wish("deleted", &name, &[], json!({})).await;
    registry.link.wait_for_bytes(before + 2_000_000).await.unwrap();
    node.up.run(&["delete", "deleted"]).await.exits(0);
    logs(&node, "context canceled", canceled + 1).await;
    // Were it still wanted, it would come together with this one.
    registry.link.let_go();
    let other = registry.push("shop/other", "v1", &noise(1, 1_000, 13)).await;
    node.pull(&other).await.exits(0);
    assert!(registry.link.received() < before + 25_000_000, "{}", registry.link.received());
    assert!(!node.names().await.contains(&name));
}
on_both!(pulls_are_stopped);

/// What a job says about its pods is told to the runtime. containerd 1.6 looks at nothing of it, 2.2 at one annotation, and
/// says so.
async fn annotations_of_pods_reach_the_runtime(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = leaves_it(version, Default::default()).await else { return };
    let name = registry.push("shop/web", "v1", &noise(1, 1_000, 9)).await;
    let annotations = json!({"io.containerd.cri.runtime-handler": "runc"});
    let sandbox = json!({"labels": {"app": "web"}, "annotations": annotations});
    node.wish("web", &name, &[], json!({"retries": 0, "sandbox": sandbox})).await;
    assert_eq!(node.end("web").await["phase"], "Succeeded");
    if version == Version::Two {
        logs(&node, "io.containerd.cri.runtime-handler", 1).await;
    }
}
on_both!(annotations_of_pods_reach_the_runtime);

/// An image that was loaded from a file has no digest of a registry. Pods with IfNotPresent would start from it, so a node that
/// has it is done; Always wants what the registry says.
async fn an_image_that_was_loaded_is_there(version: Version) {
    let Some(node) = leaves_it(version, Default::default()).await else { return };
    let registry = registry::Registry::start().await.unwrap();
    let name = format!("{}/shop/loaded:v1", registry.host());
    node.containerd.set_hosts(&registry.host(), &format!("[host.\"http://{}\"]", registry.host())).unwrap();
    let image = noise(1, 100_000, 20);
    node.containerd.import(&name, &image).await.unwrap();
    let cri = node.cri().await;
    eventually("CRI lists it", async || cri.find(&name).await.unwrap().is_some()).await;
    // containerd 2 makes a name with the digest for it by itself.
    let nameless = cri.find(&name).await.unwrap().unwrap().digests.is_empty();
    node.wish("loaded", &name, &[], json!({"retries": 0})).await;
    let status = node.end("loaded").await;
    assert_eq!(status["phase"], "Succeeded", "{status:#}");
    let report = node.report(|report| report.phase == "Succeeded").await;
    let id = report.message.contains("image id") && report.message.contains(&image.configs[0].digest);
    assert_eq!(id, nameless, "{report:?}");
    assert_eq!(registry.seen().len(), 0, "nobody was asked");

    node.wish("always", &name, &[], json!({"policy": "Always", "retries": 0})).await;
    assert_eq!(node.failure("always").await.0, "NotFound");
}
on_both!(quick an_image_that_was_loaded_is_there);

/// The job has failed and ended when somebody loads the image. The node looks once a minute: it says what it sees, and pulls
/// nothing for a job that is over.
async fn an_image_that_is_loaded_later_is_found_and_not_pulled(version: Version) {
    let Some(node) = leaves_it(version, Default::default()).await else { return };
    let registry = registry::Registry::start().await.unwrap();
    let name = format!("{}/shop/later:v1", registry.host());
    node.containerd.set_hosts(&registry.host(), &format!("[host.\"http://{}\"]", registry.host())).unwrap();
    node.wish("later", &name, &[], json!({"retries": 0})).await;
    assert_eq!(node.failure("later").await.0, "NotFound");
    let mut watch = node.watch().await;
    let (asked, pulls) = (registry.seen().len(), said(&node, "PullImage"));
    node.containerd.import(&name, &noise(1, 100_000, 21)).await.unwrap();
    let report = watch.until(|report| report.phase != "Failed").await;
    assert_eq!((report.phase.as_str(), report.attempt), ("Succeeded", 1), "{report:?}");
    let nameless = node.cri().await.find(&name).await.unwrap().unwrap().digests.is_empty();
    assert_eq!(report.message.contains("image id"), nameless, "{report:?}");
    assert_eq!((registry.seen().len(), said(&node, "PullImage")), (asked, pulls), "nothing was begun again");
}
on_both!(an_image_that_is_loaded_later_is_found_and_not_pulled);
