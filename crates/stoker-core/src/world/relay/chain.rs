//! One image in one peer group: who has it, who receives it and from whom. In: the nodes as [`Member`]s. Out: the [`Way`] of the next node. Pure:
//! it knows no job, no order and no clock.
//!
//! Nodes with equal links form a chain: each one is read by one other, so that no uplink is shared. Where readers are slower than the node
//! that they read from (by nature, or by a limit of their job), several of them read from it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::usual::UsualRate;
use crate::model::NodeName;

/// An agent serves at most this many readers of one image at one time.
const MOST_READERS: usize = 4;

/// The load of a node whose uplink is used up. Whole numbers, so that sums do not depend on the order in which they are added.
const FULL: u64 = 1 << 16;

/// What a node is in the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::world) enum Part {
    /// It goes upstream and is not done.
    Seed {
        /// It is away, or does not get on.
        failed: bool,
        /// Its order may not be changed.
        fixed: bool,
    },
    /// It reads from others and is not done.
    Reader,
    /// It has the image.
    Whole {
        /// It went upstream for it.
        seeded: bool,
        /// It serves the image until then; without a time for as long as it has the image.
        until: Option<Timestamp>,
    },
}

/// A node that has the image, or is ordered to fetch it.
#[derive(Clone, Debug)]
pub(in crate::world) struct Member {
    /// Its slot.
    pub(in crate::world) at: usize,
    pub(in crate::world) name: NodeName,
    /// See [`Chain::zone`].
    pub(in crate::world) zone: usize,
    /// The bytes a second that it may receive.
    pub(in crate::world) class: Option<u64>,
    /// The bytes a second that it can send.
    pub(in crate::world) uplink: Option<u64>,
    pub(in crate::world) asked: Timestamp,
    pub(in crate::world) part: Part,
    /// Whether its agent can read from others and serve them.
    pub(in crate::world) relays: bool,
    /// Whether others may be told to read from it.
    pub(in crate::world) serves: bool,
    /// The slot of the node that it reads from.
    pub(in crate::world) reads: Option<usize>,
    /// How many bytes of the image it has.
    pub(in crate::world) done: u64,
    /// Whether it may become a seed.
    pub(in crate::world) may_seed: bool,
    /// How many copies its jobs allow at most: [`CopyLimit::most`].
    pub(in crate::world) most_copies: usize,
}

impl Member {
    fn is_serving_whole(&self) -> bool {
        self.serves && matches!(self.part, Part::Whole { .. })
    }

    /// A seed that gets on, or that nobody may replace.
    fn is_working_seed(&self) -> bool {
        matches!(self.part, Part::Seed { failed, fixed } if !failed || fixed)
    }

    /// Whether a node with this limit may take the place of this seed. A stricter promise takes nothing from a job that promises less.
    fn yields_to(&self, limit: CopyLimit) -> bool {
        self.most_copies <= limit.most()
    }

    /// Whether this seed uses up a place of a node with this limit: it gets on, or might again.
    fn counts_for(&self, limit: CopyLimit) -> bool {
        self.is_working_seed() || self.yields_to(limit)
    }
}

/// How many nodes of the group may go upstream for the image.
#[derive(Clone, Copy, Debug)]
pub(in crate::world) struct CopyLimit {
    pub(in crate::world) copies: usize,
    /// A promise: copies that nobody can be served from any more count, too, and so do nodes that cannot serve.
    pub(in crate::world) hard: bool,
    /// Copies that were asked for before this time do not count.
    pub(in crate::world) since: Timestamp,
}

impl CopyLimit {
    /// How many copies are allowed at most. The greatest number where nothing is promised.
    pub(in crate::world) fn most(self) -> usize {
        if self.hard { self.copies } else { usize::MAX }
    }
}

