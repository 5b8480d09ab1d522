//! From the touched jobs to effects: who may pull now, what is taken back, how each job stands, when to look again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::demand::{Askers, answered};
use super::orders::Changes;
use super::room::Full;
use super::seat::{self, ImageStanding, JudgedBy, MayAsk, Seat, SeatStanding, Wait};
use super::seats::JobSeats;
use super::view::UNKNOWN_NODE;
use super::{JobState, Stale, World};
use crate::model::{Ask, Bytes, Job, JobId, Key, NodeName, Order, Phase, Policy, Unreachable, after};
use crate::pace;
use crate::reason::Reason;
use crate::reference::Reference;
use crate::rollup::{NodeCount, Outcome, Tally};

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
enum Resolution {
    Known,
    /// Nodes ask, or have to.
    Open {
        askers: Askers,
        /// Whether one more node may look meanwhile whether it has the image.
        look: bool,
        /// Whether nodes that have answered go by their own word, because they disagree and no other can be asked.
        contested: bool,
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
        self.start_jobs(now);
        self.choose_logins();
        // What is taken back first is free for others in the same plan.
        while let Some(at) = self.dirty_slots.pop_first() {
            self.tidy(at, now, &mut changes);
        }
        self.refresh_all(now);
        loop {
            if let Some(id) = self.dirty_jobs.pop_first() {
                if self.jobs.get(&id).is_some_and(|state| self.stands_still(&state.job)) {
                    continue;
                }
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
        let news = outcomes.into_iter().filter_map(|(id, outcome)| self.news(&id, outcome, interval, now));
        let outcomes = news.collect();
        // Time decides nothing about a job that stands still: a time that is over would be over for ever.
        let moving = self.jobs.values().filter(|state| !self.stands_still(&state.job));
        let wakes = moving.flat_map(|state| [state.wake, state.says(interval)]);
        let wake = wakes.flatten().min();
        Plan { orders: self.order_writes(changes), outcomes, expired, wake }
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
        state.eta = eta;
        Some(Outcome { eta, ..outcome })
    }

    /// How many nodes may pull at one time, for all jobs together: each of them writes reports.
    fn pullers(&self) -> usize {
        let running = self.jobs.values().filter(|state| state.job.runs());
        let allowed = running.map(|state| state.job.places(self.by_name.len()));
        allowed.fold(0, usize::saturating_add).min(self.by_name.len())
    }

    fn plan_job(&mut self, state: &mut JobState, now: Timestamp, changes: &mut Changes) -> Outcome {
        self.refresh(state, now);
        let taken = self.hand_out_seats(state, now, changes);
        let mut tally = Tally::default();
        for (at, seat) in state.seats.iter() {
            if let Some(slot) = self.slots.get(*at) {
                self.count(&mut tally, &state.job, slot, seat, now);
            }
        }
        for name in self.unknown_names(&state.job) {
            let count = match state.job.overdue(now) {
                true => NodeCount::Failed(Reason::DeadlineExceeded),
                false => NodeCount::Waiting(Reason::NodeUnknown),
            };
            tally.add(&name.into(), count, Bytes::default(), || UNKNOWN_NODE.into());
        }
        let digests = self.digests(&state.job, now);
        let mut outcome = tally.outcome(&state.job, digests, &mut state.closing, now);
        outcome.secrets = self.secret_troubles(&state.job);
        let lapses = state.seats.iter().filter_map(|(_, seat)| seat.lapse).min();
        let deadline = state.job.deadline().filter(|deadline| *deadline > now);
        let lacks_digests = self.digests_known(&state.job, now).contains(&false);
        let together = Some(awaits_digests_until(&state.job, now)).filter(|until| lacks_digests && *until > now);
        let secrets = self.secrets_awaited(&state.job, now);
        let times = [lapses, taken, deadline, state.job.round_ends(now), secrets, together];
        state.wake = times.into_iter().flatten().min();
        outcome
    }

    /// Asks for the digests that are missing, hands out as many open seats as the pace allows, by name, and says of the others
    /// why they wait. Returns when a node that others wait for would be given up.
    fn hand_out_seats(&mut self, state: &mut JobState, now: Timestamp, changes: &mut Changes) -> Option<Timestamp> {
        let JobState { job, seats, .. } = state;
        self.ask_for_digests(job, seats, now, changes);
        let leaving = |at: &usize| self.leaving.get(at).is_some_and(|jobs| jobs.contains(&job.id));
        let leaving: BTreeSet<usize> = self.leaving.keys().copied().filter(leaving).collect();
        let active = seats.iter().filter(|(_, seat)| seat.standing == SeatStanding::Active).map(|(at, _)| *at);
        let has_place: BTreeSet<usize> = active.chain(leaving).collect();
        let mut free = pace::free(job, seats.len(), has_place.len());
        let own = seats.len().min(job.places(seats.len()));
        let pulling = self.pullers().saturating_add(own).min(self.by_name.len());
        let digests = self.digests_known(job, now);
        let mut resolutions = self.resolutions(job, now);
        // A node at work may have got another image to pull, for which it needs no place more.
        let at_work = |seat: &Seat| matches!(seat.standing, SeatStanding::Active | SeatStanding::Late);
        let mut open = seats.positions(|seat| at_work(seat) || seat.may_be_handed_out());
        // Those that were held go on first: they have a part of it.
        let held: BTreeSet<usize> = self.holding.iter().copied().filter(|at| self.holds(job, *at)).collect();
        if !held.is_empty() {
            open.sort_by_key(|position| !seats.get(*position).is_some_and(|(at, _)| held.contains(at)));
        }
        let mut waiting = Vec::new();
        for position in open {
            let Some(&(at, _)) = seats.get(position) else { continue };
            // One that is at work, or about to drop another pull of this job, has its place.
            let placed = has_place.contains(&at);
            let room = if placed && job.parallelism > 0 { free.max(1) } else { free };
            let ready = match self.obstacle(job, at, room, &resolutions, &digests, now) {
                None => self.ready_images(job, at, &resolutions, &digests, now),
                Some(_) => Vec::new(),
            };
            if ready.is_empty() {
                waiting.push(position);
                continue;
            }
            for image in ready {
                self.order_image(job, image, at, now, pulling, changes);
            }
            resolutions = self.resolutions(job, now);
            self.look_again(job, seats, position, &digests, now);
            // A pull that it has joined may be one that holds no place any more.
            let holds = seats.get(position).is_some_and(|(_, seat)| seat.standing == SeatStanding::Active);
            if !placed && holds {
                free -= 1;
            }
        }
        // Only now is it known who asks the registry and whether a place is left.
        for position in waiting {
            let Some((at, seat)) = seats.get_mut(position).filter(|(_, seat)| seat.may_be_handed_out()) else {
                continue;
            };
            if let Some(wait) = self.obstacle(job, *at, free, &resolutions, &digests, now) {
                seat.standing = SeatStanding::Open(wait);
            }
        }
        let given_up = resolutions.iter().filter_map(|resolution| match resolution {
            Resolution::Open { askers, .. } => askers.until,
            Resolution::Known => None,
        });
        given_up.min()
    }

    fn look_again(&self, job: &Job, seats: &mut JobSeats, position: usize, digests: &[bool], now: Timestamp) {
        let Some((at, seat)) = seats.get_mut(position) else { return };
        let known = JudgedBy { digests, secrets: &self.secrets, now };
        if let Some(now) = self.slots.get(*at).and_then(|slot| seat::seat(job, slot, known)) {
            *seat = now;
        }
    }

    /// Whether the node holds a part of a pull of this job.
    fn holds(&self, job: &Job, at: usize) -> bool {
        let orders = self.slots.get(at).map(|slot| &slot.orders);
        let held = |key: Key| orders.and_then(|orders| orders.get(&key)).is_some_and(|order| order.hold);
        job.keys().any(held)
    }

    /// Has nodes ask the registry for the digests that the job lacks. That fetches nothing, so it takes no place of the job's
    /// parallelism; but a job that is paused does not ask.
    fn ask_for_digests(&mut self, job: &Job, seats: &mut JobSeats, now: Timestamp, changes: &mut Changes) {
        let digests = self.digests_known(job, now);
        if job.parallelism == 0 || digests.iter().all(|known| *known) {
            return;
        }
        let since = job.since(now);
        for image in (0..digests.len()).filter(|image| digests.get(*image) == Some(&false)) {
            let Some(Ok(reference)) = job.images.get(image).map(|image| image.reference.clone()) else { continue };
            for position in seats.positions(|seat| seat.may_be_handed_out()) {
                let Some(&(at, _)) = seats.get(position) else { continue };
                let Some(slot) = self.slots.get(at) else { continue };
                let known = JudgedBy { digests: &digests, secrets: &self.secrets, now };
                let (Resolution::Open { askers, look, .. }, true) = (
                    self.resolution(job, image, &reference, now),
                    seat::entry(job, image, slot, known).0 == ImageStanding::Open
                        && self.secret_wait(job, image, at, now).is_none()
                        && self.has_no_room(job, image, at).is_none(),
                ) else {
                    continue;
                };
                let able = seat::able(slot, reference.key(), since, now) == MayAsk::Resolve;
                let ask = match (able, askers.more > 0) {
                    (true, true) => Ask::Resolve,
                    (true, false) if look && seat::may_look(slot, reference.key(), since) => Ask::Look,
                    (_, false) if !look => break,
                    _ => continue,
                };
                let order = self.ask(job, &reference, at, ask, now);
                changes.entry(at).or_default().insert(reference.key().question(), Some(order));
                self.look_again(job, seats, position, &digests, now);
            }
        }
    }

    /// The names in a job that no node has, where they are waited for.
    pub(super) fn unknown_names<'a>(&'a self, job: &'a Job) -> impl Iterator<Item = &'a str> + 'a {
        let waited_for = job.names.iter().filter(|_| job.unreachable == Unreachable::Wait).flatten();
        waited_for.map(String::as_str).filter(|name| !self.has_node(name))
    }

    /// Whether there is a node of this name.
    pub fn has_node(&self, name: &str) -> bool {
        self.by_name.get(name).and_then(|&at| self.slots.get(at)).is_some_and(|slot| slot.node.is_some())
    }

    fn resolutions(&self, job: &Job, now: Timestamp) -> Vec<Resolution> {
        let images = job.images.iter().enumerate().map(|(image, written)| match &written.reference {
            Ok(reference) => self.resolution(job, image, reference, now),
            Err(_) => Resolution::Known,
        });
        images.collect()
    }

    fn resolution(&self, job: &Job, image: usize, reference: &Reference, now: Timestamp) -> Resolution {
        if reference.digest().is_some() || self.pin(job, image, now).is_some() {
            return Resolution::Known;
        }
        let since = job.since(now);
        let demand = self.demand.get(&reference.key());
        let content = job.pull.policy == Policy::IfNotPresent;
        let askers = self.askers(reference.key(), since, now);
        let contested = self.is_contested(job, image, reference.key(), &askers, now);
        Resolution::Open { askers, look: content && demand.is_some_and(|demand| demand.may_look(since)), contested }
    }

    /// What keeps an open node from being handed out now.
    fn obstacle(
        &self,
        job: &Job,
        at: usize,
        free: usize,
        resolutions: &[Resolution],
        digests: &[bool],
        now: Timestamp,
    ) -> Option<Wait> {
        if job.parallelism == 0 || free == 0 && digests.iter().all(|known| *known) {
            return Some(Wait::of_all(Reason::Parallelism));
        }
        let waits: Vec<Option<Wait>> = self.image_waits(job, at, resolutions, digests, now).collect();
        let first = waits.iter().flatten().next().copied();
        // What is ready goes without the rest when that takes too long.
        let together = now < awaits_digests_until(job, now);
        match first {
            Some(wait) if together || waits.iter().all(Option::is_some) => Some(wait),
            _ => (free == 0).then_some(Wait::of_all(Reason::Parallelism)),
        }
    }

    /// Of each image that a node lacks and does not pull what it waits for; `None` for one that may be handed out.
    fn image_waits<'a>(
        &'a self,
        job: &'a Job,
        at: usize,
        resolutions: &'a [Resolution],
        digests: &'a [bool],
        now: Timestamp,
    ) -> impl Iterator<Item = Option<Wait>> + 'a {
        let open = self.open_images(job, at, digests, now).into_iter();
        open.map(move |(image, entry)| match (entry, self.has_no_room(job, image, at), resolutions.get(image)) {
            (ImageStanding::Asking, ..) => Some(Wait { reason: Reason::Unresolved, image }),
            (_, Some(_), _) => Some(Wait { reason: Reason::TooManyOrders, image }),
            (_, _, Some(Resolution::Open { askers, contested, .. })) => {
                match askers.more_pulls > 0 && self.must_pull(job, image, at, *contested, now) {
                    true => self.secret_wait(job, image, at, now),
                    // What it needs to ask comes before who asks.
                    false if askers.count == 0 => {
                        self.secret_wait(job, image, at, now).or(Some(Wait { reason: Reason::Unresolved, image }))
                    }
                    false => Some(Wait { reason: Reason::Unresolved, image }),
                }
            }
            _ => self.secret_wait(job, image, at, now),
        })
    }

    /// Whether the node's object has no room for this image, for the order or for the question about it.
    fn has_no_room(&self, job: &Job, image: usize, at: usize) -> Option<Full> {
        let key = job.images.get(image)?.reference.as_ref().ok()?.key();
        self.is_full(job, at, key)
    }

    /// The images that a node may pull now.
    fn ready_images(
        &self,
        job: &Job,
        at: usize,
        resolutions: &[Resolution],
        digests: &[bool],
        now: Timestamp,
    ) -> Vec<usize> {
        let open = self.open_images(job, at, digests, now).into_iter().map(|(image, _)| image);
        let waits = self.image_waits(job, at, resolutions, digests, now);
        open.zip(waits).filter(|(_, wait)| wait.is_none()).map(|(image, _)| image).collect()
    }

    /// Whether this node goes by what it hears itself: only its runtime can find out what the tag means, by pulling it, or nodes
    /// disagree.
    fn must_pull(&self, job: &Job, image: usize, at: usize, contested: bool, now: Timestamp) -> bool {
        let reference = job.images.get(image).and_then(|image| image.reference.as_ref().ok());
        let (Some(reference), Some(slot)) = (reference, self.slots.get(at)) else { return false };
        match seat::able(slot, reference.key(), job.since(now), now) {
            MayAsk::Pull => true,
            MayAsk::Nothing => contested && self.has_resolved(at, reference.key().question()),
            MayAsk::Resolve => false,
        }
    }

    /// The images that a node lacks and does not pull.
    fn open_images(&self, job: &Job, at: usize, digests: &[bool], now: Timestamp) -> Vec<(usize, ImageStanding)> {
        let known = JudgedBy { digests, secrets: &self.secrets, now };
        let Some(slot) = self.slots.get(at) else { return Vec::new() };
        let entries = (0..job.images.len()).map(|image| (image, seat::entry(job, image, slot, known).0));
        entries.filter(|(_, entry)| matches!(entry, ImageStanding::Open | ImageStanding::Asking)).collect()
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
        let Some(Ok(reference)) = job.images.get(image).map(|image| &image.reference) else { return };
        if let Some(order) = self.hand_out(job, image, at, now, pulling) {
            let pinned = order.pin().is_some();
            changes.entry(at).or_default().insert(reference.key(), Some(order));
            // The digest is carried by the order from now on: the node's object need not keep the question, too.
            let question = reference.key().question();
            if pinned && self.has_resolved(at, question) && !self.keeps(at, question) {
                self.set_order(at, question, None);
                changes.entry(at).or_default().insert(question, None);
            }
        }
    }

    /// Whether the order under this key stays because of a job whose kind is frozen.
    fn keeps(&self, at: usize, key: Key) -> bool {
        self.slots.get(at).and_then(|slot| slot.orders.get(&key)).is_some_and(|order| self.is_kept(order))
    }

    /// Whether the node has answered this question with a digest.
    fn has_resolved(&self, at: usize, question: Key) -> bool {
        let Some(slot) = self.slots.get(at) else { return false };
        let resolved = slot.report(question).filter(|report| report.phase == Phase::Resolved);
        slot.orders.get(&question).is_some_and(|order| order.ask.is_question() && answered(order, resolved))
    }

    /// The digest of each image, as far as it is known, and the images of which only one node has said it.
    fn digests(&self, job: &Job, now: Timestamp) -> (BTreeMap<String, String>, Vec<String>) {
        let (mut digests, mut alone) = (BTreeMap::new(), Vec::new());
        for (image, reference) in job.images.iter().filter_map(|image| Some((image, image.reference.as_ref().ok()?))) {
            let named = reference.digest().map(str::to_string);
            let told = || {
                let pin = self.digest_to_tell(job, reference, now)?;
                alone.extend(pin.alone.then(|| image.written.clone()));
                Some(pin.digest)
            };
            if let Some(digest) = named.or_else(told) {
                digests.insert(image.written.clone(), digest);
            }
        }
        (digests, alone)
    }
}

/// Until when the nodes of a job wait for the digests of all its images.
fn awaits_digests_until(job: &Job, now: Timestamp) -> Timestamp {
    after(job.since(now), pace::AWAIT_DIGESTS)
}

impl JobState {
    /// An ended job has no seats any more; it is only kept until its ttl.
    fn retire(&mut self, now: Timestamp, expired: &mut Vec<JobId>) {
        self.seats = JobSeats::default();
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
