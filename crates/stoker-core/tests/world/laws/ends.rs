//! Every node waits for a reason, and every job comes to its end.

use std::sync::Arc;

use proptest::prelude::*;
use stoker_core::model::Job;
use stoker_core::select::selects;
use stoker_core::world::NodeState;
use stoker_core::{Completion, Event, Key, Policy, Reason, Stage, Waiting, pace};

use super::{config, each_plan, orders};
use crate::build::secs;
use crate::history::{Happening, history};
use crate::sim::{NODES, Sim};

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_idle_node_has_a_reason(history in history()) {
        each_plan(&history, |_, after, _| {
            // Two writes of one status may cross an edit: the World knows that the job has ended, and not yet that it has begun again.
            let has_ended = |job: &Job| after.world.job(&job.id).is_some_and(|known| known.ended.is_some());
            // Nothing is decided about a job whose nodes cannot be seen: it shows its last plan, also when those that asked then are silent.
            let moves = |job: &Job| !after.stands_still(&job.id) && after.world.waits_for_sight(&job.id).is_none();
            let open = |job: &&Job| job.ended.is_none() && !has_ended(job) && moves(job);
            for job in after.jobs.values().filter(open) {
                let views = after.world.nodes(&job.id, after.now);
                for view in &views {
                    assert_ne!(view.state, NodeState::Waiting(Waiting::Pending), "{} on {}", job.id, view.node);
                    if let NodeState::Waiting(Waiting::Unresolved { by, .. }) = &view.state {
                        assert!(!by.is_empty(), "{} on {}: nobody is asking", job.id, view.node);
                    }
                }
                // The World knows which nodes are chosen.
                let wants = if job.pick.is_some() { after.world.job(&job.id) } else { Some(job) };
                let wanted = after.nodes.values().filter(|node| wants.is_some_and(|job| selects(job, node)));
                for node in wanted {
                    assert!(views.iter().any(|view| view.node == node.name), "{} on {}", job.id, node.name);
                }
            }
        });
    }

    /// Who is content with any image does not wait for those who want what the tag means now, and does not fail with them.
    #[test]
    fn an_image_that_is_there_is_enough(history in history()) {
        each_plan(&history, |_, after, _| {
            let content = |job: &&Job| job.pull.policy == Policy::IfNotPresent && !after.stands_still(&job.id);
            for job in after.world.jobs().filter_map(|id| after.world.job(id)).filter(content) {
                // A job may name a node that is not there. It waits for that node, whatever the object of the node's agent says.
                let views = after.world.nodes(&job.id, after.now).into_iter();
                for view in views.filter(|view| after.nodes.contains_key(&*view.node)) {
                    let (Some(agent), orders) = (after.agents.get(&*view.node), after.world.orders(&view.node)) else {
                        continue;
                    };
                    let (since, orders) = (job.since(&view.node, after.now), orders.unwrap_or_default());
                    let said = |key: Key| agent.reports.get(&key).zip(orders.get(&key));
                    let is_there = |key: Key| said(key).is_some_and(|(report, order)| {
                        // What an ended order says counts for jobs that began before its ask: later ones have the node look again.
                        let heard = report.asked >= since || !report.ended() && after.now < report.updated + pace::SILENCE;
                        report.present && report.asked <= order.asked && heard
                    });
                    let all = job.images.len() == job.keys().count();
                    if all && job.ended.is_none() && job.keys().all(|key| is_there(key) || is_there(key.question())) {
                        assert_eq!(view.state, NodeState::Succeeded, "{} on {}", job.id, view.node);
                    }
                }
            }
        });
    }

    /// What a look brought is no answer to a job.
    #[test]
    fn nobody_fails_because_it_looked_in_vain(history in history()) {
        each_plan(&history, |_, after, _| {
            for job in after.jobs.values() {
                for view in after.world.nodes(&job.id, after.now) {
                    assert!(!matches!(view.state, NodeState::Failed(Reason::Unresolved, _)), "{} on {}", job.id, view.node);
                }
            }
        });
    }

    /// Also where the clock was set back, or another controller with a slower one leads, and agents keep answers from times to come.
    #[test]
    fn it_converges(history in history(), back in prop_oneof![Just(0), 1..60u64, 60..7_200u64]) {
        let mut sim = each_plan(&history, |_, _, _| {});
        sim.thaw_all();
        sim.now -= secs(back);
        for policy in 0..2 {
            sim.happen(&Happening::Policy { policy, rule: None });
        }
        for node in 0..NODES.len() {
            sim.happen(&Happening::Node { node, ready: true, main: true });
            sim.happen(&Happening::Agent { node });
            sim.happen(&Happening::Features { node, sealed: true });
            sim.happen(&Happening::Cordon { node, cordon: false });
        }
        for (name, mut job) in sim.jobs.clone() {
            (job.suspend, job.parallelism) = (false, job.parallelism.max(1));
            job.unseen = None;
            // Who may not go upstream may wait for ever.
            (job.pull.source, job.pull.upstream_copies) = Default::default();
            // A standing job has the nodes that it names, which are all there.
            let there = job.names.iter().flat_map(|names| names.iter()).filter(|(name, _)| NODES.contains(&&***name));
            let there = there.map(|(name, own)| (name.clone(), *own)).collect();
            job.names = job.is_standing().then(|| Arc::new(there));
            if let Some(pick) = &mut job.pick {
                // So many there are, whatever their labels.
                (pick.number, pick.among) = (pick.number.map(|number| number.min(4)), None);
            }
            sim.jobs.insert(name, job.clone());
            sim.world.apply(Event::Job(Box::new(job)));
        }
        let settled = |sim: &Sim| sim.jobs.values().all(|job| match job.completion {
            Completion::Once { .. } => job.ended.is_some(),
            Completion::Continuous { .. } | Completion::Standing => sim.said(&job.id) == Some(Stage::Synced),
        });
        for round in 0..40 {
            // Jobs wait for Secrets from their starts on, which are still to come. Continuous jobs ask failed nodes again after a while: then,
            // and not in the rounds that must be quiet.
            sim.now += if round == 20 { secs(back) + pace::ASK_FAILED_AGAIN } else { secs(0) };
            sim.read();
            let plan = sim.plan();
            assert!(round < 30 || plan.orders.is_empty(), "a node is asked for ever: {plan:#?}");
            sim.deliver_all();
            sim.all_work();
            sim.now += secs(1);
        }
        assert!(settled(&sim), "{:#?}", sim.jobs);
        let unfinished = orders(&sim).into_iter().filter(|ordered| !ordered.answered).count();
        assert_eq!(unfinished, 0, "an order is left that nobody wants");
    }
}
