//! Who may do what on a real server, as `stoker install` and an administrator would have it. A client that may do everything
//! comes in; logins of service accounts go out, none of which may do more than its role.

use std::path::Path;

use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::own;
use crate::up::{Login, eventually};

/// Gives accounts their rights and their logins.
pub(crate) struct Rights {
    client: Client,
    administrator: Login,
}

impl Rights {
    pub(crate) fn new(client: Client, administrator: Login) -> Self {
        Self { client, administrator }
    }

    /// The login of an account, given by its namespace and name; one that is bound to a pod says on which node that is.
    pub(crate) async fn login(&self, dir: &Path, account: (&str, &str), bound: Option<&Pod>) -> Login {
        let name = bound.map_or_else(|| account.1.to_owned(), |pod| pod.name_any());
        self.administrator.account(dir.join(format!("{name}.kubeconfig")), account, bound).await
    }

    /// Somebody who may edit the namespace and make jobs in it, and see nodes.
    pub(crate) async fn person(&self, dir: &Path, namespace: &str) -> Login {
        let somebody = self.account(namespace, "person").await;
        let bindings: Api<RoleBinding> = Api::namespaced(self.client.clone(), namespace);
        for role in ["edit", "stoker-edit"] {
            let edits = binding(&format!("person-{role}"), role, &somebody);
            bindings.create(&PostParams::default(), &serde_json::from_value(edits).unwrap()).await.unwrap();
        }
        self.bind_everywhere(&somebody, "stoker-nodes-view").await;
        for (group, resource) in [("stoker.dev", "preheats"), ("apps.kruise.io", "imagepulljobs")] {
            for verb in ["create", "list"] {
                self.wait_until_may(&somebody, verb, group, resource, Some(namespace)).await;
            }
        }
        self.wait_until_may(&somebody, "list", "stoker.dev", "nodepreheats", None).await;
        self.login(dir, (namespace, "person"), None).await
    }

    /// Somebody who may see all namespaces, and nodes.
    pub(crate) async fn operator(&self, dir: &Path, namespace: &str) -> Login {
        let somebody = self.account(namespace, "operator").await;
        for role in ["view", "stoker-nodes-view"] {
            self.bind_everywhere(&somebody, role).await;
        }
        self.wait_until_may(&somebody, "list", "stoker.dev", "preheats", None).await;
        self.wait_until_may(&somebody, "list", "stoker.dev", "nodepreheats", None).await;
        self.login(dir, (namespace, "operator"), None).await
    }

    async fn account(&self, namespace: &str, name: &str) -> Somebody {
        let account = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        accounts.create(&PostParams::default(), &account).await.unwrap();
        Somebody { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    async fn bind_everywhere(&self, somebody: &Somebody, role: &str) {
        let name = format!("{}-{}-{role}", somebody.namespace, somebody.name);
        let bindings: Api<ClusterRoleBinding> = Api::all(self.client.clone());
        let binding = serde_json::from_value(binding(&name, role, somebody)).unwrap();
        bindings.create(&PostParams::default(), &binding).await.unwrap();
    }

    /// Kubernetes adds our roles to its own at its own time, and takes new bindings into account a little later.
    async fn wait_until_may(&self, who: &Somebody, verb: &str, group: &str, resource: &str, namespace: Option<&str>) {
        let user = format!("system:serviceaccount:{}:{}", who.namespace, who.name);
        let what = json!({"verb": verb, "group": group, "resource": resource, "namespace": namespace});
        let review = json!({"metadata": {}, "spec": {"user": user, "resourceAttributes": what}});
        let review: SubjectAccessReview = serde_json::from_value(review).unwrap();
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let may = async || {
            let answer = reviews.create(&PostParams::default(), &review).await.unwrap();
            answer.status.is_some_and(|status| status.allowed)
        };
        eventually(&format!("{user} may {verb} {resource}"), may).await;
    }
}

/// A service account.
struct Somebody {
    namespace: String,
    name: String,
}

fn binding(name: &str, role: &str, somebody: &Somebody) -> Value {
    let mut binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": somebody.name, "namespace": somebody.namespace}],
    });
    own::mark(&mut binding);
    binding
}
