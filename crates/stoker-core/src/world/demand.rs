//! One image across the fleet: which jobs want it, which node is asking the registry for its digest, and which
//! answers there are. Kept up to date with every order and report, so that a plan need not search the fleet.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::held::{Held, Kinds};
use super::{Slot, Stale, World};
use crate::model::{JobId, Key, Phase, Pin, Report, after};
use crate::pace::SILENCE;

/// What is known about one image.
#[derive(Clone, Debug, Default)]
pub(super) struct Demand {
    /// The jobs that want it and have not ended.
    pub(super) jobs: BTreeSet<JobId>,
    /// Answers of the registry, with how often each is carried.
    pins: BTreeMap<Pin, Carried>,
    /// Nodes that were ordered to ask and have not answered.
    asking: BTreeSet<usize>,
    /// By when they were asked for it: how many nodes more turned out to have it than to have looked for it in vain.
    had: BTreeMap<Timestamp, i64>,
    /// How many nodes are looking whether they have it.
    looking: i64,
    /// What its orders share.
    pub(super) kinds: Kinds,
}

/// How many orders and how many reports carry one answer.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    orders: usize,
    reports: usize,
}

impl Demand {
    /// The answer that a job which counts from `since` uses: the first one that was handed out already, so that all
    /// its nodes get the same even where a node that was thought silent answers late; else the first one.
    pub(super) fn pin(&self, since: Timestamp) -> Option<&Pin> {
        let from = Pin { asked: since, digest: String::new() };
        let mut pins = self.pins.range(from..);
        let handed_out = pins.clone().find(|(_, carried)| carried.orders > 0);
        handed_out.or_else(|| pins.next()).map(|(pin, _)| pin)
    }

    fn count(&mut self, pin: Option<Pin>, change: impl FnOnce(&mut Carried)) {
        let Some(pin) = pin else { return };
        let carried = self.pins.entry(pin.clone()).or_default();
        change(carried);
        if carried.orders == 0 && carried.reports == 0 {
            self.pins.remove(&pin);
        }
    }

    fn count_had(&mut self, found: Option<(Timestamp, bool)>, sign: i64) {
        let Some((asked, had)) = found else { return };
        let nodes = self.had.entry(asked).or_default();
        *nodes += if had { sign } else { -sign };
        if *nodes == 0 {
            self.had.remove(&asked);
        }
    }

    /// Whether one more node may look for it, for a job that counts from `since`: as long as more had it than looked in vain
    /// or still look. Where nobody has it nobody looks, and where all have it they are asked in a few steps.
    pub(super) fn look(&self, since: Timestamp) -> bool {
        self.had.range(since..).map(|(_, nodes)| nodes).sum::<i64>() > self.looking
    }

    fn is_empty(&self) -> bool {
        self.jobs.is_empty()
            && self.pins.is_empty()
            && self.asking.is_empty()
            && self.had.is_empty()
            && self.looking == 0
    }
}

/// Until when the node of an order without final answer is believed to be at work: counted from the ask, from the last
/// time that anything was heard of the node, or from what its report says. The last is the agent's clock: one that is
/// ahead of ours proves nothing.
pub(super) fn silent_from(order: &Held, report: Option<&Report>, slot: &Slot, now: Timestamp) -> Timestamp {
    let said = report.map(|report| report.updated).filter(|said| *said <= now);
    let last = [said, slot.heard].into_iter().flatten().fold(order.asked, Timestamp::max);
    after(last, SILENCE)
}

/// Whether the newest ask of this order has its final answer.
pub(super) fn answered(order: &Held, report: Option<&Report>) -> bool {
    report.is_some_and(|report| report.ended() && report.asked >= order.asked)
}

fn is_asking(order: &Held, report: Option<&Report>) -> bool {
    let has_answer = report.is_some_and(|report| report.pin.as_ref().is_some_and(|pin| pin.asked >= order.asked));
    order.pinned.is_none() && !order.looks() && !has_answer && !answered(order, report)
}

/// When a node was asked that did not have to ask the registry, and whether it turned out to have the image: it says that
/// it is there, and not what its tag means.
fn had(order: &Held, report: Option<&Report>) -> Option<(Timestamp, bool)> {
    let report = report.filter(|report| order.pinned.is_none() && answered(order, Some(report)))?;
    match report.phase {
        Phase::Succeeded if report.pin.is_none() => Some((report.asked, true)),
        Phase::Failed if order.looks() => Some((report.asked, false)),
        _ => None,
    }
}

/// What one node contributes to the demand of one key.
#[derive(PartialEq)]
struct Contribution {
    ordered: Option<Pin>,
    reported: Option<Pin>,
    asking: bool,
    had: Option<(Timestamp, bool)>,
    looking: bool,
}

impl Contribution {
    fn of(slot: &Slot, key: Key) -> Self {
        let (order, report) = (slot.orders.get(&key), slot.report(key));
        Self {
            ordered: order.and_then(Held::pin),
            reported: report.and_then(|report| report.pin.clone()),
            asking: order.is_some_and(|order| is_asking(order, report)),
            had: order.and_then(|order| had(order, report)),
            looking: order.is_some_and(|order| order.looks() && !answered(order, report)),
        }
    }
}

impl World {
    /// Changes the order or report of one image on one node and tells all that it touches.
    pub(super) fn change_entry(&mut self, at: usize, key: Key, change: impl FnOnce(&mut Slot)) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        let before = Contribution::of(slot, key);
        change(slot);
        let now = Contribution::of(slot, key);
        let demand = self.demand.entry(key).or_default();
        if before != now {
            demand.count(before.ordered, |carried| carried.orders = carried.orders.saturating_sub(1));
            demand.count(before.reported, |carried| carried.reports = carried.reports.saturating_sub(1));
            demand.count(now.ordered, |carried| carried.orders += 1);
            demand.count(now.reported, |carried| carried.reports += 1);
            match now.asking {
                true => demand.asking.insert(at),
                false => demand.asking.remove(&at),
            };
            demand.count_had(before.had, -1);
            demand.count_had(now.had, 1);
            demand.looking += i64::from(now.looking) - i64::from(before.looking);
        }
        for id in &demand.jobs {
            if let Some(state) = self.jobs.get_mut(id) {
                if let Stale::Some(seats) = &mut state.stale {
                    seats.insert(at);
                }
                self.dirty_jobs.insert(id.clone());
            }
        }
        if demand.is_empty() {
            self.demand.remove(&key);
        }
    }

    pub(super) fn forget_demand(&mut self, key: Key, id: &JobId) {
        if let Some(demand) = self.demand.get_mut(&key) {
            demand.jobs.remove(id);
            if demand.is_empty() {
                self.demand.remove(&key);
            }
        }
    }

    /// The node that is asking the registry for this image, unless it fell silent; and when it would.
    pub(super) fn asking(&self, key: Key, now: Timestamp) -> Option<(usize, Timestamp)> {
        let asking = self.demand.get(&key)?.asking.iter();
        let mut alive = asking.filter_map(|&at| {
            let slot = self.slots.get(at)?;
            let silent = silent_from(slot.orders.get(&key)?, slot.report(key), slot, now);
            (now < silent).then_some((at, silent))
        });
        // Several ask only where one was thought silent; the name decides which is spoken of.
        let first = alive.next()?;
        Some(alive.fold(first, |best, next| {
            let name = |at: usize| self.slots.get(at).map(|slot| &slot.name);
            if name(next.0) < name(best.0) { next } else { best }
        }))
    }
}
