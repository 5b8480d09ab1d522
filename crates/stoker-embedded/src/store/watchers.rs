//! Who watches a table. In: events, one after another. Out: each watcher's bounded queue. A writer never waits for a watcher:
//! one whose queue is full is dropped, and its watch ends. A watcher of one name is not even woken for the others.

use super::state::Table;
use super::{Event, HISTORY, Store, Unknown};
use crate::object::{Key, Object};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Which objects a watcher wants to hear of.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scope {
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
}

impl Scope {
    fn covers(&self, key: &Key) -> bool {
        self.namespace.as_ref().is_none_or(|n| *n == key.namespace) && self.name.as_ref().is_none_or(|n| *n == key.name)
    }
}

/// Where a watch begins.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Start {
    /// With the present state.
    State,
    /// With what happened after a revision.
    After(u64),
}

/// A watcher's end: what it must be told first, and its queue. Dropping it ends the watch.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) revision: u64,
    pub(crate) state: Vec<Arc<Object>>,
    pub(crate) missed: Vec<Arc<Event>>,
    pub(crate) queue: Receiver<Arc<Event>>,
    store: Arc<Store>,
    table: String,
    name: Option<String>,
    id: u64,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.store.lock();
        if let Some(table) = state.tables.get_mut(&self.table) {
            table.watchers.forget(self.id, self.name.as_deref());
        }
    }
}

#[derive(Debug)]
struct Watcher {
    id: u64,
    scope: Scope,
    sender: Sender<Arc<Event>>,
}

/// The watchers of one table.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    next: u64,
    wide: Vec<Watcher>,
    named: BTreeMap<String, Vec<Watcher>>,
}

impl Watchers {
    pub(super) fn publish(&mut self, event: &Arc<Event>) {
        let key = &event.key;
        let tell = |watcher: &Watcher| !watcher.scope.covers(key) || watcher.sender.try_send(event.clone()).is_ok();
        self.wide.retain(tell);
        if let Some(watchers) = self.named.get_mut(&key.name) {
            watchers.retain(tell);
        }
    }

    fn add(&mut self, scope: Scope) -> (u64, Receiver<Arc<Event>>) {
        // The queue grows with what is in it; the bound is a bound, not a reservation.
        let (sender, queue) = channel(HISTORY);
        let id = self.next;
        self.next += 1;
        let list = match &scope.name {
            Some(name) => self.named.entry(name.clone()).or_default(),
            None => &mut self.wide,
        };
        list.push(Watcher { id, scope, sender });
        (id, queue)
    }

    fn forget(&mut self, id: u64, name: Option<&str>) {
        let Some(name) = name else {
            self.wide.retain(|w| w.id != id);
            return;
        };
        if let Some(list) = self.named.get_mut(name) {
            list.retain(|w| w.id != id);
            if list.is_empty() {
                self.named.remove(name);
            }
        }
    }
}

impl Table {
    /// The present objects of a scope. Thousands of agents each ask for one name, so that is a lookup and no walk.
    fn covered(&self, scope: &Scope) -> Vec<Arc<Object>> {
        let namespaced = self.objects.keys().next().is_some_and(|key| !key.namespace.is_empty());
        let namespace = scope.namespace.as_deref().or((!namespaced).then_some(""));
        if let (Some(name), Some(namespace)) = (&scope.name, namespace) {
            return self.objects.get(&Key::new(namespace, name)).cloned().into_iter().collect();
        }
        let covered = self.objects.iter().filter(|(key, _)| scope.covers(key));
        covered.map(|(_, object)| object.clone()).collect()
    }
}

impl Store {
    /// Begins a watch with no gap: what is returned and what will be queued together are everything.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        table: &str,
        scope: Scope,
        start: Start,
    ) -> Result<Subscription, Unknown> {
        let mut guard = self.lock();
        let revision = guard.revision;
        let found = guard.tables.get_mut(table).ok_or(Unknown::NoTable)?;
        let (mut state, mut missed) = (Vec::new(), Vec::new());
        match start {
            Start::State => state = found.covered(&scope),
            Start::After(after) if after > revision => return Err(Unknown::TooNew(revision)),
            Start::After(after) if after < found.floor => return Err(Unknown::TooOld(found.floor)),
            Start::After(after) => {
                let from = found.history.partition_point(|event| event.revision <= after);
                let newer = found.history.range(from..).filter(|e| scope.covers(&e.key));
                missed.extend(newer.cloned());
            }
        }
        let name = scope.name.clone();
        let (id, queue) = found.watchers.add(scope);
        drop(guard);
        Ok(Subscription { revision, state, missed, queue, store: self.clone(), table: table.to_owned(), name, id })
    }
}
