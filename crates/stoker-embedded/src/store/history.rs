//! What happened to the objects of one table, oldest first, as far back as the bounds allow. In: events. Out: those after a
//! revision, or that they are no longer known. An event holds objects as JSON text: parsed, they take several times the memory.

use super::Unknown;
use crate::object::{Key, Object};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;

/// Events kept per table, at most. Also the number of events in the queue of one watcher.
pub(super) const HISTORY: usize = 4096;
/// Bytes of events kept per table, at most. A watch that starts before them gets 410, and the client lists again.
pub(super) const HISTORY_BYTES: usize = 2 << 20;
/// What an event takes besides its texts.
const EVENT: usize = 160;

/// One change that readers can see.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) revision: u64,
    pub(crate) key: Key,
    pub(crate) removed: bool,
    after: Bytes,
    before: Option<Bytes>,
}

impl Event {
    pub(super) fn new(key: Key, object: &Object, removed: bool, before: Option<&Object>) -> Self {
        Self { revision: object.revision, key, removed, after: object.json(), before: before.map(Object::json) }
    }

    /// The JSON of the state after; for a removal the last state, with the removal's revision.
    pub(crate) fn json(&self) -> Bytes {
        self.after.clone()
    }

    /// The state after, parsed.
    pub(crate) fn after(&self) -> Option<Arc<Object>> {
        Object::parse(&self.after).map(Arc::new)
    }

    /// Whether there was an object before.
    pub(crate) fn existed(&self) -> bool {
        self.before.is_some()
    }

    /// The state before, parsed.
    pub(crate) fn before(&self) -> Option<Arc<Object>> {
        self.before.as_ref().and_then(Object::parse).map(Arc::new)
    }

    /// Bytes of memory. Texts are shared with neighbours in the history and with the table, so this is an upper bound.
    pub(super) fn weight(&self) -> usize {
        let names = self.key.namespace.len() + self.key.name.len();
        EVENT + names + self.after.len() + self.before.as_ref().map_or(0, Bytes::len)
    }
}

/// The newest events of a table.
#[derive(Debug)]
pub(super) struct History {
    events: VecDeque<Arc<Event>>,
    /// Of all events together.
    weight: usize,
    /// The history is complete after this revision.
    floor: u64,
}

impl History {
    pub(super) fn new(floor: u64) -> Self {
        Self { events: VecDeque::new(), weight: 0, floor }
    }

    /// Adds the newest event; the oldest ones go where there is too much.
    pub(super) fn push(&mut self, event: Arc<Event>) {
        self.weight += event.weight();
        self.events.push_back(event);
        while self.events.len() > HISTORY || self.weight > HISTORY_BYTES {
            let Some(oldest) = self.events.pop_front() else { break };
            self.weight -= oldest.weight();
            self.floor = oldest.revision;
        }
    }

    /// Every event after a revision, oldest first.
    pub(super) fn after(
        &self,
        revision: u64,
    ) -> Result<impl DoubleEndedIterator<Item = &Arc<Event>> + use<'_>, Unknown> {
        if revision < self.floor {
            return Err(Unknown::TooOld(self.floor));
        }
        let from = self.events.partition_point(|event| event.revision <= revision);
        Ok(self.events.range(from..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn object(revision: u64, filler: usize) -> Object {
        let value = json!({"metadata": {"name": "m", "namespace": "default"}, "data": {"k": "x".repeat(filler)}});
        Object::seal(value, revision)
    }

    /// A history of `count` updates of one object that has about `filler` bytes.
    fn history(count: u64, filler: usize) -> History {
        let mut history = History::new(0);
        for revision in 1..=count {
            let before = (revision > 1).then(|| object(revision - 1, filler));
            let event = Event::new(Key::new("default", "m"), &object(revision, filler), false, before.as_ref());
            history.push(Arc::new(event));
        }
        history
    }

    fn revisions(history: &History, after: u64) -> Result<Vec<u64>, Unknown> {
        history.after(after).map(|events| events.map(|event| event.revision).collect())
    }

    #[test]
    fn it_is_bounded_by_bytes_and_by_number() {
        for (filler, count, limited_by_bytes) in [(10, 5000, false), (4096, 600, true), (1 << 20, 4, true)] {
            let history = history(count, filler);
            let texts: usize = history.events.iter().map(|event| event.weight()).sum();
            assert_eq!(history.weight, texts, "the sum is kept up to date");
            assert!(history.weight <= HISTORY_BYTES && history.events.len() <= HISTORY, "{filler}: {}", history.weight);
            assert_eq!(history.events.len() < HISTORY, limited_by_bytes, "{filler}");
            // Whatever it still has is whole: from the floor on, each event is there.
            let kept: Vec<u64> = (history.floor + 1..=count).collect();
            assert_eq!(revisions(&history, history.floor), Ok(kept));
            assert_eq!(revisions(&history, history.floor - 1), Err(Unknown::TooOld(history.floor)));
        }
    }

    #[test]
    fn an_object_larger_than_the_history_leaves_it_empty() {
        let history = history(3, HISTORY_BYTES);
        assert_eq!((history.events.len(), history.weight, history.floor), (0, 0, 3));
        assert_eq!(revisions(&history, 3), Ok(vec![]));
        assert_eq!(revisions(&history, 2), Err(Unknown::TooOld(3)));
    }

    #[test]
    fn an_event_gives_back_both_states() {
        let history = history(2, 1);
        let event = history.after(1).unwrap().next().unwrap();
        let states = (event.after().unwrap(), event.before().unwrap());
        assert_eq!((states.0.revision, states.1.revision), (2, 1));
        assert_eq!(states.0.value, object(2, 1).value);
        let text: Value = serde_json::from_slice(&event.json()).unwrap();
        assert_eq!(text, states.0.value);
    }
}
