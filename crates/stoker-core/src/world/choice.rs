//! The nodes of jobs that want only some of those that they could have: so many, or those that are Ready. Which they are is decided by
//! [`spread::choose`]; when, here: at first, when the job has changed, and when a node has. A node stays chosen while it is there and one that the job
//! could have. One that is not Ready stays until another one takes its place: when the control plane loses all nodes for a moment, jobs must not
//! forget theirs and move to whichever comes back first. A job that wants all Ready nodes gives a node up that is not.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::{JobState, NodeSlot, World};
use crate::model::{Job, JobId, NamedNodes, Node, NodeName, Pick, after};
use crate::pace;
use crate::select::could_have;
use crate::spread::{self, Candidate};

/// How far the choice of a job is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Choice {
    /// Something has changed that it goes by.
    pub(super) due: bool,
    by: ChosenBy,
    /// When time alone changes it: a node has been Ready for long enough then to take the place of one that is not.
    pub(super) later: Option<Timestamp>,
}

/// What the names of the job are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChosenBy {
    /// Not known yet: its orders tell which nodes it had.
    #[default]
    Nobody,
    /// What the object said.
    Object,
    /// What this World has chosen. That is newer than what the object says.
    World,
}

impl Choice {
    /// Gives a job that was seen the nodes that are chosen for it.
    pub(super) fn of(job: &mut Job, old: Option<&JobState>) -> Self {
        let Some(pick) = &mut job.pick else { return Self::default() };
        let said = pick.chosen.take();
        let old = old.filter(|old| old.job.pick.is_some());
        let kept = old.filter(|old| old.choice.by == ChosenBy::World || said.is_none());
        let (names, by) = match (kept, said) {
            (Some(old), _) => (old.job.names.clone(), old.choice.by),
            (None, Some(said)) => (Some(Job::named(said)), ChosenBy::Object),
            (None, None) => (Some(NamedNodes::default()), ChosenBy::Nobody),
        };
        job.names = names;
        Self { due: true, by, later: None }
    }
}

impl World {
    /// Chooses nodes for the jobs of which something has changed that the choice goes by.
    pub(super) fn choose_nodes(&mut self, now: Timestamp) {
        let due = |state: &&JobState| {
            let job = &state.job;
            state.choice.due && job.ended.is_none() && job.unseen.is_none() && !self.stands_still(job)
        };
        let due: Vec<JobId> = self.jobs.values().filter(due).map(|state| state.job.id.clone()).collect();
        for id in due {
            let Some((names, later)) = self.jobs.get(&id).and_then(|state| self.choice_of(state, now)) else {
                continue;
            };
            let Some(state) = self.jobs.get_mut(&id) else { continue };
            if state.choice.later != later {
                // It is to be woken at another time.
                self.dirty_jobs.insert(id.clone());
            }
            state.choice = Choice { due: false, by: ChosenBy::World, later };
            if state.job.names.as_ref() != Some(&names) {
                self.set_names(&id, names);
            }
        }
    }

