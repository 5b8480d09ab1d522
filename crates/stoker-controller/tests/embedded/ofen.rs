//! ofen's kinds on an embedded API: ImagePrefetches with the NodeImageSets of their nodes, and NodeImageSets that people write.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};
use stoker_api::dialect::ofen::{ImagePrefetch, NodeImageSet, set_name};
use stoker_api::native::NodePreheat;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::bed::{api, clock, does_what_it_has, node, run, settings};

/// The manifests of ofen's design note as they stand there, with an apiVersion.
const NOTE: [&str; 2] = [
    "
apiVersion: ofen.cybozu.io/v1
kind: ImagePrefetch
metadata:
  name: sample
spec:
  images: 
    - ghcr.io/cybozu/ubuntu:24.04
  replicas: 2
  imagePullSecrets:
    - name: regcred
",
    "
apiVersion: ofen.cybozu.io/v1
kind: NodeImageSet
metadata:
  name: worker1
spec:
  imageSet:
  - name: ghcr.io/cybozu/ubuntu:24.04
    registryPolicy: Default
  imagePullSecrets:
  - name: regcred
  nodeName: worker1
  imageDownloadRetryLimit: 3
",
];

fn prefetches(client: &Client) -> Api<DynamicObject> {
    Api::default_namespaced_with(client.clone(), &ApiResource::erase::<ImagePrefetch>(&()))
}

fn sets(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &ApiResource::erase::<NodeImageSet>(&()))
}

async fn create(api: &Api<DynamicObject>, object: Value) -> kube::Result<DynamicObject> {
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await
}

fn prefetch(spec: Value) -> Value {
    json!({ "apiVersion": "ofen.cybozu.io/v1", "kind": "ImagePrefetch", "metadata": { "name": "sample" }, "spec": spec })
}

fn set(spec: Value) -> Value {
    json!({ "apiVersion": "ofen.cybozu.io/v1", "kind": "NodeImageSet", "metadata": { "name": "mine" }, "spec": spec })
}

/// Waits until this holds of an object, or of there being none.
async fn until(
    api: &Api<DynamicObject>,
    name: &str,
    what: impl Fn(Option<&DynamicObject>) -> bool,
) -> Option<DynamicObject> {
    match tokio::time::timeout(Duration::from_secs(1200), await_condition(api.clone(), name, what)).await {
        Ok(object) => object.unwrap(),
        Err(_) => panic!("it never holds of {:#?}", api.get_opt(name).await.unwrap()),
    }
}

/// Whether a condition of the object is so.
fn is(object: Option<&DynamicObject>, kind: &str, status: &str) -> bool {
    let conditions = object.and_then(|object| object.data["status"]["conditions"].as_array());
    conditions.into_iter().flatten().any(|condition| condition["type"] == kind && condition["status"] == status)
}

fn is_ready(object: Option<&DynamicObject>) -> bool {
    is(object, "Ready", "True") && is(object, "NodeImageSetsCreated", "True")
}

