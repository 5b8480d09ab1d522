//! Watches over Nodes whose agents renew a Lease: one that lapsed is not ready any more. A cluster has a controller of
//! its own for this; only the embedded system needs ours.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ApiResource, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use stoker_api::{AnyObject, PlainNode};
use stoker_core::Clock;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::moment::Moments;
use crate::problem::Problem;
use crate::run::Error;
use crate::watch::{Fact, Watch};

enum LifecycleFact {
    Node(Fact<(String, bool)>),
    /// A Lease that was made or renewed.
    Lease(Fact<String>),
}

/// Runs until it is cancelled. `lease_namespace` is where the Leases are, each named after its Node; one that was not
/// renewed for `patience` has lapsed.
pub async fn watch_over_nodes(
    client: Client,
    clock: Clock,
    lease_namespace: &'static str,
    patience: Duration,
    cancel: CancellationToken,
) -> Result<(), Error> {
    let (input, mut inputs) = mpsc::channel(1024);
    let mut tasks = JoinSet::new();
    let moments = Moments::default();
    let (nodes, to) = (Watch::new(vec![Api::<PlainNode>::all(client.clone())], "Node", &moments), input.clone());
    tasks.spawn(async move {
        let read = |node: PlainNode| (node.name_any(), node.ready);
        nodes.run(to, |fact, _| LifecycleFact::Node(fact.map(read))).await;
    });
    let leases = Api::<AnyObject>::namespaced_with(client.clone(), lease_namespace, &ApiResource::erase::<Lease>(&()));
    let leases = Watch::new(vec![leases], "Lease", &moments);
    tasks.spawn(async move {
        let read = |lease: AnyObject| lease.name_any();
        leases.run(input, |fact, _| LifecycleFact::Lease(fact.map(read))).await;
    });
    // By when each ready node must be heard of again; our own clock, so that no other can be wrong.
    let mut deadlines: BTreeMap<String, Instant> = BTreeMap::new();
    // While nothing can be heard nobody is silent.
    let (mut hears_nodes, mut hears_leases) = (false, false);
    loop {
        let next = deadlines.values().min().copied().filter(|_| hears_nodes && hears_leases);
        tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            Some(_) = tasks.join_next() => return Err(Error::Ended("watch over nodes")),
            Some(input) = inputs.recv() => match input {
                LifecycleFact::Node(Fact::There((name, true), _)) => {
                    deadlines.entry(name).or_insert_with(|| Instant::now() + patience);
                }
                LifecycleFact::Node(Fact::There((name, false), _) | Fact::Gone((_, name))) => {
                    deadlines.remove(&name);
                }
                LifecycleFact::Lease(Fact::There(name, _)) => {
                    if let Some(deadline) = deadlines.get_mut(&name) {
                        *deadline = Instant::now() + patience;
                    }
                }
                LifecycleFact::Node(Fact::Deaf) => hears_nodes = false,
                LifecycleFact::Lease(Fact::Deaf) => hears_leases = false,
                LifecycleFact::Node(Fact::Listed | Fact::Resumed | Fact::Refused) => {
                    hears_nodes = true;
                    deadlines.values_mut().for_each(|deadline| *deadline = Instant::now() + patience);
                }
                LifecycleFact::Lease(Fact::Listed | Fact::Resumed | Fact::Refused) => {
                    hears_leases = true;
                    deadlines.values_mut().for_each(|deadline| *deadline = Instant::now() + patience);
                }
                LifecycleFact::Lease(Fact::Gone(_)) => {}
            },
            () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                let lapsed: Vec<String> =
                    deadlines.iter().filter(|(_, at)| **at <= Instant::now()).map(|(name, _)| name.clone()).collect();
                for name in lapsed {
                    give_up(&client, &clock, &name).await;
                    deadlines.insert(name, Instant::now() + patience);
                }
            }
        }
    }
}

async fn give_up(client: &Client, clock: &Clock, name: &str) {
    tracing::warn!(node = name, "its agent does not renew its lease any more; it is not ready");
    let now = clock().to_string();
    let unknown = json!({
        "type": "Ready",
        "status": "Unknown",
        "reason": "LeaseLapsed",
        "message": "the agent of this node does not renew its lease; is it running?",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    });
    let status = Patch::Merge(json!({ "status": { "conditions": [unknown] } }));
    let nodes: Api<PlainNode> = Api::all(client.clone());
    if let Err(problem) = nodes.patch_status(name, &PatchParams::default(), &status).await {
        tracing::warn!(node = name, "cannot mark it, trying again later: {}", Problem::Request(&problem));
    }
}
