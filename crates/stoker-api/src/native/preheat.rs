//! The wish of a user: these images on those nodes, at this pace. What is not built is not in the schema, so that
//! an API server refuses it by name.

use std::collections::BTreeMap;

use kube_derive::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::status::PreheatStatus;
use crate::amount::Amount;
use crate::labels::LabelSelector;
use crate::share::Share;
use crate::span::Span;

/// Images that shall be on nodes before they are needed.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "stoker.dev",
    version = "v1alpha1",
    kind = "Preheat",
    plural = "preheats",
    shortname = "ph",
    category = "stoker",
    namespaced,
    status = "PreheatStatus",
    derive = "PartialEq",
    doc = "Puts container images on nodes before they are needed.",
    crates(kube_core = "::kube_core"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Nodes",
        type_ = "integer",
        json_path = ".status.desired",
        description = "Nodes that shall have the images."
    ),
    printcolumn(
        name = "Done",
        type_ = "integer",
        json_path = ".status.succeeded",
        description = "Nodes that have them."
    ),
    printcolumn(name = "Pulling", type_ = "integer", json_path = ".status.pulling"),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.failed"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Waiting", type_ = "integer", json_path = ".status.waiting", priority = "1"),
    printcolumn(
        name = "Upstream",
        type_ = "string",
        json_path = ".status.received",
        description = "What nodes received from registries.",
        priority = "1"
    ),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = "1")
)]
#[serde(rename_all = "camelCase")]
pub struct PreheatSpec {
    /// The images, by tag or digest.
    #[schemars(
        length(min = 1, max = 100),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["image"])
    )]
    pub images: Vec<ImageSpec>,
    /// The nodes; none given means all.
    #[serde(default)]
    pub nodes: NodesSpec,
    /// How fast.
    #[serde(default)]
    pub pace: PaceSpec,
    /// How a node pulls.
    #[serde(default)]
    pub pull: PullSpec,
    /// When it is over.
    #[serde(default)]
    pub completion: CompletionSpec,
    /// Hands out nothing more and stops what runs; what was fetched stays and is not fetched again.
    #[serde(default)]
    pub suspend: bool,
}

/// One image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageSpec {
    /// registry/repository:tag or registry/repository@sha256:…
    #[schemars(length(min = 1, max = 512))]
    pub image: String,
    /// Secrets of this namespace with logins for its registry, of type kubernetes.io/dockerconfigjson or
    /// kubernetes.io/dockercfg. All that fit are tried, the most specific first; then the pull is tried without.
    #[serde(default, rename = "pullSecrets", skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 10),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub pull_secrets: Vec<SecretRef>,
}

/// A Secret of the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretRef {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Which nodes: those that satisfy all that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodesSpec {
    /// By name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 5000), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub names: Option<Vec<String>>,
    /// By label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Those on which pods of this namespace run that have these labels, followed as pods come and go; {} means every pod.
    #[serde(default, rename = "podSelector", skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
    /// How many of these nodes get the images; all if not given. The controller chooses nodes that are Ready and not cordoned and have an agent, and
    /// spreads them over the zones. status.selectedNodes names them. They stay the same: a node is replaced when it is deleted, does not match any more, or is not Ready
    /// while another node is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 5000))]
    pub replicas: Option<i32>,
}

/// How fast the images reach the nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PaceSpec {
    /// How many nodes pull at one time; 0 pauses.
    #[serde(default = "ten")]
    #[schemars(range(min = 0))]
    pub parallelism: i32,
    /// The most bytes a second that a node receives for it, such as 20Mi. A limit of the node itself comes before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Amount>,
    /// How many nodes may fail, as a number or as a percentage of the nodes. When more have, no other node begins, and the Preheat
    /// fails; when no more have, it succeeds. If not given, every node is tried, and one that fails makes the Preheat fail.
    #[serde(default, rename = "failureTolerance", skip_serializing_if = "Option::is_none")]
    pub failure_tolerance: Option<Share>,
    /// Which images a node pulls first, of those that this namespace wants there: those of higher priority.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = -1000, max = 1000))]
    pub priority: i32,
}

impl Default for PaceSpec {
    fn default() -> Self {
        Self { parallelism: ten(), bandwidth: None, failure_tolerance: None, priority: 0 }
    }
}

