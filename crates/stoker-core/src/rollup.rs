//! From where every node stands to the outcome of the job: counts, bytes, reasons, stage. No decisions.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::model::{Bytes, Completion, Empty, Job, JobId, NamedNodes, NodeName, SecretId, after};
use crate::policy::Refusal;
use crate::reason::Reason;

/// How many failed nodes an outcome describes; all of them are counted and named.
pub const DESCRIBED_FAILURES: usize = 20;

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Suspended by its user.
    Suspended,
    /// Nodes pull or wait.
    Running,
    /// A continuous job between two rounds: no node pulls or waits.
    Synced,
    /// Ended, every node has every image, or no more lack one than the job tolerates.
    Succeeded,
    /// Ended, more nodes do not.
    Failed,
}

/// A node that failed, with the reason for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedNode {
    /// Which node.
    pub node: NodeName,
    /// The public word.
    pub reason: Reason,
    /// The sentence.
    pub message: String,
}

/// A node that waits for something that does not come by itself as the job goes on, with the reason for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingNode {
    /// Which node.
    pub node: NodeName,
    /// The public word.
    pub reason: Reason,
    /// The sentence.
    pub message: String,
}

/// How a job stands: what each dialect renders as its status.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Which job.
    pub job: JobId,
    /// The generation of the object that this is about.
    pub generation: i64,
    /// How far it is.
    pub stage: Stage,
    /// Nodes that the job wants its images on.
    pub desired: u32,
    /// Of these: not pulling, not done.
    pub waiting: u32,
    /// At work.
    pub pulling: u32,
    /// Done.
    pub succeeded: u32,
    /// Given up.
    pub failed: u32,
    /// Sums over all nodes.
    pub bytes: Bytes,
    /// Digest by image as written.
    pub digests: BTreeMap<String, String>,
    /// The images, as written, whose digest others pull although only one node heard it from the registry.
    pub alone: Vec<String>,
    /// The first failed nodes by name, at most [`DESCRIBED_FAILURES`].
    pub failures: Vec<FailedNode>,
    /// The names of all failed nodes.
    pub failed_nodes: Vec<NodeName>,
    /// How many nodes wait for what.
    pub waiting_for: BTreeMap<Reason, u32>,
    /// For each reason that does not end by itself as the job goes on, the first of these nodes by name. Unknown nodes come last.
    pub waits: Vec<WaitingNode>,
    /// When it was first planned.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub completed: Option<Timestamp>,
    /// When it may be done, at the pace so far.
    pub eta: Option<Timestamp>,
    /// Secrets that the job names and that cannot be used.
    pub secrets: Vec<SecretTrouble>,
    /// Whether it names Secrets: its images need logins.
    pub private: bool,
    /// Orders that the API server refuses, one for each image.
    pub refused: Vec<RefusedOrder>,
    /// Whether the deadline ended it.
    pub overdue: bool,
    /// The nodes that are chosen, for a job that wants only some of those that it could have.
    pub chosen: Option<NamedNodes>,
    /// How many nodes it wants besides them, of which there are none.
    pub lacking: u32,
    /// Whether no node matches, for a job to which that is no success.
    pub lacks_nodes: bool,
    /// The kind of object that says which nodes are wanted and that cannot be seen.
    pub unseen: Option<&'static str>,
    /// Why the job is held; or why the first of its nodes waits that it may not use.
    pub not_allowed: Option<Arc<Refusal>>,
}

impl Outcome {
    /// Whether the job goes on only when a node matches.
    pub fn waits_for_nodes(&self) -> bool {
        self.lacks_nodes && self.stage == Stage::Running
    }
}

/// A Secret that a job names and that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretTrouble {
    /// Which one.
    pub secret: SecretId,
    /// Why, in a word.
    pub reason: Reason,
    /// Why, and what to do.
    pub message: String,
}

/// An image whose order the API server refuses, on one node or more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedOrder {
    /// The image as written.
    pub image: String,
    /// The first of these nodes by name.
    pub node: NodeName,
    /// How many they are.
    pub nodes: usize,
    /// What the API server said.
    pub why: String,
}

/// Counts nodes one by one.
#[derive(Default)]
pub(crate) struct Tally {
    counts: NodeCounts,
    bytes: Bytes,
    sized: u32,
    failures: Vec<FailedNode>,
    failed_nodes: Vec<NodeName>,
    waiting_for: BTreeMap<Reason, u32>,
    waits: Vec<WaitingNode>,
    overdue: bool,
    lacking: u32,
}

#[derive(Default)]
struct NodeCounts {
    desired: u32,
    waiting: u32,
    pulling: u32,
    succeeded: u32,
    failed: u32,
}

/// One node as the tally sees it.
pub(crate) enum NodeCount {
    Succeeded,
    Pulling,
    Waiting(Reason),
    Failed(Reason),
}

