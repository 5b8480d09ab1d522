//! What the API server is told, and when: one write at a time, the newest state next, growing pauses after writes that fail.
//! Tasks and orders come in as they are; this part performs no write itself and changes no task.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use stoker_api::native::PeerInfo;
use stoker_api::native::from_core::Saying;
use stoker_core::model::{Key, Order, Report, after};
use stoker_core::step::Task;
use tokio::task::JoinSet;

use crate::metrics::AgentCounts;
use crate::refused::WriteOutcome;
use crate::report::{Acknowledged, KeptReports};

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

pub(super) struct Reporting {
    node: String,
    counts: Arc<AgentCounts>,
    said: Acknowledged,
    /// Reports that stay although their orders are gone.
    kept: KeptReports,
    /// Whether the object was read, with what an earlier life of this agent had said there.
    adopted: bool,
    /// Whether the API server knows what agent this is.
    introduced: bool,
    /// What it was told about reading images from this node.
    peer: Option<PeerInfo>,
    /// After a failed write, not before this time.
    quiet_until: Option<Timestamp>,
    pause: Duration,
    /// One at most. A task, so that it goes on while the loop waits for the disk.
    writing: JoinSet<WriteOutcome>,
}

impl Reporting {
    pub(super) fn new(node: String, counts: Arc<AgentCounts>) -> Self {
        Self {
            node,
            counts,
            said: Acknowledged::default(),
            kept: KeptReports::default(),
            adopted: false,
            introduced: false,
            peer: None,
            quiet_until: None,
            pause: Duration::ZERO,
            writing: JoinSet::new(),
        }
    }

    /// Whether the object was read. Nothing is written before.
    pub(super) fn has_adopted(&self) -> bool {
        self.adopted
    }

    /// Whether the next write has to say what agent this is. That it became faster or slower is said along with something else, and is no
    /// reason to write.
    pub(super) fn must_introduce(&self, peer: Option<&PeerInfo>) -> bool {
        !self.introduced || self.peer.as_ref() != peer
    }

    /// Takes up what an earlier life of this agent has said.
    pub(super) fn adopt(&mut self, reports: BTreeMap<Key, Report>, orders: &BTreeMap<Key, Order>) {
        for (key, report) in reports.iter().filter(|(key, report)| !orders.contains_key(key) && report.ended()) {
            self.kept.keep(*key, report);
        }
        self.said = Acknowledged { reports };
        self.adopted = true;
    }

    /// The object was listed anew, and is read as for the first time: an API server that was restored from a backup has lost what
    /// was said to it since. `introduced` is whether it knows this agent.
    pub(super) fn relist(&mut self, introduced: bool) {
        (self.adopted, self.kept) = (false, KeptReports::default());
        self.introduced &= introduced;
    }

    /// The object is gone: a write that is under way is for nobody, and a new object knows nothing.
    pub(super) fn forget(&mut self) {
        (self.said, self.kept) = (Acknowledged::default(), KeptReports::default());
        (self.adopted, self.introduced) = (false, false);
        self.writing = JoinSet::new();
    }

    /// An order was taken back; its report stays for people where it is an end.
    pub(super) fn keep(&mut self, key: Key, report: &Report) {
        self.kept.keep(key, report);
    }

    /// There are orders under these keys.
    pub(super) fn release<'a>(&mut self, keys: impl Iterator<Item = &'a Key>) {
        keys.for_each(|key| self.kept.release(*key));
    }

    /// When the next write is due, unless one is under way.
    pub(super) fn due(
        &self,
        tasks: &BTreeMap<Key, Task>,
        orders: &BTreeMap<Key, Order>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let due = match (self.adopted, self.introduced) {
            _ if !self.writing.is_empty() => None,
            (false, _) => None,
            (true, false) => Some(now),
            (true, true) => self.said.due(tasks, orders, now),
        };
        due.map(|due| self.quiet_until.map_or(due, |quiet| quiet.max(due)))
    }

    /// What to write now, if a write is due.
    pub(super) fn next(
        &self,
        tasks: &BTreeMap<Key, Task>,
        orders: &BTreeMap<Key, Order>,
        now: Timestamp,
    ) -> Option<Saying> {
        let due = self.due(tasks, orders, now).is_some_and(|due| due <= now);
        due.then(|| self.said.saying(tasks, &self.kept))
    }

    /// Begins a write.
    pub(super) fn begin(&mut self, write: impl Future<Output = WriteOutcome> + Send + 'static) {
        self.writing.spawn(write);
    }

    /// The end of the write that is under way; none where there is none.
    pub(super) async fn ended(&mut self) -> Option<WriteOutcome> {
        Some(self.writing.join_next().await?.unwrap_or_else(WriteOutcome::broke_off))
    }

    /// A write has ended.
    pub(super) fn written(&mut self, WriteOutcome { said, problem }: WriteOutcome, now: Timestamp) {
        self.counts.wrote(problem.is_none());
        self.said.acknowledge(&said);
        if let Some(agent) = said.agent {
            (self.introduced, self.peer) = (true, agent.peer);
        }
        match problem {
            None => (self.quiet_until, self.pause) = (None, Duration::ZERO),
            Some(problem) => {
                tracing::warn!(node = self.node, "cannot report, trying again: {problem}");
                self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                self.quiet_until = Some(after(now, self.pause));
            }
        }
    }
}

#[cfg(test)]
mod tests;
