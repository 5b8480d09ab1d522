//! Jobs that come, change and go.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::choice::Choice;
use super::{JobState, Stale, World};
use crate::model::{Job, JobId, Key, NamedNodes};

impl World {
    pub(super) fn set_job(&mut self, mut job: Job) {
        let id = job.id.clone();
        if job.is_standing() {
            // It is not made and begun at some time, as an object is: it is there as long as what it stands for is.
            job.started = Some(job.started.unwrap_or(job.created));
        }
        let another = |old: &Job| old.uid != job.uid || old.created != job.created && !job.is_standing();
        if self.jobs.get(&id).is_some_and(|state| another(&state.job)) {
            // Another object of the same name: what was known of the old one says nothing about it.
            self.drop_job(&id);
        }
        let old = self.jobs.get(&id).map(|state| &state.job);
        if let Some(old) = old.filter(|old| old.ended.is_none()) {
            job.started = known_start(old.started, job.started);
        }
        // What is allowed is known of the job as it was until it is judged again.
        if let Some(old) = old {
            job.bind(old.bounds.clone());
        }
        let choice = Choice::of(&mut job, self.jobs.get(&id));
        if old == Some(&job) {
            return;
        }
        if let Some(names) = old.and_then(|old| other_names(old, &mut job)) {
            return self.set_names(&id, names);
        }
        old.into_iter().chain([&job]).for_each(|job| self.secrets.touch(job));
        let mut keys: BTreeSet<Key> = old.map(|old| old.keys().collect()).unwrap_or_default();
        for key in &keys {
            self.forget_demand(*key, &id);
        }
        keys.extend(job.keys());
        if job.ended.is_none() {
            for key in job.keys() {
                self.demand.entry(key).or_default().jobs.insert(id.clone());
            }
        }
        self.policies.touch(id.namespace());
        self.recheck_orders(&keys);
        match self.jobs.get_mut(&id) {
            Some(state) => {
                state.job = job;
                state.choice = choice;
                state.verdict = None;
                state.stale = Stale::All;
                state.expired = false;
                // Its object may say something else than what was last said: it is compared again.
                state.said = None;
            }
            None => {
                self.jobs.insert(id.clone(), JobState { choice, ..JobState::new(job) });
            }
        }
        self.dirty_jobs.insert(id);
    }

    /// The job wants other nodes by name, or some of them count from another time. All other nodes are as they were: a job may name thousands,
    /// of which one changes at a time.
    pub(super) fn set_names(&mut self, id: &JobId, names: NamedNodes) {
        let Some(state) = self.jobs.get_mut(id) else { return };
        let old = state.job.names.replace(names.clone()).unwrap_or_default();
        self.secrets.touch_times(&state.job);
        state.said = None;
        let gone = old.keys().filter(|name| !names.contains_key(*name));
        let other = names.iter().filter(|(name, since)| old.get(*name) != Some(since)).map(|(name, _)| name);
        let changed: Vec<usize> = gone.chain(other).filter_map(|name| self.by_name.get(name).copied()).collect();
        if let Stale::Some(seats) = &mut state.stale {
            seats.extend(changed.iter().copied());
        }
        self.dirty_jobs.insert(id.clone());
        for at in changed {
            self.dirty_slots.insert(at);
            if self.is_crowded(at) {
                // Orders that nobody wants any more make room for others.
                self.touch_node(at);
            }
        }
    }

    pub(super) fn drop_job(&mut self, id: &JobId) {
        self.dirty_jobs.remove(id);
        self.policies.touch(id.namespace());
        if let Some(state) = self.jobs.remove(id) {
            for (at, _) in state.seats.iter() {
                self.tell_node(*at);
            }
            self.secrets.touch(&state.job);
            let keys: BTreeSet<Key> = state.job.keys().collect();
            for key in &keys {
                self.forget_demand(*key, id);
            }
            self.recheck_orders(&keys);
        }
    }
}

/// The nodes that a job wants by name now, if nothing else of it has changed.
fn other_names(old: &Job, job: &mut Job) -> Option<NamedNodes> {
    let names = std::mem::replace(&mut job.names, old.names.clone());
    let same = old == job && old.names.is_some() && old.ended.is_none();
    job.names = names;
    job.names.clone().filter(|_| same)
}

/// The start that the World assumed holds until the object says another. A dialect that keeps whole seconds says the
/// same with less precision: going back to it would count answers from before the start.
fn known_start(assumed: Option<Timestamp>, said: Option<Timestamp>) -> Option<Timestamp> {
    match (assumed, said) {
        (Some(assumed), Some(said)) if assumed.as_second() == said.as_second() => Some(assumed),
        (assumed, said) => said.or(assumed),
    }
}
