//! Attempts at orders: how one begins, is held or forgotten, and what becomes of its order when it ends.

use std::sync::Arc;

use jiff::Timestamp;
use stoker_core::model::Key;
use stoker_core::step::{self, Action, Failure, Task, TaskState};
use stoker_core::{Ask, Reason, human, text};
use stoker_transfer::limit::Pace;
use tokio::task::{Id, JoinError};

use super::{Agent, Running};
use crate::meter::Meter;
use crate::pull::Done;
use crate::pulls::Left;
use crate::starts;
use crate::sweep;

impl Agent {
    /// Counts what begins.
    pub(super) fn count_starts(&mut self, actions: &[Action]) {
        for action in actions {
            if let Action::Start { key, .. } = action
                && let Some(order) = self.orders.get(key)
            {
                self.starts.begin(*key, order.asked, self.spooled);
            }
        }
    }

    pub(super) fn act(&mut self, action: Action, now: Timestamp) {
        match action {
            Action::Start { key, attempt } => self.start(key, attempt, now),
            Action::Refuse { key, missing } => {
                if let Some(order) = self.orders.get(&key) {
                    self.tasks.insert(key, step::refuse(order, &missing, now));
                }
            }
            Action::Yield { key } => {
                self.starts.ended(key);
                if let Some(running) = self.running.remove(&key) {
                    tracing::info!(node = self.settings.node, image = running.began.image, "gives its place to others");
                    running.abort.abort();
                }
                if let Some(task) = self.tasks.get(&key) {
                    if let TaskState::Running { since } = task.state {
                        *self.worked.entry(key).or_default() += now.duration_since(since).unsigned_abs();
                    }
                    self.tasks.insert(key, step::give_way(task, now));
                }
            }
            Action::Hold { key } => {
                self.worked.remove(&key);
                self.starts.ended(key);
                if let Some(running) = self.running.remove(&key) {
                    tracing::info!(node = self.settings.node, order = %key, "held; what was fetched is kept");
                    running.abort.abort();
                }
                if let Some(task) = self.tasks.get(&key) {
                    self.tasks.insert(key, step::hold(task, now));
                }
            }
            Action::Forget { key } => {
                self.worked.remove(&key);
                self.starts.ended(key);
                if let Some(task) = self.tasks.remove(&key) {
                    let left = Left { since: now, bytes: task.report.bytes.upstream };
                    self.leftovers().pulls.leave(&key.to_string(), left);
                    if task.state == TaskState::Ended {
                        self.kept.keep(key, &task.report);
                    }
                }
                self.broom.call();
                if let Some(running) = self.running.remove(&key) {
                    self.broom.call_twice(now);
                    tracing::info!(node = self.settings.node, order = %key, "the order was taken back, its pull stops");
                    running.abort.abort();
                }
            }
        }
    }

    /// An order waits for its turn.
    pub(super) fn queue(&mut self, key: Key, behind: usize, now: Timestamp) {
        let Some(order) = self.orders.get(&key) else { return };
        let queued = step::queue(order, behind, now);
        let same = |task: &Task| (task.state, &task.report.message) == (queued.state, &queued.report.message);
        if !self.tasks.get(&key).is_some_and(same) {
            self.tasks.insert(key, queued);
        }
    }

    fn start(&mut self, key: Key, attempt: u32, now: Timestamp) {
        let Some(mut order) = self.orders.get(&key).cloned() else { return };
        if self.starts.is_too_often(key) {
            let message = starts::given_up(&order.image);
            tracing::error!(node = self.settings.node, image = order.image, "{message}");
            let failure = Failure { reason: Reason::GivenUp, message, retryable: false, pause: None };
            let task = step::begin(&order, attempt, self.tasks.get(&key).map(|task| &task.report), now);
            self.tasks.insert(key, step::fail(&order, &task, failure, self.salt, now));
            self.starts.ended(key);
            return;
        }
        let doing = match order.ask {
            Ask::Resolve => "asking the registry which digest the tag means",
            Ask::Look => "looking whether the image is there",
            Ask::Fetch(_) => "pulling",
        };
        tracing::info!(node = self.settings.node, image = order.image, attempt, "{doing}");
        let task = step::begin(&order, attempt, self.tasks.get(&key).map(|task| &task.report), now);
        let earlier = task.report.bytes;
        // The registry is asked once: what an earlier attempt was told, all other nodes have by now.
        if order.ask == Ask::Fetch(None) {
            order.ask = Ask::Fetch(task.report.pin.clone().filter(|pin| pin.asked >= order.asked));
        }
        self.tasks.insert(key, task);
        let meter = Meter::new(self.news.clone());
        let pace = Arc::new(Pace::unlimited());
        pace.set(order.terms.pull.bandwidth);
        let (tools, its_meter, its_pace, began) = (self.tools.clone(), meter.clone(), pace.clone(), order.clone());
        let left = order.terms.pull.timeout.saturating_sub(self.worked.get(&key).copied().unwrap_or_default());
        let abort = self.attempts.spawn(async move {
            let attempt = tokio::time::timeout(left, tools.attempt(&order, &its_meter, &its_pace)).await;
            attempt.unwrap_or_else(|_| {
                let last = its_meter.waiting().or(its_meter.trouble().map(|trouble| trouble.to_string()));
                let last = last.map(|last| format!("; last: {last}")).unwrap_or_default();
                Err(Failure {
                    reason: Reason::Timeout,
                    message: format!(
                        "{}: not done after {} s, the longest that the job allows for one attempt; \
                         the next one goes on where this one stopped{last}",
                        order.image,
                        order.terms.pull.timeout.as_secs()
                    ),
                    retryable: true,
                    pause: None,
                })
            })
        });
        self.running.insert(key, Running { meter, pace, earlier, began, abort });
    }

