//! What an ImagePullJob and an ImageListPullJob have in common on the wire, with upstream's defaults and refusals as schema rules.
//!
//! The messages of the rules are upstream's words wherever a rule can say them, so that people find them in upstream's documentation.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::labels::LabelSelector;
use crate::native::SandboxSpec;

/// The API group of OpenKruise's kinds.
pub(super) const GROUP: &str = "apps.kruise.io";

/// How images are pulled, and where: all of a job except its images and its imagePullPolicy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PullTemplate {
    /// The names of Secrets of the job's namespace with logins for the image's registry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 253)))]
    pub pull_secrets: Vec<String>,
    /// The nodes; none given means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<NodeSelector>,
    /// The nodes on which the matching Pods of the job's namespace run; an empty selector matches every Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub pod_selector: Option<LabelSelector>,
    /// How many nodes pull at one time, as a number or as a percentage of the job's nodes, rounded up; 1 if not given, 0 pauses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "parallelism_schema")]
    pub parallelism: Option<Value>,
    /// Time-out and retries of a pull.
    #[serde(default)]
    pub pull_policy: PullPolicy,
    /// When the job is over.
    #[serde(default)]
    pub completion_policy: CompletionPolicy,
    /// What a runtime that pulls by itself is told about the pod that the image is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_config: Option<SandboxSpec>,
}

/// A whole number, also as a string. Upstream refuses percentages; we take them. Only a text equals itself as a text: that tells texts from
/// numbers without `type()`, and costs an API server little, because it knows how long `self` can be.
fn parallelism_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "maxLength": 9,
        "x-kubernetes-validations": [
            {
                "rule": "self != string(self) || self.matches('^(-?[0-9]+|(100|[1-9]?[0-9])%)$')",
                "message": "parallelism must be a valid integer: write it like 5, or like 30% of the nodes",
            },
            {
                "rule": "self == string(self) ? !self.startsWith('-') : self >= 0",
                "message": "parallelism must be non-negative",
            },
        ],
    })
}

/// The name of an image as upstream accepts it: without a name it is refused in upstream's words.
pub(super) fn image_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 512,
        "x-kubernetes-validations": [
            { "rule": "size(self) > 0", "message": "image can not be empty" },
            {
                "rule": format!("size(self) == 0 || self.matches('{IMAGE}')"),
                "message": "invalid image",
                "messageExpression":
                    "'invalid image ' + self + ': write it like registry.example.com/team/app:v1 or registry.example.com/team/app@sha256:<digest>'",
            },
        ],
    })
}

/// Registry, path, tag and digest of an image, no stricter than upstream; a CEL string, so backslashes are doubled.
const IMAGE: &str = "^(([A-Za-z0-9.-]+|\\\\[[0-9a-fA-F:]+\\\\])(:[0-9]+)?/)?\
                     [a-z0-9]+(([._]|__|-+)[a-z0-9]+)*(/[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*)*\
                     (:[A-Za-z0-9_][A-Za-z0-9_.-]*)?(@[A-Za-z][A-Za-z0-9+._-]*:[0-9a-fA-F]+)?$";

/// Nodes by name or by label, not both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic", "x-kubernetes-validations" = [{
    "rule": "!has(self.names) || size(self.names) == 0 || (!has(self.matchLabels) && !has(self.matchExpressions))",
    "message": "can not set both names and labelSelector in this spec.selector",
}]))]
pub struct NodeSelector {
    /// By name; no name twice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5000), inner(length(max = 253)), extend("x-kubernetes-list-type" = "set"))]
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
    /// How often a failed attempt is repeated; a negative number means 3.
    #[serde(default = "three")]
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
    "rule": "self.type != 'Never' || (!has(self.activeDeadlineSeconds) && !has(self.ttlSecondsAfterFinished))",
    "message": "activeDeadlineSeconds and ttlSecondsAfterFinished can only work with Always CompletionPolicyType",
}]))]
pub struct CompletionPolicy {
    /// Always: the job ends. Never: it keeps the image fresh.
    #[serde(default, rename = "type")]
    #[schemars(schema_with = "completion_type_schema")]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompletionType {
    /// It does. Upstream takes an empty text for this too.
    #[default]
    #[serde(alias = "")]
    Always,
    /// It does not.
    Never,
}

/// Not an enum of the schema: the empty text is legal, and upstream's refusal has words of its own.
fn completion_type_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 64,
        "default": "Always",
        "x-kubernetes-validations": [{
            "rule": "self in ['', 'Always', 'Never']",
            "message": "unknown type of completionPolicy",
            "messageExpression": "'unknown type of completionPolicy: ' + self",
        }],
    })
}

/// What both kinds refuse about their spec as a whole.
pub(super) fn both_selectors() -> Value {
    json!({
        "rule": "!has(self.selector) || !has(self.podSelector)",
        "message": "can not set both selector and podSelector",
    })
}
