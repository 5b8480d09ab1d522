//! How fast this node receives and sends: totals of bytes come in twice a second while bytes move, the best two seconds of the last
//! pulls go out. The plan puts fast nodes first.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Between two samples.
pub(crate) const SAMPLE: Duration = Duration::from_millis(500);
/// The samples of two seconds.
const WINDOW: usize = 4;
/// The pulls that count.
const PULLS: usize = 8;

/// The best two seconds of the last pulls, for bytes that come and bytes that go.
#[derive(Debug, Default)]
pub(crate) struct Rates(Mutex<BothWays>);

#[derive(Debug, Default)]
struct BothWays {
    ways: [Bests; 2],
    /// Whether bytes moved until the last sample. If not, the next one is of a longer time.
    moves: bool,
}

/// Bytes a second of one direction.
#[derive(Debug, Default)]
struct Bests {
    total: u64,
    /// The bytes of the last samples, none of them zero: a pull that begins or ends within two seconds says nothing.
    window: VecDeque<u64>,
    /// The best of the pull under way.
    now: u64,
    /// The best of earlier pulls.
    earlier: VecDeque<u64>,
}

impl Bests {
    fn sample(&mut self, total: u64, counts: bool) -> u64 {
        let moved = total.saturating_sub(self.total);
        self.total = total;
        if moved == 0 || !counts {
            self.window.clear();
            return moved;
        }
        self.window.push_back(moved);
        if self.window.len() > WINDOW {
            self.window.pop_front();
        }
        if self.window.len() == WINDOW {
            self.now = self.now.max(self.window.iter().sum::<u64>() / 2);
        }
        moved
    }

    fn pull_ended(&mut self) {
        // A pull that was too short says nothing, and displaces nothing.
        if self.now > 0 {
            self.earlier.push_back(std::mem::take(&mut self.now));
            if self.earlier.len() > PULLS {
                self.earlier.pop_front();
            }
        }
    }

    /// As a power of two, so that it seldom changes.
    fn best(&self) -> Option<u64> {
        let best = self.earlier.iter().copied().max().unwrap_or(0).max(self.now);
        best.checked_ilog2().map(|power| 1 << power)
    }
}

impl Rates {
    fn both(&self) -> MutexGuard<'_, BothWays> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many bytes came and went in all by now. Says how many went since the last time, and whether any moved.
    pub(crate) fn sample(&self, received: u64, sent: u64) -> (u64, bool) {
        let mut both = self.both();
        let BothWays { ways: [came, went], moves } = &mut *both;
        let (came, went) = (came.sample(received, *moves), went.sample(sent, *moves));
        *moves = came > 0 || went > 0;
        (went, *moves)
    }

    /// A pull has ended.
    pub(crate) fn pull_ended(&self) {
        self.both().ways.iter_mut().for_each(Bests::pull_ended);
    }

    /// Bytes a second that came and went at best.
    pub(crate) fn best(&self) -> (Option<u64>, Option<u64>) {
        let [came, went] = &self.both().ways;
        (came.best(), went.best())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_two_seconds_of_the_last_pulls_count() {
        let rates = Rates::default();
        let mut received = 0;
        let mut pull = |samples: &[u64]| {
            // The sample that ends a silence is of a longer time.
            for moved in [&[1 << 30], samples].concat() {
                received += moved;
                rates.sample(received, 0);
            }
            rates.sample(received, 0);
            rates.pull_ended();
            rates.best().0
        };
        assert_eq!(pull(&[900, 900, 900]), None, "shorter than two seconds");
        assert_eq!(pull(&[100, 300, 300, 300, 300, 100]), Some(512), "1200 bytes in two seconds");
        assert_eq!(pull(&[900, 900, 0, 900, 900, 900]), Some(512), "no two seconds without a gap");
        for _ in 0..PULLS - 1 {
            assert_eq!(pull(&[100; 8]), Some(512));
        }
        assert_eq!(pull(&[100; 8]), Some(128), "the fast one is too long ago");
        assert_eq!(rates.best().1, None);
        assert_eq!(rates.sample(received, 7), (7, true));
        assert_eq!(rates.sample(received, 7), (0, false));
    }
}
