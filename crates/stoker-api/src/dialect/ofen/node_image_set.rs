//! NodeImageSet on the wire, as releases of ofen have it and as its design note has it.

use kube_derive::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::image_prefetch::{SecretName, images_schema, secrets_schema};
use crate::native::Condition;

/// Images for one node.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "ofen.cybozu.io",
    version = "v1",
    kind = "NodeImageSet",
    plural = "nodeimagesets",
    status = "NodeImageSetStatus",
    derive = "PartialEq",
    category = "stoker",
    label("app.kubernetes.io/managed-by", "stoker"),
    doc = "ofen's NodeImageSet, served by Stoker.",
    crates(kube_core = "::kube_core"),
    printcolumn(name = "Desired", type_ = "integer", format = "int32", json_path = ".status.desiredImages"),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.availableImages"),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.downloadFailedImages"),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName", priority = "1")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    json!({
        "rule": "has(self.images) || (has(self.imageSet) && size(self.imageSet) > 0)",
        "message": "spec.images must not be empty",
    }),
    json!({
        "rule": "has(self.registryPolicy) || (!has(self.images) && has(self.imageSet) && self.imageSet.all(one, has(one.registryPolicy)))",
        "message": "spec.registryPolicy must be either 'Default' or 'MirrorOnly'",
    }),
]))]
pub struct NodeImageSetSpec {
    /// The images, by tag or digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "images_schema")]
    pub images: Option<Vec<String>>,
    /// The same, each with its own registryPolicy, as ofen's design note has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub image_set: Option<Vec<SetImage>>,
    /// The node.
    #[schemars(schema_with = "node_schema")]
    pub node_name: String,
    /// Default: from other nodes, from mirrors and from the registry. MirrorOnly, or Mirror: not from the registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "policy_schema")]
    pub registry_policy: Option<String>,
    /// Secrets with logins for the images' registries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "secrets_schema")]
    pub image_pull_secrets: Option<Vec<SecretName>>,
    /// The generation of the ImagePrefetch that this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_prefetch_generation: Option<i64>,
    /// How often a failed attempt is repeated before it has failed; 3 if not given. What has failed is asked for again all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub image_download_retry_limit: Option<i32>,
}

/// One image for one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SetImage {
    /// By tag or digest.
    #[schemars(length(max = 512))]
    pub name: String,
    /// As for all images of the set, which it comes before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "policy_schema")]
    pub registry_policy: Option<String>,
}

fn node_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 253,
        "x-kubernetes-validations": [
            { "rule": "size(self) > 0", "message": "spec.nodeName must be specified and not empty" },
        ],
    })
}

fn policy_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 16,
        "x-kubernetes-validations": [{
            "rule": "self in ['Default', 'MirrorOnly', 'Mirror']",
            "message": "spec.registryPolicy must be either 'Default' or 'MirrorOnly'",
        }],
    })
}

/// Where a node may get its images from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RegistryPolicy {
    /// From the registry as well.
    #[default]
    Default,
    /// Not from the registry.
    MirrorOnly,
}

impl RegistryPolicy {
    /// What somebody wrote, under either of its names; none where it is no policy.
    pub fn read(text: &str) -> Option<Self> {
        match text {
            "Default" => Some(Self::Default),
            "MirrorOnly" | "Mirror" => Some(Self::MirrorOnly),
            _ => None,
        }
    }

    /// As releases of ofen write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "Default",
            Self::MirrorOnly => "MirrorOnly",
        }
    }
}

/// How the images stand on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeImageSetStatus {
    /// The generation of the spec that this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Images that the node shall have.
    #[serde(default)]
    pub desired_images: i64,
    /// Images that it has.
    #[serde(default)]
    pub available_images: i64,
    /// Images whose pull has failed.
    #[serde(default)]
    pub download_failed_images: i64,
    /// Each image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub container_image_statuses: Vec<ContainerImageStatus>,
    /// ImageAvailable and ImageDownloadSucceeded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// How one image stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerImageStatus {
    /// As it was written.
    pub image_ref: String,
    /// Why its last pull failed, or why it waits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// WaitingForImageDownload, ImageDownloadInProgress, ImageDownloaded, ImageDownloadFailed or ImageDownloadTemporarilyFailed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_state: String,
}
