//! Every wire shape: Stoker's own API and the dialects of other projects, to and from the core model.
//!
//! Only this crate knows a foreign field name. Everything is a pure function over objects; nothing holds a client.

// Printer columns of one type look like a repeated attribute to clippy.
#![allow(clippy::duplicated_attributes)]

mod amount;
pub mod any_object;
pub mod dialect;
mod events;
mod image;
pub mod labels;
pub mod native;
pub mod node;
pub mod peer_keys;
pub mod pods;
pub mod secret;
mod share;
pub mod sign;
mod span;
pub mod view;
mod write;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt as _;

use crate::dialect::{kruise, ofen};

pub use amount::{Amount, NotAnAmount};
pub use any_object::AnyObject;
pub use dialect::{
    DIALECTS, Dialect, JobKind, MadeOf, MissingJob, NotReadable, Place, RootsOf, Summary, job_kinds, kinds_of_nodes,
    node_kinds, served_kinds, workload_kinds,
};
pub use image::image;
pub use node::PlainNode;
pub use share::{NotAShare, Share};
pub use sign::{HandOver, Sign};
pub use span::{NotASpan, Span};
pub use view::View;
pub use write::{Target, Write, is_refused_for_its_content};

/// The namespace of Stoker's own objects, unless it is installed in another.
pub const NAMESPACE: &str = "stoker-system";

/// The CRDs of every kind that this version serves, each with the name of its file below `deploy/crds/`.
pub fn crds() -> Vec<(&'static str, CustomResourceDefinition)> {
    vec![
        ("stoker-preheats", native::Preheat::crd()),
        ("stoker-nodepreheats", native::NodePreheat::crd()),
        ("stoker-preheatpolicies", native::PreheatPolicy::crd()),
        ("kruise-imagepulljobs", kruise::crd::<kruise::ImagePullJob>()),
        ("kruise-imagelistpulljobs", kruise::crd::<kruise::ImageListPullJob>()),
        ("kruise-nodeimages", kruise::crd::<kruise::NodeImage>()),
        ("ofen-imageprefetches", ofen::crd::<ofen::ImagePrefetch>()),
        ("ofen-nodeimagesets", ofen::crd::<ofen::NodeImageSet>()),
    ]
}
