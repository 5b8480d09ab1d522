//! An API server that is away in the middle of a pull.

use std::time::Duration;

use kube::api::DynamicObject;
use tokio::time::Instant;

use crate::bed::Cluster;
use crate::embedded::eventually;
use crate::link::Linked;

/// How long it is away: longer than every lease and every patience.
const AWAY: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn agents_finish_while_the_api_server_is_away_and_report_when_it_is_back() {
    let Some(cluster) = Cluster::enter().await else { return };
    let before = cluster.parts("agent").await;
    let linked = Linked::half_way(&cluster, "web", &[]).await;
    // Both nodes have their order: one asks the registry first, the other one after it.
    for node in ["n1", "n2"] {
        let ordered = |object: Option<&DynamicObject>| {
            let orders = object.and_then(|object| object.data["spec"]["orders"].as_object());
            orders.is_some_and(|orders| orders.values().any(|order| order["image"] == linked.reference))
        };
        cluster.wait(&cluster.node_preheats(), node, ordered).await;
    }

    let since = Instant::now();
    let away = cluster.without("control/apiserver").await;
    linked.link.let_go();
    for node in ["n1", "n2"] {
        let has = async || cluster.has(node, &linked.reference).await;
        eventually(&format!("the image is on {node}, with nobody to tell"), has).await;
    }
    tokio::time::sleep_until(since + AWAY).await;
    drop(away);

    cluster.served().await;
    cluster.succeeds("web", 2).await;
    linked.sent_at_most(2, 1);
    // They lived through it: an agent that is restarted whenever the API server is away would be no use at the edge.
    cluster.lived_on(&before).await;
}
