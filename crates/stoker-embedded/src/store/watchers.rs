//! Who watches a table. In: events, one after another. Out: each watcher's queue, bounded in events and in bytes. A writer never
//! waits for a watcher: one whose queue is full is dropped, and its watch ends. A watcher of one name is not even woken for the
//! others.

use super::history::{Event, HISTORY};
use super::state::Table;
use super::{Store, Unknown};
use crate::object::{Key, Object};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Bytes of events that one watcher has not read, at most; a single event may be larger.
const QUEUE_BYTES: usize = 8 << 20;

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
    pub(crate) queue: Queue,
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

/// The events that a watcher has not read.
#[derive(Debug)]
pub(crate) struct Queue {
    events: Receiver<Arc<Event>>,
    /// Bytes of them, together with the watcher's other end.
    unread: Arc<AtomicUsize>,
}

impl Queue {
    /// The next event; `None` when the watcher was dropped.
    pub(crate) async fn recv(&mut self) -> Option<Arc<Event>> {
        let event = self.events.recv().await?;
        Some(self.read(event))
    }

    /// The next event, if there is one.
    pub(crate) fn try_recv(&mut self) -> Option<Arc<Event>> {
        let event = self.events.try_recv().ok()?;
        Some(self.read(event))
    }

    fn read(&self, event: Arc<Event>) -> Arc<Event> {
        self.unread.fetch_sub(event.weight(), Ordering::Relaxed);
        event
    }
}

#[derive(Debug)]
struct Watcher {
    id: u64,
    scope: Scope,
    events: Sender<Arc<Event>>,
    unread: Arc<AtomicUsize>,
}

impl Watcher {
    /// Queues an event; `false` where the watcher has too much to read already.
    fn tell(&self, event: &Arc<Event>) -> bool {
        let weight = event.weight();
        // Before it is sent: the reader subtracts what it reads.
        let unread = self.unread.fetch_add(weight, Ordering::Relaxed);
        (unread == 0 || unread + weight <= QUEUE_BYTES) && self.events.try_send(event.clone()).is_ok()
    }
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
        let tell = |watcher: &Watcher| !watcher.scope.covers(key) || watcher.tell(event);
        self.wide.retain(tell);
        if let Some(watchers) = self.named.get_mut(&key.name) {
            watchers.retain(tell);
        }
    }

    fn add(&mut self, scope: Scope) -> (u64, Queue) {
        // The queue grows with what is in it; the bound is a bound, not a reservation.
        let (sender, receiver) = channel(HISTORY);
        let unread = Arc::new(AtomicUsize::new(0));
        let queue = Queue { events: receiver, unread: unread.clone() };
        let id = self.next;
        self.next += 1;
        let list = match &scope.name {
            Some(name) => self.named.entry(name.clone()).or_default(),
            None => &mut self.wide,
        };
        list.push(Watcher { id, scope, events: sender, unread });
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
            Start::After(after) => {
                missed.extend(found.history.after(after)?.filter(|event| scope.covers(&event.key)).cloned());
            }
        }
        let name = scope.name.clone();
        let (id, queue) = found.watchers.add(scope);
        drop(guard);
        Ok(Subscription { revision, state, missed, queue, store: self.clone(), table: table.to_owned(), name, id })
    }
}
