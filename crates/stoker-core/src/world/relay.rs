//! From whom each node gets an image. The chains of an image, one a peer group, follow from the orders and reports that are known: they are made when a
//! plan first needs them, kept up to date while it hands out, and forgotten with it. So there is nothing that could differ in a World made
//! anew.
//!
//! Nodes of different platforms have different layers of an image, and are in chains of their own.

mod chain;
mod handing;
mod repair;
mod revise;
mod sequence;
mod settling;
mod usual;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

pub(super) use chain::Way;
use chain::{Chain, CopyLimit, Member, Part, Wanting};
use repair::complaint_now;
pub(super) use repair::{Complaint, complaint};
use revise::bad_nodes;
pub(super) use revise::give_registry_back;
pub(super) use sequence::sources_first;
use usual::UsualRate;

use super::demand::answered;
use super::held::HeldOrder;
use super::seat::{SeatStanding, Wait};
use super::seats::JobSeats;
use super::{NodeSlot, World};
use crate::model::{
    Ask, Job, JobId, Key, Node, NodeName, Order, Origin, PEERS, PeerFacts, PeerPast, PeerRef, Phase, Pull, Report,
    after,
};
use crate::pace::LINGER;
use crate::reason::{Readable, Reason};

/// A node is taken for a liar when so many others say that it sent wrong bytes: a single one could say what it likes.
const ACCUSERS: usize = 2;

/// The chains that the present plan has needed so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Chains {
    by_key: BTreeMap<Key, Vec<DigestChains>>,
    /// The time of the plan.
    now: Timestamp,
}

/// The chains of one digest of an image, by peer group. Without a digest nobody can be read from, and all copies count.
#[derive(Clone, Debug)]
struct DigestChains {
    digest: Option<String>,
    groups: BTreeMap<String, Chain>,
}

impl Chains {
    pub(super) fn clear(&mut self) {
        self.by_key.clear();
    }

    fn get(&self, key: Key, digest: Option<&str>) -> Option<&BTreeMap<String, Chain>> {
        let chains = self.by_key.get(&key)?.iter().find(|chains| chains.digest.as_deref() == digest)?;
        Some(&chains.groups)
    }
}

impl CopyLimit {
    fn of(pull: &Pull, since: Timestamp) -> Self {
        let (copies, hard) = pull.copies();
        Self { copies, hard, since }
    }
}

/// What a node wants that is to get an image.
pub(super) struct Route<'a> {
    pub(super) at: usize,
    pub(super) key: Key,
    pub(super) digest: Option<&'a str>,
    pub(super) pull: &'a Pull,
    /// Copies that were asked for before this time do not count.
    pub(super) since: Timestamp,
    pub(super) past: PeerPast,
    /// The slots of peers that could not serve it.
    pub(super) bad: &'a [usize],
}

impl NodeSlot {
    /// What is known of the peer, if its agent can read from others and serve them.
    pub(super) fn peer(&self) -> Option<&PeerFacts> {
        self.peer.as_deref().filter(|_| self.features.contains(PEERS))
    }

    /// Which chain of an image it belongs to: that of its peer group and platform.
    fn peer_group(&self) -> Option<Cow<'_, str>> {
        let node = self.node.as_ref()?;
        let group = node.peer_group()?;
        Some(match node.platform() {
            // No label has a space.
            Some((os, architecture)) => format!("{group} {os} {architecture}").into(),
            None => group.into(),
        })
    }

    fn zone(&self) -> &str {
        self.node.as_ref().map(|node| node.zone()).unwrap_or_default()
    }
}

/// The digest that an unfinished order brings, as far as it is known.
fn digest_under_way<'a>(order: &'a HeldOrder, report: Option<&'a Report>) -> Option<&'a str> {
    let ordered = order.ask.pin().map(|pin| pin.digest.as_str());
    let said = || report.filter(|report| report.asked == order.asked);
    ordered.or_else(|| said()?.pin.as_ref().map(|pin| pin.digest.as_str())).or_else(|| said()?.digest.as_deref())
}

/// The nodes that the agent of this node accuses of wrong bytes for an image. Only nodes count that its order names, or may have named: an order whose
/// sources were replaced does not say any more which ones it had.
fn accused(slot: &NodeSlot, key: Key) -> impl Iterator<Item = &NodeName> {
    let order = slot.orders.get(&key);
    let accuses = |report: &&Report| report.reason == Some(Reason::PeerLied);
    let report = slot.report(key).filter(accuses).zip(order).filter(|(report, order)| report.asked == order.asked);
    report.into_iter().flat_map(|(report, order)| {
        let may_name =
            move |name: &&NodeName| order.past.mended.is_some() || order.peers().any(|peer| peer.node == **name);
        report.bad.iter().filter(may_name)
    })
}

