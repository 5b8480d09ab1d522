//! Who is asked what a tag means, and how far an answer is believed.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use stoker_core::{Ask, Completion, JobId, Key, pace};

use super::{Ordered, config, each_plan, orders};
use crate::build::secs;
use crate::history::history;
use crate::sim::{FOREIGN, LIAR, LIE};

proptest! {
    #![proptest_config(config())]

    #[test]
    fn few_nodes_ask_the_registry_and_all_get_their_answer(history in history()) {
        each_plan(&history, |before, after, _| {
            let asks = |ordered: &Ordered| {
                if ordered.node == FOREIGN {
                    return false;
                }
                let open = !ordered.answered && !ordered.silent && !ordered.resolved && !ordered.order.hold;
                matches!(ordered.order.ask, Ask::Resolve | Ask::Fetch(None)) && open
            };
            let told: BTreeSet<(Key, &'static str)> =
                orders(before).iter().filter(|ordered| asks(ordered)).map(|ordered| (ordered.key, ordered.node)).collect();
            let (was, is) = (orders(before), orders(after));
            for new in is.iter().filter(|ordered| asks(ordered) && !told.contains(&(ordered.key, ordered.node))) {
                // As many as failed or are slow, and two: for one of the jobs at least that want the image.
                let few = |id: &JobId| {
                    let Some(since) = after.world.job(id).map(|job| job.since(new.node, after.now)) else { return false };
                    let about = |other: &&Ordered| other.order.image == new.order.image && other.order.asked >= since;
                    let alike = |other: &&Ordered| other.order.ask.is_question() == new.order.ask.is_question();
                    let asking = || is.iter().filter(about).filter(alike).filter(|other| asks(other));
                    let slow = asking().filter(|other| other.slow).count();
                    // One that failed, or said something else than others, may be among those that are asked again.
                    let other = |ordered: &&Ordered| ordered.failed || ordered.resolved;
                    let failed = was.iter().filter(about).filter(other).count();
                    asking().count() - slow <= failed + slow + pace::WITNESSES
                };
                assert!(after.jobs.values().map(|job| &job.id).any(few), "{} was told to ask for {}", new.node, new.order.image);
            }
            let once = |id: &JobId| matches!(after.world.job(id).map(|job| &job.completion), Some(Completion::Once { .. }));
            let mut digests: BTreeMap<(Key, &BTreeSet<JobId>), &str> = BTreeMap::new();
            let orders = orders(after);
            for Ordered { key, order, node, .. } in &orders {
                let since = order.jobs.iter().filter_map(|id| after.world.job(id)).map(|job| job.since(node, after.now)).max();
                let counts = order.jobs.iter().all(once) && since.is_some_and(|since| order.asked >= since);
                // What one node alone said is given up when two others say something else.
                if let Some(pin) = order.pin().filter(|pin| counts && !pin.alone) {
                    let first = digests.entry((*key, &order.jobs)).or_insert(&pin.digest);
                    assert_eq!(*first, pin.digest, "{node}: {:?}", order.jobs);
                }
            }
        });
    }

    /// A node that was taken over says what it likes. No other pulls that, unless there was nobody else to ask.
    #[test]
    fn no_node_decides_for_another(history in history()) {
        each_plan(&history, |_, after, _| {
            for Ordered { node, order, .. } in orders(after) {
                let believed = order.pin().is_some_and(|pin| pin.digest == LIE && !pin.alone);
                assert!(!believed, "{node} is told to pull what {LIAR} says: {order:?}");
            }
        });
    }

    /// Whatever asks it says that it has answered, it is asked at the time of the controller; several asks of one moment follow each other.
    #[test]
    fn no_node_moves_the_time_of_an_ask(history in history()) {
        each_plan(&history, |_, after, _| {
            let latest = after.now + secs(1);
            for Ordered { node, order, .. } in orders(after) {
                assert!(order.asked <= latest, "{node} is asked at {}: {order:?}", order.asked);
            }
        });
    }
}
