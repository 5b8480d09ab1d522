//! One job on one node: where it stands, from the job, the node's facts and the time. Pure and total.

use std::time::Duration;

use jiff::Timestamp;

use super::NodeSlot;
use super::demand::{answered, silent_from};
use super::held::HeldOrder;
use super::refresh::Digests;
use super::room::is_crowd;
use super::secrets::KnownSecrets;
use crate::model::{Ask, Bytes, Completion, Job, Key, Phase, Policy, Report, Unreachable, after};
use crate::pace::{ASK_FAILED_AGAIN, SILENCE, SLOW_ANSWER, keeps_place, patience};
use crate::reason::Reason;
use crate::select::selects;
use crate::step;

/// Where a job stands on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeatStanding {
    /// Every image is there.
    Succeeded,
    /// Nothing more will be tried.
    Failed(SeatFailure),
    /// At least one order is running.
    Active,
    /// What runs has taken longer than its terms allow. It goes on, but holds no place of the job's parallelism.
    Late,
    /// Something is missing and nothing is running.
    Open(Wait),
}

/// What failed first, as far as the order of images goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SeatFailure {
    /// Which of the job's images.
    pub(super) image: usize,
    /// Why.
    pub(super) reason: Reason,
}

/// Why an open seat waits. [`World::nodes`](super::World::nodes) makes a sentence of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    /// The public word; [`Reason::Pending`] may be handed out.
    pub(super) reason: Reason,
    /// Which of the job's images it is about, where it is about one.
    pub(super) image: usize,
}

impl Wait {
    /// For something that is no matter of a single image.
    pub(super) fn of_all(reason: Reason) -> Self {
        Self { reason, image: 0 }
    }

    /// Of a node that the job may use, and that comes when a policy leaves the job one node more: see [`World::nodes_left`](super::World::nodes_left).
    /// It is not about an image, which tells it from the other waits for a policy.
    pub(super) const NO_NODE_LEFT: Self = Self { reason: Reason::NotAllowed, image: usize::MAX };
}

/// The standing with its bytes and the time at which time alone may change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) standing: SeatStanding,
    pub(super) bytes: Bytes,
    pub(super) lapse: Option<Timestamp>,
    /// Whether the job has an image there and its own pull of that image goes on: see [`ImageStanding::There`].
    pub(super) lingers: bool,
}

impl Seat {
    /// Whether nothing stands in the way.
    pub(super) fn is_pending(&self) -> bool {
        matches!(self.standing, SeatStanding::Open(wait) if wait.reason == Reason::Pending)
    }

    /// Whether something runs there for the job.
    pub(super) fn is_at_work(&self) -> bool {
        matches!(self.standing, SeatStanding::Active | SeatStanding::Late)
    }

    /// Whether it holds a place of the job's parallelism.
    pub(super) fn holds_place(&self) -> bool {
        self.standing == SeatStanding::Active || self.lingers
    }

    /// Whether nothing but the job's own pace stands in the way.
    pub(super) fn may_be_handed_out(&self) -> bool {
        let SeatStanding::Open(wait) = self.standing else { return false };
        wait == Wait::NO_NODE_LEFT
            || !matches!(wait.reason, Reason::Suspended | Reason::NotAllowed | Reason::NodeNotReady | Reason::NoAgent)
    }
}

/// Where one image of a job stands on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImageStanding {
    Done,
    /// The image that is there is enough, and a pull that was handed out for the job goes on, although no job needs it: the job, or
    /// another one in that order, wanted the newest image when it was handed out. Agents do not stop an attempt for that.
    There,
    Failed(Reason),
    Running,
    /// Running for longer than its terms allow.
    Late,
    /// The node asks the registry for the digest, or looks whether it has the image.
    Asking,
    Open,
}

/// What entries of a job on a node are judged by, besides the node's own facts.
#[derive(Clone, Copy)]
pub(super) struct JudgedBy<'a> {
    /// For each image of the job whether the node may know its digest.
    pub(super) digests: &'a [bool],
    pub(super) secrets: &'a KnownSecrets,
    /// From when on answers of the node count: [`Job::since`].
    pub(super) since: Timestamp,
    pub(super) now: Timestamp,
}

impl<'a> JudgedBy<'a> {
    /// What this job is judged by on the node in this slot.
    pub(super) fn on(
        slot: &NodeSlot,
        job: &Job,
        digests: &'a Digests,
        secrets: &'a KnownSecrets,
        now: Timestamp,
    ) -> Self {
        let since = job.since(&slot.name, now);
        Self { digests: digests.of(since), secrets, since, now }
    }
}

