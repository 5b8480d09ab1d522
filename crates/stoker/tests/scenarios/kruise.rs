//! The three samples that OpenKruise's users start from, on a real image, to their own status, messages and columns.

use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use stoker_testbed::registry::{Registry, noise};

use crate::bed::{Site, Wishes};

fn status<'a>(object: &'a DynamicObject, field: &str) -> &'a Value {
    object.data.get("status").and_then(|status| status.get(field)).unwrap_or(&Value::Null)
}

/// The manifest of the fixture with an image that exists.
fn manifest(fixture: &str, image: &str) -> String {
    let file = format!("{}/../stoker-api/tests/fixtures/kruise/{fixture}.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text.lines().map(|line| match line.strip_prefix("  image: ") {
        Some(_) => format!("  image: {image}\n"),
        None => format!("{line}\n"),
    });
    lines.collect()
}

pub(crate) async fn the_samples_of_the_article_run(site: &Site) {
    let registry = Registry::start().await.unwrap();
    registry.push("base/image", "latest", &[noise(10_000, 1)]);
    let image = format!("{}/base/image:latest", registry.host());
    let bed = site.bed(Wishes::default()).await;
    let all = bed.nodes.len();
    let label = Patch::Merge(json!({"metadata": {"labels": {"resource-pool": "serverless"}}}));
    let nodes = kube::Api::<k8s_openapi::api::core::v1::Node>::all(bed.administrator.clone());
    nodes.patch(&bed.own_node, &PatchParams::default(), &label).await.unwrap();

    bed.create(&manifest("cluster-wide", &image)).await;
    let never = bed.wait("ImagePullJob", "base-image-job", |object| *status(object, "succeeded") == all).await;
    assert_eq!(*status(&never, "desired"), all);
    assert_eq!(*status(&never, "message"), "job is running, progress 100.0%");
    assert_eq!(*status(&never, "completionTime"), Value::Null, "a job of type Never does not end");

    bed.create(&manifest("sidecar", &image)).await;
    let always = bed.ended("ImagePullJob", "sidecar-image-job").await;
    assert_eq!(always["message"], "job has completed");
    assert_eq!(
        (&always["succeeded"], &always["failed"], &always["active"]),
        (&json!(all), &json!(0), &json!(0))
    );

    bed.create(&manifest("resource-pool", &image)).await;
    let pool = bed.wait("ImagePullJob", "serverless-job", |object| *status(object, "succeeded") == 1).await;
    assert_eq!(*status(&pool, "desired"), 1);

    let get = bed.run(&["get"]).await;
    get.exits(0).says("imagepulljob/base-image-job").says("imagepulljob/sidecar-image-job");
    bed.run(&["get", "imagepulljob/serverless-job"]).await.exits(0).says(&bed.own_node).says("Done");
    bed.run(&["why", "imagepulljob/base-image-job"]).await.exits(0).says("no node is waiting");
    bed.run(&["delete", "imagepulljob/base-image-job"]).await.exits(0).says("ImagePullJob base-image-job deleted");
    assert_eq!(
        registry.requests("blobs").len(),
        all * 2,
        "each node fetched the config and the layer once, for all jobs"
    );
}

pub(crate) async fn upstreams_refusals_are_the_schemas(site: &Site) {
    let bed = site.bed(Wishes::default()).await;
    let api = bed.api("ImagePullJob").await;
    let cases = [
        (json!({}), "spec.image"),
        (json!({"image": ""}), "spec.image"),
        (json!({"image": "a", "parallelism": -1}), "spec.parallelism"),
        (json!({"image": "a", "parallelism": "10%"}), "spec.parallelism"),
        (
            json!({"image": "a", "selector": {"names": ["x"], "matchLabels": {"a": "b"}}}),
            "names cannot be given together",
        ),
        (json!({"image": "a", "selector": {"names": ["x", "x"]}}), "spec.selector.names"),
        (
            json!({"image": "a", "completionPolicy": {"type": "Never", "ttlSecondsAfterFinished": 5}}),
            "go with type Always",
        ),
        (json!({"image": "a", "completionPolicy": {"type": "Sometimes"}}), "spec.completionPolicy.type"),
        (json!({"image": "a", "completionPolicy": {"activeDeadlineSeconds": 5}}), "must not be less than"),
        (json!({"image": "a", "imagePullPolicy": "Never"}), "spec.imagePullPolicy"),
    ];
    for (spec, expected) in cases {
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ImagePullJob", "metadata": {"name": "bad"}, "spec": spec,
        }))
        .unwrap();
        match api.create(&Default::default(), &object).await {
            Err(kube::Error::Api(refusal)) => {
                assert!(refusal.message.contains(expected), "{spec}: {}", refusal.message)
            }
            other => panic!("{spec}: {other:?}"),
        }
    }
    let defaults = bed.create("{apiVersion: apps.kruise.io/v1alpha1, kind: ImagePullJob, metadata: {name: d}, spec: {image: '127.0.0.1:1/a'}}").await;
    assert_eq!(
        defaults.data["spec"],
        json!({
            "image": "127.0.0.1:1/a", "parallelism": 1, "imagePullPolicy": "IfNotPresent",
            "pullPolicy": {"timeoutSeconds": 600, "backoffLimit": 3}, "completionPolicy": {"type": "Always"},
        })
    );
}
