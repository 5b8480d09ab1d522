//! The kinds of object that an installation is made of, in the order in which they go: whatever works stops first, then
//! what it worked on, then what it was allowed, then the namespace, and at last what says which namespace that is. A row more is
//! all that a new kind needs.

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::flowcontrol::v1::FlowSchema;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Resource;
use kube::core::ApiResource;

/// When the objects of a kind go. Those of one stage go together; a stage begins when the one before is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemovalStage {
    /// While an agent runs it makes its NodePreheat anew, and a controller its Lease.
    Workloads,
    /// With their objects; and what the workloads left in a namespace that stays.
    Definitions,
    /// Accounts, roles, policies.
    Rights,
    /// With whatever is still in it.
    Namespace,
    /// The binding that names the namespace in which Stoker is. While it is there, an `uninstall` that was interrupted finds the rest.
    Bindings,
}

impl RemovalStage {
    /// Every stage, in its order.
    pub(super) const ALL: [Self; 5] =
        [Self::Workloads, Self::Definitions, Self::Rights, Self::Namespace, Self::Bindings];
}

/// One kind.
pub(super) struct InstalledKind {
    pub(super) stage: RemovalStage,
    pub(super) resource: ApiResource,
}

/// Every kind, in its order.
pub(super) fn all() -> Vec<InstalledKind> {
    vec![
        kind::<Deployment>(RemovalStage::Workloads),
        kind::<DaemonSet>(RemovalStage::Workloads),
        kind::<CustomResourceDefinition>(RemovalStage::Definitions),
        kind::<PodDisruptionBudget>(RemovalStage::Rights),
        kind::<ValidatingAdmissionPolicyBinding>(RemovalStage::Rights),
        kind::<ValidatingAdmissionPolicy>(RemovalStage::Rights),
        kind::<FlowSchema>(RemovalStage::Rights),
        kind::<ClusterRole>(RemovalStage::Rights),
        kind::<RoleBinding>(RemovalStage::Rights),
        kind::<Role>(RemovalStage::Rights),
        kind::<ServiceAccount>(RemovalStage::Rights),
        kind::<Namespace>(RemovalStage::Namespace),
        kind::<ClusterRoleBinding>(RemovalStage::Bindings),
    ]
}

fn kind<K: Resource<DynamicType = ()>>(stage: RemovalStage) -> InstalledKind {
    InstalledKind { stage, resource: ApiResource::erase::<K>(&()) }
}
