//! How silence is told from a moment in which we did not listen.
//!
//! How long to wait comes in; that nothing came goes out. It never decides what that means.

use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

/// Waits for the deadline, and a turn longer. Where the whole process stood still, as on a node whose virtual machine is
/// halted, the end of our patience and the bytes are there at one time: the task that reads them from the socket goes first.
pub(crate) async fn passed(deadline: Instant) {
    sleep_until(deadline).await;
    yield_now().await;
}

/// What comes of this work, or `None` where nothing does for so long.
pub(crate) async fn within<T>(patience: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        outcome = work => Some(outcome),
        () = passed(Instant::now() + patience) => None,
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_comes_at_the_last_moment_has_come() {
        let minute = Duration::from_secs(60);
        for (after, comes) in [(minute, true), (2 * minute, false)] {
            let (give, given) = oneshot::channel();
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                let _ = give.send(());
            });
            // Polled before the task that gives, though both are woken by the same tick.
            assert_eq!(within(minute, given).await, comes.then_some(Ok(())), "{after:?}");
        }
    }
}
