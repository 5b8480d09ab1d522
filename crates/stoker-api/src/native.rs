//! Stoker's own API, `stoker.dev/v1alpha1`: the first dialect, and the objects between controller and agents.

pub mod from_core;
mod node_object;
mod node_preheat;
mod policy;
mod preheat;
mod status;
pub mod to_core;

pub use node_object::NodeObject;
pub use node_preheat::{
    AgentInfo, Disk, NodePreheat, NodePreheatSpec, NodePreheatStatus, PeerInfo, SealedLogin, WireAsk, WireBytes,
    WireOrder, WirePast, WirePeer, WirePhase, WirePin, WireReport, WireSandbox, WireSource,
};
pub(crate) use policy::restriction;
pub use policy::{MaxSpec, NAMESPACES, PREHEAT_POLICIES, PreheatPolicy, PreheatPolicySpec};
pub use preheat::{
    CompletionMode, CompletionSpec, ImageSpec, NodesSpec, PaceSpec, Preheat, PreheatSpec, PullPolicy, PullSpec,
    SandboxSpec, SecretRef, SourceSpec,
};
pub use status::{Condition, NodeFailure, PreheatStatus, SecretProblem, WaitingFor};

use kube_core::discovery::ApiResource;

use crate::dialect::{JobKind, RootsOf};
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
    made_of: None,
    roots: RootsOf::Objects,
    in_half: true,
    derive: to_core::derive,
    project: from_core::project,
    summary: to_core::summary,
};

/// The API group.
pub const GROUP: &str = "stoker.dev";
/// Its version.
pub const VERSION: &str = "v1alpha1";
