//! What a kubelet does to be believed alive, for nodes that have none: a Lease that is renewed.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

/// Where Kubernetes keeps the Leases of nodes.
pub(crate) const NAMESPACE: &str = "kube-node-lease";

/// Renews them for ever. A renewal that fails is tried again with the next one, well before anybody gives the node up.
pub(crate) async fn keep(client: Client, nodes: Vec<String>) {
    let leases: Api<Lease> = Api::namespaced(client, NAMESPACE);
    loop {
        for node in &nodes {
            let now = format!("{:.6}", jiff::Timestamp::now());
            let spec = json!({"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": now});
            let lease = json!({"metadata": {"name": node}, "spec": spec});
            if leases.patch(node, &PatchParams::default(), &Patch::Merge(&lease)).await.is_err() {
                let lease = serde_json::from_value(lease).unwrap();
                let _ = leases.create(&Default::default(), &lease).await;
            }
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
}
