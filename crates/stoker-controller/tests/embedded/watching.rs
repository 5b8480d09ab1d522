//! Watches that break: they go on where they were, and nothing is planned before what was missed is heard.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::client::Body;
use kube::runtime::wait::await_condition;
use serde_json::json;
use stoker_api::native::{NodePreheat, Preheat};
use stoker_controller::Metrics;
use stoker_core::Clock;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::bed::{self, Line, Way, api, clock, does_its_orders, node, ordered, over_line, preheat};

const NODE_PREHEATS: &str = "/apis/stoker.dev/v1alpha1/nodepreheats";
const NODE_IMAGES: &str = "/apis/apps.kruise.io/v1beta1/nodeimages";
const NODE_IMAGE_SETS: &str = "/apis/ofen.cybozu.io/v1/nodeimagesets";

/// How often each path was listed, and how often it was watched.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<BTreeMap<(bool, String), usize>>>);

impl Asked {
    fn note(&self, request: &http::Request<Body>) {
        // One by its name is no list, and neither is the Lease, which is watched by other means.
        let path = request.uri().path();
        if request.method() == Method::GET && !path.contains("/leases") {
            *self.0.lock().unwrap().entry((watches(request), path.into())).or_default() += 1;
        }
    }

    fn of(&self, watched: bool) -> BTreeMap<String, usize> {
        let all = self.0.lock().unwrap();
        all.iter().filter(|((is, _), _)| *is == watched).map(|((_, path), count)| (path.clone(), *count)).collect()
    }

    fn lists(&self) -> BTreeMap<String, usize> {
        self.of(false)
    }
}

fn watches(request: &http::Request<Body>) -> bool {
    request.uri().query().is_some_and(|query| query.contains("watch=true"))
}

/// A leader whose connections can be cut, and whose watches of NodePreheats fare as it is told.
struct Led {
    clock: Clock,
    client: Client,
    line: Line,
    asked: Asked,
    /// What becomes of new watches of NodePreheats: they are refused with this code, or told that they are too old.
    watches: watch::Sender<Option<u16>>,
    metrics: Metrics,
    cancel: CancellationToken,
    leader: JoinHandle<()>,
}

impl Led {
    async fn start() -> Self {
        let clock = clock();
        let client = api(&clock);
        node(&client, "n1").await;
        let (line, asked) = (Line::default(), Asked::default());
        let (watches_sender, fate) = watch::channel(None);
        let noting = asked.clone();
        let way = move |request: &http::Request<Body>| {
            noting.note(request);
            match *fate.borrow() {
                _ if !watches(request) || request.uri().path() != NODE_PREHEATS => Way::Free,
                // What a watch missed does not come together with the answer that it has begun.
                None => Way::Slow(Duration::from_millis(500)),
                Some(410) => Way::Expired,
                Some(code) => Way::Refused(code),
            }
        };
        let settings = bed::settings(&over_line(&client, &line, way), &clock, "only");
        let (cancel, metrics) = (CancellationToken::new(), settings.metrics.clone());
        let leader = bed::run(settings, &cancel);
        preheat(&client, "one").await;
        assert_eq!(ordered(&client, "n1", 1).await, 1);
        Self { clock, client, line, asked, watches: watches_sender, metrics, cancel, leader }
    }

