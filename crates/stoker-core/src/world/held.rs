//! An order as the World keeps it. The orders of one image differ in little but their time: what is the same is kept
//! once for all nodes, which makes a large world less than half as large. An [`Order`] goes in and comes out unchanged.
//!
//! The peers of an order are its own, and are kept beside. Each peer is kept once for all orders that name it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use jiff::Timestamp;

use super::room::weight;
use crate::model::{Ask, JobId, MOST_PEERS, NodeName, Order, PeerFacts, PeerRef, Pin};

/// How many kinds of orders of one image are looked through for those that nobody has any more.
const MANY: usize = 16;

/// The peers of an order. A box, because most orders have none.
type HeldPeers = Option<Box<[Option<Arc<PeerRef>>; MOST_PEERS]>>;

/// An order: its own times and peers, and what it shares with others. It derefs to the latter, in which the times are blank and there are no
/// peers.
#[derive(Clone, Debug)]
pub(super) struct HeldOrder {
    /// [`Order::asked`].
    pub(super) asked: Timestamp,
    /// [`Pin::asked`] of its digest, if it has one.
    pub(super) pinned: Option<Timestamp>,
    /// How much room it takes.
    pub(super) weight: usize,
    /// [`Order::peers`].
    peers: HeldPeers,
    shared: Arc<Order>,
}

impl Deref for HeldOrder {
    type Target = Order;
    fn deref(&self) -> &Order {
        &self.shared
    }
}

impl HeldOrder {
    /// The order as it came in.
    pub(super) fn order(&self) -> Order {
        let peers = self.peers().cloned().collect();
        let mut order = Order { asked: self.asked, peers, ..(*self.shared).clone() };
        if let (Some(asked), Ask::Fetch(Some(pin))) = (self.pinned, &mut order.ask) {
            pin.asked = asked;
        }
        order
    }

    /// The nodes that it may read from.
    pub(super) fn peers(&self) -> impl Iterator<Item = &PeerRef> + Clone {
        self.peers.iter().flat_map(|peers| peers.iter().flatten()).map(|peer| &**peer)
    }

    /// The digest to fetch, with its time.
    pub(super) fn pin(&self) -> Option<Pin> {
        Some(Pin { asked: self.pinned?, ..self.shared.ask.pin()?.clone() })
    }

    /// The jobs that have joined an order, where nothing else of it has changed and none of them is the first of its namespace.
    pub(super) fn joined(&self, now: &HeldOrder) -> Option<BTreeSet<JobId>> {
        let (old, new): (&Order, &Order) = (&self.shared, &now.shared);
        let same = (self.asked, self.pinned, old.hold, &old.ask, &old.terms, &old.needs)
            == (now.asked, now.pinned, new.hold, &new.ask, &new.terms, &new.needs);
        let same_source = (old.upstream, old.expect, old.past) == (new.upstream, new.expect, new.past);
        if !same
            || !same_source
            || !self.peers().eq(now.peers())
            || !old.jobs.is_subset(&new.jobs)
            || old.jobs.len() == new.jobs.len()
        {
            return None;
        }
        let joined: BTreeSet<JobId> = new.jobs.difference(&old.jobs).cloned().collect();
        let known = |id: &JobId| old.jobs.iter().any(|old| old.namespace() == id.namespace());
        joined.iter().all(known).then_some(joined)
    }

    /// Whether it is this order.
    pub(super) fn is(&self, order: &Order) -> bool {
        let Order { image, jobs, asked, ask, hold, terms, needs, upstream, peers, expect, past } = order;
        // Compared for every order of every object that is heard of: nothing is copied.
        fn said(ask: &Ask) -> Option<(&str, bool)> {
            ask.pin().map(|pin| (pin.digest.as_str(), pin.alone))
        }
        let same_ask = std::mem::discriminant(&self.ask) == std::mem::discriminant(ask)
            && self.pinned == ask.pin().map(|pin| pin.asked)
            && said(&self.ask) == said(ask);
        (self.asked, self.hold, self.upstream, self.expect, self.past) == (*asked, *hold, *upstream, *expect, *past)
            && same_ask
            && self.peers().eq(peers.iter().take(MOST_PEERS))
            && (&self.image, &self.jobs, &self.terms, &self.needs) == (image, jobs, terms, needs)
    }
}

/// What orders of one image share.
#[derive(Clone, Debug, Default)]
pub(super) struct Kinds(Vec<Arc<Order>>);

impl Kinds {
    /// Takes an order in.
    pub(super) fn hold(&mut self, mut order: Order, refs: &mut PeerRefs) -> HeldOrder {
        let weight = weight(&order);
        let mut named = std::mem::take(&mut order.peers).into_iter().map(|peer| refs.hold(peer)).peekable();
        let peers = named.peek().is_some().then(|| Box::new(std::array::from_fn(|_| named.next())));
        let asked = std::mem::replace(&mut order.asked, Timestamp::UNIX_EPOCH);
        let pinned = match &mut order.ask {
            Ask::Fetch(Some(pin)) => Some(std::mem::replace(&mut pin.asked, Timestamp::UNIX_EPOCH)),
            _ => None,
        };
        if let Some(shared) = self.0.iter().find(|there| ***there == order) {
            return HeldOrder { asked, pinned, weight, peers, shared: shared.clone() };
        }
        if self.0.len() >= MANY {
            self.0.retain(|there| Arc::strong_count(there) > 1);
        }
        // One that is not kept here is merely not shared.
        let shared = Arc::new(order);
        if self.0.len() < MANY {
            self.0.push(shared.clone());
        }
        HeldOrder { asked, pinned, weight, peers, shared }
    }
}

