//! CRDs that go and come while Stoker runs.

use serde_json::json;

use super::{
    CRDS, completes, controllers_lived_on, ended, is_gone, job, jobs, list, lists, new_controllers, no_orders, pulls,
    unheard,
};
use crate::bed::{Cluster, SYSTEM, image};
use crate::embedded::eventually;
use crate::link::Linked;

async fn remove(cluster: &Cluster) {
    cluster.kubectl(&[&["delete", "crd", "--timeout=90s"], &CRDS[..]].concat()).await.exits(0);
}

/// Applies the CRDs, and nothing else: neither rights nor a new controller.
async fn bring(cluster: &Cluster) {
    let crds = cluster.administer(&["crds", "--dialects", "kruise"]).await;
    cluster.apply(&crds.exits(0).out).await.exits(0);
    let wait = ["wait", "crd", "--for=condition=Established", "--timeout=90s"];
    cluster.kubectl(&[&wait, &CRDS[..]].concat()).await.exits(0);
}

/// A Preheat comes to its end, and the kinds that are not there are no trouble.
async fn preheats(cluster: &Cluster, name: &str) {
    eventually("no kind is one that cannot be seen", async || unheard(cluster).await.is_empty()).await;
    let (image, _) = cluster.push("shop/native", 1_000).await;
    cluster.stoker(&["pull", &image, "--name", name]).await.exits(0).says("on all 2 nodes");
}

/// What the controllers said about OpenKruise's kinds, by now.
async fn complaints(cluster: &Cluster) -> Vec<String> {
    let mut lines = Vec::new();
    for pod in cluster.parts("controller").await {
        let log = cluster.kubectl(&["-n", SYSTEM, "logs", pod.metadata.name.as_deref().unwrap()]).await;
        let about =
            log.exits(0).out.lines().filter(|line| line.contains("ImagePullJob") || line.contains("ImageListPullJob"));
        lines.extend(about.map(str::to_owned));
    }
    lines
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn crds_that_are_removed_take_their_orders_along_and_those_that_come_are_served() {
    let Some(mut cluster) = Cluster::enter().await else { return };
    // Until all is well, the next test finds Stoker installed anew.
    cluster.spoil();
    cluster.both_ready("controller").await;
    let (before, said) = (cluster.parts("controller").await, complaints(&cluster).await.len());
    let linked = Linked::start(&cluster, &[], image(3_000_000)).await;
    linked.link.stall_after(1_000_000);
    let images = [linked.reference.as_str()];
    cluster.create(&list("pair", &images, json!({"parallelism": 2}))).await;
    for node in ["n1", "n2"] {
        cluster.wait(&cluster.node_preheats(), node, pulls(&linked.reference)).await;
    }

    remove(&cluster).await;
    no_orders(&cluster, &linked.reference).await;
    preheats(&cluster, "meanwhile").await;
    cluster.stoker(&["get"]).await.exits(0).says("meanwhile");
    cluster.stoker(&["get", "imagepulljob/any"]).await.exits(1).says("ImagePullJob");
    bring(&cluster).await;
    linked.link.let_go();
    cluster.create(&list("pair", &images, json!({"parallelism": 2}))).await;
    let status = ended(&cluster, &lists(&cluster), "pair").await;
    assert_eq!((&status["desired"], &status["succeeded"]), (&json!(1), &json!(1)), "{status:#}");
    controllers_lived_on(&cluster, &before).await;
    let all = complaints(&cluster).await;
    assert!(all.len() <= said + 20, "they talk too much: {all:#?}");

    // Controllers that start without the CRDs.
    remove(&cluster).await;
    new_controllers(&cluster).await;
    preheats(&cluster, "without").await;
    bring(&cluster).await;
    cluster.create(&job("web", &linked.reference, json!({"completionPolicy": {"ttlSecondsAfterFinished": 1}}))).await;
    completes(&cluster, "web", 2).await;
    cluster.wait(&jobs(&cluster), "web", is_gone).await;
    let all = complaints(&cluster).await;
    assert!(all.len() <= 20, "they talk too much: {all:#?}");
    cluster.restored();
}
