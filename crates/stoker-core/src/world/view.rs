//! A job node by node, for people: where each stands, and for those that wait a sentence that says why.

use std::sync::Arc;

use jiff::Timestamp;

use super::refresh::Digests;
use super::room::Full;
use super::seat::{self, ImageStanding, JudgedBy, Seat, SeatFailure, SeatStanding, Wait};
use super::{JobState, NodeSlot, World};
use crate::human;
use crate::model::{Bytes, Job, JobId, Key, NodeName, Phase, Report};
use crate::policy::Refusal;
use crate::reason::{Reason, Waiting};
use crate::rollup::{NodeCount, Tally};
use crate::select::selects;

/// Where a job stands on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Every image is there.
    Succeeded,
    /// At work.
    Pulling,
    /// Not yet its turn.
    Waiting(Waiting),
    /// Given up.
    Failed(Reason, String),
}

/// One node of a job.
#[derive(Clone, Debug)]
pub struct NodeView<'a> {
    /// Which node.
    pub node: NodeName,
    /// Where it stands.
    pub state: NodeState,
    /// Sums over the job's images.
    pub bytes: Bytes,
    /// The job's images as written, each with the report that counts, if there is one.
    pub images: Vec<(&'a str, Option<&'a Report>)>,
}

impl World {
    /// Every node of a job by name, as of the last plan. Of an ended job those whose reports about it are still there.
    pub fn nodes<'a>(&'a self, id: &JobId, now: Timestamp) -> Vec<NodeView<'a>> {
        let Some(state) = self.jobs.get(id) else { return Vec::new() };
        let job = &state.job;
        let slots = self.by_name.values().filter_map(|&at| self.slots.get(at));
        let mut views: Vec<NodeView<'a>> = match &job.unreadable {
            _ if job.ended.is_some() => slots.filter_map(|slot| self.last_seen(job, &slot.name, slot, now)).collect(),
            Some(problem) => slots.filter_map(|slot| unreadable(job, problem, slot, now)).collect(),
            None => {
                let placed = state.seats.iter().filter_map(|(at, seat)| self.seated(state, *at, seat, now));
                placed.collect()
            }
        };
        let unknown = self.unknown_names(job).filter(|_| job.ended.is_none());
        views.extend(unknown.map(|name| unknown_node(state, name, now)));
        views.sort_by(|a, b| a.node.cmp(&b.node));
        views
    }

    /// One node of a job: the same as [`World::nodes`] says of it.
    pub fn seat_of<'a>(&'a self, id: &JobId, node: &str, now: Timestamp) -> Option<NodeView<'a>> {
        let state = self.jobs.get(id)?;
        let job = &state.job;
        let at = self.by_name.get(node).copied();
        let slot = at.and_then(|at| self.slots.get(at));
        let placed = match (&job.unreadable, slot) {
            (_, None) => None,
            (_, Some(slot)) if job.ended.is_some() => return self.last_seen(job, &slot.name, slot, now),
            (Some(problem), Some(slot)) => unreadable(job, problem, slot, now),
            (None, Some(_)) => at.and_then(|at| self.seated(state, at, state.seats.seat(&self.slots, at)?, now)),
        };
        let unknown = || self.unknown_names(job).find(|name| &***name == node).filter(|_| job.ended.is_none());
        placed.or_else(|| unknown().map(|name| unknown_node(state, name, now)))
    }

    /// A node as of the last plan.
    fn seated<'a>(&'a self, state: &'a JobState, at: usize, seat: &Seat, now: Timestamp) -> Option<NodeView<'a>> {
        let slot = self.slots.get(at)?;
        Some(view(&state.job, slot, self.state(state, at, slot, seat, now), seat.bytes, now))
    }

    /// How an ended job went on a node, as far as the node's reports about it are kept.
    fn last_seen<'a>(
        &'a self,
        job: &'a Job,
        name: &NodeName,
        slot: &'a NodeSlot,
        now: Timestamp,
    ) -> Option<NodeView<'a>> {
        let since = job.since(name, now);
        let own = |key: Key| {
            // Of whatever order it was: it names its jobs.
            let report = slot.reports.get(&key).map(|report| &**report);
            report.filter(|report| report.asked >= since && report.ended() && report.jobs.contains(&job.id))
        };
        let done = |report: &&Report| matches!(report.phase, Phase::Succeeded | Phase::Failed);
        let images = job.images.iter().map(|image| {
            let key = image.reference.as_ref().ok().map(|reference| reference.key());
            let report = key.and_then(|key| own(key).or_else(|| own(key.question())).filter(done));
            (image.written.as_str(), report)
        });
        let images: Vec<(&str, Option<&Report>)> = images.collect();
        let failed = images.iter().position(|(_, report)| report.is_some_and(|report| report.phase == Phase::Failed));
        let state = match failed {
            Some(image) => {
                let reason = images.get(image)?.1?.reason.unwrap_or(Reason::Unknown);
                let failure = SeatFailure { image, reason };
                let message = &images.get(image)?.1?.message;
                NodeState::Failed(self.failure_reason(job, failure), self.explain_secrets(job, failure, message))
            }
            None if images.iter().all(|(_, report)| report.is_some()) => NodeState::Succeeded,
            None => return None,
        };
        let mut bytes = Bytes::default();
        images.iter().filter_map(|(_, report)| *report).for_each(|report| bytes += report.bytes);
        Some(NodeView { node: name.clone(), state, bytes, images })
    }

    fn state(&self, state: &JobState, at: usize, slot: &NodeSlot, seat: &Seat, now: Timestamp) -> NodeState {
        let job = &state.job;
        match seat.standing {
            SeatStanding::Open(_) if state.given_up => NodeState::Failed(Reason::FailureTolerance, NOT_TRIED.into()),
            SeatStanding::Succeeded => NodeState::Succeeded,
            SeatStanding::Active | SeatStanding::Late => NodeState::Pulling,
            SeatStanding::Failed(failure) => {
                let reason = self.failure_reason(job, failure);
                NodeState::Failed(reason, self.message(job, failure, slot, now))
            }
            SeatStanding::Open(wait) => NodeState::Waiting(self.waiting(state, at, slot, wait, now)),
        }
    }

    /// A wait with what a sentence about it needs.
    fn waiting(&self, state: &JobState, at: usize, slot: &NodeSlot, wait: Wait, now: Timestamp) -> Waiting {
        let (job, image) = (&state.job, wait.image);
        let key =
            job.images.get(image).and_then(|image| image.reference.as_ref().ok()).map(|reference| reference.key());
        let written = || job.images.get(image).map(|image| image.written.clone()).unwrap_or_default();
        let trouble = |slot: &NodeSlot| {
            let report = seat::report(job, image, slot, now);
            let reason = report.and_then(|report| Some((report.reason?, &report.message)));
            reason.map(|(reason, message)| format!("{reason}: {message}")).unwrap_or_default()
        };
        match wait.reason {
            Reason::Suspended => Waiting::Suspended { resume: job.words.resume },
            Reason::NotAllowed => not_allowed(job, slot, wait),
            Reason::Parallelism => {
                Waiting::Parallelism { limit: u32::try_from(job.places(state.seats.len())).unwrap_or(u32::MAX) }
            }
            Reason::NoSource => {
                let (copies, _) = job.pull.copies();
                let copies = u32::try_from(copies).unwrap_or(u32::MAX);
                Waiting::NoSource { image: written(), copies, readable: self.readable(at) }
            }
            Reason::NodeNotReady => Waiting::NodeNotReady,
            Reason::NoAgent => Waiting::NoAgent,
            Reason::AgentTooOld => Waiting::AgentTooOld,
            Reason::SecretUnread | Reason::SecretMissing | Reason::SecretForbidden => {
                self.waiting_for_secret(job, image, at, now)
            }
            Reason::TooManyOrders => {
                let namespace = key.and_then(|key| self.is_full(job, at, key)) == Some(Full::Namespace);
                let namespace = namespace.then(|| job.id.namespace().to_string());
                Waiting::TooManyOrders { namespace, object: job.words.orders }
            }
            Reason::Unresolved => {
                let known = JudgedBy::on(slot, job, &state.digests, &self.secrets, now);
                if seat::entry(job, image, slot, known).0 == ImageStanding::Asking {
                    return Waiting::Asking { image: written(), trouble: trouble(slot) };
                }
                let askers = key.map(|key| self.askers(key, known.since, now));
                let first = askers.as_ref().and_then(|askers| self.slots.get(askers.first?));
                Waiting::Unresolved {
                    image: written(),
                    by: first.map(|slot| slot.name.to_string()).unwrap_or_default(),
                    others: askers.map_or(0, |askers| askers.count.saturating_sub(1)),
                    trouble: first.map(trouble).unwrap_or_default(),
                }
            }
            Reason::FailureTolerance => Waiting::FailureTolerance,
            _ => Waiting::Pending,
        }
    }
}

