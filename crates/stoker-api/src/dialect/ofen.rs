//! ofen (`ofen.cybozu.io`): ImagePrefetch and NodeImageSet as their users know them, and as ofen's design note shows them.
//!
//! An ImagePrefetch is one job. A NodeImageSet is a part of one, and shows what a node does for it; or somebody wrote it by hand, and it is a job
//! for one node. Upstream refuses nothing by its schemas; what its admission policies refuse the schemas here refuse, in the same words.

mod from_core;
mod image_prefetch;
mod node_image_set;
mod part;
mod said;
mod sets;
mod to_core;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt;
use kube_core::discovery::ApiResource;

use crate::dialect::{JobKind, RootsOf, foreign_crd};
use crate::sign::{self, Sign};
use crate::view::{Kind, Row};
pub use image_prefetch::{ImagePrefetch, ImagePrefetchSpec, ImagePrefetchStatus, NodeLabels, SecretName};
pub use node_image_set::{
    ContainerImageStatus, NodeImageSet, NodeImageSetSpec, NodeImageSetStatus, RegistryPolicy, SetImage,
};
pub use part::set_name;

/// The name of this dialect.
pub const DIALECT: &str = "ofen";

/// The API group of ofen's kinds.
const GROUP: &str = "ofen.cybozu.io";

/// ofen puts them on its objects, and one that is taken over would never go with them.
const FINALIZERS: [&str; 2] = ["image-prefetch.ofen.cybozu.io/finalizer", "nodeimageset.ofen.cybozu.io/finalizer"];

/// Where ofen's documentation installs it.
const HOME: &str = "ofen-system";

/// How ofen's controller and its agents show that they are at work. It has no webhooks.
pub const SIGNS: &[Sign] = &[
    Sign::Lease { namespace: HOME, name: "c4cf5e14.ofen.cybozu.io", kind: &CONTROLLER },
    Sign::Lease { namespace: HOME, name: "08b3b3b1.ofen.cybozu.io", kind: &AGENT },
];

/// The Lease of ofen's controller.
static CONTROLLER: Kind = Kind {
    name: "Lease",
    versions: sign::leases,
    keep: sign::lease_row,
    fields: Some("metadata.name=c4cf5e14.ofen.cybozu.io"),
};

/// The Lease of ofen's agents, where they elect a leader.
static AGENT: Kind = Kind {
    name: "Lease",
    versions: sign::leases,
    keep: sign::lease_row,
    fields: Some("metadata.name=08b3b3b1.ofen.cybozu.io"),
};

/// The CRD of a kind. Of an object without a spec ofen's policies say that it has no images.
pub fn crd<K: CustomResourceExt>() -> CustomResourceDefinition {
    let mut definition = K::crd();
    foreign_crd::as_upstream(&mut definition, Some("spec.images must not be empty"), None);
    definition
}

/// ImagePrefetches.
pub static IMAGE_PREFETCHES: JobKind = JobKind {
    kind: Kind {
        name: "ImagePrefetch",
        versions: || vec![ApiResource::erase::<ImagePrefetch>(&())],
        keep: Row::whole,
        fields: None,
    },
    dialect: DIALECT,
    namespaced: true,
    verbs: &["patch"],
    made_of: None,
    roots: RootsOf::Objects,
    in_half: false,
    derive: to_core::derive,
    project: from_core::project,
    summary: from_core::summary,
};

/// NodeImageSets.
pub static NODE_IMAGE_SETS: JobKind = JobKind {
    kind: Kind {
        name: "NodeImageSet",
        versions: || vec![ApiResource::erase::<NodeImageSet>(&())],
        keep: Row::whole,
        fields: None,
    },
    dialect: DIALECT,
    namespaced: false,
    verbs: &["create", "delete", "patch"],
    made_of: None,
    roots: RootsOf::ObjectsOnNodes { place: part::place, wholes: &IMAGE_PREFETCHES },
    in_half: false,
    derive: to_core::derive_set,
    project: sets::project,
    summary: sets::summary,
};
