//! Policies: what they do not allow is not ordered.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use stoker_core::model::{Job, Order};
use stoker_core::{JobId, Restriction};

use super::{config, each_plan, orders};
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

    /// All jobs of a namespace together, of whatever kind, and the nodes of each of them.
    #[test]
    fn no_namespace_has_more_jobs_or_nodes_than_it_may(history in history()) {
        each_plan(&history, |before, after, plan| {
            let mut handed_out: BTreeMap<JobId, BTreeSet<&str>> = BTreeMap::new();
            for ordered in orders(after).into_iter().filter(|ordered| !ordered.answered && !ordered.order.hold) {
                for id in ordered.order.jobs {
                    handed_out.entry(id).or_default().insert(ordered.node);
                }
            }
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
                    let nodes = handed_out.get(&job.id).map_or(0, BTreeSet::len);
                    assert!(policy.most.nodes.is_none_or(|most| nodes <= most as usize), "{} has {nodes} nodes", job.id);
                    let jobs = now.iter().filter_map(|id| after.world.job(id)).filter(|other| {
                        other.runs() && !other.is_standing() && other.id.namespace() == job.id.namespace()
                    });
                    let jobs = jobs.count();
                    assert!(policy.most.jobs.is_none_or(|most| jobs <= most as usize), "{jobs} beside {}", job.id);
                }
            }
        });
    }
}
