//! One image across the fleet: which jobs want it, which node is asking the registry for its digest, and which
//! answers there are. Kept up to date with every order and report, so that a plan need not search the fleet.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{Slot, Stale, World};
use crate::model::{JobId, Key, Order, Pin, Report, after};
use crate::pace::SILENCE;

/// What is known about one image.
#[derive(Clone, Debug, Default)]
pub(super) struct Demand {
    /// The jobs that want it and have not ended.
    pub(super) jobs: BTreeSet<JobId>,
    /// Answers of the registry, with how many orders and reports carry each.
    pins: BTreeMap<Pin, usize>,
    /// Nodes that were ordered to ask and have not answered.
    asking: BTreeSet<usize>,
}

impl Demand {
    /// The answer that a job which counts from `since` uses: the first one, so that all its nodes get the same.
    pub(super) fn pin(&self, since: Timestamp) -> Option<&Pin> {
        let from = Pin { asked: since, digest: String::new() };
        self.pins.range(from..).next().map(|(pin, _)| pin)
    }

    fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.pins.is_empty() && self.asking.is_empty()
    }
}

/// The last sign of life of a node in the matter of this order.
pub(super) fn last_seen(order: &Order, report: Option<&Report>) -> Timestamp {
    report.map_or(order.asked, |report| report.updated.max(order.asked))
}

/// Whether the newest ask of this order has its final answer.
pub(super) fn answered(order: &Order, report: Option<&Report>) -> bool {
    report.is_some_and(|report| report.ended() && report.asked >= order.asked)
}

fn is_asking(order: &Order, report: Option<&Report>) -> bool {
    let has_answer = report.is_some_and(|report| report.pin.as_ref().is_some_and(|pin| pin.asked >= order.asked));
    order.pin.is_none() && !has_answer && !answered(order, report)
}

/// What one node contributes to the demand of one key.
fn contribution(slot: &Slot, key: Key) -> (Vec<Pin>, bool) {
    let (order, report) = (slot.orders.get(&key), slot.reports.get(&key));
    let pins = order.and_then(|order| order.pin.clone()).into_iter();
    let pins = pins.chain(report.and_then(|report| report.pin.clone())).collect();
    (pins, order.is_some_and(|order| is_asking(order, report)))
}

impl World {
    /// Changes the order or report of one image on one node and tells all that it touches.
    pub(super) fn change_entry(&mut self, at: usize, key: Key, change: impl FnOnce(&mut Slot)) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        let before = contribution(slot, key);
        change(slot);
        let now = contribution(slot, key);
        let demand = self.demand.entry(key).or_default();
        if before != now {
            for pin in before.0 {
                if let Some(count) = demand.pins.get_mut(&pin) {
                    *count -= 1;
                    if *count == 0 {
                        demand.pins.remove(&pin);
                    }
                }
            }
            for pin in now.0 {
                *demand.pins.entry(pin).or_default() += 1;
            }
            match now.1 {
                true => demand.asking.insert(at),
                false => demand.asking.remove(&at),
            };
            self.dirty_jobs.extend(demand.jobs.iter().cloned());
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
            let silent = after(last_seen(slot.orders.get(&key)?, slot.reports.get(&key)), SILENCE);
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
