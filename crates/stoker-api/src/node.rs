//! Kubernetes' own Node: what the core wants to know of it. A node's kubelet writes its status, and a node may be taken over: what
//! cannot be read of one Node is left out, and keeps no other from being read (see [`crate::any_object`]).

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;
use stoker_core::model;

use crate::any_object::{Lenient, Meta, is_read_of};

/// A Node, as far as anybody looks at it.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "NodeText")]
pub struct PlainNode {
    /// Without annotations, owners and managedFields.
    pub metadata: ObjectMeta,
    /// Whether its kubelet says that it is ready.
    pub ready: bool,
    /// Since when; none where that is not said, or no time.
    pub ready_changed: Option<Timestamp>,
    /// Whether it is cordoned.
    pub cordoned: bool,
    /// Its first InternalIP, by which other nodes reach it; none where it has none, or one that is the address of no node.
    pub address: Option<IpAddr>,
}

impl PlainNode {
    /// The core's node.
    pub fn into_core(self) -> model::Node {
        model::Node {
            name: self.metadata.name.unwrap_or_default().into(),
            labels: self.metadata.labels.unwrap_or_default(),
            ready: self.ready,
            ready_changed: self.ready_changed,
            cordoned: self.cordoned,
            foreign: false,
        }
    }
}

is_read_of!(PlainNode, Node);

/// What is taken from the text. A Node has kilobytes more: its images above all.
#[derive(Deserialize)]
struct NodeText {
    #[serde(default)]
    metadata: Meta,
    #[serde(default)]
    spec: Lenient<NodeSpec>,
    #[serde(default)]
    status: Option<NodeConditions>,
}

#[derive(Deserialize)]
struct NodeSpec {
    #[serde(default)]
    unschedulable: Lenient<bool>,
}

#[derive(Default, Deserialize)]
struct NodeConditions {
    #[serde(default)]
    conditions: Lenient<Vec<Lenient<NodeCondition>>>,
    #[serde(default)]
    addresses: Lenient<Vec<Lenient<NodeAddress>>>,
}

#[derive(Deserialize)]
struct NodeAddress {
    r#type: String,
    address: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeCondition {
    r#type: String,
    status: String,
    #[serde(default)]
    last_transition_time: Lenient<Time>,
}

impl From<NodeText> for PlainNode {
    fn from(NodeText { metadata, spec, status }: NodeText) -> Self {
        let NodeConditions { conditions, addresses } = status.unwrap_or_default();
        let mut conditions = conditions.0.into_iter().flatten().filter_map(|condition| condition.0);
        let ready = conditions.find(|condition| condition.r#type == "Ready");
        let mut addresses = addresses.0.into_iter().flatten().filter_map(|address| address.0);
        let internal = addresses.find(|address| address.r#type == "InternalIP");
        let ObjectMeta { name, labels, uid, resource_version, deletion_timestamp, .. } = metadata.into();
        Self {
            metadata: ObjectMeta { name, labels, uid, resource_version, deletion_timestamp, ..ObjectMeta::default() },
            ready: ready.as_ref().is_some_and(|condition| condition.status == "True"),
            ready_changed: ready.and_then(|condition| condition.last_transition_time.0).map(|time| time.0),
            cordoned: spec.0.and_then(|spec| spec.unschedulable.0).unwrap_or_default(),
            address: internal.and_then(|address| address.address.parse().ok()).filter(is_of_a_node),
        }
    }
}

/// A kubelet writes what it likes into its Node. Addresses that mean another machine wherever they are used, such as that of a
/// cloud's metadata server, are not called. Loopback is what `stoker up` has.
fn is_of_a_node(address: &IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => {
            address.is_unicast_link_local() || address.to_ipv4_mapped().is_some_and(|address| address.is_link_local())
        }
    };
    !link_local && !address.is_unspecified() && !address.is_multicast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn address(addresses: Value) -> Option<String> {
        let node: PlainNode = serde_json::from_value(json!({ "status": { "addresses": addresses } })).unwrap();
        node.address.map(|address| address.to_string())
    }

    #[test]
    fn the_first_internal_address_is_that_of_the_node() {
        let of = |kind: &str, address: &str| json!({ "type": kind, "address": address });
        let [host, first, second] = [of("Hostname", "n1"), of("InternalIP", "10.0.0.1"), of("InternalIP", "fd00::1")];
        assert_eq!(address(json!([host, 5, first, second])).as_deref(), Some("10.0.0.1"));
        assert_eq!(address(json!([second, first])).as_deref(), Some("fd00::1"));
        assert_eq!(address(json!([host, of("ExternalIP", "192.0.2.1")])), None);
        assert_eq!(address(json!("none")), None);
        for bad in ["", "n1", "10.0.0.1:22", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "169.254.169.254", "fe80::1"] {
            assert_eq!(address(json!([of("InternalIP", bad)])), None, "{bad}");
        }
        assert_eq!(address(json!([of("InternalIP", "::ffff:169.254.169.254")])), None);
    }
}
