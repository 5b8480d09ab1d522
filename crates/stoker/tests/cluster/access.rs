//! Least privilege, asked of the API server with the very tokens that Stoker's pods have.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::{Value, json};
use stoker_api::native::{NodePreheat, Preheat};
use stoker_core::Reference;
use stoker_testbed::proxy::Proxy;

use crate::bed::{Cluster, REGISTRY, SHOP, SYSTEM, image};
use crate::embedded::eventually;
use crate::link::{HERE, Linked};

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

/// Every digest in the orders of a node, in all versions of its object that are there from now on.
async fn digests_ordered(cluster: &Cluster, node: &str) -> Arc<Mutex<BTreeSet<String>>> {
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let config = watcher::Config::default().fields(&format!("metadata.name={node}"));
    let mut objects = watcher(cluster.node_preheats(), config).default_backoff().applied_objects().boxed();
    let digests = |object: &DynamicObject| -> Vec<String> {
        let orders = object.data["spec"]["orders"].as_object().into_iter().flatten();
        orders.filter_map(|(_, order)| Some(order["pin"]["digest"].as_str()?.to_owned())).collect()
    };
    // From here on nothing is missed.
    let first = objects.next().await.unwrap().unwrap();
    seen.lock().unwrap().extend(digests(&first));
    let all = seen.clone();
    tokio::spawn(async move {
        while let Some(object) = objects.next().await {
            all.lock().unwrap().extend(object.iter().flat_map(digests));
        }
    });
    seen
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_digest_that_an_agent_sets_binds_no_other_node() {
    let Some(cluster) = Cluster::enter().await else { return };
    let linked = Linked::start(&cluster, &[], image(1_000_000)).await;
    // The agent of n1 gets no answer of the registry, so that its own reports do not replace the lies that are told with its token.
    let silent = Proxy::start_at(HERE, linked.real.addr()).await.unwrap();
    silent.stall_after(0);
    let (host, folder) = (linked.link.host(), "/etc/containerd/certs.d");
    let script = format!("sed -i 's/{host}/{}/' {folder}/{host}/hosts.toml", silent.host());
    cluster.on_node("n1", &script).await.exits(0);
    let pod = cluster.part_on("agent", "n1").await;
    let agent = cluster.as_part("agent", Some(&pod)).await;
    let preheats: Api<DynamicObject> = Api::all_with(agent, &ApiResource::erase::<NodePreheat>(&()));
    // Of two answers to one ask the lesser digest comes first.
    let lie = format!("sha256:{}", "0".repeat(64));
    let key = linked.reference.parse::<Reference>().unwrap().key();
    let (key, question) = (key.to_string(), key.question().to_string());
    let say = async |keys: &[&str], asked: &str| {
        let reports = keys.iter().map(|key| {
            let report = json!({"asked": asked, "phase": "Resolved", "digest": lie, "pin": {"asked": asked, "digest": lie},
                "attempt": 1, "started": asked, "updated": asked, "finished": asked});
            ((*key).to_owned(), report)
        });
        let reports: serde_json::Map<String, Value> = reports.collect();
        let patch = Patch::Merge(json!({"status": {"reports": reports}}));
        preheats.patch_status("n1", &PatchParams::default(), &patch).await.expect("it may say what it likes of itself");
    };
    let told = digests_ordered(&cluster, "n2").await;

    // Before anybody asks, for a time that every job of this test is older than.
    say(&[&key, &question], "2200-01-01T00:00:00Z").await;
    cluster.stoker(&["pull", &linked.reference, "--name", "web", "--no-wait"]).await.exits(0);
    let asks =
        |object: Option<&DynamicObject>| object.is_some_and(|it| !it.data["spec"]["orders"][&question].is_null());
    let object = cluster.wait(&cluster.node_preheats(), "n1", asks).await.unwrap();
    // As the answer to what it was asked, and to what it was not.
    let asked = object.data["spec"]["orders"][&question]["asked"].as_str().unwrap();
    say(&[&key, &question], asked).await;
    let has = async || cluster.has("n2", &linked.reference).await;
    eventually("n2 goes by what it hears itself", has).await;
    silent.let_go();
    cluster.succeeds("web", 2).await;

    let status = cluster.preheats().get("web").await.unwrap().data["status"].clone();
    assert_eq!(status["digests"], json!({&linked.reference: linked.image.digest()}), "{status:#}");
    let listed = cluster.on_node("n2", "ctr -n k8s.io images ls").await;
    let line = listed.exits(0).out.lines().find(|line| line.starts_with(&linked.reference)).unwrap();
    assert!(line.contains(linked.image.digest()), "{line}");
    let told = told.lock().unwrap();
    assert!(!told.contains(&lie), "n2 was told to pull what n1 alone has said: {told:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn secrets_are_read_in_the_namespaces_of_secrets_from_alone() {
    let Some(mut cluster) = Cluster::enter().await else { return };
    let own = cluster.own_image().await;
    let narrow = cluster.manifests(&own, &["--secrets-from", SHOP]).await;
    cluster.spoil();
    cluster.apply(&narrow.exits(0).out).await.exits(0);
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "private"}, "stringData": {"a": "b"}});
    cluster.create(&secret).await;
    let controller = cluster.as_part("controller", None).await;
    let of = |namespace: &str| Api::<Secret>::namespaced(controller.clone(), namespace);
    let closed = async || of("default").get("private").await.is_err_and(|problem| is_code(&problem, 403));
    eventually("Secrets of other namespaces are closed", closed).await;
    is_forbidden(of("kube-system").get("private").await, "read a Secret of kube-system", "cannot get");
    is_forbidden(of(SYSTEM).get("private").await, "read a Secret of its own namespace", "cannot get");
    is_forbidden(of(SHOP).list(&ListParams::default()).await, "list Secrets of the shop", "cannot list");
    of(SHOP).get("private").await.expect("it reads what it was given");

    // Whoever names a Secret that it may not read is told how to allow it.
    let job = json!({"apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": "closed"}, "spec": {
        "images": [{"image": format!("{REGISTRY}/pause:1"), "pullSecrets": [{"name": "private"}]}]}});
    let jobs: Api<DynamicObject> =
        Api::namespaced_with(cluster.client.clone(), "default", &ApiResource::erase::<Preheat>(&()));
    jobs.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
    let told = |job: Option<&DynamicObject>| {
        let secrets = job.and_then(|job| job.data["status"]["secrets"].as_array());
        secrets.is_some_and(|secrets| secrets.iter().any(|secret| secret["reason"] == "SecretForbidden"))
    };
    let job = cluster.wait(&jobs, "closed", told).await.unwrap();
    let secrets = job.data["status"]["secrets"].to_string();
    assert!(secrets.contains("--secrets-from default"), "{secrets}");
    jobs.delete("closed", &Default::default()).await.unwrap();

    // As it was, for the next test.
    cluster.apply(&cluster.manifests(&own, &[]).await.exits(0).out).await.exits(0);
    cluster.kubectl(&["-n", SHOP, "delete", "rolebinding", "stoker-controller-secrets"]).await.exits(0);
    cluster.kubectl(&["delete", "clusterrole", "stoker-controller-secrets"]).await.exits(0);
    let open = async || of("default").get("private").await.is_err_and(|problem| is_code(&problem, 404));
    eventually("Secrets of all namespaces can be read", open).await;
    cluster.restored();
}

