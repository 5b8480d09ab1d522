//! How soon OpenKruise's kinds, and objects of them, are noticed and go, by the paused clock of the test. Nothing here depends on how
//! fast the machine is.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};
use stoker_api::JobKind;
use stoker_api::dialect::kruise::{IMAGE_LIST_PULL_JOBS, IMAGE_PULL_JOBS};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::bed::{self, Way, api, clock, does_what_it_has, node, ordered, over, preheat};

/// How soon a kind that comes or goes is noticed.
const KIND_WITHIN: Duration = Duration::from_secs(30);
/// That a kind is gone is believed only after a minute.
const GONE_WITHIN: Duration = Duration::from_secs(65);
/// How soon an object is counted or removed.
const OBJECT_WITHIN: Duration = Duration::from_secs(5);
/// How long a test waits before it fails.
const PATIENCE: Duration = Duration::from_secs(1200);

fn objects(client: &Client, kind: &JobKind) -> Api<DynamicObject> {
    Api::default_namespaced_with(client.clone(), &kind.kind.newest())
}

async fn create(client: &Client, kind: &JobKind, name: &str, spec: Value) {
    let resource = kind.kind.newest();
    let object = json!({
        "apiVersion": resource.api_version, "kind": resource.kind, "metadata": { "name": name }, "spec": spec,
    });
    objects(client, kind).create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

/// An image by its digest, which nobody need ask for.
fn image(name: &str) -> String {
    format!("registry.example/{name}@sha256:{}", "d".repeat(64))
}

/// Waits until an object is so, and returns how long that took.
async fn until(
    client: &Client,
    kind: &JobKind,
    name: &str,
    holds: impl Fn(Option<&DynamicObject>) -> bool,
) -> Duration {
    let begun = Instant::now();
    let there = await_condition(objects(client, kind), name, holds);
    timeout(PATIENCE, there).await.unwrap_or_else(|_| panic!("{name} never becomes so")).unwrap();
    begun.elapsed()
}

fn desires(count: u64) -> impl Fn(Option<&DynamicObject>) -> bool {
    move |object: Option<&DynamicObject>| object.is_some_and(|object| object.data["status"]["desired"] == count)
}

/// The definitions of both kinds of jobs.
fn definitions() -> Vec<CustomResourceDefinition> {
    let all = stoker_api::crds().into_iter().map(|(_, crd)| crd);
    all.filter(|crd| ["ImagePullJob", "ImageListPullJob"].contains(&crd.spec.names.kind.as_str())).collect()
}

#[tokio::test(start_paused = true)]
async fn kinds_that_come_are_noticed_within_half_a_minute_and_those_that_go_within_one() {
    let clock = clock();
    let client = api(&clock);
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in definitions() {
        crds.delete(crd.metadata.name.as_deref().unwrap(), &Default::default()).await.unwrap();
    }
    node(&client, "n1").await;
    let (asks, mut asked) = watch::channel(());
    let way = move |request: &http::Request<kube::client::Body>| {
        if request.uri().path().ends_with("/imagepulljobs") {
            asks.send_replace(());
        }
        Way::Free
    };
    let cancel = CancellationToken::new();
    let leader = bed::run(bed::settings(&over(&client, way), &clock, "only"), &cancel);
    preheat(&client, "meanwhile").await;
    ordered(&client, "n1", 1).await;
    // By now the controller asks as seldom as it ever does, and the node is not yet taken for silent. The kinds come right after it has asked
    // in vain.
    tokio::time::sleep(Duration::from_secs(300)).await;
    asked.mark_unchanged();
    asked.changed().await.unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;

    let came = Instant::now();
    for crd in definitions() {
        crds.create(&PostParams::default(), &crd).await.unwrap();
    }
    create(&client, &IMAGE_PULL_JOBS, "web", json!({ "image": image("web") })).await;
    create(&client, &IMAGE_LIST_PULL_JOBS, "pair", json!({ "images": [image("a"), image("b")] })).await;
    ordered(&client, "n1", 4).await;
    assert!(came.elapsed() <= KIND_WITHIN, "noticed after {:?}", came.elapsed());

    let went = Instant::now();
    for crd in definitions() {
        crds.delete(crd.metadata.name.as_deref().unwrap(), &Default::default()).await.unwrap();
    }
    ordered(&client, "n1", 1).await;
    assert!(went.elapsed() <= GONE_WITHIN, "noticed after {:?}", went.elapsed());
    cancel.cancel();
    leader.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_nodes_of_a_job_are_counted_within_seconds_of_its_creation() {
    let clock = clock();
    let client = api(&clock);
    for name in ["n1", "n2", "n3"] {
        node(&client, name).await;
    }
    for (name, node) in [("web-0", "n1"), ("web-1", "n3")] {
        let pod = json!({
            "metadata": { "name": name, "labels": { "app": "web" } },
            "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "web" }] },
        });
        let pods: Api<Pod> = Api::default_namespaced(client.clone());
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    }
    let cancel = CancellationToken::new();
    let leader = bed::run(bed::settings(&client, &clock, "only"), &cancel);
    preheat(&client, "other").await;
    ordered(&client, "n1", 1).await;
    let selector = json!({ "matchLabels": { "app": "web" } });
    for (kind, name, spec, count) in [
        (&IMAGE_PULL_JOBS, "all", json!({ "image": image("all") }), 3),
        (&IMAGE_PULL_JOBS, "pods", json!({ "image": image("pods"), "podSelector": selector }), 2),
        (&IMAGE_LIST_PULL_JOBS, "pair", json!({ "images": [image("a"), image("b")], "podSelector": selector }), 2),
    ] {
        // Some time in the life of the controller.
        tokio::time::sleep(Duration::from_secs(100)).await;
        create(&client, kind, name, spec).await;
        let took = until(&client, kind, name, desires(count)).await;
        assert!(took <= OBJECT_WITHIN, "{name}: {took:?}");
    }
    // Both children of the list have their nodes by now, or very soon.
    let all = objects(&client, &IMAGE_PULL_JOBS).list(&ListParams::default()).await.unwrap();
    let children: Vec<String> =
        all.items.into_iter().filter_map(|job| job.metadata.name).filter(|name| name.starts_with("pair-")).collect();
    assert_eq!(children.len(), 2, "{children:?}");
    for name in children {
        let took = until(&client, &IMAGE_PULL_JOBS, &name, desires(2)).await;
        assert!(took <= OBJECT_WITHIN, "{name}: {took:?}");
    }
    cancel.cancel();
    leader.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_job_and_a_list_are_gone_within_seconds_of_their_time_to_live() {
    let clock = clock();
    let client = api(&clock);
    node(&client, "n1").await;
    let cancel = CancellationToken::new();
    let leader = bed::run(bed::settings(&client, &clock, "only"), &cancel);
    let policy = json!({ "ttlSecondsAfterFinished": 90 });
    for (kind, name, spec, orders) in [
        (&IMAGE_PULL_JOBS, "web", json!({ "image": image("web"), "completionPolicy": policy }), 1),
        (&IMAGE_LIST_PULL_JOBS, "pair", json!({ "images": [image("a"), image("b")], "completionPolicy": policy }), 2),
    ] {
        create(&client, kind, name, spec).await;
        // What came before is swept with the next write.
        ordered(&client, "n1", orders).await;
        does_what_it_has(&client, "n1").await;
        let ended = |object: Option<&DynamicObject>| {
            object.is_some_and(|object| object.data["status"]["completionTime"].is_string())
        };
        until(&client, kind, name, ended).await;
        let object = objects(&client, kind).get(name).await.unwrap();
        let completed: Timestamp = object.data["status"]["completionTime"].as_str().unwrap().parse().unwrap();
        until(&client, kind, name, |object| object.is_none()).await;
        let over = clock().duration_since(completed).as_secs() - 90;
        assert!((0..=5).contains(&over), "{name} went {over} s after its time");
    }
    cancel.cancel();
    leader.await.unwrap();
}
