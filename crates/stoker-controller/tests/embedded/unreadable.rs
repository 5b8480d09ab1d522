//! A job whose status was written by something else: it must not run again, and the others go on.

use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use serde_json::json;
use stoker_api::dialect::kruise::ImagePullJob;
use stoker_api::native::{NodePreheat, Preheat};
use tokio_util::sync::CancellationToken;

use crate::bed::{api_without_schemas, clock, node, ordered, preheat, run, settings};

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
