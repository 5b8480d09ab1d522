//! One image across the fleet: which jobs want it, which nodes are asking the registry for its digest, and which
//! answers there are. Kept up to date with every order and report, so that a plan need not search the fleet.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::held::{HeldOrder, Kinds, SharedDigests};
use super::refresh::Digests;
use super::relay::{Complaint, complaint};
use super::seat::{self, ImageStanding, JudgedBy, MayAsk, earliest};
use super::{NodeSlot, Stale, World};
use crate::model::{Ask, Job, JobId, Key, Node, Phase, Pin, Report, after};
use crate::pace::{SILENCE, SLOW_ANSWER, WITNESSES};
use crate::reason::Reason;
use crate::reference::Reference;
use crate::select::selects;

/// What is known about one image.
#[derive(Clone, Debug, Default)]
pub(super) struct Demand {
    /// The jobs that want it and have not ended.
    pub(super) jobs: BTreeSet<JobId>,
    /// Answers of the registry, with who carries each.
    answers: BTreeMap<Pin, Carriers>,
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
    /// Nodes with an order that finds nobody to read from, or that is too slow for those who read from it.
    complaining: BTreeSet<usize>,
    /// Nodes that go upstream and do not get on.
    failing: BTreeSet<usize>,
    /// What its orders share.
    pub(super) kinds: Kinds,
    /// The digests that its reports name.
    pub(super) digests: SharedDigests,
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

fn count_since(counts: &BTreeMap<Timestamp, usize>, since: Timestamp) -> usize {
    counts.range(since..).map(|(_, nodes)| nodes).sum()
}

/// How many orders and how many reports carry one answer.
#[derive(Clone, Copy, Debug, Default)]
struct Carriers {
    orders: usize,
    reports: usize,
}

impl Demand {
    /// Whether the node in this slot was ordered to ask and has not answered.
    pub(super) fn is_asking(&self, at: usize) -> bool {
        self.asking.contains(&at)
    }

    fn answers_since(&self, since: Timestamp) -> impl Iterator<Item = (&Pin, Carriers)> + Clone {
        let from = Pin::new(since, String::new());
        self.answers.range(from..).map(|(pin, carried)| (pin, *carried))
    }

    /// By digest: how many nodes have said since then that the tag means it.
    fn witnesses(&self, since: Timestamp) -> BTreeMap<&str, usize> {
        let mut witnesses = BTreeMap::new();
        for (pin, carried) in self.answers_since(since) {
            *witnesses.entry(pin.digest.as_str()).or_default() += carried.reports;
        }
        witnesses
    }

    /// The answer that a job which counts from `since` uses: the first one that was handed out as agreed, so that all its
    /// nodes get the same even where a node that was thought silent answers late; else the first one that enough nodes gave.
    pub(super) fn agreed(&self, since: Timestamp, enough: usize) -> Option<Pin> {
        let handed_out = self.answers_since(since).find(|(pin, carried)| carried.orders > 0 && !pin.alone);
        if let Some((pin, _)) = handed_out {
            return Some(pin.clone());
        }
        // Most images were never asked about, or one answer is all there is.
        self.answers_since(since).next()?;
        let witnesses = self.witnesses(since);
        let agreed = |pin: &Pin| witnesses.get(pin.digest.as_str()).is_some_and(|nodes| *nodes >= enough);
        let (pin, _) = self.answers_since(since).find(|(pin, _)| agreed(pin))?;
        Some(Pin { alone: false, ..pin.clone() })
    }

    /// What one node has said and no other has contradicted.
    pub(super) fn uncontested(&self, since: Timestamp) -> Option<Pin> {
        let mut answers = self.answers_since(since).map(|(pin, _)| pin);
        let first = answers.next()?;
        answers.all(|other| other.digest == first.digest).then(|| Pin { alone: true, ..first.clone() })
    }

    /// The digest to tell people: what nodes pull, or will.
    pub(super) fn told(&self, since: Timestamp, enough: usize) -> Option<Pin> {
        let handed_out =
            || self.answers_since(since).find(|(_, carried)| carried.orders > 0).map(|(pin, _)| pin.clone());
        self.agreed(since, enough).or_else(handed_out)
    }

    /// How many nodes more must say what one has said, and how many have said something else.
    fn lacking(&self, since: Timestamp, enough: usize) -> (usize, usize) {
        let witnesses = self.witnesses(since);
        let most = witnesses.values().copied().max().unwrap_or_default();
        (enough.saturating_sub(most), witnesses.values().sum::<usize>() - most)
    }

