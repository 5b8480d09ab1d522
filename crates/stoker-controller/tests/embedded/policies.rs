//! What policies do not allow is held, and nothing new is ordered while they are there and cannot be seen.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Namespace};
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};
use stoker_api::native::{NodePreheat, Preheat, PreheatPolicy};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::bed::{self, Way, api, clock, node, ordered, over, preheat};

const POLICIES: &str = "/preheatpolicies";

async fn policy(client: &Client, name: &str, spec: Value) {
    let object = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    Api::<PreheatPolicy>::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
}

async fn images(client: &Client) -> Vec<String> {
    let orders = Api::<NodePreheat>::all(client.clone()).get("n1").await.unwrap().spec.orders;
    let mut images: Vec<String> = orders.into_values().filter(|order| !order.hold).map(|order| order.image).collect();
    images.sort();
    images
}

/// Waits until the status of a Preheat says this.
async fn says(client: &Client, name: &str, text: &'static str) {
    let job =
        await_condition(Api::<Preheat>::default_namespaced(client.clone()), name, move |job: Option<&Preheat>| {
            let status = job.and_then(|job| job.status.as_ref());
            status.is_some_and(|status| status.message.contains(text))
        });
    let said = tokio::time::timeout(Duration::from_secs(300), job).await;
    said.unwrap_or_else(|_| panic!("{name} never says {text}")).unwrap();
}

async fn events(client: &Client, name: &str) -> Vec<String> {
    let events = Api::<Event>::default_namespaced(client.clone()).list(&Default::default()).await.unwrap();
    let about = events.items.iter().filter(|event| event.involved_object.name.as_deref() == Some(name));
    about.filter_map(|event| event.reason.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn jobs_of_every_kind_are_held_and_say_why_once() {
    let clock = clock();
    let client = api(&clock);
    node(&client, "n1").await;
    let labels = Patch::Merge(json!({"metadata": {"labels": {"team": "a"}}}));
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.patch("default", &PatchParams::default(), &labels).await.unwrap();
    let concerned = json!({"namespaces": {"matchLabels": {"team": "a"}}, "images": ["registry.example/allowed"]});
    policy(&client, "team-a", concerned).await;
    let cancel = CancellationToken::new();
    let leader = bed::run(bed::settings(&client, &clock, "only"), &cancel);
    preheat(&client, "web").await;
    preheat(&client, "allowed").await;
    let kind = &stoker_api::dialect::kruise::IMAGE_PULL_JOBS.kind;
    let job = json!({
        "apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "metadata": {"name": "base"},
        "spec": {"image": "registry.example/base:v1"},
    });
    let jobs: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &kind.newest());
    jobs.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
    ordered(&client, "n1", 1).await;
    let refusal = "PreheatPolicy team-a does not allow this job (spec.images): no pattern matches registry.example/web";
    says(&client, "web", refusal).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(images(&client).await, ["registry.example/allowed:v1"]);
    let status = Api::<Preheat>::default_namespaced(client.clone()).get("web").await.unwrap().status.unwrap();
    let waiting: Vec<(&str, u32)> =
        status.waiting_for.iter().map(|waiting| (waiting.reason.as_str(), waiting.nodes)).collect();
    assert_eq!((status.phase.as_str(), waiting, status.start_time), ("Running", vec![("NotAllowed", 1)], None));
    assert!(status.conditions.iter().all(|condition| condition.reason == "NotAllowed"), "{:?}", status.conditions);
    let held = jobs.get("base").await.unwrap();
    let message = held.data["status"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("PreheatPolicy team-a does not allow this job (spec.images)"), "{message}");
    for name in ["web", "base"] {
        assert_eq!(events(&client, name).await, ["NotAllowed"], "{name}");
    }
    // It goes on by itself.
    namespaces
        .patch("default", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"labels": {"team": "b"}}})))
        .await
        .unwrap();
    ordered(&client, "n1", 3).await;
    says(&client, "web", "0 of 1 nodes done").await;
    assert_eq!(events(&client, "web").await, ["NotAllowed", "Started"]);
    cancel.cancel();
    leader.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_job_that_runs_is_held_by_a_policy_that_comes_and_goes_on_when_the_policy_goes() {
    let clock = clock();
    let client = api(&clock);
    node(&client, "n1").await;
    let cancel = CancellationToken::new();
    let leader = bed::run(bed::settings(&client, &clock, "only"), &cancel);
    preheat(&client, "web").await;
    ordered(&client, "n1", 1).await;
    policy(&client, "nothing", json!({"max": {"jobs": 0}})).await;
    says(&client, "web", "PreheatPolicy nothing does not allow this job (spec.max.jobs)").await;
    assert_eq!(images(&client).await, [""; 0]);
    Api::<PreheatPolicy>::all(client.clone()).delete("nothing", &Default::default()).await.unwrap();
    ordered(&client, "n1", 1).await;
    says(&client, "web", "0 of 1 nodes done, 0 pulling, 1 waiting").await;
    cancel.cancel();
    leader.await.unwrap();
}

