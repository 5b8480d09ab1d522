//! OpenKruise (`apps.kruise.io`): ImagePullJob, ImageListPullJob and NodeImage as their users know them, manifests, status, messages and
//! columns; and pre-download while a workload rolls out.
//!
//! Upstream a webhook sets defaults and refuses; here the schema does both.

mod from_core;
mod image_list_pull_job;
mod image_pull_job;
mod list;
mod node_image;
mod nodes;
mod predownload;
mod to_core;
mod types;
mod versions;

use crate::dialect::{JobKind, MadeOf, RootsOf};
use crate::sign::{self, Sign};
use crate::view::{Kind, Row};
pub use image_list_pull_job::{FailedImageStatus, ImageListPullJob, ImageListPullJobSpec, ImageListPullJobStatus};
pub use image_pull_job::{ImagePullJob, ImagePullJobSpec, ImagePullJobStatus};
pub use node_image::{
    ImageSpec, ImageStatus, ImageTagPullPolicy, ImageTagSpec, ImageTagStatus, NodeImage, NodeImageSpec,
    NodeImageStatus, SecretReference, SyncStatus, TagOwner,
};
pub use nodes::{Interned, NODE_IMAGES, NodeImageRow, TAG_GROUPS, failed_tags};
pub use predownload::{
    ADVANCED_DAEMON_SETS, ADVANCED_STATEFUL_SETS, CLONE_SETS, CONTROLLER_REVISIONS, DAEMON_SETS, DEPLOYMENTS,
    DIALECT as ROLLOUTS, REPLICA_SETS, RevisionRow, STATEFUL_SETS,
};
pub use types::{CompletionPolicy, CompletionType, NodeSelector, PullPolicy, PullTemplate};
pub use versions::{Versioned, crd, versions};

/// The name of this dialect.
pub const DIALECT: &str = "kruise";

/// How OpenKruise's manager shows that it is at work. It is installed in `kruise-system`, unless somebody chose another namespace.
pub const SIGNS: &[Sign] = &[
    Sign::Lease { namespace: "kruise-system", name: "kruise-manager", kind: &MANAGER },
    Sign::Webhooks(&sign::MUTATING_WEBHOOKS),
    Sign::Webhooks(&sign::VALIDATING_WEBHOOKS),
];

/// The Lease of OpenKruise's manager.
static MANAGER: Kind =
    Kind { name: "Lease", versions: sign::leases, keep: sign::lease_row, fields: Some("metadata.name=kruise-manager") };

/// ImagePullJobs.
pub static IMAGE_PULL_JOBS: JobKind = JobKind {
    kind: Kind { name: "ImagePullJob", versions: || versions::<ImagePullJob>().into(), keep: Row::whole, fields: None },
    dialect: DIALECT,
    namespaced: true,
    verbs: &["create", "delete", "patch"],
    made_of: None,
    roots: RootsOf::Objects,
    in_half: false,
    derive: to_core::derive,
    project: from_core::project,
    summary: to_core::summary,
};

/// ImageListPullJobs.
pub static IMAGE_LIST_PULL_JOBS: JobKind = JobKind {
    kind: Kind {
        name: "ImageListPullJob",
        versions: || versions::<ImageListPullJob>().into(),
        keep: Row::whole,
        fields: None,
    },
    dialect: DIALECT,
    namespaced: true,
    verbs: &["delete", "patch"],
    made_of: Some(MadeOf { kind: &IMAGE_PULL_JOBS, missing: list::missing }),
    roots: RootsOf::Objects,
    in_half: false,
    derive: |_, _| Ok(Vec::new()),
    project: list::project,
    summary: list::summary,
};
