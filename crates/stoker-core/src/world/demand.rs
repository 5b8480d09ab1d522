//! One image across the fleet: which jobs want it, which nodes are asking the registry for its digest, and which
//! answers there are. Kept up to date with every order and report, so that a plan need not search the fleet.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::held::{Held, Kinds};
use super::seat::earliest;
use super::{Slot, Stale, World};
use crate::model::{Ask, JobId, Key, Phase, Pin, Report, after};
use crate::pace::SILENCE;
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

    fn count_failed(&mut self, asked: Option<Timestamp>, change: impl FnOnce(&mut usize)) {
        let Some(asked) = asked else { return };
        let nodes = self.failed.entry(asked).or_default();
        change(nodes);
        if *nodes == 0 {
            self.failed.remove(&asked);
        }
    }

    /// How many nodes may ask the registry at one time, for a job that counts from `since`: one, and one more for each
    /// that failed. So a registry that is away is found out by doubling numbers of nodes, not by one after the other.
    fn askers_allowed(&self, since: Timestamp) -> usize {
        self.failed.range(since..).map(|(_, nodes)| nodes).sum::<usize>().saturating_add(1)
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

/// Whether this order makes its node ask the registry for a digest, and it has not answered.
fn is_asking(order: &Held, report: Option<&Report>) -> bool {
    let asks = matches!(order.ask, Ask::Resolve | Ask::Fetch(None)) && !order.hold;
    let has_answer = report.is_some_and(|report| report.pin.as_ref().is_some_and(|pin| pin.asked >= order.asked));
    asks && !has_answer && !answered(order, report)
}

/// When a node was asked that could not learn the digest. One that cannot resolve at all says nothing about the registry.
fn failed(order: &Held, report: Option<&Report>) -> Option<Timestamp> {
    let report = report.filter(|report| report.phase == Phase::Failed && answered(order, Some(report)))?;
    let asked = matches!(order.ask, Ask::Resolve | Ask::Fetch(None));
    (asked && report.reason != Some(Reason::Unsupported)).then_some(report.asked)
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
    had: Option<(Timestamp, bool)>,
    looking: bool,
}

impl Contribution {
    /// A report without its order says nothing: nobody asked for it, or nobody wants to know any more.
    fn of(slot: &Slot, key: Key) -> Self {
        let Some(order) = slot.orders.get(&key) else { return Self::default() };
        let report = slot.report(key);
        Self {
            ordered: order.pin(),
            reported: report.and_then(|report| report.pin.clone()),
            asking: is_asking(order, report),
            failed: failed(order, report),
            had: had(order, report),
            looking: order.ask == Ask::Look && !answered(order, report),
        }
    }
}

/// The nodes that ask the registry for an image, as a job sees them.
pub(super) struct Askers {
    /// How many more nodes may ask.
    pub(super) more: usize,
    /// Those that ask and did not fall silent, the first by name.
    pub(super) first: Option<usize>,
    /// How many ask.
    pub(super) count: usize,
    /// When the first of them would be taken for silent.
    pub(super) until: Option<Timestamp>,
}

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
            demand.count_failed(before.failed, |nodes| *nodes = nodes.saturating_sub(1));
            demand.count_failed(now.failed, |nodes| *nodes += 1);
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

    /// Who asks the registry for this image, and how many more may, for a job that counts from `since`. Nodes that fell
    /// silent do not count, nor do those whose answer would be too old for the job.
    pub(super) fn askers(&self, key: Key, since: Timestamp, now: Timestamp) -> Askers {
        let mut askers = Askers { more: 1, first: None, count: 0, until: None };
        let Some(demand) = self.demand.get(&key) else { return askers };
        for &at in &demand.asking {
            let Some(slot) = self.slots.get(at) else { continue };
            let asks = [key, key.question()].into_iter().filter_map(|key| {
                let (order, report) = (slot.orders.get(&key)?, slot.report(key));
                let silent = silent_from(order, report, slot, now);
                (is_asking(order, report) && order.asked >= since && now < silent).then_some(silent)
            });
            let Some(silent) = asks.max() else { continue };
            let name = |at: usize| self.slots.get(at).map(|slot| &slot.name);
            askers.count += 1;
            askers.until = earliest(askers.until, Some(silent));
            if askers.first.is_none_or(|first| name(at) < name(first)) {
                askers.first = Some(at);
            }
        }
        askers.more = demand.askers_allowed(since).saturating_sub(askers.count);
        askers
    }
}
