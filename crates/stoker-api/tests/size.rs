//! That a NodePreheat filled to every bound fits into etcd: each part is no larger than what it was counted as. The bounds themselves are added
//! up where they are (`stoker_core::world::ROOM` and its neighbours).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use stoker_api::Write;
use stoker_api::native::from_core::{self, LoginChanges, Saying};
use stoker_api::native::{PeerInfo, SealedLogin};
use stoker_core::Reason;
use stoker_core::model::{
    Ask, Bytes, JobId, Key, LoginId, MOST_PEERS, Order, Origin, PeerKey, PeerPast, PeerRef, Phase, Pin, Policy, Pull,
    PullSource, Report, Sandbox, Terms,
};
use stoker_core::world::{LOGIN_WEIGHT, MOST_LOGINS, REPORT_WEIGHT, weight};

/// The length of a ticket.
const TICKET: usize = 183;

/// What an API server stores of a value: without what is null, and with the letters escaped that Go escapes.
fn stored(value: &Value) -> usize {
    let text = without_nulls(value).to_string();
    text.chars().map(|letter| if "<>&\u{2028}\u{2029}".contains(letter) { 6 } else { letter.len_utf8() }).sum()
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let there = map.iter().filter(|(_, value)| !value.is_null());
            there.map(|(key, value)| (key.clone(), without_nulls(value))).collect()
        }
        other => other.clone(),
    }
}

/// The API server's notes on who wrote which field: one for each field, lists as a whole.
fn notes(value: &Value) -> Value {
    let Value::Object(map) = without_nulls(value) else { return json!({}) };
    let fields = map.iter().map(|(key, value)| (format!("f:{key}"), notes(value)));
    [(".".to_string(), json!({}))].into_iter().chain(fields).collect()
}

/// What an entry of a map takes: itself and the notes on it.
fn entry(key: &str, value: &Value) -> usize {
    stored(&json!({ key: value })) + stored(&json!({ format!("f:{key}"): notes(value) }))
}

fn late() -> Timestamp {
    "2099-12-31T23:59:59.123456789Z".parse().unwrap()
}

/// An order in which every field is as long as it can be, but for texts.
fn largest(image: &str, jobs: usize, sandbox: Sandbox, logins: usize) -> Order {
    let pull = Pull {
        policy: Policy::IfNotPresent,
        timeout: Duration::from_millis(999_999_999_999),
        retries: u32::MAX,
        bandwidth: Some(i64::MAX.unsigned_abs() - 1),
        priority: i32::MIN,
        sandbox,
        source: Default::default(),
        upstream_copies: None,
    };
    let logins = (0..logins).map(|n| LoginId::new(&format!("{n:040x}"))).collect();
    let terms = Terms { pull, logins, progress: Duration::from_millis(999_999) };
    let job = |n: usize| JobId::new(("apps.kruise.io", "ImagePullJob"), "shop", &format!("job-{n}")).with_part("0");
    let pin = Pin { alone: false, ..Pin::new(late(), format!("sha256:{}", "f".repeat(64))) };
    let mut order = Order::new(image, (0..jobs).map(job).collect(), late(), Ask::Fetch(Some(pin)), terms);
    (order.hold, order.needs) = (false, BTreeSet::from(["a-feature".into()]));
    order
}

/// A report on it in which every field is as long as it can be. A node that is told a digest does not report what it heard: where the report has
/// the one, the order does not have the other.
fn report(order: &Order, pin: Option<Pin>) -> Report {
    let longest = Reason::ALL.iter().max_by_key(|reason| reason.as_str().len()).unwrap();
    let most = 999_999_999_999_999;
    Report {
        asked: late(),
        jobs: order.jobs.clone(),
        phase: Phase::Succeeded,
        digest: Some(format!("sha256:{}", "f".repeat(64)).into()),
        pin,
        present: true,
        bytes: Bytes { total: most, done: most, upstream: most, peers: most, mirrors: most },
        attempt: u32::MAX,
        reason: Some(*longest),
        // Its letters are counted elsewhere.
        message: "x".into(),
        stalled: Some(late()),
        started: late(),
        finished: Some(late()),
        updated: late(),
        from: None,
        bad: Vec::new(),
    }
}

/// The same as a reader: every field about its sources is as long as it can be.
fn reader(order: Order) -> Order {
    let peer = |n: usize| PeerRef {
        node: format!("a-node-of-many-{n}").into(),
        address: "[2001:0db8:85a3:1234:5678:8a2e:0370:7334]:65535".parse().unwrap(),
        key: PeerKey::new(&"k".repeat(PeerInfo::LONGEST_KEY)),
        far: false,
    };
    let mut order = Order {
        upstream: false,
        peers: (0..MOST_PEERS).map(peer).collect(),
        expect: Some(i64::MAX.unsigned_abs()),
        past: PeerPast { lists: u8::MAX, seed: false, out: false, moved: Some(late()), mended: Some(late()) },
        ..order
    };
    (order.terms.pull.source, order.terms.pull.upstream_copies) = (PullSource::PeersOrMirrors, Some(u32::MAX));
    order
}

