//! Jobs for the nodes of Pods, while Pods cannot be listed: by a controller that has just started, or by one that could.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Client;
use kube::api::{Api, DynamicObject, PostParams};
use serde_json::json;
use stoker_api::native::{NodePreheat, Preheat};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::bed::{self, Way, api, clock, node, ordered, over, preheat};

/// A Preheat for the nodes of the pods of `web`.
async fn of_pods(client: &Client, name: &str) {
    let spec = json!({
        "images": [{"image": format!("registry.example/{name}:v1")}],
        "nodes": {"podSelector": {"matchLabels": {"app": "web"}}},
    });
    let object = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    Api::<Preheat>::default_namespaced(client.clone()).create(&PostParams::default(), &object).await.unwrap();
}

async fn pod(client: &Client, name: &str, node: &str) {
    let pod = json!({
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "web"}]},
    });
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
}

/// Requests of this path, with or without a name, are refused like that while `refused` is true.
fn without(client: &Client, path: &'static str, code: u16, refused: watch::Receiver<bool>) -> Client {
    over(client, move |request| match request.uri().path().ends_with(path) && *refused.borrow() {
        true => Way::Refused(code),
        false => Way::Free,
    })
}

async fn images(client: &Client) -> Vec<String> {
    let orders = Api::<NodePreheat>::all(client.clone()).get("n1").await.unwrap().spec.orders;
    let mut images: Vec<String> = orders.into_values().map(|order| order.image).collect();
    images.sort();
    images
}

async fn message(client: &Client, name: &str) -> String {
    let job = Api::<Preheat>::default_namespaced(client.clone()).get(name).await.unwrap();
    job.status.unwrap_or_default().message
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_starts_while_pods_cannot_be_listed_takes_nothing_back() {
    for code in [403, 500] {
        let clock = clock();
        let client = api(&clock);
        node(&client, "n1").await;
        pod(&client, "web-0", "n1").await;
        let cancel = CancellationToken::new();
        let first = bed::run(bed::settings(&client, &clock, "same"), &cancel);
        of_pods(&client, "old").await;
        ordered(&client, "n1", 1).await;
        let said = message(&client, "old").await;
        first.abort();
        let (refuse, refused) = watch::channel(true);
        let second = bed::run(bed::settings(&without(&client, "/pods", code, refused), &clock, "same"), &cancel);
        of_pods(&client, "new").await;
        preheat(&client, "other").await;
        ordered(&client, "n1", 2).await;
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!(images(&client).await, ["registry.example/old:v1", "registry.example/other:v1"], "{code}");
        assert_eq!(message(&client, "old").await, said, "{code}: its status is left as it is");
        let waits = message(&client, "new").await;
        assert!(waits.contains("Pod objects of this namespace cannot be listed"), "{code}: {waits}");
        let events = Api::<Event>::default_namespaced(client.clone()).list(&Default::default()).await.unwrap();
        let told = |name: &str| {
            let about = events.items.iter().filter(|event| event.involved_object.name.as_deref() == Some(name));
            about.filter(|event| event.reason.as_deref() == Some("CannotSee")).count()
        };
        assert_eq!((told("old"), told("new"), told("other")), (1, 1, 0), "{code}");
        refuse.send(false).unwrap();
        ordered(&client, "n1", 3).await;
        cancel.cancel();
        second.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn pods_that_cannot_be_seen_any_more_take_nothing_back() {
    let clock = clock();
    let client = api(&clock);
    node(&client, "n1").await;
    for number in 0..200 {
        pod(&client, &format!("web-{number}"), "n1").await;
    }
    let (refuse, refused) = watch::channel(false);
    let cancel = CancellationToken::new();
    let leader = bed::run(bed::settings(&without(&client, "/pods", 403, refused), &clock, "only"), &cancel);
    of_pods(&client, "old").await;
    ordered(&client, "n1", 1).await;
    refuse.send(true).unwrap();
    // A watch ends after some minutes, and a refusal that lasts is believed.
    tokio::time::sleep(Duration::from_secs(900)).await;
    preheat(&client, "other").await;
    ordered(&client, "n1", 2).await;
    assert_eq!(images(&client).await, ["registry.example/old:v1", "registry.example/other:v1"]);
    let events = Api::<Event>::default_namespaced(client.clone()).list(&Default::default()).await.unwrap();
    let told = events.items.iter().any(|event| event.reason.as_deref() == Some("CannotSee"));
    assert!(told, "the refusal has been believed");
    cancel.cancel();
    leader.await.unwrap();
}

/// Rights that were given a moment ago take a while to arrive.
#[tokio::test(start_paused = true)]
async fn a_kind_that_is_refused_for_some_seconds_keeps_the_orders_of_its_jobs() {
    let clock = clock();
    let client = api(&clock);
    node(&client, "n1").await;
    let kind = &stoker_api::dialect::kruise::IMAGE_PULL_JOBS.kind;
    let job = json!({
        "apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "metadata": {"name": "base"},
        "spec": {"image": "registry.example/kruise:v1"},
    });
    let jobs: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &kind.newest());
    jobs.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
    let cancel = CancellationToken::new();
    let first = bed::run(bed::settings(&client, &clock, "same"), &cancel);
    ordered(&client, "n1", 1).await;
    first.abort();
    let (refuse, refused) = watch::channel(true);
    let second = bed::run(bed::settings(&without(&client, "/imagepulljobs", 403, refused), &clock, "same"), &cancel);
    preheat(&client, "other").await;
    ordered(&client, "n1", 2).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(images(&client).await, ["registry.example/kruise:v1", "registry.example/other:v1"]);
    // A refusal that lasts is believed.
    ordered(&client, "n1", 1).await;
    refuse.send(false).unwrap();
    ordered(&client, "n1", 2).await;
    cancel.cancel();
    second.await.unwrap();
}

/// One who may edit a namespace may write many selectors. Each watch is a connection of the controller.
#[tokio::test(start_paused = true)]
async fn many_selectors_of_a_namespace_are_one_connection() {
    let clock = clock();
    let client = api(&clock);
    node(&client, "n1").await;
    pod(&client, "web-0", "n1").await;
    of_pods(&client, "mine").await;
    for number in 0..40 {
        let spec = json!({
            "images": [{"image": format!("registry.example/many:v{number}")}],
            "nodes": {"podSelector": {"matchLabels": {"app": format!("a{number}")}}},
        });
        let object = serde_json::from_value(json!({"metadata": {"name": format!("many-{number}")}, "spec": spec}));
        let preheats = Api::<Preheat>::default_namespaced(client.clone());
        preheats.create(&PostParams::default(), &object.unwrap()).await.unwrap();
    }
    let asked: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let counted = asked.clone();
    let way = move |request: &http::Request<kube::client::Body>| {
        if request.uri().path().ends_with("/pods") && request.uri().query().is_some_and(|query| query.contains("watch"))
        {
            counted.lock().unwrap().insert(request.uri().query().unwrap_or_default().to_string());
        }
        Way::Free
    };
    let cancel = CancellationToken::new();
    let leader = bed::run(bed::settings(&over(&client, way), &clock, "only"), &cancel);
    ordered(&client, "n1", 1).await;
    assert_eq!(images(&client).await, ["registry.example/mine:v1"]);
    let watches = asked.lock().unwrap().clone();
    assert_eq!(watches.len(), 1, "{watches:?}");
    cancel.cancel();
    leader.await.unwrap();
}