impl World {
    /// Why the first node by name waits that the job may not use now.
    pub(super) fn first_off_limits(&self, state: &JobState) -> Option<Arc<Refusal>> {
        let waits = |(at, seat): &(usize, Seat)| match seat.standing {
            SeatStanding::Open(wait) if wait.reason == Reason::NotAllowed => Some((*at, wait)),
            _ => None,
        };
        let refusal = |(at, wait)| refusal_of(&state.job, self.slots.get(at)?, wait);
        state.seats.iter().filter_map(waits).find_map(refusal)
    }
}

/// Which policy keeps the job off this node, and why.
fn not_allowed(job: &Job, slot: &NodeSlot, wait: Wait) -> Waiting {
    match refusal_of(job, slot, wait) {
        Some(refusal) => Waiting::NotAllowed { refusal },
        // The policy allows it since the last plan.
        None => Waiting::Pending,
    }
}

/// Why a node waits for a policy.
fn refusal_of(job: &Job, slot: &NodeSlot, wait: Wait) -> Option<Arc<Refusal>> {
    let full = || job.bounds.full().filter(|_| wait == Wait::NO_NODE_LEFT).map(Arc::new);
    refusal(job, slot).or_else(full)
}

/// Why the job may do nothing on this node, where that is so.
fn refusal(job: &Job, slot: &NodeSlot) -> Option<Arc<Refusal>> {
    let off_limits = || slot.node.as_ref().and_then(|node| job.bounds.off_limits(node)).map(Arc::new);
    job.bounds.refusal.clone().or_else(off_limits)
}

