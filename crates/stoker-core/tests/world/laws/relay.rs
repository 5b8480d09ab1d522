//! Who reads from whom, and who goes upstream.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use stoker_core::model::{Node, Order, Report, after};
use stoker_core::pace::{LINGER, NEW_ADDRESS, SETTLES};
use stoker_core::{Ask, JobId, Key, Origin, PeerFacts, Phase, Reason};

use super::{config, each_plan};
use crate::history::{Happening, history};
use crate::sim::{NODES, Sim, changes};

/// A node with an order for an image that has no answer.
struct Fetching {
    node: &'static str,
    key: Key,
    order: Order,
    report: Option<Report>,
    /// It was just told a new address of a node that it reads from: what it says may be about the old one.
    tries: bool,
}

impl Fetching {
    fn digest(&self) -> Option<&str> {
        let said = || self.report.as_ref()?.pin.as_ref().map(|pin| pin.digest.as_str());
        let brings = || self.report.as_ref()?.digest.as_deref();
        self.order.pin().map(|pin| pin.digest.as_str()).or_else(said).or_else(brings)
    }

    fn reason(&self) -> Option<Reason> {
        self.report.as_ref().and_then(|report| report.reason)
    }

    fn names_bad(&self, node: &str) -> bool {
        self.report.iter().flat_map(|report| &report.bad).any(|bad| &**bad == node)
    }

    fn is_bad(&self, node: &str) -> bool {
        !self.tries && self.names_bad(node)
    }

    /// What its agent names, or the first of its list that may serve it.
    fn reads(&self) -> Option<&str> {
        let mut listed = self.order.peers.iter().map(|peer| &*peer.node).filter(|node| !self.is_bad(node));
        let from = self.report.as_ref().filter(|report| report.reason != Some(Reason::NoSource));
        let named = match from.and_then(|report| report.from.as_ref()) {
            Some(Origin::Peer(name)) => listed.clone().find(|node| *node == &**name),
            _ => None,
        };
        named.or_else(|| listed.next())
    }

    fn complains(&self) -> bool {
        let reason = matches!(self.reason(), Some(Reason::NoSource | Reason::PeerLied)) || self.starved_in_time();
        reason && !self.tries && !self.order.upstream && self.order.peers.iter().all(|peer| self.is_bad(&peer.node))
    }

    /// Whether an attempt was not done in time because of the sources that its agent names.
    fn starved_in_time(&self) -> bool {
        let named = |report: &Report| matches!(report.from, Some(Origin::Peer(_))) && !report.bad.is_empty();
        self.reason() == Some(Reason::Timeout) && self.report.as_ref().is_some_and(named)
    }

    /// The node that its bytes come from, or came from.
    fn source(&self) -> Option<&str> {
        let mut listed = self.order.peers.iter().map(|peer| &*peer.node);
        let named = match self.report.as_ref().and_then(|report| report.from.as_ref()) {
            Some(Origin::Peer(name)) => listed.clone().find(|node| *node == &**name),
            _ => None,
        };
        named.or_else(|| listed.next())
    }

    /// Whether it accuses this node of wrong bytes, and may have read from it.
    fn accuses(&self, node: &str) -> bool {
        let may_read = self.order.past.mended.is_some() || self.order.peers.iter().any(|peer| &*peer.node == node);
        self.reason() == Some(Reason::PeerLied) && self.names_bad(node) && self.node != node && may_read
    }

    fn assert_told_where_its_sources_are(&self, sim: &Sim) {
        let known = |id: &JobId| sim.world.job(id).is_some_and(|job| job.runs() && job.unseen.is_none());
        if !self.order.jobs.iter().any(|id| known(id) && !sim.stands_still(id)) {
            return;
        }
        for peer in &self.order.peers {
            let agent = sim.agents.get(&*peer.node).filter(|agent| agent.features.contains("peers"));
            let facts = agent.and_then(|agent| agent.peer.as_ref());
            assert!(facts.is_none_or(|facts| peer.is_where(facts)), "{} reads from {peer:?}, at {facts:?}", self.node);
        }
    }

