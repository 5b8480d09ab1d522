//! One job on one node: where it stands, from the job, the node's facts and the time. Pure and total.

use jiff::Timestamp;

use super::Slot;
use super::demand::{answered, silent_from};
use super::held::Held;
use super::secrets::Secrets;
use crate::model::{Bytes, Completion, Job, Key, Phase, Report, Unreachable, after};
use crate::pace::{ASK_FAILED_AGAIN, SILENCE};
use crate::reason::Reason;
use crate::select::selects;

/// Where a job stands on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Standing {
    /// The job does not want this node.
    #[default]
    Elsewhere,
    /// Every image is there.
    Succeeded,
    /// Nothing more will be tried.
    Failed(Failure),
    /// At least one order is running.
    Active,
    /// Something is missing and nothing is running.
    Open(Wait),
}

/// What failed first, as far as the order of images goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// Which of the job's images.
    pub(super) image: usize,
    /// Why.
    pub(super) reason: Reason,
}

/// Why an open seat waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    Suspended,
    Parallelism,
    /// For the digest of this one of the job's images.
    Unresolved(usize),
    NotReady,
    NoAgent,
    /// For the copy of a Secret of this one of the job's images.
    Copying(usize),
    /// For a Secret of this one of the job's images that may still come.
    Missing(usize),
    /// For nothing: it may be handed out.
    Pending,
}

/// The standing with its bytes and the time at which time alone may change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Seat {
    pub(super) standing: Standing,
    pub(super) bytes: Bytes,
    pub(super) lapse: Option<Timestamp>,
}

impl Seat {
    /// Whether nothing but the job's own pace stands in the way.
    pub(super) fn may_be_handed_out(&self) -> bool {
        let Standing::Open(wait) = self.standing else { return false };
        !matches!(wait, Wait::Suspended | Wait::NotReady | Wait::NoAgent)
    }
}

/// Where one image of a job stands on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Done,
    Failed(Reason),
    Running,
    Open,
}

/// Where this image stands, and when time alone may change that.
pub(super) fn entry(
    job: &Job,
    image: usize,
    slot: &Slot,
    secrets: &Secrets,
    now: Timestamp,
) -> (Entry, Option<Timestamp>) {
    let Some(Ok(reference)) = job.images.get(image).map(|image| &image.reference) else {
        return (Entry::Failed(Reason::InvalidReference), None);
    };
    let since = job.since(now);
    let report = slot.report(reference.key());
    // What runs for this job counts as running even if an earlier answer or round would say otherwise: it holds one
    // of the places that the job's parallelism allows.
    let order = slot.orders.get(&reference.key());
    let running = order.filter(|order| !answered(order, report) && order.jobs.contains(&job.id));
    if let Some(order) = running {
        let silent = silent_from(order, report, slot, now);
        return match now < silent {
            true => (Entry::Running, Some(silent)),
            false if order.asked >= since => (Entry::Failed(Reason::NodeSilent), None),
            false => (Entry::Open, None),
        };
    }
    // What another job was content with may not be enough: a node that had the tag has not asked the registry.
    let enough = order.is_none_or(|order| order.policy >= job.pull.policy);
    match report.filter(|report| report.asked >= since && enough) {
        Some(Report { phase: Phase::Succeeded, .. }) => (Entry::Done, None),
        Some(report @ Report { phase: Phase::Failed, .. }) if only_looked(order, report) => (Entry::Open, None),
        Some(report @ Report { phase: Phase::Failed, .. }) => {
            let again = match job.completion {
                Completion::Once { .. } => None,
                Completion::Continuous { .. } => Some(after(report.asked, ASK_FAILED_AGAIN)),
            };
            let mended = order.is_some_and(|order| mended(job, image, order, report, secrets));
            // Somebody took away what was there: a job that still runs wants it back.
            let removed = report.reason == Some(Reason::Removed);
            match (job.ended.is_none() && (mended || removed)) || again.is_some_and(|again| again <= now) {
                true => (Entry::Open, None),
                false => (Entry::Failed(report.reason.unwrap_or(Reason::Unknown)), again),
            }
        }
        // Nobody asked, or another job's pull is under way, which this one may join.
        Some(Report { phase: Phase::Pulling, .. }) | None => (Entry::Open, None),
    }
}

