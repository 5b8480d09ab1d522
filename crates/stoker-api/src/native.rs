//! Stoker's own API, `stoker.dev/v1alpha1`: the first dialect, and the objects between controller and agents.

pub mod from_core;
mod node_object;
mod node_preheat;
mod preheat;
mod status;
pub mod to_core;

pub use node_object::NodeObject;
pub use node_preheat::{
    AgentInfo, Disk, NodePreheat, NodePreheatSpec, NodePreheatStatus, SealedLogin, WireAsk, WireBytes, WireOrder,
    WirePhase, WirePin, WireReport, WireSandbox,
};
pub use preheat::{
    CompletionMode, CompletionSpec, ImageSpec, NodesSpec, PaceSpec, Preheat, PreheatSpec, PullPolicy, PullSpec,
    SandboxSpec, SecretRef,
};
pub use status::{Condition, FailedNode, PreheatStatus, SecretProblem, WaitingFor};

use kube_core::discovery::ApiResource;

use crate::dialect::{JobKind, project_job};
use crate::view::{Kind, Row};

/// The name of this dialect.
pub const DIALECT: &str = "stoker";

/// Preheats.
pub static PREHEATS: JobKind = JobKind {
    kind: Kind {
        name: "Preheat",
        versions: || vec![ApiResource::erase::<Preheat>(&())],
        keep: Row::whole,
        fields: None,
    },
    dialect: DIALECT,
    namespaced: true,
    verbs: &["delete"],
    derive: to_core::derive,
    project: |root, reader, world, now| project_job(root, reader, world, now, from_core::status_change),
    summary: to_core::summary,
};

/// The API group.
pub const GROUP: &str = "stoker.dev";
/// Its version.
pub const VERSION: &str = "v1alpha1";
