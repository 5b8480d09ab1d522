//! Two controllers: one leads, the other takes over.

use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::wait::await_condition;
use kube::{Client, ResourceExt as _};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::json;
use stoker_api::native::{NodePreheat, Preheat};
use stoker_controller::{Metrics, Settings};
use stoker_core::Clock;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::bed::{self, Way, api, clock, holder, node, ordered, preheat};

fn controller(client: &Client, clock: &Clock, identity: &str, cancel: &CancellationToken) -> JoinHandle<()> {
    metered(client, clock, identity, &Metrics::new(), cancel)
}

fn metered(
    client: &Client,
    clock: &Clock,
    identity: &str,
    metrics: &Metrics,
    cancel: &CancellationToken,
) -> JoinHandle<()> {
    bed::run(Settings { metrics: metrics.clone(), ..bed::settings(client, clock, identity) }, cancel)
}

/// A node, a job, and a controller that has given the node its order.
async fn led_by(identity: &str) -> (Clock, Client, CancellationToken, JoinHandle<()>) {
    let clock = clock();
    let client = api(&clock);
    node(&client, "n1").await;
    let cancel = CancellationToken::new();
    let leader = controller(&client, &clock, identity, &cancel);
    preheat(&client, "one").await;
    assert_eq!(ordered(&client, "n1", 1).await, 1);
    (clock, client, cancel, leader)
}

#[tokio::test(start_paused = true)]
async fn the_second_takes_over_with_a_higher_epoch_when_the_first_is_gone() {
    let (clock, client, cancel, first) = led_by("first").await;
    let second = controller(&client, &clock, "second", &cancel);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(holder(&client).await.as_deref(), Some("first"), "as long as it renews");
    first.abort();
    preheat(&client, "two").await;
    let epoch = ordered(&client, "n1", 2).await;
    assert!(epoch > 1, "{epoch}");
    assert_eq!(holder(&client).await.as_deref(), Some("second"));
    cancel.cancel();
    second.await.unwrap();
    assert_eq!(holder(&client).await, None, "one that stops gives the lease back");
}

