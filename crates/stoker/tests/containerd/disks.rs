//! Disks that are full, or would be: said, waited for, and nothing is fetched again when there is room.

use std::process::Command;

use serde_json::json;
use stoker_testbed::containerd::{Containerd, Options, Version};
use stoker_testbed::image::{Compression, Image, ImageBuilder, Layer, LayerBuilder};

use crate::bed::{Node, Registry, leases, on_both};
use crate::up::{Up, eventually};

const MIB: u64 = 1 << 20;

fn image(length: u64) -> Image {
    let layer = |seed| LayerBuilder::new().noise("noise", length / 2, seed).build(Compression::Gzip).unwrap();
    ImageBuilder::new().layer(&layer(1)).layer(&layer(2)).build()
}

/// Of other layers than [`image`] has.
fn noise(length: u64) -> Image {
    let layer = LayerBuilder::new().noise("other", length, 3).build(Compression::Gzip).unwrap();
    ImageBuilder::new().layer(&layer).build()
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

/// Small when it is packed, and large when it is not.
fn zeros(length: u64) -> Layer {
    let file = |layer: LayerBuilder, n: u64| layer.file(&format!("zeros-{n}"), vec![0; MIB as usize]);
    (0..length / MIB).fold(LayerBuilder::new(), file).build(Compression::Gzip).unwrap()
}

/// Looks at a disk again and again, and says how full it was at most, in percent.
struct Highest {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: std::thread::JoinHandle<u64>,
}

impl Highest {
    fn of(path: std::path::PathBuf) -> Self {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut most = 0;
            while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                let space = stoker_runtime::space::look(&path).unwrap();
                most = most.max((space.total - space.free) * 100 / space.total);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            most
        });
        Self { stop, thread }
    }

    fn percent(self) -> u64 {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Only the limit stops such an image: nobody knows how large it is before it is unpacked.
async fn a_bomb_stops_at_the_limit_and_leaves_nothing(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = small(version).await else { return };
    let name = registry.push("disks/bomb", "v1", &ImageBuilder::new().layer(&zeros(300 * MIB)).build()).await;
    let free = async || stoker_runtime::space::of(node.containerd.root()).await.unwrap().free;
    let (before, highest) = (free().await, Highest::of(node.containerd.root()));
    node.wish("bomb", &name, &[], json!({"retries": 0})).await;
    let report = node.report(|report| report.phase == "Failed").await;
    assert_eq!(report.reason, "Disk", "{report:?}");
    for says in [name.as_str(), "past the limit of 80 %", "free", "--max-disk"] {
        assert!(report.message.contains(says), "{report:?}");
    }
    let most = highest.percent();
    assert!(most <= 80, "the disk was {most} % full");
    eventually("the disk is as it was", async || free().await + 3 * MIB >= before).await;
}
on_both!(quick a_bomb_stops_at_the_limit_and_leaves_nothing);

/// containerd unpacks by itself, and knows no limit: by CRI, and with a snapshotter that we do not unpack into.
async fn a_bomb_that_containerd_unpacks_is_cancelled(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    // Past the limit and not past the disk, and a layer that never arrives: only the agent can end this pull.
    let stalls = LayerBuilder::new().noise("noise", 20 * MIB, 7).build(Compression::Gzip).unwrap();
    let image = ImageBuilder::new().layer(&zeros(500 * MIB)).layer(&stalls).build();
    let name = registry.push("disks/their-bomb", "v1", &image).await;
    registry.link.stall_each_after(10 * MIB);
    for (runtime, snapshotter) in [("cri", "overlayfs"), ("containerd", "native")] {
        let options = Options { disk: Some(800 * MIB), snapshotter, ..Options::default() };
        let Some(containerd) = Containerd::start(version, options).await.unwrap() else { return };
        let endpoint = containerd.endpoint();
        let args = ["--runtime", runtime, "--runtime-endpoint", &endpoint, "--max-disk", "50"];
        let up = Up::start_with(tempfile::tempdir().unwrap(), 1, &args);
        let node = Node { up, containerd };
        let free = async || stoker_runtime::space::of(node.containerd.root()).await.unwrap().free;
        let before = free().await;
        node.wish("bomb", &name, &[], json!({"retries": 0})).await;
        let report = node.report(|report| report.phase == "Failed").await;
        assert_eq!(report.reason, "Disk", "{runtime}: {report:?}");
        assert!(report.message.contains(&name) && report.message.contains("--max-disk"), "{report:?}");
        eventually("the disk is as it was", async || free().await + 3 * MIB >= before).await;
    }
}
on_both!(a_bomb_that_containerd_unpacks_is_cancelled);

/// Each of two images fits, and not both at the same time: the second waits, and is not tried again.
async fn an_image_waits_for_what_another_has_reserved(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = small(version).await else { return };
    let (first, second) = (image(8 * MIB), noise(11 * MIB));
    let first = registry.push("disks/first", "v1", &first).await;
    let Some(other) = Registry::start(Default::default()).await else { return };
    let second = other.push("disks/second", "v1", &second).await;
    registry.link.stall_after(4 * MIB);
    node.begin("first", &first, &[]).await;
    node.keeps(4 * MIB).await;
    let mut watch = node.watch().await;
    node.begin("second", &second, &[]).await;
    let report = watch.until(|report| report.reason == "Disk").await;
    assert_eq!((report.phase.as_str(), report.attempt), ("Pulling", 1), "{report:?}");
    assert!(report.message.starts_with("waiting for room") && report.message.contains(&second), "{report:?}");
    node.up.run(&["why", "second"]).await.exits(0).says("waiting for room").says("reserved");
    registry.link.let_go();
    let report = watch.until(|report| report.phase == "Succeeded" && report.total > 10 * MIB).await;
    assert_eq!((report.attempt, report.reason.as_str(), report.message.as_str()), (1, "", ""), "{report:?}");
}
on_both!(quick an_image_waits_for_what_another_has_reserved);

/// What a deleted job left is kept for a while, and not where another image needs the room.
async fn what_was_left_goes_when_the_disk_is_needed(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = small(version).await else { return };
    let left = registry.push("disks/left", "v1", &image(12 * MIB)).await;
    let wanted = registry.push("disks/wanted", "v1", &image(17 * MIB)).await;
    let used = async || {
        let space = stoker_runtime::space::of(node.containerd.root()).await.unwrap();
        space.total - space.free
    };
    let before = used().await;
    // Less than a tenth of the disk, which is what may be left; on the disk it is in the spool and unpacked.
    registry.link.stall_after(9 * MIB);
    node.begin("left", &left, &[]).await;
    node.keeps(9 * MIB).await;
    node.up.run(&["delete", "left"]).await.exits(0);
    let gone = |object: &kube::api::DynamicObject| {
        object.data.pointer("/spec/orders").and_then(|orders| orders.as_object()).is_none_or(|orders| orders.is_empty())
    };
    node.up.wait("NodePreheat", "node-1", gone).await;
    assert!(used().await > before + 12 * MIB, "{} of {before}: nothing was left", used().await);
    assert_eq!(leases(&node.containerd).await.len(), 1);
    registry.link.let_go();
    let mut watch = node.watch().await;
    node.begin("wanted", &wanted, &[]).await;
    // The pull that was stopped may still have its reservation for a moment. That is waited for; for want of room an attempt fails.
    let report = watch.until(|report| report.phase == "Succeeded" || report.attempt > 1).await;
    assert_eq!((report.phase.as_str(), report.attempt), ("Succeeded", 1), "{report:?}");
    assert_eq!(leases(&node.containerd).await, Vec::<String>::new());
}
on_both!(what_was_left_goes_when_the_disk_is_needed);
