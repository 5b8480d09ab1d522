//! How far an attempt is: counters that it moves and the agent's loop reads whenever it likes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use stoker_core::step::Failure;
use stoker_core::{Bytes, Pin, Reason, Report, WAITING_FOR_ROOM, text};
use stoker_transfer::peer::PeerWays;
use stoker_transfer::{Progress, Pulse, TransferTrouble};
use tokio::sync::Notify;

use crate::pull::transfer_reason;
use crate::ways;

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
    blobs: Vec<MeteredBlob>,
    /// Where the order reads from.
    ways: Option<PeerWays>,
    /// Of its requests for tags and manifests.
    pulse: Pulse,
    /// Why it does not go on just now.
    waits: Option<Failure>,
    /// Why it did not go on before.
    waited: Option<Reason>,
    /// What was told of the bytes that came.
    told: Received,
}

/// A blob under way.
struct MeteredBlob {
    progress: Progress,
    /// Whether its bytes over the wire are counted here.
    counted: bool,
    /// What had come when this attempt joined the fetch: others follow it, so that it outlives attempts.
    before: Received,
}

impl MeterState {
    /// What came over the wire for blobs that are counted here.
    fn received(&self) -> Received {
        let mut sum = Received::default();
        for blob in self.blobs.iter().filter(|blob| blob.counted) {
            sum += Received::of(&blob.progress) - blob.before;
        }
        sum
    }
}

/// Bytes that came over the wire, by where they came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) registry: u64,
    pub(crate) mirror: u64,
    pub(crate) peer: u64,
}

impl Received {
    fn of(progress: &Progress) -> Self {
        let upstream = progress.upstream();
        // Read last, as it is counted first: what comes meanwhile is never taken for the registry's.
        let mirror = progress.mirrored();
        Self { registry: upstream.saturating_sub(mirror), mirror, peer: progress.peers() }
    }

    fn each(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            registry: combine(self.registry, other.registry),
            mirror: combine(self.mirror, other.mirror),
            peer: combine(self.peer, other.peer),
        }
    }
}

impl std::ops::AddAssign for Received {
    fn add_assign(&mut self, other: Self) {
        *self = self.each(other, u64::saturating_add);
    }
}

impl std::ops::Sub for Received {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.each(other, u64::saturating_sub)
    }
}

impl Meter {
    pub(crate) fn new(news: Arc<Notify>) -> Self {
        Self { state: Arc::default(), news }
    }

    /// Nothing is ever half-written under this lock, so a poisoned one is as good as any.
    fn state(&self) -> MutexGuard<'_, MeterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The order reads from these nodes, or is told to ask the registry.
    pub(crate) fn reads_by(&self, ways: PeerWays) {
        self.state().ways = Some(ways);
    }

    /// Why no node gives anything, where that is so.
    pub(crate) fn sourceless(&self) -> Option<String> {
        self.state().ways.as_ref().and_then(PeerWays::exhausted)
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
        let before = Received::of(&progress);
        self.state().blobs.push(MeteredBlob { progress, counted, before });
    }

    /// All of it is there, and this is its size.
    pub(crate) fn whole(&self, size: u64) {
        let mut state = self.state();
        state.total = state.total.max(size);
        state.present = state.total;
    }

    /// The bytes of blobs that are on their way.
    pub(crate) fn under_way(&self) -> u64 {
        self.state().blobs.iter().map(|blob| blob.progress.size()).sum()
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
        let under_way = || state.blobs.iter().map(|blob| &blob.progress).filter(|blob| blob.have() < blob.size());
        let moves = under_way().any(|blob| blob.trouble().is_none());
        let troubles = under_way().filter_map(Progress::trouble).chain(state.pulse.trouble());
        troubles.filter(|_| !moves).max_by_key(|trouble| trouble.lasts)
    }

    /// Whether some blob waits for bytes of a host, and for no limit, disk or turn of this node.
    pub(crate) fn waits_for_bytes(&self) -> bool {
        let state = self.state();
        state.blobs.iter().map(|blob| &blob.progress).any(|blob| blob.have() < blob.size() && blob.waits())
    }

    /// The byte counts of this attempt.
    pub(crate) fn bytes(&self) -> Bytes {
        let state = self.state();
        let have = state.blobs.iter().map(|blob| blob.progress.have()).sum::<u64>();
        let Received { registry, mirror, peer } = state.received();
        // What somebody else brought meanwhile is there twice.
        let done = state.present.saturating_add(have).min(state.total.max(have));
        Bytes { total: state.total, done, upstream: registry.saturating_add(mirror), peers: peer, mirrors: mirror }
    }

    /// What came since this was last asked.
    pub(crate) fn received(&self) -> Received {
        let mut state = self.state();
        let (now, told) = (state.received(), state.told);
        state.told = now.each(told, u64::max);
        now - told
    }

    /// Brings a report up to date; `earlier` is what earlier attempts received.
    pub(crate) fn read(&self, report: &mut Report, earlier: Bytes, now: Timestamp) {
        report.bytes = self.bytes();
        report.bytes.upstream = report.bytes.upstream.saturating_add(earlier.upstream);
        report.bytes.peers = report.bytes.peers.saturating_add(earlier.peers);
        report.bytes.mirrors = report.bytes.mirrors.saturating_add(earlier.mirrors);
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
        if let Some(ways) = &state.ways {
            ways::tell(ways, report);
        }
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
        if let Some(digest) = &state.digest {
            report.digest = Some(digest.as_str().into());
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