/// A policy cannot be seen, and it is there.
#[tokio::test(start_paused = true)]
async fn while_policies_cannot_be_listed_nothing_new_is_ordered() {
    for (path, code) in [(POLICIES, 403), (POLICIES, 404), (POLICIES, 500), ("/api/v1/namespaces", 403)] {
        let clock = clock();
        let client = api(&clock);
        node(&client, "n1").await;
        policy(&client, "all", json!({"namespaces": {}, "images": ["registry.example/*"]})).await;
        let (refuse, refused) = watch::channel(true);
        let blind = over(&client, move |request| match request.uri().path().ends_with(path) && *refused.borrow() {
            true => Way::Refused(code),
            false => Way::Free,
        });
        let cancel = CancellationToken::new();
        let leader = bed::run(bed::settings(&blind, &clock, "only"), &cancel);
        preheat(&client, "web").await;
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!(images(&client).await, [""; 0], "{path} {code}");
        refuse.send(false).unwrap();
        ordered(&client, "n1", 1).await;
        cancel.cancel();
        leader.await.unwrap();
    }
}

/// After an upgrade of the controller alone its role does not name the kind either.
#[tokio::test(start_paused = true)]
async fn where_the_kind_is_not_installed_everything_is_allowed() {
    for code in [403, 404] {
        let clock = clock();
        let crds = stoker_api::crds().into_iter().filter(|(file, _)| *file != "stoker-preheatpolicies");
        let crds = crds.map(|(_, crd)| serde_json::to_value(crd).unwrap()).collect();
        let settings = stoker_embedded::Settings::new(crds, clock.clone());
        let client = stoker_embedded::Api::new(settings).unwrap().client("default");
        node(&client, "n1").await;
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = asked.clone();
        let without = over(&client, move |request| {
            seen.lock().unwrap().push(request.uri().path().to_owned());
            if request.uri().path().ends_with(POLICIES) { Way::Refused(code) } else { Way::Free }
        });
        let cancel = CancellationToken::new();
        let leader = bed::run(bed::settings(&without, &clock, "only"), &cancel);
        preheat(&client, "web").await;
        ordered(&client, "n1", 1).await;
        cancel.cancel();
        leader.await.unwrap();
        let asked = asked.lock().unwrap();
        assert!(!asked.iter().any(|path| path == "/api/v1/namespaces"), "nobody goes by labels of namespaces");
    }
}

/// Registries are compared in small letters: such a pattern would match nothing, and nobody would see why.
#[tokio::test(start_paused = true)]
async fn a_pattern_with_capital_letters_is_refused() {
    let client = api(&clock());
    let policies = Api::<PreheatPolicy>::all(client.clone());
    for (pattern, good) in [
        ("ghcr.io/acme/*", true),
        ("**", true),
        ("**/web", true),
        ("reg.test:5000/*", true),
        ("GHCR.io/acme/*", false),
        ("ghcr.io/Acme/*", false),
        ("**/Web", false),
        ("nginx", false),
    ] {
        let object = json!({"metadata": {"name": "p"}, "spec": {"images": [pattern]}});
        let made = policies.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await;
        assert_eq!(made.is_ok(), good, "{pattern}");
        if good {
            policies.delete("p", &Default::default()).await.unwrap();
        }
    }
}
