//! The namespace in which Stoker is installed, as the cluster shows it. A Deployment, a Lease or a label in a namespace proves
//! nothing, because everybody who may edit that namespace can make one. The ClusterRoleBinding that gives the controller its
//! rights does: only a cluster administrator can make it, and it names the namespace of the controller's ServiceAccount.

use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Client;
use kube::api::{Api, ApiResource};
use serde_json::Value;
use stoker_api::AnyObject;

/// The name of the controller's ServiceAccount, of its ClusterRole and of the ClusterRoleBinding between them.
pub const CONTROLLER: &str = "stoker-controller";

/// The namespace that the ClusterRoleBinding of the controller names; none where there is no such binding.
pub async fn installed_in(client: &Client) -> Result<Option<String>, kube::Error> {
    let bindings = Api::<AnyObject>::all_with(client.clone(), &ApiResource::erase::<ClusterRoleBinding>(&()));
    let binding = bindings.get_opt(CONTROLLER).await?;
    Ok(binding.and_then(|binding| named_by(&binding.0.data)))
}

fn named_by(binding: &Value) -> Option<String> {
    let role = &binding["roleRef"];
    let gives_our_role = role["kind"] == "ClusterRole" && role["name"] == CONTROLLER;
    let mut subjects = binding["subjects"].as_array().into_iter().flatten().filter(|_| gives_our_role);
    let account = subjects.find(|subject| subject["kind"] == "ServiceAccount" && subject["name"] == CONTROLLER)?;
    account["namespace"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_the_binding_of_our_account_to_our_role_names_a_namespace() {
        let role = json!({ "kind": "ClusterRole", "name": "stoker-controller" });
        let account = json!({ "kind": "ServiceAccount", "name": "stoker-controller", "namespace": "warm" });
        let named = |role: &Value, subjects: Value| named_by(&json!({ "roleRef": role, "subjects": subjects }));
        assert_eq!(named(&role, json!([account])).as_deref(), Some("warm"));
        let other = json!({ "kind": "ServiceAccount", "name": "robot", "namespace": "shop" });
        assert_eq!(named(&role, json!([other, account])).as_deref(), Some("warm"));
        assert_eq!(named(&role, json!([other])), None);
        assert_eq!(named(&role, json!([{ "kind": "User", "name": "stoker-controller" }])), None);
        assert_eq!(named(&role, Value::Null), None);
        assert_eq!(named(&json!({ "kind": "ClusterRole", "name": "view" }), json!([account])), None);
    }
}
