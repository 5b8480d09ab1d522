//! `stoker install` on a real cluster: pods that run without privileges that they need not, on both containerds; and
//! `stoker uninstall`, which leaves nothing.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::bed::{Cluster, SYSTEM, image, is_ready, restarts};
use crate::embedded::{docker_login, kubectl};
use crate::link::Linked;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn controllers_and_agents_run_and_know_their_nodes() {
    let Some(mut cluster) = Cluster::enter().await else { return };
    // Fresh ones: what other tests have done to them is not their fault.
    cluster.uninstall().await;
    drop(cluster);
    let Some(cluster) = Cluster::enter().await else { return };
    let (controllers, agents) = (cluster.parts("controller").await, cluster.parts("agent").await);
    assert_eq!((controllers.len(), agents.len()), (2, 2));
    for pod in controllers.iter().chain(&agents) {
        let name = pod.metadata.name.as_deref().unwrap();
        assert!(is_ready(pod) && restarts(pod) == 0, "{name}: {:#?}", pod.status);
        let log = cluster.kubectl(&["-n", SYSTEM, "logs", name]).await;
        let complaints: Vec<&str> = log.exits(0).out.lines().filter(|line| line.contains("ERROR")).collect();
        assert!(complaints.is_empty(), "{name}: {complaints:#?}");
        let privileged = pod.spec.iter().flat_map(|spec| &spec.containers).any(|container| {
            container.security_context.as_ref().is_some_and(|context| context.privileged == Some(true))
        });
        assert!(!privileged, "{name} is privileged");
    }
    for (node, version) in [("n1", "containerd 1.6"), ("n2", "containerd 2.2")] {
        let object = cluster.node_preheats().get(node).await.unwrap();
        let runtime = object.data["status"]["agent"]["runtime"].as_str().unwrap_or_default();
        // That they saw how containerd unpacks means that they reach its socket and its settings.
        assert!(runtime.starts_with(version) && runtime.ends_with("(overlayfs)"), "{node}: {:#}", object.data);
        let owner = object.metadata.owner_references.unwrap_or_default();
        assert!(owner.iter().any(|owner| owner.kind == "Node" && owner.name == node), "{owner:?}");
    }
    let version = cluster.administer(&["install", "--image", "registry.example/stoker:v1"]).await;
    version.exits(0).says("kind: DaemonSet");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn uninstall_leaves_nothing_though_a_pull_runs_and_a_job_is_held() {
    let Some(mut cluster) = Cluster::enter().await else { return };
    let linked = Linked::start(&cluster, &[], image(5_000_000)).await;
    linked.link.stall_after(1_000_000);
    cluster.stoker(&["pull", &linked.reference, "--name", "web", "--no-wait"]).await.exits(0);
    linked.link.wait_for_bytes(1_000_000).await.unwrap();
    // As another version might have made it: nobody is left to take this away.
    let held = Patch::Merge(json!({"metadata": {"finalizers": ["stoker.dev/held"]}}));
    cluster.preheats().patch("web", &PatchParams::default(), &held).await.unwrap();
    let refused = cluster.administer(&["uninstall"]).await;
    refused.exits(1).says("--yes").says("1 Preheat (shop/web)");
    assert!(cluster.preheats().get_opt("web").await.unwrap().is_some(), "nothing was deleted");

    cluster.uninstall().await;
    linked.link.let_go();
    for kind in [
        "namespaces",
        "customresourcedefinitions",
        "clusterroles",
        "clusterrolebindings",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    ] {
        let left = cluster.kubectl(&["get", kind, "-o", "name", "-l", "app.kubernetes.io/part-of=stoker"]).await;
        assert_eq!(left.exits(0).out, "", "{kind}");
    }
    cluster.kubectl(&["get", "namespace", SYSTEM]).await.exits(1).says("not found");
    cluster.kubectl(&["get", "preheats", "-A"]).await.exits(1).says("preheats");
    for node in ["n1", "n2"] {
        // It ends with 1 where it finds nothing.
        let running = cluster.on_node(node, "pgrep -f '^/usr/local/bin/stoker [a-z]' || [ $? -eq 1 ]").await;
        assert_eq!(running.exits(0).out, "", "something of Stoker still runs on {node}");
    }
    // A second time there is nothing to do, and that is no failure.
    cluster.administer(&["uninstall"]).await.exits(0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_namespace_of_others_will_do_and_stays_and_one_stoker_is_enough() {
    let Some(mut cluster) = Cluster::enter().await else { return };
    let of_stoker = cluster.own_image().await;
    cluster.uninstall().await;
    let labels = json!({"team": "platform", "pod-security.kubernetes.io/enforce": "privileged"});
    let theirs = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "warm", "labels": labels}});
    cluster.apply(&theirs.to_string()).await.exits(0);
    cluster.kubectl(&["-n", "warm", "create", "configmap", "settings"]).await.exits(0);
    let manifests = cluster.manifests(&of_stoker, &["--namespace", "warm"]).await;
    manifests
        .exits(0)
        .says("note: the namespace warm was there before Stoker")
        .says("`privileged` in it, which it has");
    cluster.apply(&manifests.out).await.exits(0);
    cluster.rolled_out("warm").await;
    cluster.invite().await;
    let second = cluster.administer(&["install", "--image", &of_stoker]).await;
    second.exits(1).says("Stoker is in the namespace warm");

    // With a login, of which nothing is left there.
    let linked = Linked::start(&cluster, &[("ada", "hunter2")], image(1_000_000)).await;
    cluster.person.docker_secret("login", &docker_login(&linked.link.host(), "ada", "hunter2")).await;
    cluster
        .stoker(&["pull", &linked.reference, "--name", "web", "--secret", "login"])
        .await
        .exits(0)
        .says("on all 2 nodes");
    let leases = cluster.kubectl(&["-n", "warm", "get", "leases,secrets", "-o", "name"]).await;
    assert_eq!(leases.exits(0).out.trim(), "lease.coordination.k8s.io/stoker-controller");
    cluster.uninstall().await;
    let left = "all,configmaps,leases,rolebindings,roles,secrets,serviceaccounts";
    let left = cluster.kubectl(&["-n", "warm", "get", left, "-o", "name"]).await;
    let left: Vec<&str> = left.exits(0).out.lines().collect();
    assert_eq!(left, ["configmap/kube-root-ca.crt", "configmap/settings", "serviceaccount/default"]);
    cluster
        .kubectl(&["get", "namespace", "warm", "-o", "jsonpath={.metadata.labels.team}"])
        .await
        .exits(0)
        .says("platform");
    cluster.kubectl(&["delete", "namespace", "warm"]).await.exits(0);
}

