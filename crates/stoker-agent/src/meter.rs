//! How far an attempt is: counters that it moves and the agent's loop reads whenever it likes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use stoker_core::step::Failure;
use stoker_core::{Bytes, Pin, Reason, Report, WAITING_FOR_ROOM, text};
use stoker_transfer::{Progress, Pulse, TransferTrouble};
use tokio::sync::Notify;

use crate::pull::transfer_reason;

/// Shared between one attempt and the loop.
#[derive(Clone)]
pub(crate) struct Meter {
    state: Arc<Mutex<MeterState>>,
    /// Rung when the registry has answered, which all other nodes wait for, and when an attempt waits or goes on.
    news: Arc<Notify>,
}

#[derive(Default)]
struct MeterState {
    digest: Option<String>,
    pin: Option<Pin>,
    /// Whether some image of the name was found, which is not the one that is wanted.
    found: Option<bool>,
    total: u64,
    present: u64,
    /// Blobs under way, each with whether its bytes over the wire are counted here.
    blobs: Vec<(Progress, bool)>,
    /// Of its requests for tags and manifests.
    pulse: Pulse,
    /// Why it does not go on just now.
    waits: Option<Failure>,
    /// Why it did not go on before.
    waited: Option<Reason>,
    /// What was told of the bytes that came.
    told: Received,
}

impl MeterState {
    /// Blobs whose bytes over the wire are counted here.
    fn counted(&self) -> impl Iterator<Item = &Progress> {
        self.blobs.iter().filter(|(_, counted)| *counted).map(|(progress, _)| progress)
    }
}

/// Bytes that came over the wire, by where they came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) registry: u64,
    pub(crate) mirror: u64,
}

impl Meter {
    pub(crate) fn new(news: Arc<Notify>) -> Self {
        Self { state: Arc::default(), news }
    }

    /// Nothing is ever half-written under this lock, so a poisoned one is as good as any.
    fn state(&self) -> MutexGuard<'_, MeterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The digest is known without having asked.
    pub(crate) fn digest(&self, digest: String) {
        self.state().digest = Some(digest);
    }

    /// The registry has answered: this is told at once.
    pub(crate) fn resolved(&self, pin: Pin) {
        self.learned(pin);
        self.news.notify_one();
    }

    /// What the tag means is known when all is done: it is told with that.
    pub(crate) fn learned(&self, pin: Pin) {
        let mut state = self.state();
        state.digest = Some(pin.digest.clone());
        state.pin = Some(pin);
    }

    /// The node has some image of the name, or none; it is not the one that is wanted. This is told with what comes next.
    pub(crate) fn found(&self, some: bool) {
        self.state().found = Some(some);
    }

    /// The size of the image, and how much of it is there already.
    pub(crate) fn sized(&self, total: u64, present: u64) {
        let mut state = self.state();
        (state.total, state.present) = (total, present);
    }

    /// A blob is on its way. `counted`: no other attempt counts what of it comes over the wire.
    pub(crate) fn blob(&self, progress: Progress, counted: bool) {
        self.state().blobs.push((progress, counted));
    }

    /// All of it is there, and this is its size.
    pub(crate) fn whole(&self, size: u64) {
        let mut state = self.state();
        state.total = state.total.max(size);
        state.present = state.total;
    }

    /// The bytes of blobs that are on their way.
    pub(crate) fn under_way(&self) -> u64 {
        self.state().blobs.iter().map(|(progress, _)| progress.size()).sum()
    }

    /// Something must come back first.
    pub(crate) fn waits(&self, failure: Failure) {
        let mut state = self.state();
        // What was under way is begun again, and counted again.
        state.blobs.clear();
        state.told = Received::default();
        state.waits = Some(failure);
        drop(state);
        self.news.notify_one();
    }

    /// It came back.
    pub(crate) fn goes_on(&self) {
        let mut state = self.state();
        state.waited = state.waits.take().map(|failure| failure.reason);
        drop(state);
        self.news.notify_one();
    }

    /// What it waits for.
    pub(crate) fn waiting(&self) -> Option<String> {
        self.state().waits.as_ref().map(|failure| failure.message.clone())
    }

