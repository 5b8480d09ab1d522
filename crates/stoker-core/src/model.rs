//! The words of the design as types: what a job wishes, what a node is ordered, what it reports.
//!
//! Dialects make [`Job`]s, the plan makes [`Order`]s, agents make [`Report`]s. No wire names here.

mod id;
mod peer;
mod pull;
mod secret;
mod source;
#[cfg(test)]
pub(crate) mod testing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::pace::{FAR_AHEAD, SHORTEST_ROUND};
use crate::policy::Bounds;
use crate::reason::Reason;
use crate::reference::Reference;
use crate::select::Selector;
pub use id::{JobId, Key, KindName, NotAJobId, NotAnOrderKey};
pub use peer::{GROUP_LABEL, MOST_PEERS, NO_GROUP, Origin, PEERS, PeerFacts, PeerKey, PeerPast, PeerRef};
pub use pull::{Policy, Pull, Sandbox};
pub use secret::{Found, LoginId, Offer, SecretId};
pub use source::PullSource;

/// The name of a node.
pub type NodeName = Arc<str>;

/// Nodes by name, each with the time from which it counts: see [`Job::since`]. Shared, because thousands of nodes may be named.
pub type NamedNodes = Arc<BTreeMap<NodeName, Timestamp>>;

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
    /// Never, and no status of its own says how far it is: the job stands for entries that people keep in objects of nodes. Each of its
    /// nodes counts from its own time. A node that succeeded or failed stays so until that time moves.
    Standing,
}

/// How many nodes of a job may fail without the job failing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tolerance {
    /// How many.
    pub number: u32,
    /// Whether `number` is a percentage of the job's nodes.
    pub percent: bool,
}

impl Tolerance {
    /// Whether so many of so many nodes may fail.
    pub fn allows(&self, failed: usize, nodes: usize) -> bool {
        let number = usize::try_from(self.number).unwrap_or(usize::MAX);
        match self.percent {
            true => failed.saturating_mul(100) <= nodes.saturating_mul(number),
            false => failed <= number,
        }
    }
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

/// Which of the nodes that it could have a job wants, where it does not want all of them: so many, or those that are Ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// How many. Not given: all that are Ready.
    pub number: Option<u32>,
    /// The nodes by name among which they are; none means all that the selector takes.
    pub among: Option<NamedNodes>,
    /// The nodes that are chosen, as the status of the object says; none where it says nothing. The World takes them out: it knows better what
    /// it has chosen itself.
    pub chosen: Option<BTreeSet<NodeName>>,
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
    /// The nodes by name, each with the time from which it counts, [`Job::FROM_ITS_START`] for those that have no time of their own. None given
    /// means all that the selector takes.
    pub names: Option<NamedNodes>,
    /// Where it wants only some of its nodes: how many, and among which. Its `names` are those that the World has chosen then.
    pub pick: Option<Pick>,
    /// The nodes by label.
    pub selector: Selector,
    /// Whether it also wants [foreign](Node::foreign) nodes.
    pub foreign_nodes: bool,
    /// How many nodes may pull at one time; 0 pauses.
    pub parallelism: u32,
    /// Whether `parallelism` is a percentage of the job's nodes.
    pub percent: bool,
    /// How many nodes may fail. When more have, nothing more is handed out, and the job fails. Without it every node is tried, and
    /// a job of which any node failed has failed.
    pub tolerance: Option<Tolerance>,
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
    /// What policies leave it. Dialects say nothing of that: the World finds it out.
    pub bounds: Bounds,
}

impl Job {
    /// The time of a node in [`Job::names`] that counts from the start of the job, like all its others.
    pub const FROM_ITS_START: Timestamp = Timestamp::MIN;

    /// Nodes of these names that count from the start of their job.
    pub fn named<N: Into<NodeName>>(names: impl IntoIterator<Item = N>) -> NamedNodes {
        Arc::new(names.into_iter().map(|name| (name.into(), Self::FROM_ITS_START)).collect())
    }

    /// The same job, which wants so many of its nodes, or all that are Ready: those that are chosen, as its status says, and others where they
    /// cannot stay.
    pub fn picking(mut self, number: impl Into<Option<u32>>, chosen: Option<BTreeSet<NodeName>>) -> Self {
        self.pick = Some(Pick { number: number.into(), among: self.names.take(), chosen });
        self
    }

