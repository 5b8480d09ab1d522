//! A Node of our own, for machines without a kubelet: made at the start, kept alive by a Lease that the agent renews.
//! Where a kubelet runs, the Node is the kubelet's and none of this happens.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use stoker_core::Clock;

/// The namespace in which Kubernetes keeps the Leases of nodes.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";

/// A Lease that was not renewed for this long has lapsed.
pub const LEASE_DURATION: Duration = Duration::from_secs(40);

const RENEW_EVERY: Duration = Duration::from_secs(10);

/// What the Node that an agent makes itself is like.
#[derive(Clone)]
pub(crate) struct OwnNode {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// Where other nodes reach it.
    pub(crate) address: Option<IpAddr>,
}

/// Makes the Node and renews its Lease for ever.
pub(crate) async fn keep(client: Client, clock: Clock, node: OwnNode) {
    let name = &node.name;
    let mut renewed: Option<tokio::time::Instant> = None;
    loop {
        // Whoever watches over nodes may have given it up in the meantime.
        let fresh = renewed.is_some_and(|at| at.elapsed() < LEASE_DURATION / 2);
        let result = match fresh {
            true => renew(&client, &clock, name).await,
            false => appear(&client, &clock, &node).await,
        };
        match result {
            Ok(()) => renewed = Some(tokio::time::Instant::now()),
            Err(problem) => tracing::warn!(node = name, "cannot renew the node's lease, trying again: {problem}"),
        }
        let pause = if renewed.is_some() { RENEW_EVERY } else { Duration::from_secs(1) };
        tokio::time::sleep(pause).await;
    }
}

/// The Lease, then the Node, then that it is ready: never ready without a Lease that can lapse.
async fn appear(
    client: &Client,
    clock: &Clock,
    OwnNode { name, labels, address }: &OwnNode,
) -> Result<(), kube::Error> {
    renew(client, clock, name).await?;
    let nodes: Api<Node> = Api::all(client.clone());
    let metadata = json!({ "metadata": { "name": name, "labels": labels } });
    if !exists(nodes.patch(name, &PatchParams::default(), &Patch::Merge(&metadata)).await)? {
        nodes.create(&PostParams::default(), &typed(metadata)?).await?;
    }
    let now = clock().to_string();
    let ready = json!({
        "type": "Ready",
        "status": "True",
        "reason": "AgentReady",
        "message": "Stoker's agent renews its lease",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    });
    let addresses: Vec<Value> =
        address.iter().map(|address| json!({ "type": "InternalIP", "address": address })).collect();
    let status = Patch::Merge(json!({ "status": { "conditions": [ready], "addresses": addresses } }));
    nodes.patch_status(name, &PatchParams::default(), &status).await.map(|_| ())
}

async fn renew(client: &Client, clock: &Clock, name: &str) -> Result<(), kube::Error> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASE_NAMESPACE);
    let lease = json!({
        "metadata": { "name": name },
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_DURATION.as_secs(),
            "renewTime": format!("{:.6}", clock()),
        },
    });
    if !exists(leases.patch(name, &PatchParams::default(), &Patch::Merge(&lease)).await)? {
        leases.create(&PostParams::default(), &typed(lease)?).await?;
    }
    Ok(())
}

/// False where there was nothing to patch.
fn exists<T>(patched: Result<T, kube::Error>) -> Result<bool, kube::Error> {
    match patched {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(problem) => Err(problem),
    }
}

fn typed<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, kube::Error> {
    serde_json::from_value(value).map_err(kube::Error::SerdeError)
}