/// Where nothing may stay that does not bear it; it goes with this, also where a test fails.
struct Tainted;

impl Tainted {
    fn put() -> Self {
        assert!(taint("stoker.dev/test=x:NoExecute"), "n2 cannot be tainted");
        Self
    }
}

impl Drop for Tainted {
    fn drop(&mut self) {
        assert!(taint("stoker.dev/test:NoExecute-") || std::thread::panicking(), "n2 stays tainted");
    }
}

fn taint(how: &str) -> bool {
    let mut command = std::process::Command::new(kubectl().unwrap());
    command.arg("--kubeconfig").arg(std::env::var_os("STOKER_TEST_KUBECONFIG").unwrap()).env("HOME", "/nonexistent");
    command.args(["taint", "nodes", "n2", how]).status().unwrap().success()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn agents_stay_and_work_where_nothing_else_may() {
    let Some(cluster) = Cluster::enter().await else { return };
    let agent = cluster.part_on("agent", "n2").await;
    let (of_guest, _) = cluster.push("shop/guest", 1_000).await;
    cluster.start_pod("guest", "n2", &of_guest).await;
    cluster.wait(&cluster.pods(), "guest", |pod: Option<&Pod>| pod.is_some_and(is_ready)).await;
    let tainted = Tainted::put();
    cluster.wait(&cluster.pods(), "guest", |pod: Option<&Pod>| pod.is_none()).await;
    let (image, _) = cluster.push("shop/web", 1_000_000).await;
    cluster.stoker(&["pull", &image, "--name", "web"]).await.exits(0).says("on all 2 nodes");
    assert!(cluster.has("n2", &image).await);
    cluster.lived_on(&[agent]).await;
    drop(tainted);
    cluster.both_ready("controller").await;
}
