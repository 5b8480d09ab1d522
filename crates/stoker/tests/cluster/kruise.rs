//! OpenKruise's job kinds: their users' manifests in, and what those users look at out.

mod crds;
mod ends;
mod lists;
mod node_images;
mod pods;
mod rollouts;
mod samples;
mod sharing;
mod webhook;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use stoker_api::dialect::kruise::{ImageListPullJob, ImagePullJob, versions};

use crate::bed::{Cluster, SHOP, SYSTEM, restarts};
use crate::metrics::sum;

/// The CRDs of both kinds.
const CRDS: [&str; 2] = ["imagepulljobs.apps.kruise.io", "imagelistpulljobs.apps.kruise.io"];

fn jobs(cluster: &Cluster) -> Api<DynamicObject> {
    Api::namespaced_with(cluster.client.clone(), SHOP, &versions::<ImagePullJob>()[0])
}

fn lists(cluster: &Cluster) -> Api<DynamicObject> {
    Api::namespaced_with(cluster.client.clone(), SHOP, &versions::<ImageListPullJob>()[0])
}

/// An ImagePullJob.
fn job(name: &str, image: &str, spec: Value) -> Value {
    object("ImagePullJob", name, ("image", json!(image)), spec)
}

/// An ImageListPullJob.
fn list(name: &str, images: &[&str], spec: Value) -> Value {
    object("ImageListPullJob", name, ("images", json!(images)), spec)
}

fn object(kind: &str, name: &str, (field, value): (&str, Value), mut spec: Value) -> Value {
    spec[field] = value;
    spec["completionPolicy"]["type"].is_null().then(|| spec["completionPolicy"]["type"] = json!("Always"));
    json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

async fn edit(api: &Api<DynamicObject>, name: &str, spec: Value) {
    api.patch(name, &PatchParams::default(), &Patch::Merge(json!({ "spec": spec }))).await.unwrap();
}

/// Whether all these fields of the status are so; those that are null must not be there.
fn says(status: Value) -> impl Fn(Option<&DynamicObject>) -> bool {
    move |object: Option<&DynamicObject>| {
        let is =
            |(field, value): (&String, &Value)| object.is_some_and(|object| object.data["status"][field] == *value);
        status.as_object().unwrap().iter().all(is)
    }
}

fn is_gone(object: Option<&DynamicObject>) -> bool {
    object.is_none()
}

/// Replaces both controllers by new ones, which know nothing.
async fn new_controllers(cluster: &Cluster) {
    let controllers = ["-n", SYSTEM, "delete", "pods", "-l", "app.kubernetes.io/component=controller"];
    cluster.kubectl(&controllers).await.exits(0);
    cluster.rolled_out(SYSTEM).await;
    cluster.both_ready("controller").await;
}

/// Fails where one of these controllers was started again.
async fn controllers_lived_on(cluster: &Cluster, before: &[Pod]) {
    for pod in before {
        assert_eq!(cluster.restarts_of("controller", pod).await, restarts(pod), "{:?}", pod.metadata.name);
    }
}

/// The kinds of OpenKruise's that the leader counts as ones that it cannot see. One that is not installed is none of them.
async fn unheard(cluster: &Cluster) -> Vec<&'static str> {
    let (leader, ..) = cluster.leader().await;
    let page = cluster.controller_page(&leader, "metrics").await.unwrap_or_default();
    let counted = |kind: &&str| {
        let label = format!("kind=\"{kind}\"");
        sum(&page, "stoker_controller_kinds_unheard", &[&label]) > 0.0
    };
    ["ImagePullJob", "ImageListPullJob"].into_iter().filter(counted).collect()
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

/// Waits until a job or a list has ended, and returns its status.
async fn ended(cluster: &Cluster, api: &Api<DynamicObject>, name: &str) -> Value {
    let ended = |object: Option<&DynamicObject>| {
        object.is_some_and(|object| object.data["status"]["completionTime"].is_string())
    };
    cluster.wait(api, name, ended).await.unwrap().data["status"].take()
}

/// Waits until an ImagePullJob has ended well, on so many nodes.
async fn completes(cluster: &Cluster, name: &str, nodes: u64) {
    let status = ended(cluster, &jobs(cluster), name).await;
    let counts = ["desired", "succeeded", "failed", "active"].map(|field| status[field].as_u64());
    assert_eq!(counts, [nodes, nodes, 0, 0].map(Some), "{status:#}");
    assert_eq!(status["message"], "job has completed");
}

/// Whether a node is told to pull this image. That it is asked for the digest of a tag is not that.
fn pulls(image: &str) -> impl Fn(Option<&DynamicObject>) -> bool {
    move |object: Option<&DynamicObject>| orders(object, image).any(|order| order["ask"] == "Fetch")
}

/// Waits until no node has an order of this image.
async fn no_orders(cluster: &Cluster, image: &str) {
    for node in ["n1", "n2"] {
        let none = |object: Option<&DynamicObject>| orders(object, image).next().is_none();
        cluster.wait(&cluster.node_preheats(), node, none).await;
    }
}

fn orders<'a>(object: Option<&'a DynamicObject>, image: &str) -> impl Iterator<Item = &'a Value> {
    let orders = object.and_then(|object| object.data["spec"]["orders"].as_object());
    orders.into_iter().flat_map(|orders| orders.values()).filter(move |order| order["image"] == image)
}
