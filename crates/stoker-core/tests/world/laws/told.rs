//! Which nodes plans name for those who show what stands there.

use std::collections::BTreeMap;

use jiff::Timestamp;
use proptest::prelude::*;
use stoker_core::model::{Order, Report};
use stoker_core::world::NodeState;
use stoker_core::{JobId, Key};

use super::config;
use crate::history::{Happening, history};
use crate::sim::{NODES, Sim};

/// All that can be shown of a node.
#[derive(Debug, PartialEq)]
struct Shown {
    orders: BTreeMap<Key, Order>,
    reports: BTreeMap<Key, Report>,
    /// The words for where jobs stand; what else sentences say may be about other nodes.
    jobs: BTreeMap<JobId, String>,
}

fn shown(sim: &Sim, node: &str) -> Shown {
    let unsigned = |(key, report): (Key, &Report)| (key, Report { updated: Timestamp::UNIX_EPOCH, ..report.clone() });
    let word = |state: NodeState| match state {
        NodeState::Succeeded => "succeeded".to_string(),
        NodeState::Pulling => "pulling".into(),
        NodeState::Waiting(waiting) => format!("waiting: {}", waiting.reason()),
        NodeState::Failed(reason, _) => format!("failed: {reason}"),
    };
    // What is shown of jobs that have ended, or that nothing is decided about, are reports.
    let planned = |id: &&JobId| {
        let moves = !sim.stands_still(id) && sim.world.waits_for_sight(id).is_none();
        moves && sim.world.job(id).is_some_and(|job| job.ended.is_none())
    };
    let jobs = sim.world.jobs().filter(planned).filter(|_| sim.world.has_node(node));
    let standing = jobs.filter_map(|id| Some((id.clone(), word(sim.world.seat_of(id, node, sim.now)?.state))));
    Shown {
        // Of a node that is forgotten there is as much to show as of one that has nothing.
        orders: sim.world.orders(node).unwrap_or_default(),
        reports: sim.world.reports(node).into_iter().flatten().map(unsigned).collect(),
        jobs: standing.collect(),
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_node_that_no_plan_names_shows_what_it_did(history in history()) {
        let mut sim = Sim::new();
        sim.tells_nodes = true;
        sim.world.tell_nodes(true);
        let mut last: BTreeMap<&str, Shown> = BTreeMap::new();
        for happening in &history {
            let Some(plan) = sim.happen(happening) else { continue };
            for node in NODES.into_iter().filter(|node| !plan.nodes.contains(*node)) {
                let now = shown(&sim, node);
                let before = last.get(node);
                // A job that has begun, ended or stood still since then is told of by itself.
                let same = |id: &JobId| before.is_some_and(|before| before.jobs.contains_key(id));
                let jobs: BTreeMap<&JobId, &String> = now.jobs.iter().filter(|(id, _)| same(id)).collect();
                let had = |before: &Shown| -> BTreeMap<JobId, String> {
                    let had = before.jobs.iter().filter(|(id, _)| now.jobs.contains_key(*id));
                    had.map(|(id, word)| (id.clone(), word.clone())).collect()
                };
                let nothing = (&BTreeMap::new(), &BTreeMap::new());
                let was = before.map_or(nothing, |before| (&before.orders, &before.reports));
                assert_eq!((&now.orders, &now.reports), was, "{node}");
                if let Some(before) = before {
                    let had = had(before);
                    assert_eq!(jobs, had.iter().collect::<BTreeMap<_, _>>(), "{node}");
                }
            }
            last = NODES.into_iter().map(|node| (node, shown(&sim, node))).collect();
        }
    }

    #[test]
    fn one_node_is_told_as_all_are(history in history()) {
        let mut sim = Sim::new();
        for happening in history.iter().chain([&Happening::Plan]) {
            sim.happen(happening);
        }
        for id in sim.world.jobs() {
            let all = sim.world.nodes(id, sim.now);
            for node in NODES.into_iter().chain(["n9"]) {
                let one = sim.world.seat_of(id, node, sim.now);
                let among = all.iter().find(|view| &*view.node == node);
                assert_eq!(one.map(|view| view.state), among.map(|view| view.state.clone()), "{id} on {node}");
            }
        }
    }
}
