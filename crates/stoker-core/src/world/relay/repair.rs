//! Orders under way whose node gets no bytes: it reads from somebody else, or goes upstream. Only on a complaint of an agent, only a few times for each ask, and
//! the ask stays: the attempt that is under way changes its source.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use jiff::Timestamp;

use super::Route;
use super::chain::{Chain, CopyLimit, Wanting, Way};
use super::revise::{bad_nodes, lacks_list, tries_until};
use super::settling::Settling;
use crate::model::{Ask, Key, NodeName, Order, Origin, PeerPast, Report};
use crate::reason::Reason;
use crate::world::World;
use crate::world::demand::answered;
use crate::world::held::HeldOrder;
use crate::world::orders::Changes;

/// How many times the list of an ask is replaced.
const MOST_LISTS: u8 = 2;

/// What an agent says of its source that somebody else must mend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::world) enum Complaint {
    /// None of its peers can serve it.
    NoSource,
    /// It goes upstream, and does not get on.
    SeedFails,
    /// It is much slower than its source, and others read from it or from its source.
    Lagging,
}

/// What an unfinished order has to complain of. A list that was replaced since then is an answer, until the agent says that it is no better.
pub(in crate::world) fn complaint(order: &HeldOrder, report: Option<&Report>) -> Option<Complaint> {
    let report = report.filter(|report| report.asked == order.asked);
    if order.hold || !matches!(order.ask, Ask::Fetch(_)) || report.is_some_and(Report::ended) {
        return None;
    }
    if lacks_list(order) {
        return Some(Complaint::NoSource);
    }
    let report = report?;
    match report.reason? {
        // It is about the sources that the order had before.
        Reason::Timeout if order.upstream && accuses_sources(report) => None,
        Reason::Timeout if !order.upstream && !accuses_sources(report) => None,
        Reason::NoSource | Reason::PeerLied | Reason::Timeout if !order.upstream => {
            let tried = order.peers().all(|peer| report.bad.contains(&peer.node));
            tried.then_some(Complaint::NoSource)
        }
        Reason::Lagging if !order.upstream => (!order.past.out).then_some(Complaint::Lagging),
        Reason::NoSource | Reason::PeerLied | Reason::Lagging | Reason::Removed => None,
        _ => order.upstream.then_some(Complaint::SeedFails),
    }
}

/// Whether an attempt that was not done in time had sources that gave next to nothing: then its agent names them.
fn accuses_sources(report: &Report) -> bool {
    matches!(report.from, Some(Origin::Peer(_))) && !report.bad.is_empty()
}

/// The same, as far as it counts yet.
pub(super) fn complaint_now(order: &HeldOrder, report: Option<&Report>, now: Timestamp) -> Option<Complaint> {
    let complaint = complaint(order, report)?;
    let early = complaint == Complaint::NoSource && !lacks_list(order) && tries_until(order, now).is_some();
    (!early).then_some(complaint)
}

/// Somebody who complains.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Complaining {
    /// Who has nothing to read from comes first.
    complaint: Complaint,
    /// Whether the node that it reads from complains as well. Where that one is helped, this one is.
    waits: bool,
    /// Of those, who has most of the image: it would fetch the least upstream.
    done: Reverse<u64>,
    name: NodeName,
    at: usize,
}

impl World {
    /// Answers complaints. Returns whether any order has changed.
    pub(in crate::world) fn repair(&mut self, now: Timestamp, changes: &mut Changes) -> bool {
        let failing = self.failing.iter().filter(|_| self.relay);
        let keys: BTreeSet<Key> = self.complaining.iter().chain(failing).copied().collect();
        let mut repaired = false;
        for key in keys {
            let mut settling = Settling::default();
            for Complaining { complaint, at, .. } in self.complaints(key, now) {
                if complaint == Complaint::NoSource && settling.until(self, at, key, now).is_some() {
                    continue;
                }
                if self.answer(complaint, at, key, now, changes) {
                    repaired = true;
                    settling = Settling::default();
                }
            }
        }
        repaired
    }

    /// When a node stops to serve an image that others complain about, so that one of those may go upstream; or when a complaint begins to count.
    pub(in crate::world) fn repairs_lapse(&self, now: Timestamp) -> Option<Timestamp> {
        let keys = self.complaining.iter().filter(|key| !self.complaints(**key, now).is_empty());
        let chains = keys.filter_map(|key| self.chains.by_key.get(key)).flatten();
        let lapses = chains.flat_map(|chains| chains.groups.values()).filter_map(Chain::lapse);
        let tries = self.complaining.iter().filter_map(|key| self.tries_until(*key, now));
        let settle = self.complaining.iter().filter_map(|key| self.settles_until(*key, now));
        lapses.filter(|lapse| *lapse > now).chain(tries).chain(settle).min()
    }

