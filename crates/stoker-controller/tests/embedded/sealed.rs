//! Logins: read by name, sealed to the node that is ordered to pull, and to no other.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};
use stoker_api::native::{NodePreheat, Preheat};
use stoker_controller::snapshot;
use stoker_core::world::NodeState;
use stoker_core::{Clock, JobId};
use stoker_transfer::NodeKey;
use tokio_util::sync::CancellationToken;

use crate::bed::{self, Way, api, clock};

const DOCKER: &str = "kubernetes.io/dockerconfigjson";

async fn make<K>(api: Api<K>, object: Value)
where
    K: kube::Resource + serde::Serialize + serde::de::DeserializeOwned + Clone + std::fmt::Debug,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

fn login(password: &str) -> Value {
    let entry = json!({"username": "ada", "password": password});
    json!({ ".dockerconfigjson": json!({"auths": {"registry.example": entry}}).to_string() })
}

async fn secret(client: &Client, password: &str) {
    let object = json!({"metadata": {"name": "regcred"}, "type": DOCKER, "stringData": login(password)});
    make(Api::<Secret>::default_namespaced(client.clone()), object).await;
}

/// The agent of a node says what it is.
async fn introduce(client: &Client, name: &str, agent: Value) {
    let preheats: Api<NodePreheat> = Api::all(client.clone());
    let patch = Patch::Merge(json!({ "status": { "agent": agent } }));
    preheats.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

fn agent(key: &NodeKey) -> Value {
    let features = ["look", "resolve", "sealed"];
    let key = key.public().to_string();
    json!({"version": "1", "runtime": "layout", "platform": "linux/amd64", "features": features, "key": key})
}

async fn node(client: &Client, name: &str) -> NodeKey {
    bed::node(client, name).await;
    let key = NodeKey::generate();
    introduce(client, name, agent(&key)).await;
    key
}

/// A job with a Secret, on these nodes.
async fn job(client: &Client, nodes: &[&str]) {
    let image = format!("registry.example/web@sha256:{}", "a".repeat(64));
    let image = json!({"image": image, "pullSecrets": [{"name": "regcred"}]});
    let spec = json!({"images": [image], "nodes": {"names": nodes}});
    make(Api::<Preheat>::default_namespaced(client.clone()), json!({"metadata": {"name": "web"}, "spec": spec})).await;
}

/// Waits until the node's object is so.
async fn until(client: &Client, name: &str, so: impl Fn(&NodePreheat) -> bool + Send) -> NodePreheat {
    let so = move |object: Option<&NodePreheat>| object.is_some_and(&so);
    let object = await_condition(Api::<NodePreheat>::all(client.clone()), name, so);
    tokio::time::timeout(Duration::from_secs(1200), object).await.expect("it never is so").unwrap().unwrap()
}

/// Whether the order of the node names one login, and this key opens it.
fn opens(object: &NodePreheat, key: &NodeKey) -> bool {
    let named: Vec<&String> = object.spec.orders.values().flat_map(|order| &order.logins).collect();
    let login = named.first().and_then(|name| object.spec.logins.get(*name));
    named.len() == 1 && object.spec.logins.len() == 1 && login.is_some_and(|login| key.open(&login.sealed).is_ok())
}

#[tokio::test(start_paused = true)]
async fn a_login_is_sealed_in_the_same_write_for_the_node_that_pulls_and_for_no_other() {
    let clock = clock();
    let client = api(&clock);
    secret(&client, "hunter2").await;
    let (ours, theirs) = (node(&client, "n1").await, node(&client, "n2").await);
    job(&client, &["n1"]).await;
    let cancel = CancellationToken::new();
    let controller = bed::run(bed::settings(&client, &clock, "only"), &cancel);
    let object = until(&client, "n1", |object| !object.spec.orders.is_empty()).await;
    assert!(opens(&object, &ours) && !opens(&object, &theirs), "{object:?}");
    assert_eq!(object.metadata.generation, Some(2), "made, and written once");
    assert!(!serde_json::to_string(&object).unwrap().contains("hunter2"));
    let object = Api::<NodePreheat>::all(client.clone()).get("n2").await.unwrap();
    assert!(object.spec.orders.is_empty() && object.spec.logins.is_empty(), "{object:?}");
    // Another controller knows by the names that nothing has changed.
    cancel.cancel();
    controller.await.unwrap();
    let cancel = CancellationToken::new();
    let controller = bed::run(bed::settings(&client, &clock, "another"), &cancel);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(bed::holder(&client).await.as_deref(), Some("another"));
    let object = Api::<NodePreheat>::all(client.clone()).get("n1").await.unwrap();
    assert_eq!(object.metadata.generation, Some(2));
    cancel.cancel();
    controller.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_node_that_lost_its_key_gets_its_logins_again() {
    let clock = clock();
    let client = api(&clock);
    secret(&client, "hunter2").await;
    let lost = node(&client, "n1").await;
    job(&client, &["n1"]).await;
    let cancel = CancellationToken::new();
    let controller = bed::run(bed::settings(&client, &clock, "only"), &cancel);
    let before = until(&client, "n1", |object| opens(object, &lost)).await;
    // Long after the content was forgotten.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let new = NodeKey::generate();
    introduce(&client, "n1", agent(&new)).await;
    let after = until(&client, "n1", |object| opens(object, &new)).await;
    assert_eq!(after.spec.orders, before.spec.orders, "the order is the same");
    cancel.cancel();
    controller.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_changed_secret_reaches_the_order_within_ten_seconds() {
    let clock = clock();
    let client = api(&clock);
    secret(&client, "old").await;
    let key = node(&client, "n1").await;
    job(&client, &["n1"]).await;
    let cancel = CancellationToken::new();
    let controller = bed::run(bed::settings(&client, &clock, "only"), &cancel);
    let before = until(&client, "n1", |object| opens(object, &key)).await;
    let patch = Patch::Merge(json!({ "stringData": login("new") }));
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    secrets.patch("regcred", &PatchParams::default(), &patch).await.unwrap();
    let old: Vec<String> = before.spec.logins.into_keys().collect();
    let changed = until(&client, "n1", |object| opens(object, &key) && !object.spec.logins.contains_key(&old[0]));
    tokio::time::timeout(Duration::from_secs(10), changed).await.expect("it takes longer");
    cancel.cancel();
    controller.await.unwrap();
}

/// What a controller that may do everything asks of Secrets: those that jobs name, by name. One list is for copies of earlier versions, in
/// Stoker's own namespace and by their label.
#[tokio::test(start_paused = true)]
async fn secrets_are_read_by_name_and_never_listed_or_watched() {
    let clock = clock();
    let client = api(&clock);
    secret(&client, "hunter2").await;
    let other = json!({"metadata": {"name": "other"}, "type": DOCKER, "stringData": login("other")});
    make(Api::<Secret>::default_namespaced(client.clone()), other).await;
    let key = node(&client, "n1").await;
    job(&client, &["n1"]).await;
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = asked.clone();
    let over = bed::over(&client, move |request| {
        if request.uri().path().contains("/secrets") {
            log.lock().unwrap().push(format!("{} {}", request.method(), request.uri()));
        }
        Way::Free
    });
    let cancel = CancellationToken::new();
    let controller = bed::run(bed::settings(&over, &clock, "only"), &cancel);
    until(&client, "n1", |object| opens(object, &key)).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    bed::does_its_orders(&client, "n1", 1).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let all = std::mem::take(&mut *asked.lock().unwrap());
    let (own, named): (Vec<String>, Vec<String>) = all.into_iter().partition(|line| line.contains("/stoker-system/"));
    assert!(own.len() == 1 && own[0].contains("managed-by%3Dstoker"), "{own:?}");
    assert!(named.len() >= 3, "{named:?}");
    for line in &named {
        assert!(line.starts_with("GET /api/v1/namespaces/default/secrets/regcred"), "{line}");
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(asked.lock().unwrap().is_empty(), "the job has ended");
    cancel.cancel();
    controller.await.unwrap();
}

/// The sentence about the first node of the job that `why` would say to somebody who may read no Secret.
async fn why(client: &Client, clock: &Clock) -> String {
    let client = bed::over(client, |request| match request.uri().path().contains("/secrets") {
        true => Way::Refused(403),
        false => Way::Free,
    });
    let mut world = snapshot::take(&client, "default").await.unwrap().world;
    world.plan(clock());
    match &world.nodes(&JobId::new(("stoker.dev", "Preheat"), "default", "web"), clock())[0].state {
        NodeState::Waiting(waiting) => waiting.to_string(),
        NodeState::Failed(reason, message) => format!("{reason}: {message}"),
        other => format!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_the_controller_may_not_read_is_said_in_the_status_and_by_why() {
    let clock = clock();
    let client = api(&clock);
    secret(&client, "hunter2").await;
    node(&client, "n1").await;
    job(&client, &["n1"]).await;
    let over = bed::over(&client, |request| match request.uri().path().contains("/default/secrets") {
        true => Way::Refused(403),
        false => Way::Free,
    });
    let cancel = CancellationToken::new();
    let controller = bed::run(bed::settings(&over, &clock, "only"), &cancel);
    let said = |object: Option<&Preheat>| {
        let status = object.and_then(|object| object.status.as_ref());
        status.is_some_and(|status| status.secrets.iter().any(|secret| secret.reason == "SecretForbidden"))
    };
    let jobs: Api<Preheat> = Api::default_namespaced(client.clone());
    let object = await_condition(jobs, "web", said).await.unwrap().unwrap();
    let secrets = object.status.unwrap().secrets;
    assert_eq!(secrets[0].name, "regcred");
    assert!(secrets[0].message.contains("--secrets-from default"), "{secrets:?}");
    let words = why(&client, &clock).await;
    assert!(words.contains("may not read Secret default/regcred") && words.contains("--secrets-from"), "{words}");
    cancel.cancel();
    controller.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_agent_without_a_key_is_too_old_for_a_login_and_not_for_the_rest() {
    let clock = clock();
    let client = api(&clock);
    secret(&client, "hunter2").await;
    bed::node(&client, "n1").await;
    bed::preheat(&client, "plain").await;
    job(&client, &["n1"]).await;
    let cancel = CancellationToken::new();
    let controller = bed::run(bed::settings(&client, &clock, "only"), &cancel);
    bed::ordered(&client, "n1", 1).await;
    let waits = |object: Option<&Preheat>| {
        let status = object.and_then(|object| object.status.as_ref());
        status.is_some_and(|status| status.waiting_for.iter().any(|wait| wait.reason == "AgentTooOld"))
    };
    await_condition(Api::<Preheat>::default_namespaced(client.clone()), "web", waits).await.unwrap();
    assert!(why(&client, &clock).await.contains("is too old"));
    // A key that is none is as good as none.
    let mut broken = agent(&NodeKey::generate());
    broken["key"] = "no key".into();
    introduce(&client, "n1", broken).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let object = Api::<NodePreheat>::all(client.clone()).get("n1").await.unwrap();
    assert!(object.spec.logins.is_empty() && object.spec.orders.values().all(|order| order.logins.is_empty()));
    let key = NodeKey::generate();
    introduce(&client, "n1", agent(&key)).await;
    until(&client, "n1", |object| opens(object, &key)).await;
    cancel.cancel();
    controller.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn copies_of_earlier_versions_go_when_no_order_names_them() {
    let clock = clock();
    let client = api(&clock);
    let ours: Api<Secret> = Api::namespaced(client.clone(), stoker_api::NAMESPACE);
    let label = json!({"app.kubernetes.io/managed-by": "stoker"});
    for (name, labels) in [("pull-0a", label.clone()), ("pull-of-others", json!({})), ("regcred", label)] {
        make(
            ours.clone(),
            json!({"metadata": {"name": name, "labels": labels}, "type": DOCKER, "stringData": login("p")}),
        )
        .await;
    }
    bed::node(&client, "n1").await;
    bed::preheat(&client, "plain").await;
    let cancel = CancellationToken::new();
    let controller = bed::run(bed::settings(&client, &clock, "only"), &cancel);
    await_condition(ours.clone(), "pull-0a", |copy: Option<&Secret>| copy.is_none()).await.unwrap();
    for name in ["pull-of-others", "regcred"] {
        assert!(ours.get_opt(name).await.unwrap().is_some(), "{name}");
    }
    cancel.cancel();
    controller.await.unwrap();
}
