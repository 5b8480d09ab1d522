//! OpenKruise (`apps.kruise.io`): ImagePullJob as its users know it, manifests, status, messages and columns.
//!
//! Upstream a webhook sets defaults and refuses; here the schema does both.

mod from_core;
mod to_core;
mod types;

use kube_core::discovery::ApiResource;

use crate::dialect::{JobKind, project_job};
use crate::view::{Kind, Row};
pub use types::{
    CompletionPolicy, CompletionType, ImagePullJob, ImagePullJobSpec, ImagePullJobStatus, NodeSelector, PullPolicy,
};

/// The name of this dialect.
pub const DIALECT: &str = "kruise";

/// ImagePullJobs.
pub static IMAGE_PULL_JOBS: JobKind = JobKind {
    kind: Kind {
        name: "ImagePullJob",
        versions: || vec![ApiResource::erase::<ImagePullJob>(&())],
        keep: Row::whole,
        fields: None,
    },
    dialect: DIALECT,
    derive: to_core::derive,
    project: |root, reader, world, now| project_job(root, reader, world, now, from_core::status_change),
    summary: to_core::summary,
};
