//! A plan follows from the facts, from nothing else, and once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;
use stoker_core::model::{Order, after};
use stoker_core::pace::SIGN_OF_LIFE;
use stoker_core::world::NodeState;
use stoker_core::{Event, JobId, Key, World};

use super::{config, each_plan, orders};
use crate::history::history;
use crate::sim::{Sim, changes, relaying};

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_plan_of_an_unchanged_world_is_empty(history in history(), part in 0..1000u64) {
        each_plan(&history, |_, after, plan| {
            let mut world = after.world.clone();
            let again = world.plan(after.now);
            assert!(again.is_empty(), "{again:#?}");
            assert_eq!(again.wake, plan.wake);
            // Any time before the wake-up.
            let left = plan.wake.map_or(100_000_000, |wake| (wake - after.now).total(jiff::Unit::Millisecond).unwrap() as u64);
            nothing_happens_until(&mut world, after.now + Duration::from_millis(left.saturating_sub(1) * part / 1000));
            // Nor is anything left that a look at everything would find.
            world.touch_everything();
            let naive = world.plan(after.now);
            assert!(naive.orders.is_empty() && naive.outcomes.is_empty(), "{naive:#?}");
        });
    }

    #[test]
    fn the_incremental_plan_is_the_naive_one(history in history()) {
        each_plan(&history, |before, after, plan| {
            let mut naive = before.world.clone();
            naive.touch_everything();
            let oracle = naive.plan(after.now);
            assert_eq!(changes(&naive, &oracle), changes(&after.world, plan));
            assert_eq!(&oracle.outcomes, &plan.outcomes);
            assert_eq!(oracle.wake, plan.wake);
            assert!(plan.expired.iter().all(|id| oracle.expired.contains(id)));
        });
    }

    #[test]
    fn a_restarted_controller_plans_the_same(history in history()) {
        let mut sim = each_plan(&history, |_, _, _| {});
        sim.thaw_all();
        // Who saw a list of everything counts silence from then on.
        if sim.rolled_back {
            return Ok(());
        }
        // With every write acknowledged, and then again and again while it goes on.
        sim.plan();
        for _ in 0..4 {
            sim.deliver_all();
            sim.read();
            let mut restarted = sim.restarted();
            let fresh = restarted.plan(sim.now);
            let plan = sim.plan();
            assert_eq!(changes(&restarted, &fresh), changes(&sim.world, &plan));
            // It has said everything just now; the other may have bytes that it holds back for a moment.
            let moment = plan.wake.is_some_and(|wake| wake <= after(sim.now, SIGN_OF_LIFE));
            assert!(fresh.wake == plan.wake || moment, "{:?} {:?}", fresh.wake, plan.wake);
            // A job stands still while the objects that decide which nodes it wants cannot be listed. It shows the nodes of its last plan,
            // and a controller that has not planned it cannot know them.
            for id in sim.world.jobs().filter(|id| sim.world.waits_for_sight(id).is_none()) {
                assert_eq!(states(&restarted, id, sim.now), states(&sim.world, id, sim.now), "{id}");
            }
            sim.deliver_all();
            sim.all_work();
        }
    }

    #[test]
    fn the_order_of_events_does_not_matter(history in history(), seed in any::<u64>()) {
        let sim = each_plan(&history, |_, _, _| {});
        let mut straight = relaying();
        sim.events.iter().cloned().for_each(|event| straight.apply(event));
        let mut shuffled = relaying();
        shuffle(&sim.events, seed).into_iter().for_each(|event| shuffled.apply(event));
        let (one, other) = (shuffled.plan(sim.now), straight.plan(sim.now));
        assert_eq!(changes(&shuffled, &one), changes(&straight, &other));
        assert_eq!(one, other);
    }

    #[test]
    fn writes_are_few_and_never_go_back(history in history()) {
        each_plan(&history, |before, after, plan| {
            let orders = orders(before);
            let nodes: BTreeSet<&str> = plan.orders.iter().map(|write| &*write.node).collect();
            assert_eq!(nodes.len(), plan.orders.len(), "one write a node");
            for (node, changes) in changes(&after.world, plan) {
                let old = |key: &Key| orders.iter().find(|old| old.node == &*node && old.key == *key);
                let sweeps = |(key, change): (&Key, &Option<Order>)| {
                    change.is_none() && old(key).is_none_or(|old| old.answered)
                };
                assert!(!changes.iter().all(sweeps), "{node} is written to only to be swept");
                for (key, change) in &changes {
                    let old = old(key).map(|old| &old.order);
                    assert_ne!(change.as_ref(), old, "{node}: nothing changes");
                    if let (Some(new), Some(old)) = (change, old) {
                        assert!(new.asked >= old.asked, "{node}: asked {} after {}", new.asked, old.asked);
                        let grew = new.terms.logins.iter().any(|login| !old.terms.logins.contains(login));
                        assert!(!grew || new.asked > old.asked || outdated(before, &node, old, new), "{new:?} after {old:?}");
                    }
                }
            }
        });
    }
}

/// Whether an order has an answer to come that is too old for one of its jobs, and is asked again for that.
fn outdated(sim: &Sim, node: &str, old: &Order, new: &Order) -> bool {
    let mut since = new.jobs.iter().filter_map(|id| sim.world.job(id)).map(|job| job.since(node, sim.now));
    since.any(|since| old.asked < since || old.pin().is_some_and(|pin| pin.asked < since))
}

fn nothing_happens_until(world: &mut World, later: Timestamp) {
    let plan = world.plan(later);
    assert!(plan.is_empty(), "at {later}: {plan:#?}");
}

fn states(world: &World, id: &JobId, now: Timestamp) -> Vec<(String, NodeState)> {
    world.nodes(id, now).into_iter().map(|view| (view.node.to_string(), view.state)).collect()
}

/// Another order of the same events, in which those about one object keep theirs.
fn shuffle(events: &[Event], seed: u64) -> Vec<Event> {
    let mut queues: BTreeMap<String, Vec<Event>> = BTreeMap::new();
    for event in events.iter().rev() {
        let object = match event {
            Event::Job(job) => format!("job {}", job.id),
            Event::JobGone(id) => format!("job {id}"),
            Event::Node(node) => format!("node {}", node.name),
            Event::NodeGone(name) => format!("node {name}"),
            Event::Orders(name, _)
            | Event::Reports(name, _)
            | Event::Features(name, _)
            | Event::Peer(name, _)
            | Event::AgentGone(name) => format!("agent {name}"),
            Event::Secret(id, ..) => format!("secret {id}"),
            Event::Freeze(kind) | Event::Thaw(kind) => format!("kind {kind}"),
            Event::Policies(_) | Event::PoliciesUnseen(_) => "policies".into(),
            Event::Namespace(name, _) => format!("namespace {name}"),
        };
        queues.entry(object).or_default().push(event.clone());
    }
    let mut state = seed | 1;
    let mut shuffled = Vec::new();
    while !queues.is_empty() {
        // xorshift: any permutation will do, as long as the seed decides it.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let pick = usize::try_from(state % queues.len() as u64).unwrap();
        let object = queues.keys().nth(pick).unwrap().clone();
        let queue = queues.get_mut(&object).unwrap();
        shuffled.extend(queue.pop());
        if queue.is_empty() {
            queues.remove(&object);
        }
    }
    shuffled
}