    /// Counts an answer in or out. Returns whether that may change what a job knows.
    fn count(&mut self, pin: Option<Pin>, change: impl FnOnce(&mut Carriers)) -> bool {
        let Some(pin) = pin else { return false };
        let carried = self.answers.entry(pin.clone()).or_default();
        let before = (carried.orders > 0, carried.reports);
        change(carried);
        let now = (carried.orders > 0, carried.reports);
        if now == (false, 0) {
            self.answers.remove(&pin);
        }
        before != now
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
            && self.answers.is_empty()
            && self.asking.is_empty()
            && self.failed.is_empty()
            && self.refused.is_empty()
            && self.had.is_empty()
            && self.looking == 0
            && self.complaining.is_empty()
            && self.failing.is_empty()
    }

    /// The nodes whose source somebody else must mend.
    pub(super) fn complaining(&self) -> impl Iterator<Item = usize> + '_ {
        self.complaining.iter().chain(&self.failing).copied()
    }
}

/// Puts into a set what belongs there, and takes out what does not. Returns whether the set has anything.
fn keep<T: Ord>(set: &mut BTreeSet<T>, value: T, belongs: bool) -> bool {
    match belongs {
        true => set.insert(value),
        false => set.remove(&value),
    };
    !set.is_empty()
}

/// Until when the node of an order without final answer is believed to be at work: counted from the ask, from the last
/// time that anything was heard of the node, or from what its report says. The last is the agent's clock: one that is
/// ahead of ours proves nothing. Who plays the agent of a foreign node need not repeat itself: once it has begun it is at work.
pub(super) fn silent_from(order: &HeldOrder, report: Option<&Report>, slot: &NodeSlot, now: Timestamp) -> Timestamp {
    if slot.is_foreign() && report.is_some_and(|report| report.asked == order.asked) {
        return Timestamp::MAX;
    }
    let said = report.map(|report| report.updated).filter(|said| *said <= now);
    let last = [said, slot.heard].into_iter().flatten().fold(order.asked, Timestamp::max);
    after(last, SILENCE)
}

/// Whether the newest ask of this order has its final answer.
pub(super) fn answered(order: &HeldOrder, report: Option<&Report>) -> bool {
    report.is_some_and(|report| report.ended() && report.asked == order.asked)
}

/// Whether the node of this order learns the digest from the registry.
fn asks_registry(order: &HeldOrder) -> bool {
    matches!(order.ask, Ask::Resolve | Ask::Fetch(None))
}

/// What the registry told this node, where it was told to ask: a node has no say in what it was not asked. The answer to an ask
/// before this one counts for jobs that began before that, until the new one comes.
fn answer<'a>(order: &HeldOrder, report: Option<&'a Report>) -> Option<&'a Pin> {
    let said = report.filter(|_| asks_registry(order))?;
    said.pin.as_ref().filter(|pin| pin.asked == said.asked)
}

/// Whether this order makes its node ask the registry for a digest, and it has not answered.
fn is_asking(order: &HeldOrder, report: Option<&Report>) -> bool {
    let asks = asks_registry(order) && !order.hold;
    let has_answer = answer(order, report).is_some_and(|pin| pin.asked == order.asked);
    asks && !has_answer && !answered(order, report)
}

/// When a node was asked that could not learn the digest, and whether it cannot resolve at all: that says nothing about the
/// registry. A node that says it has learned it, and not what, has not.
fn failed(order: &HeldOrder, report: Option<&Report>) -> Option<(Timestamp, bool)> {
    let report = report.filter(|report| asks_registry(order) && answered(order, Some(report)))?;
    let failed = match report.phase {
        Phase::Failed => true,
        Phase::Resolved => answer(order, Some(report)).is_none(),
        Phase::Succeeded | Phase::Pulling => false,
    };
    failed.then(|| (order.asked, report.reason == Some(Reason::Unsupported)))
}

/// Whether a node that asks the registry takes too long: its attempt failed and it rests, it stalls, it is not ready, or it
/// has not said anything for a while. It goes on, but others need not wait for it.
fn is_slow(order: &HeldOrder, report: Option<&Report>, slot: &NodeSlot, now: Timestamp) -> bool {
    let troubled = report.is_some_and(|report| report.asked == order.asked && report.reason.is_some());
    let ready = slot.node.as_ref().is_some_and(|node| node.ready);
    troubled || !ready || after(order.asked, SLOW_ANSWER) <= now
}

/// When a node was asked that did not have to ask the registry, and whether it turned out to have the image: it says that
/// it is there, and not what its tag means.
fn had(order: &HeldOrder, report: Option<&Report>) -> Option<(Timestamp, bool)> {
    let report = report.filter(|report| order.pinned.is_none() && answered(order, Some(report)))?;
    match report.phase {
        Phase::Succeeded if report.pin.is_none() => Some((order.asked, true)),
        Phase::Failed if order.ask == Ask::Look => Some((order.asked, false)),
        _ => None,
    }
}

