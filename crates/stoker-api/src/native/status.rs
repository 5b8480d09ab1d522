//! What a Preheat says of itself.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::node_preheat::WireBytes;

/// How a Preheat stands. Counts are nodes; bytes are sums over all of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreheatStatus {
    /// Running, Synced, Suspended, Succeeded or Failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// Ready (every node has every image), Complete (ended well), Stalled (ended with failed nodes).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The generation of the spec that this is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// Nodes that shall have the images.
    #[serde(default)]
    pub desired: u32,
    /// Nodes that have not begun.
    #[serde(default)]
    pub waiting: u32,
    /// Nodes at work.
    #[serde(default)]
    pub pulling: u32,
    /// Nodes that have every image.
    #[serde(default)]
    pub succeeded: u32,
    /// Nodes that gave up.
    #[serde(default)]
    pub failed: u32,
    /// The nodes that were chosen, where spec.nodes.replicas is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 5000), extend("x-kubernetes-list-type" = "set"))]
    pub selected_nodes: Option<Vec<String>>,
    /// Sums over all nodes.
    #[serde(default)]
    pub bytes: WireBytes,
    /// How much all nodes together received from registries, for people, such as 1.4GiB.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub received: String,
    /// The digest of each image, once a node has asked the registry.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub digests: BTreeMap<String, String>,
    /// The first failed nodes, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub failed_nodes: Vec<NodeFailure>,
    /// How many nodes wait for what.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting_for: Vec<WaitingFor>,
    /// Secrets of `pullSecrets` that cannot be used, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub secrets: Vec<SecretProblem>,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub start_time: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub completion_time: Option<Timestamp>,
    /// When it may be done, at the pace so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub eta: Option<Timestamp>,
    /// All this in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What should be known although nothing has failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A condition as Kubernetes knows them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Its name.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: String,
    /// Why, in a word.
    pub reason: String,
    /// Why, in a sentence.
    #[serde(default)]
    pub message: String,
    /// Since when.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub last_transition_time: Timestamp,
    /// The generation of the spec that this is about.
    #[serde(default)]
    pub observed_generation: i64,
}

/// A node that gave up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeFailure {
    /// Which node.
    pub node: String,
    /// Why, in a word.
    pub reason: String,
    /// Why, in a sentence.
    #[serde(default)]
    pub message: String,
}

/// A Secret that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretProblem {
    /// Its name.
    pub name: String,
    /// Why, in a word: SecretMissing, SecretForbidden or SecretUnusable.
    pub reason: String,
    /// Why, in a sentence.
    #[serde(default)]
    pub message: String,
}

/// Nodes that wait for the same thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WaitingFor {
    /// For what.
    pub reason: String,
    /// How many.
    pub nodes: u32,
}
