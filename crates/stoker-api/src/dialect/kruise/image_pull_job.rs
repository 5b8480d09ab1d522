//! ImagePullJob on the wire. One Rust type reads both versions: their schemas are the same.

use jiff::Timestamp;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::types::{PullTemplate, both_selectors, image_schema};

/// An image that nodes pull before they need it.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "apps.kruise.io",
    version = "v1beta1",
    kind = "ImagePullJob",
    plural = "imagepulljobs",
    namespaced,
    status = "ImagePullJobStatus",
    derive = "PartialEq",
    category = "stoker",
    label("app.kubernetes.io/managed-by", "stoker"),
    doc = "OpenKruise's ImagePullJob, served by Stoker.",
    crates(kube_core = "::kube_core"),
    printcolumn(name = "TOTAL", type_ = "integer", json_path = ".status.desired"),
    printcolumn(name = "ACTIVE", type_ = "integer", json_path = ".status.active"),
    printcolumn(name = "SUCCEED", type_ = "integer", json_path = ".status.succeeded"),
    printcolumn(name = "FAILED", type_ = "integer", json_path = ".status.failed"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    both_selectors(),
    json!({
        "rule": "!has(self.completionPolicy.activeDeadlineSeconds) || self.completionPolicy.activeDeadlineSeconds >= self.pullPolicy.timeoutSeconds",
        "message": "completionPolicy.activeDeadlineSeconds must be greater than pullPolicy.timeoutSeconds(default 600)",
    }),
    json!({
        "rule": "(has(self.pullSecrets) ? self.pullSecrets : []) == (has(oldSelf.pullSecrets) ? oldSelf.pullSecrets : [])",
        "message": "spec.pullSecrets is immutable",
    }),
]))]
pub struct ImagePullJobSpec {
    /// The image, by tag or digest.
    #[schemars(schema_with = "image_schema")]
    pub image: String,
    /// How it is pulled, and where.
    #[serde(flatten)]
    pub template: PullTemplate,
    /// IfNotPresent: an image that is there is good enough. Any other value: the registry is asked.
    #[serde(default = "if_not_present")]
    pub image_pull_policy: String,
}

fn if_not_present() -> String {
    "IfNotPresent".into()
}

/// How the job stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImagePullJobStatus {
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub start_time: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub completion_time: Option<Timestamp>,
    /// Nodes that shall have the image.
    pub desired: i32,
    /// Nodes that are pulling.
    #[serde(default)]
    pub active: i32,
    /// Nodes that have it.
    #[serde(default)]
    pub succeeded: i32,
    /// Nodes that gave up.
    #[serde(default)]
    pub failed: i32,
    /// All this in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The names of the nodes that gave up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_nodes: Vec<String>,
}
