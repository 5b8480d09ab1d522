//! Agents that die in the middle of a pull.

use crate::bed::{Cluster, image};
use crate::link::Linked;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_pull_whose_agent_is_killed_goes_on_where_it_was() {
    let Some(cluster) = Cluster::enter().await else { return };
    let linked = Linked::start(&cluster, &[], image(30_000_000)).await;
    linked.link.stall_after(10_000_000);
    cluster.stoker(&["pull", &linked.reference, "--name", "web", "--node", "n2", "--no-wait"]).await.exits(0);
    linked.link.wait_for_bytes(10_000_000).await.unwrap();

    // First its process, which the kubelet starts again in the same pod.
    cluster.signal("n2", "agent", "KILL").await;
    linked.link.let_go();
    linked.link.stall_after(10_000_000);
    linked.link.wait_for_bytes(19_000_000).await.unwrap();

    // Then its pod, with all that is in its file system.
    cluster.delete_part(&cluster.part_on("agent", "n2").await).await;
    linked.link.let_go();
    cluster.succeeds("web", 1).await;
    linked.sent_at_most(1, 2);
    cluster.both_ready("agent").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_pull_waits_for_a_containerd_that_comes_back() {
    let Some(cluster) = Cluster::enter().await else { return };
    let before = cluster.parts("agent").await;
    for node in ["n1", "n2"] {
        let linked = Linked::half_way(&cluster, node, &["--node", node]).await;
        let away = cluster.without(&format!("{node}/containerd")).await;
        linked.link.let_go();
        drop(away);
        cluster.succeeds(node, 1).await;
        linked.sent_at_most(1, 1);
    }
    // The socket that came back is the one that the pods see: nobody had to start them again.
    cluster.lived_on(&before).await;
}
