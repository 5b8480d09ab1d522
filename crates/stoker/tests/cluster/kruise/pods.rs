//! Nodes that are named by their Pods, and logins of which some are no good.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use super::{completes, job, jobs, says};
use crate::bed::{Cluster, REGISTRY, image};
use crate::embedded::docker_login;
use crate::link::Linked;

/// Makes a Pod of the app `web` on a node.
async fn pod(cluster: &Cluster, name: &str, node: &str, command: &[&str]) {
    let container = json!({"name": "main", "image": format!("{REGISTRY}/busybox:1"), "command": command});
    let spec = json!({"nodeName": node, "containers": [container], "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0});
    let metadata = json!({"name": name, "labels": {"app": "web"}});
    let pod = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
    cluster.pods().create(&PostParams::default(), &pod).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_pod_selector_follows_pods_and_logins_that_are_no_good_stop_nothing() {
    let Some(cluster) = Cluster::enter().await else { return };
    let linked = Linked::start(&cluster, &[("ada", "hunter2")], image(1_000_000)).await;
    let (image, host) = (&linked.reference, linked.link.host());
    let person = &cluster.person;
    person.make_secret("garbage", "Opaque", ".dockerconfigjson", "not JSON").await;
    person.docker_secret("odd", &json!({"auths": {&host: {"auth": "not base64"}}}).to_string()).await;
    person.docker_secret("wrong", &docker_login(&host, "ada", "guessed")).await;
    person.docker_secret("good", &docker_login(&host, "ada", "hunter2")).await;
    let long = ["/bin/busybox", "sleep", "3600"];
    pod(&cluster, "first", "n1", &long).await;
    pod(&cluster, "ended", "n2", &["/bin/busybox", "true"]).await;
    let ended = |pod: Option<&Pod>| {
        pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref()).is_some_and(|phase| phase == "Succeeded")
    };
    cluster.wait(&cluster.pods(), "ended", ended).await;

    let secrets = json!(["garbage", "nothing", "odd", "wrong", "good"]);
    let spec = json!({"podSelector": {"matchLabels": {"app": "web"}}, "pullSecrets": secrets,
        "completionPolicy": {"type": "Never"}});
    cluster.create(&job("follows", image, spec)).await;
    let one = || says(json!({"desired": 1, "succeeded": 1, "active": 0, "failed": 0, "completionTime": null}));
    cluster.wait(&jobs(&cluster), "follows", one()).await;
    assert!(cluster.has("n1", image).await && !cluster.has("n2", image).await, "the only active Pod is on n1");

    // A second Pod on the other node: both are wanted; then the first one goes.
    pod(&cluster, "second", "n2", &long).await;
    cluster.wait(&jobs(&cluster), "follows", says(json!({"desired": 2, "succeeded": 2}))).await;
    assert!(cluster.has("n2", image).await, "the Pod's image is not on n2");
    cluster.pods().delete("first", &DeleteParams::default().grace_period(0)).await.unwrap();
    cluster.wait(&jobs(&cluster), "follows", one()).await;
    let nodes = cluster.stoker(&["get", "imagepulljob/follows"]).await;
    nodes.exits(0).says("n2");
    assert!(!nodes.out.contains("n1"), "n1 has no Pod any more:\n{}", nodes.out);

    // The same logins for a job that ends, on both nodes.
    cluster.create(&job("ends", image, json!({"pullSecrets": secrets, "imagePullPolicy": "Always"}))).await;
    completes(&cluster, "ends", 2).await;
}