/// What kept a node from being done, in a few words: the last trouble, how far it was, or what it waited for.
fn last_doing(job: &Job, slot: &NodeSlot, now: Timestamp) -> String {
    if let Some(refusal) = refusal(job, slot) {
        return refusal.to_string();
    }
    let reports = (0..job.images.len()).filter_map(|image| seat::report(job, image, slot, now));
    // That it does not have an image is the answer to a question, and no trouble.
    let reports = || reports.clone().filter(|report| report.reason != Some(Reason::Unresolved));
    if let Some(trouble) = reports().map(|report| &report.message).find(|message| !message.is_empty()) {
        return trouble.clone();
    }
    let mut bytes = Bytes::default();
    reports().for_each(|report| bytes += report.bytes);
    match &slot.node {
        _ if bytes.total > 0 => {
            format!("{} of {} had come", human::bytes(bytes.done), human::bytes(bytes.total))
        }
        _ if !slot.agent => "no Stoker agent runs on this node".into(),
        Some(_) if !slot.is_ready() => "the node is not Ready".into(),
        _ if job.pull.is_from_peers_alone() => {
            "NoSource: it takes the image from other nodes alone, and no node that it may read from had it".into()
        }
        _ if reports().any(|report| report.phase != Phase::Resolved) => "it had begun".into(),
        _ if job.keys().any(|key| slot.is_ordered(&job.id, key)) => "its agent had not answered".into(),
        _ => {
            let nodes = if job.percent { "% of the nodes" } else { " nodes" };
            let turn = format!("its turn had not come ({}{nodes} at one time)", job.parallelism);
            match &job.bounds.most_nodes {
                Some((policy, most)) => {
                    format!("{turn}; PreheatPolicy {policy} allows the job {}", human::count(*most, "node"))
                }
                None => turn,
            }
        }
    }
}

/// A node of a job whose status cannot be read.
fn unreadable<'a>(job: &'a Job, problem: &str, slot: &'a NodeSlot, now: Timestamp) -> Option<NodeView<'a>> {
    slot.node.as_ref().filter(|node| selects(job, node))?;
    let state = NodeState::Waiting(Waiting::StatusUnreadable { problem: problem.into() });
    Some(view(job, slot, state, Bytes::default(), now))
}

