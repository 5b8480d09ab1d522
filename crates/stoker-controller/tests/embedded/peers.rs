//! Nodes that read images from each other: the key for their tickets is published first, by each leader its own, and stays published.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::runtime::wait::await_condition;
use kube::{Client, ResourceExt as _};
use serde_json::json;
use stoker_api::native::{NodePreheat, Preheat, WireOrder};
use stoker_api::peer_keys::{self, PeerKeyEntry};
use stoker_controller::{Settings, snapshot};
use stoker_transfer::peer::{PeerId, PeerIdentity, TicketKey, TicketKeys};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::bed::{self, Way, api, clock, over, run};

/// How long a test waits before it fails.
const PATIENCE: Duration = Duration::from_secs(1200);

fn settings(client: &Client, clock: &stoker_core::Clock, identity: &str) -> Settings {
    Settings { peers: true, ..bed::settings(client, clock, identity) }
}

/// A node whose agent serves others.
async fn node(client: &Client, name: &str, address: &str) -> PeerId {
    bed::node(client, name).await;
    let addresses = Patch::Merge(json!({ "status": { "addresses": [{ "type": "InternalIP", "address": address }] } }));
    Api::<Node>::all(client.clone()).patch_status(name, &PatchParams::default(), &addresses).await.unwrap();
    let key = PeerIdentity::generate().unwrap().id();
    let peer = json!({ "port": 7447, "key": key.to_string(), "keeps": true });
    let features = ["look", "resolve", "sealed", "peers"];
    let agent =
        json!({ "version": "1", "platform": "linux/amd64", "runtime": "layout", "features": features, "peer": peer });
    let agent = Patch::Merge(json!({ "status": { "agent": agent } }));
    Api::<NodePreheat>::all(client.clone()).patch_status(name, &PatchParams::default(), &agent).await.unwrap();
    key
}

/// A job for an image by its digest, which nobody need ask for.
async fn preheat(client: &Client) {
    let spec = json!({ "images": [{ "image": format!("registry.example/web@sha256:{}", "d".repeat(64)) }] });
    let object = serde_json::from_value(json!({ "metadata": { "name": "web" }, "spec": spec })).unwrap();
    Api::<Preheat>::default_namespaced(client.clone()).create(&PostParams::default(), &object).await.unwrap();
}

fn maps(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), stoker_api::NAMESPACE)
}

/// Waits until so many keys are published.
async fn published(client: &Client, count: usize) -> BTreeMap<String, String> {
    let there = await_condition(maps(client), peer_keys::NAME, move |map: Option<&ConfigMap>| {
        map.and_then(|map| map.data.as_ref()).is_some_and(|data| data.len() == count)
    });
    timeout(PATIENCE, there).await.expect("never published").unwrap().unwrap().data.unwrap()
}

async fn order(client: &Client, name: &str) -> WireOrder {
    bed::ordered(client, name, 1).await;
    let object = Api::<NodePreheat>::all(client.clone()).get(name).await.unwrap();
    object.spec.orders.into_values().next().unwrap()
}

fn keys(published: &BTreeMap<String, String>) -> TicketKeys {
    let entries = published.values().map(|text| text.parse::<PeerKeyEntry>().unwrap());
    entries.map(|entry| TicketKey(entry.key.parse().unwrap())).collect()
}

/// The requests that are writes, as they are sent.
fn writes(client: &Client, refused: Option<u16>) -> (Client, Arc<Mutex<Vec<String>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let client = over(client, {
        let seen = seen.clone();
        move |request: &http::Request<Body>| {
            let path = request.uri().path();
            if request.method() != http::Method::GET {
                seen.lock().unwrap().push(format!("{} {path}", request.method()));
            }
            match refused.filter(|_| path.contains("/configmaps")) {
                Some(code) => Way::Refused(code),
                None => Way::Free,
            }
        }
    });
    (client, seen)
}

