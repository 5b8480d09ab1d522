//! An API server that refuses for a while what the controller may see at other times: one that has just started and does not
//! know yet who may what, or a role that is being replaced. What it hides is still there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kube::Client;
use kube::api::{Api, DynamicObject, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::json;
use stoker_api::native::{NodePreheat, Preheat};
use stoker_core::Clock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::bed::{self, Way, api, clock, holder, node, ordered, over, preheat};

/// What a controller must see to plan rightly.
const LISTS: [&str; 3] =
    ["/api/v1/nodes", "/apis/stoker.dev/v1alpha1/preheats", "/apis/stoker.dev/v1alpha1/nodepreheats"];

/// Lists and watches of this path are forbidden while `refused` is true.
fn without(client: &Client, path: &'static str, refused: watch::Receiver<bool>) -> Client {
    over(client, move |request| match request.uri().path() == path && *refused.borrow() {
        true => Way::Refused(403),
        false => Way::Free,
    })
}

/// Whether it lists jobs. Without these the others go on.
fn is_of_jobs(path: &str) -> bool {
    path.ends_with("/preheats")
}

/// The order of `one` is there, and `one` has not ended.
async fn goes_on(client: &Client, path: &str) {
    let orders = Api::<NodePreheat>::all(client.clone()).get("n1").await.unwrap().spec.orders;
    assert_eq!(orders.len(), 1, "{path}: the order was withdrawn");
    let job = Api::<Preheat>::default_namespaced(client.clone()).get("one").await.unwrap();
    assert_eq!(job.status.and_then(|status| status.completion_time), None, "{path}: the job has ended");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_refused_to_a_new_leader_ends_nothing() {
    for path in LISTS {
        let clock = clock();
        let client = api(&clock);
        node(&client, "n1").await;
        let cancel = CancellationToken::new();
        let first = bed::run(bed::settings(&client, &clock, "same"), &cancel);
        preheat(&client, "one").await;
        ordered(&client, "n1", 1).await;
        first.abort();
        let (refuse, refused) = watch::channel(true);
        let settings = bed::settings(&without(&client, path, refused), &clock, "same");
        let metrics = settings.metrics.clone();
        let second = bed::run(settings, &cancel);
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!(
            metrics.ready().is_ok(),
            is_of_jobs(path),
            "{path}: without jobs of one kind it goes on with others"
        );
        goes_on(&client, path).await;
        refuse.send(false).unwrap();
        preheat(&client, "two").await;
        assert_eq!(ordered(&client, "n1", 2).await, 2, "{path}");
        assert_eq!(metrics.ready(), Ok(()), "{path}");
        cancel.cancel();
        second.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_refused_to_the_leader_withdraws_nothing() {
    for path in LISTS {
        let clock = clock();
        let client = api(&clock);
        node(&client, "n1").await;
        let (refuse, refused) = watch::channel(false);
        let settings = bed::settings(&without(&client, path, refused), &clock, "only");
        let (cancel, metrics) = (CancellationToken::new(), settings.metrics.clone());
        let leader = bed::run(settings, &cancel);
        preheat(&client, "one").await;
        ordered(&client, "n1", 1).await;
        refuse.send(true).unwrap();
        // A watch ends after 290 s, and is not begun anew. A node that says nothing for 600 s would fail the job.
        tokio::time::sleep(Duration::from_secs(400)).await;
        assert_eq!(metrics.ready().is_ok(), is_of_jobs(path), "{path}");
        goes_on(&client, path).await;
        refuse.send(false).unwrap();
        preheat(&client, "two").await;
        assert_eq!(ordered(&client, "n1", 2).await, 1, "{path}: it led all the time");
        cancel.cancel();
        leader.await.unwrap();
    }
}

/// Nobody holds a lease that cannot be made, so there is nothing to wait for but time.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_refused_is_asked_for_now_and_then_until_it_is_given() {
    for code in [403, 404] {
        let clock = clock();
        let client = api(&clock);
        let (refuse, refused) = watch::channel(true);
        let tries = Arc::new(AtomicUsize::new(0));
        let counted = tries.clone();
        let way = move |request: &http::Request<kube::client::Body>| {
            let makes = request.method() == http::Method::POST && request.uri().path().ends_with("/leases");
            counted.fetch_add(usize::from(makes), Ordering::Relaxed);
            if makes && *refused.borrow() { Way::Refused(code) } else { Way::Free }
        };
        let cancel = CancellationToken::new();
        let candidate = bed::run(bed::settings(&over(&client, way), &clock, "only"), &cancel);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let tried = tries.load(Ordering::Relaxed);
        assert!((2..=61).contains(&tried), "{tried} times in a minute");
        refuse.send(false).unwrap();
        node(&client, "n1").await;
        preheat(&client, "one").await;
        ordered(&client, "n1", 1).await;
        assert_eq!(holder(&client).await.as_deref(), Some("only"));
        cancel.cancel();
        candidate.await.unwrap();
    }
}

/// Another project's kind has no bounds where NodePreheats have some.
async fn with_labels(client: &Client, name: &str, count: usize) {
    let labels: BTreeMap<String, String> = (0..count).map(|n| (format!("l{n}"), "x".into())).collect();
    let spec = json!({ "image": format!("registry.example/{name}:v1"), "sandboxConfig": { "labels": labels } });
    let kind = &stoker_api::dialect::kruise::IMAGE_PULL_JOBS;
    let object = json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "metadata": { "name": name }, "spec": spec });
    let api: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &kind.kind.newest());
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

/// An API whose NodePreheats have less room than this version of the controller knows, as after a newer one was taken back.
fn strict_api(clock: &Clock) -> Client {
    let crds = stoker_api::crds().into_iter().map(|(_, crd)| {
        let mut crd = serde_json::to_value(crd).unwrap();
        let order = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/orders/additionalProperties";
        if let Some(labels) = crd.pointer_mut(&format!("{order}/properties/sandbox/properties/labels")) {
            labels["maxItems"] = json!(10);
        }
        crd
    });
    stoker_embedded::Api::new(stoker_embedded::Settings::new(crds.collect(), clock.clone())).unwrap().client("default")
}

#[tokio::test(start_paused = true)]
async fn what_no_node_can_be_told_makes_no_order_and_its_job_says_so() {
    let clock = clock();
    let client = api(&clock);
    node(&client, "n1").await;
    with_labels(&client, "bad", 1_030).await;
    preheat(&client, "good").await;
    let cancel = CancellationToken::new();
    let leader = bed::run(bed::settings(&client, &clock, "only"), &cancel);
    ordered(&client, "n1", 1).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let orders = Api::<NodePreheat>::all(client.clone()).get("n1").await.unwrap().spec.orders;
    assert!(orders.values().all(|order| !order.image.contains("bad")), "{orders:?}");
    let kind = &stoker_api::dialect::kruise::IMAGE_PULL_JOBS.kind;
    let jobs: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &kind.newest());
    let message = jobs.get("bad").await.unwrap().data["status"]["message"].clone();
    let said = "spec.sandboxConfig.labels has 1030 entries, and a node is told at most 64; remove some";
    assert!(message.as_str().is_some_and(|message| message.starts_with(said)), "{message}");
    // As many as a node can be told are told.
    with_labels(&client, "most", 64).await;
    ordered(&client, "n1", 2).await;
    cancel.cancel();
    leader.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_order_that_cannot_be_written_keeps_no_other_from_being_written() {
    let clock = clock();
    let client = strict_api(&clock);
    node(&client, "n1").await;
    with_labels(&client, "bad", 20).await;
    for name in ["a", "z"] {
        preheat(&client, name).await;
    }
    let cancel = CancellationToken::new();
    let written = Arc::new(AtomicUsize::new(0));
    let counted = written.clone();
    let over = over(&client, move |request| {
        let is_order = request.method() == http::Method::PATCH && request.uri().path().ends_with("/nodepreheats/n1");
        counted.fetch_add(usize::from(is_order), Ordering::Relaxed);
        Way::Free
    });
    let leader = bed::run(bed::settings(&over, &clock, "only"), &cancel);
    ordered(&client, "n1", 2).await;
    // What comes later is not in the way of its retries either.
    preheat(&client, "later").await;
    ordered(&client, "n1", 3).await;
    let orders = Api::<NodePreheat>::all(client.clone()).get("n1").await.unwrap().spec.orders;
    assert!(orders.values().all(|order| !order.image.contains("bad")), "{orders:?}");
    // Its job is told, and it costs a few requests.
    let kind = &stoker_api::dialect::kruise::IMAGE_PULL_JOBS.kind;
    let jobs: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &kind.newest());
    let told = |job: Option<&DynamicObject>| {
        let message = job.and_then(|job| job.data["status"]["message"].as_str()).unwrap_or_default();
        message.contains("the API server refuses the order of registry.example/bad:v1 for node n1")
    };
    await_condition(jobs.clone(), "bad", told).await.unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let requests = written.load(Ordering::Relaxed);
    assert!(requests <= 24, "{requests} writes of one node in ten minutes");
    // When it is another one it is written at once.
    jobs.delete("bad", &Default::default()).await.unwrap();
    with_labels(&client, "bad", 5).await;
    let has = |object: Option<&NodePreheat>| {
        object.is_some_and(|object| object.spec.orders.values().any(|order| order.image.contains("bad")))
    };
    let written = await_condition(Api::<NodePreheat>::all(client.clone()), "n1", has);
    tokio::time::timeout(Duration::from_secs(20), written).await.expect("it is tried").unwrap();
    cancel.cancel();
    leader.await.unwrap();
}

