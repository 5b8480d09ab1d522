//! The order in which requests were sent and answers came, across tasks and without a clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Hands out moments; clones hand out moments of the same order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moments(Arc<AtomicU64>);

impl Moments {
    /// Later than every one before.
    pub(crate) fn now(&self) -> Moment {
        Moment(self.0.fetch_add(1, Ordering::SeqCst))
    }
}

/// When something happened, as far as that can be compared with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

/// How the state of an object became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A list told it that was asked for then.
    List(Moment),
    /// A watch told it, after everything that the same watch or the list before it had told.
    Watch,
    /// It was the answer to a write, and came then. What it is about may be gone by now: only lists and watches say that an
    /// object is there.
    Answer(Moment),
}
