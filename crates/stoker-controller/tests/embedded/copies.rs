//! Copies of pull secrets: a stranger in the place of one.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Secret};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};
use stoker_api::native::{NodePreheat, NodePreheatSpec, Preheat};
use stoker_controller::{Limits, Settings, snapshot};
use stoker_core::world::State;
use stoker_core::{Clock, JobId};
use tokio_util::sync::CancellationToken;

use crate::bed::{self, api, clock};

const DOCKER: &str = "kubernetes.io/dockerconfigjson";

async fn make<K>(api: Api<K>, object: Value)
where
    K: kube::Resource + serde::Serialize + serde::de::DeserializeOwned + Clone + std::fmt::Debug,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

async fn until(api: Api<Preheat>, waiting_for: &'static str) {
    let waits = move |object: Option<&Preheat>| {
        let status = object.and_then(|object| object.status.as_ref());
        status
            .is_some_and(|status| serde_json::to_value(&status.waiting_for).unwrap().to_string().contains(waiting_for))
    };
    await_condition(api, "web", waits).await.unwrap();
}

/// The sentence about the first node of the job that `why` would say.
async fn why(client: &Client, clock: &Clock) -> String {
    let mut world = snapshot::take(client, "default").await.unwrap();
    world.plan(clock());
    match &world.nodes(&JobId::new(("stoker.dev", "Preheat"), "default", "web"), clock())[0].state {
        State::Waiting(waiting) => waiting.to_string(),
        other => format!("{other:?}"),
    }
}

/// A stranger of this type is where the copy of the job's Secret should be; when it is removed the job goes on.
async fn a_stranger_is_named_and_waited_for(stranger: &str, data: Value, named: bool) {
    let clock = clock();
    let client = api(&clock);
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let ours: Api<Secret> = Api::namespaced(client.clone(), stoker_api::NAMESPACE);
    let logins = json!({".dockerconfigjson": "e30="});
    make(secrets.clone(), json!({"metadata": {"name": "regcred"}, "type": DOCKER, "data": logins})).await;
    let original =
        stoker_api::secret::PullSecret::read(&secrets.get("regcred").await.unwrap(), stoker_api::NAMESPACE).unwrap();
    let copy = original.copy.to_string();
    make(ours.clone(), json!({"metadata": {"name": copy}, "type": stranger, "data": data})).await;
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    let nodes: Api<Node> = Api::all(client.clone());
    make(nodes.clone(), json!({"metadata": {"name": "n1"}})).await;
    nodes.patch_status("n1", &PatchParams::default(), &Patch::Merge(json!({ "status": ready }))).await.unwrap();
    let preheats: Api<NodePreheat> = Api::all(client.clone());
    preheats.create(&PostParams::default(), &NodePreheat::new("n1", NodePreheatSpec::default())).await.unwrap();
    let image = json!({"image": "registry.example/web:v1", "pullSecrets": [{"name": "regcred"}]});
    let jobs: Api<Preheat> = Api::default_namespaced(client.clone());
    make(jobs.clone(), json!({"metadata": {"name": "web"}, "spec": {"images": [image]}})).await;
    let cancel = CancellationToken::new();
    let controller = bed::run(bed::settings(&client, &clock, "only"), &cancel);
    until(jobs, "SecretCopying").await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    let said = why(&client, &clock).await;
    assert_eq!(said.contains(&format!("Secret stoker-system/{copy} has the name of the copy")), named, "{said}");
    assert!(preheats.get("n1").await.unwrap().spec.orders.is_empty());
    ours.delete(&copy, &DeleteParams::default()).await.unwrap();
    let ordered = await_condition(preheats, "n1", |object: Option<&NodePreheat>| {
        object.is_some_and(|object| !object.spec.orders.is_empty())
    });
    let object = ordered.await.unwrap().unwrap();
    assert_eq!(serde_json::to_value(&object.spec.orders).unwrap().to_string().matches(&copy).count(), 1);
    assert_eq!(ours.get(&copy).await.unwrap().immutable, Some(true), "that is the copy");
    cancel.cancel();
    controller.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stranger_with_other_logins_is_named_and_waited_for() {
    let other = json!({".dockerconfigjson": "eyJhdXRocyI6e319"});
    a_stranger_is_named_and_waited_for(DOCKER, other, true).await;
}

/// Secrets of other types are not ours to list: only the controller's log names it.
#[tokio::test(start_paused = true)]
async fn a_stranger_of_another_type_is_waited_for() {
    a_stranger_is_named_and_waited_for("Opaque", json!({}), false).await;
}

/// With hardly a write a second, the orders that name the new copy take longer than a spare copy is kept.
#[tokio::test(start_paused = true)]
async fn a_copy_stays_until_no_order_names_it_however_slow_the_writes_are() {
    let clock = clock();
    let client = api(&clock);
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let ours: Api<Secret> = Api::namespaced(client.clone(), stoker_api::NAMESPACE);
    let logins = |text: &str| json!({ ".dockerconfigjson": text });
    make(secrets.clone(), json!({"metadata": {"name": "regcred"}, "type": DOCKER, "data": logins("e30=")})).await;
    let copy = async || {
        stoker_api::secret::PullSecret::read(&secrets.get("regcred").await.unwrap(), stoker_api::NAMESPACE)
            .unwrap()
            .copy
    };
    let old = copy().await.to_string();
    let nodes: Api<Node> = Api::all(client.clone());
    let preheats: Api<NodePreheat> = Api::all(client.clone());
    let names: Vec<String> = (0..40).map(|number| format!("n{number}")).collect();
    for name in &names {
        make(nodes.clone(), json!({"metadata": {"name": name}})).await;
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(ready)).await.unwrap();
        preheats.create(&PostParams::default(), &NodePreheat::new(name, NodePreheatSpec::default())).await.unwrap();
    }
    let image = format!("registry.example/web@sha256:{}", "a".repeat(64));
    let image = json!({"image": image, "pullSecrets": [{"name": "regcred"}]});
    let spec = json!({"images": [image], "pace": {"parallelism": 100}});
    make(Api::<Preheat>::default_namespaced(client.clone()), json!({"metadata": {"name": "web"}, "spec": spec})).await;
    let cancel = CancellationToken::new();
    let limits = Limits { writes_per_second: 1, at_once: 1 };
    let controller = bed::run(Settings { limits, ..bed::settings(&client, &clock, "only") }, &cancel);
    let naming = async |copy: &str| {
        let all = preheats.list(&Default::default()).await.unwrap().items;
        all.iter().filter(|node| serde_json::to_value(&node.spec.orders).unwrap().to_string().contains(copy)).count()
    };
    while naming(&old).await < names.len() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let patch = Patch::Merge(json!({ "data": logins("eyJhdXRocyI6e319") }));
    secrets.patch("regcred", &PatchParams::default(), &patch).await.unwrap();
    let new = copy().await.to_string();
    assert_ne!(old, new);
    await_condition(ours, &old, |copy: Option<&Secret>| copy.is_none()).await.unwrap();
    assert_eq!((naming(&old).await, naming(&new).await), (0, names.len()));
    cancel.cancel();
    controller.await.unwrap();
}