    /// Whether it waits for space that others have reserved.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.state().waits.as_ref().is_some_and(|failure| failure.message.starts_with(WAITING_FOR_ROOM))
    }

    /// Where its requests for tags and manifests record their trouble.
    pub(crate) fn pulse(&self) -> Pulse {
        self.state().pulse.clone()
    }

    /// Why no byte comes at the moment: the longest trouble of all its transfers, if none of them moves.
    pub(crate) fn trouble(&self) -> Option<TransferTrouble> {
        let state = self.state();
        let under_way = || state.blobs.iter().map(|(progress, _)| progress).filter(|blob| blob.have() < blob.size());
        let moves = under_way().any(|blob| blob.trouble().is_none());
        let troubles = under_way().filter_map(Progress::trouble).chain(state.pulse.trouble());
        troubles.filter(|_| !moves).max_by_key(|trouble| trouble.lasts)
    }

    /// The byte counts of this attempt.
    pub(crate) fn bytes(&self) -> Bytes {
        let state = self.state();
        let have = state.blobs.iter().map(|(progress, _)| progress.have()).sum::<u64>();
        let upstream = state.counted().map(Progress::upstream);
        // What somebody else brought meanwhile is there twice.
        let done = state.present.saturating_add(have).min(state.total.max(have));
        Bytes { total: state.total, done, upstream: upstream.sum(), peers: 0 }
    }

    /// What came since this was last asked.
    pub(crate) fn received(&self) -> Received {
        let mut state = self.state();
        let all: u64 = state.counted().map(Progress::upstream).sum();
        // Read last, as it is counted first: what comes meanwhile is never taken for the registry's.
        let mirror: u64 = state.counted().map(Progress::mirrored).sum();
        let now = Received { registry: all.saturating_sub(mirror), mirror };
        let told = state.told;
        state.told = Received { registry: now.registry.max(told.registry), mirror };
        Received {
            registry: now.registry.saturating_sub(told.registry),
            mirror: now.mirror.saturating_sub(told.mirror),
        }
    }

    /// Brings a report up to date; `earlier` is what earlier attempts received.
    pub(crate) fn read(&self, report: &mut Report, earlier: Bytes, now: Timestamp) {
        report.bytes = self.bytes();
        report.bytes.upstream = report.bytes.upstream.saturating_add(earlier.upstream);
        if report.bytes.total == 0 {
            // The manifest has not come again yet; what earlier attempts brought is still there.
            (report.bytes.total, report.bytes.done) = (earlier.total, earlier.done);
        }
        match self.trouble() {
            Some(TransferTrouble { lasts, kind, text: words }) => {
                let began = now.checked_sub(SignedDuration::try_from(lasts).unwrap_or_default()).unwrap_or(now);
                // The same stall, however long the clocks say that it lasts.
                report.stalled = Some(report.stalled.map_or(began, |since| since.min(began)));
                (report.reason, report.message) = (Some(transfer_reason(kind)), text::message(&words));
            }
            None if report.stalled.take().is_some() => {
                report.reason = None;
                report.message.clear();
            }
            None => {}
        }
        let state = self.state();
        match &state.waits {
            Some(failure) => {
                report.reason = Some(failure.reason);
                report.message = text::message(&failure.message);
            }
            None if report.reason.is_some()
                && [state.waited, Some(Reason::RuntimeUnavailable)].contains(&report.reason) =>
            {
                report.reason = None;
                report.message.clear();
            }
            None => {}
        }
        if state.digest.is_some() {
            report.digest.clone_from(&state.digest);
        }
        if state.pin.is_some() {
            report.pin.clone_from(&state.pin);
        }
        report.present = state.found.unwrap_or(report.present);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, order};
    use stoker_core::Reason;
    use stoker_core::step::begin;

    #[test]
    fn what_a_runtime_said_is_escaped_and_bounded_in_a_report() {
        let meter = Meter::new(Arc::default());
        let message = format!("\u{1b}]0;x\u{7}{}", "y".repeat(1 << 16));
        meter.waits(Failure { reason: Reason::RuntimeUnavailable, message, retryable: true, pause: None });
        let mut report = begin(&order(), 1, None, at(0)).report;
        meter.read(&mut report, Bytes::default(), at(1));
        assert!(report.message.starts_with("\\u001b]0;x\\u0007yyy"), "{:.40}", report.message);
        assert_eq!(report.message.chars().count(), text::LONGEST);
    }
}
