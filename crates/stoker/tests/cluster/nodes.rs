//! Nodes that go and nodes that come.

use kube::api::{DeleteParams, DynamicObject};
use serde_json::json;

use crate::bed::Cluster;

fn has(desired: i64, succeeded: i64) -> impl Fn(Option<&DynamicObject>) -> bool + Copy {
    move |job: Option<&DynamicObject>| {
        job.is_some_and(|job| {
            let status = &job.data["status"];
            status["desired"] == desired && status["succeeded"] == succeeded
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_node_that_goes_is_no_longer_waited_for_and_one_that_comes_gets_its_images() {
    let Some(cluster) = Cluster::enter().await else { return };
    let job = |name: &str, image: &str| {
        json!({"apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": name}, "spec": {
            "images": [{"image": image}], "completion": {"mode": "Continuous"},
        }})
    };
    let (first, _) = cluster.push("shop/first", 1_000_000).await;
    cluster.create(&job("first", &first)).await;
    cluster.wait(&cluster.preheats(), "first", has(2, 2)).await;

    // The plug is pulled and the Node deleted: its NodePreheat goes with it, and the job counts one node less.
    let away = cluster.without("n2/kubelet").await;
    let before = cluster.node_preheats().get("n2").await.unwrap().metadata.uid;
    cluster.nodes().delete("n2", &DeleteParams::default()).await.unwrap();
    let gone = |object: Option<&DynamicObject>| object.is_none_or(|object| object.metadata.uid != before);
    cluster.wait(&cluster.node_preheats(), "n2", gone).await;
    cluster.wait(&cluster.preheats(), "first", has(1, 1)).await;
    let (second, _) = cluster.push("shop/second", 1_000_000).await;
    cluster.create(&job("second", &second)).await;
    cluster.wait(&cluster.preheats(), "second", has(1, 1)).await;
    assert!(!cluster.has("n2", &second).await, "the node is not there, and gets nothing");

    // It joins: what was made while it was away comes to it.
    drop(away);
    for name in ["first", "second"] {
        cluster.wait(&cluster.preheats(), name, has(2, 2)).await;
    }
    for image in [&first, &second] {
        assert!(cluster.has("n2", image).await, "{image} is not on n2");
    }
}