fn spec(orders: BTreeMap<Key, Option<Order>>, logins: &LoginChanges) -> Value {
    let reads = orders.iter().filter(|(_, order)| order.as_ref().is_some_and(|order| !order.peers.is_empty()));
    let tickets = reads.map(|(key, _)| (*key, "t".repeat(TICKET))).collect();
    let Write::Patch(_, mut patch) = from_core::orders("n1", &orders, logins, &tickets, 1) else { panic!("no patch") };
    patch["spec"].take()
}

fn report_taken(report: &Report) -> usize {
    let key = Key::of("any");
    let saying = Saying { reports: BTreeMap::from([(key, Some(report.clone()))]), ..Saying::default() };
    let Write::Status(_, status) = from_core::saying("n1", &saying) else { panic!("no status") };
    entry(&key.to_string(), &status["status"]["reports"][&key.to_string()])
}

/// What an order and the report on it take.
fn taken(order: &Order, report: &Report) -> usize {
    let key = Key::of("any");
    let spec = spec(BTreeMap::from([(key, Some(order.clone()))]), &LoginChanges::new());
    entry(&key.to_string(), &spec["orders"][&key.to_string()]) + report_taken(report)
}

#[test]
fn logins_and_ended_reports_take_no_more_than_they_are_counted_as() {
    let (id, sealed) = (LoginId::new(&"f".repeat(40)), "x".repeat(500));
    let login = SealedLogin { key: "f".repeat(SealedLogin::LONGEST_KEY), sealed: sealed.clone() };
    let spec = spec(BTreeMap::new(), &LoginChanges::from([(id.clone(), Some(login))]));
    let login = entry(id.as_str(), &spec["logins"][id.as_str()]);
    assert!(login <= LOGIN_WEIGHT + sealed.len(), "{login}");
    // Those of questions are not kept.
    let mut order = largest("docker.io/library/a:1", 0, Sandbox::default(), 0);
    order.ask = Ask::Fetch(None);
    let ended = report_taken(&report(&order, Some(Pin::new(late(), format!("sha256:{}", "f".repeat(64))))));
    assert!(ended <= REPORT_WEIGHT, "{ended}");
}

#[test]
fn an_order_takes_no_more_than_it_is_counted_as() {
    let plain = |count: usize, letter: &str, length: usize| -> BTreeMap<String, String> {
        (0..count).map(|n| (format!("{letter}{n}"), letter.repeat(length))).collect()
    };
    let sandboxes = [
        Sandbox::default(),
        Sandbox { labels: plain(64, "a", 63), annotations: plain(64, "b", 200) },
        Sandbox { labels: plain(64, "=", 20), annotations: plain(64, "<", 100) },
        Sandbox { labels: plain(64, "%", 20), annotations: plain(64, "\u{1}", 100) },
        Sandbox { labels: plain(1024, "\"", 1), annotations: plain(1024, "\u{fc}", 1) },
    ];
    for sandbox in sandboxes {
        for (image, jobs) in [("docker.io/library/a:1".into(), 1), (format!("r.example/{}:1", "a".repeat(900)), 64)] {
            for logins in [0, MOST_LOGINS, 20] {
                let mut order = largest(&image, jobs, sandbox.clone(), logins);
                let told = taken(&order, &report(&order, None));
                assert!(told <= weight(&order), "{told} of {}: {order:?}", weight(&order));
                let reads = reader(order.clone());
                let from = reads.peers.first().map(|peer| Origin::Peer(peer.node.clone()));
                let bad = reads.peers.iter().map(|peer| peer.node.clone()).collect();
                let told = taken(&reads, &Report { from, bad, ..report(&reads, None) });
                assert!(told <= weight(&reads), "{told} of {}: {reads:?}", weight(&reads));
                let pin = order.pin().cloned();
                order.ask = Ask::Fetch(None);
                let asks = taken(&order, &report(&order, pin));
                assert!(asks <= weight(&order), "{asks} of {}: {order:?}", weight(&order));
            }
        }
    }
    // Nor is it counted as much more, or nodes could have far fewer orders than fit.
    let order = largest("docker.io/library/a:1", 1, Sandbox::default(), 0);
    let told = taken(&order, &report(&order, None));
    assert!(told * 10 > weight(&order) * 9, "{told} of {}", weight(&order));
}
