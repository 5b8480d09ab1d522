//! What a plan stands on: jobs that begin get their start, seats that something touched are looked at again.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::demand::answered;
use super::seat::{self, JudgedBy};
use super::{JobState, NodeSlot, Stale, World};
use crate::model::{Job, JobId};

impl World {
    /// Jobs that are planned for the first time start now.
    pub(super) fn start_jobs(&mut self, now: Timestamp) {
        let new = |id: &JobId| {
            self.jobs.get(id).is_some_and(|state| state.job.started.is_none() && self.may_be_served(&state.job))
        };
        let new: Vec<JobId> = self.dirty_jobs.iter().filter(|id| new(id)).cloned().collect();
        for id in new {
            let first_asked = self.jobs.get(&id).and_then(|state| self.first_asked(&state.job));
            if let Some(state) = self.jobs.get_mut(&id) {
                state.job.started = Some(first_asked.unwrap_or(now));
                state.stale = Stale::All;
                self.secrets.stale = true;
            }
        }
    }

    /// When the job first asked a node that is still at work: its start, where a controller stopped after it had
    /// written orders and before it had written the status.
    fn first_asked(&self, job: &Job) -> Option<Timestamp> {
        let unanswered = self.slots.iter().flat_map(|slot| {
            let keys = job.keys().flat_map(|key| [key, key.question()]);
            let orders = keys.filter_map(|key| Some((slot.orders.get(&key)?, slot.report(key))));
            orders.filter(|(order, report)| order.jobs.contains(&job.id) && !answered(order, *report))
        });
        unanswered.map(|(order, _)| order.asked).filter(|asked| *asked >= job.created).min()
    }

    /// Looks again at jobs of which every seat is stale: node by node and not job by job, because the facts about a
    /// node lie together. Looking at everything takes a third of the time. Jobs that name their nodes look at those alone, see
    /// [`World::refresh`].
    pub(super) fn refresh_all(&mut self, now: Timestamp) {
        let dirty = |state: &&JobState| {
            state.job.ended.is_none() && state.job.names.is_none() && self.dirty_jobs.contains(&state.job.id)
        };
        let stale = self.jobs.values().filter(dirty).filter(|state| matches!(state.stale, Stale::All));
        let digests: BTreeMap<JobId, Vec<bool>> =
            stale.map(|state| (state.job.id.clone(), self.digests_known(&state.job, now))).collect();
        let Self { jobs, slots, by_name, secrets, .. } = self;
        let stale = jobs.iter_mut().filter_map(|(id, state)| Some((state, digests.get(id)?)));
        let mut stale: Vec<(&mut JobState, &Vec<bool>)> = stale.collect();
        for (state, digests) in &mut stale {
            state.seats.clear();
            state.stale = Stale::Some(BTreeSet::new());
            state.digests.clone_from(digests);
        }
        for &at in by_name.values() {
            let Some(slot) = slots.get(at) else { continue };
            for (JobState { job, seats, .. }, digests) in &mut stale {
                if let Some(seat) = seat::seat(job, slot, JudgedBy { digests, secrets, now }) {
                    seats.push(at, seat);
                }
            }
        }
        stale.iter_mut().for_each(|(state, _)| state.seats.fit());
    }

    /// Looks again at the seats that something touched.
    pub(super) fn refresh(&self, state: &mut JobState, now: Timestamp) {
        let digests = self.digests_known(&state.job, now);
        let JobState { job, seats, stale, .. } = state;
        let known = JudgedBy { digests: &digests, secrets: &self.secrets, now };
        match std::mem::replace(stale, Stale::Some(BTreeSet::new())) {
            // Whether a digest is known decides for every node that could not learn it.
            Stale::Some(touched) if digests == state.digests => {
                for at in touched {
                    let seat = self.slots.get(at).and_then(|slot| seat::seat(job, slot, known));
                    seats.put(&self.slots, at, seat);
                }
            }
            _ => {
                seats.clear();
                for (at, slot) in self.candidates(job) {
                    if let Some(seat) = seat::seat(job, slot, known) {
                        seats.push(at, seat);
                    }
                }
                seats.fit();
            }
        }
        state.digests = digests;
    }

    /// The nodes that the job may want, by name: those that it names, or all.
    pub(super) fn candidates<'a>(&'a self, job: &'a Job) -> impl Iterator<Item = (usize, &'a NodeSlot)> + 'a {
        let named = job.names.iter().flatten().filter_map(|name| self.by_name.get(name.as_str()));
        let all = job.names.is_none().then(|| self.by_name.values());
        let slots = named.chain(all.into_iter().flatten());
        slots.filter_map(|&at| Some((at, self.slots.get(at)?)))
    }

    /// For each image of the job whether its digest is known.
    pub(super) fn digests_known(&self, job: &Job, now: Timestamp) -> Vec<bool> {
        let known = job.images.iter().enumerate().map(|(image, written)| {
            let Ok(reference) = &written.reference else { return true };
            reference.digest().is_some() || self.pin(job, image, now).is_some()
        });
        known.collect()
    }
}
