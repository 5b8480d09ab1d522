//! When a node reads an image from another node of its list, and when it says that it is too slow for those that read from it.
//!
//! Looks at the listed nodes come in, one every [`EVERY`]; a move goes out. Pure: it asks nobody, and time is the number of looks. All blobs of the image move
//! together, and never out of the list: who is in it is decided by the controller, which knows the other readers.

pub(crate) mod drought;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::serve::PeerState;

/// The time between two looks.
pub(crate) const EVERY: Duration = Duration::from_millis(250);
const LOOKS_A_SECOND: u64 = 4;

/// One node is ahead of another if it has at least so much more, and at least what it receives between two looks.
const GAP: u64 = 2 * 1024 * 1024;
/// What is on the way between two nodes is no lead.
const ON_THE_WAY: u64 = 256 * 1024;
/// For so many looks the next node of the list must be better before all blobs move there, and four times as many for the one after it: the node in between
/// leaves its source first, and then there is nothing to be done.
const LEAVE: usize = 3;
const TRY: usize = 8;
const TELL: usize = 16;
/// The growth of another node is taken over so many looks: an answer that is late makes one look see nothing new, and the next one twice as much.
const GROWTH: u64 = 2;
/// A node starves where it gets less than this part of what it can expect, while its source says that it has more to give.
const STARVES: u64 = 50;
/// A move is judged after so many looks.
const TRIAL: usize = 4;
/// No more looks are kept.
const MOST: usize = 32;

/// What was seen at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// The bytes of the image that are here.
    pub(crate) have: u64,
    /// How many nodes read it from here.
    pub(crate) readers: u32,
    /// The nodes of the list; none where one did not answer.
    pub(crate) peers: Vec<Option<PeerState>>,
}

/// The node to which all blobs were moved, until it is known whether that was good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MoveTrial {
    /// The node that was left.
    back: usize,
    /// What came in [`TRIAL`] looks before.
    before: u64,
}

/// All that was seen since the list is as it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct LookHistory {
    looks: VecDeque<Look>,
    /// The node that is read from, as its place in the list.
    from: usize,
    /// How many looks it has been that one.
    since: usize,
    trial: Option<MoveTrial>,
    /// Nodes that were no better.
    barred: BTreeSet<usize>,
    /// It was said that this node lags.
    told: bool,
}

/// What does not change while the list stays as it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Circumstances {
    /// Which nodes of the list are in another zone.
    pub(crate) far: Vec<bool>,
    /// The bytes a second that this node can expect: what it got before, or what others get, within its limit. None where nobody knows.
    pub(crate) usual: Option<u64>,
    /// With fewer bytes a second the image is not here before its attempts are over.
    pub(crate) least: u64,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    Stay,
    /// All blobs go on from this node, and it is seen whether that is better.
    Try(usize),
    /// All blobs go on from this node, because the one that they came from was no better.
    Back(usize),
    /// The controller is told that this node is too slow for those that read from it, or from the same node.
    Tell,
}

impl LookHistory {
    /// Adds what was seen while the image was read from this node of the list.
    pub(crate) fn add(&mut self, look: Look, from: usize) {
        if self.from != from {
            // Somebody else has moved it: the node did not answer, or lied. One that was tried has refused, and would do so again.
            self.barred.extend(self.trial.map(|_| self.from));
            (self.from, self.since, self.trial) = (from, 0, None);
        }
        self.since += 1;
        self.looks.push_back(look);
        if self.looks.len() > MOST {
            self.looks.pop_front();
        }
    }

    /// What was decided has been done.
    pub(crate) fn moved(&mut self, done: Move) {
        let left = self.from;
        match done {
            Move::Stay => {
                if self.trial.is_some() && self.since > TRIAL {
                    self.trial = None;
                }
                return;
            }
            Move::Tell => {
                self.told = true;
                return;
            }
            Move::Try(to) => (self.trial, self.from) = (Some(MoveTrial { back: left, before: self.grown(TRIAL) }), to),
            Move::Back(to) => {
                self.barred.insert(left);
                (self.trial, self.from) = (None, to);
            }
        }
        self.since = 0;
    }

