//! Least privilege, asked of the API server with the very tokens that Stoker's pods have.

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use serde_json::json;
use stoker_api::native::NodePreheat;

use crate::bed::{Cluster, SHOP, SYSTEM};
use crate::embedded::eventually;

#[track_caller]
fn is_forbidden<T>(result: Result<T, kube::Error>, what: &str, says: &str) {
    match result {
        Ok(_) => panic!("allowed: {what}"),
        Err(kube::Error::Api(status)) => {
            assert!(status.code == 403 && status.message.contains(says), "{what}: {status:?}");
        }
        Err(problem) => panic!("{what}: {problem}"),
    }
}

/// What an account may do beyond what everybody may, as the API server itself lists it.
async fn rights(cluster: &Cluster, account: &str, namespace: &str) -> Vec<String> {
    let user = format!("--as=system:serviceaccount:{SYSTEM}:{account}");
    let said = cluster.kubectl(&["auth", "can-i", "--list", "--no-headers", &user, "-n", namespace]).await;
    let resources = said.exits(0).out.lines().filter(|line| !line.trim_start().starts_with('['));
    let words = resources.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    words.filter(|line| !line.contains("selfsubject")).collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn an_agent_reads_no_secrets_and_writes_for_no_other_node() {
    let Some(cluster) = Cluster::enter().await else { return };
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "private"}, "stringData": {"a": "b"}});
    cluster.create(&secret).await;
    let pod = cluster.part_on("agent", "n1").await;
    let agent = cluster.as_part("agent", Some(&pod)).await;

    for namespace in [SHOP, "default", "kube-system", SYSTEM] {
        let secrets: Api<Secret> = Api::namespaced(agent.clone(), namespace);
        is_forbidden(
            secrets.list(&ListParams::default()).await,
            &format!("list Secrets of {namespace}"),
            "cannot list",
        );
        is_forbidden(secrets.get("any").await, &format!("read a Secret of {namespace}"), "cannot get");
    }
    let all: Api<Secret> = Api::all(agent.clone());
    is_forbidden(all.list(&ListParams::default()).await, "list all Secrets", "cannot list");
    let foreign: Api<Secret> = Api::namespaced(agent.clone(), SHOP);
    is_forbidden(foreign.get("private").await, "read a Secret of the shop", "cannot get");

    let resource = ApiResource::erase::<NodePreheat>(&());
    let preheats: Api<DynamicObject> = Api::all_with(agent.clone(), &resource);
    let report = Patch::Merge(json!({"status": {"agent": {"version": "9.9.9"}}}));
    let params = PatchParams::default();
    is_forbidden(
        preheats.patch_status("n2", &params, &report).await,
        "report for another node",
        "an agent may only write the NodePreheat of the node that it runs on",
    );
    let own = Patch::Merge(json!({"status": {"agent": {}}}));
    preheats.patch_status("n1", &params, &own).await.expect("an agent reports for its own node");
    let order = Patch::Merge(json!({"spec": {"orders": {"x": {"image": "a"}}}}));
    is_forbidden(preheats.patch("n1", &params, &order).await, "order itself something", "cannot patch");
    is_forbidden(preheats.delete("n1", &Default::default()).await, "delete its NodePreheat", "cannot delete");
    let strange: DynamicObject =
        serde_json::from_value(json!({"apiVersion": "stoker.dev/v1alpha1", "kind": "NodePreheat", "metadata": {"name": "n9"}, "spec": {"orders": {}}})).unwrap();
    is_forbidden(
        preheats.create(&PostParams::default(), &strange).await,
        "make the NodePreheat of another node",
        "an agent may only write the NodePreheat of the node that it runs on",
    );
    // A token that is of no pod, and so of no node, is good for nothing.
    let nobody: Api<DynamicObject> = Api::all_with(cluster.as_part("agent", None).await, &resource);
    let refused = nobody.patch_status("n1", &params, &own).await;
    is_forbidden(refused, "report without a node", "does not say on which node it runs");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn every_right_that_stoker_has_is_listed_here() {
    let Some(cluster) = Cluster::enter().await else { return };
    let agent = [
        "nodepreheats.stoker.dev [] [] [create get list watch]",
        "nodes [] [] [get]",
        "nodepreheats.stoker.dev/status [] [] [patch]",
    ];
    assert_eq!(sorted(rights(&cluster, "stoker-agent", SHOP).await), sorted(agent));
    assert_eq!(sorted(rights(&cluster, "stoker-agent", SYSTEM).await), sorted(agent));
    let controller = [
        "events [] [] [create]",
        "imagelistpulljobs.apps.kruise.io [] [] [delete list patch watch]",
        "imagelistpulljobs.apps.kruise.io/status [] [] [patch]",
        "imagepulljobs.apps.kruise.io [] [] [create delete list patch watch]",
        "imagepulljobs.apps.kruise.io/status [] [] [patch]",
        "leases.coordination.k8s.io [] [kruise-manager] [list watch]",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io [] [] [list watch]",
        "validatingwebhookconfigurations.admissionregistration.k8s.io [] [] [list watch]",
        "preheats.stoker.dev [] [] [delete list watch]",
        "nodes [] [] [list watch]",
        "pods [] [] [list watch]",
        "secrets [] [] [get]",
        "nodepreheats.stoker.dev [] [] [list patch watch]",
        "preheats.stoker.dev/status [] [] [patch]",
    ];
    assert_eq!(sorted(rights(&cluster, "stoker-controller", SHOP).await), sorted(controller));
    let lease = [
        "secrets [] [] [get delete list]",
        "leases.coordination.k8s.io [] [] [create]",
        "leases.coordination.k8s.io [] [stoker-controller] [get list update watch]",
    ];
    let own = controller.into_iter().filter(|line| !line.starts_with("secrets")).chain(lease);
    assert_eq!(sorted(rights(&cluster, "stoker-controller", SYSTEM).await), sorted(own));
}

