//! A pace for bytes.
//!
//! How many bytes somebody wants to move comes in; when they may go out. Everyone who shares a [`Pace`] shares its
//! rate, in the order they asked, and it may change while they wait. It waits on tokio's clock, so that a paused clock
//! can drive it. It never moves a byte itself.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// What may go at once after a time of silence.
const BURST: Duration = Duration::from_millis(50);
/// Nobody sleeps longer in one go: it is as good as forever, and cannot overflow the clock.
const LONGEST: Duration = Duration::from_secs(86_400);
const NANO: u128 = 1_000_000_000;

/// So many bytes a second for all who share it, or no limit at all.
#[derive(Debug)]
pub struct Pace {
    /// The rate now; who waits looks at it again when it changes.
    rate: watch::Sender<Option<u64>>,
    meter: Mutex<Counters>,
}

/// Two counters that run: what was allowed since the beginning, and what was asked for. Both in billionths of a byte,
/// so that nothing is lost by rounding however short the steps are.
#[derive(Debug)]
struct Counters {
    at: Instant,
    allowed: u128,
    asked: u128,
}

/// A place in the queue of one [`Pace`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct PaceTicket(u128);

impl Pace {
    /// A pace of this many bytes a second, at least one.
    pub fn new(bytes_per_second: u64) -> Self {
        Self::with(Some(bytes_per_second))
    }

    /// A pace that lets everything go, until it is [`set`](Self::set).
    pub fn unlimited() -> Self {
        Self::with(None)
    }

    fn with(rate: Option<u64>) -> Self {
        let meter = Counters { at: Instant::now(), allowed: 0, asked: 0 };
        Self { rate: watch::Sender::new(rate.map(|rate| rate.max(1))), meter: Mutex::new(meter) }
    }

    /// Changes the rate for everyone who shares it, also for those who wait now; `None` is no limit.
    pub fn set(&self, bytes_per_second: Option<u64>) {
        let rate = bytes_per_second.map(|rate| rate.max(1));
        self.with_meter(|meter, before| {
            // What was asked without a limit is gone and owes nothing.
            if before.is_none() || rate.is_none() {
                meter.allowed = meter.asked;
            }
            // Inside the lock, so that nobody counts the time until now with the new rate.
            self.rate.send_if_modified(|now| std::mem::replace(now, rate) != rate);
        });
    }

    /// The limit now, in bytes a second.
    pub fn limit(&self) -> Option<u64> {
        *self.rate.borrow()
    }

    /// A piece that takes about a twentieth of a second, so that many who share a pace all get on.
    pub fn piece(&self) -> usize {
        let twentieth = self.limit().map_or(u64::MAX, |rate| rate / 20);
        usize::try_from(twentieth).unwrap_or(usize::MAX).clamp(1024, 64 * 1024)
    }

    /// Waits until this many bytes may go.
    pub async fn wait(&self, bytes: usize) {
        self.reached(self.ask(bytes)).await;
    }

    /// Takes a place in the queue for so many bytes. They count from here on, whether or not anyone waits.
    pub(crate) fn ask(&self, bytes: usize) -> PaceTicket {
        self.with_meter(|meter, rate| {
            let burst = rate.map_or(0, |rate| u128::from(rate) * BURST.as_nanos());
            meter.asked = meter.asked.max(meter.allowed.saturating_sub(burst)) + bytes as u128 * NANO;
            PaceTicket(meter.asked)
        })
    }

    /// Waits until it is this ticket's turn.
    pub(crate) async fn reached(&self, ticket: PaceTicket) {
        let mut changes = self.rate.subscribe();
        loop {
            // Seen before the meter is read: a change in between wakes us at once.
            changes.borrow_and_update();
            let until = self.with_meter(|meter, rate| {
                let missing = ticket.0.saturating_sub(meter.allowed);
                let rate = rate.filter(|_| missing > 0)?;
                let nanos = u64::try_from(missing.div_ceil(u128::from(rate))).unwrap_or(u64::MAX);
                Some(meter.at + Duration::from_nanos(nanos).min(LONGEST))
            });
            let Some(until) = until else { return };
            tokio::select! {
                () = sleep_until(until) => {}
                // The sender lives as long as this borrow.
                _ = changes.changed() => {}
            }
        }
    }

    /// The meter, brought up to now with the rate that held until now.
    fn with_meter<T>(&self, work: impl FnOnce(&mut Counters, Option<u64>) -> T) -> T {
        let mut meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
        let rate = self.limit();
        let now = Instant::now();
        let passed = now.saturating_duration_since(meter.at);
        meter.at = now;
        match rate {
            Some(rate) => meter.allowed = meter.allowed.saturating_add(passed.as_nanos().saturating_mul(rate.into())),
            None => meter.allowed = meter.allowed.max(meter.asked),
        }
        work(&mut meter, rate)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const STEP: usize = 100;

    /// Moves so many steps, and says when it was done.
    async fn steps(pace: Arc<Pace>, count: usize) -> Duration {
        let start = Instant::now();
        for _ in 0..count {
            pace.wait(STEP).await;
        }
        start.elapsed()
    }

    fn near(took: Duration, millis: u64) {
        let wanted = Duration::from_millis(millis);
        assert!(took + 2 * BURST >= wanted && took <= wanted + BURST, "{took:?} instead of {wanted:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_share_a_pace_get_it_together_within_five_percent() {
        for sharing in [1, 2, 7] {
            let pace = Arc::new(Pace::new(10_000));
            let all = (0..sharing).map(|_| steps(pace.clone(), 500));
            let took = futures::future::join_all(all).await.into_iter().max().unwrap();
            let rate = (sharing * 500 * STEP) as f64 / took.as_secs_f64();
            assert!((9_500.0..=10_500.0).contains(&rate), "{rate} bytes a second for {sharing}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_of_silence_is_not_saved_up() {
        let pace = Arc::new(Pace::new(1000));
        tokio::time::sleep(Duration::from_secs(60)).await;
        near(steps(pace, 20).await, 2000);
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_notice_a_change_at_once() {
        let pace = Arc::new(Pace::new(1));
        let slow = tokio::spawn(steps(pace.clone(), 20));
        tokio::time::sleep(Duration::from_secs(10)).await;
        pace.set(Some(1000));
        near(slow.await.unwrap(), 10_000 + 2000);

        let slower = tokio::spawn(steps(pace.clone(), 20));
        tokio::time::sleep(Duration::from_secs(1)).await;
        pace.set(Some(100));
        near(slower.await.unwrap(), 1000 + 10_000);

        pace.set(Some(1));
        let freed = tokio::spawn(steps(pace.clone(), 20));
        tokio::time::sleep(Duration::from_secs(5)).await;
        pace.set(None);
        near(freed.await.unwrap(), 5000);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_nobody_waits_and_nothing_is_owed_later() {
        let pace = Arc::new(Pace::unlimited());
        assert_eq!((steps(pace.clone(), 1000).await, pace.limit()), (Duration::ZERO, None));
        pace.set(Some(1000));
        near(steps(pace.clone(), 20).await, 2000);
        assert_eq!(pace.limit(), Some(1000));
    }

    #[tokio::test(start_paused = true)]
    async fn no_number_is_too_large() {
        let pace = Pace::new(0);
        assert_eq!((pace.limit(), pace.piece()), (Some(1), 1024));
        pace.ask(usize::MAX);
        pace.set(Some(u64::MAX));
        assert_eq!(pace.piece(), 64 * 1024);
        pace.wait(1024).await;
        tokio::time::sleep(LONGEST * 100).await;
        pace.wait(1024).await;
    }
}
