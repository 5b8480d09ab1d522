//! Many jobs for one image.

use serde_json::json;

use super::{completes, job, jobs, says};
use crate::bed::{Cluster, image};
use crate::link::Linked;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn ten_jobs_for_one_image_are_one_pull_a_node_and_ten_truthful_statuses() {
    let Some(cluster) = Cluster::enter().await else { return };
    let linked = Linked::start(&cluster, &[], image(6_000_000)).await;
    // Layers stall, and the registry still answers what the tag means, also to jobs that come when the first layers have stalled.
    linked.link.stall_each_after(1_000_000);
    let names: Vec<String> = (0..10).map(|number| format!("web-{number}")).collect();
    let all: Vec<String> =
        names.iter().map(|name| job(name, &linked.reference, json!({"parallelism": 2})).to_string()).collect();
    cluster.apply_as_person(&all.join("\n---\n")).await.exits(0);
    // While both nodes pull, each job says so.
    for name in &names {
        let pulls = json!({"desired": 2, "active": 2, "succeeded": 0, "failed": 0, "completionTime": null,
            "message": "job is running, progress 0.0%"});
        cluster.wait(&jobs(&cluster), name, says(pulls)).await;
    }
    linked.link.let_go();
    for name in &names {
        completes(&cluster, name, 2).await;
    }
    linked.sent_at_most(2, 0);
    // One that comes later has nothing to pull.
    cluster.create(&job("late", &linked.reference, json!({}))).await;
    completes(&cluster, "late", 2).await;
    linked.sent_at_most(2, 0);
}