/// A node that wants the image.
#[derive(Clone, Copy, Debug)]
pub(in crate::world) struct Wanting<'a> {
    pub(in crate::world) at: usize,
    pub(in crate::world) zone: usize,
    /// The bytes a second that it may receive.
    pub(in crate::world) class: Option<u64>,
    /// Whether its agent can read from others.
    pub(in crate::world) relays: bool,
    pub(in crate::world) may_seed: bool,
    /// The slots of nodes that could not serve it.
    pub(in crate::world) bad: &'a [usize],
}

/// How a node gets the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::world) enum Way {
    /// From the registry.
    Upstream {
        /// The seed that it takes the place of.
        instead_of: Option<usize>,
    },
    /// From the nodes in these slots, in this order.
    Peers(Vec<usize>),
    /// Not now.
    NoSource,
}

/// How good a source is: the least is the best.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_full: bool,
    growing: bool,
    load: u64,
    /// Who was asked earlier has more of the image, and is nearer to its origin.
    asked: Timestamp,
    class: Reverse<u64>,
    name: NodeName,
    at: usize,
}

/// What a node has to send.
#[derive(Clone, Copy, Debug, Default)]
struct Burden {
    readers: usize,
    load: u64,
}

/// One image in one peer group.
#[derive(Clone, Debug, Default)]
pub(in crate::world) struct Chain {
    members: BTreeMap<usize, Member>,
    /// By the slot that is read from.
    burdens: BTreeMap<usize, Burden>,
    /// By zone: the nodes that others may be told to read from.
    ranks: BTreeMap<usize, BTreeSet<Rank>>,
    zones: Vec<String>,
    seeds: BTreeSet<usize>,
    /// How many nodes serve the whole image.
    wholes: usize,
    /// When the copies were asked for that were made.
    made: BTreeMap<usize, Timestamp>,
    /// Nodes that several others accuse of wrong bytes.
    liars: BTreeSet<usize>,
    /// How many members read from a node that is none.
    orphans: usize,
    /// The bytes a second that nodes of the group usually get.
    pub(in crate::world) rates: UsualRate,
}

/// The part of its uplink that a reader takes of a node.
fn load(reader: &Member, source: &Member) -> u64 {
    match (reader.class, source.uplink) {
        (Some(class), Some(uplink)) => (class.saturating_mul(FULL) / uplink.max(1)).clamp(1, 64 * FULL),
        _ => FULL,
    }
}

impl Chain {
    /// The number of the zone of this name.
    pub(in crate::world) fn zone(&mut self, name: &str) -> usize {
        self.known_zone(name).unwrap_or_else(|| {
            self.zones.push(name.into());
            self.zones.len() - 1
        })
    }

    fn known_zone(&self, name: &str) -> Option<usize> {
        self.zones.iter().position(|zone| zone == name)
    }

    /// The same for one that may have no member.
    pub(in crate::world) fn zone_or_none(&self, name: &str) -> usize {
        self.known_zone(name).unwrap_or(usize::MAX)
    }

    /// Several nodes say that these send wrong bytes.
    pub(in crate::world) fn distrust(&mut self, liars: BTreeSet<usize>) {
        self.liars = liars;
    }

    /// Adds many members to an empty chain.
    pub(in crate::world) fn fill(&mut self, members: Vec<Member>) {
        for mut member in members {
            member.serves &= !self.liars.contains(&member.at);
            self.members.insert(member.at, member);
        }
        let all: Vec<usize> = self.members.keys().copied().collect();
        for at in all {
            self.join(at);
            self.rank(at);
        }
    }

    /// The node in this slot is this member from now on, or none.
    pub(in crate::world) fn put(&mut self, at: usize, member: Option<Member>) {
        self.unrank(at);
        self.leave(at);
        let is = member.is_some();
        let was = match member {
            Some(member) => self.members.insert(at, member),
            None => self.members.remove(&at),
        };
        if was.is_some() && !is {
            self.orphans += self.burdens.remove(&at).map_or(0, |burden| burden.readers);
        } else if was.is_none() && is && self.orphans > 0 {
            for reader in self.readers(at) {
                self.orphans -= 1;
                self.take(reader, at);
            }
        }
        self.join(at);
        self.rank(at);
    }

