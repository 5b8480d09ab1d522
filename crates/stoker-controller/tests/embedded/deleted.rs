//! Objects that are deleted, or written by others, while a write of the controller is under way: what is gone stays gone, and
//! what is there gets what it should.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::ready;
use http::Method;
use k8s_openapi::api::core::v1::Event;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use kube::client::Body;
use kube::runtime::wait::await_condition;
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::{Value, json};
use stoker_api::JobKind;
use stoker_api::native::NodePreheat;
use stoker_controller::Settings;
use tokio_util::sync::CancellationToken;

use crate::bed::{self, Way, api, clock, does_its_orders, node, ordered, over, preheat};

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// The kinds whose objects are one job each.
const KINDS: [&JobKind; 2] = [&stoker_api::native::PREHEATS, &stoker_api::dialect::kruise::IMAGE_PULL_JOBS];

/// A job of any kind for all nodes, one at a time.
async fn make(client: &Client, kind: &JobKind, name: &str, image: &str) {
    let image = format!("registry.example/{image}:v1");
    let spec = match kind.kind.name {
        "Preheat" => json!({"images": [{"image": image}], "pace": {"parallelism": 1}}),
        _ => json!({"image": image, "parallelism": 1, "completionPolicy": {"type": "Always"}}),
    };
    let resource = kind.kind.newest();
    let mut object = DynamicObject::new(name, &resource);
    object.data = json!({ "spec": spec });
    jobs(client, kind).create(&PostParams::default(), &object).await.unwrap();
}

fn jobs(client: &Client, kind: &JobKind) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), "default", &kind.kind.newest())
}

/// Waits until the job has a status that is so.
async fn becomes(client: &Client, kind: &JobKind, is: impl Fn(&Value) -> bool) {
    let status = |object: Option<&DynamicObject>| {
        let status = object.and_then(|object| object.data.get("status"));
        status.is_some_and(|status| !status.is_null() && is(status))
    };
    let changed = await_condition(jobs(client, kind), "web", status);
    let changed = tokio::time::timeout(Duration::from_secs(600), changed).await;
    assert!(changed.is_ok(), "{} was never told", kind.kind.name);
}

fn ended(status: &Value) -> bool {
    !status["completionTime"].is_null() && status["succeeded"] == 1
}

/// The images that the nodes are ordered to pull.
async fn ordered_images(client: &Client) -> Vec<String> {
    let nodes = Api::<NodePreheat>::all(client.clone()).list(&Default::default()).await.unwrap().items;
    nodes.into_iter().flat_map(|node| node.spec.orders.into_values()).map(|order| order.image).collect()
}

