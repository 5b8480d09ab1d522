//! The table of dialects: each has kinds of objects that mean jobs, a function from such an object to its jobs, and one from
//! their outcomes back to changes of objects. A dialect has no loop, no cache and no index of its own: see [`crate::view`].

mod extras;
mod foreign_crd;
mod job;
pub mod kruise;
pub mod ofen;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_core::dynamic::DynamicObject;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use stoker_core::rollup::{FailedNode, SecretTrouble};
use stoker_core::{Event, JobId, World};

use crate::sign::Sign;
use crate::view::{Derived, Kind, ObjectName, Projected, Reader, Root, Row};
use crate::{native, pods};
pub(crate) use extras::Extras;
pub(crate) use job::{project_job, project_unreadable};

/// The objects of one project that Stoker serves.
pub struct Dialect {
    /// Its name, as an installation asks for it.
    pub name: &'static str,
    /// The kinds that mean jobs. All objects of these are watched.
    pub kinds: &'static [&'static JobKind],
    /// The kinds whose objects mean no jobs themselves and have jobs made for them. All objects of these are watched, where an
    /// installation asks for the dialect by its name: see [`crate::view::View::serve`].
    pub workloads: &'static [&'static JobKind],
    /// The kinds that have an object for each node. All objects of these are watched.
    pub nodes: &'static [&'static JobKind],
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
        let kinds = self.kinds.iter().chain(self.nodes);
        let plurals: Vec<String> = kinds.map(|kind| kind.kind.newest().plural).collect();
        let plurals = match plurals.split_last() {
            Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
            _ => plurals.concat(),
        };
        format!(
            "{seen}. Two controllers would work against each other, so Stoker pulls nothing for {plurals} and writes nothing to them; \
             to hand them over to Stoker, see {}",
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
    /// The jobs that an object of this kind is made of, where it means none itself.
    pub made_of: Option<MadeOf>,
    /// What its roots are.
    pub roots: RootsOf,
    /// Whether it is served where the original controller of the dialect goes on with the jobs, and has handed over only what its agents
    /// did: see [`crate::sign::HandOver::Half`].
    pub in_half: bool,
    /// The jobs that an object means.
    pub derive: fn(&Root, &mut Reader<'_>) -> Derived,
    /// What their outcomes change.
    pub project: fn(&Root, &mut Reader<'_>, &World, Timestamp) -> Projected,
    /// What the object's status says, for lists of jobs of all dialects.
    pub summary: fn(&DynamicObject) -> Summary,
}

/// The jobs that objects of a kind are made of.
#[derive(Clone, Copy)]
pub struct MadeOf {
    /// Their kind.
    pub kind: &'static JobKind,
    /// Of the jobs that an object wants, those that are not among these.
    pub missing: fn(&DynamicObject, &[&DynamicObject]) -> Vec<MissingJob>,
}

/// A job that an object wants and that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingJob {
    /// Its name.
    pub name: String,
    /// Its image.
    pub image: String,
}

/// What the roots of a kind are.
#[derive(Clone, Copy)]
pub enum RootsOf {
    /// Its objects.
    Objects,
    /// Nodes and its objects, which are named after nodes. Its objects name groups, too.
    Nodes {
        /// The kind of those groups.
        groups: &'static JobKind,
        /// The groups that an object names, and from when on it counts in each. Told whether the original controller goes on with the jobs.
        named: fn(&Row, bool) -> BTreeMap<String, Timestamp>,
        /// What the World is told where an object is a node of somebody else, see [`stoker_core::Node::foreign`].
        foreign: fn(&str, Option<&Row>, &World) -> Vec<Event>,
    },
    /// Its objects, each about one node, of which there may be as many as nodes. They are parts of objects of another kind, or stand for themselves.
    ObjectsOnNodes {
        /// Where an object belongs.
        place: fn(&DynamicObject) -> Place,
        /// The kind of those that they are parts of.
        wholes: &'static JobKind,
    },
    /// What objects of another kind name. Such a root is there as long as it has a job.
    Groups,
}

/// Where an object about one node belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The node.
    pub node: String,
    /// What it is a part of, where it is one.
    pub whole: Option<ObjectName>,
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

    /// Whether there may be as many of its roots as there are nodes.
    pub fn is_of_nodes(&self) -> bool {
        matches!(self.roots, RootsOf::Nodes { .. } | RootsOf::ObjectsOnNodes { .. })
    }

    /// The job that this object shows on one node, and that node, where it is a part of another object and means no job by itself.
    pub fn part_of(&self, object: &DynamicObject) -> Option<(JobId, String)> {
        let RootsOf::ObjectsOnNodes { place, wholes } = self.roots else { return None };
        let Place { node, whole } = place(object);
        whole.map(|(namespace, name)| (wholes.job_id(&namespace, &name), node))
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
    Dialect {
        name: native::DIALECT,
        kinds: &[&native::PREHEATS],
        workloads: &[],
        nodes: &[],
        asks: &[&pods::PODS, &native::PREHEAT_POLICIES, &native::NAMESPACES],
        signs: &[],
        guide: "",
    },
    Dialect {
        name: kruise::DIALECT,
        kinds: &[&kruise::IMAGE_PULL_JOBS, &kruise::IMAGE_LIST_PULL_JOBS],
        workloads: &[],
        nodes: &[&kruise::NODE_IMAGES],
        asks: &[&pods::PODS],
        signs: kruise::SIGNS,
        guide: "docs/migrate-from-openkruise.md#beside-openkruise",
    },
    Dialect {
        name: ofen::DIALECT,
        kinds: &[&ofen::IMAGE_PREFETCHES, &ofen::NODE_IMAGE_SETS],
        workloads: &[],
        nodes: &[],
        asks: &[],
        signs: ofen::SIGNS,
        guide: "docs/migrate-from-ofen.md#beside-ofen",
    },
    Dialect {
        name: kruise::ROLLOUTS,
        kinds: &[],
        workloads: &[
            &kruise::DEPLOYMENTS,
            &kruise::STATEFUL_SETS,
            &kruise::DAEMON_SETS,
            &kruise::CLONE_SETS,
            &kruise::ADVANCED_STATEFUL_SETS,
            &kruise::ADVANCED_DAEMON_SETS,
        ],
        nodes: &[],
        asks: &[&kruise::REPLICA_SETS, &kruise::CONTROLLER_REVISIONS],
        signs: &[],
        guide: "docs/migrate-from-openkruise.md#pre-download-during-a-rollout",
    },
];

/// Every kind that means jobs, of all dialects.
pub fn job_kinds() -> impl Iterator<Item = &'static JobKind> {
    DIALECTS.iter().flat_map(|dialect| dialect.kinds).copied()
}

