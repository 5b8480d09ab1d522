//! Policies, where the API server has admission.

use serde_json::json;

use crate::bed::Cluster;
use crate::embedded::eventually;

/// The namespace whose jobs are restricted; other tests have another one.
const POLICED: &str = "policed";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn what_is_not_allowed_is_refused_when_it_is_applied_and_held_where_it_came_first() {
    let Some(cluster) = Cluster::enter().await else { return };
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": POLICED, "labels": {"team": "a"}}});
    cluster.apply(&namespace.to_string()).await.exits(0);
    let job = |name: &str, image: &str, timeout: &str| {
        let spec = json!({"images": [{"image": image}], "pull": {"timeout": timeout, "retries": 0}, "suspend": false});
        json!({"apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": name, "namespace": POLICED}, "spec": spec})
            .to_string()
    };
    // An address of the documentation's, where nobody answers: what is handed out waits.
    let first = job("first", "192.0.2.1:5000/shop/web:v1", "10m");
    cluster.apply(&first).await.exits(0);
    let policy = json!({
        "apiVersion": "stoker.dev/v1alpha1", "kind": "PreheatPolicy", "metadata": {"name": "team-a"},
        "spec": {
            "namespaces": {"matchLabels": {"team": "a"}}, "images": ["registry.example/*", "ghcr.io/acme/**"],
            "max": {"timeout": "30m"},
        },
    });
    cluster.apply(&policy.to_string()).await.exits(0);
    let says = "PreheatPolicy team-a does not allow this job (spec.images): no pattern matches docker.io/library/nginx";
    eventually("the API server knows the policy", async || {
        let refused = cluster.apply(&job("second", "nginx", "10m")).await;
        let knows = refused.code != Some(0);
        if knows {
            refused.says(says);
        } else {
            cluster.kubectl(&["delete", "preheat", "second", "-n", POLICED]).await.exits(0);
        }
        knows
    })
    .await;
    let long = cluster.apply(&job("third", "ghcr.io/acme/team/web:v1", "1h")).await;
    long.exits(1).says("PreheatPolicy team-a does not allow this job (spec.max.timeout): an attempt may take 30m");
    let held = ["get", "preheat", "first", "-n", POLICED, "-o", "jsonpath={.status.message}"];
    eventually("the first one is held", async || {
        cluster.kubectl(&held).await.out.contains("PreheatPolicy team-a does not allow this job (spec.images)")
    })
    .await;
    // Whoever leaves the spec alone, or suspends the job, is kept from nothing.
    cluster.kubectl(&["label", "preheat", "first", "-n", POLICED, "a=b"]).await.exits(0);
    let suspend = ["patch", "preheat", "first", "-n", POLICED, "--type=merge", "-p", r#"{"spec": {"suspend": true}}"#];
    cluster.kubectl(&suspend).await.exits(0);
    cluster.apply(&job("fourth", "ghcr.io/acme/team/web:v1", "10m")).await.exits(0);
    cluster.kubectl(&["delete", "preheatpolicy", "team-a"]).await.exits(0);
    cluster.kubectl(&["delete", "namespace", POLICED, "--wait"]).await.exits(0);
}