/// Whether the node was only asked if the image is there, which says nothing of a pull. The order may be gone since, or be one
/// for another job by now.
fn only_looked(order: Option<&Held>, report: &Report) -> bool {
    let could_not = |order: &Held| report.reason == Some(Reason::Unsupported) && report.asked < order.asked;
    report.reason == Some(Reason::Unresolved) || order.is_some_and(|order| order.looks() || could_not(order))
}

/// Whether a node may be asked to look for an image while another asks the registry for it: it has not looked since then, and
/// it has nothing to do with the image just now.
pub(super) fn may_look(slot: &Slot, key: Key, since: Timestamp) -> bool {
    slot.orders.get(&key).is_none_or(|order| {
        let looked = order.looks() && order.asked >= since;
        answered(order, slot.report(key)) && !looked
    })
}

/// Whether a pull that a registry refused may go better now: the job has a login that was not tried, or somebody is
/// trying again already. Logins join an order with a new ask only, so an order has those that its answer is about; and
/// a new order has all of them, so that every change of a Secret is tried once and not for ever.
fn mended(job: &Job, image: usize, order: &Held, report: &Report, secrets: &Secrets) -> bool {
    let refused = report.reason == Some(Reason::Unauthorized);
    refused && (report.asked < order.asked || secrets.untried(job, image, order))
}

/// Where this job stands on this node, before the plan hands anything out.
pub(super) fn seat(job: &Job, slot: &Slot, secrets: &Secrets, now: Timestamp) -> Seat {
    let Some(node) = slot.node.as_ref().filter(|node| selects(job, node)) else { return Seat::default() };
    let mut seat = Seat::default();
    let (mut open, mut running, mut failed) = (false, false, None);
    for image in 0..job.images.len() {
        let (entry, lapse) = entry(job, image, slot, secrets, now);
        match entry {
            Entry::Done => {}
            Entry::Failed(reason) => failed = failed.or(Some(Failure { image, reason })),
            Entry::Running => running = true,
            Entry::Open => open = true,
        }
        seat.lapse = earliest(seat.lapse, lapse);
        seat.bytes += bytes(job, image, slot, now);
    }
    seat.standing = match (running, open, failed) {
        (false, false, None) => Standing::Succeeded,
        (false, false, Some(failure)) => Standing::Failed(failure),
        _ if job.overdue(now) => Standing::Failed(Failure { image: 0, reason: Reason::DeadlineExceeded }),
        _ if job.suspend => Standing::Open(Wait::Suspended),
        (true, ..) => Standing::Active,
        _ if !slot.agent => absent(job, Wait::NoAgent, None, now, &mut seat.lapse),
        _ if !node.ready => absent(job, Wait::NotReady, node.ready_changed, now, &mut seat.lapse),
        _ => Standing::Open(Wait::Pending),
    };
    seat
}

fn bytes(job: &Job, image: usize, slot: &Slot, now: Timestamp) -> Bytes {
    let reference = job.images.get(image).and_then(|image| image.reference.as_ref().ok());
    let report = reference.and_then(|reference| slot.report(reference.key()));
    report.filter(|report| report.asked >= job.since(now)).map(|report| report.bytes).unwrap_or_default()
}

/// A node that cannot be asked is waited for, or has failed when it was away for too long.
fn absent(job: &Job, wait: Wait, since: Option<Timestamp>, now: Timestamp, lapse: &mut Option<Timestamp>) -> Standing {
    if job.unreachable == Unreachable::GiveUp {
        let silent = after(since.unwrap_or(job.created).max(job.since(now)), SILENCE);
        if silent <= now {
            return Standing::Failed(Failure { image: 0, reason: Reason::NodeSilent });
        }
        *lapse = earliest(*lapse, Some(silent));
    }
    Standing::Open(wait)
}

/// The earlier of two times, of which each may be missing.
pub(super) fn earliest(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
