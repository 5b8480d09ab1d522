//! ImagePullJobs that are made while a workload rolls out, on an API without OpenKruise's workloads.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::ApiResource;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use stoker_api::dialect::kruise::{
    CLONE_SETS, CONTROLLER_REVISIONS, DEPLOYMENTS, ImagePullJob, REPLICA_SETS, ROLLOUTS,
};
use stoker_api::native::NodePreheat;
use stoker_controller::Settings;
use stoker_core::Clock;
use tokio_util::sync::CancellationToken;

use crate::bed::{self, Way, api, clock, node, ordered, over, preheat, run};

const PARALLELISM: &str = "apps.kruise.io/image-predownload-parallelism";

fn jobs(client: &Client) -> Api<DynamicObject> {
    Api::default_namespaced_with(client.clone(), &ApiResource::erase::<ImagePullJob>(&()))
}

fn deployments(client: &Client) -> Api<DynamicObject> {
    Api::default_namespaced_with(client.clone(), &DEPLOYMENTS.kind.newest())
}

fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": image}]}})
}

async fn create(api: &Api<DynamicObject>, object: Value) -> String {
    let object = serde_json::from_value(object).unwrap();
    api.create(&Default::default(), &object).await.unwrap().metadata.uid.unwrap()
}

async fn patch_status(api: &Api<DynamicObject>, name: &str, status: Value) {
    let patch = Patch::Merge(json!({ "status": status }));
    api.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

/// Three nodes, and a Deployment of three pods of which the one on n3 is updated.
async fn cluster(clock: &Clock) -> Client {
    let client = api(clock);
    for name in ["n1", "n2", "n3"] {
        node(&client, name).await;
    }
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "annotations": {PARALLELISM: "5"}},
        "spec": {
            "replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template("registry.example/web:v2"),
            "strategy": {"type": "RollingUpdate"},
        },
    });
    let uid = create(&deployments(&client), deployment).await;
    let sets: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &REPLICA_SETS.newest());
    let owner = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": uid, "controller": true}]);
    for (hash, number, image) in [("a", "1", "registry.example/web:v1"), ("b", "2", "registry.example/web:v2")] {
        let labels = json!({"app": "web", "pod-template-hash": hash});
        let set = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {
                "name": format!("web-{hash}"), "labels": labels, "ownerReferences": owner,
                "annotations": {"deployment.kubernetes.io/revision": number},
            },
            "spec": {"selector": {"matchLabels": labels}, "template": template(image)},
        });
        create(&sets, set).await;
        patch_status(&sets, &format!("web-{hash}"), json!({"replicas": 2})).await;
    }
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    for (node, hash) in [("n1", "a"), ("n2", "a"), ("n3", "b")] {
        let pod = json!({
            "metadata": {"name": format!("web-{node}"), "labels": {"app": "web", "pod-template-hash": hash}},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "x"}]}, "status": {"phase": "Running"},
        });
        pods.create(&Default::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    }
    patch_status(&deployments(&client), "web", rolled(1)).await;
    client
}

/// The status of a Deployment with so many updated pods of three.
fn rolled(updated: u64) -> Value {
    json!({"observedGeneration": 1, "replicas": 3, "readyReplicas": 3, "updatedReplicas": updated})
}

fn serving(client: &Client, clock: &Clock, identity: &str) -> Settings {
    Settings { serve: [ROLLOUTS].into(), ..bed::settings(client, clock, identity) }
}

