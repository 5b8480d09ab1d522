//! One image across the fleet: which jobs want it, which nodes are asking the registry for its digest, and which
//! answers there are. Kept up to date with every order and report, so that a plan need not search the fleet.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::held::{Held, Kinds};
use super::seat::earliest;
use super::{Slot, Stale, World};
use crate::model::{Ask, JobId, Key, Phase, Pin, Report, after};
use crate::pace::{SILENCE, SLOW_ANSWER};
use crate::reason::Reason;

/// What is known about one image.
#[derive(Clone, Debug, Default)]
pub(super) struct Demand {
    /// The jobs that want it and have not ended.
    pub(super) jobs: BTreeSet<JobId>,
    /// Answers of the registry, with how often each is carried.
    pins: BTreeMap<Pin, Carried>,
    /// Nodes that were ordered to ask and have not answered.
    asking: BTreeSet<usize>,
    /// By when they were asked: how many nodes could not learn the digest.
    failed: BTreeMap<Timestamp, usize>,
    /// By when they were asked: how many nodes cannot resolve at all.
    refused: BTreeMap<Timestamp, usize>,
    /// By when they were asked for it: how many nodes more turned out to have it than to have looked for it in vain.
    had: BTreeMap<Timestamp, i64>,
    /// How many nodes are looking whether they have it.
    looking: i64,
    /// What its orders share.
    pub(super) kinds: Kinds,
}

/// Counts nodes by when they were asked.
fn count_at(counts: &mut BTreeMap<Timestamp, usize>, asked: Option<Timestamp>, change: impl FnOnce(&mut usize)) {
    let Some(asked) = asked else { return };
    let nodes = counts.entry(asked).or_default();
    change(nodes);
    if *nodes == 0 {
        counts.remove(&asked);
    }
}

