//! Kubernetes' own Node: what the core wants to know of it. A node's kubelet writes its status, and a node may be taken over: what
//! cannot be read of one Node is left out, and keeps no other from being read (see [`crate::any_object`]).

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
}

impl PlainNode {
    /// The core's node.
    pub fn into_core(self) -> model::Node {
        model::Node {
            name: self.metadata.name.unwrap_or_default().into(),
            labels: self.metadata.labels.unwrap_or_default(),
            ready: self.ready,
            ready_changed: self.ready_changed,
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
    status: Option<NodeConditions>,
}

#[derive(Default, Deserialize)]
struct NodeConditions {
    #[serde(default)]
    conditions: Lenient<Vec<Lenient<NodeCondition>>>,
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
    fn from(NodeText { metadata, status }: NodeText) -> Self {
        let conditions =
            status.unwrap_or_default().conditions.0.into_iter().flatten().filter_map(|condition| condition.0);
        let ready = conditions.into_iter().find(|condition| condition.r#type == "Ready");
        let ObjectMeta { name, labels, uid, resource_version, deletion_timestamp, .. } = metadata.into();
        Self {
            metadata: ObjectMeta { name, labels, uid, resource_version, deletion_timestamp, ..ObjectMeta::default() },
            ready: ready.as_ref().is_some_and(|condition| condition.status == "True"),
            ready_changed: ready.and_then(|condition| condition.last_transition_time.0).map(|time| time.0),
        }
    }
}