/// Waits until there are so many ImagePullJobs, and returns them.
async fn there_are(client: &Client, count: usize) -> Vec<DynamicObject> {
    let waiting = async {
        loop {
            let all = jobs(client).list(&ListParams::default()).await.unwrap().items;
            if all.len() == count {
                return all;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(600), waiting).await.expect("there are never so many")
}

async fn reasons(client: &Client) -> BTreeSet<String> {
    let events = Api::<Event>::all(client.clone()).list(&ListParams::default()).await.unwrap();
    let about = events.items.into_iter().filter(|event| event.involved_object.kind.as_deref() == Some("Deployment"));
    about.filter_map(|event| event.reason).collect()
}

#[tokio::test(start_paused = true)]
async fn nodes_of_older_pods_pull_the_new_image_until_all_pods_are_updated() {
    let clock = clock();
    let client = cluster(&clock).await;
    let (cancel, settings) = (CancellationToken::new(), serving(&client, &clock, "only"));
    let metrics = settings.metrics.clone();
    let running = run(settings, &cancel);
    ordered(&client, "n1", 1).await;
    ordered(&client, "n2", 1).await;
    let made = there_are(&client, 1).await.remove(0);
    assert_eq!(made.data["spec"]["image"], "registry.example/web:v2");
    assert!(made.metadata.name.as_deref().unwrap().starts_with("web-b-main-"), "{:?}", made.metadata.name);
    let orders = Api::<NodePreheat>::all(client.clone()).get("n3").await.unwrap().spec.orders;
    assert!(orders.is_empty(), "its pod is updated: {orders:?}");
    assert_eq!(reasons(&client).await, ["CreatedImagePullJob".to_owned()].into());

    // Both pull it, and the job ends. It is not made again, also not by another controller.
    for node in ["n1", "n2"] {
        bed::does_its_orders(&client, node, 1).await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    cancel.cancel();
    running.await.unwrap();
    let cancel = CancellationToken::new();
    let running = run(serving(&client, &clock, "next"), &cancel);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let still = there_are(&client, 1).await.remove(0);
    assert_eq!(still.metadata.uid, made.metadata.uid);

    patch_status(&deployments(&client), "web", rolled(3)).await;
    there_are(&client, 0).await;
    // OpenKruise's workloads are not installed here, which is no fault.
    let (mut registry, mut text) = (Registry::default(), String::new());
    metrics.register(&mut registry);
    encode(&mut text, &registry).unwrap();
    assert!(text.contains("stoker_controller_kinds_unheard{kind=\"CloneSet\"} 0"), "{text}");
    cancel.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_when_it_is_not_asked_for_any_more() {
    let clock = clock();
    let client = cluster(&clock).await;
    let cancel = CancellationToken::new();
    let running = run(serving(&client, &clock, "only"), &cancel);
    ordered(&client, "n1", 1).await;
    let patch = Patch::Merge(json!({"metadata": {"annotations": {PARALLELISM: null}}}));
    deployments(&client).patch("web", &PatchParams::default(), &patch).await.unwrap();
    there_are(&client, 0).await;
    ordered(&client, "n1", 0).await;
    cancel.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn workloads_are_not_even_looked_at_where_nobody_asked_for_it() {
    let clock = clock();
    let client = cluster(&clock).await;
    let watched = over(&client, |request| match request.uri().path().starts_with("/apis/apps/") {
        true => panic!("{}", request.uri()),
        false => Way::Free,
    });
    preheat(&client, "ours").await;
    let cancel = CancellationToken::new();
    let running = run(bed::settings(&watched, &clock, "only"), &cancel);
    ordered(&client, "n1", 1).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(there_are(&client, 0).await.is_empty());
    cancel.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn why_an_image_pull_job_cannot_be_made_is_said_on_the_workload() {
    let clock = clock();
    let client = cluster(&clock).await;
    let refusing = over(&client, |request| {
        let create = request.method() == http::Method::POST && request.uri().path().ends_with("/imagepulljobs");
        if create { Way::Refused(403) } else { Way::Free }
    });
    let cancel = CancellationToken::new();
    let running = run(serving(&refusing, &clock, "only"), &cancel);
    let said = async {
        while !reasons(&client).await.contains("FailedCreateImagePullJob") {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(600), said).await.expect("it is said");
    cancel.cancel();
    running.await.unwrap();
}

/// A definition of OpenKruise's CloneSet that allows anything.
fn clone_sets() -> Value {
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": any, "status": any}}});
    json!({
        "metadata": {"name": "clonesets.apps.kruise.io"},
        "spec": {
            "group": "apps.kruise.io", "scope": "Namespaced",
            "names": {"plural": "clonesets", "singular": "cloneset", "kind": "CloneSet", "listKind": "CloneSetList"},
            "versions": [{"name": "v1alpha1", "served": true, "storage": true, "schema": schema, "subresources": {"status": {}}}],
        },
    })
}

#[tokio::test(start_paused = true)]
async fn workloads_of_openkruise_are_followed_when_their_definition_comes() {
    let clock = clock();
    let client = api(&clock);
    node(&client, "n1").await;
    preheat(&client, "ours").await;
    let cancel = CancellationToken::new();
    let running = run(serving(&client, &clock, "only"), &cancel);
    // It plans without them.
    ordered(&client, "n1", 1).await;

    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.create(&Default::default(), &serde_json::from_value(clone_sets()).unwrap()).await.unwrap();
    let older = (CLONE_SETS.kind.versions)().pop().unwrap();
    let sets: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &older);
    let set = json!({
        "apiVersion": older.api_version, "kind": "CloneSet", "metadata": {"name": "web"},
        "spec": {
            "replicas": 5, "selector": {"matchLabels": {"app": "web"}}, "template": template("registry.example/web:v2"),
            "updateStrategy": {"type": "InPlaceIfPossible"},
        },
    });
    let uid = create(&sets, set).await;
    let begun = json!({"observedGeneration": 1, "replicas": 5, "currentRevision": "web-a", "updateRevision": "web-b"});
    patch_status(&sets, "web", begun).await;
    let revisions: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &CONTROLLER_REVISIONS.newest());
    for (name, number, image) in [("web-a", 1, "registry.example/web:v1"), ("web-b", 2, "registry.example/web:v2")] {
        let owner =
            json!({"apiVersion": older.api_version, "kind": "CloneSet", "name": "web", "uid": uid, "controller": true});
        let metadata = json!({"name": name, "labels": {"app": "web"}, "ownerReferences": [owner]});
        let revision = json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": metadata, "revision": number,
            "data": {"spec": {"template": template(image)}},
        });
        create(&revisions, revision).await;
    }
    let made = there_are(&client, 1).await.remove(0);
    assert_eq!(made.data["spec"]["image"], "registry.example/web:v2");
    assert_eq!(made.metadata.owner_references.unwrap()[0].uid, uid);

    patch_status(&sets, "web", json!({"currentRevision": "web-b"})).await;
    there_are(&client, 0).await;
    cancel.cancel();
    running.await.unwrap();
}
