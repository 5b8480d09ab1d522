//! A pace for bytes.
//!
//! How many bytes somebody wants to send comes in; when they may go out. Everyone who shares a [`Pace`] shares its
//! rate, in the order they asked. It waits on tokio's clock, so that a paused clock can drive it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// What may be sent at once after a time of silence.
const BURST: Duration = Duration::from_millis(50);

/// So many bytes a second, for all who share it.
#[derive(Debug)]
pub struct Pace {
    bytes_per_second: u64,
    /// When all that was granted so far will have been sent.
    busy_until: Mutex<Instant>,
}

impl Pace {
    /// A pace of this many bytes a second, at least one.
    pub fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), busy_until: Mutex::new(Instant::now()) }
    }

    /// A piece that takes about a twentieth of a second, so that many who share a pace all get on.
    pub fn piece(&self) -> usize {
        usize::try_from(self.bytes_per_second / 20).unwrap_or(usize::MAX).clamp(1024, 64 * 1024)
    }

    /// Waits until this many bytes may go.
    pub async fn wait(&self, bytes: usize) {
        let until = {
            let mut busy_until = self.busy_until.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let from = (*busy_until).max(now.checked_sub(BURST).unwrap_or(now));
            let nanos = (bytes as u128 * 1_000_000_000) / u128::from(self.bytes_per_second);
            // A day is as good as forever, and cannot overflow the clock.
            let take = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(Duration::from_secs(86_400));
            *busy_until = from + take;
            *busy_until
        };
        sleep_until(until).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn two_who_share_a_pace_get_it_together() {
        let pace = Pace::new(1000);
        let start = Instant::now();
        let send = async {
            for _ in 0..10 {
                pace.wait(100).await;
            }
        };
        let more = async {
            for _ in 0..10 {
                pace.wait(100).await;
            }
        };
        tokio::join!(send, more);
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(1900) && took <= Duration::from_millis(2010), "{took:?}");
    }
}