fn writes_status_of_a_job(request: &http::Request<Body>) -> bool {
    let path = request.uri().path();
    request.method() == Method::PATCH && path.ends_with("/status") && !path.contains("/nodepreheats/")
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_deleted_before_its_status_write_is_answered_stays_gone() {
    for kind in KINDS {
        let clock = clock();
        let client = api(&clock);
        for name in NODES {
            node(&client, name).await;
        }
        let way = |request: &http::Request<Body>| match writes_status_of_a_job(request) {
            true => Way::Late(Duration::from_secs(5)),
            false => Way::Free,
        };
        let cancel = CancellationToken::new();
        let leader = bed::run(bed::settings(&over(&client, way), &clock, "only"), &cancel);
        make(&client, kind, "web", "web").await;
        ordered(&client, "n1", 1).await;
        // Written, and not answered.
        becomes(&client, kind, |_| true).await;
        jobs(&client, kind).delete("web", &DeleteParams::default()).await.unwrap();
        ordered(&client, "n1", 0).await;
        for _ in 0..60 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(ordered_images(&client).await, Vec::<String>::new(), "{} is gone", kind.kind.name);
        }
        cancel.cancel();
        leader.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_for_a_job_that_was_deleted_says_nothing_of_the_next_one_of_its_name() {
    for kind in KINDS {
        let clock = clock();
        let client = api(&clock);
        node(&client, "n1").await;
        let way = |request: &http::Request<Body>| match writes_status_of_a_job(request) {
            true => Way::Late(Duration::from_secs(5)),
            false => Way::Free,
        };
        let cancel = CancellationToken::new();
        let leader = bed::run(bed::settings(&over(&client, way), &clock, "only"), &cancel);
        make(&client, kind, "web", "old").await;
        becomes(&client, kind, |_| true).await;
        jobs(&client, kind).delete("web", &DeleteParams::default()).await.unwrap();
        make(&client, kind, "web", "new").await;
        let orders = watcher(Api::<NodePreheat>::all(client.clone()), Default::default()).applied_objects();
        let images = orders.map(|node| node.unwrap().spec.orders.into_values().map(|order| order.image).collect());
        let mut later = pin!(images.skip_while(|images: &Vec<String>| ready(*images != ["registry.example/new:v1"])));
        later.next().await;
        // Beyond the answer for the old one, and one for the new.
        let calm = tokio::time::sleep(Duration::from_secs(60));
        let changed = later.take_until(calm).collect::<Vec<_>>().await;
        assert!(changed.iter().all(|images| *images == ["registry.example/new:v1"]), "{}: {changed:?}", kind.kind.name);
        does_its_orders(&client, "n1", 1).await;
        becomes(&client, kind, ended).await;
        cancel.cancel();
        leader.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_that_are_deleted_as_soon_as_they_are_made_leave_no_order() {
    let clock = clock();
    let client = api(&clock);
    for name in NODES {
        node(&client, name).await;
    }
    // As a socket has it: now an answer is first, now what a watch says.
    let count = AtomicUsize::new(0);
    let way = move |request: &http::Request<Body>| match request.method() == Method::PATCH {
        true => Way::Late(Duration::from_millis(count.fetch_add(7, Ordering::Relaxed) as u64 % 20)),
        false => Way::Free,
    };
    let settings = bed::settings(&over(&client, way), &clock, "only");
    let limits = stoker_controller::Limits { writes_per_second: 1000, at_once: 32 };
    let cancel = CancellationToken::new();
    let leader = bed::run(Settings { limits, ..settings }, &cancel);
    let made = (0..100u64).map(|number| {
        let client = client.clone();
        async move {
            let (kind, name) = (KINDS[number as usize % KINDS.len()], format!("job-{number}"));
            tokio::time::sleep(Duration::from_millis(10 * number)).await;
            make(&client, kind, &name, &name).await;
            tokio::time::sleep(Duration::from_millis(number * 13 % 50)).await;
            jobs(&client, kind).delete(&name, &DeleteParams::default()).await.unwrap();
        }
    });
    futures::future::join_all(made).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(ordered_images(&client).await, Vec::<String>::new());
    cancel.cancel();
    leader.await.unwrap();
}

/// An agent whose object is deleted while an order is on its way there is gone, whatever that write is answered.
#[tokio::test(start_paused = true)]
async fn an_agent_that_is_gone_does_not_come_back_with_a_late_answer() {
    let clock = clock();
    let client = api(&clock);
    node(&client, "n1").await;
    let way = |request: &http::Request<Body>| {
        let orders = request.method() == Method::PATCH && request.uri().path().ends_with("/nodepreheats/n1");
        if orders { Way::Late(Duration::from_secs(5)) } else { Way::Free }
    };
    let cancel = CancellationToken::new();
    let leader = bed::run(bed::settings(&over(&client, way), &clock, "only"), &cancel);
    preheat(&client, "web").await;
    ordered(&client, "n1", 1).await;
    Api::<NodePreheat>::all(client.clone()).delete("n1", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let web = jobs(&client, &stoker_api::native::PREHEATS).get("web").await.unwrap();
    assert_eq!(web.data["status"]["waitingFor"][0]["reason"], "NoAgent", "{:#}", web.data["status"]);
    cancel.cancel();
    leader.await.unwrap();
}

/// The first write of each of these meets others that write at the same time: the API server gives up after some tries.
#[tokio::test(start_paused = true)]
async fn a_write_that_met_with_contention_is_written_again() {
    for kind in KINDS {
        let clock = clock();
        let client = api(&clock);
        node(&client, "n1").await;
        let refused = Arc::new(std::sync::Mutex::new(std::collections::BTreeSet::new()));
        let (met, plural) = (refused.clone(), kind.kind.newest().plural);
        let way = move |request: &http::Request<Body>| {
            let path = request.uri().path().to_string();
            let contended = match *request.method() {
                Method::PATCH => path.ends_with("/nodepreheats/n1") || path.contains(&format!("/{plural}/")),
                Method::POST => path.ends_with("/events"),
                _ => false,
            };
            let first = contended && met.lock().unwrap().insert(path);
            if first { Way::Refused(409) } else { Way::Free }
        };
        let cancel = CancellationToken::new();
        let leader = bed::run(bed::settings(&over(&client, way), &clock, "only"), &cancel);
        make(&client, kind, "web", "web").await;
        does_its_orders(&client, "n1", 1).await;
        becomes(&client, kind, ended).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let events = Api::<Event>::default_namespaced(client.clone()).list(&Default::default()).await.unwrap();
        let told = events.items.iter().map(|event| event.reason.clone().unwrap_or_default());
        assert_eq!(told.collect::<Vec<_>>(), ["Started", "Succeeded"], "{}", kind.kind.name);
        assert_eq!(refused.lock().unwrap().len(), 3, "{}: each met with it", kind.kind.name);
        cancel.cancel();
        leader.await.unwrap();
    }
}

/// Whoever else writes the status at the end, the last word is the controller's.
#[tokio::test(start_paused = true)]
async fn a_final_status_that_met_with_contention_is_not_lost() {
    for kind in KINDS {
        let clock = clock();
        let client = api(&clock);
        node(&client, "n1").await;
        let (refuse, refused) = tokio::sync::watch::channel(false);
        let way = move |request: &http::Request<Body>| match writes_status_of_a_job(request) && *refused.borrow() {
            true => Way::Refused(409),
            false => Way::Free,
        };
        let cancel = CancellationToken::new();
        let leader = bed::run(bed::settings(&over(&client, way), &clock, "only"), &cancel);
        make(&client, kind, "web", "web").await;
        becomes(&client, kind, |_| true).await;
        refuse.send(true).unwrap();
        does_its_orders(&client, "n1", 1).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        refuse.send(false).unwrap();
        becomes(&client, kind, ended).await;
        cancel.cancel();
        leader.await.unwrap();
    }
}
