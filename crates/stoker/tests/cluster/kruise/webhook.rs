//! A kind that cannot be listed, because the webhook that converts its objects answers 500.

use std::process::Command;

use serde_json::{Value, json};
use stoker_testbed::webhook::Webhook;

use super::{
    CRDS, complaints, completes, controllers_lived_on, edit, ended, is_gone, job, jobs, list, lists, new_controllers,
    pulls, says, unheard,
};
use crate::bed::{Cluster, image};
use crate::embedded::{eventually, kubectl};
use crate::link::{HERE, Linked};

/// ImagePullJobs are stored as v1alpha1 and converted by a webhook, until this goes, also where a test fails.
struct Converted;

impl Converted {
    /// Objects that are written from now on are stored in the older version, so to read them in the newest is a conversion.
    fn by(webhook: &Webhook) -> Self {
        let [older, newest] = stores(true);
        let conversion = json!({"op": "replace", "path": "/spec/conversion", "value": conversion(webhook, "first")});
        assert!(patch(&json!([older, newest, conversion])), "the CRD cannot be changed");
        Self
    }

    /// The API server forgets what it has read. It does so with every change of the CRD.
    fn read_anew(&self, webhook: &Webhook) {
        let conversion = json!([{"op": "replace", "path": "/spec/conversion", "value": conversion(webhook, "second")}]);
        assert!(patch(&conversion), "the CRD cannot be changed");
    }
}

impl Drop for Converted {
    fn drop(&mut self) {
        let [older, newest] = stores(false);
        let conversion = json!({"op": "replace", "path": "/spec/conversion", "value": {"strategy": "None"}});
        let done = patch(&json!([older, newest, conversion]));
        assert!(done || std::thread::panicking(), "the webhook stays");
    }
}

fn conversion(webhook: &Webhook, path: &str) -> Value {
    let config = webhook.client_config(path);
    json!({"strategy": "Webhook", "webhook": {"clientConfig": config, "conversionReviewVersions": ["v1"]}})
}

/// Which version is stored: the older or the newest.
fn stores(older: bool) -> [Value; 2] {
    let storage = |version: u32, stored: bool| json!({"op": "replace", "path": format!("/spec/versions/{version}/storage"), "value": stored});
    [storage(0, older), storage(1, !older)]
}

fn patch(operations: &Value) -> bool {
    let mut command = Command::new(kubectl().unwrap());
    command.arg("--kubeconfig").arg(std::env::var_os("STOKER_TEST_KUBECONFIG").unwrap()).env("HOME", "/nonexistent");
    command.args(["patch", "crd", CRDS[0], "--type=json", "-p", &operations.to_string()]).status().unwrap().success()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_kind_whose_conversion_fails_stops_alone_and_goes_on_when_that_works_again() {
    let Some(cluster) = Cluster::enter().await else { return };
    let before = cluster.parts("controller").await;
    let linked = Linked::start(&cluster, &[], image(6_000_000)).await;
    let (small, _) = cluster.push("shop/small", 1_000).await;
    cluster.create(&list("done", &[&small], json!({}))).await;
    ended(&cluster, &lists(&cluster), "done").await;
    linked.link.stall_after(2_000_000);
    cluster.create(&job("web", &linked.reference, json!({"parallelism": 2}))).await;
    cluster.wait(&jobs(&cluster), "web", says(json!({"desired": 2, "active": 2}))).await;

    let webhook = Webhook::start_at(HERE).await.unwrap();
    let converted = Converted::by(&webhook);
    let written = async || {
        let stamp = format!("test={}", crate::bed::unique());
        cluster.kubectl_as_person(&["annotate", "--overwrite", "imagepulljob", "web", &stamp]).await;
        webhook.converted() > 0
    };
    eventually("the object is stored in the older version", written).await;
    webhook.breaks();
    converted.read_anew(&webhook);

    // People are told.
    let cannot = "ImagePullJob objects cannot be listed";
    let told = async || {
        let ran = cluster.stoker(&["get"]).await;
        ran.code == Some(0) && ran.err.contains(cannot)
    };
    eventually("`stoker get` says that the kind cannot be listed", told).await;
    cluster.stoker(&["get"]).await.exits(0).says("imagelistpulljob/done");
    let frozen = async || unheard(&cluster).await == ["ImagePullJob"];
    eventually("the controller counts the kind as one that it cannot see", frozen).await;
    let stays = format!("{cannot}, so what was ordered for them stays as it is, and nothing new is");
    let logged = |words: String| {
        let cluster = &cluster;
        async move { complaints(cluster).await.iter().any(|line| line.contains(&words)) }
    };
    eventually("the log says what that means", async || logged(stays.clone()).await).await;
    controllers_lived_on(&cluster, &before).await;
    // Controllers that have never seen the job know that there may be one.
    new_controllers(&cluster).await;
    let after = cluster.parts("controller").await;
    eventually("so does one that starts now", frozen).await;

    // All else goes on: Preheats, and lists, as far as they need no ImagePullJobs.
    let (native, _) = cluster.push("shop/native", 1_000).await;
    cluster.stoker(&["pull", &native, "--name", "native"]).await.exits(0).says("on all 2 nodes");
    cluster.stoker(&["why", "native"]).await.exits(0).says(cannot);
    cluster.stoker(&["why", "imagepulljob/web"]).await.exits(1).says("conversion");
    edit(&lists(&cluster), "done", json!({"completionPolicy": {"ttlSecondsAfterFinished": 0}})).await;
    cluster.wait(&lists(&cluster), "done", is_gone).await;
    // What was ordered for the job that nobody can see stays, and is carried out.
    for node in ["n1", "n2"] {
        cluster.wait(&cluster.node_preheats(), node, pulls(&linked.reference)).await;
    }
    linked.link.let_go();
    for node in ["n1", "n2"] {
        let has = async || cluster.has(node, &linked.reference).await;
        eventually(&format!("the image is on {node}"), has).await;
        let object = cluster.node_preheats().get(node).await.unwrap();
        assert!(pulls(&linked.reference)(Some(&object)), "{:#}", object.data["spec"]);
    }
    assert!(webhook.refused() > 0);

    webhook.works();
    completes(&cluster, "web", 2).await;
    linked.sent_at_most(2, 0);
    let heard = async || !cluster.stoker(&["get"]).await.err.contains(cannot);
    eventually("nothing is said about the kind any more", heard).await;
    let again = "ImagePullJob objects can be listed again";
    eventually("the log says that it is over", async || logged(again.into()).await).await;
    drop(converted);
    controllers_lived_on(&cluster, &after).await;
    cluster.create(&job("again", &linked.reference, json!({}))).await;
    completes(&cluster, "again", 2).await;
}
