//! The objects, and the one place where a write is acknowledged: [`Store::commit`]. In: a change that was computed from a known
//! state. Out: the sealed object with its revision, an event to whoever watches; or that the state was another. It knows no
//! rule of any kind: what may be written is decided before.

mod watchers;

use crate::kind::{Catalog, Kind};
use crate::object::{Key, Object, meta};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use watchers::Watchers;
pub(crate) use watchers::{Scope, Start, Subscription};

/// Events kept per table; a watch that starts before them gets 410. Also the queue of one watcher.
pub(crate) const HISTORY: usize = 4096;

/// Where an object is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) table: String,
    pub(crate) key: Key,
}

/// One change that happened.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) revision: u64,
    pub(crate) key: Key,
    /// The state after; for a removal the last state, with the removal's revision.
    pub(crate) object: Arc<Object>,
    pub(crate) removed: bool,
    pub(crate) before: Option<Arc<Object>>,
}

/// A change to make.
#[derive(Debug)]
pub(crate) struct Commit {
    pub(crate) place: Place,
    /// The revision this change was computed from; `None` if there was no object.
    pub(crate) seen: Option<u64>,
    pub(crate) next: Next,
}

/// What an object is to become.
#[derive(Debug)]
pub(crate) enum Next {
    Put(Value),
    /// It goes; `last` is how it is remembered, where that is not the state it had.
    Remove {
        last: Option<Value>,
    },
}

impl Next {
    /// The state after, and whether it is the end.
    pub(crate) fn resolve(self, before: Option<&Object>) -> Option<(Value, bool)> {
        match self {
            Next::Put(value) => Some((value, false)),
            Next::Remove { last } => Some((last.or_else(|| before.map(|b| b.value.clone()))?, true)),
        }
    }
}

/// Why a change was not made. Nothing was written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Another write came first: compute again from the present state.
    Changed,
    /// The namespace is not there.
    NoNamespace,
    /// The namespace is being deleted.
    NamespaceEnding,
    /// The kind was taken away meanwhile.
    NoTable,
}

/// The state at one revision.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) revision: u64,
    pub(crate) objects: Vec<Arc<Object>>,
}

/// The wanted revision is no longer, or not yet, known.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// Older than the history; it begins at this revision.
    TooOld(u64),
    /// Later than the present, which is this revision.
    TooNew(u64),
    /// The kind is not there any more.
    NoTable,
}

/// All objects in memory.
#[derive(Debug)]
pub(crate) struct Store {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    revision: u64,
    catalog: Arc<Catalog>,
    tables: BTreeMap<String, Table>,
    /// Owner uid -> what it owns.
    dependents: BTreeMap<String, BTreeSet<Place>>,
}

#[derive(Debug)]
struct Table {
    objects: BTreeMap<Key, Arc<Object>>,
    history: VecDeque<Arc<Event>>,
    /// The history is complete after this revision.
    floor: u64,
    watchers: Watchers,
}

impl Store {
    pub(crate) fn new() -> Self {
        let state = State {
            revision: 1,
            catalog: Arc::new(Catalog::default()),
            tables: BTreeMap::new(),
            dependents: BTreeMap::new(),
        };
        Self { state: Mutex::new(state) }
    }

