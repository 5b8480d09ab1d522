//! A key that an agent says: the one to which logins are sealed, or the one for which tickets are made. An agent may say another key as
//! often as it likes, and each one would cost readings of Secrets and a write of orders: so a new key is followed at once, and the next one
//! only after a rest.

use std::time::Duration;

use tokio::time::Instant;

/// A key of one node is replaced by another one at most once in this time.
const REST: Duration = Duration::from_secs(10);

pub(super) struct AgentKey<K> {
    /// The key that is followed.
    key: Option<K>,
    /// What the agent said last.
    said: Option<K>,
    /// When another key was last followed instead of one that was there.
    changed: Option<Instant>,
}

impl<K> Default for AgentKey<K> {
    fn default() -> Self {
        Self { key: None, said: None, changed: None }
    }
}

impl<K: Clone + PartialEq> AgentKey<K> {
    /// The key that counts.
    pub(super) fn get(&self) -> Option<&K> {
        self.key.as_ref()
    }

    /// The agent says that this is its key. Returns whether the key that counts is another one then.
    pub(super) fn see(&mut self, said: Option<K>, now: Instant) -> bool {
        self.said = said;
        self.follow(now)
    }

    /// Follows what the agent said, if it is time. Returns whether the key is another one then.
    pub(super) fn follow(&mut self, now: Instant) -> bool {
        if self.said == self.key || self.changed.is_some_and(|at| now < at + REST) {
            return false;
        }
        // The first key of an agent is no change.
        if self.key.is_some() || self.changed.is_some() {
            self.changed = Some(now);
        }
        self.key = self.said.clone();
        true
    }

    /// When the key is another one if nothing happens until then.
    pub(super) fn wake(&self) -> Option<Instant> {
        self.changed.filter(|_| self.said != self.key).map(|at| at + REST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoker_transfer::NodeKey;

    #[tokio::test]
    async fn a_key_that_changes_all_the_time_is_followed_once_in_ten_seconds() {
        let (start, mut key) = (Instant::now(), AgentKey::default());
        let new = || Some(NodeKey::generate().public());
        let (first, second) = (new(), new());
        key.see(first.clone(), start);
        assert_eq!(key.get(), first.as_ref());
        key.see(second.clone(), start);
        assert_eq!((key.get(), key.wake()), (second.as_ref(), None), "the first change is followed at once");
        let (mut changes, mut last) = (0, second.clone());
        // Also where every second one is none.
        for n in 0..200_u32 {
            let now = start + Duration::from_millis(75) * n;
            key.see(if n % 2 == 0 { None } else { new() }, now);
            changes += usize::from(key.get() != last.as_ref());
            last = key.get().cloned();
        }
        assert_eq!(changes, 1, "in 15 seconds");
        let honest = new();
        key.see(honest.clone(), start + Duration::from_secs(15));
        let wake = key.wake().unwrap();
        assert!(wake > start + Duration::from_secs(15) && wake <= start + Duration::from_secs(25));
        assert!(key.follow(wake));
        assert_eq!((key.get(), key.wake()), (honest.as_ref(), None));
    }
}