/// Every kind that has an object for each node, of all dialects.
pub fn node_kinds() -> impl Iterator<Item = &'static JobKind> {
    DIALECTS.iter().flat_map(|dialect| dialect.nodes).copied()
}

/// Every kind of which there may be as many objects as nodes.
pub fn kinds_of_nodes() -> impl Iterator<Item = &'static JobKind> {
    served_kinds().filter(|kind| kind.is_of_nodes())
}

/// Every kind whose objects are always watched.
pub fn served_kinds() -> impl Iterator<Item = &'static JobKind> {
    job_kinds().chain(node_kinds())
}

/// Every kind whose objects have jobs made for them, of all dialects.
pub fn workload_kinds() -> impl Iterator<Item = &'static JobKind> {
    DIALECTS.iter().flat_map(|dialect| dialect.workloads).copied()
}

/// An object whose shape is not that of its kind: it was written past the schema, or under another version of it.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {problem}")]
pub struct NotReadable {
    name: String,
    /// Which field, and why.
    pub(crate) problem: String,
    /// Whether it is the status that cannot be read, and not the spec.
    pub(crate) is_status: bool,
}

impl NotReadable {
    /// This field of an object cannot be read, for this reason.
    pub(crate) fn new(object: &DynamicObject, field: &str, why: &str) -> Self {
        let is_status = field.starts_with("status");
        Self { is_status, ..Self::saying(object, format!("{field} cannot be read: {why}")) }
    }

    /// The spec of an object cannot be used, as this sentence says.
    pub(crate) fn saying(object: &DynamicObject, problem: String) -> Self {
        let kind = object.types.as_ref().map(|types| types.kind.as_str()).unwrap_or("object");
        let name = format!("{kind} {}", object.metadata.name.as_deref().unwrap_or_default());
        Self { name, problem, is_status: false }
    }
}

/// Reads `spec` or `status` of an object.
pub(crate) fn part<T: DeserializeOwned>(object: &DynamicObject, part: &'static str) -> Result<T, NotReadable> {
    let value = object.data.get(part).cloned().unwrap_or_default();
    T::deserialize(&value).map_err(|source| {
        let path = [part.to_string()].into_iter().chain(culprit::<T>(value)).collect::<Vec<_>>().join(".");
        NotReadable::new(object, &path, &source.to_string())
    })
}

/// The path of the field without which the rest of a value can be read; empty where there is none. Errors of serde do not say which
/// field they are about.
fn culprit<T: DeserializeOwned>(mut value: Value) -> Vec<String> {
    let mut path: Vec<String> = Vec::new();
    loop {
        let found =
            fields(&mut value, &path).map(|fields| fields.keys().take(MOST_FIELDS).cloned().collect::<Vec<_>>());
        let found = found.into_iter().flatten().find(|field| {
            let taken = fields(&mut value, &path).and_then(|fields| fields.remove(field));
            let readable = T::deserialize(&value).is_ok();
            if let (Some(fields), Some(taken)) = (fields(&mut value, &path), taken) {
                fields.insert(field.clone(), taken);
            }
            readable
        });
        match found {
            Some(field) => path.push(field),
            None => return path,
        }
    }
}

/// Fields of one object of a value that are tried one by one, at most; no type has so many.
const MOST_FIELDS: usize = 64;

/// The fields of the object at this path.
fn fields<'a>(value: &'a mut Value, path: &[String]) -> Option<&'a mut Map<String, Value>> {
    path.iter().try_fold(value, |value, field| value.get_mut(field))?.as_object_mut()
}

/// The status of an object, and why it cannot be read where that is so. A status that cannot be read is not one that was never
/// written: a job that has ended would run again.
pub(crate) fn status_or_why<T: DeserializeOwned + Default>(object: &DynamicObject) -> (T, Option<String>) {
    match object.data.get("status") {
        None | Some(Value::Null) => (T::default(), None),
        Some(_) => match part(object, "status") {
            Ok(status) => (status, None),
            Err(NotReadable { problem, .. }) => (T::default(), Some(problem)),
        },
    }
}

/// When the object was made.
pub(crate) fn created(object: &DynamicObject) -> Timestamp {
    object.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |Time(time)| *time)
}
