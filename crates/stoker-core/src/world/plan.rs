//! From the touched jobs to effects: who may pull now, what is taken back, how each job stands, when to look again.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::orders::Changes;
use super::seat::{self, Entry, Seat, Standing, Wait};
use super::secrets::CopyChange;
use super::view::UNKNOWN_NODE;
use super::{JobState, Stale, World};
use crate::model::{Bytes, Job, JobId, Key, NodeName, Order, Policy, Unreachable, after};
use crate::pace;
use crate::reason::Reason;
use crate::rollup::{Count, Outcome, Tally};

/// Every effect of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Orders to write, one entry a node. The World assumes them from now on.
    pub orders: Vec<OrderWrite>,
    /// Jobs whose outcome is another than the one last said.
    pub outcomes: Vec<Outcome>,
    /// Ended jobs whose time to live is over.
    pub expired: Vec<JobId>,
    /// Copies of Secrets to make and to remove.
    pub copies: Vec<CopyChange>,
    /// When to plan again even if nothing happens.
    pub wake: Option<Timestamp>,
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.orders.is_empty() && self.outcomes.is_empty() && self.expired.is_empty() && self.copies.is_empty()
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
    /// Another node is asking.
    Taken {
        /// When it would be given up.
        until: Timestamp,
        /// Whether one more node may look meanwhile whether it has it.
        look: bool,
    },
}

impl World {
    /// Plans for every job that an event or the time touched.
    pub fn plan(&mut self, now: Timestamp) -> Plan {
        // Whole milliseconds, so that no wire format makes an ask older than the start of its job.
        let now = Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now);
        let interval = pace::progress_interval(self.pullers());
        for (id, state) in &mut self.jobs {
            if state.says(interval).is_some_and(|at| at <= now) {
                self.dirty_jobs.insert(id.clone());
            }
            if state.wake.is_some_and(|wake| wake <= now) {
                state.stale = Stale::All;
                self.dirty_jobs.insert(id.clone());
            }
        }
        let mut changes = Changes::new();
        let mut outcomes = BTreeMap::new();
        let mut expired = Vec::new();
        // What is taken back first is free for others in the same plan.
        while let Some(at) = self.dirty_slots.pop_first() {
            self.tidy(at, now, &mut changes);
        }
        self.start_jobs(now);
        self.refresh_all(now);
        loop {
            if let Some(id) = self.dirty_jobs.pop_first() {
                let Some(mut state) = self.jobs.remove(&id) else { continue };
                if state.job.ended.is_some() {
                    state.retire(now, &mut expired);
                } else {
                    let outcome = self.plan_job(&mut state, now, &mut changes);
                    outcomes.insert(id.clone(), outcome);
                    // Its own orders touched it, but it has taken them into account.
                    self.dirty_jobs.remove(&id);
                }
                self.jobs.insert(id, state);
            } else if !self.sweep(&mut changes) {
                break;
            }
        }
        self.taken_back.clear();
        let (copies, spare) = self.plan_copies(now);
        let news = outcomes.into_iter().filter_map(|(id, outcome)| self.news(&id, outcome, interval, now));
        let outcomes = news.collect();
        let wakes = self.jobs.values().flat_map(|state| [state.wake, state.says(interval)]);
        let wake = wakes.chain([spare]).flatten().min();
        Plan { orders: self.order_writes(changes), outcomes, expired, copies, wake }
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

    /// The outcome, if it differs from what was last said of the job. The estimate moves with the clock and is no
    /// news by itself; more bytes are, but not more often than a node tells of its own.
    fn news(&mut self, id: &JobId, mut outcome: Outcome, interval: Duration, now: Timestamp) -> Option<Outcome> {
        let state = self.jobs.get_mut(id)?;
        let eta = outcome.eta.take();
        state.holds_back = false;
        if let Some((said, at)) = &mut state.said {
            if *said == outcome {
                return None;
            }
            let bytes = std::mem::replace(&mut said.bytes, outcome.bytes);
            let only_bytes = *said == outcome;
            said.bytes = bytes;
            if only_bytes && now < after(*at, interval) {
                state.holds_back = true;
                return None;
            }
        }
        state.said = Some((outcome.clone(), now));
        Some(Outcome { eta, ..outcome })
    }

    /// How many nodes may pull at one time, for all jobs together: each of them writes reports.
    fn pullers(&self) -> usize {
        let running = self.jobs.values().filter(|state| state.job.runs());
        let allowed = running.map(|state| usize::try_from(state.job.parallelism).unwrap_or(usize::MAX));
        allowed.fold(0, usize::saturating_add).min(self.by_name.len())
    }

    fn plan_job(&mut self, state: &mut JobState, now: Timestamp, changes: &mut Changes) -> Outcome {
        self.refresh(state, now);
        let taken = self.hand_out_seats(state, now, changes);
        let mut tally = Tally::default();
        for (name, &at) in &self.by_name {
            if let (Some(seat), Some(slot)) = (state.seats.get(at), self.slots.get(at)) {
                self.count(&mut tally, &state.job, name, seat, slot);
            }
        }
        for name in self.unknown_names(&state.job) {
            let count = match state.job.overdue(now) {
                true => Count::Failed(Reason::DeadlineExceeded),
                false => Count::Waiting(Reason::NodeUnknown),
            };
            tally.add(&name.into(), count, Bytes::default(), || UNKNOWN_NODE.into());
        }
        let digests = self.digests(&state.job, now);
        let outcome = tally.outcome(&state.job, digests, &mut state.closing, now);
        let lapses = state.seats.iter().filter_map(|seat| seat.lapse).min();
        let deadline = state.job.deadline().filter(|deadline| *deadline > now);
        let times = [lapses, taken, deadline, state.job.round_ends(now), self.secrets_awaited(&state.job, now)];
        state.wake = times.into_iter().flatten().min();
        outcome
    }

