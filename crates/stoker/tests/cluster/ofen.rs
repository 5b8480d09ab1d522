//! ofen's kinds: its users' manifests in, and what those users look at out.

use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use serde_json::{Value, json};
use stoker_api::dialect::ofen::{ImagePrefetch, NodeImageSet, set_name};

use crate::bed::{Cluster, SHOP, image};
use crate::embedded::eventually;
use crate::link::Linked;
use crate::people::header;

fn prefetches(cluster: &Cluster) -> Api<DynamicObject> {
    Api::namespaced_with(cluster.client.clone(), SHOP, &ApiResource::erase::<ImagePrefetch>(&()))
}

fn sets(cluster: &Cluster) -> Api<DynamicObject> {
    Api::all_with(cluster.client.clone(), &ApiResource::erase::<NodeImageSet>(&()))
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "ofen.cybozu.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// Whether a condition is so, for the object as it is now, and these nodes were chosen where some are named.
fn is(kind: &'static str, nodes: Option<Value>) -> impl Fn(Option<&DynamicObject>) -> bool {
    move |object: Option<&DynamicObject>| {
        let Some(object) = object else { return false };
        let status = &object.data["status"];
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        conditions.any(|condition| condition["type"] == kind && condition["status"] == "True")
            && status["observedGeneration"] == json!(object.metadata.generation)
            && nodes.as_ref().is_none_or(|nodes| status["selectedNodes"] == *nodes)
    }
}

async fn edit(cluster: &Cluster, spec: Value) {
    let patch = Patch::Merge(json!({ "spec": spec }));
    prefetches(cluster).patch("sample", &PatchParams::default(), &patch).await.unwrap();
}

/// The samples of ofen's design note, with images that exist and nodes that are there.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn the_samples_of_ofen_reach_their_status_one_copy_leaves_the_registry_and_removed_images_come_back() {
    let Some(cluster) = Cluster::enter().await else { return };
    let linked = Linked::start(&cluster, &[], image(10_000_000)).await;
    let web = &linked.reference;
    let secrets = json!([{"name": "regcred"}]);
    let sample = json!({"images": [web], "replicas": 2, "imagePullSecrets": secrets});
    cluster.create(&object("ImagePrefetch", "sample", sample)).await;
    cluster.wait(&prefetches(&cluster), "sample", is("Ready", Some(json!(["n1", "n2"])))).await;
    cluster.wait(&prefetches(&cluster), "sample", is("NodeImageSetsCreated", None)).await;
    linked.sent_at_most(1, 0);
    for node in ["n1", "n2"] {
        assert!(cluster.has(node, web).await, "{web} is not on {node}");
        let name = set_name((SHOP, "sample"), node);
        cluster.wait(&sets(&cluster), &name, is("ImageAvailable", None)).await;
    }
    let table = cluster.kubectl_as_person(&["get", "imageprefetches"]).await;
    assert_eq!(header(&table.exits(0).out), ["NAME", "DESIREDNODES", "IMAGEPULLEDNODES", "AGE"]);
    cluster.stoker(&["get", "imageprefetch/sample"]).await.exits(0).says("n1").says("n2").says("Done");
    let refused = cluster.kubectl_as_person(&[
        "patch",
        "imageprefetch",
        "sample",
        "--type=merge",
        "-p",
        r#"{"spec":{"replicas":0}}"#,
    ]);
    assert_ne!(refused.await.says("spec.replicas must be greater than 0 when spec.allNodes is false").code, Some(0));

    // What somebody removes comes back, for a set that somebody wrote as for the others.
    let set = json!({"imageSet": [{"name": web, "registryPolicy": "Default"}], "imagePullSecrets": secrets, "nodeName": "n1",
        "imageDownloadRetryLimit": 3});
    cluster.apply(&object("NodeImageSet", "by-hand", set).to_string()).await.exits(0);
    cluster.wait(&sets(&cluster), "by-hand", is("ImageAvailable", None)).await;
    cluster.on_node("n1", &format!("ctr -n k8s.io images rm --sync {web}")).await.exits(0);
    eventually("the image that was removed from n1 is pulled again", async || cluster.has("n1", web).await).await;

    // One node of two: the one that is not Ready is replaced, and a cordoned one is not chosen.
    edit(&cluster, json!({ "replicas": 1 })).await;
    cluster.wait(&prefetches(&cluster), "sample", is("Ready", None)).await;
    let chosen = prefetches(&cluster).get("sample").await.unwrap().data["status"]["selectedNodes"].take();
    let chosen = chosen[0].as_str().unwrap().to_owned();
    let other = if chosen == "n1" { "n2" } else { "n1" };
    let name = set_name((SHOP, "sample"), other);
    cluster.wait(&sets(&cluster), &name, |set: Option<&DynamicObject>| set.is_none()).await;
    cluster.kubectl(&["cordon", other]).await.exits(0);
    edit(&cluster, json!({ "replicas": 2 })).await;
    cluster.wait(&prefetches(&cluster), "sample", is("stoker.dev/Trouble", Some(json!([chosen])))).await;
    cluster.stoker(&["get", "imageprefetch/sample"]).await.exits(0).says("TooFewNodes");
    cluster.kubectl(&["uncordon", other]).await.exits(0);
    cluster.wait(&prefetches(&cluster), "sample", is("Ready", Some(json!(["n1", "n2"])))).await;

    cluster.kubectl_as_person(&["delete", "imageprefetch", "sample", "--timeout=60s"]).await.exits(0);
    for node in ["n1", "n2"] {
        let name = set_name((SHOP, "sample"), node);
        cluster.wait(&sets(&cluster), &name, |set: Option<&DynamicObject>| set.is_none()).await;
    }
    cluster.kubectl(&["delete", "nodeimageset", "by-hand", "--timeout=60s"]).await.exits(0);
}

/// The registry counts what it sends: a node that may ask mirrors alone gets the image from the other one.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_set_of_mirrors_alone_takes_nothing_from_the_registry() {
    let Some(cluster) = Cluster::enter().await else { return };
    let linked = Linked::start(&cluster, &[], image(10_000_000)).await;
    let set = |node: &str, policy: &str| {
        let spec = json!({"images": [linked.reference], "nodeName": node, "registryPolicy": policy});
        object("NodeImageSet", &format!("by-hand-{node}"), spec).to_string()
    };
    cluster.apply(&set("n2", "MirrorOnly")).await.exits(0);
    let waits = |object: Option<&DynamicObject>| {
        object.is_some_and(|object| {
            let state = &object.data["status"]["containerImageStatuses"][0]["lastState"];
            state == "ImageDownloadTemporarilyFailed" || state == "WaitingForImageDownload"
        })
    };
    cluster.wait(&sets(&cluster), "by-hand-n2", waits).await;
    linked.sent_at_most(0, 0);
    // A new object asks at once; one that is there asks again after five minutes.
    cluster.kubectl(&["delete", "nodeimageset", "by-hand-n2", "--timeout=60s"]).await.exits(0);
    for (node, policy) in [("n1", "Default"), ("n2", "MirrorOnly")] {
        cluster.apply(&set(node, policy)).await.exits(0);
        cluster.wait(&sets(&cluster), &format!("by-hand-{node}"), is("ImageAvailable", None)).await;
        assert!(cluster.has(node, &linked.reference).await, "{} is not on {node}", linked.reference);
    }
    linked.sent_at_most(1, 0);
    cluster.kubectl(&["delete", "nodeimageset", "by-hand-n1", "by-hand-n2", "--timeout=60s"]).await.exits(0);
}
