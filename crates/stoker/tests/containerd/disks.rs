//! Disks that are full, or would be: said, waited for, and nothing is fetched again when there is room.

use std::process::Command;

use serde_json::json;
use stoker_testbed::containerd::{Containerd, Options, Version};
use stoker_testbed::image::{Compression, Image, ImageBuilder, LayerBuilder};

use crate::bed::{Node, Registry, leases, on_both};
use crate::up::{Up, eventually};

const MIB: u64 = 1 << 20;

fn image(length: u64) -> Image {
    let layer = |seed| LayerBuilder::new().noise("noise", length / 2, seed).build(Compression::Gzip).unwrap();
    ImageBuilder::new().layer(&layer(1)).layer(&layer(2)).build()
}

async fn a_full_disk_is_told_and_goes_on_when_there_is_room(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let options = Options { disk: Some(48 * MIB), ..Options::default() };
    let Some(node) = Node::start_with(version, options, &[]).await else { return };
    let image = image(14 * MIB);
    let name = registry.push("disks/full", "v1", &image).await;
    let mut watch = node.watch().await;
    // Nearly all of it is here when the disk becomes full: what is on the wire then may be lost with the attempt.
    let most = image.layer_bytes() - MIB / 2;
    registry.link.stall_after(most);
    node.begin("full", &name, &[]).await;
    watch.until(|report| report.done + MIB / 4 >= most).await;
    // The rest has to be there packed and unpacked, which is twice what is left.
    let ballast = node.containerd.root().join("ballast");
    let free = stoker_runtime::space::of(node.containerd.root()).await.unwrap().free;
    // containerd may still be at it, and then it is full before that.
    let _ = std::fs::write(&ballast, vec![1; free.saturating_sub(MIB / 2) as usize]);
    registry.link.let_go();
    let report = watch.until(|report| report.reason == "NoSpace").await;
    assert_eq!(report.phase, "Pulling", "{report:?}");
    std::fs::remove_file(&ballast).unwrap();
    watch.until(|report| report.phase == "Succeeded").await;
    let (fetched, bytes) = (registry.link.received(), image.layer_bytes());
    assert!(fetched <= bytes + bytes / 50 + MIB, "{fetched} of {bytes}");
    node.containerd.mount(&name).await.unwrap();
    assert_eq!(leases(&node.containerd).await, Vec::<String>::new());
}
on_both!(a_full_disk_is_told_and_goes_on_when_there_is_room);

async fn an_order_that_is_given_up_frees_the_disk(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let options = Options { disk: Some(48 * MIB), ..Options::default() };
    let Some(node) = Node::start_with(version, options, &[]).await else { return };
    let name = registry.push("disks/given-up", "v1", &image(40 * MIB)).await;
    let manifest = json!({
        "apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": "given-up"},
        "spec": {"images": [{"image": name}], "pull": {"retries": 0}},
    });
    let free = async || stoker_runtime::space::of(node.containerd.root()).await.unwrap().free;
    let before = free().await;
    node.up.create(&manifest.to_string()).await;
    let report = node.report(|report| report.phase == "Failed").await;
    assert_eq!(report.reason, "NoSpace");
    eventually("the disk is as it was", async || free().await + 3 * MIB >= before).await;
}
on_both!(an_order_that_is_given_up_frees_the_disk);

/// What a killed agent left on the disk is its own, and counts once.
async fn a_killed_agent_is_not_stopped_by_what_it_left(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(mut node) = small(version).await else { return };
    let image = image(15 * MIB);
    let name = registry.push("disks/killed", "v1", &image).await;
    registry.link.stall_after(10 * MIB);
    node.begin("killed", &name, &[]).await;
    registry.link.wait_for_bytes(10 * MIB).await.unwrap();
    node.up.kill_and_restart();
    registry.link.let_go();
    let mut watch = node.watch().await;
    let report = watch.until(|report| report.phase == "Succeeded" || !report.reason.is_empty()).await;
    assert_eq!((report.phase.as_str(), report.reason.as_str()), ("Succeeded", ""), "{report:?}");
}
on_both!(a_killed_agent_is_not_stopped_by_what_it_left);

/// The limit of 80 % on a disk of 100 MiB.
async fn small(version: Version) -> Option<Node> {
    let options = Options { disk: Some(100 * MIB), ..Options::default() };
    let containerd = Containerd::start(version, options).await.unwrap()?;
    // The spool is on the same disk, and counts.
    let data = tempfile::tempdir_in(containerd.root()).unwrap();
    let endpoint = containerd.endpoint();
    let args = ["--runtime", "containerd", "--runtime-endpoint", &endpoint, "--max-disk", "80"];
    let up = Up::start_with(data, 1, &args);
    Some(Node { up, containerd })
}

async fn an_image_that_would_fill_the_disk_is_not_begun(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = small(version).await else { return };
    // Twice packed and about twice that unpacked, of the 80 that are allowed.
    let image = image(20 * MIB);
    let name = registry.push("disks/guard", "v1", &image).await;
    node.begin("guard", &name, &[]).await;
    let report = node.report(|report| report.reason == "Disk").await;
    assert!(report.message.contains("takes about 80") && report.message.contains("80 %"), "{report:?}");
    assert!(registry.link.received() < 20_000, "nothing but documents came");
    let grow = ["-o", "remount,size=200m"];
    let grown = Command::new("mount").args(grow).arg(node.containerd.root()).status().unwrap();
    assert!(grown.success());
    node.done().await;
    let (fetched, bytes) = (registry.link.received(), image.layer_bytes());
    assert!(fetched <= bytes + 50_000, "{fetched} of {bytes}");
}
on_both!(an_image_that_would_fill_the_disk_is_not_begun);

/// What a deleted job left is kept for a while, and not where another image needs the room.
async fn what_was_left_goes_when_the_disk_is_needed(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = small(version).await else { return };
    let left = registry.push("disks/left", "v1", &image(12 * MIB)).await;
    let wanted = registry.push("disks/wanted", "v1", &image(16 * MIB)).await;
    let used = async || {
        let space = stoker_runtime::space::of(node.containerd.root()).await.unwrap();
        space.total - space.free
    };
    let before = used().await;
    // Less than a tenth of the disk, which is what may be left; on the disk it is in the spool, packed and unpacked.
    registry.link.stall_after(9 * MIB);
    node.begin("left", &left, &[]).await;
    node.keeps(9 * MIB).await;
    node.up.run(&["delete", "left"]).await.exits(0);
    let gone = |object: &kube::api::DynamicObject| {
        object.data.pointer("/spec/orders").and_then(|orders| orders.as_object()).is_none_or(|orders| orders.is_empty())
    };
    node.up.wait("NodePreheat", "node-1", gone).await;
    assert!(used().await > before + 16 * MIB, "{} of {before}: nothing was left", used().await);
    assert_eq!(leases(&node.containerd).await.len(), 1);
    registry.link.let_go();
    let mut watch = node.watch().await;
    node.begin("wanted", &wanted, &[]).await;
    let over =
        |report: &crate::bed::Report| report.total > 0 && (report.phase == "Succeeded" || !report.reason.is_empty());
    let report = watch.until(over).await;
    assert_eq!((report.phase.as_str(), report.reason.as_str()), ("Succeeded", ""), "{report:?}");
    assert_eq!(leases(&node.containerd).await, Vec::<String>::new());
}
on_both!(what_was_left_goes_when_the_disk_is_needed);
