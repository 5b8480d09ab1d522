//! Jobs that stand for entries of nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use stoker_core::model::Job;
use stoker_core::world::NodeState;
use stoker_core::{Event, Key};

use super::{config, each_plan};
use crate::history::history;
use crate::sim::{NODES, Sim};

fn states(sim: &Sim, job: &Job) -> BTreeMap<String, NodeState> {
    let views = sim.world.nodes(&job.id, sim.now);
    views.into_iter().map(|view| (view.node.to_string(), view.state)).collect()
}

fn is_over(state: &NodeState) -> bool {
    matches!(state, NodeState::Succeeded | NodeState::Failed(..))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_standing_job_never_ends(history in history()) {
        each_plan(&history, |_, after, plan| {
            for outcome in &plan.outcomes {
                let job = after.world.job(&outcome.job);
                assert!(!job.is_some_and(Job::is_standing) || outcome.completed.is_none(), "{outcome:?}");
            }
            let standing = |id| after.world.job(id).is_some_and(Job::is_standing);
            assert!(!plan.expired.iter().any(standing));
        });
    }

    /// The node is asked again. Nodes that are done or have failed stay so, and nobody writes to them.
    #[test]
    fn a_node_that_counts_anew_is_asked_again_and_no_other(history in history(), n in 0..NODES.len()) {
        let mut sim = each_plan(&history, |_, _, _| {});
        sim.thaw_all();
        sim.read();
        sim.plan();
        sim.now += stoker_core::pace::AWAIT_SECRET;
        sim.plan();
        let moved = NODES[n];
        let sees = |job: &&Job| job.is_standing() && job.unseen.is_none() && job.unreadable.is_none();
        for job in sim.jobs.values().filter(sees) {
            let mut after = sim.clone();
            let Some(mut names) = job.names.as_deref().cloned() else { continue };
            let Some(own) = names.get_mut(moved) else { continue };
            *own = after.now;
            after.world.apply(Event::Job(Box::new(Job { names: Some(Arc::new(names)), ..job.clone() })));
            let plan = after.world.plan(after.now);
            let (was, is) = (states(&sim, job), states(&after, job));
            for (node, state) in was.iter().filter(|(node, state)| *node != moved && is_over(state)) {
                assert_eq!(Some(state), is.get(node), "{node}");
                let written = plan.orders.iter().any(|write| &*write.node == node.as_str());
                assert!(!written, "{node} is written to: {plan:#?}");
            }
            // What another order says of an image that is there is enough for a job that is content with it.
            let there = |key: Key| [key, key.question()].iter().any(|key| {
                after.world.report(moved, *key).is_some_and(|report| report.present)
            });
            if job.keys().any(|key| !there(key)) {
                assert!(!is.get(moved).is_some_and(is_over), "{moved}: {:?}", is.get(moved));
            }
        }
    }
}
