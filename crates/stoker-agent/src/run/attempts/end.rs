//! What becomes of an order when its attempt ends, or when the image that it is about is seen on the node.

use std::collections::BTreeMap;

use jiff::Timestamp;
use stoker_core::model::{Key, Order, Terms};
use stoker_core::step::{self, Failure, Task};
use stoker_core::{Reason, human, text};
use stoker_runtime::Stored;

use super::{AttemptEnd, Attempts};
use crate::pull::Success;
use crate::sweep;
use crate::truth::{self, Sightings};

impl Attempts {
    /// An attempt has ended by itself, was aborted, or panicked. Only the one that runs for its order counts.
    pub(super) fn join(&mut self, ended: AttemptEnd, orders: &BTreeMap<Key, Order>) {
        let (id, result) = match ended {
            Ok(ended) => ended,
            Err(problem) => {
                let message = format!("the attempt broke off ({problem}); this is a bug, report the agent's log");
                (problem.id(), Err(Failure { reason: Reason::Unknown, message, retryable: true, pause: None }))
            }
        };
        let key = self.running.iter().find(|(_, running)| running.abort.id() == id).map(|(key, _)| *key);
        let Some(key) = key else { return };
        self.starts.ended(key);
        let now = (self.tools.clock)();
        self.read_meters(now);
        self.worked.remove(&key);
        let running = self.running.remove(&key);
        let began_with = running.map(|running| {
            running.supply.close();
            running.began.terms
        });
        if counts(orders.get(&key), &result) {
            self.counts.attempt(&result);
        }
        let (Some(order), Some(task)) = (orders.get(&key), self.tasks.get(&key)) else { return };
        let task = conclude((order, task), result, began_with.as_ref(), (&self.node, self.salt), now);
        if task.report.ended() && sweep::gives_way(&task.report) {
            self.upkeep.broom.call();
        }
        self.tasks.insert(key, task);
    }

    /// Compares what the reports say with what was seen on the node.
    pub(super) fn judge(&mut self, seen: Sightings, orders: &BTreeMap<Key, Order>) {
        let now = (self.tools.clock)();
        for (key, said, there) in seen {
            let (Some(order), Some(task)) = (orders.get(&key), self.tasks.get(&key)) else { continue };
            if let Some(task) = truth::judge(order, task, said, &there, now) {
                let what = match there {
                    Stored::Whole(_) => "somebody else has brought it",
                    Stored::Damaged(_) => "it was damaged",
                    Stored::Missing => "somebody has removed it",
                };
                tracing::info!(node = self.node, image = order.image, "{what}");
                if let Some(running) = self.running.get(&key) {
                    running.meter.found(task.report.present);
                }
                self.tasks.insert(key, task);
            }
        }
    }
}

/// The task after its attempt. `began_with` are the terms of the order when the attempt began.
fn conclude(
    (order, task): (&Order, &Task),
    result: Result<Success, Failure>,
    began_with: Option<&Terms>,
    (node, salt): (&str, u64),
    now: Timestamp,
) -> Task {
    let image = &order.image;
    match result {
        Ok(Success { answer: Some(pin), .. }) => {
            tracing::info!(node, image, digest = pin.digest, "the registry has answered");
            step::resolve(order, task, pin, now)
        }
        Ok(Success { digest, note, .. }) => {
            let bytes = task.report.bytes;
            let received = human::bytes(bytes.upstream.saturating_add(bytes.peers));
            tracing::info!(node, image, digest, received, "the image is there");
            let mut task = step::succeed(order, task, digest, bytes, now);
            task.report.message = note.as_deref().map(text::message).unwrap_or_default();
            task
        }
        Err(failure)
            if failure.reason == Reason::Unauthorized && !began_with.is_some_and(|terms| asks_as(terms, order)) =>
        {
            tracing::info!(
                node,
                image,
                "refused, but its logins, or whom it may ask, have changed: the same attempt again"
            );
            step::adopt(task.report.clone(), now)
        }
        Err(failure) => {
            // A registry or a runtime may have said anything.
            let failure = Failure { message: text::message(&failure.message), ..failure };
            match failure.reason {
                Reason::Unresolved => tracing::debug!(node, image, "{}", failure.message),
                reason => tracing::warn!(node, image, %reason, "{}", failure.message),
            }
            step::fail(order, task, failure, salt, now)
        }
    }
}

