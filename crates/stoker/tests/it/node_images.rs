//! A tag that somebody writes into the NodeImage of a node, with a real agent and a real registry.

use std::path::Path;

use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use stoker_api::dialect::kruise::{ImagePullJob, NodeImage};
use stoker_testbed::registry::{Registry, noise};

use crate::bed::{Up, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_tag_that_somebody_writes_is_pulled_on_that_node_and_reported_there() {
    let registry = Registry::start().await.unwrap();
    let pushed = registry.push("shop/web", "v1", &[noise(1_000, 1)]);
    let up = Up::start(2);
    let images: Api<NodeImage> = Api::all(up.client().await);
    let name = format!("{}/shop/web", registry.host());
    let tag =
        |version: i64| json!({ "tag": "v1", "version": version, "pullPolicy": { "ttlSecondsAfterFinished": 3600 } });
    let missing = json!({ "tag": "v2", "pullPolicy": { "ttlSecondsAfterFinished": 3600, "backoffLimit": 0 } });
    let object = json!({
        "metadata": { "name": "node-1" }, "spec": { "images": { name.as_str(): { "tags": [tag(1), missing] } } },
    });
    let object: NodeImage = serde_json::from_value(object).unwrap();
    images.create(&PostParams::default(), &object).await.unwrap();
    let said = async |tag: &str| {
        let image = images.get("node-1").await.unwrap();
        let status = image.status.unwrap_or_default();
        let tags = status.image_statuses.get(&name).map(|image| image.tags.clone()).unwrap_or_default();
        tags.into_iter().find(|entry| entry.tag == tag).unwrap_or_default()
    };
    eventually("the tag is pulled", async || said("v1").await.phase == "Succeeded").await;
    assert_eq!(said("v1").await.image_id, Some(format!("{name}@{}", pushed.manifest)));
    eventually("the other one fails", async || said("v2").await.phase == "Failed").await;
    assert!(said("v2").await.message.unwrap().contains("v2"), "{:?}", said("v2").await);
    up.run(&["why", "nodeimage/node-1"]).await.exits(0).says(&format!("{name}:v2")).says("Failed").says("has no image");
    up.run(&["why", "nodeimage/node-2"]).await.exits(0).says("no tag has failed");
    for command in ["get", "delete"] {
        let hint = up.run(&[command, "nodeimage/node-1"]).await;
        hint.exits(2).says("stoker why nodeimage/node-1");
    }
    up.run(&["why", "nodeimage/node-9"]).await.exits(1).says("there is no node node-9");
    // What a schema refuses, in upstream's words.
    for (entry, why) in [
        (json!({ "tag": "v1" }), "pullPolicy.ttlSecondsAfterFinished must set"),
        (json!({ "tag": "", "pullPolicy": { "ttlSecondsAfterFinished": 1 } }), "tag for image can not be empty"),
        (
            json!({ "tag": "x", "version": -1, "pullPolicy": { "ttlSecondsAfterFinished": 1 } }),
            "can not be less than 0",
        ),
    ] {
        let patch = Patch::Merge(json!({ "spec": { "images": { "nginx": { "tags": [entry] } } } }));
        let refused = images.patch("node-1", &PatchParams::default(), &patch).await.unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    let patch = Patch::Merge(json!({ "spec": { "images": { name.as_str(): { "tags": [tag(2)] } } } }));
    images.patch("node-1", &PatchParams::default(), &patch).await.unwrap();
    eventually("the raised version is pulled", async || {
        let entry = said("v1").await;
        (entry.version, entry.phase.as_str()) == (Some(2), "Succeeded")
    })
    .await;
}

/// The example of the documentation, with an image that this registry has.
#[tokio::test(flavor = "multi_thread")]
async fn the_example_of_a_node_image_is_pulled() {
    let registry = Registry::start().await.unwrap();
    registry.push("nginx", "1.29", &[noise(1_000, 1)]);
    let up = Up::start(1);
    let images: Api<NodeImage> = Api::all(up.client().await);
    eventually("node-1 has a NodeImage", async || images.get_opt("node-1").await.unwrap().is_some()).await;
    let before = images.get("node-1").await.unwrap().status;
    assert_eq!(before.map(|status| status.desired), Some(0), "no column of `kubectl get nodeimages` is empty");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/nodeimage.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let name = format!("{}/nginx", registry.host());
    let mut example: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(example["metadata"]["name"], "node-1");
    let image = example["spec"]["images"]["nginx"].take();
    example["spec"]["images"] = json!({ name.as_str(): image });
    images.patch("node-1", &PatchParams::default(), &Patch::Merge(example)).await.unwrap();
    eventually("the tag is pulled", async || {
        let status = images.get("node-1").await.unwrap().status.unwrap_or_default();
        let tags = status.image_statuses.get(&name).map(|image| image.tags.clone()).unwrap_or_default();
        tags.iter().any(|entry| entry.tag == "1.29" && entry.phase == "Succeeded")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn why_knows_what_a_node_image_without_a_node_was_asked() {
    let up = Up::start(1);
    let client = up.client().await;
    let images: Api<NodeImage> = Api::all(client.clone());
    let labels = json!({ "apps.kruise.io/fake-nodeimage": "", "pool": "edge" });
    let fake = json!({ "metadata": { "name": "edge-1", "labels": labels }, "spec": {} });
    images.create(&PostParams::default(), &serde_json::from_value(fake).unwrap()).await.unwrap();
    let image = format!("registry.example/web@sha256:{}", "a".repeat(64));
    let spec = json!({ "image": image, "selector": { "matchLabels": { "pool": "edge" } } });
    let job = json!({ "metadata": { "name": "edge" }, "spec": spec });
    let jobs: Api<ImagePullJob> = Api::default_namespaced(client);
    jobs.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
    eventually("the tag is there", async || !images.get("edge-1").await.unwrap().spec.images.is_empty()).await;
    let why = up.run(&["why", "imagepulljob/edge"]).await;
    assert!(!why.exits(0).says("edge-1").out.contains("Pending"), "{}", why.out);
}
