//! One object a node, named after it. The controller alone writes `spec`, the node's agent alone writes `status`;
//! both by merge patches of maps under the same keys, so neither ever reads before it writes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stoker_core::human;
use stoker_core::model::{MOST_PEERS, Sandbox};

use super::preheat::PullPolicy;
use crate::amount::Amount;
use crate::span::Span;

/// What one node may do now.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "stoker.dev",
    version = "v1alpha1",
    kind = "NodePreheat",
    plural = "nodepreheats",
    shortname = "nph",
    category = "stoker",
    status = "NodePreheatStatus",
    derive = "PartialEq",
    doc = "What Stoker's agent on one node is ordered to do, and what came of it. Written by Stoker, not by people.",
    crates(kube_core = "::kube_core"),
    printcolumn(name = "Runtime", type_ = "string", json_path = ".status.agent.runtime"),
    printcolumn(name = "Platform", type_ = "string", json_path = ".status.agent.platform"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.agent.version"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Free",
        type_ = "string",
        json_path = ".status.disk.available",
        description = "What is free where images are stored.",
        priority = "1"
    )
)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(oldSelf.epoch) || (has(self.epoch) && self.epoch >= oldSelf.epoch)",
    "message": "epoch may neither fall nor vanish: a controller that no longer leads must not write",
}]))]
pub struct NodePreheatSpec {
    /// Of the controller that wrote the orders; a later leader has a higher one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64")]
    pub epoch: Option<i64>,
    /// The most bytes a second that the node may receive for all its orders together, such as 20Mi; for people to write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Amount>,
    /// The most bytes a second that the node sends to other nodes that read images from it, such as 20Mi; for people to write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload: Option<Amount>,
    /// The orders by key.
    #[serde(default)]
    pub orders: BTreeMap<String, WireOrder>,
    /// The logins that orders name, by the names there. Only this node's agent can open them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 4096))]
    pub logins: BTreeMap<String, SealedLogin>,
}

/// A login for a registry that was sealed to the key of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SealedLogin {
    /// The name of the key that it was sealed to: the first 16 hexadecimal digits of its sha256.
    #[schemars(length(max = SealedLogin::LONGEST_KEY))]
    pub key: String,
    /// The box, in base64.
    #[serde(rename = "box")]
    #[schemars(length(max = SealedLogin::LONGEST_BOX))]
    pub sealed: String,
}

impl SealedLogin {
    /// The longest name of a key.
    pub const LONGEST_KEY: usize = 16;
    /// The longest box: of a login of 8 KiB, which is the longest that is sealed, with some room.
    pub const LONGEST_BOX: usize = 12 * 1024;

    /// Whether it is no longer than any that is made.
    pub(super) fn is_bounded(&self) -> bool {
        self.key.len() <= Self::LONGEST_KEY && self.sealed.len() <= Self::LONGEST_BOX
    }
}

/// One image for this node, to be pulled now. In a patch every field is present, so that what is `null` goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WireOrder {
    /// The canonical reference.
    #[schemars(length(max = 1024))]
    pub image: String,
    /// What to do; none, as older controllers write it, means Look where `needs` has `look`, else Fetch.
    #[serde(default)]
    pub ask: Option<WireAsk>,
    /// What to fetch; none means: ask the registry, report the answer, then fetch it.
    #[serde(default)]
    pub pin: Option<WirePin>,
    /// Nothing runs, and what was fetched is kept, until this is false.
    #[serde(default)]
    pub hold: bool,
    /// Whether an image that is there is good enough.
    pub policy: PullPolicy,
    /// The longest that one attempt may take.
    pub timeout: Span,
    /// How often a failed attempt is repeated.
    pub retries: u32,
    /// The most bytes a second that may be received for it.
    #[serde(default)]
    pub bandwidth: Option<Amount>,
    /// Among the images that the same namespaces want, those of higher priority are pulled first.
    #[serde(default)]
    pub priority: Option<i32>,
    /// What a runtime that pulls by itself is told about the pod.
    #[serde(default)]
    pub sandbox: WireSandbox,
    /// The time between two reports of mere progress.
    pub progress: Span,
    /// The jobs that it serves, as Kind.group/namespace/name, with #part where an object means several jobs.
    // More than fit into the room that core has for all orders of a node.
    #[schemars(length(max = 16_384), inner(length(max = 1024)))]
    pub jobs: Vec<String>,
    /// When it was last asked for; the report repeats it.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub asked: Timestamp,
    /// Names of `spec.logins` for the image, in the order in which they are tried.
    #[serde(default)]
    pub logins: Vec<String>,
    /// Written by earlier versions: Secrets in Stoker's namespace with logins. Agents of this version do not read it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Features that the agent must have: `look` and `resolve` for the asks of these names, `sealed` for logins, `peers` where the image
    /// comes from other nodes.
    #[serde(default)]
    #[schemars(length(max = 64), inner(length(max = 64)))]
    pub needs: Vec<String>,
    /// Whether the node may ask the registry for the image; none, as older controllers write it, means yes.
    #[serde(default)]
    pub upstream: Option<bool>,
    /// The nodes that it may read the image from, in the order in which they are tried.
    #[serde(default)]
    #[schemars(length(max = MOST_PEERS))]
    pub peers: Vec<WirePeer>,
    /// What the node shows to these: the controller's signature under the image and this node's key.
    #[serde(default)]
    #[schemars(length(max = WireOrder::LONGEST_TICKET))]
    pub ticket: Option<String>,
    /// The bytes a second that other nodes of the peer group get.
    #[serde(default)]
    #[schemars(with = "Option<i64>")]
    pub expect: Option<u64>,
    /// What the plan remembers of this ask; agents do not look at it.
    #[serde(default)]
    pub past: Option<WirePast>,
    /// Where the jobs let the image come from; none means Any.
    #[serde(default)]
    pub source: Option<WireSource>,
    /// How many nodes of a peer group may fetch the image from the registry, where a job promises that.
    #[serde(default, rename = "upstreamCopies")]
    pub upstream_copies: Option<u32>,
}

