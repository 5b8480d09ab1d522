//! Others use the same containerd: they take images away, bring them, and pull the same one while we do.

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use stoker_testbed::containerd::Version;
use stoker_testbed::image::{Compression, Image, ImageBuilder, LayerBuilder};

use crate::bed::{LONGEST_PULL, Node, Registry, on_both, reports};

fn image(length: u64, seed: u64) -> Image {
    let layer = LayerBuilder::new().noise("noise", length, seed).build(Compression::Gzip).unwrap();
    ImageBuilder::new().layer(&layer).build()
}

/// A job that never ends.
async fn always(node: &Node, name: &str, image: &str) {
    let manifest = json!({
        "apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": name},
        "spec": {"images": [{"image": image}], "completion": {"mode": "Continuous", "resync": "24h"}},
    });
    node.up.create(&manifest.to_string()).await;
}

/// Changes an object, and gives its new generation.
async fn patch(node: &Node, kind: &str, name: &str, patch: Value) -> i64 {
    let api = node.up.api(kind).await;
    let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    patched.metadata.generation.unwrap()
}

async fn what_is_taken_away_is_brought_back_while_the_job_runs(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let cri = node.cri().await;
    let name = registry.push("others/taken", "v1", &image(300_000, 1)).await;
    let mut watch = node.watch().await;
    always(&node, "taken", &name).await;
    watch.until(|report| report.phase == "Succeeded").await;
    for by_ctr in [true, false] {
        match by_ctr {
            true => drop(node.containerd.ctr_ok(&["images", "rm", "--sync", &name]).await.unwrap()),
            false => cri.remove(&name).await.unwrap(),
        }
        let report = watch.until(|report| report.reason == "Removed").await;
        assert!(report.message.contains("removed"), "{report:?}");
        watch.until(|report| report.phase == "Succeeded").await;
        assert!(node.names().await.contains(&name));
    }
}
on_both!(quick what_is_taken_away_is_brought_back_while_the_job_runs);

async fn what_is_taken_away_after_the_job_is_not_brought_back(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(stuck) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let cri = node.cri().await;
    let name = registry.push("others/taken", "v1", &image(300_000, 1)).await;
    let other = stuck.push("others/stuck", "v1", &image(10_000, 2)).await;
    let mut watch = node.watch().await;
    // One image of the job cannot come yet, so the job runs on, and wants all of them at its end.
    stuck.link.stall_after(0);
    node.up.run(&["pull", &name, &other, "--name", "taken", "--no-wait"]).await.exits(0);
    watch.until(|report| report.phase == "Succeeded").await;
    cri.remove(&name).await.unwrap();
    watch.until(|report| report.reason == "Removed").await;
    stuck.link.let_go();
    node.up.wait("Preheat", "taken", |object| object.data["status"]["phase"] == "Succeeded").await;
    assert!(node.names().await.contains(&name));

    let before = registry.link.received();
    cri.remove(&name).await.unwrap();
    // What comes later is seen later: by then the removal was, and nobody wants it back.
    let later = stuck.push("others/later", "v1", &image(10_000, 3)).await;
    node.pull(&later).await.exits(0);
    assert_eq!(registry.link.received(), before);
    assert!(!node.names().await.contains(&name));
}
on_both!(what_is_taken_away_after_the_job_is_not_brought_back);

async fn what_others_bring_is_found(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let host = registry.link.host();
    let cri = node.cri().await;
    // By CRI, by `ctr pull`, which records it before it is unpacked, and without any registry.
    for (way, seed) in [("cri", 1), ("ctr", 2), ("import", 3)] {
        // Each job stays, and its image with it.
        let (image, name) = (image(500_000, seed), format!("{host}/others/{way}:v1"));
        always(&node, way, &name).await;
        node.report(|report| report.phase == "Failed" && report.reason == "NotFound").await;
        match way {
            "import" => node.containerd.import(&name, &image).await.unwrap(),
            _ => drop(registry.push(&format!("others/{way}"), "v1", &image).await),
        }
        match way {
            "cri" => drop(cri.pull(&name, None, None, LONGEST_PULL).await.unwrap()),
            "ctr" => drop(node.containerd.ctr_ok(&["images", "pull", "--plain-http", &name]).await.unwrap()),
            _ => {}
        }
        let all =
            |object: &_| reports(object).iter().filter(|report| report.phase == "Succeeded").count() as u64 == seed;
        let object = node.up.wait("NodePreheat", "node-1", all).await;
        for report in reports(&object) {
            assert_eq!((report.upstream, report.reason.as_str()), (0, ""), "{way}: {report:?}");
        }
    }
}
on_both!(what_others_bring_is_found);

async fn a_pull_of_the_kubelets_does_not_wait_for_a_throttled_one(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let image = image(30 << 20, 1);
    let name = registry.push("others/throttled", "v1", &image).await;
    // So slow that half of it would take longer than anybody waits here.
    node.begin("throttled", &name, &["--bandwidth", "16Ki"]).await;
    node.report(|report| report.upstream > 16 << 10).await;
    node.cri().await.pull(&name, None, None, LONGEST_PULL).await.unwrap();
    let report = node.done().await;
    assert!(report.upstream < 15 << 20, "{report:?}: it need not go on when it is there");
    assert_eq!(report.done, report.total, "{report:?}");
    let fetched = registry.link.received();
    assert!(fetched < image.layer_bytes() + report.upstream + (2 << 20), "{fetched}: {report:?}");
}
on_both!(a_pull_of_the_kubelets_does_not_wait_for_a_throttled_one);

async fn a_limit_that_comes_later_does_not_make_others_wait(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let image = image(20 << 20, 1);
    let name = registry.push("others/later", "v1", &image).await;
    registry.link.stall_after(2 << 20);
    node.begin("later", &name, &[]).await;
    registry.link.wait_for_bytes(2 << 20).await.unwrap();
    let limited = patch(&node, "NodePreheat", "node-1", json!({"spec": {"bandwidth": "16Ki"}})).await;
    node.heard(limited).await;
    registry.link.let_go();
    node.cri().await.pull(&name, None, None, LONGEST_PULL).await.unwrap();
    let report = node.done().await;
    assert!(report.upstream < 15 << 20, "{report:?}");
}
on_both!(a_limit_that_comes_later_does_not_make_others_wait);

async fn limits_change_while_a_pull_runs(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let image = image(20 << 20, 1);
    let name = registry.push("others/limits", "v1", &image).await;
    node.begin("limits", &name, &["--bandwidth", "256Ki"]).await;
    registry.link.wait_for_bytes(400_000).await.unwrap();
    // The job's limit goes, and that of the node comes, which is the lower one.
    patch(&node, "NodePreheat", "node-1", json!({"spec": {"bandwidth": "128Ki"}})).await;
    patch(&node, "Preheat", "limits", json!({"spec": {"pace": {"bandwidth": "200Mi"}}})).await;
    registry.link.wait_for_bytes(registry.link.received() + 200_000).await.unwrap();
    let pulling = node.report(|report| report.phase == "Pulling").await;
    assert!(pulling.upstream < 10 << 20, "{pulling:?}");
    patch(&node, "NodePreheat", "node-1", json!({"spec": {"bandwidth": null}})).await;
    node.done().await;
    let (fetched, bytes) = (registry.link.received(), image.layer_bytes());
    assert!((bytes..bytes + bytes / 50).contains(&fetched), "{fetched} of {bytes}");
}
on_both!(limits_change_while_a_pull_runs);