/// The samples that are not zero, of those that say who leads what.
fn leads(metrics: &Metrics) -> Vec<String> {
    let (mut registry, mut text) = (Registry::default(), String::new());
    metrics.register(&mut registry);
    encode(&mut text, &registry).unwrap();
    let wanted = |line: &&str| ["_leader ", "_jobs{", "_nodes{"].iter().any(|part| line.contains(part));
    text.lines()
        .filter(wanted)
        .filter(|line| !line.starts_with('#') && !line.ends_with(" 0"))
        .map(str::to_string)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn both_are_healthy_and_ready_for_as_long_as_nothing_happens_and_only_one_counts_jobs() {
    let clock = clock();
    let client = api(&clock);
    node(&client, "n1").await;
    let cancel = CancellationToken::new();
    let (one, two) = (Metrics::new(), Metrics::new());
    let first = metered(&client, &clock, "first", &one, &cancel);
    preheat(&client, "one").await;
    ordered(&client, "n1", 1).await;
    let second = metered(&client, &clock, "second", &two, &cancel);
    tokio::time::sleep(Duration::from_secs(290)).await;
    for metrics in [&one, &two] {
        assert_eq!((metrics.healthy(), metrics.ready()), (Ok(()), Ok(())));
    }
    let led = [
        "stoker_controller_leader 1",
        "stoker_controller_jobs{stage=\"Running\"} 1",
        "stoker_controller_nodes{state=\"waiting\"} 1",
    ];
    assert_eq!(leads(&one), led);
    assert_eq!(leads(&two), Vec::<String>::new());
    first.abort();
    tokio::time::sleep(Duration::from_secs(65)).await;
    assert!(one.healthy().is_err() && one.ready().is_err(), "it is gone");
    assert_eq!((two.healthy(), two.ready()), (Ok(()), Ok(())));
    assert_eq!(leads(&one), Vec::<String>::new());
    assert_eq!(leads(&two), led);
    cancel.cancel();
    second.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn events_tell_the_start_and_the_end_once() {
    let clock = clock();
    let client = api(&clock);
    let cancel = CancellationToken::new();
    let first = controller(&client, &clock, "same", &cancel);
    // Nothing to do is no success: it waits for a node, and fails at its deadline.
    let spec = json!({"images": [{"image": "registry.example/none:v1"}], "completion": {"deadline": "60s"}});
    let object = serde_json::from_value(json!({"metadata": {"name": "none"}, "spec": spec})).unwrap();
    let preheats: Api<Preheat> = Api::default_namespaced(client.clone());
    preheats.create(&Default::default(), &object).await.unwrap();
    let waits = |object: Option<&Preheat>| {
        let status = object.and_then(|object| object.status.as_ref());
        status.is_some_and(|status| {
            let complete = status.conditions.iter().find(|condition| condition.kind == "Complete").unwrap();
            status.phase == "Running" && (complete.status.as_str(), complete.reason.as_str()) == ("False", "NoNodes")
        })
    };
    await_condition(preheats.clone(), "none", waits).await.unwrap();
    let ended = |object: Option<&Preheat>| {
        object.and_then(|object| object.status.as_ref()).is_some_and(|status| status.completion_time.is_some())
    };
    await_condition(preheats, "none", ended).await.unwrap();
    first.abort();
    let second = controller(&client, &clock, "same", &cancel);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let events = Api::<Event>::default_namespaced(client.clone()).list(&Default::default()).await.unwrap();
    let told: Vec<&str> = events.items.iter().filter_map(|event| event.reason.as_deref()).collect();
    assert_eq!(told, ["Failed", "NoNodes"], "each once, by name; nothing ever started");
    assert_eq!(events.items[0].involved_object.name.as_deref(), Some("none"));
    cancel.cancel();
    second.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_sees_a_higher_epoch_steps_down_and_the_schema_holds_the_others() {
    let (_, client, cancel, leader) = led_by("old").await;
    let preheats: Api<NodePreheat> = Api::all(client.clone());
    let epoch = |epoch: i64| Patch::Merge(json!({"spec": {"epoch": epoch}}));
    preheats.patch("n1", &PatchParams::default(), &epoch(7)).await.unwrap();
    for lower in [epoch(6), Patch::Merge(json!({"spec": {"epoch": null}}))] {
        let refused = preheats.patch("n1", &PatchParams::default(), &lower).await.unwrap_err();
        assert!(refused.to_string().contains("epoch may neither fall nor vanish"), "{refused}");
    }
    preheat(&client, "two").await;
    assert_eq!(ordered(&client, "n1", 2).await, 8, "it leads again, above all that was seen");
    cancel.cancel();
    leader.await.unwrap();
    assert_eq!(preheats.get("n1").await.unwrap().name_any(), "n1");
}

/// The same API over a way on which nothing is answered while `cut` is true; what was sent then is never answered.
fn hanging(client: &Client, cut: watch::Receiver<bool>) -> Client {
    bed::over(client, move |_| if *cut.borrow() { Way::Cut } else { Way::Free })
}

#[tokio::test(start_paused = true)]
async fn a_candidate_stays_healthy_while_the_api_hangs_and_leads_when_it_answers() {
    let clock = clock();
    let client = api(&clock);
    let (cut, is_cut) = watch::channel(true);
    let metrics = Metrics::new();
    let cancel = CancellationToken::new();
    let candidate = metered(&hanging(&client, is_cut), &clock, "only", &metrics, &cancel);
    for _ in 0..40 {
        tokio::time::sleep(Duration::from_secs(15)).await;
        assert_eq!(metrics.healthy(), Ok(()));
        assert!(metrics.ready().is_err());
    }
    cut.send(false).unwrap();
    node(&client, "n1").await;
    preheat(&client, "one").await;
    assert_eq!(ordered(&client, "n1", 1).await, 1);
    assert_eq!(holder(&client).await.as_deref(), Some("only"));
    cancel.cancel();
    candidate.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_standby_whose_watch_hangs_takes_over_all_the_same() {
    let (clock, client, cancel, first) = led_by("first").await;
    let (cut, is_cut) = watch::channel(true);
    let metrics = Metrics::new();
    let second = metered(&hanging(&client, is_cut), &clock, "second", &metrics, &cancel);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(holder(&client).await.as_deref(), Some("first"));
    cut.send(false).unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!((metrics.healthy(), metrics.ready()), (Ok(()), Ok(())), "it has seen who leads");
    first.abort();
    preheat(&client, "two").await;
    assert_eq!(ordered(&client, "n1", 2).await, 2);
    assert_eq!(holder(&client).await.as_deref(), Some("second"));
    cancel.cancel();
    second.await.unwrap();
}