/// Where the jobs of an order let its image come from, if not from anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WireSource {
    /// From other nodes alone.
    PeersOnly,
    /// From mirrors of the registry and other nodes: the registry itself is asked nothing.
    MirrorsOnly,
    /// What jobs of both allow together: as PeersOnly, and from mirrors of the registry, too.
    PeersOrMirrors,
    /// From anywhere, and other nodes are read from without the registry's permission.
    AnyOrMirrors,
}

impl WireOrder {
    /// The longest ticket.
    pub const LONGEST_TICKET: usize = 256;
}

/// A node that an order may read from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WirePeer {
    /// Which node.
    #[schemars(length(max = 253))]
    pub node: String,
    /// Where its agent serves, as address:port.
    #[schemars(length(max = 64))]
    pub address: String,
    /// The key that its agent must prove to have: ed25519, in base64.
    #[schemars(length(max = PeerInfo::LONGEST_KEY))]
    pub key: String,
    /// Whether it is in another zone.
    #[serde(default)]
    pub far: bool,
}

/// What one ask has been through with its peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WirePast {
    /// How many times its list of peers was replaced.
    #[serde(default)]
    #[schemars(range(min = 0, max = 255))]
    pub lists: u8,
    /// It fetched from the registry and did not get on.
    #[serde(default)]
    pub seed: bool,
    /// It is much slower than its source: nobody reads from it.
    #[serde(default)]
    pub out: bool,
    /// When it was first told a new address or key of a node that it reads from.
    #[serde(default)]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub moved: Option<Timestamp>,
    /// When it was last told other sources, because it or another node complained of those that it had.
    #[serde(default)]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub mended: Option<Timestamp>,
}

/// What an order asks of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WireAsk {
    /// Ask the registry which digest the tag means, and fetch nothing.
    Resolve,
    /// Say whether the image is there, and leave the registry alone.
    Look,
    /// Fetch the image.
    Fetch,
}

/// A pod, as a runtime that pulls by itself is told of it: `key=value`. Lists, because a merge patch replaces them whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WireSandbox {
    /// Its labels.
    #[serde(default)]
    #[schemars(length(max = Sandbox::MOST))]
    pub labels: Vec<String>,
    /// Its annotations.
    #[serde(default)]
    #[schemars(length(max = Sandbox::MOST))]
    pub annotations: Vec<String>,
}

/// A digest and the ask that it answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WirePin {
    /// `asked` of the order whose node asked the registry.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub asked: Timestamp,
    /// The registry's answer.
    #[schemars(length(max = 71), regex(pattern = "^sha256:[0-9a-f]{64}$"))]
    pub digest: String,
    /// In an order: only one node said so, because no other could be asked.
    #[serde(default)]
    pub alone: bool,
}

/// What the agent says: of its node, and of each order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodePreheatStatus {
    /// The agent itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentInfo>,
    /// The disk that holds the images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
    /// What came of each order, under the order's key.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 4096))]
    pub reports: BTreeMap<String, WireReport>,
}

/// What an agent is and can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AgentInfo {
    /// Its version.
    #[schemars(length(max = 64))]
    pub version: String,
    /// Where it puts images.
    #[schemars(length(max = 64))]
    pub runtime: String,
    /// Why it puts them there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub chosen: Option<String>,
    /// The platform that it pulls for, such as linux/arm64.
    #[schemars(length(max = 64))]
    pub platform: String,
    /// Features that orders may need.
    #[serde(default)]
    #[schemars(length(max = 64), inner(length(max = 64)))]
    pub features: Vec<String>,
    /// The key to which logins for this node are sealed: X25519, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = AgentInfo::LONGEST_KEY))]
    pub key: Option<String>,
    /// How other nodes read images from this one; none where it serves nobody.
    #[serde(default)]
    pub peer: Option<PeerInfo>,
}