impl World {
    /// Whether nodes are told to read from each other. If not, an image whose upstream copies are limited reaches that many nodes and no more.
    pub fn relay(&mut self, relay: bool) {
        if self.relay != relay {
            self.relay = relay;
            self.touch_everything();
        }
    }

    /// The open orders of a node that name a digest and peers to read it from: those that need a ticket.
    pub fn reading(&self, node: &str) -> Vec<Key> {
        let Some(slot) = self.by_name.get(node).and_then(|&at| self.slots.get(at)) else { return Vec::new() };
        let reads = |key: &Key, order: &HeldOrder| {
            order.pinned.is_some() && order.peers().next().is_some() && !answered(order, slot.report(*key))
        };
        slot.orders.iter().filter(|(key, order)| reads(key, order)).map(|(key, _)| *key).collect()
    }

    /// Whether it matters for this pull who else has the image.
    fn is_routed(&self, pull: &Pull) -> bool {
        self.relay || pull.copies().1
    }

    /// The peer in a slot, where nodes read from each other at all.
    pub(super) fn peer(&self, at: usize) -> Option<&PeerFacts> {
        self.slots.get(at).filter(|_| self.relay)?.peer()
    }

    /// Which other nodes the node in this slot may read from.
    pub(super) fn readable(&self, at: usize) -> Readable {
        let node = self.slots.get(at).and_then(|slot| slot.node.as_ref());
        match node.and_then(Node::peer_group) {
            _ if !self.relay => Readable::Off,
            None => Readable::NoGroup,
            Some(_) if self.peer(at).is_none() => Readable::Unable,
            Some(group) => Readable::Group(group.into()),
        }
    }

    /// The bytes a second that a node may receive, as far as that is known.
    fn class(&self, at: usize, pull: &Pull) -> Option<u64> {
        [self.peer(at).and_then(|peer| peer.rate), pull.bandwidth].into_iter().flatten().min()
    }

    /// Makes the chains of an image, if the plan has not needed them yet.
    pub(super) fn prepare_chains(&mut self, key: Key, digest: Option<&str>, now: Timestamp) {
        self.chains.now = now;
        if self.chains.get(key, digest).is_none() {
            let groups = self.chains_of(key, digest, now);
            let chains = DigestChains { digest: digest.map(str::to_owned), groups };
            self.chains.by_key.entry(key).or_default().push(chains);
        }
    }

    fn chains_of(&self, key: Key, digest: Option<&str>, now: Timestamp) -> BTreeMap<String, Chain> {
        #[derive(Default)]
        struct Found {
            chain: Chain,
            members: Vec<Member>,
            rates: Vec<(usize, u64)>,
            accused: BTreeMap<usize, BTreeSet<usize>>,
        }
        let mut groups: BTreeMap<String, Found> = BTreeMap::new();
        for (at, slot) in self.slots.iter().enumerate() {
            let Some(group) = slot.peer_group() else { continue };
            if !groups.contains_key(&*group) {
                groups.insert(group.to_string(), Found::default());
            }
            let Some(found) = groups.get_mut(&*group) else { continue };
            found.rates.extend(self.peer(at).and_then(|peer| Some((at, peer.rate?))));
            let zone = found.chain.zone(slot.zone());
            found.members.extend(self.member(at, slot, (key, digest), zone, now));
            for liar in accused(slot, key).filter_map(|name| self.by_name.get(name)).filter(|liar| **liar != at) {
                found.accused.entry(*liar).or_default().insert(at);
            }
        }
        let chains = groups.into_iter().map(|(group, mut found)| {
            found.chain.rates = UsualRate::of(found.rates);
            let liars = found.accused.iter().filter(|(_, accusers)| accusers.len() >= ACCUSERS).map(|(at, _)| *at);
            found.chain.distrust(liars.collect());
            found.chain.fill(found.members);
            (group, found.chain)
        });
        chains.collect()
    }

