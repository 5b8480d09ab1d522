//! From the touched jobs to effects: who may pull now, what is taken back, how each job stands, when to look again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::asking::{Resolution, Resolutions};
use super::demand::answered;
use super::orders::{Changes, HandedOut};
use super::refresh::Digests;
use super::relay::sources_first;
use super::room::Full;
use super::seat::{self, ImageStanding, JudgedBy, MayAsk, Seat, SeatStanding, Wait};
use super::seats::JobSeats;
use super::told::Standings;
use super::view::{NOT_TRIED, UNKNOWN_NODE};
use super::{JobState, NodeSlot, Stale, World};
use crate::model::{Bytes, Job, JobId, Key, NodeName, Phase, Unreachable, after};
use crate::pace;
use crate::reason::{Reason, Waiting};
use crate::rollup::{NodeCount, Outcome, Tally};

/// How often one plan looks at a job once more, at most.
const MOST_REPEATS: usize = 4;

/// Every effect of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Orders to write, one entry a node: by name, but those first that others read from. The World assumes them from now on.
    pub orders: Vec<OrderWrite>,
    /// Jobs whose outcome is another than the one last said.
    pub outcomes: Vec<Outcome>,
    /// Ended jobs whose time to live is over.
    pub expired: Vec<JobId>,
    /// Where [`World::tell_nodes`] asks for them: nodes that came or went since the last plan, or whose orders or reports are others since then, or
    /// on which a job stands somewhere else. A mere sign of life is none of that.
    pub nodes: BTreeSet<NodeName>,
    /// When to plan again even if nothing happens.
    pub wake: Option<Timestamp>,
}

impl Plan {
    /// Whether there is nothing to do. That nodes are to be looked at is nothing that the World wants done.
    pub fn is_empty(&self) -> bool {
        self.orders.is_empty() && self.outcomes.is_empty() && self.expired.is_empty()
    }
}

/// The changes of one node's orders. A plan may change a hundred thousand orders, which would take more memory than the World holds: so they
/// are named by their keys, and [`World::order`] says what each of them is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderWrite {
    /// Whose orders.
    pub node: NodeName,
    /// The orders that are new or changed, and those that are taken away.
    pub keys: BTreeSet<Key>,
}

