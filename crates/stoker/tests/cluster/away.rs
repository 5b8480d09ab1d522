//! An API server that is away in the middle of a pull.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::bed::{Cluster, image, restarts};
use crate::link::Linked;

/// How long it is away: longer than every lease and every patience.
const AWAY: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn agents_finish_while_the_api_server_is_away_and_report_when_it_is_back() {
    let Some(cluster) = Cluster::enter().await else { return };
    let linked = Linked::start(&cluster, &[], image(20_000_000)).await;
    let before: Vec<_> = cluster.parts("agent").await;
    linked.link.stall_after(8_000_000);
    cluster.stoker(&["pull", &linked.reference, "--name", "web", "--no-wait"]).await.exits(0);
    // Both nodes have their order: one asks the registry first, the other one after it.
    cluster
        .eventually("both nodes pull", || async {
            let reports = ["n1", "n2"].map(|node| {
                let api = cluster.node_preheats();
                async move { api.get(node).await.unwrap().data["spec"]["orders"].as_object().map(|orders| orders.len()) }
            });
            futures::future::join_all(reports).await.into_iter().all(|orders| orders.is_some_and(|orders| orders > 0))
        })
        .await;
    linked.link.wait_for_bytes(8_000_000).await.unwrap();

    let since = Instant::now();
    let away = cluster.without("control/apiserver").await;
    linked.link.let_go();
    for node in ["n1", "n2"] {
        let has = || cluster.has(node, &linked.reference);
        cluster.eventually(&format!("the image is on {node}, with nobody to tell"), has).await;
    }
    tokio::time::sleep_until(since + AWAY).await;
    drop(away);

    cluster.eventually("the API server is back", || async { cluster.client.apiserver_version().await.is_ok() }).await;
    let status = cluster.ended("web").await;
    assert_eq!((&status["phase"], &status["succeeded"]), (&json!("Succeeded"), &json!(2)), "{status:#}");
    linked.sent_at_most(2);
    // They lived through it: an agent that is restarted whenever the API server is away would be no use at the edge.
    for pod in cluster.parts("agent").await {
        let old = before.iter().find(|old| old.metadata.uid == pod.metadata.uid).expect("the same pod");
        assert_eq!(restarts(&pod), restarts(old), "{:?}", pod.metadata.name);
    }
}
