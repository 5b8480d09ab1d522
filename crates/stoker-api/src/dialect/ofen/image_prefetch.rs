//! ImagePrefetch on the wire.

use std::collections::BTreeMap;

use kube_derive::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::labels::LabelSelector;
use crate::native::Condition;

/// Images that some nodes, or all, have before they need them.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "ofen.cybozu.io",
    version = "v1",
    kind = "ImagePrefetch",
    plural = "imageprefetches",
    namespaced,
    status = "ImagePrefetchStatus",
    derive = "PartialEq",
    category = "stoker",
    label("app.kubernetes.io/managed-by", "stoker"),
    doc = "ofen's ImagePrefetch, served by Stoker.",
    crates(kube_core = "::kube_core"),
    printcolumn(name = "DesiredNodes", type_ = "integer", json_path = ".status.desiredNodes"),
    printcolumn(name = "ImagePulledNodes", type_ = "integer", json_path = ".status.imagePulledNodes"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    json!({
        "rule": "!has(self.replicas) || !self.allNodes",
        "message": "spec.replicas cannot be set when spec.allNodes is true",
    }),
    json!({
        "rule": "self.allNodes || (has(self.replicas) && self.replicas != 0)",
        "message": "spec.replicas must be greater than 0 when spec.allNodes is false",
    }),
    json!({
        "rule": "!has(self.replicas) || self.replicas >= 0",
        "message": "spec.replicas must be a non-negative number",
    }),
]))]
pub struct ImagePrefetchSpec {
    /// The images, by tag or digest.
    #[schemars(schema_with = "images_schema")]
    pub images: Vec<String>,
    /// The nodes among which they are, as a label selector, or as a map of labels; none given means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "node_labels_schema")]
    pub node_selector: Option<NodeLabels>,
    /// All of these nodes that are Ready.
    #[serde(default)]
    pub all_nodes: bool,
    /// How many of these nodes. They are spread over the zones, and stay the same as long as they are there, are Ready and match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>")]
    pub replicas: Option<i64>,
    /// Secrets of this namespace with logins for the images' registries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "secrets_schema")]
    pub image_pull_secrets: Option<Vec<SecretName>>,
}

/// The images of either kind. Where there are too many for a list that an API server can check, each can have an object of its own.
pub(super) fn images_schema(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = <Vec<String>>::json_schema(generator);
    schema.insert("items".into(), json!({ "type": "string", "maxLength": 512 }));
    schema.insert("maxItems".into(), json!(256));
    schema.insert(
        "x-kubernetes-validations".into(),
        json!([{ "rule": "size(self) > 0", "message": "spec.images must not be empty" }]),
    );
    schema
}

/// The Secrets of either kind.
pub(super) fn secrets_schema(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = <Vec<SecretName>>::json_schema(generator);
    schema.insert("maxItems".into(), json!(64));
    schema.insert(
        "x-kubernetes-validations".into(),
        json!([{
            "rule": "size(self) > 0 && self.all(secret, size(secret.name) > 0)",
            "message": "spec.imagePullSecrets must be a list of non-empty names",
        }]),
    );
    schema
}

/// A label selector. What else is in it is kept: it is a map of labels.
fn node_labels_schema(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = LabelSelector::json_schema(generator);
    schema.insert("x-kubernetes-map-type".into(), json!("atomic"));
    schema.insert("x-kubernetes-preserve-unknown-fields".into(), json!(true));
    schema
}

/// Which nodes: a label selector, as releases of ofen have it, or a map of labels, as its design note has it. Where there are both all must hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeLabels {
    /// The selector.
    #[serde(flatten)]
    pub selector: LabelSelector,
    /// The map. No schema sees what is in it.
    #[serde(flatten)]
    pub labels: BTreeMap<String, Value>,
}

/// A Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct SecretName {
    /// Its name.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub name: String,
}

/// How the images stand on the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImagePrefetchStatus {
    /// The generation of the spec that this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The nodes that were chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selected_nodes: Option<Vec<String>>,
    /// Nodes that shall have the images.
    #[serde(default)]
    pub desired_nodes: i64,
    /// Nodes that have all of them.
    #[serde(default)]
    pub image_pulled_nodes: i64,
    /// Nodes that are at it, those that have failed included: they are asked again.
    #[serde(default)]
    pub image_pulling_nodes: i64,
    /// Nodes that have failed.
    #[serde(default)]
    pub image_pull_failed_nodes: i64,
    /// NodeImageSetsCreated, Ready and NoImagePullFailed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