    /// Nobody panics while holding the lock, and every change under it is whole; a poisoned lock is still good.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        self.lock().catalog.clone()
    }

    pub(crate) fn revision(&self) -> u64 {
        self.lock().revision
    }

    /// Adds a kind or changes it; its objects stay.
    pub(crate) fn define(&self, kind: Arc<Kind>) {
        let mut state = self.lock();
        let floor = state.revision;
        state.tables.entry(kind.table.clone()).or_insert_with(|| Table {
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            floor,
            watchers: Watchers::default(),
        });
        Arc::make_mut(&mut state.catalog).put(kind);
    }

    /// Takes a kind away, and ends every watch of it.
    pub(crate) fn undefine(&self, id: &str) {
        let mut state = self.lock();
        if let Some(kind) = state.catalog.get(id).cloned() {
            state.tables.remove(&kind.table);
        }
        Arc::make_mut(&mut state.catalog).remove(id);
    }

    pub(crate) fn get(&self, place: &Place) -> Option<Arc<Object>> {
        self.lock().tables.get(&place.table)?.objects.get(&place.key).cloned()
    }

    /// Makes one change, or none. A write is acknowledged when this returns `Ok`, and nowhere else.
    pub(crate) fn commit(&self, commit: Commit) -> Result<Arc<Object>, Lost> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let before = state.check(&commit)?;
        let revision = state.revision + 1;
        let (value, removed) = commit.next.resolve(before.as_deref()).ok_or(Lost::Changed)?;
        let object = Arc::new(Object::seal(value, revision));
        state.revision = revision;
        state.index_owners(&commit.place, before.as_deref(), (!removed).then_some(&*object));
        if let Some(table) = state.tables.get_mut(&commit.place.table) {
            let key = commit.place.key;
            if removed {
                table.objects.remove(&key);
            } else {
                table.objects.insert(key.clone(), object.clone());
            }
            table.publish(Event { revision, key, object: object.clone(), removed, before });
        }
        Ok(object)
    }

    /// The objects of a table (of one namespace), at a revision of the past where one is given.
    pub(crate) fn snapshot(&self, table: &str, namespace: Option<&str>, at: Option<u64>) -> Result<Snapshot, Unknown> {
        let state = self.lock();
        let table = state.tables.get(table).ok_or(Unknown::NoTable)?;
        let revision = at.unwrap_or(state.revision);
        if revision > state.revision {
            return Err(Unknown::TooNew(state.revision));
        }
        if revision < table.floor {
            return Err(Unknown::TooOld(table.floor));
        }
        let inside = |key: &Key| namespace.is_none_or(|n| key.namespace == n);
        let newer = table.history.iter().rev().take_while(|e| e.revision > revision);
        // Undo what came after, newest first.
        let mut undone: BTreeMap<Key, Option<Arc<Object>>> = BTreeMap::new();
        for event in newer {
            undone.insert(event.key.clone(), event.before.clone());
        }
        let from = Key::new(namespace.unwrap_or_default(), "");
        let present = table.objects.range(from..).take_while(|(key, _)| inside(key));
        if undone.is_empty() {
            return Ok(Snapshot { revision, objects: present.map(|(_, o)| o.clone()).collect() });
        }
        let mut objects: BTreeMap<Key, Arc<Object>> =
            present.map(|(key, object)| (key.clone(), object.clone())).collect();
        for (key, before) in undone.into_iter().filter(|(key, _)| inside(key)) {
            match before {
                Some(object) => objects.insert(key, object),
                None => objects.remove(&key),
            };
        }
        Ok(Snapshot { revision, objects: objects.into_values().collect() })
    }

    /// What names this uid as an owner.
    pub(crate) fn dependents(&self, uid: &str) -> Vec<Place> {
        self.lock().dependents.get(uid).map(|set| set.iter().cloned().collect()).unwrap_or_default()
    }

    /// Everything inside a namespace, in every table.
    pub(crate) fn inside_namespace(&self, namespace: &str) -> Vec<Place> {
        let state = self.lock();
        let from = Key::new(namespace, "");
        let places = |(name, table): (&String, &Table)| -> Vec<Place> {
            let keys = table.objects.range(from.clone()..).map(|(key, _)| key);
            let keys = keys.take_while(|key| key.namespace == namespace);
            keys.map(|key| Place { table: name.clone(), key: key.clone() }).collect()
        };
        state.tables.iter().flat_map(places).collect()
    }

    /// Everything in one table.
    pub(crate) fn inside_table(&self, table: &str) -> Vec<Place> {
        let state = self.lock();
        let keys = state.tables.get(table).into_iter().flat_map(|t| t.objects.keys());
        keys.map(|key| Place { table: table.to_owned(), key: key.clone() }).collect()
    }

    /// What must go so that a table holds no more than `keep`, the least recently written first. A tenth of leeway, so that
    /// the search is not done on every write.
    pub(crate) fn surplus(&self, table: &str, keep: usize) -> Vec<(Place, u64)> {
        let state = self.lock();
        let Some(found) = state.tables.get(table).filter(|t| t.objects.len() > keep + keep / 10) else {
            return Vec::new();
        };
        let mut oldest: Vec<_> = found.objects.iter().map(|(key, object)| (object.revision, key)).collect();
        oldest.sort_unstable();
        oldest.truncate(found.objects.len() - keep);
        let place = |(revision, key): (u64, &Key)| (Place { table: table.to_owned(), key: key.clone() }, revision);
        oldest.into_iter().map(place).collect()
    }

    /// Rewrites what is stored without a new revision: new defaults of a changed definition show up on read.
    pub(crate) fn refresh(&self, table: &str, change: impl Fn(&mut Value)) {
        let mut state = self.lock();
        let Some(table) = state.tables.get_mut(table) else { return };
        for object in table.objects.values_mut() {
            let mut value = object.value.clone();
            change(&mut value);
            if value != object.value {
                *object = Arc::new(Object::seal(value, object.revision));
            }
        }
    }
}

impl State {
    fn check(&self, commit: &Commit) -> Result<Option<Arc<Object>>, Lost> {
        let table = self.tables.get(&commit.place.table).ok_or(Lost::NoTable)?;
        let before = table.objects.get(&commit.place.key).cloned();
        if before.as_ref().map(|b| b.revision) != commit.seen {
            return Err(Lost::Changed);
        }
        let namespace = &commit.place.key.namespace;
        if before.is_none() && !namespace.is_empty() {
            let kind = self.catalog.namespaces().ok_or(Lost::NoNamespace)?;
            let table = self.tables.get(&kind.table).ok_or(Lost::NoNamespace)?;
            let found = table.objects.get(&Key::new("", namespace)).ok_or(Lost::NoNamespace)?;
            if found.is_deleting() {
                return Err(Lost::NamespaceEnding);
            }
        }
        Ok(before)
    }

    fn index_owners(&mut self, place: &Place, before: Option<&Object>, after: Option<&Object>) {
        let owners = |object: Option<&Object>| -> BTreeSet<String> {
            let list = object.and_then(|o| meta(&o.value, "ownerReferences")).and_then(Value::as_array);
            let uids = list.into_iter().flatten().filter_map(|o| o.get("uid")?.as_str());
            uids.map(str::to_owned).collect()
        };
        let (old, new) = (owners(before), owners(after));
        for uid in old.difference(&new) {
            if let Some(set) = self.dependents.get_mut(uid) {
                set.remove(place);
                if set.is_empty() {
                    self.dependents.remove(uid);
                }
            }
        }
        for uid in new.difference(&old) {
            self.dependents.entry(uid.clone()).or_default().insert(place.clone());
        }
    }
}

impl Table {
    fn publish(&mut self, event: Event) {
        let event = Arc::new(event);
        self.watchers.publish(&event);
        self.history.push_back(event);
        if self.history.len() > HISTORY
            && let Some(oldest) = self.history.pop_front()
        {
            self.floor = oldest.revision;
        }
    }
}
