//! Secrets and their copies: what an order may use, what has to be copied, what nobody needs any more, and what a
//! person is told where one is not there. Only names come here, never a login.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::held::Held;
use super::seat::{Failure, Wait};
use super::{Event, Stale, World};
use crate::model::{CopyName, Job, Key, SecretId, after};
use crate::pace::{AWAIT_SECRET, SPARE_COPY};
use crate::reason::Reason;

/// One thing to do about copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyChange {
    /// Copy this Secret under this name.
    Make {
        /// The name of the copy.
        copy: CopyName,
        /// A Secret with its content.
        from: SecretId,
    },
    /// Remove a copy that no job needs.
    Remove(CopyName),
}

/// What is known about Secrets.
#[derive(Clone, Debug, Default)]
pub(super) struct Secrets {
    /// Those that are there, with the names of their copies.
    there: BTreeMap<SecretId, CopyName>,
    /// Copies that are there; since when nobody needs them.
    copies: BTreeMap<CopyName, Option<Timestamp>>,
    /// Copies that were handed out to be made, and are not there yet.
    making: BTreeSet<CopyName>,
    /// Copies that were handed out to be removed, and are still there.
    removing: BTreeSet<CopyName>,
    /// Secrets of others under names that copies may need. No decision depends on them: a copy that cannot be made is
    /// tried again by whoever makes it, and people are told.
    taken: BTreeSet<SecretId>,
}

impl Secrets {
    /// Whether a copy is there and stays.
    fn usable(&self, copy: &CopyName) -> bool {
        self.copies.contains_key(copy) && !self.removing.contains(copy)
    }

    pub(super) fn set_taken(&mut self, id: SecretId, taken: bool) {
        match taken {
            true => self.taken.insert(id),
            false => self.taken.remove(&id),
        };
    }

    /// What is in the way of the copy of this Secret.
    pub(super) fn in_the_way(&self, id: &SecretId) -> Option<&SecretId> {
        let copy = self.there.get(id)?;
        self.taken.iter().find(|taken| taken.name == copy.as_str())
    }

    /// Whether this image of the job has a login that an order does not have.
    pub(super) fn untried(&self, job: &Job, image: usize, order: &Held) -> bool {
        let named = job.images.get(image).into_iter().flat_map(|image| &image.secrets);
        named.filter_map(|id| self.there.get(id)).any(|copy| !order.terms.secrets.contains(copy))
    }
}

impl World {
    pub(super) fn set_secret(&mut self, event: Event) {
        let Secrets { there, copies, making, removing, .. } = &mut self.secrets;
        let touched: BTreeSet<SecretId> = match event {
            Event::Secret(id, copy) => match there.insert(id.clone(), copy.clone()) {
                Some(old) if old == copy => return,
                _ => BTreeSet::from([id]),
            },
            Event::SecretGone(id) => match there.remove(&id) {
                None => return,
                Some(_) => BTreeSet::from([id]),
            },
            Event::Copy(copy) => {
                making.remove(&copy);
                if copies.contains_key(&copy) {
                    return;
                }
                copies.insert(copy.clone(), None);
                originals(there, &copy)
            }
            Event::CopyGone(copy) => {
                removing.remove(&copy);
                if copies.remove(&copy).is_none() {
                    return;
                }
                originals(there, &copy)
            }
            _ => return,
        };
        self.touch_users(&touched);
    }

    /// Every job that names one of these Secrets, and every order of its images, is looked at again.
    fn touch_users(&mut self, secrets: &BTreeSet<SecretId>) {
        let mut keys: BTreeSet<Key> = BTreeSet::new();
        for (id, state) in self.jobs.iter_mut().filter(|(_, state)| state.job.ended.is_none()) {
            let uses = state.job.images.iter().filter(|image| image.secrets.iter().any(|id| secrets.contains(id)));
            let mut uses = uses.filter_map(|image| image.reference.as_ref().ok()).peekable();
            if uses.peek().is_some() {
                keys.extend(uses.map(|reference| reference.key()));
                state.stale = Stale::All;
                self.dirty_jobs.insert(id.clone());
            }
        }
        self.recheck_orders(&keys);
    }

    /// The copies that an order of this image for these jobs may use, each job's in its own order, and then those that it
    /// had for other jobs that want the image there: what was tried is not forgotten, or two jobs would have each other's
    /// logins tried by turns for ever. `None` while a copy is still to be made: until then an order keeps what it has.
    pub(super) fn logins(&self, at: usize, key: Key, jobs: &[&Job], had: &[CopyName]) -> Option<Vec<CopyName>> {
        let mut logins = self.copies(jobs, key)?;
        let others: Vec<&CopyName> = had.iter().filter(|copy| !logins.contains(copy)).collect();
        if !others.is_empty() {
            let wanting: Vec<&Job> = self.wanted_by(at, key).filter(|job| job.runs()).collect();
            let named = wanting.iter().flat_map(|job| job.secrets(key)).filter_map(|id| self.secrets.there.get(id));
            let named: BTreeSet<&CopyName> = named.filter(|copy| self.secrets.usable(copy)).collect();
            logins.extend(others.into_iter().filter(|copy| named.contains(copy)).cloned());
        }
        Some(logins)
    }

