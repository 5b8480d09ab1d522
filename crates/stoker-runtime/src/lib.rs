//! Where images go on a node: containerd, any CRI runtime, an OCI image layout.
//!
//! Verified files, streams and documents come in; images that a node can be said to have go out. Nothing here speaks to
//! a registry or knows Kubernetes.

pub mod choose;
pub mod containerd;
pub mod cri;
pub mod grpc;
pub mod layout;
pub mod room;
pub mod runtime;
mod seats;
pub mod space;
pub mod unpack;
pub mod wire;

pub use choose::{Choice, Otherwise, Wish, choose};
pub use containerd::Containerd;
pub use cri::Cri;
pub use layout::{Care, Found, Layout, Stored};
pub use runtime::{Error, Identity, Runtime, There};