    /// Counts what this member is, and what it takes from its source.
    fn join(&mut self, at: usize) {
        if let Some(member) = self.members.get_mut(&at).filter(|_| self.liars.contains(&at)) {
            member.serves = false;
        }
        let Some(member) = self.members.get(&at) else { return };
        match member.part {
            Part::Seed { .. } => {
                self.seeds.insert(at);
            }
            Part::Whole { seeded: true, .. } => {
                self.made.insert(at, member.asked);
            }
            _ => {}
        }
        self.wholes += usize::from(member.is_serving_whole());
        let reads = member.reads;
        match reads {
            Some(source) if self.members.contains_key(&source) => self.take(at, source),
            Some(_) => self.orphans += 1,
            None => {}
        }
    }

    /// The opposite.
    fn leave(&mut self, at: usize) {
        let Some(member) = self.members.get(&at) else { return };
        self.seeds.remove(&at);
        self.made.remove(&at);
        self.wholes -= usize::from(member.is_serving_whole());
        let Some(source) = member.reads else { return };
        let Some(taken) = self.members.get(&source).map(|source| load(member, source)) else {
            self.orphans -= 1;
            return;
        };
        self.unrank(source);
        let Burden { readers, load } = self.burden(source);
        match readers {
            ..=1 => self.burdens.remove(&source),
            _ => self.burdens.insert(source, Burden { readers: readers - 1, load: load.saturating_sub(taken) }),
        };
        self.rank(source);
    }

    /// Counts what a reader takes of its source.
    fn take(&mut self, reader: usize, source: usize) {
        let Some((one, other)) = self.members.get(&reader).zip(self.members.get(&source)) else { return };
        let taken = load(one, other);
        self.unrank(source);
        let burden = self.burdens.entry(source).or_default();
        *burden = Burden { readers: burden.readers + 1, load: burden.load.saturating_add(taken) };
        self.rank(source);
    }

    fn burden(&self, at: usize) -> Burden {
        self.burdens.get(&at).copied().unwrap_or_default()
    }

    fn rank_of(&self, at: usize) -> Option<(usize, Rank)> {
        let member = self.members.get(&at).filter(|member| member.serves)?;
        let Burden { readers, load } = self.burden(at);
        let rank = Rank {
            is_full: load >= FULL,
            growing: !matches!(member.part, Part::Whole { .. }),
            load,
            asked: member.asked,
            class: Reverse(member.class.unwrap_or_default()),
            name: member.name.clone(),
            at,
        };
        (readers < MOST_READERS).then_some((member.zone, rank))
    }

    fn rank(&mut self, at: usize) {
        if let Some((zone, rank)) = self.rank_of(at) {
            self.ranks.entry(zone).or_default().insert(rank);
        }
    }

    fn unrank(&mut self, at: usize) {
        if let Some((zone, rank)) = self.rank_of(at)
            && let Some(ranks) = self.ranks.get_mut(&zone)
        {
            ranks.remove(&rank);
        }
    }

    pub(in crate::world) fn member(&self, at: usize) -> Option<&Member> {
        self.members.get(&at)
    }

    /// The zone of the seed, or else of a node that serves the image.
    pub(in crate::world) fn origin_zone(&self) -> Option<&str> {
        let seed = self.seeds.iter().filter_map(|at| self.members.get(at)).min_by(|a, b| a.name.cmp(&b.name));
        let whole =
            || self.members.values().filter(|member| member.is_serving_whole()).min_by(|a, b| a.name.cmp(&b.name));
        let member = seed.filter(|seed| seed.is_working_seed()).or_else(whole)?;
        self.zones.get(member.zone).map(String::as_str)
    }

    /// When the first node stops to serve the image, of those that serve it for a while only.
    pub(in crate::world) fn lapse(&self) -> Option<Timestamp> {
        let untils = self.members.values().filter(|member| member.serves).filter_map(|member| match member.part {
            Part::Whole { until, .. } => until,
            _ => None,
        });
        untils.min()
    }

