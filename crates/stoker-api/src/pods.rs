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

/// A pod that has ended or is being deleted does not count any more.
fn row(pod: DynamicObject) -> Row {
    let text = |path: &str| pod.data.pointer(path).and_then(Value::as_str).filter(|text| !text.is_empty());
    let gone =
        pod.metadata.deletion_timestamp.is_some() || matches!(text("/status/phase"), Some("Succeeded" | "Failed"));
    Row::Pod(text("/spec/nodeName").filter(|_| !gone).map(Arc::from))
}

/// The names of the nodes on which pods of a namespace run that have these labels.
pub(crate) fn nodes(reader: &mut Reader<'_>, namespace: &str, selector: &LabelSelector) -> Answer<BTreeSet<String>> {
    let query = Query { kind: &PODS, namespace: Some(namespace.to_owned()), labels: labels::to_text(selector) };
    let node = |row: &Row| match row {
        Row::Pod(node) => node.as_ref().map(ToString::to_string),
        _ => None,
    };
    match reader.select(query) {
        Answer::Known(pods) => Answer::Known(pods.filter_map(|(_, row)| node(row)).collect()),
        Answer::Unlisted => Answer::Unlisted,
        Answer::Unseen => Answer::Unseen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pods_count_where_they_run_or_are_about_to() {
        let deleted = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" });
        for (pod, node) in [
            (json!({ "metadata": {}, "spec": { "nodeName": "n1" } }), Some("n1")),
            (json!({ "metadata": {}, "spec": { "nodeName": "n1" }, "status": { "phase": "Pending" } }), Some("n1")),
            (json!({ "metadata": {}, "spec": { "nodeName": "n1" }, "status": { "phase": "Running" } }), Some("n1")),
            (json!({ "metadata": {}, "spec": { "nodeName": "n1" }, "status": { "phase": "Succeeded" } }), None),
            (json!({ "metadata": {}, "spec": { "nodeName": "n1" }, "status": { "phase": "Failed" } }), None),
            (json!({ "metadata": {}, "spec": { "nodeName": "" } }), None),
            (json!({ "metadata": {}, "spec": {} }), None),
            (json!({ "metadata": deleted, "spec": { "nodeName": "n1" } }), None),
        ] {
            let row = row(serde_json::from_value(pod.clone()).unwrap());
            assert_eq!(row, Row::Pod(node.map(Arc::from)), "{pod}");
        }
    }
}