impl Tally {
    /// Adds a node; its message is only asked for where it is described. A wait without a message is counted only.
    pub(crate) fn add(&mut self, node: &NodeName, count: NodeCount, bytes: Bytes, message: impl FnOnce() -> String) {
        self.counts.desired += 1;
        self.bytes += bytes;
        self.sized += u32::from(bytes.total > 0);
        match count {
            NodeCount::Succeeded => self.counts.succeeded += 1,
            NodeCount::Pulling => self.counts.pulling += 1,
            NodeCount::Waiting(reason) => {
                self.counts.waiting += 1;
                let nodes = self.waiting_for.entry(reason).or_default();
                *nodes += 1;
                if *nodes == 1 {
                    let wait = WaitingNode { node: node.clone(), reason, message: message() };
                    self.waits.extend(Some(wait).filter(|wait| !wait.message.is_empty()));
                }
            }
            NodeCount::Failed(reason) => {
                self.counts.failed += 1;
                self.overdue |= reason == Reason::DeadlineExceeded;
                if self.failures.len() < DESCRIBED_FAILURES {
                    self.failures.push(FailedNode { node: node.clone(), reason, message: message() });
                }
                self.failed_nodes.push(node.clone());
            }
        }
    }

    /// Adds so many nodes that nobody knows: the job wants more than there are.
    pub(crate) fn lack(&mut self, nodes: usize, count: NodeCount) {
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        if nodes == 0 {
            return;
        }
        self.lacking = nodes;
        self.counts.desired = self.counts.desired.saturating_add(nodes);
        match count {
            NodeCount::Waiting(reason) => {
                self.counts.waiting = self.counts.waiting.saturating_add(nodes);
                self.waiting_for.insert(reason, nodes);
            }
            NodeCount::Failed(reason) => {
                self.counts.failed = self.counts.failed.saturating_add(nodes);
                self.overdue |= reason == Reason::DeadlineExceeded;
            }
            NodeCount::Succeeded | NodeCount::Pulling => {}
        }
    }

    /// The outcome. `closing` remembers when a job was first seen complete, until its object says so itself.
    pub(crate) fn outcome(
        self,
        job: &Job,
        (digests, alone): (BTreeMap<String, String>, Vec<String>),
        closing: &mut Option<Timestamp>,
        now: Timestamp,
    ) -> Outcome {
        let NodeCounts { desired, waiting, pulling, succeeded, failed } = self.counts;
        let started = job.started;
        let resting = waiting == 0 && pulling == 0;
        let once = matches!(job.completion, Completion::Once { .. });
        // Nothing to do is no success, for a job that wants to do something.
        let lacks_nodes = desired == 0 && (job.empty == Empty::Waits || job.unseen.is_some());
        let overdue = self.overdue || lacks_nodes && job.overdue(now);
        let complete = once && resting && !job.suspend && (!lacks_nodes || overdue);
        *closing = complete.then(|| closing.unwrap_or(now));
        let tolerated = job.tolerance.is_some_and(|tolerance| tolerance.allows(as_count(failed), as_count(desired)));
        let stage = match (complete, failed) {
            (true, 0) if !lacks_nodes => Stage::Succeeded,
            (true, _) if tolerated && !lacks_nodes => Stage::Succeeded,
            (true, _) => Stage::Failed,
            _ if job.suspend => Stage::Suspended,
            _ if resting && !lacks_nodes => Stage::Synced,
            _ => Stage::Running,
        };
        Outcome {
            job: job.id.clone(),
            generation: job.generation,
            stage,
            desired,
            waiting,
            pulling,
            succeeded,
            failed,
            bytes: self.bytes,
            digests,
            // A node that is alone in the job decides for nobody else.
            alone: if desired > 1 { alone } else { Vec::new() },
            failures: self.failures,
            failed_nodes: self.failed_nodes,
            waiting_for: self.waiting_for,
            waits: self.waits,
            started,
            completed: *closing,
            eta: (pulling > 0).then(|| eta(started?, now, self.bytes, self.sized, desired)).flatten(),
            secrets: Vec::new(),
            private: job.images.iter().any(|image| !image.secrets.is_empty()),
            refused: Vec::new(),
            overdue,
            chosen: job.names.clone().filter(|_| job.pick.is_some()),
            lacking: self.lacking,
            lacks_nodes,
            unseen: job.unseen,
            not_allowed: job.bounds.refusal.clone(),
        }
    }
}

fn as_count(nodes: u32) -> usize {
    usize::try_from(nodes).unwrap_or(usize::MAX)
}

/// Nodes that have not begun are taken to be as large as the mean of those that have.
fn eta(started: Timestamp, now: Timestamp, bytes: Bytes, sized: u32, desired: u32) -> Option<Timestamp> {
    let elapsed = u128::try_from(now.as_second() - started.as_second()).ok()?;
    let expected = u128::from(bytes.total) * u128::from(desired) / u128::from(sized.max(1));
    let done = u128::from(bytes.done);
    if done == 0 || elapsed == 0 || expected < done {
        return None;
    }
    let left = elapsed.saturating_mul(expected - done) / done;
    let now = Timestamp::from_second(now.as_second()).ok()?;
    Some(after(now, std::time::Duration::from_secs(u64::try_from(left).ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eta_is_proportional_and_never_overflows() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let bytes = |total, done| Bytes { total, done, ..Bytes::default() };
        assert_eq!(eta(at(0), at(10), bytes(100, 50), 1, 1), Some(at(20)));
        assert_eq!(eta(at(0), at(10), bytes(100, 100), 1, 2), Some(at(20)), "the second node has not begun");
        assert_eq!(eta(at(0), at(10), bytes(100, 0), 1, 1), None);
        assert_eq!(eta(at(10), at(0), bytes(100, 1), 1, 1), None, "a clock that went back");
        assert!(eta(at(0), at(10), bytes(u64::MAX, 1), 1, u32::MAX).is_none_or(|eta| eta > at(10)));
    }
}
