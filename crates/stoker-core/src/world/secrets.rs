//! Secrets of jobs: which of their logins an order may use, and what a person is told where one cannot be used. Only names come here, never a login.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::demand::answered;
use super::held::HeldOrder;
use super::room::{ROOM_OF_LOGINS, ROOM_OF_LOGINS_OF_A_NAMESPACE};
use super::seat::{Seat, SeatFailure, SeatStanding, Wait};
use super::wanted::{Wanted, names_secrets};
use super::{NodeSlot, Stale, World};
use crate::model::{Found, Image, Job, JobId, Key, LoginId, Offer, SEALED, SecretId, after};
use crate::pace::AWAIT_SECRET;
use crate::reason::{Reason, Waiting};
use crate::reference::Reference;
use crate::rollup::{DESCRIBED_FAILURES, SecretTrouble};

/// The most logins of one namespace that are tried for an image: each costs requests, and some registries lock out who fails
/// often. Those of other namespaces are tried all the same.
pub const MOST_LOGINS: usize = 4;

/// What is known about Secrets.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownSecrets {
    /// What the Secrets that were read hold for each image that running jobs name them for, and when they were last asked for.
    found: BTreeMap<SecretId, (BTreeMap<Key, Found>, Timestamp)>,
    /// By namespace and image: the logins of all its running jobs, as they are tried; at most [`MOST_LOGINS`]. The same for
    /// all nodes, so that jobs of one namespace never try each other's logins by turns.
    allowed: BTreeMap<String, BTreeMap<Key, Vec<LoginId>>>,
    /// Namespaces of which a job or a Secret has changed since `allowed` was made.
    stale: BTreeSet<String>,
    pub(super) wanted: Wanted,
}

/// The Secrets of an image of this job. Only those of its own namespace count, whatever a dialect makes of its fields. An object of the cluster
/// has no namespace, and whoever may write it may name Secrets of any.
pub(super) fn named<'a>(job: &'a Job, image: &'a Image) -> impl Iterator<Item = &'a SecretId> + 'a {
    let namespace = job.id.namespace();
    image.secrets.iter().filter(move |id| namespace.is_empty() || id.namespace == namespace)
}

/// The images of a job that can be pulled, with their references.
pub(super) fn pullable(job: &Job) -> impl Iterator<Item = (&Image, &Reference)> {
    job.images.iter().filter_map(|image| Some((image, image.reference.as_ref().ok()?)))
}

impl KnownSecrets {
    /// A job came, went or changed. Nothing follows from one that names no Secret.
    pub(super) fn touch(&mut self, job: &Job) {
        if names_secrets(job) {
            self.wanted.touch(job.id.namespace());
            self.touch_logins(job.id.namespace());
        }
    }

    /// Nodes of a job count from other times than before: Secrets are to be read since then.
    pub(super) fn touch_times(&mut self, job: &Job) {
        if job.is_standing() && names_secrets(job) {
            self.wanted.touch(job.id.namespace());
        }
    }

    /// What the jobs of this namespace may use has changed.
    fn touch_logins(&mut self, namespace: &str) {
        if !self.stale.contains(namespace) {
            self.stale.insert(namespace.to_owned());
        }
    }

    /// The logins for an image that jobs of this namespace may use.
    fn allowed(&self, namespace: &str, key: Key) -> Option<&Vec<LoginId>> {
        self.allowed.get(namespace)?.get(&key)
    }

    /// What was found since this job began.
    fn found(&self, job: &Job, id: &SecretId, key: Key) -> Option<&Found> {
        let (found, asked) = self.found.get(id)?;
        found.get(&key).filter(|_| job.started.is_some_and(|started| started <= *asked))
    }

    /// What was found in each Secret of an image; `None` where it was not read yet.
    fn of<'a>(&'a self, job: &'a Job, image: usize) -> impl Iterator<Item = (&'a SecretId, Option<&'a Found>)> + 'a {
        let image = job.images.get(image).and_then(|image| Some((image, image.reference.as_ref().ok()?.key())));
        image.into_iter().flat_map(move |(image, key)| named(job, image).map(move |id| (id, self.found(job, id, key))))
    }

