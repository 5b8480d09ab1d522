//! The binding that shows where Stoker is installed. This server has one user, who may do everything: nothing here follows from
//! a binding, and whoever makes one is warned of that.

use super::{ROW, Row, readable};
use k8s_openapi::api::rbac::v1;

pub(super) const BINDINGS: &[Row] = &[Row {
    group: "rbac.authorization.k8s.io",
    kind: "ClusterRoleBinding",
    typed: readable::<v1::ClusterRoleBinding>,
    plural: "clusterrolebindings",
    namespaced: false,
    fixed: &["roleRef"],
    stored_only: true,
    columns: &[("Role", "string", 0, ".roleRef.name")],
    ..ROW
}];
