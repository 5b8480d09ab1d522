//! The order of docs/install.md for upgrades, in the middle of a pull.

use crate::bed::{Cluster, SYSTEM};
use crate::link::Linked;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn pulls_go_on_while_everything_is_replaced() {
    let Some(mut cluster) = Cluster::enter().await else { return };
    cluster.spoil();
    let linked = Linked::half_way(&cluster, "web", &[]).await;
    let now = cluster.own_image().await;
    // Another template of both, as another version would have.
    let manifests = cluster.manifests(&now, &["--agent-metrics", "127.0.0.1:7482", "--replicas", "3"]).await;
    let file = cluster.file("stoker.yaml");
    std::fs::write(&file, &manifests.exits(0).out).unwrap();
    let file = file.to_str().unwrap();
    cluster.kubectl(&["apply", "-f", file, "-l", "app.kubernetes.io/component=api"]).await.exits(0);
    cluster.kubectl(&["apply", "-f", file, "-l", "app.kubernetes.io/component!=agent"]).await.exits(0);
    cluster.rolled_out(SYSTEM).await;
    cluster.kubectl(&["-n", SYSTEM, "rollout", "restart", "deployment/stoker-controller"]).await.exits(0);
    cluster.kubectl(&["apply", "-f", file]).await.exits(0);
    cluster.rolled_out(SYSTEM).await;
    linked.link.let_go();
    cluster.succeeds("web", 2).await;
    // The agent of each node was replaced.
    linked.sent_at_most(2, 2);
}