    /// When the first node that waits because its source was just told other sources waits no longer.
    fn settles_until(&self, key: Key, now: Timestamp) -> Option<Timestamp> {
        let mut settling = Settling::default();
        let complaints = self.complaints(key, now).into_iter();
        let sourceless = complaints.filter(|complaining| complaining.complaint == Complaint::NoSource);
        sourceless.filter_map(|complaining| settling.until(self, complaining.at, key, now)).min()
    }

    /// The slot that a node has its bytes from, also where it complains: the one that its agent names, if it is a listed one; else the first of its list.
    pub(super) fn source_of(&self, at: usize, key: Key) -> Option<usize> {
        let order = self.order_of(at, key)?;
        let report = self.slots.get(at)?.report(key).filter(|report| report.asked == order.asked);
        let named = match report.and_then(|report| report.from.as_ref()) {
            Some(Origin::Peer(name)) => order.peers().map(|peer| &peer.node).find(|node| *node == name),
            _ => None,
        };
        let name = named.or_else(|| order.peers().next().map(|peer| &peer.node))?;
        self.by_name.get(name).copied()
    }

    /// When the first complaint about this image begins to count that does not count yet.
    fn tries_until(&self, key: Key, now: Timestamp) -> Option<Timestamp> {
        let slots = self.demand.get(&key).into_iter().flat_map(|demand| demand.complaining());
        let early = slots.filter(|at| self.complaint_of(*at, key, now).is_none());
        early.filter_map(|at| tries_until(self.order_of(at, key)?, now)).min()
    }

    /// Who complains about an image.
    fn complaints(&self, key: Key, now: Timestamp) -> BTreeSet<Complaining> {
        let slots = self.demand.get(&key).into_iter().flat_map(|demand| demand.complaining());
        let complaining = slots.filter_map(|at| {
            let (complaint, order, report) = self.complaint_of(at, key, now)?;
            let works = complaint != Complaint::SeedFails || self.relay;
            let done = Reverse(report.map(|report| report.bytes.done).unwrap_or_default());
            let source = || self.complaint_of(self.source_of(at, key)?, key, now);
            let complaining = || Complaining {
                complaint,
                waits: source().is_some_and(|(of_source, ..)| of_source == Complaint::NoSource),
                done,
                name: self.slots.get(at).map(|slot| slot.name.clone()).unwrap_or_default(),
                at,
            };
            (works && !self.is_fixed(order)).then(complaining)
        });
        complaining.collect()
    }

    /// What the node in this slot complains of, with its order and what it says of that.
    pub(super) fn complaint_of(
        &self,
        at: usize,
        key: Key,
        now: Timestamp,
    ) -> Option<(Complaint, &HeldOrder, Option<&Report>)> {
        let slot = self.slots.get(at)?;
        let order = slot.orders.get(&key)?;
        let report = slot.report_to(Some(order), key).filter(|report| report.asked == order.asked);
        Some((complaint_now(order, report, now)?, order, report))
    }

    fn answer(&mut self, complaint: Complaint, at: usize, key: Key, now: Timestamp, changes: &mut Changes) -> bool {
        // Somebody else's complaint may have been the same.
        let Some((_, order, report)) = self.complaint_of(at, key, now).filter(|(still, ..)| *still == complaint) else {
            return false;
        };
        let digest = super::digest_under_way(order, report).map(str::to_owned);
        let bad = self.bad_of(at, key, now);
        self.prepare_chains(key, digest.as_deref(), now);
        let repair = &mut Repair { at, key, digest: digest.as_deref(), bad: &bad, now, changes };
        match complaint {
            Complaint::NoSource => self.find_source(repair),
            Complaint::SeedFails => self.replace_seed(repair),
            Complaint::Lagging => self.step_aside(repair),
        }
    }

    /// A node without source gets another list, or goes upstream.
    fn find_source(&mut self, repair: &mut Repair<'_>) -> bool {
        let Some(past) = self.past(repair.at, repair.key) else { return false };
        match self.way_again(repair.at, repair) {
            Way::Upstream { instead_of } => {
                self.promote(repair.at, repair);
                instead_of.into_iter().for_each(|seed| self.demote(seed, repair));
                true
            }
            Way::Peers(list) if past.lists < MOST_LISTS => {
                self.relist(repair.at, &list, repair);
                true
            }
            Way::Peers(_) | Way::NoSource => self.give_up_peers(past, repair),
        }
    }