/// What one order of a node, the one for the image or the question about it, contributes to the demand for the image.
#[derive(Clone, PartialEq, Default)]
struct Contribution {
    ordered: Option<Pin>,
    reported: Option<Pin>,
    asking: bool,
    failed: Option<Timestamp>,
    refused: Option<Timestamp>,
    had: Option<(Timestamp, bool)>,
    looking: bool,
    complaint: Option<Complaint>,
}

impl Contribution {
    /// The contributions of a node to the demand for an image. A node that answers the question and pulls without a digest has
    /// still only one word, the last: it counts for every job that an earlier one would count for.
    fn both(slot: &NodeSlot, image: Key) -> [Self; 2] {
        let (mut pull, mut question) = (Self::of(slot, image), Self::of(slot, image.question()));
        if let (Some(pulled), Some(answered)) = (&pull.reported, &question.reported) {
            match pulled.asked < answered.asked {
                true => pull.reported = None,
                false => question.reported = None,
            }
        }
        [pull, question]
    }

    /// A report without its order says nothing: nobody asked for it, or nobody wants to know any more. Nor does a foreign node.
    fn of(slot: &NodeSlot, key: Key) -> Self {
        let Some(order) = slot.orders.get(&key).filter(|_| !slot.is_foreign()) else { return Self::default() };
        let report = slot.report(key);
        let failed = failed(order, report);
        Self {
            ordered: order.pin(),
            reported: answer(order, report).cloned(),
            asking: is_asking(order, report),
            failed: failed.filter(|(_, refused)| !refused).map(|(asked, _)| asked),
            refused: failed.filter(|(_, refused)| *refused).map(|(asked, _)| asked),
            had: had(order, report),
            looking: order.ask == Ask::Look && !answered(order, report),
            complaint: complaint(order, report),
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
    /// How many of them may be waited for: they are not slow.
    quick: usize,
    /// How many of those answer a question, and do not pull.
    quick_questions: usize,
    /// When one of them would be taken for slow or silent.
    pub(super) until: Option<Timestamp>,
}

/// After this many nodes that cannot resolve no more are asked while one of them pulls.
const ENOUGH_REFUSALS: usize = 3;

/// After this many nodes of a job that could not learn the digest the word of one that could is enough.
const ENOUGH_FAILURES: usize = 3;

impl World {
    /// Changes what one node was ordered about an image, or reports about it, and tells all that it touches.
    pub(super) fn change_entry(&mut self, at: usize, image: Key, change: impl FnOnce(&mut NodeSlot)) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        let before = Contribution::both(slot, image);
        let order = slot.orders.get(&image).filter(|_| !slot.orders.contains_key(&image.question())).cloned();
        change(slot);
        let now = Contribution::both(slot, image);
        // Thousands of jobs may want one image. Where one of them joins the order of others, nothing changes for those.
        let joined = order.and_then(|order| order.joined(slot.orders.get(&image)?));
        let demand = self.demand.entry(image).or_default();
        let asking = now.iter().any(|now| now.asking);
        let complaint = now.iter().find_map(|now| now.complaint);
        let fails = complaint == Some(Complaint::SeedFails);
        let complains = keep(&mut demand.complaining, at, complaint.is_some() && !fails);
        let failing = keep(&mut demand.failing, at, fails);
        keep(&mut self.complaining, image, complains);
        keep(&mut self.failing, image, failing);
        // Whether a digest is known decides for every node that could not learn it.
        let mut all = false;
        for (before, now) in before.into_iter().zip(now).filter(|(before, now)| before != now) {
            all |= demand.count(before.ordered, |carried| carried.orders = carried.orders.saturating_sub(1));
            all |= demand.count(before.reported, |carried| carried.reports = carried.reports.saturating_sub(1));
            all |= demand.count(now.ordered, |carried| carried.orders += 1);
            all |= demand.count(now.reported, |carried| carried.reports += 1);
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
        keep(&mut demand.asking, at, asking);
        let touched: Vec<&JobId> = match &joined {
            Some(joined) => joined.iter().filter(|id| demand.jobs.contains(*id)).collect(),
            None => demand.jobs.iter().collect(),
        };
        for id in touched {
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
        self.refresh_chains(at, image);
    }

    pub(super) fn forget_demand(&mut self, key: Key, id: &JobId) {
        if let Some(demand) = self.demand.get_mut(&key) {
            demand.jobs.remove(id);
            if demand.is_empty() {
                self.demand.remove(&key);
            }
        }
    }

    /// How many nodes must say the same before others are told.
    fn enough(&self) -> usize {
        if self.one_witness { 1 } else { WITNESSES }
    }

    /// The digest that nodes of the job may be told to pull that count from `since`: what two of them heard from the registry, so that no single node
    /// decides for others; or what one heard where no other can be asked, marked as such.
    pub(super) fn pin(&self, job: &Job, image: usize, since: Timestamp, now: Timestamp) -> Option<Pin> {
        let reference = job.images.get(image)?.reference.as_ref().ok()?;
        let demand = self.demand.get(&reference.key())?;
        demand.agreed(since, self.enough()).or_else(|| {
            let alone = demand.uncontested(since)?;
            let nobody_else = || {
                let asking = self.askers(reference.key(), since, now).quick;
                asking == 0 && !self.may_be_asked(job, image, reference.key(), since, now)
            };
            (self.enough_failed(job, demand, reference.key(), since) || nobody_else()).then_some(alone)
        })
    }

    /// Whether enough nodes of the job could not learn the digest. Only nodes count that a job of the same namespace has had asked: otherwise
    /// a stranger's job could fail on a few nodes of its own choice, and then one node would decide for all of this job's.
    fn enough_failed(&self, job: &Job, demand: &Demand, image: Key, since: Timestamp) -> bool {
        let could_not = |slot: &NodeSlot, key: Key| {
            let order = slot.orders.get(&key)?;
            let own = order.jobs.iter().any(|id| id.namespace() == job.id.namespace());
            failed(order, slot.report(key)).filter(|(asked, refused)| own && !refused && *asked >= since)
        };
        let counts = |slot: &NodeSlot| {
            let selected = slot.node.as_ref().is_some_and(|node| selects(job, node));
            selected && [image, image.question()].into_iter().any(|key| could_not(slot, key).is_some())
        };
        // Where too few have failed for anybody, no node need be looked at.
        count_since(&demand.failed, since) >= ENOUGH_FAILURES
            && self.candidates(job).filter(|(_, slot)| counts(slot)).take(ENOUGH_FAILURES).count() == ENOUGH_FAILURES
    }

    /// The digest of an image to tell people.
    pub(super) fn digest_to_tell(&self, job: &Job, reference: &Reference, now: Timestamp) -> Option<Pin> {
        self.demand.get(&reference.key())?.told(job.began(now), self.enough())
    }

    /// Whether nodes have said different things, and no other can be asked: then each of them goes by what it hears itself.
    pub(super) fn is_contested(
        &self,
        job: &Job,
        (image, key): (usize, Key),
        askers: &Askers,
        since: Timestamp,
        now: Timestamp,
    ) -> bool {
        let answered = self.demand.get(&key).is_some_and(|demand| demand.answers_since(since).next().is_some());
        answered && askers.quick_questions == 0 && !self.may_be_asked(job, image, key, since, now)
    }

    /// Whether another node of the job could be asked now, for those that count from `since`.
    fn may_be_asked(&self, job: &Job, image: usize, key: Key, since: Timestamp, now: Timestamp) -> bool {
        let unknown = Digests::default();
        let may_ask = |slot: &NodeSlot| {
            let wanted = |node: &Node| selects(job, node) && job.bounds.allow(node);
            let here = slot.may_be_asked() && slot.node.as_ref().is_some_and(wanted);
            let known = || JudgedBy::on(slot, job, &unknown, &self.secrets, now);
            here && seat::able(slot, key, since, now) != MayAsk::Nothing
                && seat::entry(job, image, slot, known()).0 == ImageStanding::Open
        };
        // Nobody knows when there is room for the question, or an agent that can open the logins for it.
        let some_day = |at: usize| {
            let too_old = self.secret_wait(job, image, at, now).is_some_and(|wait| wait.reason == Reason::AgentTooOld);
            too_old || self.is_full(job, at, key).is_some()
        };
        self.candidates(job).any(|(at, slot)| may_ask(slot) && !some_day(at))
    }

    /// Who asks the registry for this image, and how many more may, for a job that counts from `start`: as many as must agree,
    /// and one more for each that failed, is slow or said something else than most. So a registry that is away is found out by
    /// doubling numbers of nodes, not by one after the other. Nodes that fell silent do not count, nor do those whose answer
    /// would be too old for the job.
    pub(super) fn askers(&self, key: Key, start: Timestamp, now: Timestamp) -> Askers {
        let enough = self.enough();
        let Some(demand) = self.demand.get(&key) else {
            return Askers { more: enough, more_pulls: enough, ..Askers::default() };
        };
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
                askers.quick += usize::from(!slow);
                askers.quick_questions += usize::from(!slow && order.ask.is_question());
            }
        }
        let failed = count_since(&demand.failed, start);
        let (lacking, others) = demand.lacking(start, enough);
        let more = |(all, slow): (usize, usize)| (lacking + others + failed + slow).saturating_sub(all - slow);
        (askers.more, askers.more_pulls) = (more(asked), more(pulled));
        if pulled.0 > 0 && count_since(&demand.refused, start) >= ENOUGH_REFUSALS {
            askers.more = 0;
        }
        askers
    }
}
