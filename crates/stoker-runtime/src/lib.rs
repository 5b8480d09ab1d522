//! Where images go on a node: the OCI image layout.
//!
//! Verified files and documents come in; images that a node can be said to have go out. Nothing here speaks to a
//! registry or knows Kubernetes.

pub mod layout;
pub mod unpack;

pub use layout::{Error, Found, Layout, Verified};
