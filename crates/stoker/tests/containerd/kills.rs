//! Killed in the middle: the agent, containerd, each while fetching and while unpacking. The image comes all the same, and
//! what was fetched is not fetched again.

use stoker_testbed::containerd::{Containerd, Version};
use stoker_testbed::image::{Compression, Image, ImageBuilder, LayerBuilder};

use crate::bed::{Node, Registry, collect, leases, on_both};
use crate::up::eventually;

const MIB: u64 = 1 << 20;

/// Half of it in one layer, the rest in three.
fn image(size: u64) -> Image {
    let layer = |(at, share): (u64, u64)| {
        let layer = LayerBuilder::new().noise(&format!("noise-{at}"), size / share, at);
        layer.file(&format!("dir-{at}/file"), "x").build(Compression::Gzip).unwrap()
    };
    let layers = [(1, 6), (2, 2), (3, 6), (4, 6)].map(layer);
    layers.iter().fold(ImageBuilder::new(), ImageBuilder::layer).build()
}

/// Whether nothing of an unfinished pull is there.
async fn clean(containerd: &Containerd) -> bool {
    let snapshots = containerd.ctr_ok(&["snapshots", "ls"]).await.unwrap();
    let writes = containerd.ctr_ok(&["content", "active"]).await.unwrap();
    !snapshots.contains("stoker") && !writes.contains("sha256:")
}

async fn a_killed_agent_goes_on(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(mut node) = Node::start(version).await else { return };
    let image = image(48 * MIB);
    let name = registry.push("kills/agent", "v1", &image).await;
    // After 10, 50 and 90 percent.
    let (mut kept, shares) = (0, [10, 40, 40].map(|percent| image.layer_bytes() * percent / 100));
    registry.link.stall_after(shares[0]);
    node.begin("agent", &name, &[]).await;
    for (at, share) in shares.iter().enumerate() {
        kept = node.keeps(kept + share).await;
        node.up.kill_and_restart();
        match shares.get(at + 1) {
            Some(next) => registry.link.stall_after(*next),
            None => registry.link.let_go(),
        }
    }
    node.done().await;
    registry.sent_at_most(&image, 3);
    node.containerd.mount(&name).await.unwrap();
    assert_eq!(leases(&node.containerd).await, Vec::<String>::new());
}
on_both!(a_killed_agent_goes_on);

/// An image that fells the agent each time is given up, and comes when somebody asks anew.
async fn an_image_that_fells_the_agent_is_given_up(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(mut node) = Node::start(version).await else { return };
    let image = image(12 * MIB);
    // By digest: the question for a tag's digest would be begun too.
    let tag = registry.push("kills/agent-again", "v1", &image).await;
    let name = format!("{}@{}", tag.strip_suffix(":v1").unwrap(), image.digest());
    registry.link.stall_after(4_000);
    node.begin("fells", &name, &[]).await;
    let ledger = node.up.data().join("nodes/node-1/ledger.json");
    for life in 1..=5 {
        let begun = async || {
            let text = std::fs::read_to_string(&ledger).unwrap_or_default();
            let ledger: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            let mut starts = ledger["starts"].as_object().into_iter().flat_map(|starts| starts.values());
            starts.any(|start| start["count"] == life)
        };
        eventually(&format!("it is begun {life} times"), begun).await;
        node.up.kill_and_restart();
    }
    let report = node.report(|report| report.phase == "Failed").await;
    assert_eq!(report.reason, "GivenUp", "{report:?}");
    assert!(report.message.contains(&name) && report.message.contains("5 times in a row"), "{report:?}");
    registry.link.let_go();
    node.up.run(&["delete", "fells"]).await.exits(0);
    node.begin("again", &name, &[]).await;
    node.done().await;
}
on_both!(quick an_image_that_fells_the_agent_is_given_up);

async fn a_killed_containerd_is_waited_for(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(mut node) = Node::start(version).await else { return };
    let image = image(48 * MIB);
    let name = registry.push("kills/containerd", "v1", &image).await;
    registry.link.stall_after(image.layer_bytes() / 2);
    node.begin("containerd", &name, &[]).await;
    node.keeps(image.layer_bytes() / 2).await;
    node.containerd.kill();
    let report = node.report(|report| report.reason == "RuntimeUnavailable").await;
    assert_eq!(report.phase, "Pulling", "{report:?}");
    node.up.run(&["why", "containerd"]).await.exits(0).says("RuntimeUnavailable");
    registry.link.let_go();
    node.containerd.restart().await.unwrap();
    let report = node.done().await;
    assert_eq!(
        (report.reason.as_str(), report.message.as_str(), report.attempt),
        ("", "", 1),
        "it is no failed attempt"
    );
    registry.sent_at_most(&image, 1);
    node.containerd.mount(&name).await.unwrap();
    assert_eq!(leases(&node.containerd).await, Vec::<String>::new());
}
on_both!(a_killed_containerd_is_waited_for);