fn since(counts: &BTreeMap<Timestamp, usize>, since: Timestamp) -> usize {
    counts.range(since..).map(|(_, nodes)| nodes).sum()
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
    /// or still look. Where no node has it no node looks, and where all have it they are asked in doubling numbers.
    pub(super) fn may_look(&self, since: Timestamp) -> bool {
        self.had.range(since..).map(|(_, nodes)| nodes).sum::<i64>() > self.looking
    }

    fn is_empty(&self) -> bool {
        self.jobs.is_empty()
            && self.pins.is_empty()
            && self.asking.is_empty()
            && self.failed.is_empty()
            && self.refused.is_empty()
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

/// Whether the node of this order learns the digest from the registry.
fn asks_registry(order: &Held) -> bool {
    matches!(order.ask, Ask::Resolve | Ask::Fetch(None))
}

/// Whether this order makes its node ask the registry for a digest, and it has not answered.
fn is_asking(order: &Held, report: Option<&Report>) -> bool {
    let asks = asks_registry(order) && !order.hold;
    let has_answer = report.is_some_and(|report| report.pin.as_ref().is_some_and(|pin| pin.asked >= order.asked));
    asks && !has_answer && !answered(order, report)
}

/// When a node was asked that could not learn the digest, and whether it cannot resolve at all: that says nothing about the
/// registry.
fn failed(order: &Held, report: Option<&Report>) -> Option<(Timestamp, bool)> {
    let report = report.filter(|report| report.phase == Phase::Failed && answered(order, Some(report)))?;
    asks_registry(order).then(|| (report.asked, report.reason == Some(Reason::Unsupported)))
}

/// Whether a node that asks the registry takes too long: its attempt failed and it rests, it stalls, it is not ready, or it
/// has not said anything for a while. It goes on, but others need not wait for it.
fn is_slow(order: &Held, report: Option<&Report>, slot: &Slot, now: Timestamp) -> bool {
    let troubled = report.is_some_and(|report| report.asked >= order.asked && report.reason.is_some());
    let ready = slot.node.as_ref().is_some_and(|node| node.ready);
    troubled || !ready || after(order.asked, SLOW_ANSWER) <= now
}

/// When a node was asked that did not have to ask the registry, and whether it turned out to have the image: it says that
/// it is there, and not what its tag means.
fn had(order: &Held, report: Option<&Report>) -> Option<(Timestamp, bool)> {
    let report = report.filter(|report| order.pinned.is_none() && answered(order, Some(report)))?;
    match report.phase {
        Phase::Succeeded if report.pin.is_none() => Some((report.asked, true)),
        Phase::Failed if order.ask == Ask::Look => Some((report.asked, false)),
        _ => None,
    }
}

/// What one order of a node, the one for the image or the question about it, contributes to the demand for the image.
#[derive(PartialEq, Default)]
struct Contribution {
    ordered: Option<Pin>,
    reported: Option<Pin>,
    asking: bool,
    failed: Option<Timestamp>,
    refused: Option<Timestamp>,
    had: Option<(Timestamp, bool)>,
    looking: bool,
}

impl Contribution {
    /// A report without its order says nothing: nobody asked for it, or nobody wants to know any more.
    fn of(slot: &Slot, key: Key) -> Self {
        let Some(order) = slot.orders.get(&key) else { return Self::default() };
        let report = slot.report(key);
        let failed = failed(order, report);
        Self {
            ordered: order.pin(),
            reported: report.and_then(|report| report.pin.clone()),
            asking: is_asking(order, report),
            failed: failed.filter(|(_, refused)| !refused).map(|(asked, _)| asked),
            refused: failed.filter(|(_, refused)| *refused).map(|(asked, _)| asked),
            had: had(order, report),
            looking: order.ask == Ask::Look && !answered(order, report),
        }
    }
}

/// The nodes that ask the registry for an image, as a job sees them.
#[derive(Default)]
pub(super) struct Askers {
    /// How many more nodes may be asked.
    pub(super) more: usize,
    /// How many more nodes that cannot resolve may pull what the tag means.
    pub(super) more_pulls: usize,
    /// The first of those that ask, by name; also one whose answer will be too old for the job.
    pub(super) first: Option<usize>,
    /// How many ask.
    pub(super) count: usize,
    /// When one of them would be taken for slow or silent.
    pub(super) until: Option<Timestamp>,
}

/// After this many nodes that cannot resolve no more are asked while one of them pulls.
const ENOUGH_REFUSALS: usize = 3;

impl World {
    /// Changes an order or a report of one node and tells all that it touches.
    pub(super) fn change_entry(&mut self, at: usize, key: Key, change: impl FnOnce(&mut Slot)) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        let is_question = |slot: &Slot| slot.orders.get(&key).is_some_and(|order| order.ask.is_question());
        let was_question = is_question(slot);
        let before = Contribution::of(slot, key);
        change(slot);
        let now = Contribution::of(slot, key);
        // A question counts for the image that it is about.
        let image = if was_question || is_question(slot) { key.question() } else { key };
        let other = Contribution::of(slot, image).asking || Contribution::of(slot, image.question()).asking;
        let demand = self.demand.entry(image).or_default();
        let known = demand.pins.len();
        if before != now {
            demand.count(before.ordered, |carried| carried.orders = carried.orders.saturating_sub(1));
            demand.count(before.reported, |carried| carried.reports = carried.reports.saturating_sub(1));
            demand.count(now.ordered, |carried| carried.orders += 1);
            demand.count(now.reported, |carried| carried.reports += 1);
            match other {
                true => demand.asking.insert(at),
                false => demand.asking.remove(&at),
            };
            for (counts, before, now) in
                [(&mut demand.failed, before.failed, now.failed), (&mut demand.refused, before.refused, now.refused)]
            {
                count_at(counts, before, |nodes| *nodes = nodes.saturating_sub(1));
                count_at(counts, now, |nodes| *nodes += 1);
            }
            demand.count_had(before.had, -1);
            demand.count_had(now.had, 1);
            demand.looking += i64::from(now.looking) - i64::from(before.looking);
        }
        // Whether a digest is known decides for every node that could not learn it.
        let all = known != demand.pins.len();
        for id in &demand.jobs {
            if let Some(state) = self.jobs.get_mut(id) {
                match &mut state.stale {
                    stale if all => *stale = Stale::All,
                    Stale::Some(seats) => {
                        seats.insert(at);
                    }
                    Stale::All => {}
                }
                self.dirty_jobs.insert(id.clone());
            }
        }
        if demand.is_empty() {
            self.demand.remove(&image);
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

    /// Who asks the registry for this image, and how many more may, for a job that counts from `start`: one, and one more for
    /// each that failed or is slow. So a registry that is away is found out by doubling numbers of nodes, not by one after the
    /// other. Nodes that fell silent do not count, nor do those whose answer would be too old for the job.
    pub(super) fn askers(&self, key: Key, start: Timestamp, now: Timestamp) -> Askers {
        let Some(demand) = self.demand.get(&key) else { return Askers { more: 1, more_pulls: 1, ..Askers::default() } };
        let mut askers = Askers::default();
        // Of those that ask, and of those that pull what the tag means: how many are at it, and how many of them are slow.
        let (mut asked, mut pulled) = ((0, 0), (0, 0));
        for &at in &demand.asking {
            let Some(slot) = self.slots.get(at) else { continue };
            for key in [key, key.question()] {
                let (Some(order), report) = (slot.orders.get(&key), slot.report(key)) else { continue };
                let silent = silent_from(order, report, slot, now);
                if !is_asking(order, report) || silent <= now {
                    continue;
                }
                let name = |at: usize| self.slots.get(at).map(|slot| &slot.name);
                if askers.first.is_none_or(|first| name(at) < name(first)) {
                    askers.first = Some(at);
                }
                askers.until = earliest(askers.until, Some(silent));
                if order.asked < start {
                    continue;
                }
                let slow = is_slow(order, report, slot, now);
                if !slow {
                    askers.until = earliest(askers.until, Some(after(order.asked, SLOW_ANSWER)));
                }
                let count = if order.ask.is_question() { &mut asked } else { &mut pulled };
                *count = (count.0 + 1, count.1 + usize::from(slow));
                askers.count += 1;
            }
        }
        let failed = since(&demand.failed, start);
        let more = |(all, slow): (usize, usize)| (1 + failed + slow).saturating_sub(all - slow);
        (askers.more, askers.more_pulls) = (more(asked), more(pulled));
        if pulled.0 > 0 && since(&demand.refused, start) >= ENOUGH_REFUSALS {
            askers.more = 0;
        }
        askers
    }
}