    /// The logins that this job lends for an image, of those that are tried.
    fn lent<'a>(&'a self, job: &'a Job, key: Key) -> impl Iterator<Item = &'a LoginId> + 'a {
        let allowed = self.allowed(job.id.namespace(), key);
        let offers = |id: &SecretId| match self.found(job, id, key) {
            Some(Found::Logins(offers)) => offers.iter().map(|offer| &offer.id).collect(),
            _ => Vec::new(),
        };
        let image = pullable(job).find(|(_, reference)| reference.key() == key);
        let own: BTreeSet<&LoginId> =
            image.into_iter().flat_map(|(image, _)| named(job, image)).flat_map(offers).collect();
        allowed.into_iter().flatten().filter(move |id| own.contains(id))
    }

    /// Whether what is in a Secret of this job is unknown: it was not read yet for this image, or may not be read.
    fn unknown(&self, job: &Job, key: Key) -> bool {
        let image = pullable(job).find(|(_, reference)| reference.key() == key);
        let unknown = |id| matches!(self.found(job, id, key), None | Some(Found::Unseen | Found::Forbidden));
        image.is_some_and(|(image, _)| named(job, image).any(unknown))
    }

    /// Whether this image of the job has a login that an order does not have.
    pub(super) fn untried(&self, job: &Job, image: usize, order: &HeldOrder) -> bool {
        let key =
            job.images.get(image).and_then(|image| image.reference.as_ref().ok()).map(|reference| reference.key());
        key.is_some_and(|key| self.lent(job, key).any(|id| !order.terms.logins.contains(id)))
    }
}

fn is_unauthorized(seat: &Seat) -> bool {
    matches!(seat.standing, SeatStanding::Failed(SeatFailure { reason: Reason::Unauthorized, .. }))
}

impl World {
    /// A Secret was read.
    pub(super) fn set_secret(&mut self, id: SecretId, found: BTreeMap<Key, Found>, asked: Timestamp) {
        let old = self.secrets.found.get(&id);
        // The same once more is news to jobs that have begun since it was last asked for.
        let known = old.filter(|(old, _)| *old == found).map(|(_, before)| *before);
        let asked = old.map_or(asked, |(_, before)| asked.max(*before));
        let news = |job: &Job| {
            known.is_none_or(|before| match job.is_standing() {
                true => own_times(job).any(|own| before < own && own <= asked),
                false => job.started.is_none_or(|started| before < started),
            })
        };
        self.secrets.found.insert(id.clone(), (found, asked));
        self.wanted_secrets();
        let users: BTreeSet<String> = self.secrets.wanted.users(&id).map(str::to_owned).collect();
        let mut jobs = self.jobs.values().map(|state| &state.job).filter(|job| users.contains(job.id.namespace()));
        if known.is_none() || jobs.any(news) {
            users.iter().for_each(|namespace| self.secrets.touch_logins(namespace));
        }
        self.touch_users(|job, image| news(job) && named(job, image).any(|named| *named == id));
    }

    /// Every job with such an image, and every order of such an image, is looked at again.
    fn touch_users(&mut self, uses: impl Fn(&Job, &Image) -> bool) {
        let mut keys: BTreeSet<Key> = BTreeSet::new();
        // What is said of nodes whose registry wants credentials depends on the Secrets ([`Self::failure_reason`]).
        let mut unauthorized: BTreeSet<usize> = BTreeSet::new();
        for (id, state) in self.jobs.iter_mut().filter(|(_, state)| state.job.ended.is_none()) {
            let mut used = pullable(&state.job).filter(|(image, _)| uses(&state.job, image)).peekable();
            if used.peek().is_some() {
                keys.extend(used.map(|(_, reference)| reference.key()));
                unauthorized.extend(state.seats.iter().filter(|(_, seat)| is_unauthorized(seat)).map(|(at, _)| *at));
                state.stale = Stale::All;
                self.dirty_jobs.insert(id.clone());
            }
        }
        unauthorized.into_iter().for_each(|at| self.tell_node(at));
        self.recheck_orders(&keys);
    }