    /// Cuts all connections; new watches of NodePreheats are refused with this code.
    async fn cut(&self, refused: u16) {
        self.watches.send(Some(refused)).unwrap();
        self.line.cut();
        while self.metrics.ready().is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn ready(&self) {
        self.watches.send(None).unwrap();
        while self.metrics.ready().is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn stop(self) {
        self.cancel.cancel();
        self.leader.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_breaks_goes_on_where_it_was_and_nothing_is_listed_again() {
    let led = Led::start().await;
    let (lists, watches) = (led.asked.lists(), led.asked.of(true));
    assert_eq!(lists.len(), 12, "{lists:?}");
    for cut in 0..10 {
        led.line.cut();
        preheat(&led.client, &format!("job-{cut}")).await;
        assert_eq!(ordered(&led.client, "n1", cut + 2).await, 1);
        led.ready().await;
    }
    assert_eq!(led.asked.lists(), lists);
    for (path, count) in led.asked.of(true) {
        assert!(count >= watches[&path] + 10, "{path} was watched {count} times");
    }
    led.stop().await;
}

#[tokio::test(start_paused = true)]
async fn while_a_watch_is_interrupted_nothing_is_planned() {
    let led = Led::start().await;
    let lists = led.asked.lists();
    // By a server that is there and has too much to do.
    led.cut(429).await;
    preheat(&led.client, "two").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let preheats: Api<NodePreheat> = Api::all(led.client.clone());
    assert_eq!(preheats.get("n1").await.unwrap().spec.orders.len(), 1);
    assert!(led.metrics.ready().is_err());
    led.ready().await;
    assert_eq!(ordered(&led.client, "n1", 2).await, 1);
    assert_eq!(led.asked.lists(), lists);
    led.stop().await;
}

/// The node is done in time, and the controller hears of it when the deadline is over.
#[tokio::test(start_paused = true)]
async fn what_was_missed_is_heard_before_anything_is_planned() {
    let led = Led::start().await;
    let spec = json!({"images": [{"image": "registry.example/late:v1"}], "completion": {"deadline": "30s"}});
    let object = serde_json::from_value(json!({"metadata": {"name": "late"}, "spec": spec})).unwrap();
    let jobs: Api<Preheat> = Api::default_namespaced(led.client.clone());
    jobs.create(&PostParams::default(), &object).await.unwrap();
    ordered(&led.client, "n1", 2).await;
    led.cut(429).await;
    does_its_orders(&led.client, "n1", 2).await;
    let deadline = stoker_core::model::after((led.clock)(), Duration::from_secs(60));
    while (led.clock)() < deadline {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(led.metrics.ready().is_err());
    led.ready().await;
    let phase = |object: Option<&Preheat>| object?.status.as_ref().map(|status| status.phase.clone());
    let ended = await_condition(jobs, "late", move |job: Option<&Preheat>| {
        phase(job).is_some_and(|phase| phase == "Succeeded" || phase == "Failed")
    });
    assert_eq!(phase(ended.await.unwrap().as_ref()).as_deref(), Some("Succeeded"));
    led.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_too_old_and_a_server_that_was_away_are_listed_anew() {
    let led = Led::start().await;
    for refused in [410, 503] {
        let before = led.asked.lists();
        led.cut(refused).await;
        preheat(&led.client, &format!("job-{refused}")).await;
        while led.asked.lists() == before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        led.ready().await;
        let lists = led.asked.lists();
        let again: Vec<_> =
            lists.iter().filter(|(path, count)| before[*path] < **count).map(|(path, _)| path).collect();
        assert_eq!(again, [NODE_PREHEATS], "{refused}");
    }
    assert_eq!(ordered(&led.client, "n1", 3).await, 1);
    led.stop().await;
}

/// A NodePreheat is large, and all of a page are in memory at one time; requests for small objects would only be more.
#[tokio::test(start_paused = true)]
async fn only_objects_of_nodes_are_listed_by_few() {
    let clock = clock();
    let client = api(&clock);
    let limits = Arc::new(Mutex::new(BTreeMap::new()));
    let noted = limits.clone();
    let way = move |request: &http::Request<Body>| {
        let limit =
            request.uri().query().and_then(|query| query.split('&').find_map(|part| part.strip_prefix("limit=")));
        if let Some(limit) = limit {
            noted.lock().unwrap().insert(request.uri().path().to_string(), limit.to_string());
        }
        Way::Free
    };
    let settings = bed::settings(&over_line(&client, &Line::default(), way), &clock, "only");
    let (cancel, metrics) = (CancellationToken::new(), settings.metrics.clone());
    let leader = bed::run(settings, &cancel);
    while metrics.ready().is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut limits = std::mem::take(&mut *limits.lock().unwrap());
    limits.retain(|path, _| !path.contains("/leases"));
    assert_eq!(limits.remove(NODE_PREHEATS).as_deref(), Some("20"));
    assert_eq!(limits.remove(NODE_IMAGES).as_deref(), Some("20"));
    assert_eq!(limits.remove(NODE_IMAGE_SETS).as_deref(), Some("20"));
    assert_eq!(limits.len(), 8, "{limits:?}");
    assert!(limits.values().all(|limit| limit == "500"), "{limits:?}");
    cancel.cancel();
    leader.await.unwrap();
}
