//! What nobody wants any more: leases of pulls whose orders are gone, and files of the spool that no order needs.
//!
//! It comes after the start, and after orders were taken back and their attempts have ended; it never touches what an
//! attempt has in hand.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use stoker_core::Reason;
use stoker_core::model::{Key, Phase, Report, after};
use stoker_core::step::Task;
use stoker_runtime::Runtime;

use crate::pull::Tools;

/// A runtime that was asked something by an attempt has done it by then, stopped or not: it may make a lease that nobody
/// waits for.
const SETTLED: Duration = Duration::from_secs(10);

/// What to keep.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Keep {
    /// The pulls that are wanted, by the keys of their orders.
    pub(crate) pulls: BTreeSet<String>,
    /// Whether some order may still need what is in the spool.
    pub(crate) spool: bool,
}

impl Keep {
    /// What these orders need. One that has failed may be asked again, and then goes on where it was.
    pub(crate) fn of<'a>(orders: impl Iterator<Item = (&'a Key, Option<&'a Task>)>) -> Self {
        let needs = |task: Option<&Task>| {
            task.is_none_or(|task| task.report.phase != Phase::Succeeded && !gives_way(&task.report))
        };
        let open = orders.filter(|(_, task)| needs(*task));
        let pulls: BTreeSet<String> = open.map(|(key, _)| key.to_string()).collect();
        Self { spool: !pulls.is_empty(), pulls }
    }
}

/// Whether an order was given up because the disk is full: its half of an image would keep it so.
pub(crate) fn gives_way(report: &Report) -> bool {
    report.phase == Phase::Failed && report.reason == Some(Reason::NoSpace)
}

/// Whether there is something to sweep, and whether it may be done now.
#[derive(Debug, Default)]
pub(crate) struct Broom {
    due: bool,
    again: Option<Timestamp>,
}

impl Broom {
    /// Something may have been left behind.
    pub(crate) fn call(&mut self) {
        self.due = true;
    }

    /// An attempt was stopped: now, and once more when the runtime has done what it was last asked for.
    pub(crate) fn call_twice(&mut self, now: Timestamp) {
        self.due = true;
        self.again = Some(after(now, SETTLED));
    }

    /// Takes the call, if there is one and no stopped attempt is still ending.
    pub(crate) fn take(&mut self, quiet: bool, now: Timestamp) -> bool {
        if self.again.is_some_and(|again| again <= now) {
            (self.due, self.again) = (true, None);
        }
        quiet && std::mem::take(&mut self.due)
    }

    /// When to ask again even if nothing happens.
    pub(crate) fn wake(&self) -> Option<Timestamp> {
        self.again
    }
}

/// Sweeps once. An error is said by whoever asked; the next call does the rest.
pub(crate) async fn sweep(tools: Tools, keep: Keep) -> Result<(), String> {
    let Tools { spool, runtime, uses, .. } = tools;
    if !keep.spool {
        let held = spool.held().await.map_err(|problem| problem.to_string())?;
        for (digest, _) in held.into_iter().filter(|(digest, _)| !uses.has(digest)) {
            spool.release(&digest).await.map_err(|problem| problem.to_string())?;
        }
    }
    match runtime {
        Runtime::Containerd(containerd, _) => {
            let wanted = |pull: &str| keep.pulls.contains(pull);
            containerd.sweep(wanted).await.map_err(|problem| problem.to_string())
        }
        Runtime::Layout(_) | Runtime::Cri(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, order};
    use stoker_core::model::Bytes;
    use stoker_core::step::{Failure, begin, fail, succeed};

    #[test]
    fn what_is_not_done_is_kept_but_for_what_fills_a_disk() {
        let (key, order) = (Key::of("r/i:1"), order());
        let running = begin(&order, 1, None, at(0));
        let ended = |reason| {
            let failure = Failure { reason, message: String::new(), retryable: false, pause: None };
            fail(&order, &running, failure, 0, at(1))
        };
        let done = succeed(&order, &running, "sha256:a".into(), Bytes::default(), at(1));
        for (task, kept) in [
            (None, true),
            (Some(&running), true),
            (Some(&ended(Reason::Unreachable)), true),
            (Some(&ended(Reason::NoSpace)), false),
            (Some(&done), false),
        ] {
            let keep = Keep::of([(&key, task)].into_iter());
            assert_eq!((keep.pulls.contains(&key.to_string()), keep.spool), (kept, kept), "{task:?}");
        }
    }

    #[test]
    fn a_call_waits_until_it_is_quiet_and_is_answered_once() {
        let mut broom = Broom::default();
        assert!(!broom.take(true, at(0)));
        broom.call();
        assert!(!broom.take(false, at(0)));
        assert!(broom.take(true, at(0)));
        assert!(!broom.take(true, at(0)));
        broom.call_twice(at(0));
        assert!(broom.take(true, at(0)));
        assert!(!broom.take(true, at(0)));
        let again = broom.wake().unwrap();
        assert!(broom.take(true, again));
        assert_eq!((broom.take(true, again), broom.wake()), (false, None));
    }
}