    /// Chooses again which logins are tried, after a job or a Secret has changed.
    pub(super) fn choose_logins(&mut self) {
        let stale = std::mem::take(&mut self.secrets.stale);
        if stale.is_empty() {
            return;
        }
        self.wanted_secrets();
        // What nobody reads again would only become wrong.
        let mut forgotten: BTreeSet<SecretId> = BTreeSet::new();
        let KnownSecrets { found, wanted, .. } = &mut self.secrets;
        found.retain(|id, (found, _)| {
            let known = found.len();
            found.retain(|key, _| wanted.contains(id, *key));
            if found.len() < known {
                forgotten.insert(id.clone());
            }
            !found.is_empty()
        });
        if !forgotten.is_empty() {
            self.touch_users(|job, image| named(job, image).any(|id| forgotten.contains(id)));
        }
        let mut changed: BTreeSet<(String, Key)> = BTreeSet::new();
        for namespace in stale {
            let new = self.allowed_to(&namespace);
            let old = self.secrets.allowed.remove(&namespace).unwrap_or_default();
            let keys = old.keys().chain(new.keys()).filter(|key| old.get(key) != new.get(key));
            changed.extend(keys.map(|key| (namespace.clone(), *key)));
            if !new.is_empty() {
                self.secrets.allowed.insert(namespace, new);
            }
        }
        if !changed.is_empty() {
            self.touch_users(|job, image| {
                let key = image.reference.as_ref().ok().map(|reference| reference.key());
                key.is_some_and(|key| changed.contains(&(job.id.namespace().to_string(), key)))
            });
        }
    }

    /// For each image the logins that the running jobs of a namespace have for it: the closest ones.
    fn allowed_to(&self, namespace: &str) -> BTreeMap<Key, Vec<LoginId>> {
        let mut offers: BTreeMap<Key, Vec<Offer>> = BTreeMap::new();
        let jobs = self.jobs.values().map(|state| &state.job);
        for job in jobs.filter(|job| job.id.namespace() == namespace && job.runs()) {
            for (image, reference) in pullable(job) {
                let key = reference.key();
                for id in named(job, image) {
                    if let Some(Found::Logins(logins)) = self.secrets.found(job, id, key) {
                        offers.entry(key).or_default().extend(logins.iter().cloned());
                    }
                }
            }
        }
        let allowed = offers.into_iter().map(|(key, mut offers)| {
            offers.sort_by_key(|offer| Reverse(offer.closeness));
            let mut chosen: Vec<LoginId> = Vec::new();
            for Offer { id, .. } in offers {
                if chosen.len() < MOST_LOGINS && !chosen.contains(&id) {
                    chosen.push(id);
                }
            }
            (key, chosen)
        });
        allowed.collect()
    }

    /// The logins that an order of this image on this node may use: those of the jobs that want it there now, these among
    /// them, namespace by namespace. What it had for a job that wants it no more is gone. But as long as nobody knows what is in
    /// a Secret of one of the jobs, as after the controller's start or while a role is being replaced, it keeps what it has. So it
    /// does for a job that stands still and of which nobody knows what it lends.
    pub(super) fn logins(
        &self,
        at: usize,
        key: Key,
        jobs: &[&Job],
        kept: &BTreeSet<JobId>,
        had: &[LoginId],
    ) -> Vec<LoginId> {
        if !self.slots.get(at).is_some_and(NodeSlot::takes_logins) {
            return Vec::new();
        }
        // A job whose nodes are not known lends only to an order that goes on naming it: nothing else says that it wants the node.
        let lends = |job: &&Job| job.runs() && self.allows(job, at) && (job.unseen.is_none() || kept.contains(&job.id));
        let wanting = self.wanted_by(at, key).filter(lends).chain(jobs.iter().copied());
        let wanting: BTreeMap<(&str, &JobId), &Job> = wanting.map(|job| ((job.id.namespace(), &job.id), job)).collect();
        let mut logins: Vec<LoginId> = Vec::new();
        for namespace in wanting.keys().map(|(namespace, _)| *namespace).collect::<BTreeSet<&str>>() {
            let own = wanting.values().filter(|job| job.id.namespace() == namespace);
            let lent: BTreeSet<&LoginId> = own.flat_map(|job| self.secrets.lent(job, key)).collect();
            let allowed = self.secrets.allowed(namespace, key).into_iter().flatten();
            logins.extend(allowed.filter(|id| lent.contains(id)).cloned());
        }
        let lends_unknown = |id: &JobId| !wanting.contains_key(&(id.namespace(), id));
        // A job of a frozen kind does not start, and its Secrets count as unread until it does. It has lent nothing to an order that does not
        // name it, and must not keep the logins of deleted Secrets there.
        let may_have_lent = |job: &Job| job.started.is_some() || kept.contains(&job.id);
        let unknown = |job: &&Job| may_have_lent(job) && self.secrets.unknown(job, key);
        if wanting.values().any(unknown) || kept.iter().any(lends_unknown) {
            let kept: Vec<LoginId> = had.iter().filter(|id| !logins.contains(id)).cloned().collect();
            logins.extend(kept);
        }
        logins
    }

