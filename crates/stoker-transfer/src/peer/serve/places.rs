//! Places of connections that have shown a good ticket. In: the keys of callers. Out: whether there is a place. No caller has more than its share, so that one
//! node cannot keep the others from being served.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::peer::key::PeerId;

/// All places.
#[derive(Debug)]
pub(super) struct CallerPlaces {
    most: usize,
    /// Of one caller.
    share: usize,
    taken: Mutex<HashMap<PeerId, usize>>,
}

impl CallerPlaces {
    pub(super) fn new(most: usize, share: usize) -> Self {
        Self { most, share, taken: Mutex::default() }
    }

    /// Nothing is ever half-written under this lock, so a poisoned one is as good as any.
    fn taken(&self) -> MutexGuard<'_, HashMap<PeerId, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more for this caller.
    pub(super) fn take(self: &Arc<Self>, who: PeerId) -> Option<CallerPlace> {
        let mut taken = self.taken();
        let own = taken.get(&who).copied().unwrap_or_default();
        if own >= self.share || taken.values().sum::<usize>() >= self.most {
            return None;
        }
        taken.insert(who, own + 1);
        Some(CallerPlace { all: self.clone(), who })
    }

    /// Whether more than half of the places are taken: then nobody should keep one without need.
    pub(super) fn are_scarce(&self) -> bool {
        self.taken().values().sum::<usize>() > self.most / 2
    }
}

/// A place; it is free again when this is dropped.
#[derive(Debug)]
pub(super) struct CallerPlace {
    all: Arc<CallerPlaces>,
    who: PeerId,
}

impl Drop for CallerPlace {
    fn drop(&mut self) {
        one_less(&mut self.all.taken(), self.who);
    }
}

/// Counts one less for this caller; nothing is kept of a caller that has none.
pub(super) fn one_less(counts: &mut HashMap<PeerId, usize>, who: PeerId) {
    if let Some(count) = counts.get_mut(&who) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&who);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_leaves_places_to_others() {
        let caller = |n: u8| PeerId::new([n; 32]);
        let places = Arc::new(CallerPlaces::new(4, 2));
        let first: Vec<_> = (0..3).map_while(|_| places.take(caller(1))).collect();
        assert_eq!(first.len(), 2, "its share");
        assert!(!places.are_scarce());
        let second = [places.take(caller(2)), places.take(caller(2))];
        assert!(second.iter().all(Option::is_some) && places.are_scarce());
        assert!(places.take(caller(3)).is_none(), "all are taken");
        drop(first);
        assert!(places.take(caller(3)).is_some());
        drop(second);
        assert!(places.taken().is_empty(), "nothing is kept of callers that have gone");
    }
}