/// Whether an attempt that began on these terms asked whom the order lets it ask now, with the same logins.
fn asks_as(terms: &Terms, order: &Order) -> bool {
    (&terms.logins, terms.pull.source) == (&order.terms.logins, order.terms.pull.source)
}

/// Whether an attempt counts as one to bring an image. An answer is no image; that there is none is what keeps images from
/// coming.
fn counts(order: Option<&Order>, result: &Result<Success, Failure>) -> bool {
    let question = order.is_some_and(|order| order.ask.is_question());
    let no_answer = |failure: &Failure| matches!(failure.reason, Reason::Unresolved | Reason::Unsupported);
    !question || result.as_ref().is_err_and(|failure| !no_answer(failure))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, order};
    use stoker_core::model::{Ask, LoginId, Phase, Pin, PullSource};
    use stoker_core::step::{TaskState, begin};

    fn failed(reason: Reason, retryable: bool) -> Result<Success, Failure> {
        Err(Failure { reason, message: "no\nway".into(), retryable, pause: None })
    }

    #[test]
    fn an_order_ends_rests_or_goes_on_as_the_same_attempt() {
        let pin = Pin::new(at(0), "sha256:a");
        let note = Success { note: Some("loaded\nfrom a file".into()), ..Success::from("sha256:a".to_string()) };
        let logins = |name: &str| Terms { logins: vec![LoginId::new(name)], ..order().terms };
        let (same, other, mut hosts) = (logins("a"), logins("b"), logins("a"));
        hosts.pull.source = PullSource::MirrorsOnly;
        for (what, result, began_with, phase, attempt, ended, message) in [
            ("an answer", Ok(Success::from(pin)), &same, Phase::Resolved, 2, true, ""),
            ("an image", Ok(Success::from("sha256:a".to_string())), &same, Phase::Succeeded, 2, true, ""),
            ("what a person should know", Ok(note), &same, Phase::Succeeded, 2, true, "loaded\\nfrom a file"),
            ("a retry", failed(Reason::Unreachable, true), &same, Phase::Pulling, 2, false, "no\\nway"),
            ("the end", failed(Reason::NotFound, false), &same, Phase::Failed, 2, true, "no\\nway"),
            ("refused", failed(Reason::Unauthorized, false), &same, Phase::Failed, 2, true, "no\\nway"),
            ("refused with old logins", failed(Reason::Unauthorized, false), &other, Phase::Pulling, 1, false, ""),
            ("refused by other hosts", failed(Reason::Unauthorized, false), &hosts, Phase::Pulling, 1, false, ""),
            (
                "other failures with old logins",
                failed(Reason::NotFound, false),
                &other,
                Phase::Failed,
                2,
                true,
                "no\\nway",
            ),
        ] {
            let order = Order { terms: same.clone(), ..order() };
            let task = begin(&order, 2, None, at(0));
            let task = conclude((&order, &task), result, Some(began_with), ("n", 0), at(1));
            let report = &task.report;
            assert_eq!((report.phase, report.attempt, report.message.as_str()), (phase, attempt, message), "{what}");
            assert_eq!(task.state == TaskState::Ended, ended, "{what}");
        }
    }

    #[test]
    fn questions_count_only_where_they_keep_an_image_from_coming() {
        let done = || Ok(Success::from("sha256:a".to_string()));
        for (ask, result, counted) in [
            (Ask::Fetch(None), done(), true),
            (Ask::Fetch(None), failed(Reason::Unresolved, false), true),
            (Ask::Resolve, done(), false),
            (Ask::Resolve, failed(Reason::Unreachable, true), true),
            (Ask::Resolve, failed(Reason::Unsupported, false), false),
            (Ask::Look, failed(Reason::Unresolved, false), false),
        ] {
            let order = Order { ask, ..order() };
            assert_eq!(counts(Some(&order), &result), counted, "{:?} {result:?}", order.ask);
        }
        assert!(counts(None, &failed(Reason::Unreachable, true)), "its order is gone");
    }
}
