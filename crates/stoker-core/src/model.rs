//! The words of the design as types: what a job wishes, what a node is ordered, what it reports.
//!
//! Dialects make [`Job`]s, the plan makes [`Order`]s, agents make [`Report`]s. No wire names here.

mod id;
mod secret;
#[cfg(test)]
pub(crate) mod testing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::pace::SHORTEST_ROUND;
use crate::reason::Reason;
use crate::reference::Reference;
use crate::select::Selector;
pub use id::{JobId, Key, KindName, NotAJobId, NotAnOrderKey};
pub use secret::{Found, LoginId, Offer, SecretId};

/// The name of a node.
pub type NodeName = Arc<str>;

/// One image of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The reference as its user wrote it, for messages and status.
    pub written: String,
    /// The canonical reference, or why there is none: such an image fails on every node, the others go on.
    pub reference: Result<Reference, String>,
    /// The Secrets with logins for it, in the order in which they are tried.
    pub secrets: Vec<SecretId>,
}

/// Whether an image that is there already is good enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Policy {
    /// A node that has the tag, in any digest, is done.
    #[default]
    IfNotPresent,
    /// The registry is asked; a digest that is there is not fetched again.
    Always,
}

/// How a node pulls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pull {
    /// Whether an image that is there already is good enough.
    pub policy: Policy,
    /// The longest that one attempt may take.
    pub timeout: Duration,
    /// How often a failed attempt is repeated.
    pub retries: u32,
    /// The most bytes a second that a node may receive for it.
    pub bandwidth: Option<u64>,
    /// What a runtime that pulls by itself is told about the pod that the image is for.
    pub sandbox: Sandbox,
}

impl Pull {
    /// One pull for two jobs of the same namespace: the strictest of both.
    pub fn strictest(&self, other: &Self) -> Self {
        Self {
            timeout: self.timeout.min(other.timeout),
            retries: self.retries.min(other.retries),
            bandwidth: [self.bandwidth, other.bandwidth].into_iter().flatten().min(),
            ..self.with(other)
        }
    }

    /// One pull for jobs of two namespaces: the most generous of both, so that neither can throttle or fail the pull of the
    /// other.
    pub fn most_generous(&self, other: &Self) -> Self {
        Self {
            timeout: self.timeout.max(other.timeout),
            retries: self.retries.max(other.retries),
            bandwidth: self.bandwidth.zip(other.bandwidth).map(|(one, other)| one.max(other)),
            ..self.with(other)
        }
    }

    /// Whether a pull on these terms that failed would have failed on the others, too, as far as the terms decide that.
    pub fn is_as_generous_as(&self, other: &Self) -> bool {
        let limit = |pull: &Self| pull.bandwidth.unwrap_or(u64::MAX);
        self.timeout >= other.timeout && self.retries >= other.retries && limit(self) >= limit(other)
    }

    /// What is the same in both cases: the registry is asked if either wants that, and a runtime is told everything; where they
    /// differ, what this one says.
    fn with(&self, other: &Self) -> Self {
        let mut sandbox = other.sandbox.clone();
        sandbox.labels.extend(self.sandbox.labels.clone());
        sandbox.annotations.extend(self.sandbox.annotations.clone());
        Self { policy: self.policy.max(other.policy), sandbox, ..self.clone() }
    }
}

/// What a runtime that pulls by itself is told about the pod that an image is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sandbox {
    /// Labels of the pod.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pod.
    pub annotations: BTreeMap<String, String>,
}

/// When a job is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completion {
    /// When every node succeeded or failed, or at the deadline.
    Once {
        /// Counted from the start; past it every unfinished node has failed.
        deadline: Option<Duration>,
        /// How long the finished job stays before it is deleted.
        ttl: Option<Duration>,
    },
    /// Never: the nodes are asked again in rounds of this length.
    Continuous {
        /// The length of a round.
        resync: Duration,
    },
}

/// What becomes of nodes that are not there to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// They are waited for: names without a node, nodes that are not ready, nodes without an agent.
    Wait,
    /// Names without a node are left out; the others fail when they were silent for [`crate::pace::SILENCE`].
    GiveUp,
}

/// What becomes of a job that wants its images on no node at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Empty {
    /// It waits for nodes: nothing to do is not success.
    Waits,
    /// It is complete.
    Completes,
}

/// The words of the API that a job is written in, for sentences to its user. Core itself names no field or kind of any API.
#[derive(Debug, PartialEq, Eq)]
pub struct Words {
    /// What its user does so that a suspended job goes on.
    pub resume: &'static str,
    /// The field that names Secrets.
    pub secrets: &'static str,
    /// The kind of the object that holds the orders of a node.
    pub orders: &'static str,
}

