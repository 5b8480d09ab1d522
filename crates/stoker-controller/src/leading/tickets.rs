//! Tickets: what a node shows to those that its orders let it read from. Core names the peers, and a ticket is made when the order is
//! written: for the digest of the order and the key that the node has published. It is made anew when that key is another one, or
//! three quarters of its life are over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use stoker_api::native::NodeObject;
use stoker_api::native::from_core;
use stoker_core::model::after;
use stoker_core::{Key, Order};
use stoker_transfer::Digest;
use stoker_transfer::peer::{PeerId, SignerId, TicketClaims, TicketSigner, ticket_subject};
use tokio::time::Instant;

use super::Leading;
use crate::hearing::Hearing;
use crate::peer_keys::{PublishedKeys, TICKET_LIFE};

/// The open orders of a node are written for lack of tickets at most once in this time, unless its key is another one: an API server
/// that loses tickets must not be written to for ever.
const REST: Duration = Duration::from_secs(9 * 60);

/// A ticket is renewed when it has less than this left: a quarter of its life.
const LATE: Duration = Duration::from_secs(6 * 60 * 60);

/// Who makes tickets.
#[derive(Default)]
pub(super) struct TicketOffice {
    /// None where nodes do not read from each other.
    signer: Option<TicketSigner>,
    /// What agents can find. Without it no ticket is worth anything.
    published: Option<PublishedKeys>,
    /// Whether the first try to publish has ended.
    tried: bool,
}

/// A ticket that is written, or on its way; for the key that the node has, and the digest of its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldTicket {
    signer: SignerId,
    expires: u32,
}

/// The tickets of a node, by order.
pub(super) type HeldTickets = BTreeMap<Key, HeldTicket>;

impl TicketOffice {
    /// Until when a ticket lives that is made now; none where none can be made. Never longer than its key is published.
    fn expires(&self, now: Timestamp) -> Option<u32> {
        let published = self.published.as_ref().filter(|_| self.signer.is_some())?;
        let expires = published.until.min(after(now, TICKET_LIFE));
        u32::try_from(expires.as_second()).ok().filter(|_| now < expires)
    }

    /// Tickets for those of these orders that name a digest and peers. The node has them from now on.
    fn sign(
        &self,
        keys: &BTreeSet<Key>,
        orders: &BTreeMap<Key, Order>,
        reader: Option<&PeerId>,
        held: &mut HeldTickets,
        now: Timestamp,
    ) -> from_core::Tickets {
        let mut tickets = from_core::Tickets::new();
        for key in keys {
            let order = orders.get(key).filter(|order| !order.peers.is_empty());
            let Some(subject) = order.and_then(subject) else {
                held.remove(key);
                continue;
            };
            let Some((signer, expires)) = self.signer.as_ref().zip(self.expires(now)) else { continue };
            let Some(ticket) = reader.and_then(|reader| signer.sign(&subject, *reader, expires)) else { continue };
            held.insert(*key, HeldTicket { signer: signer.public().id(), expires });
            tickets.insert(*key, ticket);
        }
        tickets
    }

    /// Whether this ticket must be made anew, if that is any better.
    fn is_late(&self, held: HeldTicket, expires: u32, now: Timestamp) -> bool {
        // Agents that do not know its signer yet cannot learn the key any more.
        let unknown = self.published.as_ref().is_some_and(|published| !published.signers.contains(&held.signer));
        let renew = i64::from(held.expires) <= after(now, LATE).as_second();
        unknown || renew && u64::from(held.expires) + REST.as_secs() < u64::from(expires)
    }
}

/// What the ticket of an order is for.
fn subject(order: &Order) -> Option<Digest> {
    Some(ticket_subject(&order.image, &order.pin()?.digest.parse().ok()?))
}

/// The tickets in an object that fit its orders, with whom they are for.
pub(super) fn present(object: &NodeObject) -> Vec<(Key, TicketClaims)> {
    let claims = object.tickets.iter().filter_map(|(key, text)| Some((*key, TicketClaims::read(text)?)));
    let fits = |(key, claims): &(Key, TicketClaims)| {
        object.orders.get(key).and_then(subject).is_some_and(|subject| subject == claims.root)
    };
    claims.filter(fits).collect()
}

/// Those of them that this node can use.
pub(super) fn usable(present: Vec<(Key, TicketClaims)>, reader: Option<&PeerId>) -> HeldTickets {
    let own = present.into_iter().filter(|(_, claims)| Some(&claims.reader) == reader);
    own.map(|(key, TicketClaims { signer, expires, .. })| (key, HeldTicket { signer, expires })).collect()
}

impl Leading {
    /// Nodes read from each other as soon as the key of this signer is published.
    pub(crate) fn sign_with(&mut self, signer: TicketSigner) {
        self.tickets.signer = Some(signer);
    }

    /// Whether it is known if tickets can be made. Until then nothing is planned, or the first orders would all go upstream.
    pub(crate) fn knows_keys(&self) -> bool {
        self.tickets.signer.is_none() || self.tickets.tried
    }

    /// The keys that are published; none where the last try has failed. That happens every few minutes, and tickets are looked at
    /// then.
    pub(crate) fn see_keys(&mut self, hearing: &mut Hearing, published: Option<PublishedKeys>) {
        self.tickets.tried = true;
        if published.is_some() {
            self.tickets.published = published;
        }
        let relays = self.tickets.expires((hearing.clock)()).is_some();
        if hearing.relays != relays {
            match relays {
                true => tracing::info!("nodes are told to read images from each other"),
                false => tracing::info!("nodes are not told to read images from each other any more"),
            }
        }
        hearing.relay(relays);
        let names: Vec<String> = self.nodes.keys().filter(|_| relays).cloned().collect();
        names.iter().for_each(|name| self.look_for_tickets(hearing, name));
    }

    /// Has the open orders of a node written that need a ticket and have none that is good.
    pub(super) fn look_for_tickets(&mut self, hearing: &Hearing, name: &str) {
        let now = (hearing.clock)();
        let Some(expires) = self.tickets.expires(now) else { return };
        let Some(agent) = self.nodes.get_mut(name).filter(|agent| agent.reader.get().is_some()) else { return };
        if agent.retold.is_some_and(|at| Instant::now() < at + REST) {
            return;
        }
        let lacks = |key: &Key| agent.tickets.get(key).is_none_or(|held| self.tickets.is_late(*held, expires, now));
        let lacking: Vec<Key> = hearing.world.reading(name).into_iter().filter(lacks).collect();
        if !lacking.is_empty() {
            agent.retold = Some(Instant::now());
            self.owed.add(name, lacking.into_iter());
        }
    }

    /// The tickets that are written with these orders of a node.
    pub(super) fn tickets_for(
        &mut self,
        node: &str,
        keys: &BTreeSet<Key>,
        orders: &BTreeMap<Key, Order>,
        now: Timestamp,
    ) -> from_core::Tickets {
        let Some(agent) = self.nodes.get_mut(node) else { return from_core::Tickets::new() };
        self.tickets.sign(keys, orders, agent.reader.get(), &mut agent.tickets, now)
    }
}

#[cfg(test)]
mod tests;