    /// What the node in a slot is in the chain of this digest.
    fn member(
        &self,
        at: usize,
        slot: &NodeSlot,
        (key, digest): (Key, Option<&str>),
        zone: usize,
        now: Timestamp,
    ) -> Option<Member> {
        let order = slot.orders.get(&key);
        let report = slot.report_to(order, key);
        let open = order.filter(|order| matches!(order.ask, Ask::Fetch(_)) && !order.hold && !answered(order, report));
        let peer = self.peer(at);
        let alive = slot.agent && slot.is_ready();
        let mut member = Member {
            at,
            name: slot.name.clone(),
            zone,
            class: order.map_or(peer.and_then(|peer| peer.rate), |order| self.class(at, &order.terms.pull)),
            uplink: peer.and_then(|peer| peer.sent),
            asked: order.map(|order| order.asked).unwrap_or_default(),
            part: Part::Reader,
            relays: peer.is_some(),
            serves: peer.is_some() && alive && digest.is_some(),
            reads: None,
            done: report.map(|report| report.bytes.done).unwrap_or_default(),
            may_seed: order.is_none_or(|order| !order.past.seed),
            most_copies: order.map_or(usize::MAX, |order| CopyLimit::of(&order.terms.pull, order.asked).most()),
        };
        if let Some(order) = open {
            let brings = digest_under_way(order, report);
            // An answer that is still to come may be this digest.
            if digest.is_some() && brings.is_some() && brings != digest {
                return None;
            }
            let complaint = complaint_now(order, report, now);
            member.serves &= brings == digest && !order.past.out && complaint != Some(Complaint::NoSource);
            if order.upstream {
                let failed = !alive || complaint == Some(Complaint::SeedFails);
                member.part = Part::Seed { failed, fixed: failed && self.is_fixed(order) };
                member.serves &= !failed;
            } else {
                member.reads = self.reads(order, report, now);
            }
            return Some(member);
        }
        let succeeded = |report: &&Report| report.phase == Phase::Succeeded && report.digest.as_deref() == digest;
        let question = slot.orders.get(&key.question());
        let found = || question.and_then(|_| slot.report_to(question, key.question()));
        let pulled = report.filter(|_| order.is_some()).filter(succeeded);
        let whole = pulled.or_else(|| found().filter(succeeded)).filter(|_| digest.is_some())?;
        let keeps = peer.is_some_and(|peer| peer.keeps);
        // By the agent's clock: one that is ahead of ours proves nothing.
        let until = whole.finished.filter(|finished| *finished <= now).map(|finished| after(finished, LINGER));
        member.serves &= keeps || until.is_some_and(|until| now < until);
        let seeded = pulled.is_some() && order.is_some_and(|order| order.upstream);
        member.part = Part::Whole { seeded, until: until.filter(|_| !keeps) };
        Some(member)
    }

    /// The slot that an order reads from: the one that its agent names, if it is a listed one; else the first that may serve it.
    fn reads(&self, order: &HeldOrder, report: Option<&Report>, now: Timestamp) -> Option<usize> {
        let bad = bad_nodes(order, report, now);
        let report = report.filter(|report| report.asked == order.asked);
        let source =
            report.filter(|report| report.reason != Some(Reason::NoSource)).and_then(|report| report.from.as_ref());
        let mut listed = order.peers().map(|peer| &peer.node).filter(|node| !bad.contains(node));
        let named = match source {
            Some(Origin::Peer(name)) => listed.clone().find(|node| *node == name),
            _ => None,
        };
        named.or_else(|| listed.next()).and_then(|name| self.by_name.get(name).copied())
    }

    /// Whether this order stays as it is, because nothing is decided about the jobs that it names.
    fn is_fixed(&self, order: &HeldOrder) -> bool {
        // The job that is being planned is not among the known ones at that moment.
        let moves = |id: &JobId| !self.is_frozen(id) && self.jobs.get(id).is_none_or(|state| self.moves(&state.job));
        !order.jobs.iter().any(moves)
    }

    /// The chains are up to date with what the node in this slot was ordered, or reports, about an image.
    pub(super) fn refresh_chains(&mut self, at: usize, key: Key) {
        if !self.chains.by_key.contains_key(&key) {
            return;
        }
        let Some(mut all) = self.chains.by_key.remove(&key) else { return };
        let slot = self.slots.get(at);
        let group = slot.and_then(|slot| slot.peer_group());
        for chains in &mut all {
            if let Some((chain, slot)) = group.as_deref().and_then(|group| chains.groups.get_mut(group)).zip(slot) {
                let zone = chain.zone(slot.zone());
                let member = self.member(at, slot, (key, chains.digest.as_deref()), zone, self.chains.now);
                chain.put(at, member);
            }
        }
        self.chains.by_key.insert(key, all);
    }

    /// How a node gets an image.
    pub(super) fn way(&self, route: &Route<'_>, now: Timestamp) -> Way {
        let limit = CopyLimit::of(route.pull, route.since);
        let alone = if limit.copies > 0 { Way::Upstream { instead_of: None } } else { Way::NoSource };
        let Some(slot) = self.slots.get(route.at) else { return alone };
        let relays = self.peer(route.at).is_some() && route.digest.is_some();
        let Some(group) = slot.peer_group().filter(|_| relays || limit.hard) else { return alone };
        let way = |chain: &Chain| {
            let zone = chain.zone_or_none(slot.zone());
            let class = self.class(route.at, route.pull);
            let wanting = Wanting { at: route.at, zone, class, relays, may_seed: !route.past.seed, bad: route.bad };
            chain.way(&wanting, limit)
        };
        let prepared = self.chains.get(route.key, route.digest).map(|groups| groups.get(&*group).map(&way));
        let made = || self.chains_of(route.key, route.digest, now).get(&*group).map(&way);
        prepared.unwrap_or_else(made).unwrap_or(alone)
    }