/// Where this image stands, and when time alone may change that.
pub(super) fn entry(
    job: &Job,
    image: usize,
    slot: &NodeSlot,
    known: JudgedBy<'_>,
) -> (ImageStanding, Option<Timestamp>) {
    let (standing, lapse, _) = entry_and_report(job, image, slot, known);
    (standing, lapse)
}

/// The same, with the report that counts. A plan of everything asks this for each image on each node: every order and every report
/// is looked up once.
fn entry_and_report<'a>(
    job: &Job,
    image: usize,
    slot: &'a NodeSlot,
    known: JudgedBy<'_>,
) -> (ImageStanding, Option<Timestamp>, Option<&'a Report>) {
    let Some(Ok(reference)) = job.images.get(image).map(|image| &image.reference) else {
        return (ImageStanding::Failed(Reason::InvalidReference), None, None);
    };
    let key = reference.key();
    let order = slot.orders.get(&key);
    let report = slot.report_to(order, key);
    let found = order_entry(job, image, slot, (order, report), known);
    let question = slot.orders.get(&key.question());
    let answer = question.and_then(|_| slot.report_to(question, key.question()));
    let since = known.since;
    if job.pull.policy == Policy::IfNotPresent {
        let said = [order.and(report), answer].into_iter().flatten();
        let mut there = said.filter_map(|report| Some((is_there(report, slot, since, known.now)?, report)));
        if let Some((lapse, report)) = there.next() {
            let needed = order.is_some_and(|order| order.terms.pull.policy > job.pull.policy);
            return match found {
                (ImageStanding::Running, end) if !needed => (ImageStanding::There, earliest(lapse, end), Some(report)),
                _ => (ImageStanding::Done, lapse, Some(report)),
            };
        }
    }
    let asked = question.is_some_and(|order| order.ask.is_question());
    let (standing, lapse) = match found {
        (ImageStanding::Open, None) if asked => order_entry(job, image, slot, (question, answer), known),
        // The pull failed, and then the node turned out to have the image.
        (ImageStanding::Failed(_), _) if asked => match order_entry(job, image, slot, (question, answer), known) {
            there @ (ImageStanding::Done, _) => there,
            _ => found,
        },
        _ => found,
    };
    let counts = |report: Option<&'a Report>| report.filter(|report| report.asked >= since);
    (standing, lapse, [report, answer].into_iter().find_map(counts))
}

/// Whether a node says, of an order for somebody who wants what the tag means now, that it has some image of that name: who is content with
/// any image has it, whatever becomes of the order. That is no answer, but what agents keep up to date while they work on the order: so it
/// also counts for a job that began after the ask, as long as the node is heard. It does not once the order has ended: a job that begins
/// then has the node look again, because the image may be damaged or removed since. Returns how long it counts, where that has an end.
fn is_there(report: &Report, slot: &NodeSlot, since: Timestamp, now: Timestamp) -> Option<Option<Timestamp>> {
    if !report.present || report.asked >= since {
        return report.present.then_some(None);
    }
    if report.ended() {
        return None;
    }
    // Not from the ask, as for work under way: nothing was said since then. An agent's clock that is ahead of ours proves nothing.
    let last = Some(report.updated).filter(|said| *said <= now).max(slot.heard)?;
    let silent = after(last, SILENCE);
    (now < silent).then_some(Some(silent))
}