    /// The look so many looks ago.
    fn ago(&self, looks: usize) -> Option<&Look> {
        self.looks.len().checked_sub(looks + 1).and_then(|at| self.looks.get(at))
    }

    fn have(&self, ago: usize) -> Option<u64> {
        self.ago(ago).map(|look| look.have)
    }

    fn peer(&self, at: usize, ago: usize) -> Option<PeerState> {
        self.ago(ago)?.peers.get(at).copied().flatten()
    }

    /// What came here in the last looks.
    fn grown(&self, looks: usize) -> u64 {
        let looks = looks.min(self.looks.len().saturating_sub(1));
        self.have(0).zip(self.have(looks)).map_or(0, |(now, then)| now.saturating_sub(then))
    }

    /// What came here between a look and the one before it.
    fn own_growth(&self, ago: usize) -> Option<u64> {
        Some(self.have(ago)?.saturating_sub(self.have(ago + 1)?))
    }

    /// What a node of the list got between two looks.
    fn growth(&self, at: usize, ago: usize) -> Option<u64> {
        Some(self.peer(at, ago)?.have.saturating_sub(self.peer(at, ago + GROWTH as usize)?.have) / GROWTH)
    }

    /// Whether something held in so many looks running, all of them since the image is read from its node.
    fn held(&self, looks: usize, is: impl Fn(usize) -> Option<bool>) -> bool {
        self.since > looks && (0..looks).all(|ago| is(ago) == Some(true))
    }
}

/// What to do after the last look.
pub(crate) fn decide(history: &LookHistory, list: &Circumstances) -> Move {
    let from = history.from;
    if let Some(MoveTrial { back, before }) = history.trial {
        // Only bytes of the new node count: the first look may be half of each.
        let better = history.grown(TRIAL) >= before.saturating_add(before / 5) && history.grown(TRIAL) > 0;
        return if history.since > TRIAL && !better { Move::Back(back) } else { Move::Stay };
    }
    if list.far.get(from).copied().unwrap_or(true) || is_content(history, list) {
        return Move::Stay;
    }
    if let Some(to) = leaves(history, list) {
        return Move::Try(to);
    }
    let outrun = |ago: usize| Some(history.ago(ago)?.readers > 0 && is_outrun(history, list, ago)?);
    // Where others read from the same node that may be the reason, and not the link of this node.
    let lags = |ago: usize| {
        let source = history.peer(from, ago)?;
        Some(outrun(ago)? && (source.whole || source.readers <= 1 || !history.barred.is_empty()))
    };
    let crowds = |ago: usize| Some(is_crowding(history, ago)? && is_outrun(history, list, ago)?);
    if !history.told && (history.held(TELL, lags) || history.held(TRY, crowds)) {
        return Move::Tell;
    }
    let next = from + 1;
    if history.held(TRY, outrun) && may_go(history, list, next) {
        return Move::Try(next);
    }
    let starves = |ago: usize| is_starved(history, list, ago);
    let others = (next..list.far.len()).chain(0..from);
    if history.held(TELL, starves)
        && let Some(to) = others.into_iter().find(|to| may_go(history, list, *to))
    {
        return Move::Try(to);
    }
    Move::Stay
}

/// Whether this node gets what it can expect, or nearly.
fn is_content(history: &LookHistory, list: &Circumstances) -> bool {
    let looks = history.since.min(TRY).min(history.looks.len().saturating_sub(1));
    let Some(usual) = list.usual.filter(|_| looks > 0) else { return looks == 0 };
    let rate = history.grown(looks).saturating_mul(LOOKS_A_SECOND) / looks as u64;
    rate >= usual / 10 * 7
}

