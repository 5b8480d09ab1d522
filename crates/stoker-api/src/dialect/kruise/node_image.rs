//! NodeImage on the wire: the images that one node shall have, and what came of them. One Rust type reads both versions: v1beta1
//! adds the field `mode` of a pull secret, and nothing else differs.

use std::collections::BTreeMap;

use kube_derive::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::native::SandboxSpec;

/// Images of one node, as upstream allows them.
pub(super) const MOST_IMAGES: usize = 256;
/// Tags of one image. Upstream has no bound; without one, an API server refuses every rule about a tag because of its estimated cost.
pub(super) const MOST_TAGS: usize = 256;

/// The images that a node shall have.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "apps.kruise.io",
    version = "v1beta1",
    kind = "NodeImage",
    plural = "nodeimages",
    status = "NodeImageStatus",
    derive = "PartialEq",
    label("app.kubernetes.io/managed-by", "stoker"),
    doc = "OpenKruise's NodeImage, served by Stoker: one for each node.",
    crates(kube_core = "::kube_core"),
    printcolumn(name = "DESIRED", type_ = "integer", json_path = ".status.desired"),
    printcolumn(name = "PULLING", type_ = "integer", json_path = ".status.pulling"),
    printcolumn(name = "SUCCEED", type_ = "integer", json_path = ".status.succeeded"),
    printcolumn(name = "FAILED", type_ = "integer", json_path = ".status.failed"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct NodeImageSpec {
    /// By the name of the repository, such as `nginx` or `registry.example.com/team/app`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "images_schema")]
    pub images: BTreeMap<String, ImageSpec>,
}

fn images_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        // One more than allowed, so that the refusal is the rule's, in upstream's words.
        "maxProperties": MOST_IMAGES + 1,
        "additionalProperties": ImageSpec::json_schema(generator),
        "x-kubernetes-validations": [
            {
                "rule": format!("size(self) <= {MOST_IMAGES}"),
                "message": format!("spec images length can not be more than {MOST_IMAGES}"),
            },
            { "rule": "!('' in self)", "message": "image name can not be empty" },
        ],
    })
}

/// The tags of one repository.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageSpec {
    /// Secrets with logins for the registry, of any namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pull_secrets: Vec<SecretReference>,
    /// What a runtime that pulls by itself is told about the pod that the image is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_config: Option<SandboxSpec>,
    /// The tags, no tag twice.
    #[schemars(length(max = MOST_TAGS), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["tag"]))]
    pub tags: Vec<ImageTagSpec>,
}

/// A Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// The namespace of the Secret.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name of the Secret.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// `batch` for a copy that OpenKruise's manager keeps up to date. Stoker does not use it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mode: String,
}

/// One tag or digest of a repository.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.pullPolicy) && has(self.pullPolicy.ttlSecondsAfterFinished)",
    "message": "pullPolicy.ttlSecondsAfterFinished must set",
}]))]
pub struct ImageTagSpec {
    /// The tag, or a digest.
    #[schemars(schema_with = "tag_schema")]
    pub tag: String,
    /// When the tag was added. Stoker sets it where it is missing, and renews it where `version` was increased and `createdAt` was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub created_at: Option<String>,
    /// Each version is pulled once. Increase it to pull the tag again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "version_schema")]
    pub version: Option<i64>,
    /// How the tag is pulled, and how long it stays here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<ImageTagPullPolicy>,
    /// The ImagePullJobs that want it; none for a tag that somebody wrote by hand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<TagOwner>,
    /// IfNotPresent: an image that is there is good enough. Any other value, or none: the registry is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<String>,
}

fn tag_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 256,
        "x-kubernetes-validations": [{ "rule": "size(self) > 0", "message": "tag for image can not be empty" }],
    })
}

fn version_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "integer",
        "format": "int64",
        "x-kubernetes-validations": [{ "rule": "self >= 0", "message": "version can not be less than 0" }],
    })
}

/// How a tag is pulled, and how long it stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageTagPullPolicy {
    /// The longest that one attempt may take, in seconds. Less than 1 means 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = json!(600)))]
    pub timeout_seconds: Option<i32>,
    /// How often a failed attempt is repeated; a negative number means 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = json!(3)))]
    pub backoff_limit: Option<i32>,
    /// The tag is removed this many seconds after its pull has ended, and at once where this is 0 or negative. The image stays on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
    /// This many seconds after `createdAt` an unfinished pull has failed; at once where this is negative.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<i64>,
}

/// An object that wants a tag.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct TagOwner {
    /// The API version of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// A part of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field_path: Option<String>,
    /// The kind of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The name of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The namespace of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The resourceVersion of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// The uid of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// What came of the images of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeImageStatus {
    /// Number of tags that the node shall have.
    pub desired: i32,
    /// Number of tags that the node has pulled.
    #[serde(default)]
    pub succeeded: i32,
    /// Number of tags whose pull has failed.
    #[serde(default)]
    pub failed: i32,
    /// Number of tags that the node is pulling.
    #[serde(default)]
    pub pulling: i32,
    /// Number of tags whose pull has not begun.
    #[serde(default)]
    pub waiting: i32,
    /// What came of the tags, by the name of the repository.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub image_statuses: BTreeMap<String, ImageStatus>,
    /// The first synchronization. Neither OpenKruise nor Stoker sets this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_sync_status: Option<SyncStatus>,
}

/// What came of the tags of one repository.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageStatus {
    /// One entry for each tag.
    pub tags: Vec<ImageTagStatus>,
}

/// What came of one tag.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageTagStatus {
    /// The tag, or a digest.
    pub tag: String,
    /// Waiting, Pulling, Succeeded or Failed.
    pub phase: String,
    /// How much of the image is there, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<i32>,
    /// When the pull began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub start_time: Option<String>,
    /// When the pull ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub completion_time: Option<String>,
    /// The version of the tag that this entry is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// The image on the node: the name of the repository, `@`, and the digest.
    #[serde(default, rename = "imageID", skip_serializing_if = "Option::is_none")]
    pub image_id: Option<String>,
    /// Why the pull failed, or what it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The first synchronization of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SyncStatus {
    /// Why the first synchronization failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether the first synchronization succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// When the first synchronization was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub sync_at: Option<String>,
}