/// A node that something may be handed out to, with what is known about the images of the job there.
#[derive(Clone, Copy)]
struct OpenNode<'a> {
    /// Its slot.
    at: usize,
    /// From when on its answers count.
    since: Timestamp,
    /// Whether it is a foreign one: it need not know a digest.
    foreign: bool,
    resolutions: &'a [Resolution],
    digests: &'a [bool],
    now: Timestamp,
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
                state.choice.due |= state.job.pick.is_some();
                self.dirty_jobs.insert(id.clone());
            }
        }
        let mut changes = Changes::new();
        let mut outcomes = BTreeMap::new();
        let mut expired = Vec::new();
        let mut repeats: BTreeMap<JobId, usize> = BTreeMap::new();
        self.forget_far_orders(now);
        self.judge();
        self.start_jobs(now);
        self.choose_nodes(now);
        self.choose_logins();
        self.touch_readers_of_moved();
        // What is taken back first is free for others in the same plan.
        while let Some(at) = self.dirty_slots.pop_first() {
            self.tidy(at, now, &mut changes);
        }
        // Who is at work and gets nothing comes before those who have not begun.
        self.repair(now, &mut changes);
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
                    // Unless they have settled what a tag means, or that nobody else can be asked: nodes that waited for that, and
                    // that come before those in the same plan, may go.
                    let repeats = repeats.entry(id.clone()).or_default();
                    if *repeats < MOST_REPEATS && state.seats.iter().any(|(_, seat)| seat.is_pending()) {
                        *repeats += 1;
                        state.stale = Stale::All;
                        self.dirty_jobs.insert(id.clone());
                    }
                }
                self.jobs.insert(id, state);
            } else if !self.repair(now, &mut changes) && !self.sweep(&mut changes) {
                break;
            }
        }
        let repairs = self.repairs_lapse(now);
        self.chains.clear();
        self.taken_back.clear();
        let news = outcomes.into_iter().filter_map(|(id, outcome)| self.news(&id, outcome, interval, now));
        let outcomes = news.collect();
        // Time decides nothing about a job that stands still: a time that is over would be over for ever.
        let wakes = self.jobs.values().map(|state| (state, state.wake.into_iter().chain(state.says(interval)).min()));
        let moving = wakes.filter(|(state, wake)| wake.is_some() && !self.stands_still(&state.job));
        let wake = moving.filter_map(|(_, wake)| wake).chain(repairs).min();
        let nodes = self.told_nodes.as_mut().map(std::mem::take).unwrap_or_default();
        Plan { orders: self.order_writes(changes), outcomes, expired, nodes, wake }
    }

    fn order_writes(&self, changes: Changes) -> Vec<OrderWrite> {
        let named = changes.into_iter().filter_map(|(at, keys)| {
            let node = self.slots.get(at)?.name.clone();
            Some(OrderWrite { node, keys })
        });
        let mut writes: Vec<OrderWrite> = named.collect();
        writes.sort_by(|a, b| a.node.cmp(&b.node));
        sources_first(&mut writes, |node, key| {
            let slot = self.by_name.get(node).and_then(|&at| self.slots.get(at))?;
            slot.orders.get(&key)?.peers().next().map(|peer| &peer.node)
        });
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
            // Nobody reads how many bytes a standing job has brought.
            let standing = state.job.is_standing();
            if only_bytes && (standing || now < after(*at, interval)) {
                state.holds_back = !standing;
                return None;
            }
        }
        state.said = Some((outcome.clone(), now));
        state.eta = eta;
        Some(Outcome { eta, ..outcome })
    }

    /// How many nodes may pull at one time, for all jobs together: each of them writes reports. Standing jobs run for ever, and most of their nodes
    /// are done: they would slow the reports of all others down for ever.
    fn pullers(&self) -> usize {
        let running = self.jobs.values().filter(|state| state.job.runs() && !state.job.is_standing());
        let allowed = running.map(|state| state.job.places(self.by_name.len()));
        allowed.fold(0, usize::saturating_add).min(self.by_name.len())
    }

    fn plan_job(&mut self, state: &mut JobState, now: Timestamp, changes: &mut Changes) -> Outcome {
        let before = state.before.take().or_else(|| self.told_nodes.is_some().then(|| Standings::of(&state.seats)));
        self.refresh(state, now);
        let (taken, handed_out) = self.hand_out_seats(state, now, changes);
        if let Some(before) = before {
            self.tell_seats(&before, &state.seats);
        }
        let given_up = self.has_too_many_failures(state) && !state.seats.iter().any(|(_, seat)| seat.is_at_work());
        if std::mem::replace(&mut state.given_up, given_up) != given_up {
            state.seats.iter().for_each(|(at, _)| self.tell_node(*at));
        }
        let mut tally = Tally::default();
        for (at, seat) in state.seats.iter() {
            self.count(&mut tally, state, (*at, seat), now);
        }
        for name in self.unknown_names(&state.job) {
            let (count, message) = match state.job.overdue(now) {
                true => (NodeCount::Failed(Reason::DeadlineExceeded), UNKNOWN_NODE.into()),
                false if state.given_up => (NodeCount::Failed(Reason::FailureTolerance), NOT_TRIED.into()),
                false => (NodeCount::Waiting(Reason::NodeUnknown), Waiting::NodeUnknown.unusual()),
            };
            tally.add(name, count, Bytes::default(), || message);
        }
        let lacking = match state.job.overdue(now) {
            true => NodeCount::Failed(Reason::DeadlineExceeded),
            false if state.given_up => NodeCount::Failed(Reason::FailureTolerance),
            false => NodeCount::Waiting(Reason::TooFewNodes),
        };
        tally.lack(state.job.lacking(), lacking);
        let digests = self.digests(&state.job, now);
        let mut outcome = tally.outcome(&state.job, digests, &mut state.closing, now);
        outcome.secrets = self.secret_troubles(&state.job);
        outcome.refused = self.refused_orders(&state.job);
        if outcome.waiting_for.contains_key(&Reason::NotAllowed) && outcome.not_allowed.is_none() {
            outcome.not_allowed = self.first_off_limits(state);
        }
        let lapses = state.seats.iter().filter_map(|(_, seat)| seat.lapse).min();
        let deadline = state.job.deadline().filter(|deadline| *deadline > now);
        let fresh = handed_out.then(|| self.digests_known(&state.job, now));
        let digests = fresh.as_ref().unwrap_or(&state.digests);
        let together = digests.lacking().map(awaits_digests_until).filter(|until| *until > now).min();
        let secrets = self.secrets_awaited(&state.job, now);
        let sources = self.sources_lapse(&state.job, &state.seats, now);
        let chooses = state.choice.later;
        let times =
            [lapses, taken, deadline, state.job.round_ends(now), secrets, together, digests.later, sources, chooses];
        state.wake = times.into_iter().flatten().min();
        outcome
    }

    /// Asks for the digests that are missing, hands out as many open seats as the pace allows, by name, and says of the others
    /// why they wait. Returns when a node that others wait for would be given up, and whether anything was handed out.
    fn hand_out_seats(
        &mut self,
        state: &mut JobState,
        now: Timestamp,
        changes: &mut Changes,
    ) -> (Option<Timestamp>, bool) {
        if self.has_too_many_failures(state) {
            for position in state.seats.positions(Seat::may_be_handed_out) {
                if let Some((_, seat)) = state.seats.get_mut(position) {
                    seat.standing = SeatStanding::Open(Wait::of_all(Reason::FailureTolerance));
                }
            }
            return (None, false);
        }
        let JobState { job, seats, digests, .. } = state;
        let mut handed_out = self.ask_for_digests(job, seats, digests, now, changes);
        let fresh = handed_out.then(|| self.digests_known(job, now));
        let digests = fresh.as_ref().unwrap_or(digests);
        let leaving = |at: &usize| self.leaving.get(at).is_some_and(|jobs| jobs.contains(&job.id));
        let leaving: BTreeSet<usize> = self.leaving.keys().copied().filter(leaving).collect();
        let active = seats.iter().filter(|(_, seat)| seat.holds_place()).map(|(at, _)| *at);
        let has_place: BTreeSet<usize> = active.chain(leaving).collect();
        let mut free = pace::free(job, seats.len(), has_place.len());
        let mut resolutions = Resolutions::default();
        // A node at work may have got another image to pull, for which it needs no place more.
        let mut open = seats.positions(|seat| seat.is_at_work() || seat.may_be_handed_out());
        let own = if job.is_standing() { open.len() } else { seats.len() }.min(job.places(seats.len()));
        let pulling = self.pullers().saturating_add(own).min(self.by_name.len());
        if free > 0 {
            let since = digests.only_since().unwrap_or_else(|| job.began(now));
            let first = self.resolutions(job, &mut resolutions, since, now).first().and_then(Resolution::digest);
            self.prepare_job(job, first.map(|digest| (0, Some(digest))).into_iter(), now);
            self.sort_by_speed(job, first, seats, &mut open);
        }
        // Those that were held go on first: they have a part of it.
        let held: BTreeSet<usize> = self.holding.iter().copied().filter(|at| self.holds(job, *at)).collect();
        if !held.is_empty() {
            open.sort_by_key(|position| !seats.get(*position).is_some_and(|(at, _)| held.contains(at)));
        }
        let mut left = self.nodes_left(job, seats);
        let mut waiting = Vec::new();
        for position in open {
            let Some(&(at, _)) = seats.get(position) else { continue };
            if left.as_ref().is_some_and(|(left, begun)| *left == 0 && !begun.contains(&at)) {
                waiting.push(position);
                continue;
            }
            // One that is at work, or about to drop another pull of this job, has its place.
            let placed = has_place.contains(&at);
            let room = if placed && job.parallelism > 0 { free.max(1) } else { free };
            let node = self.open_node(job, at, &mut resolutions, digests, now);
            if room > 0 || node.digests.contains(&false) {
                let resolutions = node.resolutions.iter().enumerate();
                self.prepare_job(job, resolutions.map(|(image, resolution)| (image, resolution.digest())), now);
            }
            let ready = match self.obstacle(job, node, room) {
                None => self.ready_images(job, node),
                Some(_) => Vec::new(),
            };
            if ready.is_empty() {
                waiting.push(position);
                continue;
            }
            for image in ready {
                self.order_image(job, image, at, now, pulling, changes);
            }
            handed_out = true;
            if let Some((left, begun)) = &mut left
                && begun.insert(at)
            {
                *left = left.saturating_sub(1);
            }
            resolutions.0.clear();
            self.look_again(job, seats, position, digests, now);
            // A pull that it has joined may be one that holds no place any more.
            let holds = seats.get(position).is_some_and(|(_, seat)| seat.holds_place());
            if !placed && holds {
                free -= 1;
            }
        }
        // Only now is it known who asks the registry and whether a place is left. By name: what is said of each node must not follow from who may
        // be the next one at this moment.
        waiting.sort_unstable();
        for position in waiting {
            let Some((at, seat)) = seats.get_mut(position).filter(|(_, seat)| seat.may_be_handed_out()) else {
                continue;
            };
            let at = *at;
            let another = left.as_mut().filter(|(_, begun)| !begun.contains(&at)).map(|(left, _)| left);
            if another.as_ref().is_some_and(|left| **left == 0) {
                seat.standing = SeatStanding::Open(Wait::NO_NODE_LEFT);
                continue;
            }
            let node = self.open_node(job, at, &mut resolutions, digests, now);
            let Some(wait) = self.obstacle(job, node, free) else { continue };
            seat.standing = SeatStanding::Open(wait);
            if let Some(left) = another.filter(|_| wait.reason == Reason::Parallelism) {
                // It is the next one to begin; of the others only as many as are left then wait for their turn.
                *left -= 1;
            }
            let unlooked = if wait.reason == Reason::NoSource { self.unlooked(job, at, now) } else { Vec::new() };
            if !unlooked.is_empty() {
                let waits = self.image_waits(job, node).flatten().filter(|wait| wait.reason == Reason::NoSource);
                let images: Vec<usize> =
                    waits.map(|wait| wait.image).filter(|image| unlooked.contains(image)).collect();
                self.look_for_own(job, (at, &images), now, changes);
                self.look_again(job, seats, position, digests, now);
                // Whether it looks changes nothing about what it waits for, unless its object is full now.
                let node = self.open_node(job, at, &mut resolutions, digests, now);
                let wait = self.obstacle(job, node, free).unwrap_or(wait);
                seats.get_mut(position).into_iter().for_each(|(_, seat)| seat.standing = SeatStanding::Open(wait));
            }
        }
        let open = seats.iter().filter(|(_, seat)| seat.is_at_work() || seat.may_be_handed_out());
        let sinces: BTreeSet<Timestamp> = open.map(|(at, _)| self.since(job, *at, now)).collect();
        let given_up = sinces.into_iter().filter_map(|since| {
            let resolutions = self.resolutions(job, &mut resolutions, since, now).iter();
            let until = resolutions.filter_map(|resolution| match resolution {
                Resolution::Open { askers, .. } => askers.until,
                Resolution::Known(_) => None,
            });
            until.min()
        });
        (given_up.min(), handed_out)
    }

    /// Whether more nodes of the job have failed than it tolerates.
    fn has_too_many_failures(&self, state: &JobState) -> bool {
        let failed = || state.seats.iter().filter(|(_, seat)| matches!(seat.standing, SeatStanding::Failed(_))).count();
        let nodes = || state.seats.len() + self.unknown_names(&state.job).count() + state.job.lacking();
        state.job.tolerance.is_some() && state.job.runs() && state.job.gives_up(failed(), nodes())
    }

    /// Whether the node holds a part of a pull of this job.
    fn holds(&self, job: &Job, at: usize) -> bool {
        let orders = self.slots.get(at).map(|slot| &slot.orders);
        let held = |key: Key| orders.and_then(|orders| orders.get(&key)).is_some_and(|order| order.hold);
        job.keys().any(held)
    }

    /// The names in a job that no node has, where they are waited for.
    pub(super) fn unknown_names<'a>(&'a self, job: &'a Job) -> impl Iterator<Item = &'a NodeName> + 'a {
        // Chosen nodes are there, or others are chosen in the next plan.
        let names = job.names.iter().filter(|_| job.unreachable == Unreachable::Wait && job.pick.is_none());
        names.flat_map(|names| names.keys()).filter(|name| !self.has_node(name))
    }

    /// Whether there is a node of this name.
    pub fn has_node(&self, name: &str) -> bool {
        self.by_name.get(name).and_then(|&at| self.slots.get(at)).is_some_and(|slot| slot.node.is_some())
    }

    fn open_node<'a>(
        &self,
        job: &Job,
        at: usize,
        resolutions: &'a mut Resolutions,
        digests: &'a Digests,
        now: Timestamp,
    ) -> OpenNode<'a> {
        let since = self.since(job, at, now);
        let foreign = self.slots.get(at).is_some_and(NodeSlot::is_foreign);
        let resolutions = self.resolutions(job, resolutions, since, now);
        OpenNode { at, since, foreign, resolutions, digests: digests.of(since), now }
    }

    /// What keeps an open node from being handed out now.
    fn obstacle(&self, job: &Job, node: OpenNode<'_>, free: usize) -> Option<Wait> {
        if job.parallelism == 0 || free == 0 && node.digests.iter().all(|known| *known) {
            return Some(Wait::of_all(Reason::Parallelism));
        }
        let waits: Vec<Option<Wait>> = self.image_waits(job, node).collect();
        let first = waits.iter().flatten().next().copied();
        // What is ready goes without the rest when that takes too long.
        let together = node.now < awaits_digests_until(node.since);
        match first {
            Some(wait) if together || waits.iter().all(Option::is_some) => Some(wait),
            _ => (free == 0).then_some(Wait::of_all(Reason::Parallelism)),
        }
    }

    /// Of each image that a node lacks and does not pull what it waits for; `None` for one that may be handed out.
    fn image_waits<'a>(&'a self, job: &'a Job, node: OpenNode<'a>) -> impl Iterator<Item = Option<Wait>> + 'a {
        let OpenNode { at, now, .. } = node;
        let open = self.open_images(job, node).into_iter();
        let digest = |image: usize| node.resolutions.get(image).and_then(Resolution::digest);
        let other_wait = move |image: usize| {
            let secret = self.secret_wait(job, image, at, now);
            secret.or_else(|| self.source_wait(job, image, at, digest(image), now))
        };
        open.map(move |(image, entry)| match (entry, self.has_no_room(job, image, at), node.resolutions.get(image)) {
            (ImageStanding::Asking, ..) => Some(Wait { reason: Reason::Unresolved, image }),
            (_, Some(_), _) => Some(Wait { reason: Reason::TooManyOrders, image }),
            (_, _, Some(Resolution::Open { askers, contested, .. })) if !node.foreign => {
                match askers.more_pulls > 0 && self.must_pull(job, image, node, *contested) {
                    true => other_wait(image),
                    // What it needs to ask comes before who asks.
                    false if askers.count == 0 => {
                        self.secret_wait(job, image, at, now).or(Some(Wait { reason: Reason::Unresolved, image }))
                    }
                    false => Some(Wait { reason: Reason::Unresolved, image }),
                }
            }
            _ => other_wait(image),
        })
    }

    /// Whether the node's object has no room for this image, for the order or for the question about it.
    pub(super) fn has_no_room(&self, job: &Job, image: usize, at: usize) -> Option<Full> {
        let key = job.images.get(image)?.reference.as_ref().ok()?.key();
        self.is_full(job, at, key)
    }

    /// The images that a node may pull now.
    fn ready_images(&self, job: &Job, node: OpenNode<'_>) -> Vec<usize> {
        let open = self.open_images(job, node).into_iter().map(|(image, _)| image);
        let waits = self.image_waits(job, node);
        open.zip(waits).filter(|(_, wait)| wait.is_none()).map(|(image, _)| image).collect()
    }

    /// Whether this node goes by what it hears itself: only its runtime can find out what the tag means, by pulling it, or nodes
    /// disagree.
    fn must_pull(&self, job: &Job, image: usize, node: OpenNode<'_>, contested: bool) -> bool {
        let reference = job.images.get(image).and_then(|image| image.reference.as_ref().ok());
        let (Some(reference), Some(slot)) = (reference, self.slots.get(node.at)) else { return false };
        match seat::able(slot, reference.key(), node.since, node.now) {
            MayAsk::Pull => true,
            MayAsk::Nothing => contested && self.has_resolved(node.at, reference.key().question()),
            MayAsk::Resolve => false,
        }
    }

    /// The images that a node lacks and does not pull.
    fn open_images(&self, job: &Job, node: OpenNode<'_>) -> Vec<(usize, ImageStanding)> {
        let OpenNode { at, since, digests, now, .. } = node;
        let known = JudgedBy { digests, secrets: &self.secrets, since, now };
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
        if let Some(HandedOut { pinned, instead_of }) = self.hand_out(job, image, at, now, pulling) {
            if let Some(seed) = instead_of {
                self.demote_seed(seed, reference.key(), now, changes);
            }
            changes.entry(at).or_default().insert(reference.key());
            // The digest is carried by the order from now on: the node's object need not keep the question, too.
            let question = reference.key().question();
            let present = self.slots.get(at).and_then(|slot| slot.report(question)).is_some_and(|said| said.present);
            // Unless it says that the image is there, which some job may go by.
            if pinned && self.has_resolved(at, question) && !present && !self.keeps(at, question) {
                self.set_order(at, question, None);
                changes.entry(at).or_default().insert(question);
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

/// Until when nodes that count from this time wait for the digests of all images of their job.
fn awaits_digests_until(since: Timestamp) -> Timestamp {
    after(since, pace::AWAIT_DIGESTS)
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