/// A name in a job that no node has.
fn unknown_node<'a>(state: &'a JobState, name: &NodeName, now: Timestamp) -> NodeView<'a> {
    let images = state.job.images.iter().map(|image| (image.written.as_str(), None)).collect();
    let state = match state.job.overdue(now) {
        true => NodeState::Failed(Reason::DeadlineExceeded, UNKNOWN_NODE.into()),
        false if state.given_up => NodeState::Failed(Reason::FailureTolerance, NOT_TRIED.into()),
        false => NodeState::Waiting(Waiting::NodeUnknown),
    };
    NodeView { node: name.clone(), state, bytes: Bytes::default(), images }
}

fn view<'a>(job: &'a Job, slot: &'a NodeSlot, state: NodeState, bytes: Bytes, now: Timestamp) -> NodeView<'a> {
    NodeView { node: slot.name.clone(), state, bytes, images: images(job, slot, now) }
}

fn images<'a>(job: &'a Job, slot: &'a NodeSlot, now: Timestamp) -> Vec<(&'a str, Option<&'a Report>)> {
    let images = job.images.iter().enumerate();
    images.map(|(image, written)| (written.written.as_str(), seat::report(job, image, slot, now))).collect()
}

/// What a person reads about a node that the job gave up without trying it.
pub(super) const NOT_TRIED: &str = "not tried, because more nodes failed than the job tolerates";

/// What a person reads about a name that the job gave up.
pub(super) const UNKNOWN_NODE: &str = "no node of this name joined before the job's deadline";

impl World {
    /// What a person reads about a failed node.
    fn message(&self, job: &Job, failure: SeatFailure, slot: &NodeSlot, now: Timestamp) -> String {
        let image = job.images.get(failure.image);
        match failure.reason {
            Reason::DeadlineExceeded => {
                format!("the job's deadline passed before the node was done; last: {}", last_doing(job, slot, now))
            }
            Reason::NodeSilent => "the node has not responded for a long time".into(),
            _ if self.goes_on_for_others(job, failure.image, slot, now) => {
                let (timeout, attempts) = (job.pull.timeout.as_secs(), job.pull.retries.saturating_add(1));
                let attempts = human::count(attempts, "attempt");
                format!(
                    "it took longer than this job allows ({attempts} of {timeout} s); it goes on for jobs of other \
                     namespaces; last: {}",
                    last_doing(job, slot, now)
                )
            }
            _ => match image.map(|image| (&image.written, &image.reference)) {
                Some((written, Err(problem))) => format!("{written}: {problem}"),
                Some((_, Ok(reference))) => {
                    let counts = seat::report(job, failure.image, slot, now);
                    let report = counts.or_else(|| slot.report(reference.key()));
                    self.explain_secrets(job, failure, report.map(|report| report.message.as_str()).unwrap_or_default())
                }
                None => String::new(),
            },
        }
    }

    fn goes_on_for_others(&self, job: &Job, image: usize, slot: &NodeSlot, now: Timestamp) -> bool {
        let unknown = Digests::default();
        let known = JudgedBy::on(slot, job, &unknown, &self.secrets, now);
        seat::goes_on_for_others(job, image, slot, known)
    }

    /// Adds a node of the job to its tally from its seat.
    pub(super) fn count(&self, tally: &mut Tally, state: &JobState, (at, seat): (usize, &Seat), now: Timestamp) {
        let (job, Some(slot)) = (&state.job, self.slots.get(at)) else { return };
        let count = match seat.standing {
            SeatStanding::Open(_) if state.given_up => {
                let count = NodeCount::Failed(Reason::FailureTolerance);
                return tally.add(&slot.name, count, seat.bytes, || NOT_TRIED.into());
            }
            SeatStanding::Succeeded => NodeCount::Succeeded,
            SeatStanding::Active | SeatStanding::Late => NodeCount::Pulling,
            SeatStanding::Open(wait) => {
                let message = || self.waiting(state, at, slot, wait, now).unusual();
                return tally.add(&slot.name, NodeCount::Waiting(wait.reason), seat.bytes, message);
            }
            SeatStanding::Failed(failure) => {
                let count = NodeCount::Failed(self.failure_reason(job, failure));
                return tally.add(&slot.name, count, seat.bytes, || self.message(job, failure, slot, now));
            }
        };
        tally.add(&slot.name, count, seat.bytes, String::new);
    }
}