fn sorted(lines: impl IntoIterator<Item = impl Into<String>>) -> Vec<String> {
    let mut lines: Vec<String> = lines.into_iter().map(Into::into).collect();
    lines.sort();
    lines
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn who_may_view_a_namespace_sees_its_jobs_and_who_has_the_role_for_them_makes_them() {
    let Some(cluster) = Cluster::enter().await else { return };
    let role = |name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
    let binding = |user: &str, bound: &str| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": user, "namespace": SHOP}, "roleRef": role(bound),
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]})
    };
    let bindings = [binding("bob", "view"), binding("carol", "edit")];
    cluster.apply(&bindings.map(|binding| binding.to_string()).join("\n---\n")).await.exits(0);
    let can = async |user: &str, verb: &str, what: &str, namespace: &str| {
        let ran = cluster.kubectl(&["auth", "can-i", verb, what, "-n", namespace, &format!("--as={user}")]).await;
        ran.out.trim() == "yes"
    };
    let ada = format!("system:serviceaccount:{SHOP}:ada");
    assert!(can("bob", "list", "preheats", SHOP).await && !can("bob", "create", "preheats", SHOP).await);
    // Images on all nodes are more than a namespace.
    assert!(can("carol", "create", "deployments", SHOP).await && can("carol", "list", "preheats", SHOP).await);
    assert!(!can("carol", "create", "preheats", SHOP).await);
    assert!(can(&ada, "create", "preheats", SHOP).await && can(&ada, "delete", "preheats", SHOP).await);
    assert!(can(&ada, "list", "nodepreheats", SHOP).await && !can(&ada, "patch", "nodepreheats", SHOP).await);
    assert!(!can(&ada, "create", "preheats", "default").await && !can("bob", "list", "preheats", "default").await);
    // Status is the controller's word.
    let user = format!("--as={ada}");
    let status = ["auth", "can-i", "patch", "preheats", "--subresource=status", "-n", SHOP, &user];
    assert_eq!(cluster.kubectl(&status).await.out.trim(), "no");

    let image = cluster.own_image().await;
    let open = cluster.manifests(&image, &["--aggregate-to-edit"]).await;
    cluster.apply(&open.exits(0).out).await.exits(0);
    eventually("who may edit makes jobs", async || can("carol", "create", "preheats", SHOP).await).await;
    let closed = cluster.manifests(&image, &[]).await;
    cluster.apply(&closed.exits(0).says("cannot once this is applied").out).await.exits(0);
    eventually("who may edit makes none", async || !can("carol", "create", "preheats", SHOP).await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn who_may_only_edit_a_namespace_preheats_and_is_told_how_to_see_nodes() {
    let Some(cluster) = Cluster::enter().await else { return };
    // The next test gives it back.
    cluster.kubectl(&["delete", "clusterrolebinding", "shop-ada"]).await.exits(0);
    let blind = async || cluster.kubectl_as_person(&["auth", "can-i", "list", "nodes"]).await.code != Some(0);
    eventually("ada sees no nodes", blind).await;
    let (image, _) = cluster.push("shop/web", 1_000_000).await;
    cluster.stoker(&["pull", &image, "--name", "web"]).await.exits(0).says("on all 2 nodes");
    let allowed = "`kubectl create clusterrolebinding NAME --clusterrole=stoker-nodes-view";
    cluster.stoker(&["get", "web"]).await.exits(0).says("2 nodes").says("its nodes cannot be shown").says(allowed);
    cluster.stoker(&["why", "web"]).await.exits(1).says("nodes is forbidden").says(allowed);
    cluster.stoker(&["get", "nodes"]).await.exits(1).says("nodepreheats.stoker.dev is forbidden").says(allowed);
}