    /// A seed that is there and gets on.
    fn works(&self, sim: &Sim) -> bool {
        let trouble = self.reason().filter(|reason| {
            let of_peers = matches!(reason, Reason::NoSource | Reason::PeerLied | Reason::Lagging | Reason::Removed);
            !of_peers && !self.starved_in_time()
        });
        self.order.upstream && is_ready(sim, self.node) && trouble.is_none()
    }
}

fn is_ready(sim: &Sim, node: &str) -> bool {
    sim.nodes.get(node).is_some_and(|node| node.ready)
}

fn group<'a>(sim: &'a Sim, node: &str) -> Option<&'a str> {
    sim.nodes.get(node).and_then(Node::peer_group)
}

fn serves(sim: &Sim, node: &str) -> bool {
    let agent = sim.agents.get(node).filter(|agent| agent.features.contains("peers"));
    is_ready(sim, node) && agent.is_some_and(|agent| agent.peer.is_some())
}

/// A report of a later ask is about another order.
fn report(sim: &Sim, node: &str, key: Key, order: &Order) -> Option<Report> {
    sim.agents.get(node)?.reports.get(&key).filter(|report| report.asked <= order.asked).cloned()
}

fn fetching(sim: &Sim) -> Vec<Fetching> {
    let mut all = Vec::new();
    for node in NODES {
        for (key, order) in sim.world.orders(node).into_iter().flatten() {
            let report = report(sim, node, key, &order).filter(|report| report.asked == order.asked);
            let open = !order.hold && report.as_ref().is_none_or(|report| !report.ended());
            if open && matches!(order.ask, Ask::Fetch(_)) {
                let tries =
                    order.past.moved.is_some_and(|moved| moved <= sim.now && sim.now < after(moved, NEW_ADDRESS));
                all.push(Fetching { node, key, order, report, tries });
            }
        }
    }
    all
}

/// Whether somebody above this node was just given another source: its bytes are waited for.
fn settles(sim: &Sim, all: &[Fetching], one: &Fetching) -> bool {
    let mut at = one;
    for _ in 0..NODES.len() {
        let source = at.source().and_then(|name| all.iter().find(|other| (other.node, other.key) == (name, one.key)));
        let Some(source) = source else { return false };
        let mended =
            source.order.past.mended.is_some_and(|mended| mended <= sim.now && sim.now < after(mended, SETTLES));
        if mended && is_ready(sim, source.node) && sim.agents.contains_key(source.node) {
            return true;
        }
        if !source.complains() {
            return false;
        }
        at = source;
    }
    false
}

/// The nodes that fetch the same in the same peer group.
fn chain_of<'a>(sim: &Sim, all: &'a [Fetching], of: &Fetching) -> Vec<&'a Fetching> {
    let same = |other: &&Fetching| {
        other.key == of.key && group(sim, other.node).is_some() && group(sim, other.node) == group(sim, of.node)
    };
    all.iter().filter(same).filter(|other| other.digest() == of.digest()).collect()
}

/// What a plan says about the sources of nodes, where that is new. An order that gets a login, for example, keeps its sources, and so does one whose
/// sources have moved.
fn routed<'a>(before: &[Fetching], after: &'a [Fetching]) -> Vec<&'a Fetching> {
    let old = |new: &Fetching| before.iter().find(|old| (old.node, old.key) == (new.node, new.key));
    let same = |new: &Fetching| {
        let names = |of: &Fetching| of.order.peers.iter().map(|peer| peer.node.clone()).collect::<Vec<_>>();
        old(new).is_some_and(|old| (old.order.upstream, names(old)) == (new.order.upstream, names(new)))
    };
    after.iter().filter(|new| !same(new)).collect()
}

