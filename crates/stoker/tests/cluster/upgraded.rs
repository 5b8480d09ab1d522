//! The order of docs/install.md for upgrades, in the middle of a pull.

use serde_json::json;

use crate::bed::{Cluster, SYSTEM, image};
use crate::link::Linked;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn pulls_go_on_while_everything_is_replaced() {
    let Some(mut cluster) = Cluster::enter().await else { return };
    cluster.spoil();
    let linked = Linked::start(&cluster, &[], image(20_000_000)).await;
    linked.link.stall_after(8_000_000);
    cluster.stoker(&["pull", &linked.reference, "--name", "web", "--no-wait"]).await.exits(0);
    linked.link.wait_for_bytes(8_000_000).await.unwrap();

    let path = "jsonpath={.spec.template.spec.containers[0].image}";
    let now = cluster.kubectl(&["-n", SYSTEM, "get", "deployment/stoker-controller", "-o", path]).await;
    // Another template of both, as another version would have.
    let other = ["install", "--image", now.exits(0).out.trim(), "--agent-metrics", "127.0.0.1:7481", "--replicas", "3"];
    let manifests = cluster.administer(&other).await;
    let file = cluster.file("stoker.yaml");
    std::fs::write(&file, &manifests.exits(0).out).unwrap();
    let file = file.to_str().unwrap();
    cluster.kubectl(&["apply", "-f", file, "-l", "app.kubernetes.io/component=api"]).await.exits(0);
    cluster.kubectl(&["apply", "-f", file, "-l", "app.kubernetes.io/component!=agent"]).await.exits(0);
    let status = ["-n", SYSTEM, "rollout", "status", "--timeout=180s"];
    cluster.kubectl(&[&status[..], &["deployment/stoker-controller"]].concat()).await.exits(0);
    cluster.kubectl(&["-n", SYSTEM, "rollout", "restart", "deployment/stoker-controller"]).await.exits(0);
    cluster.kubectl(&["apply", "-f", file]).await.exits(0);
    for part in ["deployment/stoker-controller", "daemonset/stoker-agent"] {
        cluster.kubectl(&[&status[..], &[part]].concat()).await.exits(0);
    }
    linked.link.let_go();
    let status = cluster.ended("web").await;
    assert_eq!((&status["phase"], &status["succeeded"]), (&json!("Succeeded"), &json!(2)), "{status:#}");
    // An agent that is replaced on each node: for each a megabyte may come again.
    let (sent, whole) = (linked.link.received(), 2 * linked.image.layer_bytes());
    assert!(sent <= whole + whole / 50 + (2 << 20), "{sent} bytes for two nodes and {whole}");
}
