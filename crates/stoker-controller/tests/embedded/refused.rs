//! An API server that refuses for a while what the controller may see at other times: one that has just started and does not
//! know yet who may what, or a role that is being replaced. What it hides is still there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kube::Client;
use kube::api::{Api, DynamicObject, PostParams};
use serde_json::json;
use stoker_api::native::{NodePreheat, Preheat};
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
        // A watch ends after some minutes, and is not begun anew.
        tokio::time::sleep(Duration::from_secs(600)).await;
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
async fn poisonous(client: &Client, name: &str) {
    let labels: BTreeMap<String, String> = (0..1_100).map(|n| (format!("l{n}"), "x".into())).collect();
    let spec = json!({ "image": format!("registry.example/{name}:v1"), "sandboxConfig": { "labels": labels } });
    let kind = &stoker_api::dialect::kruise::IMAGE_PULL_JOBS;
    let object = json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "metadata": { "name": name }, "spec": spec });
    let api: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &kind.kind.newest());
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_order_that_cannot_be_written_keeps_no_other_from_being_written() {
    let clock = clock();
    let client = api(&clock);
    node(&client, "n1").await;
    poisonous(&client, "bad").await;
    for name in ["a", "z"] {
        preheat(&client, name).await;
    }
    let cancel = CancellationToken::new();
    let leader = bed::run(bed::settings(&client, &clock, "only"), &cancel);
    ordered(&client, "n1", 2).await;
    // What comes later is not in the way of its retries either.
    preheat(&client, "later").await;
    ordered(&client, "n1", 3).await;
    let orders = Api::<NodePreheat>::all(client.clone()).get("n1").await.unwrap().spec.orders;
    assert!(orders.values().all(|order| !order.image.contains("bad")), "{orders:?}");
    cancel.cancel();
    leader.await.unwrap();
}