    /// The logins that the unfinished orders of a node name, each once.
    pub fn open_logins(&self, node: &str) -> Vec<LoginId> {
        let Some(slot) = self.by_name.get(node).and_then(|&at| self.slots.get(at)) else { return Vec::new() };
        let open = slot.orders.iter().filter(|(key, order)| !answered(order, slot.report(**key)));
        let mut logins: Vec<LoginId> = Vec::new();
        for id in open.flat_map(|(_, order)| &order.terms.logins) {
            if !logins.contains(id) {
                logins.push(id.clone());
            }
        }
        logins
    }

    /// Why an open node waits because of the Secrets of this image: until they are read as long as it takes, for an agent
    /// that can be given logins too, and for a Secret that is not there only at the job's start.
    pub(super) fn secret_wait(&self, job: &Job, image: usize, at: usize, now: Timestamp) -> Option<Wait> {
        // Who plays the agent there has logins of its own.
        if self.slots.get(at).is_some_and(NodeSlot::is_foreign) {
            return None;
        }
        let (mut lacks, mut lends) = (None, false);
        for (_, found) in self.found_for(job, image, at, now) {
            match found {
                None => return Some(Wait { reason: Reason::SecretUnread, image }),
                Some(Found::Missing) => lacks = lacks.or(Some(Reason::SecretMissing)),
                Some(Found::Forbidden) => lacks = lacks.or(Some(Reason::SecretForbidden)),
                Some(Found::Unseen) => lends = true,
                Some(Found::Logins(_) | Found::Unusable(_)) => {}
            }
        }
        let key = job.images.get(image)?.reference.as_ref().ok()?.key();
        lends |= self.secrets.lent(job, key).next().is_some();
        match lends && !self.slots.get(at).is_some_and(NodeSlot::takes_logins) {
            true => Some(Wait { reason: Reason::AgentTooOld, image }),
            false => {
                let own = self.slots.get(at).filter(|_| job.is_standing()).map(|slot| job.since(&slot.name, now));
                let until = awaited_until(own.or(job.started).unwrap_or(job.created));
                lacks.filter(|_| now < until).map(|reason| Wait { reason, image })
            }
        }
    }

