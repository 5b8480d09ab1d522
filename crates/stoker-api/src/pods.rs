//! Nodes by the pods that run on them.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube_core::discovery::ApiResource;
use kube_core::dynamic::DynamicObject;
use serde_json::Value;

use crate::labels::{self, LabelSelector};
use crate::view::{Answer, Kind, Query, Reader, Row};

/// Pods that have a node and have not ended; there may be hundreds of thousands of others.
pub static PODS: Kind = Kind {
    name: "Pod",
    versions: || vec![ApiResource::erase::<Pod>(&())],
    keep: row,
    fields: Some("spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"),
};

/// A pod that is being deleted does not count any more.
fn row(pod: DynamicObject) -> Row {
    let node = pod.data.pointer("/spec/nodeName").and_then(Value::as_str).filter(|node| !node.is_empty());
    Row::Pod(node.filter(|_| pod.metadata.deletion_timestamp.is_none()).map(Arc::from))
}

/// The names of the nodes on which pods of a namespace run that have these labels.
pub(crate) fn nodes(reader: &mut Reader<'_>, namespace: &str, selector: &LabelSelector) -> Answer<BTreeSet<String>> {
    let query = Query { kind: &PODS, namespace: Some(namespace.to_owned()), labels: labels::to_text(selector) };
    let node = |row: &Row| match row {
        Row::Pod(node) => node.as_ref().map(ToString::to_string),
        Row::Whole(_) => None,
    };
    match reader.select(query) {
        Answer::Known(pods) => Answer::Known(pods.filter_map(|(_, row)| node(row)).collect()),
        Answer::Unlisted => Answer::Unlisted,
        Answer::Refused => Answer::Refused,
    }
}
