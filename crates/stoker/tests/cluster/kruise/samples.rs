//! The three samples that OpenKruise's users start from.

use serde_json::{Value, json};

use super::{completes, jobs, says};
use crate::bed::Cluster;
use crate::embedded::eventually;
use crate::people::header;

/// The manifest of a fixture, with an image that exists.
fn sample(fixture: &str, image: &str) -> Value {
    let file = format!("{}/../stoker-api/tests/fixtures/kruise/{fixture}.yaml", env!("CARGO_MANIFEST_DIR"));
    let mut object: Value = serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    object["spec"]["image"] = json!(image);
    object
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn the_samples_of_openkruise_reach_their_status_and_images_that_never_ends_keeps_come_back() {
    let Some(cluster) = Cluster::enter().await else { return };
    cluster.kubectl(&["label", "--overwrite", "node", "n2", "resource-pool=serverless"]).await.exits(0);
    let (base, _) = cluster.push("shop/base", 1_000_000).await;
    let (sidecar, _) = cluster.push("shop/sidecar", 1_000_000).await;
    let (serverless, _) = cluster.push("shop/serverless", 1_000_000).await;
    let samples = [("cluster-wide", &base), ("sidecar", &sidecar), ("resource-pool", &serverless)];
    for (fixture, image) in samples {
        cluster.create(&sample(fixture, image)).await;
    }

    let all = json!({"desired": 2, "active": 0, "succeeded": 2, "failed": 0, "completionTime": null,
        "message": "job is running, progress 100.0%"});
    let of_pool = json!({"desired": 1, "active": 0, "succeeded": 1, "failed": 0, "completionTime": null,
        "message": "job is running, progress 100.0%"});
    cluster.wait(&jobs(&cluster), "base-image-job", says(all.clone())).await;
    completes(&cluster, "sidecar-image-job", 2).await;
    cluster.wait(&jobs(&cluster), "serverless-job", says(of_pool)).await;
    for (image, nodes) in [(&base, &["n1", "n2"][..]), (&sidecar, &["n1", "n2"]), (&serverless, &["n2"])] {
        for node in ["n1", "n2"] {
            assert_eq!(cluster.has(node, image).await, nodes.contains(&node), "{image} on {node}");
        }
    }

    // A node that joins the pool has the image too: so the sample has run on both containerds.
    cluster.kubectl(&["label", "--overwrite", "node", "n1", "resource-pool=serverless"]).await.exits(0);
    cluster.wait(&jobs(&cluster), "serverless-job", says(all.clone())).await;
    assert!(cluster.has("n1", &serverless).await, "{serverless} is not on n1");

    let columns = ["NAME", "TOTAL", "ACTIVE", "SUCCEED", "FAILED", "AGE"];
    let table = cluster.kubectl_as_person(&["get", "imagepulljob"]).await;
    assert_eq!(header(&table.exits(0).out), columns);
    let cells = |table: &str, job: &str| -> Vec<String> {
        let line = table.lines().find(|line| line.starts_with(job)).unwrap_or_default();
        line.split_whitespace().map(str::to_owned).collect()
    };
    for (name, nodes) in [("base-image-job", "2"), ("sidecar-image-job", "2"), ("serverless-job", "2")] {
        assert_eq!(cells(&table.out, name)[1..5], [nodes, "0", nodes, "0"], "{}", table.out);
    }
    let older = cluster.kubectl_as_person(&["get", "imagepulljobs.v1alpha1.apps.kruise.io"]).await;
    assert_eq!(header(&older.exits(0).out), [&columns[..], &["MESSAGE"]].concat());
    older.says("job has completed").says("job is running, progress 100.0%");

    // The other job of type Never has another image, and says nothing about this one.
    for node in ["n1", "n2"] {
        cluster.on_node(node, &format!("ctr -n k8s.io images rm --sync {base}")).await.exits(0);
        let back = async || cluster.has(node, &base).await;
        eventually(&format!("the image that was removed from {node} is pulled again"), back).await;
    }
    cluster.wait(&jobs(&cluster), "base-image-job", says(all)).await;
    cluster.stoker(&["get", "imagepulljob/base-image-job"]).await.exits(0).says("n1").says("n2").says("Done");
    cluster.kubectl(&["label", "node", "n1", "n2", "resource-pool-"]).await.exits(0);
}