    fn copies(&self, jobs: &[&Job], key: Key) -> Option<Vec<CopyName>> {
        let mut jobs: Vec<&&Job> = jobs.iter().collect();
        jobs.sort_by(|a, b| a.id.cmp(&b.id));
        let mut copies = Vec::new();
        for copy in jobs.iter().flat_map(|job| job.secrets(key)).filter_map(|id| self.secrets.there.get(id)) {
            if !self.secrets.usable(copy) {
                return None;
            }
            if !copies.contains(copy) {
                copies.push(copy.clone());
            }
        }
        Some(copies)
    }

    /// The Secret that an open node waits for because of this image, and whether it is there and only its copy is not.
    pub(super) fn awaited<'a>(&self, job: &'a Job, image: usize) -> Option<(&'a SecretId, bool)> {
        let secrets = &job.images.get(image)?.secrets;
        let copying =
            secrets.iter().find(|id| self.secrets.there.get(id).is_some_and(|copy| !self.secrets.usable(copy)));
        let missing = || secrets.iter().find(|id| !self.secrets.there.contains_key(id));
        copying.map(|id| (id, true)).or_else(|| missing().map(|id| (id, false)))
    }

    /// Why such a node waits: for a copy as long as it takes, for a Secret that is not there only at the job's start.
    pub(super) fn secret_wait(&self, job: &Job, image: usize, now: Timestamp) -> Option<Wait> {
        match self.awaited(job, image)? {
            (_, true) => Some(Wait::Copying(image)),
            (_, false) => (now < awaited_until(job)).then_some(Wait::Missing(image)),
        }
    }

    /// When this job no longer waits for a Secret that is not there.
    pub(super) fn secrets_awaited(&self, job: &Job, now: Timestamp) -> Option<Timestamp> {
        let mut secrets = job.images.iter().flat_map(|image| &image.secrets);
        let missing = secrets.any(|id| !self.secrets.there.contains_key(id));
        Some(awaited_until(job)).filter(|until| missing && now < *until)
    }

    /// Copies to make and to remove, and when one that is spare becomes too old.
    pub(super) fn plan_copies(&mut self, now: Timestamp) -> (Vec<CopyChange>, Option<Timestamp>) {
        let jobs = self.jobs.values().map(|state| &state.job).filter(|job| job.ended.is_none());
        let named = jobs.flat_map(|job| &job.images).flat_map(|image| &image.secrets);
        let Secrets { there, copies, making, removing, .. } = &mut self.secrets;
        let wanted: BTreeMap<&CopyName, &SecretId> =
            named.filter_map(|id| there.get_key_value(id)).map(|(id, copy)| (copy, id)).collect();
        let mut changes = Vec::new();
        making.retain(|copy| wanted.contains_key(copy));
        for (copy, from) in &wanted {
            if !copies.contains_key(*copy) && making.insert((*copy).clone()) {
                changes.push(CopyChange::Make { copy: (*copy).clone(), from: (*from).clone() });
            }
        }
        let mut next: Option<Timestamp> = None;
        for (copy, spare) in copies {
            if wanted.contains_key(copy) {
                *spare = None;
                continue;
            }
            let until = after(*spare.get_or_insert(now), SPARE_COPY);
            if now < until {
                next = Some(next.map_or(until, |next| next.min(until)));
            } else if removing.insert(copy.clone()) {
                changes.push(CopyChange::Remove(copy.clone()));
            }
        }
        (changes, next)
    }

    /// The Secrets of a failed image that are not there.
    fn missing<'a>(&'a self, job: &'a Job, failure: Failure) -> impl Iterator<Item = &'a SecretId> + 'a {
        let named = job.images.get(failure.image).into_iter().flat_map(|image| &image.secrets);
        let wanted = named.filter(move |_| failure.reason == Reason::Unauthorized);
        wanted.filter(|id| !self.secrets.there.contains_key(id))
    }

    /// That a registry wants credentials is for want of a Secret, where one is missing.
    pub(super) fn failure_reason(&self, job: &Job, failure: Failure) -> Reason {
        match self.missing(job, failure).next() {
            Some(_) => Reason::SecretMissing,
            None => failure.reason,
        }
    }

    /// An agent's message with the Secrets that are missing, and those that it knows by their copies by the names that
    /// the job's user knows.
    pub(super) fn explain_secrets(&self, job: &Job, failure: Failure, message: &str) -> String {
        let mut text = message.to_string();
        for id in job.images.get(failure.image).into_iter().flat_map(|image| &image.secrets) {
            if let Some(copy) = self.secrets.there.get(id) {
                text = text.replace(copy.as_str(), &id.to_string());
            }
        }
        let missing: Vec<String> = self.missing(job, failure).map(|id| id.to_string()).collect();
        if missing.is_empty() {
            return text;
        }
        format!(
            "Secret {} is not there, or not of type kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg; create it, \
             or remove it from pullSecrets ({text})",
            missing.join(", ")
        )
    }
}

fn awaited_until(job: &Job) -> Timestamp {
    after(job.started.unwrap_or(job.created), AWAIT_SECRET)
}

/// The Secrets with the content of this copy.
fn originals(there: &BTreeMap<SecretId, CopyName>, copy: &CopyName) -> BTreeSet<SecretId> {
    there.iter().filter(|(_, theirs)| *theirs == copy).map(|(id, _)| id.clone()).collect()
}