/// A wish: these images on those nodes, at this pace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Which object, and which part of it.
    pub id: JobId,
    /// Which object of that name: one that was deleted and made anew is another job.
    pub uid: String,
    /// How its user calls things.
    pub words: &'static Words,
    /// The generation of the object, handed back in the outcome.
    pub generation: i64,
    /// When the object was made.
    pub created: Timestamp,
    /// The images, in the order of the object; no key twice.
    pub images: Vec<Image>,
    /// The nodes by name; none given means all that the selector takes.
    pub names: Option<BTreeSet<String>>,
    /// The nodes by label.
    pub selector: Selector,
    /// How many nodes may pull at one time; 0 pauses.
    pub parallelism: u32,
    /// Whether `parallelism` is a percentage of the job's nodes.
    pub percent: bool,
    /// How a node pulls.
    pub pull: Pull,
    /// When the job is over.
    pub completion: Completion,
    /// Hands nothing out, and holds what runs.
    pub suspend: bool,
    /// What becomes of nodes that are not there.
    pub unreachable: Unreachable,
    /// What becomes of it without any node.
    pub empty: Empty,
    /// The kind of object that says which nodes it wants and that cannot be seen, where that is so. It has no nodes then, and does
    /// not end for that.
    pub unseen: Option<&'static str>,
    /// When it was first planned, as its status says.
    pub started: Option<Timestamp>,
    /// When it ended, as its status says: from then on it is only kept until its ttl.
    pub ended: Option<Timestamp>,
    /// Why its status cannot be read, where that is so. Whether it has ended is unknown then: nothing is handed out, taken
    /// back or said until it can be read.
    pub unreadable: Option<String>,
}

impl Job {
    /// The keys of its valid images.
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.images.iter().filter_map(|image| image.reference.as_ref().ok()).map(|reference| reference.key())
    }

    /// How many of so many nodes may pull at one time. A percentage is rounded up: one that is not 0 lets at least one node pull.
    pub fn places(&self, nodes: usize) -> usize {
        let number = usize::try_from(self.parallelism).unwrap_or(usize::MAX);
        if self.percent { nodes.saturating_mul(number.min(100)).div_ceil(100) } else { number }
    }

    /// Whether it may have orders at all.
    pub fn runs(&self) -> bool {
        self.ended.is_none() && !self.suspend && self.unreadable.is_none()
    }

    /// Only what was asked at or after this time counts: the start, or that of the present round.
    pub fn since(&self, now: Timestamp) -> Timestamp {
        let start = self.started.unwrap_or(self.created);
        match self.completion {
            Completion::Once { .. } => start,
            Completion::Continuous { resync } => {
                let length = millis(resync.max(SHORTEST_ROUND));
                let passed = (now.as_millisecond() - start.as_millisecond()).max(0);
                Timestamp::from_millisecond(start.as_millisecond() + passed / length * length).unwrap_or(start)
            }
        }
    }

    /// When the present round ends, for a job that has rounds.
    pub fn round_ends(&self, now: Timestamp) -> Option<Timestamp> {
        match self.completion {
            Completion::Once { .. } => None,
            Completion::Continuous { resync } => Some(after(self.since(now), resync.max(SHORTEST_ROUND))),
        }
    }

    /// When every unfinished node fails; unknown until the job has started.
    pub fn deadline(&self) -> Option<Timestamp> {
        match self.completion {
            Completion::Once { deadline: Some(deadline), .. } => Some(after(self.started?, deadline)),
            _ => None,
        }
    }

    /// Whether the deadline has passed.
    pub fn overdue(&self, now: Timestamp) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= now)
    }

    /// When the ended job is deleted.
    pub fn expires(&self) -> Option<Timestamp> {
        match (&self.completion, self.ended) {
            (Completion::Once { ttl: Some(ttl), .. }, Some(ended)) => Some(after(ended, *ttl)),
            _ => None,
        }
    }
}

/// `time + duration`, held at the end of time instead of overflowing.
pub fn after(time: Timestamp, duration: Duration) -> Timestamp {
    Timestamp::from_millisecond(time.as_millisecond().saturating_add(millis(duration))).unwrap_or(Timestamp::MAX)
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// A machine of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// Its labels, which selectors see.
    pub labels: BTreeMap<String, String>,
    /// Whether the cluster believes that it is alive.
    pub ready: bool,
    /// Since when that is so.
    pub ready_changed: Option<Timestamp>,
}

/// A digest together with the ask that it answers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pin {
    /// [`Order::asked`] of the order whose node asked the registry.
    pub asked: Timestamp,
    /// What the registry said: the index's digest where there is one, so that every platform can use it.
    pub digest: String,
    /// Of an order: only one node said so, because no other could be asked. Never so in a report.
    pub alone: bool,
}

impl Pin {
    /// The registry's answer to the ask of this time.
    pub fn new(asked: Timestamp, digest: impl Into<String>) -> Self {
        Self { asked, digest: digest.into(), alone: false }
    }
}

/// What an order asks of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Ask the registry which digest the tag means, and fetch nothing. A node that has the image, where that is enough,
    /// says so instead.
    Resolve,
    /// Say whether the image is there, and leave the registry alone.
    Look,
    /// Fetch this digest. Without one: ask the registry, report the answer, then fetch it. That is for nodes that cannot
    /// resolve, because their runtime finds registries by itself or their agent is too old.
    Fetch(Option<Pin>),
}

