//! Kubernetes' own Node: what the core wants to know of it.

use k8s_openapi::api::core::v1::Node;
use stoker_core::model;

/// The core's node.
pub fn to_core(node: &Node) -> model::Node {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
    model::Node {
        name: node.metadata.name.as_deref().unwrap_or_default().into(),
        labels: node.metadata.labels.clone().unwrap_or_default(),
        ready: ready.is_some_and(|condition| condition.status == "True"),
        ready_changed: ready.and_then(|condition| condition.last_transition_time.as_ref()).map(|time| time.0),
    }
}