fn ten() -> i32 {
    10
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// How a node pulls an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.upstreamCopies) || self.source == 'Any'",
    "message": "upstreamCopies goes with source Any: with PeersOnly no node fetches from the registry",
}]))]
pub struct PullSpec {
    /// IfNotPresent: a node that has the tag is done. Always: the registry is asked which digest it means now.
    #[serde(default)]
    pub policy: PullPolicy,
    /// The longest that one attempt may take.
    #[serde(default = "ten_minutes")]
    #[schemars(extend("x-kubernetes-validations" = [{
        "rule": "!self.matches('^([0-9]{1,9}(h|m|s|ms))+$') || duration(self) >= duration('1s')",
        "message": "must be at least 1s",
    }]))]
    pub timeout: Span,
    /// How often a failed attempt is repeated.
    #[serde(default = "three")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: i32,
    /// Any: from the registry and its mirrors, and from other nodes where nodes read from each other. PeersOnly: its bytes come from other nodes alone; the registry is only asked what a tag means and whether a node may have the image.
    #[serde(default)]
    pub source: SourceSpec,
    /// How many nodes of a peer group may fetch an image from the registry; all others read it from these. A promise: nodes wait rather
    /// than break it. If not given, one node does, and another one where a node finds no other way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 5000))]
    pub upstream_copies: Option<i32>,
    /// What a container runtime that pulls by itself is told about the pod that the images are for.
    #[serde(default, skip_serializing_if = "SandboxSpec::is_empty")]
    #[schemars(schema_with = "bounded_sandbox")]
    pub sandbox: SandboxSpec,
}

impl Default for PullSpec {
    fn default() -> Self {
        Self {
            policy: PullPolicy::default(),
            timeout: ten_minutes(),
            retries: three(),
            source: SourceSpec::default(),
            upstream_copies: None,
            sandbox: SandboxSpec::default(),
        }
    }
}

fn ten_minutes() -> Span {
    Span(std::time::Duration::from_secs(600))
}

fn three() -> i32 {
    3
}

/// Text without control characters, of which each takes six bytes in JSON; lines may end. Keys cannot be held to it: the cost of a
/// rule that looks into keys has no bound that API servers accept.
const PRINTABLE: &str = r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*$";

/// A pod, as far as a runtime that pulls an image for it looks at it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxSpec {
    /// Its labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("additionalProperties" = json!({ "type": "string", "pattern": PRINTABLE })))]
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("additionalProperties" = json!({ "type": "string", "pattern": PRINTABLE })))]
    pub annotations: BTreeMap<String, String>,
}

/// What a Preheat may say about the pod: it goes to every node that pulls, once for each image.
fn bounded_sandbox(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = SandboxSpec::json_schema(generator);
    let rule = json!([{ "rule": "self.all(key, size(key) <= 317)", "message": "a key has at most 317 characters" }]);
    for (field, longest) in [("labels", 63), ("annotations", 1024)] {
        if let Some(map) = schema.pointer_mut(&format!("/properties/{field}")).and_then(Value::as_object_mut) {
            map.insert("maxProperties".into(), 16.into());
            map.insert(
                "additionalProperties".into(),
                json!({ "type": "string", "maxLength": longest, "pattern": PRINTABLE }),
            );
            map.insert("x-kubernetes-validations".into(), rule.clone());
        }
    }
    schema
}

impl SandboxSpec {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Whether an image that is there already is good enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// It is.
    #[default]
    IfNotPresent,
    /// The registry is asked; a digest that is there is not fetched again.
    Always,
}

/// Where the bytes of an image may come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SourceSpec {
    /// The registry, its mirrors and other nodes.
    #[default]
    Any,
    /// Other nodes alone.
    PeersOnly,
}

/// When a Preheat is over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "self.mode == 'Continuous' || !has(self.resync)",
        "message": "resync goes with mode Continuous",
    },
    {
        "rule": "self.mode == 'Once' || (!has(self.deadline) && !has(self.ttl))",
        "message": "deadline and ttl go with mode Once: a Continuous Preheat does not end",
    },
]))]
pub struct CompletionSpec {
    /// Once: over when every node succeeded or failed. Continuous: nodes are asked again in rounds.
    #[serde(default)]
    pub mode: CompletionMode,
    /// The length of a round of mode Continuous, 24h if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [{
        "rule": "!self.matches('^([0-9]{1,9}(h|m|s|ms))+$') || duration(self) >= duration('1m')",
        "message": "must be at least 1m",
    }]))]
    pub resync: Option<Span>,
    /// Counted from the start; past it every unfinished node has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [{
        "rule": "!self.matches('^([0-9]{1,9}(h|m|s|ms))+$') || duration(self) >= duration('1s')",
        "message": "must be at least 1s",
    }]))]
    pub deadline: Option<Span>,
    /// How long the finished Preheat stays before it is deleted; for ever if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Span>,
}

/// Whether a Preheat ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CompletionMode {
    /// It does.
    #[default]
    Once,
    /// It keeps the images there.
    Continuous,
}