impl AgentInfo {
    /// The length of a key.
    pub const LONGEST_KEY: usize = 44;
}

/// How other nodes read images from this one. They find its address in the Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PeerInfo {
    /// The port on which its agent serves.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// The key that its agent proves to have: ed25519, in base64.
    #[schemars(length(max = PeerInfo::LONGEST_KEY))]
    pub key: String,
    /// Whether the blobs of an image stay after it was unpacked. If not, they are served for five minutes.
    #[serde(default)]
    pub keeps: bool,
    /// The bytes a second that it received in its best recent pull; a power of two.
    #[serde(default)]
    #[schemars(with = "Option<i64>")]
    pub rate: Option<u64>,
    /// The bytes a second that it sent at best, or may send; a power of two.
    #[serde(default)]
    #[schemars(with = "Option<i64>")]
    pub sent: Option<u64>,
}

impl PeerInfo {
    /// The length of a key.
    pub const LONGEST_KEY: usize = 44;
}

/// A disk in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Disk {
    /// Its size.
    #[schemars(with = "i64")]
    pub total: u64,
    /// What is free.
    #[schemars(with = "i64")]
    pub free: u64,
    /// What is free, for people, such as 75.8GiB.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub available: String,
}

impl Disk {
    /// A disk of this size with so much free. Some filesystems claim more than an integer of the API server holds.
    pub fn new(total: u64, free: u64) -> Self {
        let [total, free] = [total, free].map(|bytes| bytes.min(i64::MAX.unsigned_abs()));
        Self { total, free, available: human::bytes_in_a_word(free) }
    }
}

/// What came of an order. In a patch every field is present, so that what is `null` goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WireReport {
    /// `asked` of the order that this answers.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub asked: Timestamp,
    /// The jobs of that order; the report may outlive it.
    #[serde(default)]
    #[schemars(length(max = 4096), inner(length(max = 1024)))]
    pub jobs: Vec<String>,
    /// How far it is.
    pub phase: WirePhase,
    /// The digest that is there, or on its way.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub digest: Option<String>,
    /// The registry's answer, where this node asked it.
    #[serde(default)]
    pub pin: Option<WirePin>,
    /// Of an order under the policy Always: the node has some image of this name, which is enough for jobs that want any.
    #[serde(default)]
    pub present: Option<bool>,
    /// Byte counts.
    #[serde(default)]
    pub bytes: WireBytes,
    /// Where its bytes come from, or came from last: the name of a node, or none for the registry and its mirrors.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub from: Option<String>,
    /// Nodes that could not serve it, of those that the order names.
    #[serde(default)]
    #[schemars(length(max = MOST_PEERS), inner(length(max = 253)))]
    pub bad: Vec<String>,
    /// Which attempt, counted from 1.
    pub attempt: u32,
    /// Why it failed, in a word.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub reason: Option<String>,
    /// Why it failed, in a sentence.
    #[serde(default)]
    #[schemars(length(max = 2048))]
    pub message: Option<String>,
    /// Since when no byte has come, in an attempt that goes on.
    #[serde(default)]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub stalled: Option<Timestamp>,
    /// When it began.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub started: Timestamp,
    /// When it was over.
    #[serde(default)]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub finished: Option<Timestamp>,
    /// The last sign of life.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub updated: Timestamp,
}

/// How far an order is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WirePhase {
    /// At work, or between two attempts.
    Pulling,
    /// The image is there.
    Succeeded,
    /// The registry has said which digest the tag means; nothing was to be fetched.
    Resolved,
    /// Given up.
    Failed,
}

/// Byte counts. `done` includes what was there before; `upstream` and `peers` came over a wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WireBytes {
    /// The size, 0 until it is known.
    #[serde(default)]
    #[schemars(with = "i64")]
    pub total: u64,
    /// How much of it is there.
    #[serde(default)]
    #[schemars(with = "i64")]
    pub done: u64,
    /// How much was received from registries.
    #[serde(default)]
    #[schemars(with = "i64")]
    pub upstream: u64,
    /// How much was received from other nodes.
    #[serde(default)]
    #[schemars(with = "i64")]
    pub peers: u64,
    /// How much of `upstream` was received from mirrors.
    #[serde(default, skip_serializing_if = "is_nothing")]
    #[schemars(with = "i64")]
    pub mirrors: u64,
}

fn is_nothing(bytes: &u64) -> bool {
    *bytes == 0
}
