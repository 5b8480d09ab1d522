//! Orders that were planned and are not yet with the writer: which they are, not what they say. That the World knows, and is
//! asked when it is the node's turn. So a plan for thousands of nodes takes a few bytes a node here, and what changes while it
//! waits is written once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stoker_core::{Key, Order};

/// What is owed to nodes, in the order in which they came to be owed something.
#[derive(Default)]
pub(crate) struct Owed {
    keys: BTreeMap<String, BTreeSet<Key>>,
    /// Nodes, each with the number of its turn.
    turns: VecDeque<(u64, String)>,
    /// Of the next turn.
    number: u64,
    /// How many nodes, for whoever counts.
    count: Arc<AtomicUsize>,
}

impl Owed {
    /// How many nodes are owed something, also later.
    pub(crate) fn count(&self) -> Arc<AtomicUsize> {
        self.count.clone()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Whether this node is owed something.
    pub(crate) fn holds(&self, node: &str) -> bool {
        self.keys.contains_key(node)
    }

    /// These orders of the node have changed.
    pub(crate) fn add(&mut self, node: &str, keys: impl Iterator<Item = Key>) {
        match self.keys.get_mut(node) {
            Some(owed) => owed.extend(keys),
            None => {
                self.keys.insert(node.into(), keys.collect());
                self.turns.push_back((self.number, node.into()));
                self.number += 1;
                self.recount();
            }
        }
    }

    /// The node's object is gone, and nothing is owed to it.
    pub(crate) fn forget(&mut self, node: &str) {
        if self.keys.remove(node).is_some() {
            self.turns.retain(|(_, other)| other != node);
            self.recount();
        }
    }

    /// Everything that is owed now.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.number)
    }

    /// Whether all that was owed then is handed out.
    pub(crate) fn is_past(&self, mark: Mark) -> bool {
        self.turns.front().is_none_or(|(number, _)| *number >= mark.0)
    }

    fn recount(&self) {
        self.count.store(self.turns.len(), Ordering::Relaxed);
    }

    /// The node whose turn it is, and which of its orders to write.
    pub(crate) fn next(&mut self) -> Option<(String, BTreeSet<Key>)> {
        let (_, node) = self.turns.pop_front()?;
        self.recount();
        let keys = self.keys.remove(&node).unwrap_or_default();
        Some((node, keys))
    }
}

/// A moment in the row of turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(u64);

impl Drop for Owed {
    fn drop(&mut self) {
        self.count.store(0, Ordering::Relaxed);
    }
}

/// These orders as they are now; one that is no more is taken away.
pub(crate) fn changes(keys: BTreeSet<Key>, mut orders: BTreeMap<Key, Order>) -> BTreeMap<Key, Option<Order>> {
    keys.into_iter().map(|key| (key, orders.remove(&key))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_take_turns_and_what_changes_meanwhile_goes_along() {
        let (a, b) = (Key::of("r/a:1"), Key::of("r/b:1"));
        let mut owed = Owed::default();
        let count = owed.count();
        owed.add("n2", [a].into_iter());
        owed.add("n1", [a].into_iter());
        owed.add("n2", [b, a].into_iter());
        assert_eq!((count.load(Ordering::Relaxed), owed.holds("n2"), owed.holds("n3")), (2, true, false));
        assert_eq!(owed.next(), Some(("n2".into(), BTreeSet::from([a, b]))));
        owed.add("n2", [b].into_iter());
        assert_eq!(owed.next(), Some(("n1".into(), BTreeSet::from([a]))));
        assert_eq!(owed.next(), Some(("n2".into(), BTreeSet::from([b]))));
        assert!(owed.is_empty() && owed.next().is_none() && !owed.holds("n2"));
        assert_eq!(changes(BTreeSet::from([a]), BTreeMap::new()), BTreeMap::from([(a, None)]));
    }

    #[test]
    fn a_mark_is_past_when_all_before_it_had_their_turn_or_are_gone() {
        let key = || [Key::of("r/a:1")].into_iter();
        let mut owed = Owed::default();
        assert!(owed.is_past(owed.mark()));
        owed.add("n1", key());
        owed.add("n2", key());
        let mark = owed.mark();
        owed.add("n3", key());
        owed.forget("n3");
        owed.forget("never owed anything");
        assert!(!owed.is_past(mark));
        owed.next();
        assert!(!owed.is_past(mark));
        owed.forget("n2");
        assert!(owed.is_past(mark) && owed.is_empty() && owed.count().load(Ordering::Relaxed) == 0);
        owed.add("n2", key());
        assert!(owed.is_past(mark), "what is owed since then is another matter");
        assert_eq!(owed.next().map(|(node, _)| node), Some("n2".into()));
    }
}