/// A controller with agents that do whatever they are told.
struct Running {
    client: Client,
    cancel: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl Running {
    async fn of(nodes: &[&'static str]) -> Self {
        let (clock, cancel) = (clock(), CancellationToken::new());
        let client = api(&clock);
        for name in nodes {
            node(&client, name).await;
        }
        let controller = run(settings(&client, &clock, "one"), &cancel);
        let agents = nodes.iter().map(|name| tokio::spawn(agent(client.clone(), name, cancel.clone())));
        let tasks = agents.chain([controller]).collect();
        Self { client, cancel, tasks }
    }

    async fn end(self) {
        self.cancel.cancel();
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

/// Says of every new order that it is done.
async fn agent(client: Client, name: &'static str, cancel: CancellationToken) {
    let preheats: Api<NodePreheat> = Api::all(client.clone());
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
        let Ok(object) = preheats.get(name).await else { continue };
        let reports = object.status.map(|status| status.reports).unwrap_or_default();
        let open = |key: &String, asked| reports.get(key).is_none_or(|report| report.asked != asked);
        if object.spec.orders.iter().any(|(key, order)| open(key, order.asked)) {
            does_what_it_has(&client, name).await;
        }
    }
}

async fn change_node(client: &Client, name: &str, ready: bool) {
    let status = json!({ "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }] });
    let patch = Patch::Merge(json!({ "status": status }));
    Api::<Node>::all(client.clone()).patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_samples_of_the_design_note_run_as_they_stand() {
    let running = Running::of(&["worker1", "worker2", "worker3"]).await;
    let (prefetches, sets) = (prefetches(&running.client), sets(&running.client));
    for (api, manifest) in [&prefetches, &sets].into_iter().zip(NOTE) {
        create(api, serde_saphyr::from_str(manifest).unwrap()).await.unwrap();
    }
    let sample = until(&prefetches, "sample", is_ready).await.unwrap();
    let status = &sample.data["status"];
    assert_eq!(status["selectedNodes"], json!(["worker1", "worker2"]), "{status:#}");
    assert_eq!((&status["desiredNodes"], &status["imagePulledNodes"]), (&json!(2), &json!(2)), "{status:#}");
    let by_hand = until(&sets, "worker1", |set| is(set, "ImageAvailable", "True")).await.unwrap();
    assert_eq!(by_hand.data["status"]["availableImages"], 1);
    for worker in ["worker1", "worker2"] {
        let name = set_name(("default", "sample"), worker);
        let part = until(&sets, &name, |set| is(set, "ImageAvailable", "True")).await.unwrap();
        assert_eq!(part.data["spec"]["nodeName"], worker);
        assert_eq!(part.data["spec"]["imagePrefetchGeneration"], 1);
    }

    prefetches.delete("sample", &DeleteParams::default()).await.unwrap();
    for worker in ["worker1", "worker2"] {
        until(&sets, &set_name(("default", "sample"), worker), |set| set.is_none()).await;
    }
    let left = sets.list(&ListParams::default()).await.unwrap();
    assert_eq!(left.items.len(), 1, "the one that somebody wrote stays: {left:#?}");
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_not_ready_is_replaced_and_its_set_goes() {
    let running = Running::of(&["n1", "n2", "n3"]).await;
    let (prefetches, sets) = (prefetches(&running.client), sets(&running.client));
    create(&prefetches, prefetch(json!({ "images": ["reg.test/web:1"], "replicas": 2 }))).await.unwrap();
    until(&prefetches, "sample", is_ready).await;
    change_node(&running.client, "n1", false).await;
    let moved = |object: Option<&DynamicObject>| {
        is_ready(object) && object.is_some_and(|object| object.data["status"]["selectedNodes"] == json!(["n2", "n3"]))
    };
    until(&prefetches, "sample", moved).await;
    until(&sets, &set_name(("default", "sample"), "n1"), |set| set.is_none()).await;
    // All that are Ready, and the one that comes back.
    let patch = Patch::Merge(json!({ "spec": { "allNodes": true, "replicas": null } }));
    prefetches.patch("sample", &PatchParams::default(), &patch).await.unwrap();
    let of_generation_2 = |object: Option<&DynamicObject>| {
        is_ready(object) && object.is_some_and(|object| object.data["status"]["observedGeneration"] == 2)
    };
    until(&prefetches, "sample", of_generation_2).await;
    change_node(&running.client, "n1", true).await;
    let all = |object: Option<&DynamicObject>| {
        is_ready(object) && object.is_some_and(|object| object.data["status"]["imagePulledNodes"] == 3)
    };
    until(&prefetches, "sample", all).await;
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_set_that_somebody_edits_or_deletes_is_restored() {
    let running = Running::of(&["n1", "n2"]).await;
    let (prefetches, sets) = (prefetches(&running.client), sets(&running.client));
    create(&prefetches, prefetch(json!({ "images": ["reg.test/web:1"], "allNodes": true }))).await.unwrap();
    until(&prefetches, "sample", is_ready).await;
    let name = set_name(("default", "sample"), "n1");
    let before = sets.get(&name).await.unwrap();
    let restored = |set: Option<&DynamicObject>| {
        let same = |set: &DynamicObject| set.data["spec"] == before.data["spec"];
        set.is_some_and(|set| same(set) && set.metadata.labels == before.metadata.labels)
    };
    for edit in [
        json!({ "spec": { "images": ["reg.test/other:1"], "nodeName": "n2", "imageDownloadRetryLimit": 5 } }),
        json!({ "metadata": { "labels": null } }),
    ] {
        sets.patch(&name, &PatchParams::default(), &Patch::Merge(edit)).await.unwrap();
        until(&sets, &name, restored).await;
    }
    sets.delete(&name, &DeleteParams::default()).await.unwrap();
    let anew = |set: Option<&DynamicObject>| {
        restored(set)
            && set.is_some_and(|set| set.metadata.uid != before.metadata.uid)
            && is(set, "ImageAvailable", "True")
    };
    until(&sets, &name, anew).await;
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_ofen_refuses_is_refused_in_its_words() {
    let client = api(&clock());
    let (prefetches, sets) = (prefetches(&client), sets(&client));
    let secrets = "spec.imagePullSecrets must be a list of non-empty names";
    let policy = "spec.registryPolicy must be either 'Default' or 'MirrorOnly'";
    for (spec, wanted) in [
        (json!({ "images": [], "replicas": 1 }), "spec.images must not be empty"),
        (
            json!({ "images": ["a"], "allNodes": true, "replicas": 0 }),
            "spec.replicas cannot be set when spec.allNodes is true",
        ),
        (json!({ "images": ["a"] }), "spec.replicas must be greater than 0 when spec.allNodes is false"),
        (json!({ "images": ["a"], "replicas": 0 }), "spec.replicas must be greater than 0 when spec.allNodes is false"),
        (json!({ "images": ["a"], "replicas": -1 }), "spec.replicas must be a non-negative number"),
        (json!({ "images": ["a"], "replicas": 1, "imagePullSecrets": [] }), secrets),
        (json!({ "images": ["a"], "replicas": 1, "imagePullSecrets": [{}] }), secrets),
    ] {
        let refused = create(&prefetches, prefetch(spec.clone())).await.unwrap_err().to_string();
        assert!(refused.contains(wanted), "{spec}: {refused}");
    }
    for (spec, wanted) in [
        (
            json!({ "images": ["a"], "registryPolicy": "Default", "nodeName": "" }),
            "spec.nodeName must be specified and not empty",
        ),
        (json!({ "images": [], "registryPolicy": "Default", "nodeName": "n1" }), "spec.images must not be empty"),
        (json!({ "registryPolicy": "Default", "nodeName": "n1" }), "spec.images must not be empty"),
        (json!({ "images": ["a"], "registryPolicy": "Any", "nodeName": "n1" }), policy),
        (json!({ "images": ["a"], "nodeName": "n1" }), policy),
        (json!({ "imageSet": [{ "name": "a" }], "nodeName": "n1" }), policy),
    ] {
        let refused = create(&sets, set(spec.clone())).await.unwrap_err().to_string();
        assert!(refused.contains(wanted), "{spec}: {refused}");
    }
    let flat = json!({ "images": ["a"], "replicas": 1, "nodeSelector": { "zone": "a" } });
    let made = create(&prefetches, prefetch(flat)).await.unwrap();
    assert_eq!(made.data["spec"]["nodeSelector"], json!({ "zone": "a" }), "a map of labels is kept as it is");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_done_while_ofen_is_at_work() {
    let running = Running::of(&["n1", "n2"]).await;
    let namespace = serde_json::from_value(json!({ "metadata": { "name": "ofen-system" } })).unwrap();
    Api::<Namespace>::all(running.client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let leases: Api<Lease> = Api::namespaced(running.client.clone(), "ofen-system");
    let lease = |at: u32| {
        let renewed = format!("2026-01-01T00:00:{at:02}.000000Z");
        json!({
            "metadata": { "name": "c4cf5e14.ofen.cybozu.io" },
            "spec": { "holderIdentity": "ofen-controller_1", "renewTime": renewed, "leaseDurationSeconds": 15 },
        })
    };
    leases.create(&PostParams::default(), &serde_json::from_value(lease(0)).unwrap()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let prefetches = prefetches(&running.client);
    create(&prefetches, prefetch(json!({ "images": ["reg.test/web:1"], "allNodes": true }))).await.unwrap();
    for at in 1..8 {
        tokio::time::sleep(Duration::from_secs(20)).await;
        let patch = Patch::Merge(lease(at));
        leases.patch("c4cf5e14.ofen.cybozu.io", &PatchParams::default(), &patch).await.unwrap();
    }
    let there = prefetches.get("sample").await.unwrap();
    assert!(there.data["status"].is_null(), "{there:#?}");
    leases.delete("c4cf5e14.ofen.cybozu.io", &DeleteParams::default()).await.unwrap();
    until(&prefetches, "sample", is_ready).await;
    running.end().await;
}