/// As an agent can have it that fills its own object.
#[tokio::test(start_paused = true)]
async fn a_node_whose_object_takes_no_more_keeps_no_order_from_another() {
    let clock = clock();
    let client = api(&clock);
    for name in ["n1", "n2"] {
        node(&client, name).await;
    }
    let over = over(&client, |request| {
        let is_full = request.method() == http::Method::PATCH && request.uri().path().ends_with("/nodepreheats/n1");
        if is_full { Way::Refused(413) } else { Way::Free }
    });
    let cancel = CancellationToken::new();
    let leader = bed::run(bed::settings(&over, &clock, "only"), &cancel);
    for number in 1..=20 {
        preheat(&client, &format!("web-{number}")).await;
    }
    ordered(&client, "n2", 20).await;
    assert_eq!(Api::<NodePreheat>::all(client.clone()).get("n1").await.unwrap().spec.orders.len(), 0);
    let told = |job: Option<&Preheat>| {
        let warnings = job.and_then(|job| job.status.as_ref()).map(|status| status.warnings.join(" "));
        warnings.is_some_and(|warnings| warnings.contains("refuses the order of registry.example/web-1:v1 for node n1"))
    };
    await_condition(Api::<Preheat>::default_namespaced(client.clone()), "web-1", told).await.unwrap();
    cancel.cancel();
    leader.await.unwrap();
}
