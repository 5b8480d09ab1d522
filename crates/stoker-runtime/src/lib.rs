//! Where images go on a node: containerd, any CRI runtime, an OCI image layout.
//!
//! Verified files, streams and documents come in; images that a node can be said to have go out. Nothing here speaks to
//! a registry or knows Kubernetes.

pub mod choose;
pub mod containerd;
pub mod cri;
pub mod grpc;
pub mod layout;
mod name_locks;
pub mod room;
pub mod runtime;
pub mod space;
pub mod unpack;
pub mod wire;

pub use choose::{Choice, Otherwise, RuntimeWish, choose};
pub use containerd::Containerd;
pub use cri::Cri;
pub use layout::{Care, Layout, Stored, StoredImage};
pub use runtime::{Error, ImageIdentity, Runtime, There};
