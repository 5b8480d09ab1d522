//! ImagePullJobs beside what others see of OpenKruise's manager: a Lease that is renewed, and a webhook. Stoker has the rights that
//! `stoker install --dialects kruise` gives it.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::ApiResource;
use serde_json::json;
use stoker_api::dialect::kruise::ImagePullJob;
use stoker_controller::snapshot;
use tokio::task::JoinHandle;

use crate::bed::{Cluster, SHOP, SYSTEM};
use crate::embedded::eventually;

const WEBHOOKS: &str = "test-kruise-validating";

/// Renews a Lease until it is aborted.
async fn manager(cluster: &Cluster) -> JoinHandle<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kruise-system"}});
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "kruise-manager", "namespace": "kruise-system"},
        "spec": {"holderIdentity": "manager-abc"},
    });
    cluster.apply(&format!("{namespace}\n---\n{lease}")).await.exits(0);
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), "kruise-system");
    tokio::spawn(async move {
        loop {
            let time = format!("{:.6}", jiff::Timestamp::now());
            let patch = Patch::Merge(json!({"spec": {"holderIdentity": "manager-abc", "renewTime": time}}));
            leases.patch("kruise-manager", &PatchParams::default(), &patch).await.unwrap();
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    })
}

fn webhooks() -> String {
    let rule = json!({
        "apiGroups": ["apps.kruise.io"], "apiVersions": ["v1alpha1", "v1beta1"], "resources": ["imagepulljobs"],
        "operations": ["CREATE", "UPDATE"],
    });
    let webhook = json!({
        "name": "vimagepulljob.kb.io", "rules": [rule], "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://127.0.0.1:1/nobody"}, "failurePolicy": "Ignore", "timeoutSeconds": 1,
    });
    let object = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": WEBHOOKS}, "webhooks": [webhook],
    });
    object.to_string()
}

async fn clean(cluster: &Cluster) {
    cluster.kubectl(&["delete", "--ignore-not-found", "validatingwebhookconfiguration", WEBHOOKS]).await.exits(0);
    cluster.kubectl(&["delete", "--ignore-not-found", "namespace", "kruise-system"]).await.exits(0);
}

async fn pull(cluster: &Cluster, name: &str, image: &str) {
    let metadata = json!({"name": name, "namespace": SHOP});
    let spec = json!({"image": image, "completionPolicy": {"type": "Always"}});
    let job =
        json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "metadata": metadata, "spec": spec});
    cluster.create(&job).await;
}

/// How many Events are about this job, and its status.
async fn written(cluster: &Cluster, name: &str) -> (usize, bool) {
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), SHOP);
    let about = ListParams::default().fields(&format!("involvedObject.name={name}"));
    let job = jobs(cluster).get(name).await.unwrap();
    (events.list(&about).await.unwrap().items.len(), job.data.get("status").is_some())
}

fn jobs(cluster: &Cluster) -> Api<DynamicObject> {
    Api::namespaced_with(cluster.client.clone(), SHOP, &ApiResource::erase::<ImagePullJob>(&()))
}

async fn is_seen(cluster: &Cluster, is_seen: bool) {
    let what = if is_seen { "the original controller is seen" } else { "no original controller is seen" };
    eventually(what, async || snapshot::left_alone(&cluster.client).await.is_empty() != is_seen).await;
}

/// A job of another image goes through all that an ImagePullJob would have gone through.
async fn meanwhile_others_are_served(cluster: &Cluster, name: &str) {
    let (image, _) = cluster.push("shop/other", 1_000_000).await;
    cluster.stoker(&["pull", &image, "--name", name]).await.exits(0);
}

async fn succeeds(cluster: &Cluster, name: &str) {
    let done = |job: Option<&DynamicObject>| job.is_some_and(|job| job.data["status"]["succeeded"] == 2);
    cluster.wait(&jobs(cluster), name, done).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn image_pull_jobs_are_left_to_openkruise_while_it_is_at_work() {
    let Some(cluster) = Cluster::enter().await else { return };
    clean(&cluster).await;
    let renewing = manager(&cluster).await;
    is_seen(&cluster, true).await;

    let (image, _) = cluster.push("shop/kruise", 1_000_000).await;
    pull(&cluster, "base", &image).await;
    meanwhile_others_are_served(&cluster, "first").await;
    assert_eq!(written(&cluster, "base").await, (0, false));
    assert!(!cluster.has("n1", &image).await && !cluster.has("n2", &image).await);
    let who = "ForeignController: the Lease kruise-system/kruise-manager is renewed by manager-abc.";
    for command in [&["why", "imagepulljob/base"][..], &["get", "imagepulljob/base"], &["get"]] {
        cluster.stoker(command).await.exits(0).says(who).says("docs/migrate-from-openkruise.md");
    }

    // It stops, and gives its Lease back. How long one that dies is waited for is tested without a clock.
    renewing.abort();
    let _ = renewing.await;
    let free = json!({"spec": {"holderIdentity": ""}}).to_string();
    cluster
        .kubectl(&["-n", "kruise-system", "patch", "lease", "kruise-manager", "--type=merge", "-p", &free])
        .await
        .exits(0);
    succeeds(&cluster, "base").await;
    assert!(cluster.has("n1", &image).await && cluster.has("n2", &image).await);
    is_seen(&cluster, false).await;

    cluster.apply(&webhooks()).await.exits(0);
    is_seen(&cluster, true).await;
    let (image, _) = cluster.push("shop/kruise", 1_000_000).await;
    pull(&cluster, "later", &image).await;
    meanwhile_others_are_served(&cluster, "second").await;
    assert_eq!(written(&cluster, "later").await, (0, false));
    let names = format!("the ValidatingWebhookConfiguration {WEBHOOKS} names imagepulljobs");
    cluster.stoker(&["why", "imagepulljob/later"]).await.exits(0).says(&names);
    cluster.kubectl(&["delete", "validatingwebhookconfiguration", WEBHOOKS]).await.exits(0);
    succeeds(&cluster, "later").await;

    let user = format!("--as=system:serviceaccount:{SYSTEM}:stoker-controller");
    let may = async |what: &str| {
        let asked = ["auth", "can-i", "list", what, "-n", "kruise-system", &user];
        cluster.kubectl(&asked).await.out.trim() == "yes"
    };
    assert!(!may("leases").await, "only the one of that name");
    assert!(may("leases/kruise-manager").await && may("validatingwebhookconfigurations").await);
    clean(&cluster).await;
}
