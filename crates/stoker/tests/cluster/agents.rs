//! Agents that die in the middle of a pull.

use serde_json::json;

use crate::bed::{Cluster, image, is_ready, restarts};
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
    let pods = cluster.parts("agent").await;
    let of_n2 = |pod: &&k8s_openapi::api::core::v1::Pod| {
        pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_deref() == Some("n2"))
    };
    cluster.delete_part(pods.iter().find(of_n2).unwrap()).await;
    linked.link.let_go();
    let status = cluster.ended("web").await;
    assert_eq!((&status["phase"], &status["succeeded"]), (&json!("Succeeded"), &json!(1)), "{status:#}");
    // Two kills: for each a megabyte may come again.
    let (sent, whole) = (linked.link.received(), linked.image.layer_bytes());
    assert!(sent <= whole + whole / 50 + (2 << 20), "{sent} bytes for an image of {whole}");
    cluster
        .eventually("both agents are ready", || async {
            let pods = cluster.parts("agent").await;
            pods.len() == 2 && pods.iter().all(is_ready)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_pull_waits_for_a_containerd_that_comes_back() {
    let Some(cluster) = Cluster::enter().await else { return };
    let before = cluster.parts("agent").await;
    for node in ["n1", "n2"] {
        let linked = Linked::start(&cluster, &[], image(20_000_000)).await;
        linked.link.stall_after(8_000_000);
        cluster.stoker(&["pull", &linked.reference, "--name", node, "--node", node, "--no-wait"]).await.exits(0);
        linked.link.wait_for_bytes(8_000_000).await.unwrap();
        let away = cluster.without(&format!("{node}/containerd")).await;
        linked.link.let_go();
        drop(away);
        let status = cluster.ended(node).await;
        assert_eq!(status["phase"], "Succeeded", "{status:#}");
        linked.sent_at_most(1);
    }
    // The socket that came back is the one that the pods see: nobody had to start them again.
    for pod in cluster.parts("agent").await {
        let old = before.iter().find(|old| old.metadata.uid == pod.metadata.uid).expect("the same pod");
        assert_eq!(restarts(&pod), restarts(old), "{:?}", pod.metadata.name);
    }
}
