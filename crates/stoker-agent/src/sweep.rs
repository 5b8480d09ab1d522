//! When to remove what orders that were taken back have left behind, and what the orders in hand need. What goes is
//! decided in [`leftovers`](crate::leftovers).
//!
//! A sweep comes after the start, after orders were taken back and their attempts have ended, and when something that was
//! left is too old; it never touches what an attempt has in hand.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use stoker_core::Reason;
use stoker_core::model::{Key, Phase, Report, after};
use stoker_core::step::Task;

/// A runtime that was asked something by an attempt has done it by then, stopped or not: it may make a lease that nobody
/// waits for.
const SETTLED: Duration = Duration::from_secs(10);

/// The pulls of the orders in hand, by the keys of these orders.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Keep {
    /// Those that may still need what was fetched for them: not begun, under way, held, or failed, for such an order may be
    /// asked again, and then goes on where it was.
    pub(crate) open: BTreeSet<String>,
    /// Those that need nothing more, or gave way because the disk was full.
    pub(crate) done: BTreeSet<String>,
}

impl Keep {
    /// What these orders need.
    pub(crate) fn of<'a>(orders: impl Iterator<Item = (&'a Key, Option<&'a Task>)>) -> Self {
        let needs = |task: Option<&Task>| {
            task.is_none_or(|task| task.report.phase != Phase::Succeeded && !gives_way(&task.report))
        };
        let (open, done): (Vec<_>, Vec<_>) = orders.partition(|(_, task)| needs(*task));
        let names = |orders: Vec<(&Key, _)>| orders.into_iter().map(|(key, _)| key.to_string()).collect();
        Self { open: names(open), done: names(done) }
    }
}

/// Whether an order was given up because the disk is full, or as full as it may be: its half of an image would keep it so.
pub(crate) fn gives_way(report: &Report) -> bool {
    report.phase == Phase::Failed && matches!(report.reason, Some(Reason::NoSpace | Reason::Disk))
}

/// Whether there is something to sweep, and whether it may be done now.
#[derive(Debug, Default)]
pub(crate) struct Broom {
    due: bool,
    again: Option<Timestamp>,
    /// When the oldest leftover is too old.
    old: Option<Timestamp>,
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

    /// Something that was left is too old then.
    pub(crate) fn call_at(&mut self, old: Option<Timestamp>) {
        self.old = old;
    }

    /// Takes the call, if there is one and no stopped attempt is still ending.
    pub(crate) fn take(&mut self, quiet: bool, now: Timestamp) -> bool {
        for due in [&mut self.again, &mut self.old] {
            if due.is_some_and(|due| due <= now) {
                (self.due, *due) = (true, None);
            }
        }
        quiet && std::mem::take(&mut self.due)
    }

    /// When to ask again even if nothing happens.
    pub(crate) fn wake(&self) -> Option<Timestamp> {
        [self.again, self.old].into_iter().flatten().min()
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
            (Some(&ended(Reason::Disk)), false),
            (Some(&done), false),
        ] {
            let keep = Keep::of([(&key, task)].into_iter());
            let key = key.to_string();
            assert_eq!((keep.open.contains(&key), keep.done.contains(&key)), (kept, !kept), "{task:?}");
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
        broom.call_at(Some(at(3_600)));
        broom.call_twice(at(60));
        assert!(broom.take(true, at(60)) && broom.take(true, at(70)) && !broom.take(true, at(71)));
        assert_eq!(broom.wake(), Some(at(3_600)));
        assert!(broom.take(true, at(3_600)) && broom.wake().is_none());
    }
}
