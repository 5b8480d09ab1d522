//! The table of dialects: each is a kind of object, a function from an object to a job, and one from the job's
//! outcome back to changes of the object. A dialect has no loop of its own.

pub mod kruise;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_core::discovery::ApiResource;
use kube_core::dynamic::DynamicObject;
use serde::de::DeserializeOwned;
use stoker_core::rollup::{FailedNode, SecretTrouble};
use stoker_core::{Job, JobId, Outcome};

use crate::native;
use crate::write::Write;

/// One kind of object that means jobs.
pub struct Dialect {
    /// The kind.
    pub kind: &'static str,
    /// How it is found on an API server.
    pub resource: fn() -> ApiResource,
    /// The job that an object describes.
    pub job: fn(&DynamicObject) -> Result<Job, NotReadable>,
    /// What its outcome changes in the object.
    pub project: fn(&DynamicObject, &Outcome, Timestamp) -> Option<Write>,
    /// What the object's status says, for lists of jobs of all dialects.
    pub summary: fn(&DynamicObject) -> Summary,
}

impl Dialect {
    /// The job that the object of this namespace and name means.
    pub fn job_id(&self, namespace: &str, name: &str) -> JobId {
        JobId::new(((self.resource)().group.as_str(), self.kind), namespace, name)
    }

    /// The job that this object means.
    pub fn job_id_of(&self, object: &DynamicObject) -> JobId {
        let metadata = &object.metadata;
        self.job_id(metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
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
pub const DIALECTS: &[Dialect] = &[
    Dialect {
        kind: "Preheat",
        resource: || ApiResource::erase::<native::Preheat>(&()),
        job: native::to_core::job,
        project: native::from_core::project,
        summary: native::to_core::summary,
    },
    Dialect {
        kind: "ImagePullJob",
        resource: || ApiResource::erase::<kruise::ImagePullJob>(&()),
        job: kruise::job,
        project: kruise::project,
        summary: kruise::summary,
    },
];

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
    serde_json::from_value(value).map_err(|source| {
        let kind = object.types.as_ref().map(|types| types.kind.as_str()).unwrap_or("object");
        NotReadable { name: format!("{kind} {}", object.metadata.name.as_deref().unwrap_or_default()), part, source }
    })
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
