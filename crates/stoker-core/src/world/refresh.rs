//! What a plan stands on: jobs that begin get their start, seats that something touched are looked at again.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::demand::answered;
use super::seat::{self, JudgedBy};
use super::told::Standings;
use super::{JobState, NodeSlot, Stale, World};
use crate::model::{Job, JobId};

/// For each image of a job whether its digest is known, by the time from which nodes count: a node may know what was asked at or after its
/// own time. There is one such time for most jobs.
#[derive(Clone, Debug, Default)]
pub(super) struct Digests {
    by_since: BTreeMap<Timestamp, Vec<bool>>,
    /// When a time of a node that is too far ahead to count begins to.
    pub(super) later: Option<Timestamp>,
}

impl Digests {
    /// What a node may know that counts from this time.
    pub(super) fn of(&self, since: Timestamp) -> &[bool] {
        self.by_since.get(&since).map(Vec::as_slice).unwrap_or_default()
    }

    /// The time from which all nodes count, where it is one for all.
    pub(super) fn only_since(&self) -> Option<Timestamp> {
        self.by_since.keys().next().copied().filter(|_| self.by_since.len() == 1)
    }

    /// The times from which nodes count that do not know all digests.
    pub(super) fn lacking(&self) -> impl Iterator<Item = Timestamp> + '_ {
        self.by_since.iter().filter(|(_, known)| known.contains(&false)).map(|(since, _)| *since)
    }

    /// The times of which something else is known than before.
    fn changed(&self, before: &Self) -> BTreeSet<Timestamp> {
        let changed = self.by_since.iter().filter(|(since, known)| before.by_since.get(since) != Some(known));
        changed.map(|(since, _)| *since).collect()
    }
}

impl World {
    /// Jobs that are planned for the first time start now; standing jobs have a start from the beginning.
    pub(super) fn start_jobs(&mut self, now: Timestamp) {
        let new = |id: &JobId| {
            let job = self.jobs.get(id).map(|state| &state.job).filter(|job| job.started.is_none());
            job.is_some_and(|job| job.runs() && !self.is_frozen(id))
        };
        let new: Vec<JobId> = self.dirty_jobs.iter().filter(|id| new(id)).cloned().collect();
        for id in new {
            let first_asked = self.jobs.get(&id).and_then(|state| self.first_asked(&state.job, now));
            if let Some(state) = self.jobs.get_mut(&id) {
                state.job.started = Some(first_asked.unwrap_or(now));
                state.stale = Stale::All;
                self.secrets.touch(&state.job);
            }
        }
    }

    /// When the job first asked a node that is still at work: its start, where a controller stopped after it had
    /// written orders and before it had written the status.
    fn first_asked(&self, job: &Job, now: Timestamp) -> Option<Timestamp> {
        let unanswered = self.slots.iter().flat_map(|slot| {
            // The times of a foreign node are what somebody has written.
            let latest = if slot.is_foreign() { now } else { Timestamp::MAX };
            let keys = job.keys().flat_map(|key| [key, key.question()]);
            let orders = keys.filter_map(|key| Some((slot.orders.get(&key)?, slot.report(key))));
            let orders = orders.filter(move |(order, _)| order.asked <= latest);
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
        let digests: BTreeMap<JobId, Digests> =
            stale.map(|state| (state.job.id.clone(), self.digests_known(&state.job, now))).collect();
        let Self { jobs, slots, by_name, secrets, told_nodes, .. } = self;
        let stale = jobs.iter_mut().filter_map(|(id, state)| Some((state, digests.get(id)?)));
        let mut stale: Vec<(&mut JobState, &Digests)> = stale.collect();
        for (state, digests) in &mut stale {
            if told_nodes.is_some() && state.before.is_none() {
                state.before = Some(Standings::of(&state.seats));
            }
            state.seats.clear();
            state.stale = Stale::Some(BTreeSet::new());
            state.digests.clone_from(digests);
        }
        for &at in by_name.values() {
            let Some(slot) = slots.get(at) else { continue };
            for (JobState { job, seats, .. }, digests) in &mut stale {
                if let Some(seat) = seat::seat(job, slot, JudgedBy::on(slot, job, digests, secrets, now)) {
                    seats.push(at, seat);
                }
            }
        }
        stale.iter_mut().for_each(|(state, _)| state.seats.fit());
    }

    /// Looks again at the seats that something touched.
    pub(super) fn refresh(&self, state: &mut JobState, now: Timestamp) {
        let digests = self.digests_known(&state.job, now);
        // Whether a digest is known decides for every node that could not learn it.
        let changed = digests.changed(&state.digests);
        let JobState { job, seats, stale, .. } = state;
        let known = |slot: &NodeSlot| JudgedBy::on(slot, job, &digests, &self.secrets, now);
        match std::mem::replace(stale, Stale::Some(BTreeSet::new())) {
            Stale::Some(mut touched) if changed.len() < digests.by_since.len() => {
                if !changed.is_empty() {
                    let concerned = |at: &usize| changed.contains(&self.since(job, *at, now));
                    touched.extend(seats.iter().map(|(at, _)| *at).filter(concerned));
                }
                for at in touched {
                    let seat = self.slots.get(at).and_then(|slot| seat::seat(job, slot, known(slot)));
                    seats.put(&self.slots, at, seat);
                }
            }
            _ => {
                seats.clear();
                for (at, slot) in self.candidates(job) {
                    if let Some(seat) = seat::seat(job, slot, known(slot)) {
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
        let named = job.names.iter().flat_map(|names| names.keys()).filter_map(|name| self.by_name.get(name));
        let all = job.names.is_none().then(|| self.by_name.values());
        let slots = named.chain(all.into_iter().flatten());
        slots.filter_map(|&at| Some((at, self.slots.get(at)?)))
    }

    /// For each image of the job whether its digest is known.
    pub(super) fn digests_known(&self, job: &Job, now: Timestamp) -> Digests {
        let known = |since: Timestamp| {
            let images = job.images.iter().enumerate().map(|(image, written)| {
                let Ok(reference) = &written.reference else { return true };
                reference.digest().is_some() || self.pin(job, image, since, now).is_some()
            });
            images.collect()
        };
        let (sinces, later) = job.sinces(now);
        Digests { by_since: sinces.into_iter().map(|since| (since, known(since))).collect(), later }
    }
}
