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

/// The API group.
pub const GROUP: &str = "stoker.dev";
/// Its version.
pub const VERSION: &str = "v1alpha1";
