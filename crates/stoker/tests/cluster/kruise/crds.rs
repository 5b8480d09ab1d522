//! CRDs that go and come while Stoker runs, and such with other versions.

use std::process::Command;

use kube::api::{Api, DynamicObject};
use serde_json::{Value, json};
use stoker_api::dialect::kruise::{ImagePullJob, versions};

use super::{
    CRDS, complaints, completes, controllers_lived_on, edit, ended, is_gone, job, jobs, list, lists, new_controllers,
    no_orders, pulls, says, unheard,
};
use crate::bed::{Cluster, SHOP, image};
use crate::embedded::{Ran, eventually, kubectl};
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

/// The commands that the guide for people who come from OpenKruise shows below this heading, one a line. What begins with `$` is an
/// example with its output.
fn commands(heading: &str) -> Vec<String> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/migrate-from-openkruise.md");
    let text = std::fs::read_to_string(file).unwrap();
    let section = text.split(&format!("\n### {heading}\n")).nth(1).unwrap().split("\n#").next().unwrap();
    let blocks = section.split("```\n").skip(1).step_by(2).filter(|block| !block.starts_with('$'));
    let lines: Vec<String> = blocks.flat_map(|block| block.lines()).map(str::to_owned).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.starts_with("kubectl ")), "{heading}: {lines:?}");
    lines
}

/// Runs them one after the other, as an administrator would type them: again where an object was changed in between.
async fn follow(heading: &str) {
    let kubectl = kubectl().unwrap();
    let kubeconfig = std::env::var("STOKER_TEST_KUBECONFIG").unwrap();
    for line in commands(heading) {
        let script = format!("kubectl() {{ command {kubectl} \"$@\"; }}\n{line}");
        let worked = async || {
            let mut shell = Command::new("bash");
            shell.args(["-euo", "pipefail", "-c", &script]).env("KUBECONFIG", &kubeconfig).env("HOME", "/nonexistent");
            Ran::by(shell).await.code == Some(0)
        };
        eventually(&format!("it works: {line}"), worked).await;
    }
}

async fn stored_versions(cluster: &Cluster) -> Value {
    let get = cluster.kubectl(&["get", "crd", CRDS[0], "-o", "jsonpath={.status.storedVersions}"]).await;
    serde_json::from_str(&get.exits(0).out).unwrap()
}

/// The CRD of a version of Stoker that had v1alpha1 alone.
fn earlier() -> String {
    let crd =
        stoker_api::crds().into_iter().map(|(_, crd)| crd).find(|crd| crd.metadata.name.as_deref() == Some(CRDS[0]));
    let mut crd = crd.unwrap();
    crd.spec.versions.retain(|version| version.name == "v1alpha1");
    crd.spec.versions.iter_mut().for_each(|version| version.storage = true);
    serde_json::to_string(&crd).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn stored_objects_survive_the_documented_upgrade_and_downgrade() {
    let Some(mut cluster) = Cluster::enter().await else { return };
    cluster.spoil();
    let (image, _) = cluster.push("shop/stored", 1_000).await;
    remove(&cluster).await;
    cluster.apply(&earlier()).await.exits(0);
    cluster.kubectl(&["wait", "crd", "--for=condition=Established", "--timeout=90s", CRDS[0]]).await.exits(0);
    cluster.create(&job("old", &image, json!({"parallelism": 0}))).await;
    let older: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), SHOP, &versions::<ImagePullJob>()[1]);
    cluster.wait(&older, "old", says(json!({"desired": 2, "active": 0}))).await;
    assert_eq!(stored_versions(&cluster).await, json!(["v1alpha1"]));

    bring(&cluster).await;
    assert_eq!(stored_versions(&cluster).await, json!(["v1alpha1", "v1beta1"]));
    edit(&jobs(&cluster), "old", json!({"parallelism": 2})).await;
    completes(&cluster, "old", 2).await;
    follow("Upgrade Stoker").await;
    assert_eq!(stored_versions(&cluster).await, json!(["v1beta1"]));
    completes(&cluster, "old", 2).await;

    // An API server takes the earlier CRD only when no object is stored in a version that it lacks.
    assert_ne!(cluster.apply(&earlier()).await.code, Some(0));
    follow("Downgrade Stoker").await;
    assert_eq!(stored_versions(&cluster).await, json!(["v1alpha1"]));
    cluster.apply(&earlier()).await.exits(0);
    let before = older.get("old").await.unwrap().data["status"].take();
    assert_eq!(before["message"], "job has completed", "{before:#}");
    cluster.create(&job("new", &image, json!({}))).await;
    cluster.wait(&older, "new", says(json!({"desired": 2, "succeeded": 2, "message": "job has completed"}))).await;

    // And back: what has ended does not begin again, and what is new is served.
    bring(&cluster).await;
    cluster.create(&job("newest", &image, json!({}))).await;
    completes(&cluster, "newest", 2).await;
    assert_eq!(jobs(&cluster).get("old").await.unwrap().data["status"], before);
    cluster.restored();
}