proptest! {
    #![proptest_config(config())]

    /// Agents move inside their lists; what a plan tells them never closes a circle.
    #[test]
    fn nobody_is_told_to_read_from_itself(history in history()) {
        each_plan(&history, |before, after, _| {
            let (was, is) = (fetching(before), fetching(after));
            for new in routed(&was, &is) {
                let chain = chain_of(after, &is, new);
                let reads: BTreeMap<&str, &str> = chain.iter().filter_map(|one| Some((one.node, one.reads()?))).collect();
                let mut next = reads.get(new.node);
                for _ in 0..NODES.len() {
                    assert_ne!(next, Some(&new.node), "{reads:?}");
                    next = next.and_then(|at| reads.get(at));
                }
                assert!(next.is_none() || !reads.values().any(|at| *at == new.node), "{reads:?}");
            }
        });
    }

    /// A list has a few different nodes of the own group, which serve, each with the address and key that it published.
    #[test]
    fn lists_name_nodes_that_serve(history in history()) {
        each_plan(&history, |before, after, _| {
            let (was, is) = (fetching(before), fetching(after));
            for new in routed(&was, &is).into_iter().filter(|new| !new.order.peers.is_empty()) {
                let peers = &new.order.peers;
                let names: BTreeSet<&str> = peers.iter().map(|peer| &*peer.node).collect();
                assert!(names.len() == peers.len() && peers.len() <= 4 && !names.contains(new.node), "{peers:?}");
                assert!(!new.order.upstream && new.order.features().any(|feature| feature == "peers"));
                for peer in peers {
                    assert!(serves(after, &peer.node) && group(after, &peer.node) == group(after, new.node), "{peer:?}");
                    let facts = after.agents[&*peer.node].peer.as_ref().unwrap();
                    assert_eq!((peer.address.port(), &peer.key), (facts.port, &facts.key));
                    assert_eq!(peer.far, after.nodes[&*peer.node].zone() != after.nodes[new.node].zone());
                }
            }
        });
    }

    /// Also an order that was under way before: after each plan one node after the other moves.
    #[test]
    fn orders_name_nodes_where_they_serve_now(history in history()) {
        each_plan(&history, |_, after, _| {
            let mut sim = after.clone();
            for (node, name) in NODES.iter().enumerate() {
                fetching(&sim).iter().for_each(|one| one.assert_told_where_its_sources_are(&sim));
                let facts = sim.agents.get(name).and_then(|agent| agent.peer.clone());
                let facts = facts.map(|facts| PeerFacts { port: facts.port + 10, ..facts });
                sim.happen(&Happening::Peer { node, facts });
                let mut naive = sim.world.clone();
                naive.touch_everything();
                let (oracle, plan) = (naive.plan(sim.now), sim.plan());
                assert_eq!(changes(&naive, &oracle), changes(&sim.world, &plan));
            }
        });
    }

    /// No node is sent upstream while as many are there as may be, but one that has complained that no list helps.
    #[test]
    fn few_nodes_go_upstream(history in history()) {
        each_plan(&history, |before, after, _| {
            let (was, is) = (fetching(before), fetching(after));
            for new in routed(&was, &is).into_iter().filter(|new| new.order.upstream && serves(after, new.node)) {
                let (_, hard) = new.order.terms.pull.copies();
                // A job without a promise may have joined, in the same plan, what another one was allowed to fetch.
                let jobs = new.order.jobs.iter().filter_map(|id| after.world.job(id));
                let copies = jobs.map(|job| job.pull.copies().0).max().unwrap_or(1);
                let complained = was.iter().any(|old| {
                    (old.node, old.key, old.order.asked) == (new.node, new.key, new.order.asked) && old.complains()
                });
                let chain = chain_of(after, &is, new);
                let seeds = chain.iter().filter(|one| one.works(after) && serves(after, one.node)).count();
                let failed = was.iter().filter(|old| old.key == new.key && old.order.upstream && !old.works(before)).count();
                assert!(hard || complained || failed > 0 || seeds <= copies, "{seeds} seeds of {}", new.order.image);
            }
        });
    }

    /// Whatever a plan does, an order that its jobs allow no copy never goes upstream.
    #[test]
    fn an_order_without_a_copy_never_goes_upstream(history in history()) {
        each_plan(&history, |_, after, _| {
            for one in fetching(after) {
                assert!(!one.order.upstream || !one.order.terms.pull.is_from_peers_alone(), "{}: {:?}", one.node, one.order);
            }
        });
    }

    /// A promise is kept whatever fails. The seed of another job that promises less does not count while it is away or fails.
    #[test]
    fn a_promised_number_of_copies_is_never_exceeded(history in history()) {
        each_plan(&history, |before, after, _| {
            let (was, is) = (fetching(before), fetching(after));
            let seeds = |sim: &Sim, all: &[Fetching], of: &Fetching, copies: usize| {
                let same = |other: &&Fetching| {
                    let digests = [other.digest(), of.digest()];
                    let may_be = digests[0] == digests[1] || digests.contains(&None);
                    other.key == of.key && other.order.upstream && may_be && group(sim, other.node) == group(sim, of.node)
                };
                let counts = |other: &&Fetching| {
                    let (most, hard) = other.order.terms.pull.copies();
                    hard && most <= copies || other.works(sim)
                };
                all.iter().filter(same).filter(counts).count()
            };
            for new in routed(&was, &is).into_iter().filter(|new| new.order.upstream) {
                // A job may join what another one was allowed to fetch.
                let limits = new.order.jobs.iter().map(|id| after.world.job(id).map(|job| job.pull.copies()));
                let limits: Vec<(usize, bool)> = limits.flatten().filter(|(_, hard)| *hard).collect();
                let copies = limits.iter().map(|(copies, _)| *copies).max().unwrap_or_default();
                if limits.len() < new.order.jobs.len() {
                    continue;
                }
                let (had, has) = (seeds(after, &was, new, copies), seeds(after, &is, new, copies));
                let alone = group(after, new.node).is_none();
                assert!(copies > 0, "{} goes upstream: {:?}", new.node, new.order);
                assert!(alone || has <= copies.max(had), "{had} became {has} of {copies}: {}", new.order.image);
            }
        });
    }

    /// Who complains that it has no source is given one, or nobody can serve it.
    #[test]
    fn every_reader_has_a_source_or_a_reason(history in history()) {
        each_plan(&history, |_, after, _| {
            let is = fetching(after);
            let moves = |one: &&Fetching| {
                one.order.jobs.iter().any(|id| !after.stands_still(id) && after.world.waits_for_sight(id).is_none())
            };
            let left = |one: &&Fetching| !settles(after, &is, one);
            for one in is.iter().filter(|one| one.complains() && serves(after, one.node)).filter(moves).filter(left) {
                assert!(one.order.terms.pull.copies().1 || one.order.past.seed, "{} is left alone: {:?}", one.node, one.order);
                let chain = chain_of(after, &is, one);
                let below = |node: &str| {
                    let mut next = Some(node);
                    for _ in 0..=NODES.len() {
                        match next {
                            Some(at) if at == one.node => return true,
                            Some(at) => next = chain.iter().find(|other| other.node == at).and_then(|other| other.reads()),
                            None => return false,
                        }
                    }
                    true
                };
                let readers = |node: &str| chain.iter().filter(|other| other.reads() == Some(node)).count();
                let accused = |node: &str| {
                    is.iter().filter(|other| other.key == one.key && other.accuses(node)).count() > 1
                };
                let growing = |node: &str| chain.iter().any(|other| {
                    let gets_on = other.works(after) || !other.order.upstream && !other.complains();
                    other.node == node && gets_on && !other.order.past.out && !below(node)
                });
                let whole = |node: &str| {
                    let orders = after.world.orders(node).unwrap_or_default();
                    let said = [one.key, one.key.question()].into_iter().filter_map(|key| report(after, node, key, orders.get(&key)?));
                    let keeps = after.agents[node].peer.as_ref().is_some_and(|peer| peer.keeps);
                    let open = is.iter().any(|other| (other.node, other.key) == (node, one.key));
                    let mut held = said.filter(|report| report.phase == Phase::Succeeded && report.digest.as_deref() == one.digest());
                    let fresh = |report: &Report| {
                        report.finished.is_some_and(|finished| finished <= after.now && after.now < serves_until(finished))
                    };
                    !open && held.any(|report| keeps || fresh(&report))
                };
                let source = NODES.into_iter().find(|node| {
                    let reachable = *node != one.node && serves(after, node) && group(after, node) == group(after, one.node);
                    reachable && !one.is_bad(node) && !accused(node) && readers(node) < 4 && (growing(node) || whole(node))
                });
                assert!(source.is_none() || one.order.past.lists >= 2, "{} could read from {source:?}: {:?}", one.node, one.order);
            }
        });
    }
}

fn serves_until(finished: jiff::Timestamp) -> jiff::Timestamp {
    after(finished, LINGER)
}
