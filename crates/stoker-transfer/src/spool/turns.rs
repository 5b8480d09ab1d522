//! Whose turn it is to fetch.
//!
//! Those who want a turn come in; at most so many have one at the same time, in the order they came. How many may change
//! while they run: nobody loses a turn by it, the next ones wait. Each image has one turn of its own besides, so that one whose
//! blobs never come does not keep those of others from coming.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Core;

/// The most that anybody can want.
const MOST: usize = 1024;

/// So many at once.
#[derive(Debug)]
pub(crate) struct SpoolTurns {
    /// One less than the limit: the first turn is the image's own.
    free: Arc<Semaphore>,
    count: Mutex<TurnCount>,
    /// The turns of images that want one.
    own: Mutex<BTreeMap<String, Arc<Semaphore>>>,
}

#[derive(Debug)]
struct TurnCount {
    limit: usize,
    /// Turns that are still taken but must not be given to anyone again: the limit fell meanwhile.
    surplus: usize,
}

/// A turn, for as long as it is held.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<SpoolTurns>,
    /// One of those that are for all.
    shared: Option<OwnedSemaphorePermit>,
    _own: Option<OwnedSemaphorePermit>,
}

impl SpoolTurns {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        let limit = limit.clamp(1, MOST) - 1;
        let count = Mutex::new(TurnCount { limit, surplus: 0 });
        Arc::new(Self { free: Arc::new(Semaphore::new(limit)), count, own: Mutex::default() })
    }

    fn own(&self, image: &str) -> Arc<Semaphore> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        // Of images that nobody fetches any more. A turn that is taken holds its semaphore, too.
        own.retain(|_, turn| Arc::strong_count(turn) > 1);
        own.entry(image.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(1))).clone()
    }

    /// Waits for a turn of any image that wants this blob, also of those that join meanwhile: other blobs of the first one, which never
    /// come, may have all turns that it can get.
    pub(crate) async fn take_for(self: &Arc<Self>, blob: &Core) -> Option<Turn> {
        let mut joined = blob.joined.subscribe();
        let (mut images, mut turns) = (BTreeSet::new(), FuturesUnordered::new());
        loop {
            for image in blob.images() {
                if images.insert(image.name().to_owned()) {
                    turns.push(async move { self.take(image.name()).await });
                }
            }
            tokio::select! {
                turn = turns.next() => return turn?,
                // The blob has the sender.
                _ = joined.changed() => {}
            }
        }
    }

    /// Waits for a turn for a blob of this image; `None` never comes, because nobody closes this.
    async fn take(self: &Arc<Self>, image: &str) -> Option<Turn> {
        let own = self.own(image);
        let (shared, own) = tokio::select! {
            biased;
            own = own.acquire_owned() => (None, Some(own.ok()?)),
            shared = self.free.clone().acquire_owned() => (Some(shared.ok()?), None),
        };
        Some(Turn { turns: self.clone(), shared, _own: own })
    }

    pub(crate) fn set(&self, limit: usize) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = limit.clamp(1, MOST) - 1;
        let (more, fewer) = (limit.saturating_sub(count.limit), count.limit.saturating_sub(limit));
        count.limit = limit;
        let kept = more.min(count.surplus);
        count.surplus -= kept;
        self.free.add_permits(more - kept);
        count.surplus += fewer - self.free.forget_permits(fewer);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut count = self.turns.count.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = self.shared.take();
        if count.surplus > 0
            && let Some(shared) = shared
        {
            count.surplus -= 1;
            shared.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// Takes turns until there is none.
    fn all(turns: &Arc<SpoolTurns>) -> Vec<Turn> {
        std::iter::from_fn(|| turns.take("a").now_or_never().flatten()).collect()
    }

    #[tokio::test]
    async fn one_image_has_all_turns_and_another_still_one() {
        let turns = SpoolTurns::new(3);
        let taken = all(&turns);
        let other = turns.take("b").now_or_never().flatten();
        assert_eq!((taken.len(), other.is_some()), (3, true));
        assert!(turns.take("b").now_or_never().is_none(), "a second one is not its own");
        drop(other);
        assert!(turns.take("b").now_or_never().flatten().is_some());
    }

    #[tokio::test]
    async fn fewer_and_more_turns_while_some_are_taken() {
        let turns = SpoolTurns::new(3);
        let mut taken = all(&turns);
        assert_eq!(taken.len(), 3);
        turns.set(1);
        taken.pop();
        assert!(all(&turns).is_empty(), "two of three are one too many still");
        turns.set(2);
        assert!(all(&turns).is_empty(), "two of two");
        taken.pop();
        assert_eq!(all(&turns).len(), 1);
        turns.set(4);
        assert_eq!(all(&turns).len(), 3);
        taken.clear();
        assert_eq!(all(&turns).len(), 4);
        turns.set(0);
        assert_eq!(all(&turns).len(), 1, "never none");
    }

    #[tokio::test]
    async fn one_who_waits_gets_the_turn_that_is_new() {
        let turns = SpoolTurns::new(1);
        let _taken = turns.take("a").await;
        let mut waits = Box::pin(turns.take("a"));
        assert!(waits.as_mut().now_or_never().is_none());
        turns.set(2);
        assert!(waits.await.is_some());
    }
}
