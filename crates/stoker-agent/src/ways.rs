//! Where the bytes of an order come from, as orders and reports say it. An order and its ticket become the list that a pull reads from;
//! what became of the nodes of that list becomes a part of the report. It asks nobody and decides nothing: the controller does.

use std::convert::Infallible;
use std::sync::Arc;

use stoker_core::model::{Bytes, MOST_PEERS, NodeName, Order, Origin, Pull, Report};
use stoker_core::step::longest;
use stoker_core::{Reason, text};
use stoker_transfer::peer::{OwnState, Peer, PeerList, PeerReader, PeerWays, ticket_subject};
use stoker_transfer::{Digest, PlatformImage};
use tokio::sync::Notify;

use crate::meter::Meter;

/// Takes the name that an order has for its image, and the documents of the image.
pub(crate) type HearDocuments = Arc<dyn Fn(&str, &PlatformImage) + Send + Sync>;

/// What pulls of this node have to do with other nodes.
#[derive(Clone)]
pub(crate) struct PeerSide {
    /// Reads as this node.
    pub(crate) reader: PeerReader,
    /// Told of the documents that an attempt got, as soon as it has them.
    pub(crate) seen: HearDocuments,
    /// How many nodes read the image that tickets name so from here.
    pub(crate) readers: Arc<dyn Fn(&Digest) -> u32 + Send + Sync>,
}

impl PeerSide {
    /// The ways of an order, with nobody to ask yet. `news` is rung when they have something to tell.
    pub(crate) fn ways(&self, news: Arc<Notify>) -> PeerWays {
        PeerWays::new(self.reader.clone(), PeerList::default()).telling(news)
    }

    /// Moves an attempt inside its list where another node is better, for as long as it is polled.
    pub(crate) async fn mind(&self, ways: &PeerWays, order: &Order, meter: &Meter) -> Infallible {
        let root = order.pin().and_then(|pin| pin.digest.parse().ok()).map(|root| ticket_subject(&order.image, &root));
        let own = || {
            let Bytes { total, done, .. } = meter.bytes();
            let readers = root.as_ref().map_or(0, |root| (self.readers)(root));
            let (usual, least, waits) = (order.expect, least(&order.terms.pull, total), meter.waits_for_bytes());
            OwnState { have: done, growing: done < total, readers, usual, least, waits }
        };
        ways.mind(own).await
    }
}

/// The bytes a second without which an image of this size is not here before the attempts of its order are over. Where the job limits them to less, half of that.
fn least(pull: &Pull, total: u64) -> u64 {
    let least = total / longest(pull.timeout, pull.retries).as_secs().max(1);
    pull.bandwidth.map_or(least, |limit| least.min(limit / 2))
}

/// Whom an order may ask, with what this node shows to them. A node whose key cannot be read is left out.
pub(crate) fn list(order: &Order, ticket: Option<&String>) -> PeerList {
    let peers = order.peers.iter().filter_map(|peer| match peer.key.as_str().parse() {
        Ok(id) => Some(Peer { node: (*peer.node).into(), addr: peer.address, id, far: peer.far }),
        Err(problem) => {
            tracing::warn!(image = order.image, "node {} cannot be read from: {problem}", peer.node);
            None
        }
    });
    let ticket = ticket.map(String::as_str).unwrap_or_default();
    PeerList { upstream: order.upstream, ticket: ticket.into(), peers: peers.collect() }
}

/// What is wrong with the nodes of a list.
struct PeerTrouble {
    reason: Reason,
    message: String,
    /// The nodes that the report names.
    bad: Vec<NodeName>,
}

fn trouble(ways: &PeerWays) -> Option<PeerTrouble> {
    let (list, liars) = (ways.list(), ways.liars());
    let name = |node: &Arc<str>| NodeName::from(&**node);
    let all_lied = !list.peers.is_empty() && list.peers.iter().all(|peer| liars.contains(&peer.node));
    if let Some(told) = ways.exhausted().filter(|_| !list.upstream && !all_lied) {
        let message = format!(
            "no node that this one may read from gives the image: {told}; it goes on when one of them does, or when the \
             controller names another source"
        );
        let bad = list.peers.iter().map(|peer| name(&peer.node)).collect();
        return Some(PeerTrouble { reason: Reason::NoSource, message, bad });
    }
    if ways.lags() {
        let message = "this node receives much less than the node that it reads from, and others read from the same one or from this one; \
                       the controller has them go on without this node";
        return Some(PeerTrouble { reason: Reason::Lagging, message: message.into(), bad: Vec::new() });
    }
    let message = || {
        let names: Vec<&str> = liars.iter().map(|node| &**node).collect();
        format!(
            "bytes from node {} are not those that their digest names, and were thrown away; the node is not asked again for this image: \
             check its disk and memory",
            names.join(", ")
        )
    };
    // Whoever is named along with this reason is accused by it.
    let accused = || liars.iter().map(name).collect();
    (!liars.is_empty()).then(|| PeerTrouble { reason: Reason::PeerLied, message: message(), bad: accused() })
}

/// Says in a report where its bytes come from, and what is wrong with that. A trouble of the registry that is already told there stays,
/// unless nobody gives anything.
pub(crate) fn tell(ways: &PeerWays, report: &mut Report) {
    if ways.is_upstream() {
        let begun = report.bytes.upstream > 0;
        report.from = if begun { Some(Origin::Upstream) } else { report.from.take() };
    } else if let Some(node) = ways.from() {
        report.from = Some(Origin::Peer(NodeName::from(&*node)));
    }
    let trouble = trouble(ways);
    match &trouble {
        Some(PeerTrouble { reason: Reason::NoSource, bad, .. }) => {
            // The latest come last.
            report.bad.retain(|node| !bad.contains(node));
            report.bad.extend(bad.iter().cloned());
        }
        Some(PeerTrouble { reason: Reason::PeerLied, bad, .. }) => report.bad.clone_from(bad),
        _ => {
            if let Some(Origin::Peer(from)) = &report.from {
                report.bad.retain(|node| node != from);
            }
        }
    }
    let too_many = report.bad.len().saturating_sub(MOST_PEERS);
    report.bad.drain(..too_many);
    let ours = [Some(Reason::NoSource), Some(Reason::PeerLied), Some(Reason::Lagging)];
    match trouble {
        Some(PeerTrouble { reason, message, .. }) if reason == Reason::NoSource || report.stalled.is_none() => {
            (report.reason, report.message, report.stalled) = (Some(reason), text::message(&message), None);
        }
        None if ours.contains(&report.reason) => {
            report.reason = None;
            report.message.clear();
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
