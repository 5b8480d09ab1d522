//! One controller leads. When it dies, or is taken for dead, another does, and what is under way goes on.

use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::json;

use crate::bed::{Cluster, REGISTRY, SYSTEM, node_of, restarts};
use crate::embedded::eventually;
use crate::link::Linked;
use crate::metrics::sum;

fn leases(cluster: &Cluster) -> Api<Lease> {
    Api::namespaced(cluster.client.clone(), SYSTEM)
}

fn held_by_another_than(holder: &str) -> impl Fn(Option<&Lease>) -> bool {
    move |lease: Option<&Lease>| {
        let now = lease.and_then(|lease| lease.spec.as_ref()?.holder_identity.as_deref());
        now.is_some_and(|now| !now.is_empty() && now != holder)
    }
}

/// Where both are on one node, a part that is killed there by name would be both.
async fn on_two_nodes(cluster: &Cluster) {
    cluster.both_ready("controller").await;
    let pods = cluster.parts("controller").await;
    if node_of(&pods[0]) == node_of(&pods[1]) {
        cluster.delete_part(&pods[0]).await;
        cluster.rolled_out(SYSTEM).await;
        cluster.both_ready("controller").await;
    }
}

/// A pull on both nodes that has stopped in the middle.
async fn half_way(cluster: &Cluster) -> Linked {
    on_two_nodes(cluster).await;
    Linked::half_way(cluster, "web", &[]).await
}

/// The pull comes to its end, as if nothing had been, and there are two controllers again.
async fn goes_on(cluster: &Cluster, linked: &Linked) {
    linked.link.let_go();
    cluster.succeeds("web", 2).await;
    linked.sent_at_most(2, 1);
    cluster.both_ready("controller").await;
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
    // A minute more, for a machine that has other things to do.
    let waited = taken.duration_since(last.renew_time.unwrap().0).as_secs();
    assert!(waited <= i64::from(last.lease_duration_seconds.unwrap()) + 60, "it was taken after {waited} s");
    drop(away);
    goes_on(&cluster, &linked).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_leader_that_is_started_again_in_its_pod_goes_on() {
    let Some(cluster) = Cluster::enter().await else { return };
    let linked = half_way(&cluster).await;
    let (pod, node, _) = cluster.leader().await;
    cluster.signal(&node, "controller", "KILL").await;
    let again = async || cluster.restarts_of("controller", &pod).await == restarts(&pod) + 1;
    eventually("the kubelet starts it again", again).await;
    goes_on(&cluster, &linked).await;
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
    cluster.succeeds("web", 2).await;
    let epoch = async || {
        let object = cluster.node_preheats().get("n1").await.unwrap();
        object.data["spec"]["epoch"].as_i64().unwrap_or_default()
    };
    cluster.stoker(&["pull", &format!("{REGISTRY}/busybox:1"), "--name", "next", "--no-wait"]).await.exits(0);
    cluster.succeeds("next", 2).await;
    let newer = epoch().await;
    // Meanwhile all of this was sent to it too: when it wakes it has much to say, and all of it is of yesterday.
    let jobs = async || {
        let versions = ["web", "next"].map(async |name| cluster.preheats().get(name).await.unwrap().resource_version());
        futures::future::join_all(versions).await
    };
    let before = jobs().await;
    cluster.signal(&node, "controller", "CONT").await;
    let stands_by = async || {
        let page = cluster.controller_page(&pod, "metrics").await;
        page.is_some_and(|page| sum(&page, "stoker_controller_leader", &[]) == 0.0)
    };
    eventually("it knows that it leads no more", stands_by).await;
    assert_eq!(jobs().await, before, "whoever slept has written");
    drop(kubelet);
    assert_eq!(cluster.restarts_of("controller", &pod).await, restarts(&pod), "it slept, and nobody started it again");
    cluster.both_ready("controller").await;
    // It woke up: it stands by, and what is asked next is written by the one that leads.
    cluster.stoker(&["pull", &format!("{REGISTRY}/pause:1"), "--name", "last", "--no-wait"]).await.exits(0);
    cluster.succeeds("last", 2).await;
    assert_eq!(epoch().await, newer, "whoever slept has written");
    linked.sent_at_most(2, 1);

    // And had it written, with the epoch that it had, the API server would have refused: whoever asks.
    let late = json!({"spec": {"epoch": newer - 1, "orders": {"late": null}}});
    let refused = cluster.node_preheats().patch("n1", &PatchParams::default(), &Patch::Merge(&late)).await;
    let Err(kube::Error::Api(refusal)) = refused else { panic!("the late write was taken") };
    assert!(refusal.code == 422 && refusal.message.contains("epoch"), "{refusal:?}");
    let untouched = |object: Option<&DynamicObject>| object.is_some_and(|object| object.data["spec"]["epoch"] == newer);
    cluster.wait(&cluster.node_preheats(), "n1", untouched).await;
}
