//! Connections of people whom nobody knows yet. In: connections as they come. Out: which of them must go. At most so many are there
//! at one time, and one more pushes the oldest out: whoever opens connections and says nothing keeps nobody else from coming in, because
//! those who have something to say do so at once. It reads nothing and closes nothing itself.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Everybody who is not known yet. Clones are the same crowd.
#[derive(Debug, Clone)]
pub struct Crowd {
    limit: usize,
    within: Duration,
    strangers: Arc<Mutex<Strangers>>,
}

#[derive(Debug, Default)]
struct Strangers {
    next: u64,
    /// The oldest first, each with what tells it to go.
    all: VecDeque<(u64, CancellationToken)>,
}

impl Crowd {
    /// At most `limit` at one time, and each at most `within`.
    pub fn new(limit: usize, within: Duration) -> Self {
        Self { limit, within, strangers: Arc::default() }
    }

    /// One more, which pushes the oldest out where there are too many.
    pub fn enter(&self) -> Stranger {
        let pushed = CancellationToken::new();
        let mut strangers = self.strangers();
        let id = strangers.next;
        strangers.next += 1;
        strangers.all.push_back((id, pushed.clone()));
        while strangers.all.len() > self.limit.max(1) {
            if let Some((_, oldest)) = strangers.all.pop_front() {
                oldest.cancel();
            }
        }
        drop(strangers);
        Stranger { id, crowd: self.clone(), pushed, known: CancellationToken::new() }
    }

    /// Nothing is ever half-written under this lock, so a poisoned one is as good as any.
    fn strangers(&self) -> MutexGuard<'_, Strangers> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.strangers().all.len()
    }
}

/// One of the crowd, until it is known or gone.
#[derive(Debug)]
pub struct Stranger {
    id: u64,
    crowd: Crowd,
    pushed: CancellationToken,
    known: CancellationToken,
}

impl Stranger {
    /// It has shown who it is: it may stay, and counts no more.
    pub fn is_known(&self) {
        if !self.known.is_cancelled() {
            self.known.cancel();
            self.leave();
        }
    }

    /// Waits until it must go; for ever where it is known.
    pub async fn must_go(&self) {
        tokio::select! {
            biased;
            () = self.known.cancelled() => std::future::pending().await,
            () = self.pushed.cancelled() => {}
            () = tokio::time::sleep(self.crowd.within) => {}
        }
    }

    fn leave(&self) {
        self.crowd.strangers().all.retain(|(id, _)| *id != self.id);
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn goes(stranger: &Stranger) -> bool {
        stranger.must_go().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_goes_first_and_who_is_known_stays() {
        let crowd = Crowd::new(2, Duration::from_secs(10));
        let (first, second) = (crowd.enter(), crowd.enter());
        assert!(!goes(&first) && !goes(&second));
        first.is_known();
        let third = crowd.enter();
        assert!(!goes(&first) && !goes(&second) && !goes(&third), "one of the three is known");
        let fourth = crowd.enter();
        assert_eq!([&first, &second, &third, &fourth].map(goes), [false, true, false, false]);
        drop(third);
        let fifth = crowd.enter();
        assert_eq!((goes(&fourth), goes(&fifth), crowd.len()), (false, false, 2), "one had left");

        // Nobody comes, and time passes.
        fourth.must_go().await;
        fifth.is_known();
        let known = tokio::time::timeout(Duration::from_secs(3600), fifth.must_go()).await;
        assert!(known.is_err(), "it stays");
        drop((first, second, fourth, fifth));
        assert_eq!(crowd.len(), 0);
    }
}
