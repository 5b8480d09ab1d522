//! The table of dialects: each has kinds of objects that mean jobs, a function from such an object to its jobs, and one from
//! their outcomes back to changes of objects. A dialect has no loop, no cache and no index of its own: see [`crate::view`].

mod job;
pub mod kruise;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_core::dynamic::DynamicObject;
use serde::de::DeserializeOwned;
use stoker_core::rollup::{FailedNode, SecretTrouble};
use stoker_core::{JobId, World};

use crate::sign::Sign;
use crate::view::{Derived, Kind, Projected, Reader, Root};
use crate::{native, pods};
pub(crate) use job::project_job;

/// The objects of one project that Stoker serves.
pub struct Dialect {
    /// Its name, as an installation asks for it.
    pub name: &'static str,
    /// The kinds that mean jobs. All objects of these are watched.
    pub kinds: &'static [&'static JobKind],
    /// Other kinds that may be read, while somebody asks for them.
    pub asks: &'static [&'static Kind],
    /// How the original controller of these kinds shows that it is at work.
    pub signs: &'static [Sign],
    /// The document that tells how its kinds are handed over.
    pub guide: &'static str,
}

impl Dialect {
    /// The dialect of this name.
    pub fn named(name: &str) -> Option<&'static Dialect> {
        DIALECTS.iter().find(|dialect| dialect.name == name)
    }

    /// Why its objects are left alone, and what to do about it, where this was seen of their original controller.
    pub fn left_alone(&self, seen: &str) -> String {
        let plurals: Vec<String> = self.kinds.iter().map(|kind| kind.kind.newest().plural).collect();
        format!(
            "{seen}. Two controllers would work against each other, so Stoker pulls nothing for {} and writes nothing to them; to \
             hand them over to Stoker, see {}",
            plurals.join(" and "),
            self.guide
        )
    }
}

/// A kind of object that means jobs.
pub struct JobKind {
    /// The kind.
    pub kind: Kind,
    /// The dialect that it belongs to.
    pub dialect: &'static str,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
    /// What is done to its objects, besides that they are listed and watched and their status is patched, in Kubernetes' words.
    pub verbs: &'static [&'static str],
    /// The jobs that an object means.
    pub derive: fn(&Root, &mut Reader<'_>) -> Derived,
    /// What their outcomes change.
    pub project: fn(&Root, &mut Reader<'_>, &World, Timestamp) -> Projected,
    /// What the object's status says, for lists of jobs of all dialects.
    pub summary: fn(&DynamicObject) -> Summary,
}

impl JobKind {
    /// The job that the object of this namespace and name means.
    pub fn job_id(&self, namespace: &str, name: &str) -> JobId {
        JobId::new((&self.kind.group(), self.kind.name), namespace, name)
    }

    /// The job that this object means.
    pub fn job_id_of(&self, object: &DynamicObject) -> JobId {
        let metadata = &object.metadata;
        self.job_id(metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
    }

    /// Whether it is a kind of another project, which nobody need install.
    pub fn is_foreign(&self) -> bool {
        self.dialect != native::DIALECT
    }
}

impl PartialEq for JobKind {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}

impl Eq for JobKind {}

impl PartialOrd for JobKind {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for JobKind {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.kind.cmp(&other.kind)
    }
}

impl std::fmt::Debug for JobKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.kind.fmt(f)
    }
}

/// The status of a job of any dialect, as far as all have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// How far it is, in a word.
    pub phase: String,
    /// Nodes that shall have the images.
    pub desired: u32,
    /// Nodes that have them.
    pub succeeded: u32,
    /// Nodes at work.
    pub pulling: u32,
    /// Nodes that gave up.
    pub failed: u32,
    /// Whether it ended, for the object as it is now.
    pub ended: bool,
    /// The first nodes that failed, where the status says why.
    pub failures: Vec<FailedNode>,
    /// Secrets that cannot be used, where the status says so.
    pub secrets: Vec<SecretTrouble>,
    /// All this in a sentence.
    pub message: String,
    /// What should be known although nothing has failed.
    pub warnings: Vec<String>,
}

/// Every dialect; the native API is the first.
pub static DIALECTS: &[Dialect] = &[
    Dialect { name: native::DIALECT, kinds: &[&native::PREHEATS], asks: &[&pods::PODS], signs: &[], guide: "" },
    Dialect {
        name: kruise::DIALECT,
        kinds: &[&kruise::IMAGE_PULL_JOBS, &kruise::IMAGE_LIST_PULL_JOBS],
        asks: &[&pods::PODS],
        signs: kruise::SIGNS,
        guide: "docs/migrate-from-openkruise.md#beside-openkruise",
    },
];

/// Every kind that means jobs, of all dialects.
pub fn job_kinds() -> impl Iterator<Item = &'static JobKind> {
    DIALECTS.iter().flat_map(|dialect| dialect.kinds).copied()
}

/// An object whose shape is not that of its kind: it was written past the schema, or by another version of it.
#[derive(Debug, thiserror::Error)]
#[error("{name}: cannot read its {part}: {source}; compare it with the schema of its CRD")]
pub struct NotReadable {
    name: String,
    part: &'static str,
    source: serde_json::Error,
}

/// Reads `spec` or `status` of an object.
pub(crate) fn part<T: DeserializeOwned>(object: &DynamicObject, part: &'static str) -> Result<T, NotReadable> {
    let value = object.data.get(part).cloned().unwrap_or_default();
    serde_json::from_value(value).map_err(|source| not_readable(object, part, source))
}

fn not_readable(object: &DynamicObject, part: &'static str, source: serde_json::Error) -> NotReadable {
    let kind = object.types.as_ref().map(|types| types.kind.as_str()).unwrap_or("object");
    NotReadable { name: format!("{kind} {}", object.metadata.name.as_deref().unwrap_or_default()), part, source }
}

/// The status of an object, and why it cannot be read where that is so. A status that cannot be read is not one that was never
/// written: a job that has ended would run again.
pub(crate) fn status_or_why<T: DeserializeOwned + Default>(object: &DynamicObject) -> (T, Option<String>) {
    match object.data.get("status") {
        None | Some(serde_json::Value::Null) => (T::default(), None),
        Some(_) => match part(object, "status") {
            Ok(status) => (status, None),
            Err(NotReadable { source, .. }) => (T::default(), Some(source.to_string())),
        },
    }
}

/// When the object was made.
pub(crate) fn created(object: &DynamicObject) -> Timestamp {
    object.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |Time(time)| *time)
}