#[tokio::test(start_paused = true)]
async fn the_key_is_published_before_the_first_ticket_and_again_when_it_is_gone() {
    let clock = clock();
    let client = api(&clock);
    let [first, second] = [node(&client, "n1", "10.0.0.1").await, node(&client, "n2", "10.0.0.2").await];
    preheat(&client).await;
    let (watched, seen) = writes(&client, None);
    let cancel = CancellationToken::new();
    let running = run(settings(&watched, &clock, "a"), &cancel);
    let entries = published(&client, 1).await;
    let (one, other) = (order(&client, "n1").await, order(&client, "n2").await);
    let (reader, key) = if one.upstream == Some(false) { (one, first) } else { (other, second) };
    let now = u64::try_from(clock().as_second()).unwrap();
    assert!(keys(&entries).check(&reader.ticket.unwrap(), key, now).is_ok());
    let position = |word: &str| seen.lock().unwrap().iter().position(|write| write.contains(word));
    assert!(position("/configmaps").unwrap() < position("/nodepreheats").unwrap());
    assert_eq!(maps(&client).get(peer_keys::NAME).await.unwrap().labels()["app.kubernetes.io/managed-by"], "stoker");
    maps(&client).delete(peer_keys::NAME, &DeleteParams::default()).await.unwrap();
    assert_eq!(published(&client, 1).await.keys().next(), entries.keys().next());
    cancel.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_leader_has_a_key_of_its_own_and_leaves_those_of_others() {
    let clock = clock();
    let client = api(&clock);
    node(&client, "n1", "10.0.0.1").await;
    let mut before = BTreeMap::new();
    for count in 1..=3 {
        let cancel = CancellationToken::new();
        let running = run(settings(&client, &clock, "a"), &cancel);
        let now = published(&client, count).await;
        assert!(before.iter().all(|(name, text)| now.get(name) == Some(text)));
        before = now;
        cancel.cancel();
        running.await.unwrap();
    }
    // Their last ticket is over.
    tokio::time::sleep(Duration::from_secs(27 * 60 * 60)).await;
    let cancel = CancellationToken::new();
    let running = run(settings(&client, &clock, "a"), &cancel);
    let left = published(&client, 1).await;
    assert!(before.keys().all(|name| !left.contains_key(name)));
    cancel.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn where_the_key_cannot_be_published_nothing_waits_and_nobody_reads_from_others() {
    for refused in [403, 500] {
        let clock = clock();
        let client = api(&clock);
        node(&client, "n1", "10.0.0.1").await;
        node(&client, "n2", "10.0.0.2").await;
        preheat(&client).await;
        let (refusing, _) = writes(&client, Some(refused));
        let cancel = CancellationToken::new();
        let running = run(settings(&refusing, &clock, "a"), &cancel);
        for name in ["n1", "n2"] {
            let order = order(&client, name).await;
            assert_eq!((order.upstream, order.peers.len(), order.ticket), (None, 0, None), "{refused}: {name}");
        }
        cancel.cancel();
        running.await.unwrap();
    }
}

/// Whoever explains a job plans as the controller does.
#[tokio::test(start_paused = true)]
async fn who_explains_a_job_knows_whether_nodes_read_from_each_other() {
    for peers in [true, false] {
        let clock = clock();
        let client = api(&clock);
        node(&client, "n1", "10.0.0.1").await;
        node(&client, "n2", "10.0.0.2").await;
        let cancel = CancellationToken::new();
        let running = run(Settings { peers, ..settings(&client, &clock, "a") }, &cancel);
        let leases: Api<Lease> = Api::namespaced(client.clone(), stoker_api::NAMESPACE);
        let said = move |lease: Option<&Lease>| {
            lease.is_some_and(|lease| lease.annotations().get("stoker.dev/peers").is_some_and(|said| said == "on"))
        };
        if peers {
            timeout(PATIENCE, await_condition(leases.clone(), "stoker-controller", said)).await.unwrap().unwrap();
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        cancel.cancel();
        running.await.unwrap();
        assert_eq!(said(leases.get_opt("stoker-controller").await.unwrap().as_ref()), peers);
        preheat(&client).await;
        let mut world = snapshot::take(&client, "default").await.unwrap().world;
        let plan = world.plan(clock());
        let written = plan.orders.iter().flat_map(|write| write.keys.iter().map(|key| (&write.node, *key)));
        let readers = written.filter_map(|(node, key)| world.order(node, key));
        let readers = readers.filter(|order| !order.upstream && !order.peers.is_empty()).count();
        assert_eq!((plan.orders.len(), readers), (2, usize::from(peers)));
    }
}
