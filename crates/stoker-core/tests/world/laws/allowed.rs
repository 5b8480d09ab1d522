//! Policies: what they do not allow is not ordered.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use stoker_core::model::{Job, Order};
use stoker_core::select::selects;
use stoker_core::{Event, JobId, Key, Restriction};

use super::{Ordered, config, each_plan, orders};
use crate::build::node;
use crate::history::history;
use crate::sim::{Sim, changes};

/// The policies that concern a job.
fn concerning<'a>(sim: &'a Sim, job: &Job) -> impl Iterator<Item = &'a Restriction> {
    let labels = sim.labels_of(job.id.namespace());
    sim.policies.values().filter(move |policy| match (&policy.namespaces, &labels) {
        (None, _) => true,
        (Some(selector), Some(labels)) => selector.matches(labels),
        (Some(_), None) => false,
    })
}

/// Whether the job by itself keeps to all policies on this node.
fn keeps(sim: &Sim, job: &Job, node: &str) -> bool {
    let images = job.images.iter().filter(|image| image.reference.is_ok());
    let images: Vec<&str> = images.map(|image| image.written.as_str()).collect();
    let labels = sim.nodes.get(node).map(|node| &node.labels);
    concerning(sim, job).all(|policy| {
        let most = &policy.most;
        let web = policy.images.is_empty() || images.iter().all(|image| image.starts_with("web"));
        let few = most.images.is_none_or(|most| job.images.len() <= most as usize);
        let quick = most.timeout.is_none_or(|most| job.pull.timeout <= most);
        let narrow = job.pull.bandwidth.zip(most.bandwidth).is_none_or(|(asked, most)| asked <= most);
        let there = policy.nodes.as_ref().is_none_or(|nodes| labels.is_some_and(|labels| nodes.matches(labels)));
        web && few && quick && narrow && there
    })
}

/// Whether an order may be for this job on this node.
fn may_be_for(sim: &Sim, id: &JobId, node: &str) -> bool {
    let still = sim.stands_still(id) || sim.world.waits_for_sight(id).is_some();
    still || sim.jobs.values().any(|job| job.id == *id && keeps(sim, job, node))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn nothing_is_ordered_that_no_job_is_allowed(history in history()) {
        each_plan(&history, |_, after, plan| {
            for (node, changes) in changes(&after.world, plan) {
                for order in changes.values().flatten().filter(|order| !order.hold) {
                    assert!(order.jobs.iter().any(|id| may_be_for(after, id, &node)), "{node}: {order:?}");
                }
            }
        });
    }

    #[test]
    fn nothing_runs_on_for_jobs_that_are_not_allowed(history in history()) {
        each_plan(&history, |_, after, _| {
            for ordered in orders(after).into_iter().filter(|ordered| !ordered.answered && !ordered.order.hold) {
                let Order { jobs, .. } = &ordered.order;
                assert!(jobs.iter().any(|id| may_be_for(after, id, ordered.node)), "{}: {jobs:?}", ordered.node);
            }
        });
    }

    /// All jobs of a namespace together, of whatever kind.
    #[test]
    fn no_namespace_has_more_jobs_than_it_may(history in history()) {
        each_plan(&history, |before, after, plan| {
            let now: BTreeSet<JobId> = changes(&after.world, plan)
                .into_iter()
                .flat_map(|(_, changes)| changes.into_values().flatten())
                .filter(|order| !order.hold)
                .flat_map(|order| order.jobs)
                .filter(|id| after.world.waits_for_sight(id).is_none() && !before.stands_still(id))
                .collect();
            let job = |id: &JobId| after.world.job(id).filter(|job| job.runs() && !job.is_standing());
            for job in now.iter().filter_map(job) {
                for policy in concerning(after, job) {
                    let jobs = now.iter().filter_map(|id| after.world.job(id)).filter(|other| {
                        other.runs() && !other.is_standing() && other.id.namespace() == job.id.namespace()
                    });
                    let jobs = jobs.count();
                    assert!(policy.most.jobs.is_none_or(|most| jobs <= most as usize), "{jobs} beside {}", job.id);
                }
            }
        });
    }

    /// Once a job has as many nodes as it may, or more because the number was lowered, no other node begins.
    #[test]
    fn no_job_gets_more_nodes_than_it_may(history in history()) {
        each_plan(&history, |before, after, _| {
            let jobs = after.world.jobs().filter_map(|id| after.world.job(id));
            for job in jobs.filter(|job| !after.stands_still(&job.id) && !job.is_standing()) {
                let (had, has) = (begun(before, job), begun(after, job));
                let new = has.difference(&had).count();
                let wanted = |node: &str| after.nodes.get(node).is_some_and(|node| selects(job, node));
                let usable = has.iter().filter(|node| wanted(node) && keeps(after, job, node)).count();
                for most in concerning(after, job).filter_map(|policy| policy.most.nodes) {
                    assert!(new == 0 || usable <= most as usize, "{}: {had:?} became {has:?}, not {most}", job.id);
                }
            }
        });
    }

    /// A kubelet may give its own node any label, and autoscalers add nodes all the time.
    #[test]
    fn a_node_that_joins_stops_nothing_on_other_nodes(history in history()) {
        each_plan(&history, |_, after, _| {
            let mut world = after.world.clone();
            for name in ["m1", "n5"] {
                world.apply(Event::Node(node(name)));
                world.apply(Event::Orders(name.into(), BTreeMap::new()));
            }
            world.plan(after.now);
            // A job that wants some of its nodes takes it in place of one that is not Ready.
            let picks = |id: &JobId| after.world.job(id).is_some_and(|job| job.pick.is_some());
            for ordered in orders(after).into_iter().filter(|ordered| !ordered.order.jobs.iter().any(picks)) {
                let runs = !ordered.order.hold && !ordered.answered && !ordered.order.ask.is_question();
                let now = world.order(ordered.node, ordered.key);
                assert!(!runs || now.is_some_and(|now| !now.hold), "{}: {:?}", ordered.node, ordered.order);
            }
        });
    }
}

/// The nodes with an order to pull an image of this job that names it.
fn begun(sim: &Sim, job: &Job) -> BTreeSet<&'static str> {
    let keys: BTreeSet<Key> = job.keys().collect();
    let own = |ordered: &Ordered| {
        let pulls = !ordered.order.ask.is_question() && keys.contains(&ordered.key);
        pulls && ordered.order.jobs.contains(&job.id)
    };
    orders(sim).into_iter().filter(own).map(|ordered| ordered.node).collect()
}
