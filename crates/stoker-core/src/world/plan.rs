//! From the touched jobs to effects: who may pull now, what is taken back, how each job stands, when to look again.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::orders::Changes;
use super::seat::{self, Entry, Seat, Standing, Wait, earliest};
use super::{JobState, Stale, World};
use crate::model::{Bytes, Job, JobId, Key, NodeName, Order, Unreachable};
use crate::pace;
use crate::reason::Reason;
use crate::rollup::{Count, Outcome, Tally};

const UNKNOWN_NODE: &str = "no node of this name joined before the job's deadline";

/// Every effect of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Orders to write, one entry a node. The World assumes them from now on.
    pub orders: Vec<OrderWrite>,
    /// Jobs whose outcome is another than the one last said.
    pub outcomes: Vec<Outcome>,
    /// Ended jobs whose time to live is over.
    pub expired: Vec<JobId>,
    /// When to plan again even if nothing happens.
    pub wake: Option<Timestamp>,
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.orders.is_empty() && self.outcomes.is_empty() && self.expired.is_empty()
    }
}

/// The changes of one node's orders: a merge of a map, never a whole list.
#[derive(Clone, Debug, PartialEq)]
pub struct OrderWrite {
    /// Whose orders.
    pub node: NodeName,
    /// New or changed orders; `None` takes one away.
    pub changes: BTreeMap<Key, Option<Order>>,
}

/// Whether the digest of an image is known, as one job sees it.
#[derive(Clone, Copy)]
enum Resolution {
    Known,
    /// Nobody is asking: the next node that is handed out does.
    Free,
    /// Another node is asking, and would be given up at this time.
    Taken(Timestamp),
}

impl World {
    /// Plans for every job that an event or the time touched.
    pub fn plan(&mut self, now: Timestamp) -> Plan {
        for (id, state) in &mut self.jobs {
            if state.wake.is_some_and(|wake| wake <= now) {
                state.stale = Stale::All;
                self.dirty_jobs.insert(id.clone());
            }
        }
        let mut changes = Changes::new();
        let mut outcomes = BTreeMap::new();
        let mut expired = Vec::new();
        loop {
            // What is taken back first is free for others in the same plan.
            if let Some(at) = self.dirty_slots.pop_first() {
                self.tidy(at, &mut changes);
            } else if let Some(id) = self.dirty_jobs.pop_first() {
                let Some(mut state) = self.jobs.remove(&id) else { continue };
                if state.job.ended.is_some() {
                    state.retire(now, &mut expired);
                } else {
                    let outcome = self.plan_job(&mut state, now, &mut changes);
                    outcomes.insert(id.clone(), outcome);
                }
                self.jobs.insert(id, state);
            } else {
                break;
            }
        }
        self.sweep(&mut changes);
        self.dirty_jobs.clear();
        Plan {
            orders: self.order_writes(changes),
            outcomes: outcomes.into_iter().filter_map(|(id, outcome)| self.news(&id, outcome)).collect(),
            expired,
            wake: self.jobs.values().filter_map(|state| state.wake).min(),
        }
    }

    fn order_writes(&self, changes: Changes) -> Vec<OrderWrite> {
        let named = changes.into_iter().filter_map(|(at, changes)| {
            let node = self.slots.get(at)?.name.clone();
            Some(OrderWrite { node, changes })
        });
        let mut writes: Vec<OrderWrite> = named.collect();
        writes.sort_by(|a, b| a.node.cmp(&b.node));
        writes
    }

    /// The outcome, if it differs from what was last said of the job.
    fn news(&mut self, id: &JobId, outcome: Outcome) -> Option<Outcome> {
        let state = self.jobs.get_mut(id)?;
        if state.said.as_ref() == Some(&outcome) {
            return None;
        }
        state.said = Some(outcome.clone());
        Some(outcome)
    }