    /// The nodes to choose for a job, and when time alone chooses others.
    fn choice_of(&self, state: &JobState, now: Timestamp) -> Option<(NamedNodes, Option<Timestamp>)> {
        let job = &state.job;
        let pick = job.pick.as_ref()?;
        let names = job.names.clone().unwrap_or_default();
        let ordered = |name: &NodeName| {
            job.keys().any(|key| self.slot_of(name).is_some_and(|slot| slot.is_ordered(&job.id, key)))
        };
        let had: BTreeSet<NodeName> = match state.choice.by {
            ChosenBy::Object | ChosenBy::World => names.keys().cloned().collect(),
            ChosenBy::Nobody => self.by_name.keys().filter(|name| ordered(name)).cloned().collect(),
        };
        let Some(number) = pick.number else {
            // Another one takes nobody's place, so nobody needs an agent to be chosen. A node that is cordoned is not chosen anew.
            let wanted = self.ready_for(job, pick).filter(|node| had.contains(&node.name) || !node.cordoned);
            let chosen: BTreeSet<NodeName> = wanted.map(|node| node.name.clone()).collect();
            let same = chosen.iter().eq(names.keys());
            return Some((if same { names } else { Job::named(chosen) }, None));
        };
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        let fits = |name: &NodeName| self.slot_of(name).and_then(|slot| fitting(job, pick, slot));
        let stays = |name: &NodeName| fits(name).is_some_and(|node| node.ready);
        if had.len() == number && had.iter().all(stays) {
            let same = had.iter().eq(names.keys());
            return Some((if same { names } else { Job::named(had) }, None));
        }
        let away: Vec<&Node> = had.iter().filter_map(fits).filter(|node| !node.ready).collect();
        let slots = self.by_name.values().filter_map(|&at| self.slots.get(at));
        let fitting = slots.filter_map(|slot| Some((slot, fitting(job, pick, slot)?)));
        // A node is not chosen anew that is cordoned, or on which nobody would pull.
        let free = |slot: &NodeSlot, node: &Node| node.ready && !node.cordoned && slot.agent;
        let ready: Vec<(&Node, bool)> = fitting
            .map(|(slot, node)| (node, had.contains(&slot.name), free(slot, node)))
            .filter(|(node, had, free)| if *had { node.ready } else { *free })
            .map(|(node, had, _)| (node, had))
            .collect();
        let staying = ready.iter().filter(|(_, had)| *had).count();
        let away: Vec<&Node> = away.into_iter().take(number.saturating_sub(staying)).collect();
        let chosen = choose(number, ready.iter().copied().chain(away.iter().map(|node| (*node, true))));
        // Who was there before the first of them went, or has been there for long since.
        let went = away.iter().filter_map(|node| node.ready_changed).min();
        let settled = |node: &Node| node.ready_changed.filter(|came| went.is_some_and(|went| went < *came));
        let settles = |node: &Node| settled(node).map(|came| after(came, pace::READY_AGAIN)).filter(|then| *then > now);
        let spare: Vec<&Node> =
            ready.iter().map(|(node, _)| *node).filter(|node| !chosen.contains(&node.name)).collect();
        let steady = spare.iter().filter(|node| settles(node).is_none()).count();
        let given_up: BTreeSet<&NodeName> = away.iter().rev().take(steady).map(|node| &node.name).collect();
        let later = spare.iter().filter_map(|node| settles(node)).min().filter(|_| given_up.len() < away.len());
        if given_up.is_empty() {
            return Some((Job::named(chosen), later));
        }
        let known = ready.iter().map(|(node, _)| *node).chain(away.iter().copied());
        let kept = known.filter(|node| chosen.contains(&node.name) && !given_up.contains(&node.name));
        let chosen = choose(number, kept.map(|node| (node, true)).chain(spare.iter().map(|node| (*node, false))));
        Some((Job::named(chosen), later))
    }

    /// The nodes that the job could have, may use, and that are Ready.
    fn ready_for<'a>(&'a self, job: &'a Job, pick: &'a Pick) -> impl Iterator<Item = &'a Node> + 'a {
        let slots = self.by_name.values().filter_map(|&at| self.slots.get(at));
        slots.filter_map(|slot| fitting(job, pick, slot)).filter(|node| node.ready)
    }

    fn slot_of(&self, name: &NodeName) -> Option<&NodeSlot> {
        self.by_name.get(name).and_then(|&at| self.slots.get(at))
    }
}

/// Chooses so many of these nodes, each with whether it is chosen.
fn choose<'a>(number: usize, nodes: impl Iterator<Item = (&'a Node, bool)>) -> BTreeSet<NodeName> {
    spread::choose(number, nodes.map(|(node, chosen)| Candidate { name: &node.name, zone: node.zone(), chosen }))
}

/// The node in this slot, if the job could have it.
fn fitting<'a>(job: &Job, pick: &Pick, slot: &'a NodeSlot) -> Option<&'a Node> {
    let among = pick.among.as_ref().is_none_or(|among| among.contains_key(&slot.name));
    let could = |node: &&Node| could_have(job, node) && job.bounds.allow(node);
    slot.node.as_ref().filter(|node| among && !node.foreign).filter(could)
}
