//! Which Secrets are to be read, and for which images. It is computed again only for the namespaces whose jobs have changed: the jobs of
//! one namespace may name thousands of Secrets for hundreds of images, and other namespaces must not pay for that with every plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::World;
use super::secrets::{named, own_times, pullable};
use crate::model::{Job, Key, SecretId};
use crate::reference::Reference;

/// A Secret that is to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedSecret {
    /// The images that it is named for.
    pub images: BTreeMap<Key, Reference>,
    /// The latest start of a job that names it, or of a node in a standing job: one that was asked for before may have changed just before that.
    pub since: Option<Timestamp>,
}

/// Every Secret that running jobs name. Whoever holds an older one sees in the pointers what is still the same.
pub type WantedSecrets = Arc<BTreeMap<SecretId, Arc<WantedSecret>>>;

/// What the jobs of each namespace name.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    by_namespace: BTreeMap<String, BTreeMap<SecretId, Arc<WantedSecret>>>,
    all: WantedSecrets,
    /// Namespaces with jobs that have changed since.
    stale: BTreeSet<String>,
}

impl Wanted {
    /// A job of this namespace that names Secrets came, went or changed.
    pub(super) fn touch(&mut self, namespace: &str) {
        if !self.stale.contains(namespace) {
            self.stale.insert(namespace.to_owned());
        }
    }

    /// The namespaces whose jobs name this Secret.
    pub(super) fn users(&self, id: &SecretId) -> impl Iterator<Item = &str> {
        self.by_namespace
            .iter()
            .filter(|(_, secrets)| secrets.contains_key(id))
            .map(|(namespace, _)| namespace.as_str())
    }

    /// Whether a job of some namespace names this Secret for the image.
    pub(super) fn contains(&self, id: &SecretId, key: Key) -> bool {
        self.all.get(id).is_some_and(|wanted| wanted.images.contains_key(&key))
    }
}

impl World {
    /// The Secrets that running jobs name.
    pub fn wanted_secrets(&mut self) -> WantedSecrets {
        let stale = std::mem::take(&mut self.secrets.wanted.stale);
        if !stale.is_empty() {
            for namespace in stale {
                let wanted = self.wanted_by_jobs_of(&namespace);
                match wanted.is_empty() {
                    true => self.secrets.wanted.by_namespace.remove(&namespace),
                    false => self.secrets.wanted.by_namespace.insert(namespace, wanted),
                };
            }
            let mut all: BTreeMap<SecretId, Arc<WantedSecret>> = BTreeMap::new();
            for (id, wanted) in self.secrets.wanted.by_namespace.values().flatten() {
                match all.get_mut(id) {
                    // Named by jobs of another namespace, too: only jobs outside of all namespaces may do that.
                    Some(both) => {
                        let both = Arc::make_mut(both);
                        both.images.extend(wanted.images.iter().map(|(key, image)| (*key, image.clone())));
                        both.since = both.since.max(wanted.since);
                    }
                    None => {
                        all.insert(id.clone(), wanted.clone());
                    }
                }
            }
            if all != *self.secrets.wanted.all {
                self.secrets.wanted.all = Arc::new(all);
            }
        }
        self.secrets.wanted.all.clone()
    }

    /// What the running jobs of a namespace name. What is as it was stays the same value.
    fn wanted_by_jobs_of(&self, namespace: &str) -> BTreeMap<SecretId, Arc<WantedSecret>> {
        let mut wanted: BTreeMap<SecretId, WantedSecret> = BTreeMap::new();
        let jobs = self.jobs.values().map(|state| &state.job);
        for job in jobs.filter(|job| job.id.namespace() == namespace && job.runs()) {
            let latest = own_times(job).max().filter(|_| names_secrets(job));
            for (image, reference) in pullable(job) {
                for id in named(job, image) {
                    let wanted = wanted.entry(id.clone()).or_default();
                    wanted.images.entry(reference.key()).or_insert_with(|| reference.clone());
                    wanted.since = wanted.since.max(job.started).max(latest);
                }
            }
        }
        let before = self.secrets.wanted.by_namespace.get(namespace);
        let shared = wanted.into_iter().map(|(id, now)| {
            let same = before.and_then(|before| before.get(&id)).filter(|before| ***before == now).cloned();
            (id, same.unwrap_or_else(|| Arc::new(now)))
        });
        shared.collect()
    }
}

/// Whether a job names any Secret.
pub(super) fn names_secrets(job: &Job) -> bool {
    job.images.iter().any(|image| !image.secrets.is_empty())
}