    fn plan_job(&mut self, state: &mut JobState, now: Timestamp, changes: &mut Changes) -> Outcome {
        self.refresh(state, now);
        let active = state.seats.iter().filter(|seat| seat.standing == Standing::Active).count();
        let targets = state.seats.iter().filter(|seat| seat.standing != Standing::Elsewhere).count();
        let mut free = pace::free(&state.job, active);
        let pulling = targets.min(usize::try_from(state.job.parallelism).unwrap_or(usize::MAX));
        let mut resolutions = self.resolutions(&state.job, now);
        let mut tally = Tally::new(&state.job, now);
        let by_name: Vec<(NodeName, usize)> = match targets {
            0 => Vec::new(),
            _ => self.by_name.iter().map(|(name, &at)| (name.clone(), at)).collect(),
        };
        for (name, at) in by_name {
            let Some(mut seat) = state.seats.get(at).copied() else { continue };
            if let Standing::Open(Wait::Pending | Wait::Parallelism | Wait::Unresolved(_)) = seat.standing {
                seat.standing = Standing::Open(match self.obstacle(&state.job, at, free, &resolutions, now) {
                    Some(wait) => wait,
                    None => {
                        for image in self.open_images(&state.job, at, now) {
                            self.order_image(&state.job, image, at, now, pulling, changes);
                        }
                        resolutions = self.resolutions(&state.job, now);
                        free -= 1;
                        Wait::Pending
                    }
                });
                if seat.standing == Standing::Open(Wait::Pending)
                    && let Some(slot) = self.slots.get(at)
                {
                    seat = seat::seat(&state.job, slot, now);
                }
                if let Some(place) = state.seats.get_mut(at) {
                    *place = seat;
                }
            }
            tally.count(&state.job, &name, &seat, self.slots.get(at));
        }
        if state.job.unreachable == Unreachable::Wait {
            for name in state.job.names.iter().flatten().filter(|name| !self.known(name)) {
                let count = match tally.overdue {
                    true => Count::Failed(Reason::DeadlineExceeded),
                    false => Count::Waiting(Reason::NodeUnknown),
                };
                tally.add(&name.as_str().into(), count, Bytes::default(), || UNKNOWN_NODE.into());
            }
        }
        let digests = self.digests(&state.job, now);
        let outcome = tally.outcome(&state.job, digests, &mut state.closing, now);
        let taken = resolutions.iter().filter_map(|resolution| match resolution {
            Resolution::Taken(until) => Some(*until),
            _ => None,
        });
        let lapses = state.seats.iter().filter_map(|seat| seat.lapse);
        let deadline = state.job.deadline(now).filter(|deadline| *deadline > now && outcome.completed.is_none());
        state.wake = earliest(lapses.chain(taken).min(), earliest(deadline, state.job.round_ends(now)));
        outcome
    }

    pub(super) fn known(&self, name: &str) -> bool {
        self.by_name.get(name).and_then(|&at| self.slots.get(at)).is_some_and(|slot| slot.node.is_some())
    }

    /// Looks again at the seats that something touched.
    fn refresh(&self, state: &mut JobState, now: Timestamp) {
        state.seats.resize(self.slots.len(), Seat::default());
        let look = |at: usize, seats: &mut [Seat]| {
            if let (Some(place), Some(slot)) = (seats.get_mut(at), self.slots.get(at)) {
                *place = seat::seat(&state.job, slot, now);
            }
        };
        match std::mem::replace(&mut state.stale, Stale::Some(Default::default())) {
            Stale::All => (0..self.slots.len()).for_each(|at| look(at, &mut state.seats)),
            Stale::Some(seats) => seats.into_iter().for_each(|at| look(at, &mut state.seats)),
        }
    }

    fn resolutions(&self, job: &Job, now: Timestamp) -> Vec<Resolution> {
        let since = job.since(now);
        let images = job.images.iter().map(|image| {
            let Ok(reference) = &image.reference else { return Resolution::Known };
            let pin = self.demand.get(&reference.key).and_then(|demand| demand.pin(since));
            if reference.digest.is_some() || pin.is_some() {
                return Resolution::Known;
            }
            match self.asking(reference.key, now) {
                Some((_, until)) => Resolution::Taken(until),
                None => Resolution::Free,
            }
        });
        images.collect()
    }

    /// What keeps an open node from being handed out now.
    fn obstacle(&self, job: &Job, at: usize, free: usize, resolutions: &[Resolution], now: Timestamp) -> Option<Wait> {
        if free == 0 {
            return Some(Wait::Parallelism);
        }
        let taken = |image: &usize| matches!(resolutions.get(*image), Some(Resolution::Taken(_)));
        match (0..resolutions.len()).all(|image| taken(&image)) {
            true => Some(Wait::Unresolved(0)),
            false => self.open_images(job, at, now).find(taken).map(Wait::Unresolved),
        }
    }

    fn open_images(&self, job: &Job, at: usize, now: Timestamp) -> impl Iterator<Item = usize> + use<> {
        let slot = self.slots.get(at);
        let open = (0..job.images.len())
            .filter(|&image| slot.is_some_and(|slot| seat::entry(job, image, slot, now).0 == Entry::Open));
        open.collect::<Vec<usize>>().into_iter()
    }

    fn order_image(
        &mut self,
        job: &Job,
        image: usize,
        at: usize,
        now: Timestamp,
        pulling: usize,
        changes: &mut Changes,
    ) {
        if let Some(Ok(reference)) = job.images.get(image).map(|image| &image.reference) {
            let order = self.hand_out(job, reference, at, now, pulling);
            changes.entry(at).or_default().insert(reference.key, Some(order));
        }
    }

    /// The digest of each image, as far as it is known.
    fn digests(&self, job: &Job, now: Timestamp) -> BTreeMap<String, String> {
        let since = job.since(now);
        let known = job.images.iter().filter_map(|image| {
            let reference = image.reference.as_ref().ok()?;
            let pin = || self.demand.get(&reference.key)?.pin(since).map(|pin| pin.digest.clone());
            Some((image.written.clone(), reference.digest.clone().or_else(pin)?))
        });
        known.collect()
    }
}

impl JobState {
    /// An ended job has no seats any more; it is only kept until its ttl.
    fn retire(&mut self, now: Timestamp, expired: &mut Vec<JobId>) {
        self.seats = Vec::new();
        self.stale = Stale::All;
        self.wake = self.job.expires();
        if self.wake.is_some_and(|expires| expires <= now) {
            expired.push(self.job.id.clone());
            self.wake = None;
        }
    }
}