/// Whether this node may be read from: a listed one of this zone that answers and was not found to be no better.
fn may_go(history: &LookHistory, list: &Circumstances, to: usize) -> bool {
    list.far.get(to) == Some(&false) && !history.barred.contains(&to) && history.peer(to, 0).is_some()
}

/// Whether the node that is read from gets much more than this one, or has all and gives much less than this one can expect.
fn is_outrun(history: &LookHistory, list: &Circumstances, ago: usize) -> Option<bool> {
    let own = history.own_growth(ago)?;
    if history.peer(history.from, ago)?.whole {
        return Some(own.saturating_mul(LOOKS_A_SECOND) < list.usual? / 3);
    }
    let theirs = history.growth(history.from, ago)?;
    Some(theirs > 0 && theirs >= own.saturating_add(own / 2))
}

/// Whether nobody reads from this node, and others read from the node that it reads from. They would get more without it.
fn is_crowding(history: &LookHistory, ago: usize) -> Option<bool> {
    let source = history.peer(history.from, ago)?;
    Some(history.ago(ago)?.readers == 0 && !source.whole && source.readers > 1)
}

/// Whether next to nothing comes from a source that says that it has more than this node. A node with a slow link of its own knows what it can expect of
/// that, and stays; this is a source that is broken, or that lies.
fn is_starved(history: &LookHistory, list: &Circumstances, ago: usize) -> Option<bool> {
    let own = history.own_growth(ago)?;
    let source = history.peer(history.from, ago)?;
    let has_more = source.whole || source.have >= history.have(ago)?.saturating_add(GAP);
    Some(has_more && own.saturating_mul(LOOKS_A_SECOND) < list.usual? / STARVES)
}

/// The node to go to, because the one that is read from gets on slower than that one and gives all that it gets, or no more than that.
fn leaves(history: &LookHistory, list: &Circumstances) -> Option<usize> {
    let from = history.from;
    let ahead = |to: usize, ago: usize| {
        let (own, ours) = (history.ago(ago)?.have, history.own_growth(ago)?);
        let (other, fast) = (history.peer(to, ago)?, history.growth(to, ago)?);
        let source = history.peer(from, ago).zip(history.growth(from, ago));
        // What the source says may be a second old. It is not slow where it gives more than that.
        let slow = source.map_or(ours, |(_, slow)| slow.max(ours));
        let faster = match other.whole {
            true => slow.saturating_mul(LOOKS_A_SECOND) < list.usual? / 3,
            false => fast > 0 && fast >= slow.saturating_add(slow / 2),
        };
        let Some((source, received)) = source else {
            // It answers late or not at all. If it was the link of this node that is full, nobody who is still asked would answer either.
            return Some(faster && other.have >= own.saturating_add(fast.max(GAP)));
        };
        let drained = own.saturating_add(ours.max(ON_THE_WAY)) >= source.have;
        // A slow link may send even less than it receives. Where it is this node's own one that is slow, the next source is no better, and is left.
        let held_back = ours <= received.saturating_add(received / 2);
        let further = other.have >= source.have.saturating_add(fast.max(GAP));
        Some(!source.whole && (drained || held_back) && faster && further)
    };
    let mut others: Vec<usize> = (0..list.far.len()).filter(|to| *to != from && may_go(history, list, *to)).collect();
    others.sort_by_key(|to| to.abs_diff(from));
    others.into_iter().find(|to| history.held(LEAVE * to.abs_diff(from).pow(2), |ago| ahead(*to, ago)))
}

/// Whether the node that is read from says that it has more than this one.
pub(crate) fn claims_more(history: &LookHistory) -> bool {
    let claims = || {
        let source = history.peer(history.from, 0)?;
        Some(source.whole || source.have >= history.have(0)?.saturating_add(GAP))
    };
    claims().unwrap_or(false)
}

#[cfg(test)]
mod tests;
