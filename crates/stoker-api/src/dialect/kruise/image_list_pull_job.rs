//! ImageListPullJob on the wire. One Rust type reads both versions: their schemas are the same.

use jiff::Timestamp;
use kube_derive::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::types::{PullTemplate, both_selectors, image_schema};

/// Images that nodes pull before they need them: one ImagePullJob each.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "apps.kruise.io",
    version = "v1beta1",
    kind = "ImageListPullJob",
    plural = "imagelistpulljobs",
    namespaced,
    status = "ImageListPullJobStatus",
    derive = "PartialEq",
    category = "stoker",
    label("app.kubernetes.io/managed-by", "stoker"),
    doc = "OpenKruise's ImageListPullJob, served by Stoker.",
    crates(kube_core = "::kube_core"),
    printcolumn(name = "TOTAL", type_ = "integer", json_path = ".status.desired"),
    printcolumn(name = "SUCCEEDED", type_ = "integer", json_path = ".status.succeeded"),
    printcolumn(name = "COMPLETED", type_ = "integer", json_path = ".status.completed"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [both_selectors()]))]
pub struct ImageListPullJobSpec {
    /// The images, by tag or digest; no text twice.
    #[schemars(schema_with = "images_schema")]
    pub images: Vec<String>,
    /// How they are pulled, and where. Parallelism counts for each image.
    #[serde(flatten)]
    pub template: PullTemplate,
    /// IfNotPresent: an image that is there is good enough. Any other value: the registry is asked. IfNotPresent if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<String>,
}

/// Some more than are allowed: where `maxItems` refuses a list, no rule can say it in upstream's words.
fn images_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 512,
        "x-kubernetes-list-type": "set",
        "x-kubernetes-validations": [
            { "rule": "size(self) <= 255", "message": "the maximum number of images cannot > 255" },
        ],
        "items": image_schema(generator),
    })
}

/// How the job stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageListPullJobStatus {
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub start_time: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub completion_time: Option<Timestamp>,
    /// Images that shall be on the nodes.
    pub desired: i32,
    /// Images that some node is pulling.
    #[serde(default)]
    pub active: i32,
    /// Images that every node has or has given up.
    #[serde(default)]
    pub completed: i32,
    /// Images that every node has.
    #[serde(default)]
    pub succeeded: i32,
    /// Images that some node has given up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_image_statuses: Vec<FailedImageStatus>,
}

/// An image that some node has given up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailedImageStatus {
    /// The ImagePullJob that pulls it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub image_pull_job: String,
    /// The image.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Where the names of the nodes are.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}
