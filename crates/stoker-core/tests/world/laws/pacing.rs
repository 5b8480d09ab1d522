//! How many nodes pull at one time, and for whom.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use stoker_core::model::{Job, Order};
use stoker_core::select::selects;
use stoker_core::world::{NodeState, NodeView};
use stoker_core::{JobId, Key, Policy, Reason, pace};

use super::{Ordered, config, each_plan, orders};
use crate::history::{Happening, history};
use crate::sim::{Sim, changes};

/// How long an order holds a place of a job.
fn keeps_place(order: &Order, job: &Job) -> Duration {
    pace::keeps_place(&order.terms.pull).min(pace::keeps_place(&job.pull))
}

/// The nodes of a job on which a pull for it holds a place.
fn busy(sim: &Sim, job: &Job) -> BTreeSet<&'static str> {
    at_work(sim, job, |ordered| ordered.order.asked + keeps_place(&ordered.order, job) > sim.now)
}

/// The nodes of a job on which such a pull for it is under way.
fn at_work(sim: &Sim, job: &Job, such: impl Fn(&Ordered) -> bool) -> BTreeSet<&'static str> {
    let wanted = |node: &str| sim.nodes.get(node).is_some_and(|node| selects(job, node));
    let keys: BTreeSet<Key> = job.keys().collect();
    let running = orders(sim).into_iter().filter(|ordered| {
        let counts = ordered.order.jobs.contains(&job.id) && keys.contains(&ordered.key);
        let pulls = !ordered.order.ask.is_question() && !ordered.order.hold;
        counts && pulls && wanted(ordered.node) && !ordered.answered && !ordered.silent && such(ordered)
    });
    running.map(|ordered| ordered.node).collect()
}

/// On how many nodes the API server's objects show a pull for this job that is under way.
fn shown(sim: &Sim, job: &Job) -> usize {
    let runs = |agent: &crate::sim::AgentObject| {
        agent.orders.iter().any(|(key, order)| {
            let report = agent.reports.get(key);
            let ended = report.is_some_and(|report| report.ended() && report.asked == order.asked);
            let seen = report.map_or(order.asked, |report| report.updated.max(order.asked));
            let silent = seen + pace::SILENCE <= sim.now;
            let pulls = !order.ask.is_question() && !order.hold;
            // It goes on for others: this job is content with what is there.
            let content = job.pull.policy == Policy::IfNotPresent && report.is_some_and(|report| report.present);
            pulls && order.jobs.contains(&job.id) && !ended && !silent && !content
        })
    };
    sim.agents.values().filter(|agent| runs(agent)).count()
}

proptest! {
    #![proptest_config(config())]

    /// While a job is at its limit or (after it was lowered, or a silent or late node came back) over it, no node more is
    /// handed out.
    #[test]
    fn parallelism_is_never_exceeded(history in history()) {
        each_plan(&history, |before, after, _| {
            for job in after.jobs.values().filter(|job| !after.stands_still(&job.id)) {
                let (was, mut is) = (busy(before, job), busy(after, job));
                // What goes on for others alone holds no place.
                let over = |node: &NodeView<'_>| matches!(node.state, NodeState::Failed(..) | NodeState::Succeeded);
                for view in after.world.nodes(&job.id, after.now).iter().filter(|view| over(view)) {
                    is.remove(&*view.node);
                }
                // A late one that is asked anew for another job has its place again.
                let more = is.difference(&at_work(before, job, |_| true)).count();
                let limit = usize::try_from(job.parallelism).unwrap();
                assert!(more == 0 || is.len() <= limit, "{}: {was:?} became {is:?}, limit {limit}", job.id);
            }
        });
    }

    /// When more nodes of a job have failed than it tolerates, no other begins.
    #[test]
    fn past_its_tolerance_a_job_begins_nothing(history in history()) {
        each_plan(&history, |before, after, _| {
            for job in after.jobs.values().filter(|job| job.tolerance.is_some() && !after.stands_still(&job.id)) {
                let failed = |sim: &Sim| -> BTreeSet<String> {
                    let tried = |view: &NodeView<'_>| {
                        matches!(view.state, NodeState::Failed(reason, _) if reason != Reason::FailureTolerance)
                    };
                    let views = sim.world.nodes(&job.id, sim.now).into_iter().filter(tried);
                    views.map(|view| view.node.to_string()).collect()
                };
                let nodes = after.world.nodes(&job.id, after.now).len();
                let failed = failed(before).intersection(&failed(after)).count();
                let (was, is) = (busy(before, job), busy(after, job));
                assert!(!job.gives_up(failed, nodes) || is.is_subset(&was), "{}: {was:?} became {is:?}", job.id);
            }
        });
    }

    /// The same as the API server shows it, at every moment: what is handed out there and what is not yet dropped.
    #[test]
    fn no_object_shows_more_pulls_than_parallelism_allows(history in history()) {
        let mut sim = Sim::new();
        let mut limits: BTreeMap<JobId, usize> = BTreeMap::new();
        // A node that is taken for silent gives its place away, and may come back.
        let silences = |happening: &&Happening| matches!(happening, Happening::Pass { seconds: 6.. });
        for happening in history.iter().filter(|happening| !silences(happening)) {
            let before: BTreeMap<JobId, usize> = sim.jobs.values().map(|job| (job.id.clone(), shown(&sim, job))).collect();
            sim.happen(happening);
            if sim.rolled_back {
                break;
            }
            for job in sim.jobs.values().filter(|job| !sim.stands_still(&job.id)) {
                // Lowered while orders are on their way, a limit holds for the next ones.
                let limit = limits.entry(job.id.clone()).or_default();
                *limit = (*limit).max(usize::try_from(job.parallelism).unwrap());
                let (was, is) = (before.get(&job.id).copied().unwrap_or_default(), shown(&sim, job));
                assert!(is <= was || is <= *limit, "{}: {was} became {is}, limit {limit}: {happening:?}", job.id);
            }
        }
    }

    /// Nothing is handed out for a job that is gone, also when an answer about it comes late.
    #[test]
    fn a_job_that_is_gone_gets_no_order(history in history()) {
        each_plan(&history, |_, after, plan| {
            let jobs: BTreeSet<&JobId> = after.jobs.values().map(|job| &job.id).collect();
            for (node, changes) in changes(&after.world, plan) {
                for order in changes.values().flatten() {
                    let known = |id: &JobId| jobs.contains(id) || after.stands_still(id);
                    assert!(order.jobs.iter().all(known), "{node}: {order:?}");
                }
            }
        });
    }
}
