//! The kinds of workloads whose rollouts are followed, and the kinds that hold their revisions.

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};
use kube_core::discovery::ApiResource;

use super::{derive, project, row};
use crate::dialect::kruise::{self, types::GROUP};
use crate::dialect::{JobKind, RootsOf, Summary};
use crate::view::Kind;

/// Deployments of Kubernetes.
pub static DEPLOYMENTS: JobKind = workload("Deployment", || vec![ApiResource::erase::<Deployment>(&())]);
/// StatefulSets of Kubernetes.
pub static STATEFUL_SETS: JobKind = workload("StatefulSet", || vec![ApiResource::erase::<StatefulSet>(&())]);
/// DaemonSets of Kubernetes.
pub static DAEMON_SETS: JobKind = workload("DaemonSet", || vec![ApiResource::erase::<DaemonSet>(&())]);
/// CloneSets of OpenKruise.
pub static CLONE_SETS: JobKind = workload("CloneSet", || of_kruise("CloneSet", "clonesets"));
/// StatefulSets of OpenKruise, which its documents call advanced. Names of kinds are unique here, so these are called so too.
pub static ADVANCED_STATEFUL_SETS: JobKind =
    workload("AdvancedStatefulSet", || of_kruise("StatefulSet", "statefulsets"));
/// DaemonSets of OpenKruise.
pub static ADVANCED_DAEMON_SETS: JobKind = workload("AdvancedDaemonSet", || of_kruise("DaemonSet", "daemonsets"));

/// ReplicaSets: the revisions of Deployments.
pub static REPLICA_SETS: Kind = Kind {
    name: "ReplicaSet",
    versions: || vec![ApiResource::erase::<ReplicaSet>(&())],
    keep: row::replica_set,
    fields: None,
};

/// ControllerRevisions: the revisions of all others.
pub static CONTROLLER_REVISIONS: Kind = Kind {
    name: "ControllerRevision",
    versions: || vec![ApiResource::erase::<ControllerRevision>(&())],
    keep: row::controller_revision,
    fields: None,
};

/// A kind of workload. It belongs to OpenKruise's dialect, because its objects are left alone together with ImagePullJobs.
const fn workload(name: &'static str, versions: fn() -> Vec<ApiResource>) -> JobKind {
    JobKind {
        kind: Kind { name, versions, keep: row::workload, fields: None },
        dialect: kruise::DIALECT,
        namespaced: true,
        verbs: &[],
        made_of: None,
        roots: RootsOf::Objects,
        in_half: false,
        derive,
        project,
        summary: |_| Summary::default(),
    }
}

fn of_kruise(kind: &str, plural: &str) -> Vec<ApiResource> {
    let version = |version: &str| ApiResource {
        group: GROUP.into(),
        version: version.into(),
        api_version: format!("{GROUP}/{version}"),
        kind: kind.into(),
        plural: plural.into(),
    };
    ["v1beta1", "v1alpha1"].map(version).into()
}
