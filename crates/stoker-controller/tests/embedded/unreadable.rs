//! A job whose status was written by something else must not run again, one whose spec cannot be read says so, and the others go on.

use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use serde_json::{Value, json};
use stoker_api::dialect::kruise::{ImageListPullJob, ImagePullJob};
use stoker_api::native::{NodePreheat, Preheat};
use stoker_controller::snapshot;
use tokio_util::sync::CancellationToken;

use crate::bed::{api, api_without_schemas, clock, node, ordered, preheat, run, settings};

/// An ended job with a status that no version of this program wrote: past the schema, as a restore or another tool may leave it.
#[tokio::test(start_paused = true)]
async fn a_job_whose_status_cannot_be_read_does_not_run_again() {
    let clock = clock();
    let client = api_without_schemas(&clock);
    node(&client, "n1").await;
    preheat(&client, "broken").await;
    let object = json!({
        "apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "metadata": {"name": "broken"},
        "spec": {"image": "registry.example/kruise:v1", "completionPolicy": {"type": "Always"}},
    });
    let kruise: Api<DynamicObject> =
        Api::default_namespaced_with(client.clone(), &ApiResource::erase::<ImagePullJob>(&()));
    kruise.create(&Default::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    let preheats: Api<DynamicObject> =
        Api::default_namespaced_with(client.clone(), &ApiResource::erase::<Preheat>(&()));
    let status = Patch::Merge(json!({"status": {"completionTime": "some time ago", "startTime": 7}}));
    for api in [&preheats, &kruise] {
        api.patch_status("broken", &PatchParams::default(), &status).await.unwrap();
    }
    let cancel = CancellationToken::new();
    let running = run(settings(&client, &clock, "only"), &cancel);
    preheat(&client, "good").await;
    ordered(&client, "n1", 1).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let orders = Api::<NodePreheat>::all(client.clone()).get("n1").await.unwrap().spec.orders;
    let images: Vec<&str> = orders.values().map(|order| order.image.as_str()).collect();
    assert_eq!(images, ["registry.example/good:v1"], "the good one alone");
    for api in [&preheats, &kruise] {
        let object = api.get("broken").await.unwrap();
        assert_eq!(object.data["status"]["completionTime"], "some time ago", "nothing is written to it");
    }
    let events = Api::<Event>::default_namespaced(client.clone()).list(&Default::default()).await.unwrap();
    let told = events.items.iter().filter(|event| event.reason.as_deref() == Some("StatusUnreadable"));
    let kinds: Vec<Option<String>> = told.map(|event| event.involved_object.kind.clone()).collect();
    assert_eq!(kinds.len(), 2, "each once: {kinds:?}");
    cancel.cancel();
    running.await.unwrap();
}

fn objects<K: kube::Resource<DynamicType = ()>>(client: &Client) -> Api<DynamicObject> {
    Api::default_namespaced_with(client.clone(), &ApiResource::erase::<K>(&()))
}

async fn create<K: kube::Resource<DynamicType = ()>>(
    client: &Client,
    name: &str,
    spec: Value,
) -> kube::Result<DynamicObject> {
    let object = DynamicObject::new(name, &ApiResource::erase::<K>(&())).data(json!({ "spec": spec }));
    objects::<K>(client).create(&Default::default(), &object).await
}

/// What an API server takes and nobody can read: jobs that the schema refuses today, in an API that has none.
#[tokio::test(start_paused = true)]
async fn a_job_whose_spec_cannot_be_read_says_which_field_and_why() {
    let clock = clock();
    let client = api_without_schemas(&clock);
    node(&client, "n1").await;
    let (preheats, kruise) = (objects::<Preheat>(&client), objects::<ImagePullJob>(&client));
    let image = json!([{ "image": "registry.example/bad:v1" }]);
    let fast = json!({ "images": image, "pace": { "bandwidth": "999999999999999Gi" } });
    create::<Preheat>(&client, "fast", fast).await.unwrap();
    let spaced = json!({ "matchLabels": { "app": "a b" } });
    create::<Preheat>(&client, "spaced", json!({ "images": image, "nodes": { "podSelector": spaced } })).await.unwrap();
    create::<ImagePullJob>(&client, "spaced", json!({ "image": "registry.example/bad:v2", "podSelector": spaced }))
        .await
        .unwrap();
    let cancel = CancellationToken::new();
    let running = run(settings(&client, &clock, "only"), &cancel);
    preheat(&client, "good").await;
    ordered(&client, "n1", 1).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    for (api, name, said) in [
        (&preheats, "fast", "spec.pace.bandwidth cannot be read: `999999999999999Gi` is not an amount of bytes"),
        (&preheats, "spaced", "spec.nodes.podSelector cannot be read: `a b` is not a value of a label"),
        (&kruise, "spaced", "spec.podSelector cannot be read: `a b` is not a value of a label"),
    ] {
        let status = api.get(name).await.unwrap().data["status"].clone();
        assert!(status["message"].as_str().is_some_and(|message| message.starts_with(said)), "{name}: {status}");
    }
    let status = preheats.get("fast").await.unwrap().data["status"].clone();
    let stalled = &status["conditions"].as_array().unwrap()[2];
    assert_eq!(
        (&stalled["type"], &stalled["status"], &stalled["reason"]),
        (&json!("Stalled"), &json!("True"), &json!("SpecUnreadable"))
    );
    let told = async || {
        let events = Api::<Event>::default_namespaced(client.clone()).list(&Default::default()).await.unwrap();
        events.items.iter().filter(|event| event.reason.as_deref() == Some("SpecUnreadable")).count()
    };
    assert_eq!(told().await, 3, "each once");
    // Once it is corrected it is a job as any other.
    let corrected = Patch::Merge(json!({ "spec": { "pace": { "bandwidth": "1Gi" } } }));
    preheats.patch("fast", &PatchParams::default(), &corrected).await.unwrap();
    ordered(&client, "n1", 2).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(preheats.get("fast").await.unwrap().data["status"]["phase"], "Running");
    assert_eq!(told().await, 3);
    let snapshot = snapshot::take(&client, "default").await.unwrap();
    let unreadable: Vec<String> = snapshot.unreadable.keys().map(ToString::to_string).collect();
    assert_eq!(unreadable.len(), 2, "what `stoker why` says: {unreadable:?}");
    cancel.cancel();
    running.await.unwrap();
}

/// The earliest place to refuse it.
#[tokio::test(start_paused = true)]
async fn the_schema_refuses_what_cannot_be_read() {
    let client = api(&clock());
    let image = "registry.example/bad:v1";
    let selector = |value: &str| json!({ "matchLabels": { "app": value } });
    let one_of = |value: &str| json!({ "matchExpressions": [{ "key": "app", "operator": "In", "values": [value] }] });
    let images = json!([{ "image": image }]);
    for (bandwidth, taken) in
        [("999999999999999Gi", false), ("9999999999Gi", true), ("99999999999Gi", false), ("20Mi", true)]
    {
        let spec = json!({ "images": images, "pace": { "bandwidth": bandwidth } });
        let name = format!("b-{}", bandwidth.to_lowercase());
        assert_eq!(create::<Preheat>(&client, &name, spec).await.is_ok(), taken, "{bandwidth}");
    }
    for (number, value) in ["a b", "a,b", "-a", "ok"].into_iter().enumerate() {
        for (way, selector) in [selector(value), one_of(value)].into_iter().enumerate() {
            let (name, taken) = (format!("s{number}{way}"), value == "ok");
            let spec = json!({ "images": images, "nodes": { "podSelector": selector } });
            assert_eq!(create::<Preheat>(&client, &name, spec).await.is_ok(), taken, "{value}");
            let spec = json!({ "image": image, "podSelector": selector });
            assert_eq!(create::<ImagePullJob>(&client, &name, spec).await.is_ok(), taken, "{value}");
            let spec = json!({ "images": [image], "podSelector": selector });
            assert_eq!(create::<ImageListPullJob>(&client, &name, spec).await.is_ok(), taken, "{value}");
        }
    }
}
