//! Orders that wait for their turn to be written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use stoker_api::native;
use stoker_api::view::{Query, SeenRow};
use stoker_core::world::Event;
use stoker_core::{World, model};
use tokio::sync::{Notify, mpsc, watch};

use super::Leading;
use crate::hearing::Hearing;
use crate::metrics::{LeaderMetrics, Metrics};
use crate::moment::Source;
use crate::owed::Owed;
use crate::secrets::Secrets;
use crate::watch::Fact;

const MINUTE: i64 = 60;

/// A leader with one Preheat for these nodes, and its clock.
fn leader(nodes: &[&str]) -> (Leading, Hearing, Arc<AtomicI64>) {
    let clock = Arc::new(AtomicI64::new(1_000_000));
    let time = clock.clone();
    let now: stoker_core::Clock = Arc::new(move || Timestamp::from_second(time.load(Ordering::Relaxed)).unwrap());
    let mut hearing = Hearing::new(now, World::new(), LeaderMetrics::new(&Metrics::new()), 0);
    for name in nodes {
        let node = model::Node {
            name: (*name).into(),
            labels: BTreeMap::new(),
            ready: true,
            ready_changed: None,
            cordoned: false,
            foreign: false,
        };
        hearing.world.apply(Event::Node(node));
        hearing.world.apply(Event::Orders((*name).into(), BTreeMap::new()));
    }
    let image = format!("reg.test/web@sha256:{}", "ab".repeat(32));
    let created = Timestamp::from_second(1_000_000).unwrap();
    let object = json!({
        "metadata": { "name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "1", "creationTimestamp": created },
        "spec": { "images": [{ "image": image }], "pace": { "parallelism": nodes.len() } },
    });
    let query = Query::all(&native::PREHEATS.kind);
    hearing.row(&query, Fact::There(SeenRow::of(&query, serde_json::from_value(object).unwrap()), Source::Watch));
    hearing.settle();
    let secrets = Secrets::new(watch::Sender::new(Arc::default()), mpsc::unbounded_channel().0);
    let leading = Leading::new(secrets, Arc::new(Notify::new()), Owed::default(), mpsc::unbounded_channel().0);
    (leading, hearing, clock)
}

/// Of the one job: how many nodes failed.
fn failed(hearing: &Hearing) -> u32 {
    let id = hearing.world.jobs().next().unwrap();
    hearing.world.outcome(id).unwrap().failed
}

#[tokio::test(start_paused = true)]
async fn a_node_is_not_silent_while_its_order_waits_to_be_written() {
    let (mut leading, mut hearing, clock) = leader(&["n1", "n2"]);
    leading.plan(&mut hearing);
    let (written, _) = leading.owed.next().unwrap();
    let waiting: BTreeSet<String> = leading.owed.turns().map(String::from).collect();
    assert_eq!(waiting.len(), 1);
    assert!(!waiting.contains(&written));
    for _ in 0..3 {
        clock.fetch_add(9 * MINUTE, Ordering::Relaxed);
        tokio::time::advance(Duration::from_secs(9 * 60)).await;
        leading.plan(&mut hearing);
    }
    assert_eq!(failed(&hearing), 1, "the node that has its order is silent, the other one is not");
    while leading.owed.next().is_some() {}
    clock.fetch_add(11 * MINUTE, Ordering::Relaxed);
    tokio::time::advance(Duration::from_secs(11 * 60)).await;
    leading.plan(&mut hearing);
    assert_eq!(failed(&hearing), 2, "from then on its silence counts");
}