/// Where an order with its report stands: the one for the image, or the question about it.
fn order_entry(
    job: &Job,
    image: usize,
    slot: &NodeSlot,
    (order, report): (Option<&HeldOrder>, Option<&Report>),
    known: JudgedBy<'_>,
) -> (ImageStanding, Option<Timestamp>) {
    // A report outlives its order so that people can read it; what a job counts is kept up to date by an order.
    let Some(order) = order else { return (ImageStanding::Open, None) };
    let (now, since) = (known.now, known.since);
    let question = order.ask.is_question();
    let resolved = known.digests.get(image) == Some(&true);
    // What runs for this job counts as running even if an earlier answer or round would say otherwise: it holds one
    // of the places that the job's parallelism allows.
    if !order.hold && !answered(order, report) && order.jobs.contains(&job.id) {
        let silent = silent_from(order, report, slot, now);
        let lapse = Some(silent).filter(|silent| *silent < Timestamp::MAX);
        return match now < silent {
            // Another node was quicker to learn the digest, or this one looks whether it needs a source at all.
            true if question && resolved => (ImageStanding::Open, lapse),
            true => match own_terms(job, order, report, known) {
                OwnTerms::Over(reason) => (ImageStanding::Failed(reason), lapse),
                OwnTerms::Until(end) if question => (ImageStanding::Asking, earliest(end, lapse)),
                OwnTerms::Until(end) => {
                    let late = late_from(job, order);
                    match late <= now {
                        true => (ImageStanding::Late, earliest(end, lapse)),
                        false => (ImageStanding::Running, earliest(end, Some(silent.min(late)))),
                    }
                }
            },
            false if order.asked >= since => (ImageStanding::Failed(Reason::NodeSilent), None),
            false => (ImageStanding::Open, None),
        };
    }
    // A question in flight is not asked again: the job waits for the answer that others will get.
    let waits = question && !resolved && !order.hold && job.runs() && job.parallelism > 0;
    if waits && !answered(order, report) {
        match own_terms(job, order, report, known) {
            OwnTerms::Over(reason) => return (ImageStanding::Failed(reason), None),
            OwnTerms::Until(None) => {}
            OwnTerms::Until(end) => return (ImageStanding::Open, end),
        }
    }
    // What another job was content with may not be enough: a node that had the tag has not asked the registry.
    let enough = order.terms.pull.policy >= job.pull.policy;
    match report.filter(|report| report.asked >= since && enough) {
        Some(Report { phase: Phase::Succeeded, .. }) => (ImageStanding::Done, None),
        // It has brought the image. That somebody took it away since is no reason to bring it again: nobody has asked for that.
        Some(report) if job.is_standing() && report.reason == Some(Reason::Removed) && report.ended() => {
            (ImageStanding::Done, None)
        }
        Some(report @ Report { phase: Phase::Failed, .. }) if is_no_answer(order, report) => {
            (ImageStanding::Open, None)
        }
        // It failed for other namespaces, which would have given up earlier than this job: nobody fails the pull of another.
        Some(Report { phase: Phase::Failed, .. })
            if !order.jobs.iter().any(|id| id.namespace() == job.id.namespace())
                && !order.terms.pull.is_as_generous_as(&job.pull) =>
        {
            (ImageStanding::Open, None)
        }
        // The node could not learn the digest; another one has.
        Some(Report { phase: Phase::Failed, .. }) if question && resolved => (ImageStanding::Open, None),
        Some(report @ Report { phase: Phase::Failed, .. }) => {
            let again = match job.completion {
                Completion::Once { .. } | Completion::Standing => None,
                Completion::Continuous { .. } => Some(after(report.asked, ASK_FAILED_AGAIN)),
            };
            let mended = mended(job, image, (slot, order), report, known.secrets);
            // Somebody took away what was there: a job that still runs wants it back.
            let removed = report.reason == Some(Reason::Removed);
            match mended || removed || again.is_some_and(|again| again <= now) {
                true => (ImageStanding::Open, None),
                false => (ImageStanding::Failed(report.reason.unwrap_or(Reason::Unknown)), again),
            }
        }
        // Nobody asked, or another job's pull is under way, which this one may join.
        Some(Report { phase: Phase::Pulling | Phase::Resolved, .. }) | None => {
            crowded_out(job, slot, (order, report), (since, now))
        }
    }
}

/// From when on a pull under way holds no place of the job any more: its own terms and those of the job are long over.
pub(super) fn late_from(job: &Job, order: &HeldOrder) -> Timestamp {
    after(order.asked, keeps_place(&order.terms.pull).min(keeps_place(&job.pull)))
}

/// How the terms of a job judge an order that runs on the more generous terms of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnTerms {
    /// The job waits, and time alone may change that then.
    Until(Option<Timestamp>),
    /// On its own terms the order would have failed by now.
    Over(Reason),
}