/// One layer, which is unpacked while it comes: the agent is killed in the middle of that, containerd at its end.
async fn kills_while_unpacking_lose_nothing(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(mut node) = Node::start(version).await else { return };
    let layer = LayerBuilder::new().noise("large", 100 * MIB, 1).text("text", 100 * MIB, 2);
    let image = ImageBuilder::new().layer(&layer.build(Compression::Gzip).unwrap()).build();
    let name = registry.push("kills/unpacking", "v1", &image).await;
    let most = image.layer_bytes() * 95 / 100;
    registry.link.stall_after(most);
    node.begin("unpacking", &name, &[]).await;
    node.keeps(most).await;
    node.up.kill_and_restart();
    registry.link.let_go();
    node.keeps(image.layer_bytes()).await;
    node.containerd.restart().await.unwrap();
    node.done().await;
    registry.sent_at_most(&image, 2);
    node.containerd.mount(&name).await.unwrap();
    assert_eq!(leases(&node.containerd).await, Vec::<String>::new());
}
on_both!(kills_while_unpacking_lose_nothing);

async fn a_garbage_collector_in_the_middle_takes_nothing(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(mut node) = Node::start(version).await else { return };
    let image = image(24 * MIB);
    let name = registry.push("kills/collected", "v1", &image).await;
    registry.link.stall_after(16 * MIB);
    node.begin("collected", &name, &[]).await;
    node.keeps(16 * MIB).await;
    collect(&node.containerd).await;
    node.up.kill_and_restart();
    collect(&node.containerd).await;
    registry.link.let_go();
    node.done().await;
    collect(&node.containerd).await;
    registry.sent_at_most(&image, 1);
    node.containerd.mount(&name).await.unwrap();
}
on_both!(a_garbage_collector_in_the_middle_takes_nothing);

/// Its layers are where they had got to: in the spool, in containerd, unpacked. All of it is held for a while, across a
/// restart of the agent and any garbage collection.
async fn a_job_that_is_deleted_and_made_anew_goes_on(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(mut node) = Node::start(version).await else { return };
    let image = image(24 * MIB);
    let name = registry.push("kills/anew", "v1", &image).await;
    // So far that some layers are complete, and no longer in the spool.
    registry.link.stall_after(16 * MIB);
    node.begin("first", &name, &[]).await;
    node.keeps(16 * MIB).await;
    node.up.run(&["delete", "first"]).await.exits(0);
    let pulls = node.up.data().join("nodes/node-1/pulls");
    let left = async || {
        let texts = std::fs::read_dir(&pulls).unwrap().map(|file| std::fs::read_to_string(file.unwrap().path()));
        texts.filter(|text| text.as_ref().is_ok_and(|text| text.contains("\"left\""))).count() == 1
    };
    eventually("what was fetched is left", left).await;
    assert_eq!(leases(&node.containerd).await.len(), 1);
    node.up.kill_and_restart();
    collect(&node.containerd).await;
    registry.link.let_go();
    node.begin("second", &name, &[]).await;
    node.done().await;
    registry.sent_at_most(&image, 1);
    node.containerd.mount(&name).await.unwrap();
    assert_eq!(leases(&node.containerd).await, Vec::<String>::new());
    assert_eq!(std::fs::read_dir(&pulls).unwrap().count(), 0);
}
on_both!(quick a_job_that_is_deleted_and_made_anew_goes_on);

async fn a_deleted_job_leaves_nothing_behind(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    // Not even for a while.
    let Some(mut node) = Node::start_with(version, Default::default(), &["--keep-fetched", "0s"]).await else { return };
    let image = image(12 * MIB);
    let name = registry.push("kills/deleted", "v1", &image).await;
    let swept = async |node: &Node| {
        eventually("no lease of ours is left", async || leases(&node.containerd).await.is_empty()).await;
        let spool = node.up.data().join("nodes/node-1/spool");
        eventually("the spool is empty", async || std::fs::read_dir(&spool).unwrap().next().is_none()).await;
        // What containerd made for a request that nobody waits for goes with its next collection.
        let collected = async || {
            collect(&node.containerd).await;
            clean(&node.containerd).await
        };
        eventually("nothing of an unfinished pull is left", collected).await;
    };
    // While the agent runs; and by the next life of one that was killed before it could.
    for killed in [false, true] {
        registry.link.stall_after(3 * MIB);
        let before = registry.link.received();
        node.begin("deleted", &name, &[]).await;
        registry.link.wait_for_bytes(before + 3 * MIB).await.unwrap();
        assert_eq!(leases(&node.containerd).await.len(), 1);
        if killed {
            // An agent that finds nothing but its ledger and an object without orders.
            node.containerd.kill();
            node.up.run(&["delete", "deleted"]).await.exits(0);
            node.containerd.restart().await.unwrap();
            node.up.kill_and_restart();
        } else {
            node.up.run(&["delete", "deleted"]).await.exits(0);
        }
        swept(&node).await;
        registry.link.let_go();
    }
    // One of an earlier life whose order nobody remembers goes too; those of others stay.
    node.containerd.ctr_ok(&["leases", "create", "--id", "stoker-old", "stoker.dev/pull=0123456789"]).await.unwrap();
    node.containerd.ctr_ok(&["leases", "create", "--id", "theirs", "else=1"]).await.unwrap();
    node.up.kill_and_restart();
    swept(&node).await;
    assert!(node.containerd.ctr_ok(&["leases", "ls"]).await.unwrap().contains("theirs"));
}
on_both!(a_deleted_job_leaves_nothing_behind);
