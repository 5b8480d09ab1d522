//! NodeImages on a real cluster: written by people and shown for jobs, for real nodes and for nodes that only their maker knows.

use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use super::{completes, ended, is_gone, job, jobs, says};
use crate::bed::{Cluster, REGISTRY, image, unique};
use crate::link::Linked;

fn node_images(cluster: &Cluster) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("apps.kruise.io", "v1beta1", "NodeImage");
    Api::all_with(cluster.client.clone(), &ApiResource::from_gvk(&kind))
}

/// Name and tag of a reference, as a NodeImage has them.
fn split(reference: &str) -> (&str, &str) {
    reference.rsplit_once(':').unwrap()
}

fn tag_in<'a>(part: &'a Value, reference: &str) -> Option<&'a Value> {
    let (name, tag) = split(reference);
    part[name]["tags"].as_array()?.iter().find(|entry| entry["tag"] == tag)
}

/// Whether the spec has a tag of which this is so.
fn wants(reference: &str, is: impl Fn(&Value) -> bool) -> impl Fn(Option<&DynamicObject>) -> bool {
    move |object: Option<&DynamicObject>| {
        object.and_then(|object| tag_in(&object.data["spec"]["images"], reference)).is_some_and(&is)
    }
}

/// Whether the status says this phase of this version of a tag.
fn reports(reference: &str, phase: &str, version: Option<i64>) -> impl Fn(Option<&DynamicObject>) -> bool {
    move |object: Option<&DynamicObject>| {
        let said = object.and_then(|object| tag_in(&object.data["status"]["imageStatuses"], reference));
        let is = |said: &Value| version.is_none_or(|version| said["version"].as_i64().unwrap_or_default() == version);
        said.is_some_and(|said| said["phase"] == phase && is(said))
    }
}

fn has_no(reference: &str) -> impl Fn(Option<&DynamicObject>) -> bool {
    move |object: Option<&DynamicObject>| {
        object.is_some_and(|object| tag_in(&object.data["spec"]["images"], reference).is_none())
    }
}

