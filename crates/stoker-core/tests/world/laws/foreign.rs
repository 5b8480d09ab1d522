//! Nodes whose agent somebody else plays.

use proptest::prelude::*;
use stoker_core::{Ask, JobId};

use super::{Ordered, config, each_plan, orders};
use crate::history::history;
use crate::sim::{FOREIGN, FOREIGN_WORD, changes};

proptest! {
    #![proptest_config(config())]

    /// It is told tags, and digests only where the image is written with one; and nothing of it is needed to open a login.
    #[test]
    fn a_foreign_node_is_told_to_pull_and_nothing_else(history in history()) {
        each_plan(&history, |_, after, _| {
            for Ordered { order, .. } in orders(after).into_iter().filter(|ordered| ordered.node == FOREIGN) {
                let plain = match &order.ask {
                    Ask::Fetch(None) => true,
                    Ask::Fetch(Some(pin)) => order.image.ends_with(&format!("@{}", pin.digest)),
                    Ask::Resolve | Ask::Look => false,
                };
                assert!(plain, "{order:?}");
                assert_eq!(order.terms.logins, []);
            }
        });
    }

    #[test]
    fn only_jobs_that_want_foreign_nodes_are_ordered_there(history in history()) {
        each_plan(&history, |_, after, plan| {
            let wants = |id: &JobId| after.stands_still(id) || after.world.job(id).is_some_and(|job| job.foreign_nodes);
            for (_, changes) in changes(&after.world, plan).iter().filter(|(node, _)| &**node == FOREIGN) {
                for order in changes.values().flatten() {
                    assert!(order.jobs.iter().any(wants), "{order:?}");
                }
            }
            // A job that stands still shows its last plan.
            let moves = after.world.jobs().filter(|id| after.world.waits_for_sight(id).is_none() && !after.stands_still(id));
            for job in moves.filter_map(|id| after.world.job(id)).filter(|job| !job.foreign_nodes) {
                let views = after.world.nodes(&job.id, after.now);
                let there = views.iter().any(|view| &*view.node == FOREIGN && after.nodes.contains_key(FOREIGN));
                assert!(!there || job.ended.is_some(), "{}", job.id);
            }
        });
    }

    #[test]
    fn nobody_goes_by_the_word_of_a_foreign_node(history in history()) {
        each_plan(&history, |_, after, _| {
            for Ordered { node, order, .. } in orders(after) {
                assert!(order.pin().is_none_or(|pin| pin.digest != FOREIGN_WORD), "{node}: {order:?}");
            }
        });
    }
}