    /// Whether anybody reads from the node in this slot, member or not.
    fn has_readers(&self, at: usize) -> bool {
        let orphaned = || self.members.values().any(|member| member.reads == Some(at));
        self.burdens.contains_key(&at) || self.orphans > 0 && orphaned()
    }

    /// The members that read from this one.
    pub(in crate::world) fn readers(&self, at: usize) -> Vec<usize> {
        self.members.values().filter(|member| member.reads == Some(at)).map(|member| member.at).collect()
    }

    /// Whether a node that is there and has not complained reads from this one.
    pub(in crate::world) fn is_read(&self, at: usize) -> bool {
        self.members.values().any(|member| member.reads == Some(at) && member.serves)
    }

    /// The seeds that get on, besides this node.
    pub(in crate::world) fn working_seeds(&self, besides: usize) -> Vec<usize> {
        let seeds = self.seeds.iter().filter_map(|at| self.members.get(at));
        seeds.filter(|seed| seed.at != besides && seed.is_working_seed()).map(|seed| seed.at).collect()
    }

    /// The readers that could go upstream instead of a seed that does not get on, the one with most bytes first.
    pub(in crate::world) fn heirs(&self) -> Vec<usize> {
        let fit = |member: &&Member| member.part == Part::Reader && member.serves && member.may_seed;
        let mut heirs: Vec<&Member> = self.members.values().filter(fit).collect();
        heirs.sort_by(|a, b| (Reverse(a.done), &a.name).cmp(&(Reverse(b.done), &b.name)));
        heirs.into_iter().map(|heir| heir.at).collect()
    }

    /// Whether a node other than these serves the whole image.
    pub(in crate::world) fn has_whole(&self, besides: usize, bad: &[usize]) -> bool {
        let excluded: BTreeSet<usize> = bad.iter().copied().chain([besides]).collect();
        let excluded = excluded.iter().filter(|at| self.members.get(at).is_some_and(Member::is_serving_whole)).count();
        self.wholes > excluded
    }

    /// How this node gets the image.
    pub(in crate::world) fn way(&self, wanting: &Wanting<'_>, limit: CopyLimit) -> Way {
        if wanting.may_seed
            && !self.has_whole(wanting.at, wanting.bad)
            && let Some(instead_of) = self.room_for_seed(wanting.at, limit)
        {
            return Way::Upstream { instead_of };
        }
        match self.source(wanting).filter(|_| wanting.relays) {
            Some(source) => Way::Peers(self.list(wanting, source)),
            None => Way::NoSource,
        }
    }

    /// Whether one more node may go upstream, and the failed seed that it takes the place of.
    fn room_for_seed(&self, besides: usize, limit: CopyLimit) -> Option<Option<usize>> {
        let seeds = self.seeds.iter().filter(|at| **at != besides).filter_map(|at| self.members.get(at));
        let seeds = seeds.filter(|seed| (seed.relays || limit.hard) && seed.counts_for(limit));
        let (working, failed): (Vec<&Member>, Vec<&Member>) = seeds.partition(|seed| seed.is_working_seed());
        let taken = working.len() + self.made(besides, limit);
        if taken >= limit.copies {
            return None;
        }
        let first = failed.iter().min_by(|a, b| a.name.cmp(&b.name));
        Some(first.filter(|_| taken + failed.len() >= limit.copies).map(|seed| seed.at))
    }

    /// How many copies were made that count for a promise, besides that of this node.
    fn made(&self, besides: usize, limit: CopyLimit) -> usize {
        let counts = |(at, asked): &(&usize, &Timestamp)| **at != besides && **asked >= limit.since;
        if limit.hard { self.made.iter().filter(counts).count() } else { 0 }
    }

    /// Whether the limit of this node allows that it goes upstream as soon as that seed does so no more.
    pub(in crate::world) fn may_follow(&self, at: usize, seed: usize, limit: CopyLimit) -> bool {
        let others = self.seeds.iter().filter(|other| ![at, seed].contains(other));
        let others = others.filter_map(|other| self.members.get(other)).filter(|other| other.counts_for(limit));
        !limit.hard || others.count() + self.made(at, limit) < limit.copies
    }