/// Whether an order under way, which the terms of other namespaces keep going, has taken more than the job itself allows. What the agent
/// says of its attempts tells that; or the time at work, from when the agent began. That is the agent's clock: where it makes no sense
/// to ours, only the time between two readings of it counts.
fn own_terms(job: &Job, order: &HeldOrder, report: Option<&Report>, known: JudgedBy<'_>) -> OwnTerms {
    let shared = &order.terms.pull;
    let least = if order.ask.is_question() { SLOW_ANSWER } else { Duration::ZERO };
    let (timeout, retries) = (job.pull.timeout.max(least), job.pull.retries);
    if shared.timeout <= timeout && shared.retries <= retries {
        return OwnTerms::Until(None);
    }
    let at_work = |report: &&Report| !report.ended() && !step::waits_for_turn(report);
    let Some(report) = report.filter(at_work) else { return OwnTerms::Until(None) };
    let (now, since, patience) = (known.now, known.since, patience(timeout, retries));
    let began = report.started;
    let comparable = (since.min(order.asked)..=now).contains(&began);
    if comparable && began >= since && report.attempt > retries.saturating_add(1) {
        return OwnTerms::Over(report.reason.unwrap_or(Reason::Timeout));
    }
    let end = after(if comparable { began.max(since) } else { since }, patience);
    match end <= now && (comparable || after(began, patience) <= report.updated) {
        true => OwnTerms::Over(Reason::Timeout),
        false => OwnTerms::Until(Some(end).filter(|end| *end > now)),
    }
}

/// Whether the job has given this image up on the node while the order for it, or the question about it, goes on for others.
pub(super) fn goes_on_for_others(job: &Job, image: usize, slot: &NodeSlot, known: JudgedBy<'_>) -> bool {
    let Some(Ok(reference)) = job.images.get(image).map(|image| &image.reference) else { return false };
    [reference.key(), reference.key().question()].into_iter().any(|key| {
        let (order, report) = (slot.orders.get(&key), slot.report(key));
        let concerns = |order: &&HeldOrder| order.jobs.contains(&job.id) || order.ask.is_question();
        let open = order.filter(|order| !order.hold && !answered(order, report)).filter(concerns);
        open.is_some_and(|order| matches!(own_terms(job, order, report, known), OwnTerms::Over(_)))
    })
}

/// Whether this failure says nothing about a pull: the node only looked, or cannot answer such a question. The order may be
/// one for another job by now.
fn is_no_answer(order: &HeldOrder, report: &Report) -> bool {
    let unable = order.ask.is_question() || report.asked < order.asked;
    report.reason == Some(Reason::Unresolved) || report.reason == Some(Reason::Unsupported) && unable
}

/// What a node may be asked about an image, for a job that counts from `since`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MayAsk {
    /// Anything.
    Resolve,
    /// Everything was asked: it is at it, or has answered.
    Nothing,
    /// It cannot resolve: it must be told to pull what the tag means.
    Pull,
}

/// Where a job stands that cannot join an order under way, because the order names as many jobs of its namespace as it may. Such a job is
/// not asked for, so nobody else would notice that the node is silent: it fails as it would have done in the order.
fn crowded_out(
    job: &Job,
    slot: &NodeSlot,
    (order, report): (&HeldOrder, Option<&Report>),
    (since, now): (Timestamp, Timestamp),
) -> (ImageStanding, Option<Timestamp>) {
    if order.hold || answered(order, report) || !is_crowd(order, job.id.namespace()) {
        return (ImageStanding::Open, None);
    }
    let silent = silent_from(order, report, slot, now).max(after(since, SILENCE));
    match now < silent {
        true => (ImageStanding::Open, Some(silent)),
        false => (ImageStanding::Failed(Reason::NodeSilent), None),
    }
}

/// What this node may be asked about the image with this key.
pub(super) fn able(slot: &NodeSlot, key: Key, since: Timestamp, now: Timestamp) -> MayAsk {
    let Some(order) = slot.orders.get(&key.question()) else { return MayAsk::Resolve };
    let report = slot.report_to(Some(order), key.question());
    // A question in flight is not replaced, also where its answer is too old for this job: jobs that keep coming would keep
    // each other from ever hearing one.
    if !answered(order, report) && now < silent_from(order, report, slot, now) {
        return MayAsk::Nothing;
    }
    let report = report.filter(|_| order.ask == Ask::Resolve && order.asked >= since);
    match report.filter(|report| report.asked == order.asked) {
        Some(report) if report.reason == Some(Reason::Unsupported) => MayAsk::Pull,
        Some(report) if report.phase == Phase::Resolved => MayAsk::Nothing,
        _ => MayAsk::Resolve,
    }
}

/// Whether this node has not yet looked for the image.
pub(super) fn may_look(slot: &NodeSlot, key: Key, since: Timestamp) -> bool {
    let question = slot.orders.get(&key.question());
    question.is_none_or(|order| order.asked < since && answered(order, slot.report(key.question())))
}

