//! The numbers of a running cluster, from where Prometheus would read them.

use kube::api::DynamicObject;
use serde_json::json;

use crate::bed::{Cluster, SYSTEM};

/// The sum of all lines of this series that hold these labels.
pub(crate) fn sum(page: &str, series: &str, labels: &[&str]) -> f64 {
    let lines = page.lines().filter(|line| line.starts_with(series) && labels.iter().all(|label| line.contains(label)));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn pulls_bytes_waits_and_writes_are_counted() {
    let Some(cluster) = Cluster::enter().await else { return };
    cluster.both_ready("controller").await;
    let agent = async || cluster.page("n1", "http://127.0.0.1:7480/metrics").await.unwrap();
    let before = agent().await;
    let (image, pushed) = cluster.push("shop/web", 3_000_000).await;
    cluster.stoker(&["pull", &image, "--node", "n1"]).await.exits(0);
    cluster.stoker(&["pull", &format!("{image}-missing"), "--node", "n1"]).await.exits(1);
    let after = agent().await;
    let grown = |series: &str, labels: &[&str]| sum(&after, series, labels) - sum(&before, series, labels);
    assert_eq!(grown("stoker_agent_attempts_total", &["result=\"succeeded\""]), 1.0, "{after}");
    assert!(grown("stoker_agent_attempts_total", &["reason=\"NotFound\""]) >= 1.0, "{after}");
    let received = grown("stoker_agent_received_bytes_total", &["source=\"registry\""]);
    let own = pushed.layers.last().unwrap().bytes.len() as f64;
    assert!(received >= own && received <= own + 2_000_000.0, "{received}");
    assert!(grown("stoker_agent_status_writes_total", &["result=\"succeeded\""]) >= 2.0, "{after}");

    let job = json!({"apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": "waits"}, "spec": {
        "images": [{"image": image}], "nodes": {"names": ["nowhere"]},
    }});
    cluster.create(&job).await;
    let waits = |job: Option<&DynamicObject>| job.is_some_and(|job| job.data["status"]["waiting"] == 1);
    cluster.wait(&cluster.preheats(), "waits", waits).await;
    let (pod, ..) = cluster.leader().await;
    let controller = cluster.controller_page(&pod, "metrics").await.unwrap();
    assert_eq!(sum(&controller, "stoker_controller_leader", &[]), 1.0);
    assert_eq!(sum(&controller, "stoker_controller_nodes_waiting", &["reason=\"NodeUnknown\""]), 1.0, "{controller}");
    assert_eq!(sum(&controller, "stoker_controller_nodes", &["state=\"waiting\""]), 1.0, "{controller}");
    assert!(controller.contains("\nstoker_controller_writes_waiting "), "{controller}");
    assert!(
        sum(&controller, "stoker_controller_writes_total", &["kind=\"NodePreheat\"", "result=\"succeeded\""]) >= 1.0
    );
    // Both controllers say that they are ready, one by leading and one by standing by.
    for pod in cluster.parts("controller").await {
        for page in ["healthz", "readyz"] {
            let asked = cluster.controller_page(&pod, page).await;
            assert!(asked.is_some(), "{page} of {SYSTEM}/{:?}", pod.metadata.name);
        }
    }
}
