//! The nodes of jobs that want only some of those that they could have: so many, or those that are Ready. Which they are is decided by [`spread::choose`]; when, here: at first,
//! when the job has changed, and when a node has. A node stays chosen while it is there, Ready, and one that the job could have.

use std::collections::BTreeSet;

use super::{JobState, NodeSlot, World};
use crate::model::{Job, JobId, NamedNodes, Node, NodeName, Pick};
use crate::select::could_have;
use crate::spread::{self, Candidate};

/// How far the choice of a job is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Choice {
    /// Something has changed that it goes by.
    pub(super) due: bool,
    by: ChosenBy,
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
        Self { due: true, by }
    }
}

impl World {
    /// Chooses nodes for the jobs of which something has changed that the choice goes by.
    pub(super) fn choose_nodes(&mut self) {
        let due = |state: &&JobState| {
            let job = &state.job;
            state.choice.due && job.ended.is_none() && job.unseen.is_none() && !self.stands_still(job)
        };
        let due: Vec<JobId> = self.jobs.values().filter(due).map(|state| state.job.id.clone()).collect();
        for id in due {
            let names = self.jobs.get(&id).and_then(|state| self.other_choice(state));
            if let Some(state) = self.jobs.get_mut(&id) {
                state.choice = Choice { due: false, by: ChosenBy::World };
            }
            if let Some(names) = names {
                self.set_names(&id, names);
            }
        }
    }

    /// The nodes to choose for a job, where they are others than it has.
    fn other_choice(&self, state: &JobState) -> Option<NamedNodes> {
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
        let number = pick.number.map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        let stays = |name: &NodeName| self.slot_of(name).is_some_and(|slot| fitting(job, pick, slot).is_some());
        let chosen = match Some(had.len()) == number && had.iter().all(stays) {
            true => had,
            false => {
                let slots = self.by_name.values().filter_map(|&at| self.slots.get(at));
                let candidates = slots.filter_map(|slot| {
                    let (node, chosen) = (fitting(job, pick, slot)?, had.contains(&slot.name));
                    // A node is not chosen anew that is cordoned. Nor is one on which nobody would pull, if another one can take its place.
                    let pulls = slot.agent || number.is_none();
                    (chosen || !node.cordoned && pulls).then(|| Candidate {
                        name: &slot.name,
                        zone: node.zone(),
                        chosen,
                    })
                });
                spread::choose(number.unwrap_or(usize::MAX), candidates)
            }
        };
        (!chosen.iter().eq(names.keys())).then(|| Job::named(chosen))
    }

    /// The nodes that the job could have and that are Ready, whatever it may use of them.
    pub(super) fn ready_for<'a>(&'a self, job: &'a Job, pick: &'a Pick) -> impl Iterator<Item = &'a Node> + 'a {
        let slots = self.by_name.values().filter_map(|&at| self.slots.get(at));
        slots.filter_map(|slot| ready(job, pick, slot))
    }

    fn slot_of(&self, name: &NodeName) -> Option<&NodeSlot> {
        self.by_name.get(name).and_then(|&at| self.slots.get(at))
    }
}

/// The node in this slot, if the job could have it and may use it, and it is Ready.
fn fitting<'a>(job: &Job, pick: &Pick, slot: &'a NodeSlot) -> Option<&'a Node> {
    ready(job, pick, slot).filter(|node| job.bounds.allow(node))
}

/// The same, whether the job may use it or not.
fn ready<'a>(job: &Job, pick: &Pick, slot: &'a NodeSlot) -> Option<&'a Node> {
    let among = pick.among.as_ref().is_none_or(|among| among.contains_key(&slot.name));
    slot.node.as_ref().filter(|node| among && node.ready && !node.foreign && could_have(job, node))
}