/// Whether a pull that a registry refused may go better now: the job has a login that was not tried, or somebody is
/// trying again already. Logins join an order with a new ask only, so an order has those that its answer is about; and
/// a new order has all of them, so that every change of a Secret is tried once and not for ever. A foreign node gets none of them.
fn mended(
    job: &Job,
    image: usize,
    (slot, order): (&NodeSlot, &HeldOrder),
    report: &Report,
    secrets: &KnownSecrets,
) -> bool {
    let refused = report.reason == Some(Reason::Unauthorized);
    refused && (report.asked < order.asked || !slot.is_foreign() && secrets.untried(job, image, order))
}

/// Where this job stands on this node, before the plan hands anything out; nowhere if it does not want the node.
pub(super) fn seat(job: &Job, slot: &NodeSlot, known: JudgedBy<'_>) -> Option<Seat> {
    let node = slot.node.as_ref().filter(|node| selects(job, node))?;
    let now = known.now;
    let (mut sum, mut lapses) = (Bytes::default(), None);
    let (mut open, mut running, mut late, mut asking, mut failed) = (false, false, false, None, None);
    let mut lingers = false;
    // Another node takes its place, or it comes back: so it does not fail.
    let awaited = job.pick.is_some() && !slot.is_ready();
    for image in 0..job.images.len() {
        let (entry, lapse, report) = entry_and_report(job, image, slot, known);
        match entry {
            ImageStanding::Done => {}
            ImageStanding::There => lingers = true,
            ImageStanding::Failed(Reason::NodeSilent) if awaited => open = true,
            ImageStanding::Failed(reason) => failed = failed.or(Some(SeatFailure { image, reason })),
            ImageStanding::Running => running = true,
            ImageStanding::Late => late = true,
            ImageStanding::Asking => asking = asking.or(Some(image)),
            ImageStanding::Open => open = true,
        }
        lapses = earliest(lapses, lapse);
        sum += report.map(|report| report.bytes).unwrap_or_default();
    }
    let standing = match (running || late, open || asking.is_some(), failed) {
        (false, false, None) => SeatStanding::Succeeded,
        (false, false, Some(failure)) => SeatStanding::Failed(failure),
        _ if job.overdue(now) => SeatStanding::Failed(SeatFailure { image: 0, reason: Reason::DeadlineExceeded }),
        _ if job.suspend => SeatStanding::Open(Wait::of_all(Reason::Suspended)),
        _ if job.bounds.refusal.is_some() || !job.bounds.allow(node) => {
            SeatStanding::Open(Wait::of_all(Reason::NotAllowed))
        }
        (true, ..) if running => SeatStanding::Active,
        (true, ..) => SeatStanding::Late,
        _ if awaited => SeatStanding::Open(Wait::of_all(Reason::NodeNotReady)),
        _ if !slot.agent => absent(job, Reason::NoAgent, None, known, &mut lapses),
        _ if !slot.is_ready() => absent(job, Reason::NodeNotReady, node.ready_changed, known, &mut lapses),
        _ => SeatStanding::Open(match asking {
            Some(image) => Wait { reason: Reason::Unresolved, image },
            None => Wait::of_all(Reason::Pending),
        }),
    };
    Some(Seat { standing, bytes: sum, lapse: lapses, lingers })
}

/// The report that counts for an image of a job on a node: of the pull, or else of the question about it.
pub(super) fn report<'a>(job: &Job, image: usize, slot: &'a NodeSlot, now: Timestamp) -> Option<&'a Report> {
    let key = job.images.get(image)?.reference.as_ref().ok()?.key();
    let since = job.since(&slot.name, now);
    let counts = |key: Key| slot.report(key).filter(|report| report.asked >= since);
    counts(key).or_else(|| counts(key.question()).filter(|_| slot.orders.contains_key(&key.question())))
}

/// A node that cannot be asked is waited for, or has failed when it was away for too long.
fn absent(
    job: &Job,
    reason: Reason,
    since: Option<Timestamp>,
    known: JudgedBy<'_>,
    lapse: &mut Option<Timestamp>,
) -> SeatStanding {
    if job.unreachable == Unreachable::GiveUp {
        let silent = after(since.unwrap_or(job.created).max(known.since), SILENCE);
        if silent <= known.now {
            return SeatStanding::Failed(SeatFailure { image: 0, reason: Reason::NodeSilent });
        }
        *lapse = earliest(*lapse, Some(silent));
    }
    SeatStanding::Open(Wait::of_all(reason))
}

/// The earlier of two times, of which each may be missing.
pub(super) fn earliest(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