    /// No list has helped. A node whose jobs promise nothing goes upstream; another one takes the place of a seed that is lost to it, or waits.
    fn give_up_peers(&mut self, past: PeerPast, repair: &mut Repair<'_>) -> bool {
        let Some(limit) = self.limit(repair.at, repair) else { return false };
        if !limit.hard {
            self.promote(repair.at, repair);
            return true;
        }
        // Only a promise keeps one that was a seed before from being one again.
        let Some(seed) = self.lost_seed(limit, repair).filter(|_| !past.seed) else { return false };
        self.promote(repair.at, repair);
        self.demote(seed, repair);
        true
    }

    /// A seed whose place a node with a promise may take: it can reach none, and nobody else can. While others read from a seed, or have read all of it,
    /// the network is parted. They would have to wait instead of this node then, and what the seed has fetched since would leave the registry again.
    fn lost_seed(&self, limit: CopyLimit, repair: &Repair<'_>) -> Option<usize> {
        let chain = self.own_chain(repair)?;
        let seeds = chain.working_seeds(repair.at);
        let lost = seeds.iter().all(|seed| repair.bad.contains(seed)) && !chain.has_whole(repair.at, &[]);
        let movable = |seed: usize| self.order_of(seed, repair.key).is_some_and(|order| !self.is_fixed(order));
        let yields = |seed: &usize| !chain.is_read(*seed) && chain.may_replace(repair.at, *seed, limit);
        seeds.into_iter().filter(|_| lost).find(|seed| yields(seed) && movable(*seed))
    }

    /// A seed that does not get on reads from others, if there is anybody to read from; or a reader whose jobs allow that goes upstream instead.
    fn replace_seed(&mut self, repair: &mut Repair<'_>) -> bool {
        let Some(chain) = self.own_chain(repair) else { return false };
        let heirs = chain.heirs();
        if heirs.is_empty() {
            return false;
        }
        let served = !chain.working_seeds(repair.at).is_empty() || chain.has_whole(repair.at, repair.bad);
        if !served {
            let Some(heir) = heirs.into_iter().find(|heir| self.may_inherit(*heir, repair)) else { return false };
            self.promote(heir, repair);
        }
        self.demote(repair.at, repair);
        true
    }

    /// Whether this reader may go upstream instead of the seed that complains.
    fn may_inherit(&self, heir: usize, repair: &Repair<'_>) -> bool {
        let movable = self.order_of(heir, repair.key).is_some_and(|order| !self.is_fixed(order));
        let allowed = || {
            let limit = self.limit(heir, repair)?;
            Some(self.own_chain(repair)?.may_follow(heir, repair.at, limit))
        };
        movable && allowed().unwrap_or(false)
    }

    /// Nobody reads from a node that is too slow any more: who did reads from its source, and it reads from somebody with nothing else to do.
    fn step_aside(&mut self, repair: &mut Repair<'_>) -> bool {
        let Some(chain) = self.own_chain(repair) else { return false };
        let source = chain.member(repair.at).and_then(|member| member.reads);
        let readers = chain.readers(repair.at);
        self.change(repair.at, repair, |order| order.past.out = true);
        for reader in readers {
            let Some(order) = self.order_of(reader, repair.key) else { continue };
            if order.past.lists >= MOST_LISTS || self.is_fixed(order) {
                continue;
            }
            let bad = self.bad_of(reader, repair.key, repair.now);
            let list = self.own_chain(repair).and_then(|chain| {
                let serves = |at: &usize| chain.member(*at).is_some_and(|member| member.serves);
                let source = source.filter(|at| !bad.contains(at) && serves(at) && !chain.is_below(*at, reader))?;
                let wanting = self.wanting(chain, reader, &bad);
                Some(chain.list(&wanting, source))
            });
            if let Some(list) = list {
                self.relist(reader, &list, repair);
            }
        }
        if let Way::Peers(list) = self.way_again(repair.at, repair)
            && self.past(repair.at, repair.key).is_some_and(|past| past.lists < MOST_LISTS)
        {
            self.relist(repair.at, &list, repair);
        }
        true
    }

    pub(super) fn order_of(&self, at: usize, key: Key) -> Option<&HeldOrder> {
        let slot = self.slots.get(at)?;
        slot.orders.get(&key).filter(|order| !answered(order, slot.report(key)))
    }

    fn past(&self, at: usize, key: Key) -> Option<PeerPast> {
        self.order_of(at, key).map(|order| order.past)
    }