    /// The chain of a node, if it was prepared.
    fn chain(&self, at: usize, key: Key, digest: Option<&str>) -> Option<&Chain> {
        self.chains.get(key, digest)?.get(&*self.slots.get(at)?.peer_group()?)
    }

    /// A new order is told where to get the image from. Returns the slot of a seed whose place it takes.
    pub(super) fn route(
        &mut self,
        order: &mut Order,
        (at, key): (usize, Key),
        since: Timestamp,
        now: Timestamp,
    ) -> Option<usize> {
        if !self.is_routed(&order.terms.pull) {
            return None;
        }
        let digest = order.pin().map(|pin| pin.digest.clone());
        self.prepare_chains(key, digest.as_deref(), now);
        let (pull, past) = (&order.terms.pull, PeerPast::default());
        let way = self.way(&Route { at, key, digest: digest.as_deref(), pull, since, past, bad: &[] }, now);
        match way {
            Way::Upstream { instead_of } => return instead_of,
            Way::Peers(list) => self.tell_peers(order, (at, key), &list),
            Way::NoSource => order.upstream = false,
        }
        None
    }

    /// The order reads from the nodes in these slots.
    fn tell_peers(&self, order: &mut Order, (at, key): (usize, Key), list: &[usize]) {
        let zone = self.slots.get(at).map(NodeSlot::zone);
        let refs = list.iter().filter_map(|at| self.slots.get(*at)).filter_map(|slot| {
            let facts = slot.peer()?;
            let (node, far) = (slot.name.clone(), Some(slot.zone()) != zone);
            Some(PeerRef { node, address: facts.socket(), key: facts.key.clone(), far })
        });
        order.peers = refs.collect();
        order.upstream = false;
        // What the sources of this node say of themselves is not what it measures them by.
        let chain = self.chain(at, key, order.pin().map(|pin| pin.digest.as_str()));
        let usual = chain.and_then(|chain| chain.rates.besides(list));
        order.expect = usual.map(|usual| order.terms.pull.bandwidth.map_or(usual, |limit| limit.min(usual)));
    }

    /// Why an open node waits for this image because nobody can serve it.
    pub(super) fn source_wait(
        &self,
        job: &Job,
        image: usize,
        at: usize,
        digest: Option<&str>,
        now: Timestamp,
    ) -> Option<Wait> {
        if !self.is_routed(&job.pull) {
            return None;
        }
        let key = job.images.get(image)?.reference.as_ref().ok()?.key();
        let since = self.since(job, at, now);
        let route = Route { at, key, digest, pull: &job.pull, since, past: PeerPast::default(), bad: &[] };
        let waits = self.way(&route, now) == Way::NoSource && !self.may_join(job, at, key, now);
        waits.then_some(Wait { reason: Reason::NoSource, image })
    }

    /// Makes the chains of the images that a job wants, as far as their digests are known.
    pub(super) fn prepare_job<'a>(
        &mut self,
        job: &Job,
        digests: impl Iterator<Item = (usize, Option<&'a str>)>,
        now: Timestamp,
    ) {
        if !self.is_routed(&job.pull) {
            return;
        }
        // Of a digest that is not known yet it matters only how many copies were promised.
        let (_, hard) = job.pull.copies();
        for (image, digest) in digests.filter(|(_, digest)| hard || digest.is_some()) {
            if let Some(Ok(reference)) = job.images.get(image).map(|image| &image.reference) {
                self.prepare_chains(reference.key(), digest, now);
            }
        }
    }

    /// When a node stops to serve an image that nodes of this job wait for: then one of them may go upstream.
    pub(super) fn sources_lapse(&self, job: &Job, seats: &JobSeats, now: Timestamp) -> Option<Timestamp> {
        let waits =
            |standing: SeatStanding| matches!(standing, SeatStanding::Open(wait) if wait.reason == Reason::NoSource);
        if !self.is_routed(&job.pull) || !seats.iter().any(|(_, seat)| waits(seat.standing)) {
            return None;
        }
        let chains = job.keys().filter_map(|key| self.chains.by_key.get(&key)).flatten();
        chains.flat_map(|chains| chains.groups.values()).filter_map(Chain::lapse).filter(|lapse| *lapse > now).min()
    }
}
