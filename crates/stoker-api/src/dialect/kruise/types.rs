//! ImagePullJob v1alpha1 on the wire, with upstream's defaults and refusals as schema rules.

use jiff::Timestamp;
use kube_derive::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::labels::LabelSelector;
use crate::native::{PullPolicy as ImagePullPolicy, SandboxSpec};

/// The API group of OpenKruise's kinds.
pub(super) const GROUP: &str = "apps.kruise.io";

/// An image that nodes pull before they need it.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "apps.kruise.io",
    version = "v1alpha1",
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
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "MESSAGE", type_ = "string", json_path = ".status.message")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.completionPolicy.activeDeadlineSeconds) || self.completionPolicy.activeDeadlineSeconds >= self.pullPolicy.timeoutSeconds",
    "message": "completionPolicy.activeDeadlineSeconds must not be less than pullPolicy.timeoutSeconds",
}, {
    "rule": "(has(self.pullSecrets) ? self.pullSecrets : []) == (has(oldSelf.pullSecrets) ? oldSelf.pullSecrets : [])",
    "message": "pullSecrets cannot be changed; make another job",
}]))]
pub struct ImagePullJobSpec {
    /// The image, by tag or digest.
    #[schemars(length(min = 1, max = 512))]
    pub image: String,
    /// The names of Secrets of the job's namespace with logins for the image's registry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub pull_secrets: Vec<String>,
    /// The nodes; none given means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<NodeSelector>,
    /// How many nodes pull at one time; 0 pauses.
    #[serde(default = "one")]
    #[schemars(schema_with = "parallelism_schema")]
    pub parallelism: Value,
    /// Time-out and retries of a pull.
    #[serde(default)]
    pub pull_policy: PullPolicy,
    /// When the job is over.
    #[serde(default)]
    pub completion_policy: CompletionPolicy,
    /// Whether an image that is there is good enough.
    #[serde(default)]
    pub image_pull_policy: ImagePullPolicy,
    /// What a runtime that pulls by itself is told about the pod that the image is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_config: Option<SandboxSpec>,
}

fn one() -> Value {
    Value::from(1)
}

fn parallelism_schema(_: &mut SchemaGenerator) -> Schema {
    // As a number not negative, as a string a number: upstream refuses percentages too.
    json_schema!({ "x-kubernetes-int-or-string": true, "default": 1, "minimum": 0, "maxLength": 9, "pattern": "^[0-9]+$" })
}

/// Nodes by name or by label, not both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic", "x-kubernetes-validations" = [{
    "rule": "!has(self.names) || size(self.names) == 0 || (!has(self.matchLabels) && !has(self.matchExpressions))",
    "message": "names cannot be given together with matchLabels or matchExpressions",
}]))]
pub struct NodeSelector {
    /// By name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5000), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub names: Vec<String>,
    /// By label.
    #[serde(flatten)]
    pub labels: LabelSelector,
}

/// Time-out and retries of a pull.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PullPolicy {
    /// The longest that one attempt may take.
    #[serde(default = "six_hundred")]
    #[schemars(range(min = 1))]
    pub timeout_seconds: i32,
    /// How often a failed attempt is repeated.
    #[serde(default = "three")]
    #[schemars(range(min = 0))]
    pub backoff_limit: i32,
}

impl Default for PullPolicy {
    fn default() -> Self {
        Self { timeout_seconds: six_hundred(), backoff_limit: three() }
    }
}

fn six_hundred() -> i32 {
    600
}

fn three() -> i32 {
    3
}

/// When the job is over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.type == 'Always' || (!has(self.activeDeadlineSeconds) && !has(self.ttlSecondsAfterFinished))",
    "message": "activeDeadlineSeconds and ttlSecondsAfterFinished go with type Always: a job of type Never does not end",
}]))]
pub struct CompletionPolicy {
    /// Always: the job ends. Never: it keeps the image fresh.
    #[serde(default, rename = "type")]
    pub kind: CompletionType,
    /// Past it every unfinished node has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub active_deadline_seconds: Option<i64>,
    /// The job is deleted that long after it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// Whether the job ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CompletionType {
    /// It does.
    #[default]
    Always,
    /// It does not.
    Never,
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