    /// The slots of the nodes that could not serve this one.
    fn bad_of(&self, at: usize, key: Key, now: Timestamp) -> Vec<usize> {
        let report = self.slots.get(at).and_then(|slot| slot.report(key));
        let bad = self.order_of(at, key).map(|order| bad_nodes(order, report, now)).unwrap_or_default();
        bad.iter().filter_map(|name| self.by_name.get(name).copied()).collect()
    }

    fn own_chain(&self, repair: &Repair<'_>) -> Option<&Chain> {
        self.chain(repair.at, repair.key, repair.digest)
    }

    fn wanting<'a>(&self, chain: &Chain, at: usize, bad: &'a [usize]) -> Wanting<'a> {
        let zone = self.slots.get(at).map_or(usize::MAX, |slot| chain.zone_or_none(slot.zone()));
        let class = chain.member(at).and_then(|member| member.class);
        Wanting { at, zone, class, relays: true, may_seed: false, bad }
    }

    /// From when on copies count for an order under way.
    fn since_of(&self, order: &HeldOrder, at: usize, now: Timestamp) -> Timestamp {
        let jobs = order.jobs.iter().filter_map(|id| self.jobs.get(id));
        jobs.map(|state| self.since(&state.job, at, now)).max().unwrap_or(order.asked)
    }

    /// How many nodes may go upstream, as far as the jobs of an order under way say.
    fn limit(&self, at: usize, repair: &Repair<'_>) -> Option<CopyLimit> {
        let order = self.order_of(at, repair.key)?;
        Some(CopyLimit::of(&order.terms.pull, self.since_of(order, at, repair.now)))
    }

    /// How a node whose order is under way gets the image.
    fn way_again(&self, at: usize, repair: &Repair<'_>) -> Way {
        let Some(order) = self.order_of(at, repair.key) else { return Way::NoSource };
        let bad = self.bad_of(at, repair.key, repair.now);
        let route = Route {
            at,
            key: repair.key,
            digest: repair.digest,
            pull: &order.terms.pull,
            since: self.since_of(order, at, repair.now),
            past: order.past,
            bad: &bad,
        };
        self.way(&route, repair.now)
    }

    /// A reader goes upstream from now on.
    fn promote(&mut self, at: usize, repair: &mut Repair<'_>) {
        let now = repair.now;
        self.change(at, repair, |order| {
            (order.upstream, order.peers, order.past.mended) = (true, Vec::new(), Some(now));
        });
    }

    /// A seed reads from others from now on.
    fn demote(&mut self, at: usize, repair: &mut Repair<'_>) {
        self.change(at, repair, |order| (order.upstream, order.past.seed) = (false, true));
        if let Way::Peers(list) = self.way_again(at, repair) {
            self.relist(at, &list, repair);
        }
    }

    /// The same where a new order takes the place of a seed.
    pub(in crate::world) fn demote_seed(&mut self, at: usize, key: Key, now: Timestamp, changes: &mut Changes) {
        let Some(order) = self.order_of(at, key) else { return };
        let report = self.slots.get(at).and_then(|slot| slot.report(key));
        let digest = super::digest_under_way(order, report).map(str::to_owned);
        self.prepare_chains(key, digest.as_deref(), now);
        self.demote(at, &mut Repair { at, key, digest: digest.as_deref(), bad: &[], now, changes });
    }

    /// An order has this list from now on.
    fn relist(&mut self, at: usize, list: &[usize], repair: &mut Repair<'_>) {
        let Some(mut order) = self.order_of(at, repair.key).map(HeldOrder::order) else { return };
        self.tell_peers(&mut order, (at, repair.key), list);
        order.past.lists = order.past.lists.saturating_add(1);
        order.past.mended = Some(repair.now);
        self.write(at, repair, order);
    }

    fn change(&mut self, at: usize, repair: &mut Repair<'_>, change: impl FnOnce(&mut Order)) {
        let Some(mut order) = self.order_of(at, repair.key).map(HeldOrder::order) else { return };
        change(&mut order);
        self.write(at, repair, order);
    }

    fn write(&mut self, at: usize, repair: &mut Repair<'_>, order: Order) {
        self.set_order(at, repair.key, Some(order));
        repair.changes.entry(at).or_default().insert(repair.key);
    }
}

/// One complaint while it is answered.
struct Repair<'a> {
    at: usize,
    key: Key,
    digest: Option<&'a str>,
    bad: &'a [usize],
    now: Timestamp,
    changes: &'a mut Changes,
}
