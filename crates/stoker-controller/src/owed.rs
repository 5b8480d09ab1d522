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
    turns: VecDeque<String>,
    /// Nodes that are owed something and have no turn, because a login for them has to be read first.
    parked: BTreeSet<String>,
    /// How many nodes, for whoever counts.
    count: Arc<AtomicUsize>,
}

impl Owed {
    /// How many nodes are owed something, also later.
    pub(crate) fn count(&self) -> Arc<AtomicUsize> {
        self.count.clone()
    }

    /// Whether no node has a turn.
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// The nodes that wait for their turn.
    pub(crate) fn turns(&self) -> impl Iterator<Item = &str> {
        self.turns.iter().map(String::as_str)
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
                self.turns.push_back(node.into());
                self.recount();
            }
        }
    }

    /// The node's object is gone, and nothing is owed to it.
    pub(crate) fn forget(&mut self, node: &str) {
        if self.keys.remove(node).is_some() {
            self.turns.retain(|other| other != node);
            self.parked.remove(node);
            self.recount();
        }
    }

    /// Puts back what the node whose turn it was is owed; it has its next turn when [`Owed::resume`] is called.
    pub(crate) fn park(&mut self, node: &str, keys: BTreeSet<Key>) {
        self.keys.entry(node.into()).or_default().extend(keys);
        self.parked.insert(node.into());
    }

    /// All nodes that were put back have their turns again.
    pub(crate) fn resume(&mut self) {
        self.turns.extend(std::mem::take(&mut self.parked));
        self.recount();
    }

    /// Whether nothing is owed to any node, with or without a turn.
    pub(crate) fn is_done(&self) -> bool {
        self.keys.is_empty()
    }

    fn recount(&self) {
        self.count.store(self.turns.len(), Ordering::Relaxed);
    }

    /// The node whose turn it is, and which of its orders to write.
    pub(crate) fn next(&mut self) -> Option<(String, BTreeSet<Key>)> {
        let node = self.turns.pop_front()?;
        self.recount();
        let keys = self.keys.remove(&node).unwrap_or_default();
        Some((node, keys))
    }
}

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
    fn a_node_that_is_put_back_is_owed_what_it_was_until_its_next_turn() {
        let (a, b) = (Key::of("r/a:1"), Key::of("r/b:1"));
        let mut owed = Owed::default();
        owed.add("n1", [a].into_iter());
        let (node, keys) = owed.next().unwrap();
        assert!(owed.is_done());
        owed.park(&node, keys);
        assert!(owed.is_empty() && owed.holds("n1") && !owed.is_done() && owed.next().is_none());
        owed.add("n1", [b].into_iter());
        assert!(owed.is_empty(), "still no turn");
        owed.resume();
        assert_eq!(owed.next(), Some(("n1".into(), BTreeSet::from([a, b]))));
        owed.park("n1", BTreeSet::new());
        owed.forget("n1");
        owed.resume();
        assert!(owed.is_empty() && owed.is_done());
    }
}