    /// What was found in each Secret of an image since this job began, for a standing job since the node's own time; `None` where it was not
    /// read since.
    fn found_for<'a>(
        &'a self,
        job: &'a Job,
        image: usize,
        at: usize,
        now: Timestamp,
    ) -> impl Iterator<Item = (&'a SecretId, Option<&'a Found>)> + 'a {
        let own = self.slots.get(at).filter(|_| job.is_standing()).map(|slot| job.since(&slot.name, now));
        // A time that is yet to come is one of another clock.
        let own = own.filter(|own| *own <= now);
        let is_new = move |id: &SecretId| {
            own.is_none_or(|own| self.secrets.found.get(id).is_some_and(|(_, asked)| own <= *asked))
        };
        self.secrets.of(job, image).map(move |(id, found)| (id, found.filter(|_| is_new(id))))
    }

    /// The sentence about such a wait.
    pub(super) fn waiting_for_secret(&self, job: &Job, image: usize, at: usize, now: Timestamp) -> Waiting {
        let mut missing = None;
        for (id, found) in self.found_for(job, image, at, now) {
            let secret = id.clone();
            match found {
                None => return Waiting::SecretUnread { secret },
                Some(Found::Missing) => missing = missing.or(Some(Waiting::SecretMissing { secret })),
                Some(Found::Forbidden) => missing = missing.or(Some(Waiting::SecretForbidden { secret })),
                Some(_) => {}
            }
        }
        missing.unwrap_or(Waiting::Pending)
    }

    /// When this job no longer waits for a Secret that is not there, or a node of it begins to count, for which Secrets must be read since then.
    pub(super) fn secrets_awaited(&self, job: &Job, now: Timestamp) -> Option<Timestamp> {
        if !names_secrets(job) {
            return None;
        }
        let mut found = (0..job.images.len()).flat_map(|image| self.secrets.of(job, image)).map(|(_, found)| found);
        let missing = found.any(|found| matches!(found, Some(Found::Missing | Found::Forbidden)));
        // Each node of a standing job waits from its own time on.
        let start = (!job.is_standing()).then(|| job.started.unwrap_or(job.created));
        let begun = start.into_iter().chain(own_times(job));
        let awaited = begun.map(awaited_until).filter(|_| missing);
        awaited.chain(own_times(job)).filter(|until| now < *until).min()
    }

    /// The Secrets of this image that cannot be used.
    fn troubled<'a>(&'a self, job: &'a Job, image: usize) -> impl Iterator<Item = SecretTrouble> + 'a {
        self.secrets.of(job, image).filter_map(|(id, found)| {
            let (reason, message) = match found? {
                Found::Logins(offers) => {
                    let node = self.left_out_of(job, offers)?;
                    let message = format!(
                        "the object of node {node} has no room for a login of Secret {id}: the logins of one namespace may \
                         take {} KiB there, and those of all {} KiB; name fewer or smaller Secrets",
                        ROOM_OF_LOGINS_OF_A_NAMESPACE / 1024,
                        ROOM_OF_LOGINS / 1024
                    );
                    (Reason::SecretUnusable, message)
                }
                Found::Unseen => return None,
                Found::Missing => (
                    Reason::SecretMissing,
                    format!(
                        "Secret {id} is not there, or not of type kubernetes.io/dockerconfigjson or \
                         kubernetes.io/dockercfg; create it, or remove it from {}",
                        job.words.secrets
                    ),
                ),
                Found::Forbidden => (
                    Reason::SecretForbidden,
                    format!(
                        "the controller may not read Secret {id}; allow it for the namespace with `stoker install \
                         --secrets-from {}`, or remove it from {}",
                        id.namespace, job.words.secrets
                    ),
                ),
                Found::Unusable(why) => {
                    (Reason::SecretUnusable, format!("Secret {id} cannot be used: {why}; make it anew"))
                }
            };
            Some(SecretTrouble { secret: id.clone(), reason, message })
        })
    }

    /// The Secrets of a job that cannot be used, each once: the first ones by name.
    pub(super) fn secret_troubles(&self, job: &Job) -> Vec<SecretTrouble> {
        let mut all: BTreeMap<SecretId, SecretTrouble> = BTreeMap::new();
        for trouble in (0..job.images.len()).flat_map(|image| self.troubled(job, image)) {
            all.entry(trouble.secret.clone()).or_insert(trouble);
        }
        all.into_values().take(DESCRIBED_FAILURES).collect()
    }

    /// That a registry wants credentials is for want of a Secret, where one cannot be used.
    pub(super) fn failure_reason(&self, job: &Job, failure: SeatFailure) -> Reason {
        match failure.reason {
            Reason::Unauthorized => {
                self.troubled(job, failure.image).next().map_or(Reason::Unauthorized, |trouble| trouble.reason)
            }
            other => other,
        }
    }

    /// An agent's message with the Secrets that cannot be used, and those whose logins it knows by their names under the
    /// names that the job's user knows.
    pub(super) fn explain_secrets(&self, job: &Job, failure: SeatFailure, message: &str) -> String {
        let mut text = message.to_string();
        for (id, found) in self.secrets.of(job, failure.image) {
            if let Some(Found::Logins(offers)) = found {
                for offer in offers {
                    text = text.replace(offer.id.as_str(), &format!("of Secret {id}"));
                }
            }
        }
        let wanted = failure.reason == Reason::Unauthorized;
        let troubles: Vec<String> =
            self.troubled(job, failure.image).filter(|_| wanted).map(|trouble| trouble.message).collect();
        match troubles.is_empty() {
            true => text,
            false => format!("{} ({text})", troubles.join("; ")),
        }
    }
}

impl NodeSlot {
    /// Whether its agent has published a key to which logins can be sealed.
    pub(super) fn takes_logins(&self) -> bool {
        self.features.contains(SEALED)
    }
}

/// Until when a Secret that is not there is waited for by what began then.
fn awaited_until(begun: Timestamp) -> Timestamp {
    after(begun, AWAIT_SECRET)
}

/// The times from which the nodes of a standing job count; none of other jobs.
pub(super) fn own_times(job: &Job) -> impl Iterator<Item = Timestamp> {
    job.names.iter().flat_map(|names| names.values()).copied().filter(|_| job.is_standing())
}
