//! What an agent needs to run, and how much of its node it may take.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use kube::Client;
use stoker_core::{Clock, step};
use stoker_runtime::Runtime;
use stoker_transfer::credentials::Providers;
use stoker_transfer::{Platform, Registry, Spool};

use crate::metrics::Metrics;

/// What an agent needs.
#[derive(Clone)]
pub struct Settings {
    /// The API server, embedded or real.
    pub client: Client,
    /// The time.
    pub clock: Clock,
    /// The name of its Node.
    pub node: String,
    /// For whom it pulls.
    pub platform: Platform,
    /// Where bytes come from.
    pub registry: Registry,
    /// Programs of the node that know logins.
    pub providers: Providers,
    /// Where they are while they come.
    pub spool: Spool,
    /// Where they go.
    pub runtime: Runtime,
    /// Why they go there, for people.
    pub why_runtime: String,
    /// How much at one time.
    pub limits: Limits,
    /// The file in which it remembers its orders; the key of the node is beside it.
    pub ledger: PathBuf,
    /// On a machine without a kubelet: the labels of the Node that the agent makes and keeps alive itself.
    pub node_labels: Option<BTreeMap<String, String>>,
    /// The address of that Node.
    pub node_ip: Option<IpAddr>,
    /// How other nodes read images from this one; none where they do not, and this one reads from nobody.
    pub peers: Option<PeerSettings>,
    /// What it counts, together with all agents that have the same ones.
    pub metrics: Metrics,
}

/// How other nodes read images from this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerSettings {
    /// Where it serves; with port 0 on any free port.
    pub listen: SocketAddr,
    /// The namespace of Stoker's own objects, in which the keys are by which tickets are checked.
    pub namespace: String,
    /// How long an image is served that the node needs no longer, and blobs that the runtime does not keep.
    pub linger: Duration,
}

/// How much of a node an agent may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Images that are pulled at one time.
    pub pulls: usize,
    /// Layers of one image that are worked on at one time.
    pub layers: usize,
    /// How full the disks of images and spool may become, in percent.
    pub disk: u8,
    /// Bytes a second for all pulls together, unless the NodePreheat says another number.
    pub bandwidth: Option<u64>,
    /// Bytes a second for all nodes together that read from this one, unless the NodePreheat says another number.
    pub upload: Option<u64>,
    /// How long what was fetched for an order that was taken back stays.
    pub keep_fetched: Duration,
    /// How long an order may pull, or have its space on the disk, while a namespace without any waits. Where the runtime pulls by itself it
    /// is [`step::LONG_TURN`].
    pub turn: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let keep_fetched = Duration::from_secs(3600);
        Self { pulls: 3, layers: 4, disk: 80, bandwidth: None, upload: None, keep_fetched, turn: step::TURN }
    }
}
