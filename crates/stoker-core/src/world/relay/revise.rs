//! Orders under way that change although nobody complains: their jobs allow no copy any more, or a node that they read from serves somewhere else.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::model::{Ask, NodeName, Order, PeerFacts, PeerRef, Report, after};
use crate::pace::NEW_ADDRESS;
use crate::world::World;
use crate::world::held::HeldOrder;

/// Whether the jobs of an order let the image come from other nodes alone. The registry may still be asked what a tag means.
fn is_barred(order: &Order) -> bool {
    matches!(order.ask, Ask::Fetch(_)) && order.terms.pull.is_from_peers_alone()
}

/// Whether an order has nothing to read from, and may not go upstream. It gets a list as soon as somebody can serve it.
pub(super) fn lacks_list(order: &HeldOrder) -> bool {
    !order.upstream && is_barred(order) && order.peers().next().is_none()
}

/// Until when complaints of an order do not count, because a node that it reads from has just moved and they may be about the old address. None if they
/// count now.
pub(super) fn tries_until(order: &Order, now: Timestamp) -> Option<Timestamp> {
    // A time that is ahead of our clock was written by a controller whose clock was ahead. It would silence complaints for longer.
    let moved = order.past.moved.filter(|moved| *moved <= now)?;
    Some(after(moved, NEW_ADDRESS)).filter(|until| now < *until)
}

/// The nodes that could not serve an order, as far as its agent says so of this ask and of the addresses that it has.
pub(super) fn bad_nodes<'a>(order: &HeldOrder, report: Option<&'a Report>, now: Timestamp) -> &'a [NodeName] {
    let report = report.filter(|report| report.asked == order.asked && tries_until(order, now).is_none());
    report.map(|report| report.bad.as_slice()).unwrap_or_default()
}

impl World {
    /// Has orders looked at that name a node that has moved. The walk over all of them is made only for a new address or key of a node that orders name.
    pub(in crate::world) fn touch_readers_of_moved(&mut self) {
        let moved = std::mem::take(&mut self.moved);
        let slots = moved.into_iter().filter_map(|at| self.slots.get(at));
        let named = slots.filter(|slot| slot.peer().is_some_and(|facts| self.peer_refs.has_other(&slot.name, facts)));
        let named: BTreeSet<&NodeName> = named.map(|slot| &slot.name).collect();
        if named.is_empty() {
            return;
        }
        let reads = |order: &HeldOrder| order.peers().any(|peer| named.contains(&peer.node));
        let slots = self.slots.iter().enumerate();
        let readers = slots.filter(|(_, slot)| slot.orders.values().any(reads)).map(|(at, _)| at);
        self.dirty_slots.extend(readers);
    }

    /// An order under way, amended or not, that goes upstream only where its jobs still allow that, and names its sources where they serve now; none where
    /// nothing of it has changed. Which nodes it reads from instead of the registry is decided when all orders are up to date: see [`lacks_list`].
    pub(in crate::world) fn revised(&self, order: &HeldOrder, amended: Option<Order>, now: Timestamp) -> Option<Order> {
        let moved = order.peers().any(|peer| self.moved_to(peer).is_some());
        let barred = |order: &Order| order.upstream && is_barred(order);
        if !moved && !barred(amended.as_ref().unwrap_or(order)) {
            return amended;
        }
        let mut order = amended.unwrap_or_else(|| order.order());
        give_registry_back(&mut order);
        if moved {
            self.tell_addresses(&mut order);
            // Only the first time: a node could move for ever, and nobody who reads from it could complain.
            order.past.moved.get_or_insert(now);
        }
        Some(order)
    }

    /// What is known of a peer that serves at another address, or with another key, than an order says.
    fn moved_to(&self, peer: &PeerRef) -> Option<&PeerFacts> {
        let at = self.by_name.get(&peer.node)?;
        self.peer(*at).filter(|facts| !peer.is_where(facts))
    }

    /// The order names the same nodes, where they serve now.
    fn tell_addresses(&self, order: &mut Order) {
        for peer in &mut order.peers {
            if let Some((address, key)) = self.moved_to(peer).map(|facts| (facts.socket(), facts.key.clone())) {
                (peer.address, peer.key) = (address, key);
            }
        }
    }
}

/// Keeps an order from going upstream whose jobs do not allow that any more. Its lists are counted anew: the order could go upstream after the earlier ones.
pub(in crate::world) fn give_registry_back(order: &mut Order) {
    if order.upstream && is_barred(order) {
        (order.upstream, order.past.lists) = (false, 0);
    }
}