    /// The same where the seed gets on, and is told to read from others instead.
    pub(in crate::world) fn may_replace(&self, at: usize, seed: usize, limit: CopyLimit) -> bool {
        let yields = self.members.get(&seed).is_some_and(|seed| seed.yields_to(limit));
        yields && self.may_follow(at, seed, limit)
    }

    /// The best node to read from: one of the same zone where there is any, so that the image comes into a zone once; and one that is not slower, where
    /// there is any.
    fn source(&self, wanting: &Wanting<'_>) -> Option<usize> {
        let wants = wanting.class.or(self.rates.besides(&[]));
        let is_slower = |rank: &&Rank| wants.is_some_and(|wants| rank.class.0 < wants && rank.class.0 > 0);
        let has_readers = self.has_readers(wanting.at);
        let fits = |rank: &&Rank| {
            rank.at != wanting.at
                && !wanting.bad.contains(&rank.at)
                && !(has_readers && self.is_below(rank.at, wanting.at))
        };
        let best = |ranks: &BTreeSet<Rank>| {
            let fast = ranks.iter().filter(fits).find(|rank| !is_slower(rank));
            fast.or_else(|| ranks.iter().find(fits)).cloned()
        };
        let near = self.ranks.get(&wanting.zone).and_then(best);
        let far =
            || self.ranks.iter().filter(|(zone, _)| **zone != wanting.zone).filter_map(|(_, ranks)| best(ranks)).min();
        near.or_else(far).map(|rank| rank.at)
    }

    /// Whether a node reads from the other one, or from one that does, and so on.
    pub(in crate::world) fn is_below(&self, at: usize, top: usize) -> bool {
        let mut next = Some(at);
        // What agents say that they read from may go round in a circle.
        for _ in 0..=self.members.len() {
            match next {
                Some(at) if at == top => return true,
                Some(at) => next = self.members.get(&at).and_then(|member| member.reads),
                None => return false,
            }
        }
        true
    }

    /// A list that begins with this source: nodes that have the image, or the ones that it reads from; then a spare.
    pub(in crate::world) fn list(&self, wanting: &Wanting<'_>, source: usize) -> Vec<usize> {
        let mut list = vec![source];
        let fits = |at: usize, list: &[usize]| {
            let serves = self.members.get(&at).is_some_and(|member| member.serves);
            serves && at != wanting.at && !wanting.bad.contains(&at) && !list.contains(&at)
        };
        let whole = |list: &[usize]| {
            let near = self.ranks.get(&wanting.zone).into_iter();
            let far = self.ranks.iter().filter(|(zone, _)| **zone != wanting.zone).map(|(_, ranks)| ranks);
            let mut all = near.chain(far).flatten().filter(|rank| !rank.growing);
            all.find(|rank| fits(rank.at, list)).map(|rank| rank.at)
        };
        if self.members.get(&source).is_some_and(Member::is_serving_whole) {
            for _ in 0..2 {
                list.extend(whole(&list));
            }
        } else {
            let mut next = self.members.get(&source).and_then(|member| member.reads);
            for _ in 0..2 {
                let Some(at) = next else { break };
                if fits(at, &list) {
                    list.push(at);
                }
                next = self.members.get(&at).and_then(|member| member.reads);
            }
        }
        let has_readers = self.has_readers(wanting.at);
        let idle = |list: &[usize]| {
            let ranks = self.ranks.get(&wanting.zone).into_iter().flatten().take_while(|rank| !rank.is_full);
            let mut ranks = ranks.filter(|rank| !(has_readers && self.is_below(rank.at, wanting.at)));
            ranks.find(|rank| fits(rank.at, list)).map(|rank| rank.at)
        };
        list.extend(whole(&list).or_else(|| idle(&list)));
        list
    }
}

#[cfg(test)]
mod tests;
