//! Workloads of Kubernetes whose second batch of pods finds its image on its node, because it was pulled while the first one started.

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::jobs;
use crate::bed::{Cluster, SHOP, node_of};
use crate::embedded::eventually;

/// A directory of nodes. Updated pods are ready when there is a file `open` in it.
const GATE: &str = "/run/stoker-test-gate";
const PARALLELISM: &str = "apps.kruise.io/image-predownload-parallelism";
/// The workloads, by kind and name.
const WORKLOADS: [(&str, &str); 3] = [("Deployment", "web"), ("StatefulSet", "db"), ("DaemonSet", "log")];

/// The pods of a workload, one on each node.
fn template(name: &str, image: &str) -> Value {
    let apart = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": name}}});
    let container = json!({
        "name": "main", "image": image, "command": ["/bin/busybox", "sleep", "3600"],
        "volumeMounts": [{"name": "gate", "mountPath": "/gate"}],
    });
    json!({
        "metadata": {"labels": {"app": name}},
        "spec": {
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "volumes": [{"name": "gate", "hostPath": {"path": GATE, "type": "DirectoryOrCreate"}}],
        },
    })
}

/// A workload that asks for pre-download. The Deployment is that of the examples, with pods that this cluster can run.
fn workload(kind: &str, name: &str, image: &str) -> Value {
    let template = template(name, image);
    if kind == "Deployment" {
        let file = format!("{}/../../examples/rollout.yaml", env!("CARGO_MANIFEST_DIR"));
        let mut example: Value = serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        example["spec"]["template"] = template;
        return example;
    }
    let mut spec = json!({"selector": {"matchLabels": {"app": name}}, "template": template});
    if kind == "StatefulSet" {
        (spec["replicas"], spec["serviceName"]) = (json!(2), json!(name));
    }
    let metadata = json!({"name": name, "annotations": {PARALLELISM: "2"}});
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec})
}

/// The pods of a workload that run this image, or are about to.
async fn pods(cluster: &Cluster, name: &str, image: &str) -> Vec<Pod> {
    let all = cluster.pods().list(&ListParams::default().labels(&format!("app={name}"))).await.unwrap();
    let of_image = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.containers[0].image.as_deref() == Some(image));
    all.items.into_iter().filter(of_image).collect()
}

fn runs(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
}

async fn rolled_out(cluster: &Cluster, kind: &str, name: &str) {
    let what = format!("{kind}/{name}").to_lowercase();
    cluster.kubectl(&["-n", SHOP, "rollout", "status", "--timeout=180s", &what]).await.exits(0);
}

async fn remove(cluster: &Cluster) {
    for (kind, name) in WORKLOADS {
        let gone = ["-n", SHOP, "delete", "--ignore-not-found", "--cascade=foreground", "--timeout=120s", kind, name];
        cluster.kubectl(&gone).await.exits(0);
    }
    for node in ["n1", "n2"] {
        cluster.on_node(node, &format!("rm -rf {GATE}")).await.exits(0);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn the_second_batch_of_a_rollout_starts_while_the_registry_is_away() {
    let Some(cluster) = Cluster::enter().await else { return };
    remove(&cluster).await;
    let (old, _) = cluster.push("shop/old", 1_000_000).await;
    for (kind, name) in WORKLOADS {
        cluster.create(&workload(kind, name, &old)).await;
    }
    for (kind, name) in WORKLOADS {
        rolled_out(&cluster, kind, name).await;
        assert_eq!(pods(&cluster, name, &old).await.len(), 2, "{kind}");
    }
    assert!(jobs(&cluster).list(&ListParams::default()).await.unwrap().items.is_empty(), "nothing is rolled out");

    // The pod of the first batch runs and is not ready, so the second batch waits.
    let mut images = Vec::new();
    for (kind, name) in WORKLOADS {
        let (new, _) = cluster.push(&format!("shop/{name}"), 5_000_000).await;
        let mut spec = template(name, &new)["spec"].take();
        let probe = json!({"exec": {"command": ["/bin/busybox", "test", "-e", "/gate/open"]}, "periodSeconds": 1});
        spec["containers"][0]["readinessProbe"] = probe;
        let patch = json!({"spec": {"template": {"spec": {"containers": spec["containers"]}}}}).to_string();
        cluster.kubectl_as_person(&["patch", kind, name, "--type=strategic", "-p", &patch]).await.exits(0);
        images.push(new);
    }
    for ((kind, name), new) in WORKLOADS.iter().zip(&images) {
        let first = async || pods(&cluster, name, new).await.iter().filter(|pod| runs(pod)).count() == 1;
        eventually(&format!("the first batch of the {kind} runs"), first).await;
        let ended = async || {
            let all = jobs(&cluster).list(&ListParams::default()).await.unwrap().items;
            let mut own = all.iter().filter(|job| job.data["spec"]["image"] == **new);
            own.any(|job| job.data["status"]["completionTime"].is_string() && job.data["status"]["failed"] == 0)
        };
        eventually(&format!("the image of the {kind} was pulled ahead"), ended).await;
        let waits = pods(&cluster, name, &old).await;
        assert_eq!(waits.len(), 1, "the second batch of the {kind} waits");
        assert!(cluster.has(node_of(&waits[0]).unwrap(), new).await, "{kind}: its node has the image");
        let said = cluster.kubectl_as_person(&["events", "--for", &format!("{kind}/{name}").to_lowercase()]).await;
        said.exits(0).says("CreatedImagePullJob").says(new);
    }

    let away = cluster.without("control/registry").await;
    for node in ["n1", "n2"] {
        cluster.on_node(node, &format!("touch {GATE}/open")).await.exits(0);
    }
    for ((kind, name), new) in WORKLOADS.iter().zip(&images) {
        rolled_out(&cluster, kind, name).await;
        assert_eq!(pods(&cluster, name, new).await.iter().filter(|pod| runs(pod)).count(), 2, "{kind}");
    }
    let none = async || jobs(&cluster).list(&ListParams::default()).await.unwrap().items.is_empty();
    eventually("the ImagePullJobs went with their rollouts", none).await;
    drop(away);
    remove(&cluster).await;
}