    /// Hands out as many open seats as the pace allows, by name, and says of the others why they wait. Returns when
    /// a node that others wait for would be given up.
    fn hand_out_seats(&mut self, state: &mut JobState, now: Timestamp, changes: &mut Changes) -> Option<Timestamp> {
        let JobState { job, seats, .. } = state;
        let active = seats.iter().filter(|seat| seat.standing == Standing::Active).count();
        let targets = seats.iter().filter(|seat| seat.standing != Standing::Elsewhere).count();
        let mut free = pace::free(job, active);
        let own = targets.min(usize::try_from(job.parallelism).unwrap_or(usize::MAX));
        let pulling = self.pullers().saturating_add(own).min(self.by_name.len());
        let mut resolutions = self.resolutions(job, now);
        let open = self.by_name.values().copied().filter(|&at| seats.get(at).is_some_and(Seat::may_be_handed_out));
        let mut waiting = Vec::new();
        for at in open.collect::<Vec<usize>>() {
            if self.obstacle(job, at, free, &resolutions, now).is_some() {
                waiting.push(at);
                continue;
            }
            for image in self.open_images(job, at, now) {
                self.order_image(job, image, at, now, pulling, changes);
            }
            resolutions = self.resolutions(job, now);
            free -= 1;
            if let (Some(seat), Some(slot)) = (seats.get_mut(at), self.slots.get(at)) {
                *seat = seat::seat(job, slot, &self.secrets, now);
            }
        }
        // Only now is it known who asks the registry and whether a place is left.
        for at in waiting {
            if let (Some(seat), Some(wait)) = (seats.get_mut(at), self.obstacle(job, at, free, &resolutions, now)) {
                seat.standing = Standing::Open(wait);
            }
        }
        let taken = resolutions.iter().filter_map(|resolution| match resolution {
            Resolution::Taken { until, .. } => Some(*until),
            _ => None,
        });
        taken.min()
    }

    /// The names in a job that no node has, where they are waited for.
    pub(super) fn unknown_names<'a>(&'a self, job: &'a Job) -> impl Iterator<Item = &'a str> + 'a {
        let waited_for = job.names.iter().filter(|_| job.unreachable == Unreachable::Wait).flatten();
        waited_for.map(String::as_str).filter(|name| !self.known(name))
    }

    fn known(&self, name: &str) -> bool {
        self.by_name.get(name).and_then(|&at| self.slots.get(at)).is_some_and(|slot| slot.node.is_some())
    }

    fn resolutions(&self, job: &Job, now: Timestamp) -> Vec<Resolution> {
        let since = job.since(now);
        let images = job.images.iter().map(|image| {
            let Ok(reference) = &image.reference else { return Resolution::Known };
            let demand = self.demand.get(&reference.key());
            if reference.digest().is_some() || demand.and_then(|demand| demand.pin(since)).is_some() {
                return Resolution::Known;
            }
            match self.asking(reference.key(), now) {
                Some((_, until)) => {
                    let content = job.pull.policy == Policy::IfNotPresent;
                    Resolution::Taken { until, look: content && demand.is_some_and(|demand| demand.look(since)) }
                }
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
        let wait = |image: usize| match resolutions.get(image) {
            Some(Resolution::Taken { look, .. }) if !look || !self.may_look(job, image, at, now) => {
                Some(Wait::Unresolved(image))
            }
            _ => self.secret_wait(job, image, now),
        };
        match (0..resolutions.len()).any(|image| wait(image).is_some()) {
            true => self.open_images(job, at, now).find_map(wait),
            false => None,
        }
    }

    fn may_look(&self, job: &Job, image: usize, at: usize, now: Timestamp) -> bool {
        let reference = job.images.get(image).and_then(|image| image.reference.as_ref().ok());
        let (Some(reference), Some(slot)) = (reference, self.slots.get(at)) else { return false };
        seat::may_look(slot, reference.key(), job.since(now))
    }

    fn open_images(&self, job: &Job, at: usize, now: Timestamp) -> impl Iterator<Item = usize> + use<> {
        let slot = self.slots.get(at);
        let open = (0..job.images.len()).filter(|&image| {
            slot.is_some_and(|slot| seat::entry(job, image, slot, &self.secrets, now).0 == Entry::Open)
        });
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
            changes.entry(at).or_default().insert(reference.key(), Some(order));
        }
    }

    /// The digest of each image, as far as it is known.
    fn digests(&self, job: &Job, now: Timestamp) -> BTreeMap<String, String> {
        let since = job.since(now);
        let known = job.images.iter().filter_map(|image| {
            let reference = image.reference.as_ref().ok()?;
            let pin = || self.demand.get(&reference.key())?.pin(since).map(|pin| pin.digest.clone());
            Some((image.written.clone(), reference.digest().map(str::to_string).or_else(pin)?))
        });
        known.collect()
    }
}

impl JobState {
    /// An ended job has no seats any more; it is only kept until its ttl.
    fn retire(&mut self, now: Timestamp, expired: &mut Vec<JobId>) {
        self.seats = Vec::new();
        self.stale = Stale::All;
        self.closing = None;
        self.holds_back = false;
        self.wake = self.job.expires().filter(|_| !self.expired);
        if self.wake.is_some_and(|expires| expires <= now) {
            expired.push(self.job.id.clone());
            self.expired = true;
            self.wake = None;
        }
    }
}