async fn write(cluster: &Cluster, node: &str, reference: &str, version: i64) {
    let (name, tag) = split(reference);
    let tag = json!({"tag": tag, "version": version, "pullPolicy": {"ttlSecondsAfterFinished": 3600}});
    let patch = json!({"spec": {"images": {name: {"tags": [tag]}}}});
    node_images(cluster).patch(node, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_node_image_is_written_by_people_and_by_jobs_and_nobody_loses_a_tag() {
    let Some(cluster) = Cluster::enter().await else { return };
    let all = node_images(&cluster);
    for node in ["n1", "n2"] {
        let made = |object: Option<&DynamicObject>| {
            let labels = object.and_then(|object| object.metadata.labels.as_ref());
            labels.and_then(|labels| labels.get("kubernetes.io/hostname")).is_some_and(|name| name == node)
        };
        cluster.wait(&all, node, made).await;
    }

    // By hand, on one node.
    let (hand, _) = cluster.push("shop/hand", 1_000_000).await;
    write(&cluster, "n1", &hand, 1).await;
    let said = cluster.wait(&all, "n1", reports(&hand, "Succeeded", Some(1))).await.unwrap();
    let said = tag_in(&said.data["status"]["imageStatuses"], &hand).unwrap();
    assert_eq!(said["progress"], 100, "{said:#}");
    assert!(
        said["imageID"].as_str().is_some_and(|id| id.starts_with(&format!("{}@sha256:", split(&hand).0))),
        "{said:#}"
    );
    assert!(said["completionTime"].is_string(), "{said:#}");
    assert!(cluster.has("n1", &hand).await && !cluster.has("n2", &hand).await);
    let table = cluster.kubectl(&["get", "nodeimage", "n1"]).await;
    table.exits(0).says("DESIRED").says("PULLING").says("SUCCEED");

    // Jobs are shown beside it while they pull.
    let linked = Linked::start(&cluster, &[], image(6_000_000)).await;
    linked.link.stall_each_after(1_000_000);
    for name in ["web", "twin"] {
        cluster.create(&job(name, &linked.reference, json!({"parallelism": 2}))).await;
    }
    let owned = |owners: usize| {
        wants(&linked.reference, move |tag| tag["ownerReferences"].as_array().map_or(0, Vec::len) == owners)
    };
    for node in ["n1", "n2"] {
        cluster.wait(&all, node, owned(2)).await;
        cluster.wait(&all, node, reports(&linked.reference, "Pulling", None)).await;
    }
    // Emptied by hand: what jobs want comes back, what people have taken away stays away.
    let empty = json!([{"op": "replace", "path": "/spec/images", "value": {}}]).to_string();
    cluster.kubectl(&["patch", "nodeimage", "n1", "--type=json", "-p", &empty]).await.exits(0);
    cluster.wait(&all, "n1", owned(2)).await;
    assert!(has_no(&hand)(all.get_opt("n1").await.unwrap().as_ref()));
    // Written again, and edited, while jobs use the object.
    write(&cluster, "n1", &hand, 2).await;
    cluster.wait(&all, "n1", reports(&hand, "Succeeded", Some(2))).await;
    cluster.kubectl_as_person(&["delete", "imagepulljob", "twin", "--timeout=60s"]).await.exits(0);
    for node in ["n1", "n2"] {
        cluster.wait(&all, node, owned(1)).await;
    }
    linked.link.let_go();
    completes(&cluster, "web", 2).await;
    for node in ["n1", "n2"] {
        cluster.wait(&all, node, reports(&linked.reference, "Succeeded", None)).await;
    }
    linked.sent_at_most(2, 0);

    // A deleted job takes its tag from every NodeImage, and nothing else.
    cluster.kubectl_as_person(&["delete", "imagepulljob", "web", "--timeout=60s"]).await.exits(0);
    for node in ["n1", "n2"] {
        cluster.wait(&all, node, has_no(&linked.reference)).await;
    }
    assert!(wants(&hand, |tag| tag["version"] == 2)(all.get_opt("n1").await.unwrap().as_ref()));
    let none = json!({"spec": {"images": {split(&hand).0: null}}});
    all.patch("n1", &PatchParams::default(), &Patch::Merge(none)).await.unwrap();
    let quiet = |object: Option<&DynamicObject>| object.is_some_and(|object| object.data["status"]["desired"] == 0);
    cluster.wait(&all, "n1", quiet).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_node_image_without_a_node_counts_by_what_its_maker_says() {
    let Some(cluster) = Cluster::enter().await else { return };
    let all = node_images(&cluster);
    let fake = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "NodeImage", "spec": {},
        "metadata": {"name": "edge", "labels": {"apps.kruise.io/fake-nodeimage": "true"}}});
    cluster.apply(&fake.to_string()).await.exits(0);
    let (reference, _) = cluster.push("shop/everywhere", 1_000_000).await;
    let never = json!({"parallelism": 3, "completionPolicy": {"type": "Never"}});
    cluster.create(&job("never", &reference, never)).await;
    cluster
        .wait(
            &jobs(&cluster),
            "never",
            says(json!({"desired": 3, "succeeded": 2, "active": 1, "completionTime": null})),
        )
        .await;
    let asked = cluster
        .wait(&all, "edge", wants(&reference, |tag| tag["ownerReferences"][0]["name"] == "never"))
        .await
        .unwrap();
    let tag = tag_in(&asked.data["spec"]["images"], &reference).unwrap();
    // Its maker plays the agent.
    let (name, written) = split(&reference);
    let says_of = |phase: &str, message: &str| {
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let said = json!({"tag": written, "phase": phase, "progress": 0, "version": tag["version"].as_i64().unwrap_or_default(),
            "startTime": now, "completionTime": now, "message": message});
        json!({"status": {"desired": 1, "imageStatuses": {name: {"tags": [said]}}}})
    };
    let patch = says_of("Failed", "the car is parked underground");
    all.patch_status("edge", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let failed = json!({"desired": 3, "succeeded": 2, "failed": 1, "failedNodes": ["edge"], "completionTime": null});
    cluster.wait(&jobs(&cluster), "never", says(failed)).await;
    // A native job knows real nodes only.
    cluster.stoker(&["pull", &reference, "--name", "native"]).await.exits(0);
    cluster.succeeds("native", 2).await;
    cluster.kubectl_as_person(&["delete", "imagepulljob", "never", "--timeout=60s"]).await.exits(0);
    cluster.wait(&all, "edge", has_no(&reference)).await;

    // Once: it ends when the maker says so.
    cluster
        .create(&job(
            "once",
            &format!("{REGISTRY}/shop/nothing:v{}", unique()),
            json!({"selector": {"names": ["edge"]}}),
        ))
        .await;
    let once = cluster.wait(&all, "edge", |object: Option<&DynamicObject>| {
        object.is_some_and(|object| object.data["spec"]["images"].as_object().is_some_and(|images| !images.is_empty()))
    });
    let once = once.await.unwrap();
    let (name, entry) = once.data["spec"]["images"].as_object().unwrap().iter().next().unwrap();
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let said = json!({"tag": entry["tags"][0]["tag"], "phase": "Succeeded", "progress": 100, "startTime": now, "completionTime": now,
        "version": entry["tags"][0]["version"].as_i64().unwrap_or_default()});
    let patch = json!({"status": {"desired": 1, "imageStatuses": {name: {"tags": [said]}}}});
    all.patch_status("edge", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let status = ended(&cluster, &jobs(&cluster), "once").await;
    assert_eq!((&status["desired"], &status["succeeded"]), (&json!(1), &json!(1)), "{status:#}");
    all.delete("edge", &DeleteParams::default()).await.unwrap();
    cluster.wait(&all, "edge", is_gone).await;
}
