//! What a plan stands on: jobs that begin get their start, seats that something touched are looked at again.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::demand::{Demand, answered};
use super::seat::{self, Known, Seat};
use super::{JobState, Stale, World};
use crate::model::{Job, JobId, Key};

impl World {
    /// Jobs that are planned for the first time start now.
    pub(super) fn start_jobs(&mut self, now: Timestamp) {
        let new = |id: &JobId| self.jobs.get(id).is_some_and(|state| state.job.started.is_none() && state.job.runs());
        let new: Vec<JobId> = self.dirty_jobs.iter().filter(|id| new(id)).cloned().collect();
        for id in new {
            let first_asked = self.jobs.get(&id).and_then(|state| self.first_asked(&state.job));
            if let Some(state) = self.jobs.get_mut(&id) {
                state.job.started = Some(first_asked.unwrap_or(now));
                state.stale = Stale::All;
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
    /// node lie together. Looking at everything takes a third of the time.
    pub(super) fn refresh_all(&mut self, now: Timestamp) {
        let Self { jobs, slots, dirty_jobs, secrets, demand, .. } = self;
        let dirty = |state: &JobState| dirty_jobs.contains(&state.job.id) && matches!(state.stale, Stale::All);
        let stale = jobs.values_mut().filter(|state| state.job.ended.is_none() && dirty(state));
        let mut stale: Vec<(&mut JobState, Vec<bool>)> = stale
            .map(|state| {
                let digests = digests_known(demand, &state.job, now);
                (state, digests)
            })
            .collect();
        for (state, _) in &mut stale {
            state.seats.clear();
            state.seats.reserve(slots.len());
            state.stale = Stale::Some(BTreeSet::new());
        }
        for slot in slots {
            for (JobState { job, seats, .. }, digests) in &mut stale {
                seats.push(seat::seat(job, slot, Known { digests, secrets, now }));
            }
        }
    }

    /// Looks again at the seats that something touched.
    pub(super) fn refresh(&self, state: &mut JobState, now: Timestamp) {
        let JobState { job, seats, stale, .. } = state;
        seats.resize(self.slots.len(), Seat::default());
        let digests = digests_known(&self.demand, job, now);
        let known = Known { digests: &digests, secrets: &self.secrets, now };
        let touched = match std::mem::replace(stale, Stale::Some(BTreeSet::new())) {
            Stale::All => (0..self.slots.len()).collect(),
            Stale::Some(touched) => touched,
        };
        for at in touched {
            if let (Some(seat), Some(slot)) = (seats.get_mut(at), self.slots.get(at)) {
                *seat = seat::seat(job, slot, known);
            }
        }
    }
}

/// For each image of the job whether its digest is known.
pub(super) fn digests_known(demand: &BTreeMap<Key, Demand>, job: &Job, now: Timestamp) -> Vec<bool> {
    let since = job.since(now);
    let known = job.images.iter().map(|image| {
        let Ok(reference) = &image.reference else { return true };
        let pin = || demand.get(&reference.key()).and_then(|demand| demand.pin(since));
        reference.digest().is_some() || pin().is_some()
    });
    known.collect()
}
