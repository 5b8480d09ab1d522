//! OpenKruise (`apps.kruise.io`): ImagePullJob as its users know it, manifests, status, messages and columns.
//!
//! Upstream a webhook sets defaults and refuses; here the schema does both.

mod from_core;
mod to_core;
mod types;

pub use from_core::project;
pub use to_core::{job, summary};
pub use types::{
    CompletionPolicy, CompletionType, ImagePullJob, ImagePullJobSpec, ImagePullJobStatus, NodeSelector, PullPolicy,
};