    /// An attempt has ended by itself, was aborted, or panicked. Only the one that runs for its order counts.
    pub(super) fn join(&mut self, ended: Result<(Id, Result<Done, Failure>), JoinError>) {
        let (id, result) = match ended {
            Ok(ended) => ended,
            Err(problem) => {
                let message = format!("the attempt broke off ({problem}); this is a bug, report the agent's log");
                (problem.id(), Err(Failure { reason: Reason::Unknown, message, retryable: true, pause: None }))
            }
        };
        let key = self.running.iter().find(|(_, running)| running.abort.id() == id).map(|(key, _)| *key);
        if let Some(key) = key {
            self.conclude(key, result);
        }
    }

    fn conclude(&mut self, key: Key, result: Result<Done, Failure>) {
        self.starts.ended(key);
        let now = (self.settings.clock)();
        self.read_meters(now);
        self.worked.remove(&key);
        let began_with = self.running.remove(&key).map(|running| running.began.terms.logins);
        // An answer is no image; that there is none is what keeps images from coming.
        let question = self.orders.get(&key).is_some_and(|order| order.ask.is_question());
        let no_answer = |failure: &Failure| matches!(failure.reason, Reason::Unresolved | Reason::Unsupported);
        if !question || result.as_ref().is_err_and(|failure| !no_answer(failure)) {
            self.share.attempt(&result);
        }
        let (Some(order), Some(task)) = (self.orders.get(&key), self.tasks.get(&key)) else { return };
        let node = &self.settings.node;
        let task = match result {
            Ok(Done { answer: Some(pin), .. }) => {
                tracing::info!(node, image = order.image, digest = pin.digest, "the registry has answered");
                step::resolve(order, task, pin, now)
            }
            Ok(Done { digest, note, .. }) => {
                let bytes = task.report.bytes;
                tracing::info!(
                    node,
                    image = order.image,
                    digest,
                    received = human::bytes(bytes.upstream),
                    "the image is there"
                );
                let mut task = step::succeed(order, task, digest, bytes, now);
                task.report.message = note.as_deref().map(text::message).unwrap_or_default();
                task
            }
            Err(failure)
                if failure.reason == Reason::Unauthorized && began_with.as_ref() != Some(&order.terms.logins) =>
            {
                tracing::info!(
                    node,
                    image = order.image,
                    "refused, but its logins have changed: the same attempt again"
                );
                step::adopt(task.report.clone(), now)
            }
            Err(failure) => {
                // A registry or a runtime may have said anything.
                let failure = Failure { message: text::message(&failure.message), ..failure };
                match failure.reason {
                    Reason::Unresolved => tracing::debug!(node, image = order.image, "{}", failure.message),
                    reason => tracing::warn!(node, image = order.image, %reason, "{}", failure.message),
                }
                step::fail(order, task, failure, self.salt, now)
            }
        };
        if task.report.ended() && sweep::gives_way(&task.report) {
            self.broom.call();
        }
        self.tasks.insert(key, task);
    }

    pub(super) fn read_meters(&mut self, now: Timestamp) {
        for (key, task) in self.tasks.iter_mut().filter(|(_, task)| task.state != TaskState::Ended) {
            if let Some(running) = self.running.get(key) {
                running.meter.read(&mut task.report, running.earlier, now);
                self.starts.progress(*key, task.report.bytes);
                self.share.received(running.meter.received());
            }
            task.report.updated = now;
        }
    }
}