fn is_code(problem: &kube::Error, code: u16) -> bool {
    matches!(problem, kube::Error::Api(status) if status.code == code)
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
    let at_home = agent.into_iter().chain(["configmaps [] [stoker-peer-keys] [get]"]);
    assert_eq!(sorted(rights(&cluster, "stoker-agent", SYSTEM).await), sorted(at_home));
    let controller = [
        "events [] [] [create]",
        "imagelistpulljobs.apps.kruise.io [] [] [delete list patch watch]",
        "imagelistpulljobs.apps.kruise.io/status [] [] [patch]",
        "imagepulljobs.apps.kruise.io [] [] [create delete list patch watch]",
        "imagepulljobs.apps.kruise.io/status [] [] [patch]",
        "nodeimages.apps.kruise.io [] [] [create delete list patch watch]",
        "nodeimages.apps.kruise.io/status [] [] [patch]",
        "leases.coordination.k8s.io [] [kruise-manager] [list watch]",
        "imageprefetches.ofen.cybozu.io [] [] [list patch watch]",
        "imageprefetches.ofen.cybozu.io/status [] [] [patch]",
        "nodeimagesets.ofen.cybozu.io [] [] [create delete list patch watch]",
        "nodeimagesets.ofen.cybozu.io/status [] [] [patch]",
        "leases.coordination.k8s.io [] [08b3b3b1.ofen.cybozu.io] [list watch]",
        "leases.coordination.k8s.io [] [c4cf5e14.ofen.cybozu.io] [list watch]",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io [] [] [list watch]",
        "validatingwebhookconfigurations.admissionregistration.k8s.io [] [] [list watch]",
        "preheats.stoker.dev [] [] [delete list watch]",
        "clonesets.apps.kruise.io [] [] [list watch]",
        "controllerrevisions.apps [] [] [list watch]",
        "daemonsets.apps [] [] [list watch]",
        "daemonsets.apps.kruise.io [] [] [list watch]",
        "deployments.apps [] [] [list watch]",
        "replicasets.apps [] [] [list watch]",
        "statefulsets.apps [] [] [list watch]",
        "statefulsets.apps.kruise.io [] [] [list watch]",
        "nodes [] [] [list watch]",
        "pods [] [] [list watch]",
        "namespaces [] [] [list watch]",
        "preheatpolicies.stoker.dev [] [] [list watch]",
        "secrets [] [] [get]",
        "nodepreheats.stoker.dev [] [] [list patch watch]",
        "preheats.stoker.dev/status [] [] [patch]",
    ];
    assert_eq!(sorted(rights(&cluster, "stoker-controller", SHOP).await), sorted(controller));
    let lease = [
        "secrets [] [] [get delete list]",
        "leases.coordination.k8s.io [] [] [create]",
        "leases.coordination.k8s.io [] [stoker-controller] [get list update watch]",
        "configmaps [] [] [create]",
        "configmaps [] [stoker-peer-keys] [get patch]",
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