    /// The nodes by name that it could have.
    pub fn among(&mut self) -> &mut Option<NamedNodes> {
        match &mut self.pick {
            Some(pick) => &mut pick.among,
            None => &mut self.names,
        }
    }

    /// Whether it [never ends](Completion::Standing) and has no status of its own.
    pub fn is_standing(&self) -> bool {
        self.completion == Completion::Standing
    }

    /// How many nodes it wants that it has not, where it wants a number of them.
    pub fn lacking(&self) -> usize {
        let number = self.pick.as_ref().and_then(|pick| pick.number).unwrap_or_default();
        let wanted = usize::try_from(number).unwrap_or(usize::MAX);
        wanted.saturating_sub(self.names.as_ref().map_or(0, |names| names.len()))
    }

    /// The keys of its valid images.
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.images.iter().filter_map(|image| image.reference.as_ref().ok()).map(|reference| reference.key())
    }

    /// How many of so many nodes may pull at one time. A percentage is rounded up: one that is not 0 lets at least one node pull.
    pub fn places(&self, nodes: usize) -> usize {
        let number = usize::try_from(self.parallelism).unwrap_or(usize::MAX);
        if self.percent { nodes.saturating_mul(number.min(100)).div_ceil(100) } else { number }
    }

    /// Whether more of its nodes have failed than it tolerates.
    pub fn gives_up(&self, failed: usize, nodes: usize) -> bool {
        self.tolerance.is_some_and(|tolerance| !tolerance.allows(failed, nodes))
    }

    /// Whether it may have orders at all.
    pub fn runs(&self) -> bool {
        self.ended.is_none() && !self.rests() && self.unreadable.is_none()
    }

    /// Of this node only what was asked at or after this time counts: the start of the job or that of its present round, or the node's own
    /// time where that is later.
    pub fn since(&self, node: &str, now: Timestamp) -> Timestamp {
        let own = self.names.as_ref().and_then(|names| names.get(node)).copied();
        self.later(own.unwrap_or(Self::FROM_ITS_START), now)
    }

    /// The later of this time of a node and the start. A time that is far ahead was not written by a clock, and does not count.
    fn later(&self, own: Timestamp, now: Timestamp) -> Timestamp {
        let began = self.began(now);
        if own > began && own <= after(now, FAR_AHEAD) { own } else { began }
    }

    /// The times from which its nodes count, each once, and when a time that is far ahead begins to count. All nodes of most jobs count from
    /// one time.
    pub fn sinces(&self, now: Timestamp) -> (BTreeSet<Timestamp>, Option<Timestamp>) {
        let (mut sinces, mut last, mut counts) = (BTreeSet::new(), None, None);
        for own in self.names.iter().flat_map(|names| names.values()) {
            let since = self.later(*own, now);
            if last != Some(since) {
                sinces.insert(since);
                last = Some(since);
            }
            if since < *own {
                let soon = before(*own, FAR_AHEAD);
                counts = Some(counts.map_or(soon, |counts: Timestamp| counts.min(soon)));
            }
        }
        if sinces.is_empty() {
            sinces.insert(self.began(now));
        }
        (sinces, counts)
    }

    /// When it began, or its present round did.
    pub fn began(&self, now: Timestamp) -> Timestamp {
        // A start that is yet to come was written by somebody else: answers of long ago would never count, or those of the future always.
        let start = self.started.filter(|started| *started <= after(now, FAR_AHEAD)).unwrap_or(self.created);
        match self.completion {
            Completion::Once { .. } | Completion::Standing => start,
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
            Completion::Once { .. } | Completion::Standing => None,
            Completion::Continuous { resync } => Some(after(self.began(now), resync.max(SHORTEST_ROUND))),
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

/// `time - duration`, held at the beginning of time.
fn before(time: Timestamp, duration: Duration) -> Timestamp {
    Timestamp::from_millisecond(time.as_millisecond().saturating_sub(millis(duration))).unwrap_or(Timestamp::MIN)
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
    /// Whether nothing new is to be put there.
    pub cordoned: bool,
    /// Whether somebody else plays the agent there: no machine of the cluster and no agent of ours belongs to it. Such a node takes orders to
    /// fetch what a tag means and reports what came of them. It is asked nothing, says nothing that others go by, is given no login, and
    /// is there as soon as its orders or reports are known.
    pub foreign: bool,
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

/// The feature of an agent that an order needs that may ask mirrors and not the registry itself.
pub const MIRRORS: &str = "mirrors";

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
    /// Features that an agent must have besides the one that [`Ask::feature`] names, [`SEALED`], [`PEERS`] and [`MIRRORS`].
    pub needs: BTreeSet<String>,
    /// Whether the node may ask the registry. If not, it never does, whatever fails.
    pub upstream: bool,
    /// The nodes that it may read from, in the order in which they are tried: at most three, and the spare. See [`MOST_PEERS`].
    pub peers: Vec<PeerRef>,
    /// The bytes a second that other nodes of the group get, as far as that is known.
    pub expect: Option<u64>,
    /// What this ask has been through with its peers.
    pub past: PeerPast,
}

impl Order {
    /// An order to be carried out now, from the registry.
    pub fn new(image: &str, jobs: BTreeSet<JobId>, asked: Timestamp, ask: Ask, terms: Terms) -> Self {
        Self {
            image: image.into(),
            jobs,
            asked,
            ask,
            hold: false,
            terms,
            needs: BTreeSet::new(),
            upstream: true,
            peers: Vec::new(),
            expect: None,
            past: PeerPast::default(),
        }
    }

    /// The digest to fetch.
    pub fn pin(&self) -> Option<&Pin> {
        self.ask.pin()
    }

    /// Every feature that an agent must have to do this right.
    pub fn features(&self) -> impl Iterator<Item = &str> {
        let sealed = (!self.terms.logins.is_empty()).then_some(SEALED);
        let peers = (!self.upstream || !self.peers.is_empty()).then_some(PEERS);
        let mirrors = self.terms.pull.source.feature();
        self.ask
            .feature()
            .into_iter()
            .chain(sealed)
            .chain(peers)
            .chain(mirrors)
            .chain(self.needs.iter().map(String::as_str))
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
    /// How much of `upstream` was received from mirrors.
    pub mirrors: u64,
}

impl std::ops::AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        self.total = self.total.saturating_add(other.total);
        self.done = self.done.saturating_add(other.done);
        self.upstream = self.upstream.saturating_add(other.upstream);
        self.peers = self.peers.saturating_add(other.peers);
        self.mirrors = self.mirrors.saturating_add(other.mirrors);
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
    /// The digest that is there, or on its way. The World keeps it once for all nodes.
    pub digest: Option<Arc<str>>,
    /// What the registry answered, where this node asked it.
    pub pin: Option<Pin>,
    /// Of an order that wants what the tag means now: the node has some image of this name. That is enough for jobs that want any.
    pub present: bool,
    /// Byte counts of this image on this node.
    pub bytes: Bytes,
    /// Where its bytes come from now, or came from last.
    pub from: Option<Origin>,
    /// The peers that could not serve this ask, at most [`MOST_PEERS`], and the latest where there are more. With [`Reason::NoSource`] all
    /// peers of the order are among them.
    pub bad: Vec<NodeName>,
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
        assert_eq!(before(Timestamp::MIN, Duration::MAX), Timestamp::MIN);
    }

    #[test]
    fn a_node_counts_from_the_later_of_its_own_time_and_the_start() {
        use testing::{at, job};
        let mut job = job("j", None);
        job.started = Some(at(100));
        let day = 86_400;
        let times = [("early", at(50)), ("late", at(200)), ("plain", Job::FROM_ITS_START), ("far", at(10 * day))];
        job.names = Some(Arc::new(times.into_iter().map(|(name, time)| (name.into(), time)).collect()));
        for (node, now, since) in [
            ("early", 300, 100),
            ("late", 300, 200),
            ("plain", 300, 100),
            ("stranger", 300, 100),
            ("far", 300, 100),
            ("far", 9 * day - 1, 100),
            ("far", 9 * day, 10 * day),
        ] {
            assert_eq!(job.since(node, at(now)), at(since), "{node} at {now}");
        }
        assert_eq!(job.sinces(at(300)), (BTreeSet::from([at(100), at(200)]), Some(at(9 * day))));
        job.names = None;
        assert_eq!(job.sinces(at(300)), (BTreeSet::from([at(100)]), None));
    }
}
