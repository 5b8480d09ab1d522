//! Nodes that read images from each other: what a node publishes about itself, and what an order says about others.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use jiff::Timestamp;

use super::{Node, NodeName};

/// The feature of an agent that an order with peers needs, and one that may not go upstream.
pub const PEERS: &str = "peers";

/// How many peers an order names at most: three sources, then the spare.
pub const MOST_PEERS: usize = 4;

/// The label that says which nodes can reach each other.
pub const GROUP_LABEL: &str = "stoker.dev/peer-group";
/// The value of [`GROUP_LABEL`] on a node that reads from nobody and serves nobody.
pub const NO_GROUP: &str = "none";
/// The group of nodes without [`GROUP_LABEL`].
const REGION_LABEL: &str = "topology.kubernetes.io/region";
/// Kubelets say by these what their nodes are.
const OS_LABEL: &str = "kubernetes.io/os";
const ARCHITECTURE_LABEL: &str = "kubernetes.io/arch";
/// Traffic between two zones is slow or costs money.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

impl Node {
    /// The peer group: only nodes of the same group read from each other. A node without a group reads from nobody.
    pub fn peer_group(&self) -> Option<&str> {
        let label = |key: &str| self.labels.get(key).map(String::as_str).filter(|value| !value.is_empty());
        match label(GROUP_LABEL) {
            _ if self.foreign => None,
            Some(NO_GROUP) => None,
            Some(group) => Some(group),
            None => Some(label(REGION_LABEL).unwrap_or_default()),
        }
    }

    /// The operating system and the architecture, where the labels say both: nodes of another platform have other layers of an image.
    pub fn platform(&self) -> Option<(&str, &str)> {
        let label = |key: &str| self.labels.get(key).map(String::as_str);
        label(OS_LABEL).zip(label(ARCHITECTURE_LABEL))
    }

    /// The zone; nodes without that label are in one zone together.
    pub fn zone(&self) -> &str {
        self.labels.get(ZONE_LABEL).map(String::as_str).unwrap_or_default()
    }
}

/// The public key of an agent, as it is written. Core compares keys and knows nothing else about them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerKey(Arc<str>);

impl PeerKey {
    /// A key that was read.
    pub fn new(key: &str) -> Self {
        Self(key.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is known of a node whose agent serves images to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFacts {
    /// The node's address as the cluster knows it: an agent that was taken over could name another one.
    pub address: IpAddr,
    /// The port of its agent.
    pub port: u16,
    /// The key that its agent proves to have.
    pub key: PeerKey,
    /// Whether the blobs of an image stay after it was unpacked. Otherwise the agent serves them for [`crate::pace::LINGER`].
    pub keeps: bool,
    /// The bytes a second that it was seen to receive, where that is known: a power of two, so that it seldom changes.
    pub rate: Option<u64>,
    /// The bytes a second that it was seen to send, limited by what its owner allows; a power of two.
    pub sent: Option<u64>,
}

impl PeerFacts {
    /// Where its agent serves.
    pub fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

/// A node that an order may read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRef {
    /// Which node.
    pub node: NodeName,
    /// Where its agent serves.
    pub address: SocketAddr,
    /// The key that its agent must prove to have.
    pub key: PeerKey,
    /// Whether it is in another zone.
    pub far: bool,
}

impl PeerRef {
    /// Whether the node still serves there, with that key.
    pub fn is_where(&self, facts: &PeerFacts) -> bool {
        self.address == facts.socket() && self.key == facts.key
    }
}

/// Where the bytes of a pull come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The registry, or a mirror of it.
    Upstream,
    /// Another node.
    Peer(NodeName),
}

/// What one ask has been through, so that nothing is repeated for ever. Only the plan writes it, and agents ignore it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerPast {
    /// How many times its list of peers was replaced.
    pub lists: u8,
    /// It was a seed and did not get on: it is not named again.
    pub seed: bool,
    /// It is much slower than its source: nobody reads from it.
    pub out: bool,
    /// When it was first told a new address or key of a node that it reads from. Complaints soon after that do not count: [`crate::pace::NEW_ADDRESS`].
    pub moved: Option<Timestamp>,
    /// When it was last told other sources, because it or a node that it read from complained. Nodes that read from it are waited for since then:
    /// [`crate::pace::SETTLES`].
    pub mended: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_that_of_the_label_or_the_region() {
        let region = (REGION_LABEL, "eu");
        for (labels, group) in [
            (vec![], Some("")),
            (vec![region], Some("eu")),
            (vec![region, (GROUP_LABEL, "shop-7")], Some("shop-7")),
            (vec![region, (GROUP_LABEL, "")], Some("eu")),
            (vec![region, (GROUP_LABEL, "none")], None),
        ] {
            let labels = labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
            let node =
                Node { name: "n".into(), labels, ready: true, ready_changed: None, cordoned: false, foreign: false };
            assert_eq!(node.peer_group(), group, "{:?}", node.labels);
            assert_eq!(Node { foreign: true, ..node }.peer_group(), None);
        }
    }
}
