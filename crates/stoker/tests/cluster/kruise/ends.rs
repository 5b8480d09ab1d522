//! Jobs that are edited, deleted, or run out of time while their nodes pull.

use serde_json::json;

use super::{completes, edit, ended, is_gone, job, jobs, no_orders, pulls, says};
use crate::bed::{Cluster, image};
use crate::link::Linked;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn edits_deletion_deadline_and_time_to_live_count_in_the_middle_of_a_pull() {
    let Some(cluster) = Cluster::enter().await else { return };
    let linked = Linked::start(&cluster, &[], image(8_000_000)).await;
    linked.link.stall_after(3_000_000);
    let image = &linked.reference;

    // Parallelism 0 pauses: the nodes are counted, and none is told to pull.
    let mut web = job("web", image, json!({"parallelism": 0}));
    // OpenKruise's controller has left it there. Nobody else would remove it.
    web["metadata"]["finalizers"] = json!(["apps.kruise.io/deletion-protection"]);
    cluster.create(&web).await;
    let counts = |active: u64| {
        let status = json!({"desired": 2, "active": active, "succeeded": 0, "failed": 0,
            "message": "job is running, progress 0.0%"});
        says(status)
    };
    cluster.wait(&jobs(&cluster), "web", counts(0)).await;
    no_orders(&cluster, image).await;
    edit(&jobs(&cluster), "web", json!({"parallelism": 1})).await;
    cluster.wait(&jobs(&cluster), "web", counts(1)).await;
    cluster.wait(&cluster.node_preheats(), "n1", pulls(image)).await;
    linked.link.wait_for_bytes(3_000_000).await.unwrap();
    let second = cluster.node_preheats().get("n2").await.unwrap();
    assert!(!pulls(image)(Some(&second)), "one node at a time: {:#}", second.data["spec"]);
    edit(&jobs(&cluster), "web", json!({"parallelism": 2})).await;
    cluster.wait(&jobs(&cluster), "web", counts(2)).await;
    cluster.wait(&cluster.node_preheats(), "n2", pulls(image)).await;

    cluster.kubectl_as_person(&["delete", "imagepulljob", "web", "--timeout=60s"]).await.exits(0);
    no_orders(&cluster, image).await;
    for node in ["n1", "n2"] {
        assert!(!cluster.has(node, image).await, "half of an image is on {node}");
    }

    // Nothing comes before the deadline.
    let policy = json!({"activeDeadlineSeconds": 3});
    let spec = json!({"parallelism": 2, "pullPolicy": {"timeoutSeconds": 2}, "completionPolicy": policy});
    cluster.create(&job("late", image, spec)).await;
    let status = ended(&cluster, &jobs(&cluster), "late").await;
    let numbers = ["desired", "succeeded", "failed", "active"].map(|field| status[field].as_u64());
    assert_eq!(numbers, [2, 0, 2, 0].map(Some), "{status:#}");
    assert_eq!(status["message"], "job exceeds activeDeadlineSeconds");
    assert_eq!(status["failedNodes"], json!(["n1", "n2"]));
    no_orders(&cluster, image).await;
    // Of a job that has ended, the time to live can be edited, and nothing else counts.
    let spec = json!({"parallelism": 1, "completionPolicy": {"ttlSecondsAfterFinished": 1}});
    edit(&jobs(&cluster), "late", spec).await;
    cluster.wait(&jobs(&cluster), "late", is_gone).await;
    for node in ["n1", "n2"] {
        assert!(!cluster.has(node, image).await, "half of an image is on {node}");
    }
    cluster.stoker(&["get"]).await.exits(0).says("no jobs");

    // Another job for the same image succeeds, and goes when its time is over.
    linked.link.let_go();
    let spec = json!({"parallelism": 2, "completionPolicy": {"ttlSecondsAfterFinished": 1}});
    cluster.create(&job("again", image, spec)).await;
    completes(&cluster, "again", 2).await;
    cluster.wait(&jobs(&cluster), "again", is_gone).await;
}