impl Ask {
    /// Whether the answer is knowledge and not an image: such an order takes no place of a job's parallelism.
    pub fn is_question(&self) -> bool {
        !matches!(self, Ask::Fetch(_))
    }

    /// The digest to fetch.
    pub fn pin(&self) -> Option<&Pin> {
        match self {
            Ask::Fetch(pin) => pin.as_ref(),
            Ask::Resolve | Ask::Look => None,
        }
    }

    /// The feature that an agent must have to do this right.
    pub fn feature(&self) -> Option<&'static str> {
        match self {
            Ask::Resolve => Some(RESOLVE),
            Ask::Look => Some(LOOK),
            Ask::Fetch(_) => None,
        }
    }
}

/// The feature of an agent that [`Ask::Look`] needs.
pub const LOOK: &str = "look";

/// The feature of an agent that [`Ask::Resolve`] needs.
pub const RESOLVE: &str = "resolve";

/// The feature of an agent that an order with logins needs: it opens logins that were sealed to the key of its node.
pub const SEALED: &str = "sealed";

/// How an order is to be carried out. Made from the terms of the jobs that it serves, and passed on as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How to pull: the strictest of what the jobs say.
    pub pull: Pull,
    /// The logins of the jobs' Secrets, in the order in which they are tried.
    pub logins: Vec<LoginId>,
    /// How long the agent lets pass between two reports of mere progress.
    pub progress: Duration,
}

/// One image for one node, runnable now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The canonical reference.
    pub image: String,
    /// The jobs that it serves.
    pub jobs: BTreeSet<JobId>,
    /// When it was last asked for. A report answers the ask that it repeats; a later ask wants a new answer.
    pub asked: Timestamp,
    /// What to do.
    pub ask: Ask,
    /// Nothing runs, and what was fetched is kept, until this is false again.
    pub hold: bool,
    /// How to do it.
    pub terms: Terms,
    /// Features that an agent must have besides the one that [`Ask::feature`] names and [`SEALED`].
    pub needs: BTreeSet<String>,
}

impl Order {
    /// An order to be carried out now.
    pub fn new(image: &str, jobs: BTreeSet<JobId>, asked: Timestamp, ask: Ask, terms: Terms) -> Self {
        Self { image: image.into(), jobs, asked, ask, hold: false, terms, needs: BTreeSet::new() }
    }

    /// The digest to fetch.
    pub fn pin(&self) -> Option<&Pin> {
        self.ask.pin()
    }

    /// Every feature that an agent must have to do this right.
    pub fn features(&self) -> impl Iterator<Item = &str> {
        let sealed = (!self.terms.logins.is_empty()).then_some(SEALED);
        self.ask.feature().into_iter().chain(sealed).chain(self.needs.iter().map(String::as_str))
    }
}

/// How far an order is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// At work, or between two attempts.
    Pulling,
    /// The image is there, verified.
    Succeeded,
    /// The registry has said which digest the tag means; nothing was to be fetched.
    Resolved,
    /// Given up.
    Failed,
}

/// Byte counts. `done` includes what was there before; `upstream` and `peers` are what came over a wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// The image's size on this node's platform, 0 until it is known.
    pub total: u64,
    /// How much of it is there.
    pub done: u64,
    /// How much was received from the registry, repeats included.
    pub upstream: u64,
    /// How much was received from peers.
    pub peers: u64,
}

impl std::ops::AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        self.total = self.total.saturating_add(other.total);
        self.done = self.done.saturating_add(other.done);
        self.upstream = self.upstream.saturating_add(other.upstream);
        self.peers = self.peers.saturating_add(other.peers);
    }
}

/// What came of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// [`Order::asked`] of the newest order that this answers.
    pub asked: Timestamp,
    /// The jobs of that order: a report outlives its order, and says whose it was.
    pub jobs: BTreeSet<JobId>,
    /// How far it is.
    pub phase: Phase,
    /// The digest that is there, or on its way.
    pub digest: Option<String>,
    /// What the registry answered, where this node asked it.
    pub pin: Option<Pin>,
    /// Byte counts of this image on this node.
    pub bytes: Bytes,
    /// Which attempt this is, counted from 1.
    pub attempt: u32,
    /// Why it failed, or why the last attempt did.
    pub reason: Option<Reason>,
    /// The same for a person, with the next step.
    pub message: String,
    /// Since when no byte has come, in an attempt that goes on. `reason` and `message` say why.
    pub stalled: Option<Timestamp>,
    /// When the agent began, by its clock.
    pub started: Timestamp,
    /// When it was over, by the agent's clock.
    pub finished: Option<Timestamp>,
    /// The agent's last sign of life in this matter, by its clock.
    pub updated: Timestamp,
}

impl Report {
    /// Whether it is an end, not progress.
    pub fn ended(&self) -> bool {
        self.phase != Phase::Pulling
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adding_to_a_time_never_overflows() {
        assert_eq!(after(Timestamp::MAX, Duration::MAX), Timestamp::MAX);
        assert_eq!(after(Timestamp::UNIX_EPOCH, Duration::from_secs(5)).as_second(), 5);
    }
}
