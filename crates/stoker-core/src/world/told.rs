//! Which nodes changed since the last plan, for those who show the orders and reports of a node elsewhere. Noted only where somebody asks
//! for it.

use std::collections::{BTreeMap, BTreeSet};

use super::World;
use super::seat::SeatStanding;
use super::seats::JobSeats;
use crate::model::{Key, Node, Report};
use crate::reason::Reason;

impl World {
    /// Whether plans say which [nodes](super::Plan::nodes) are to be looked at. The first plan after this was switched on names all of them.
    pub fn tell_nodes(&mut self, tell: bool) {
        if tell != self.told_nodes.is_some() {
            self.told_nodes = tell.then(|| self.by_name.keys().cloned().collect());
        }
    }

    /// What a node reports, by the key of the order that each report is about. A report of a later ask than that of its order is left
    /// out: it is about another order.
    pub fn reports(&self, node: &str) -> Option<impl Iterator<Item = (Key, &Report)>> {
        let slot = self.by_name.get(node).and_then(|&at| self.slots.get(at))?;
        Some(slot.reports.keys().filter_map(|key| Some((*key, slot.report(*key)?))))
    }

    /// What is known of a node itself.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.by_name.get(name).and_then(|&at| self.slots.get(at))?.node.as_ref()
    }

    /// What a node reports about the order under this key.
    pub fn report(&self, node: &str, key: Key) -> Option<&Report> {
        self.by_name.get(node).and_then(|&at| self.slots.get(at))?.report(key)
    }

    /// The node in this slot is to be looked at.
    pub(super) fn tell_node(&mut self, at: usize) {
        if let (Some(nodes), Some(slot)) = (&mut self.told_nodes, self.slots.get(at)) {
            nodes.insert(slot.name.clone());
        }
    }

    /// The nodes on which a job stands somewhere else than before are to be looked at.
    pub(super) fn tell_seats(&mut self, before: &Standings, seats: &JobSeats) {
        let now = Standings::of(seats);
        if before.0.iter().map(|(at, _)| at).eq(now.0.iter().map(|(at, _)| at)) {
            let changed = before.0.iter().zip(&now.0).filter(|(before, now)| before != now);
            changed.for_each(|((at, _), _)| self.tell_node(*at as usize));
            return;
        }
        let (before, now): (BTreeMap<u32, Mark>, BTreeMap<u32, Mark>) =
            (before.0.iter().copied().collect(), now.0.iter().copied().collect());
        let all: BTreeSet<u32> = before.keys().chain(now.keys()).copied().collect();
        for at in all.into_iter().filter(|at| before.get(at) != now.get(at)) {
            self.tell_node(at as usize);
        }
    }
}

/// Where the seats of a job stand, by slot. Every plan makes a copy of those of each job that it looks at: large ones that come and go leave holes in
/// the memory of the process, so this is a fifth as large as the seats.
#[derive(Clone, Debug)]
pub(super) struct Standings(Vec<(u32, Mark)>);

/// One standing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    kind: u8,
    reason: Option<Reason>,
    image: u16,
}

impl Standings {
    pub(super) fn of(seats: &JobSeats) -> Self {
        let mark = |standing: &SeatStanding| {
            let (kind, reason, image) = match standing {
                SeatStanding::Succeeded => (0, None, 0),
                SeatStanding::Failed(failure) => (1, Some(failure.reason), failure.image),
                SeatStanding::Active => (2, None, 0),
                SeatStanding::Late => (3, None, 0),
                SeatStanding::Open(wait) => (4, Some(wait.reason), wait.image),
            };
            // No job has so many images, and no cluster so many nodes, that two of them would be one here.
            Mark { kind, reason, image: image as u16 }
        };
        Self(seats.iter().map(|(at, seat)| (*at as u32, mark(&seat.standing))).collect())
    }
}

/// Whether two reports say the same, but for the time of the last sign of life.
pub(super) fn says_the_same(one: &Report, other: &Report) -> bool {
    let Report { asked, jobs, phase, digest, pin, present, bytes, attempt, reason, message, stalled, .. } = one;
    let Report { started, finished, from, bad, updated: _, .. } = one;
    (asked, jobs, phase, digest, pin, present, bytes, attempt)
        == (
            &other.asked,
            &other.jobs,
            &other.phase,
            &other.digest,
            &other.pin,
            &other.present,
            &other.bytes,
            &other.attempt,
        )
        && (reason, message, stalled, started, finished)
            == (&other.reason, &other.message, &other.stalled, &other.started, &other.finished)
        && (from, bad) == (&other.from, &other.bad)
}