/// The digests that reports of one image name. Thousands of nodes report the same one: it is kept once.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedDigests(Vec<Arc<str>>);

impl SharedDigests {
    /// Makes the digest the one that others of its image have.
    pub(super) fn share(&mut self, digest: &mut Arc<str>) {
        if let Some(known) = self.0.iter().find(|known| *known == digest) {
            *digest = known.clone();
            return;
        }
        if self.0.len() >= MANY {
            self.0.retain(|known| Arc::strong_count(known) > 1);
        }
        // One that is not kept here is merely not shared.
        if self.0.len() < MANY {
            self.0.push(digest.clone());
        }
    }
}

/// Peers as orders name them.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerRefs(BTreeMap<NodeName, Vec<Arc<PeerRef>>>);

impl PeerRefs {
    fn hold(&mut self, peer: PeerRef) -> Arc<PeerRef> {
        let known = self.0.entry(peer.node.clone()).or_default();
        if let Some(there) = known.iter().find(|there| ***there == peer) {
            return there.clone();
        }
        known.retain(|there| Arc::strong_count(there) > 1);
        let shared = Arc::new(peer);
        known.push(shared.clone());
        shared
    }

    /// Whether an order names this node with another address or key.
    pub(super) fn has_other(&self, node: &str, facts: &PeerFacts) -> bool {
        let known = self.0.get(node).into_iter().flatten();
        known.filter(|there| Arc::strong_count(there) > 1).any(|there| !there.is_where(facts))
    }

    /// A node is gone: what no order names is forgotten.
    pub(super) fn forget(&mut self, node: &str) {
        if let Some(known) = self.0.get_mut(node) {
            known.retain(|there| Arc::strong_count(there) > 1);
            if known.is_empty() {
                self.0.remove(node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LoginId;
    use crate::model::testing::{at, order};
    use crate::model::{PeerKey, PeerPast};

    fn peer(node: &str, far: bool) -> PeerRef {
        PeerRef { node: node.into(), address: ([10, 0, 0, 1], 7).into(), key: PeerKey::new(node), far }
    }

    #[test]
    fn an_order_comes_out_as_it_went_in_and_equal_parts_are_kept_once() {
        let (mut kinds, mut refs) = (Kinds::default(), PeerRefs::default());
        let plain = order(1);
        let mut other = Order { asked: at(2), ..order(1) };
        other.terms.logins = vec![LoginId::new("1")];
        other.ask = Ask::Fetch(Some(Pin::new(at(0), "sha256:a")));
        let orders = [plain.clone(), Order { asked: at(7), ..plain }, other.clone(), Order { asked: at(9), ..other }];
        for order in &orders {
            let held = kinds.hold(order.clone(), &mut refs);
            assert!(held.is(order) && held.order() == *order, "{order:?}");
            assert_eq!(orders.iter().filter(|other| held.is(other)).count(), 1);
        }
        assert_eq!(kinds.0.len(), 2);
    }

    #[test]
    fn peers_are_the_orders_own_and_are_kept_once_each() {
        let (mut kinds, mut refs) = (Kinds::default(), PeerRefs::default());
        let reader = |peers: &[PeerRef]| Order { upstream: false, peers: peers.to_vec(), ..order(1) };
        let orders = [
            reader(&[peer("a", false), peer("b", false), peer("c", true), peer("d", false)]),
            reader(&[peer("b", false), peer("a", false)]),
            reader(&[peer("b", true)]),
            reader(&[]),
        ];
        let held: Vec<HeldOrder> = orders.iter().map(|order| kinds.hold(order.clone(), &mut refs)).collect();
        for (held, order) in held.iter().zip(&orders) {
            assert!(held.is(order) && held.order() == *order, "{order:?}");
            assert_eq!(orders.iter().filter(|other| held.is(other)).count(), 1);
        }
        assert_eq!((kinds.0.len(), refs.0.len(), refs.0["b"].len()), (1, 4, 2));
        for other in [Order { upstream: true, ..orders[3].clone() }, Order { expect: Some(7), ..orders[3].clone() }] {
            assert!(!held[3].is(&other));
        }
        let out = PeerPast { out: true, ..PeerPast::default() };
        assert!(!held[3].is(&Order { past: out, ..orders[3].clone() }));
        drop(held);
        ["a", "b", "c", "d"].into_iter().for_each(|node| refs.forget(node));
        assert!(refs.0.is_empty());
    }

    #[test]
    fn a_digest_is_kept_once_and_many_that_nobody_has_are_forgotten() {
        let mut digests = SharedDigests::default();
        let (mut one, mut same): (Arc<str>, Arc<str>) = ("sha256:a".into(), "sha256:a".into());
        digests.share(&mut one);
        digests.share(&mut same);
        assert!(Arc::ptr_eq(&one, &same));
        for other in 0..100 {
            let mut other: Arc<str> = format!("sha256:{other}").into();
            digests.share(&mut other);
        }
        let mut again: Arc<str> = "sha256:a".into();
        digests.share(&mut again);
        assert!(Arc::ptr_eq(&one, &again) && digests.0.len() <= MANY);
    }

    #[test]
    fn kinds_that_nobody_has_are_forgotten() {
        let (mut kinds, mut refs) = (Kinds::default(), PeerRefs::default());
        let kept = kinds.hold(order(0), &mut refs);
        for retries in 100..200 {
            let mut order = order(0);
            order.terms.pull.retries = retries;
            assert!(kinds.hold(order.clone(), &mut refs).is(&order));
        }
        assert!(kinds.0.len() <= MANY && kinds.0.iter().any(|there| Arc::ptr_eq(there, &kept.shared)));
    }
}
