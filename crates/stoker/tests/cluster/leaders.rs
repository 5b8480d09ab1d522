//! One controller leads. When it dies, or is taken for dead, another does, and what is under way goes on.

use std::collections::BTreeSet;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::json;

use crate::bed::{Cluster, SYSTEM, image, is_ready, restarts};
use crate::link::Linked;

fn leases(cluster: &Cluster) -> Api<Lease> {
    Api::namespaced(cluster.client.clone(), SYSTEM)
}

fn held_by_another_than(holder: &str) -> impl Fn(Option<&Lease>) -> bool {
    move |lease: Option<&Lease>| {
        let now = lease.and_then(|lease| lease.spec.as_ref()?.holder_identity.as_deref());
        now.is_some_and(|now| !now.is_empty() && now != holder)
    }
}

async fn all_ready(cluster: &Cluster) {
    cluster
        .eventually("two controllers are ready", || async {
            let pods = cluster.parts("controller").await;
            pods.len() == 2 && pods.iter().all(is_ready)
        })
        .await;
}

/// How often this pod's container was started again.
async fn restarts_of(cluster: &Cluster, pod: &Pod) -> i32 {
    let pods = cluster.parts("controller").await;
    restarts(pods.iter().find(|other| other.metadata.uid == pod.metadata.uid).expect("the same pod"))
}

/// Where both are on one node, a part that is killed there by name would be both.
async fn on_two_nodes(cluster: &Cluster) {
    all_ready(cluster).await;
    let pods = cluster.parts("controller").await;
    let nodes: BTreeSet<_> = pods.iter().map(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone())).collect();
    if nodes.len() < 2 {
        cluster.delete_part(&pods[0]).await;
        cluster
            .kubectl(&["-n", SYSTEM, "rollout", "status", "--timeout=180s", "deployment/stoker-controller"])
            .await
            .exits(0);
        all_ready(cluster).await;
    }
}

/// A pull on both nodes that has stopped in the middle.
async fn half_way(cluster: &Cluster) -> Linked {
    on_two_nodes(cluster).await;
    let linked = Linked::start(cluster, &[], image(20_000_000)).await;
    linked.link.stall_after(8_000_000);
    cluster.stoker(&["pull", &linked.reference, "--name", "web", "--no-wait"]).await.exits(0);
    linked.link.wait_for_bytes(8_000_000).await.unwrap();
    linked
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn when_the_leader_is_killed_another_goes_on_and_nothing_is_pulled_twice() {
    let Some(cluster) = Cluster::enter().await else { return };
    let linked = half_way(&cluster).await;
    let (_, node, holder) = cluster.leader().await;
    // With nobody there to start it again, and no word to anybody.
    let away = cluster.without(&format!("{node}/kubelet")).await;
    cluster.signal(&node, "controller", "KILL").await;
    let last = leases(&cluster).get("stoker-controller").await.unwrap().spec.unwrap();
    let lease = cluster.wait(&leases(&cluster), "stoker-controller", held_by_another_than(&holder)).await;
    let taken = lease.and_then(|lease| lease.spec?.acquire_time).unwrap().0;
    // Twice, for a machine that has other things to do: who waits for the pod to come back would take much longer.
    let waited = taken.duration_since(last.renew_time.unwrap().0).as_secs();
    assert!(waited <= 2 * i64::from(last.lease_duration_seconds.unwrap()), "it was taken after {waited} s");
    drop(away);
    linked.link.let_go();
    let status = cluster.ended("web").await;
    assert_eq!((&status["phase"], &status["succeeded"]), (&json!("Succeeded"), &json!(2)), "{status:#}");
    linked.sent_at_most(2);
    all_ready(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_leader_that_is_started_again_in_its_pod_goes_on() {
    let Some(cluster) = Cluster::enter().await else { return };
    let linked = half_way(&cluster).await;
    let (pod, node, _) = cluster.leader().await;
    cluster.signal(&node, "controller", "KILL").await;
    let again = || async { restarts_of(&cluster, &pod).await == restarts(&pod) + 1 };
    cluster.eventually("the kubelet starts it again", again).await;
    linked.link.let_go();
    let status = cluster.ended("web").await;
    assert_eq!((&status["phase"], &status["succeeded"]), (&json!("Succeeded"), &json!(2)), "{status:#}");
    linked.sent_at_most(2);
    all_ready(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_leader_that_slept_through_its_lease_writes_no_more() {
    let Some(cluster) = Cluster::enter().await else { return };
    let linked = half_way(&cluster).await;
    let (pod, node, holder) = cluster.leader().await;
    // It lives and knows nothing of the time that passes. Nobody shall take it for dead: its kubelet would.
    let kubelet = cluster.without(&format!("{node}/kubelet")).await;
    cluster.signal(&node, "controller", "STOP").await;
    cluster.wait(&leases(&cluster), "stoker-controller", held_by_another_than(&holder)).await;
    linked.link.let_go();
    // The new one has written: its epoch is higher.
    let status = cluster.ended("web").await;
    assert_eq!(status["phase"], "Succeeded", "{status:#}");
    let epoch = async || {
        let object = cluster.node_preheats().get("n1").await.unwrap();
        object.data["spec"]["epoch"].as_i64().unwrap_or_default()
    };
    cluster.stoker(&["pull", "10.77.0.1:5000/busybox:1", "--name", "next", "--no-wait"]).await.exits(0);
    assert_eq!(cluster.ended("next").await["phase"], "Succeeded");
    let newer = epoch().await;
    cluster.signal(&node, "controller", "CONT").await;
    drop(kubelet);
    assert_eq!(restarts_of(&cluster, &pod).await, restarts(&pod), "it slept, and nobody started it again");
    all_ready(&cluster).await;
    // It woke up: it stands by, and what is asked next is written by the one that leads.
    cluster.stoker(&["pull", "10.77.0.1:5000/pause:1", "--name", "last", "--no-wait"]).await.exits(0);
    assert_eq!(cluster.ended("last").await["phase"], "Succeeded");
    assert_eq!(epoch().await, newer, "whoever slept has written");
    linked.sent_at_most(2);

    // And had it written, with the epoch that it had, the API server would have refused: whoever asks.
    let late = json!({"spec": {"epoch": newer - 1, "orders": {"late": null}}});
    let refused = cluster.node_preheats().patch("n1", &PatchParams::default(), &Patch::Merge(&late)).await;
    let Err(kube::Error::Api(refusal)) = refused else { panic!("the late write was taken") };
    assert!(refusal.code == 422 && refusal.message.contains("epoch"), "{refusal:?}");
    let untouched = |object: Option<&DynamicObject>| object.is_some_and(|object| object.data["spec"]["epoch"] == newer);
    cluster.wait(&cluster.node_preheats(), "n1", untouched).await;
}
