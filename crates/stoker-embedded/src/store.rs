//! The objects, and the one place where a write is made: [`Store::commit`]. In: a change that was computed from a known state.
//! Out: the sealed object with its revision; or that the state was another. Writers work on the newest state; readers and
//! watchers see a change when it is durable, and a write is acknowledged when [`Store::settled`] says so. It knows no rule of
//! any kind: what may be written is decided before.

mod head;
mod history;
mod state;
mod watchers;
mod writer;

use crate::journal::{Contents, Journal, JournalError, JournalFailure};
use crate::kind::{Catalog, Kind};
use crate::object::{Key, Object};
use futures::future::Either;
pub(crate) use history::Event;
use serde_json::Value;
pub(crate) use state::Era;
use state::{Change, Made, Mode, State};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::oneshot;
pub(crate) use watchers::{Scope, Start, Subscription};

/// Where an object is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) table: String,
    pub(crate) key: Key,
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

/// The state, and how the thread that writes the journal is woken.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

impl Shared {
    /// Nobody panics while holding the lock, and every change under it is whole; a poisoned lock is still good.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All objects in memory, and in the journal where there is one.
#[derive(Debug)]
pub(crate) struct Store {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
    /// Until [`Store::start`].
    journal: Option<Journal>,
}

impl Drop for Store {
    fn drop(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        self.lock().closing = true;
        self.shared.work.notify_one();
        // What is still to be written was promised to nobody, but it costs one commit to keep it.
        let _ = writer.join();
    }
}

impl Store {
    /// A store in memory alone.
    pub(crate) fn new() -> Self {
        Self::with(State::new(Mode::Memory, Contents { revision: 1, ..Contents::default() }), None)
    }

    /// A store with what the journal holds. Its kinds are not defined yet, and nothing is written before [`Store::start`].
    pub(crate) fn of(journal: Journal, mut contents: Contents) -> Self {
        contents.revision = contents.revision.max(1);
        Self::with(State::new(Mode::Journal, contents), Some(journal))
    }

    fn with(state: State, journal: Option<Journal>) -> Self {
        let shared = Arc::new(Shared { state: Mutex::new(state), work: Condvar::new() });
        Self { shared, writer: None, journal }
    }

    /// Makes durable what was written up to now, on this thread, and from then on what comes, on a thread of its own.
    pub(crate) fn start(&mut self) -> Result<(), JournalError> {
        let Some(mut journal) = self.journal.take() else { return Ok(()) };
        writer::flush(&self.shared, &mut journal).map_err(|failure| JournalError::Write(failure.to_string()))?;
        self.writer =
            Some(writer::spawn(self.shared.clone(), journal).map_err(|e| JournalError::Write(e.to_string()))?);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    /// The kinds that are served.
    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        self.lock().catalog.clone()
    }

    /// The kinds as writers know them: with those that are not yet durable.
    pub(crate) fn head_catalog(&self) -> Arc<Catalog> {
        self.lock().head.catalog.clone()
    }

    pub(crate) fn revision(&self) -> u64 {
        self.lock().revision
    }

    /// Kinds that a journal has objects of and nobody defined.
    pub(crate) fn unknown_tables(&self) -> Vec<String> {
        self.lock().unclaimed.keys().cloned().collect()
    }

    /// Adds a kind that needs no write: one that is built in, or whose definition is in the journal. It gets its objects there.
    pub(crate) fn adopt(&self, kind: Arc<Kind>) {
        let mut state = self.lock();
        Arc::make_mut(&mut state.head.catalog).put(kind.clone());
        state.apply(vec![Change::Define(kind)]);
    }

    /// Adds a kind or changes it; its objects stay, and get the defaults that are new.
    pub(crate) fn define(&self, kind: Arc<Kind>) {
        let mut state = self.lock();
        Arc::make_mut(&mut state.head.catalog).put(kind.clone());
        self.submit(&mut state, Change::Define(kind));
    }

    /// Takes a kind away, and ends every watch of it.
    pub(crate) fn undefine(&self, id: &str) {
        let mut state = self.lock();
        Arc::make_mut(&mut state.head.catalog).remove(id);
        self.submit(&mut state, Change::Undefine(id.to_owned()));
    }

    /// What a reader sees.
    pub(crate) fn get(&self, place: &Place) -> Option<Arc<Object>> {
        self.lock().tables.get(&place.table)?.objects.get(&place.key).cloned()
    }

    /// What a writer builds on: the newest state, durable or not.
    pub(crate) fn head(&self, place: &Place) -> Option<Arc<Object>> {
        self.lock().head_object(place)
    }

    /// Makes one change, or none. Whoever asked for it may be told so only after [`Store::settled`].
    pub(crate) fn commit(&self, commit: Commit) -> Result<Arc<Object>, Lost> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let before = state.check(&commit)?;
        let revision = state.head.revision + 1;
        let (value, removed) = commit.next.resolve(before.as_deref()).ok_or(Lost::Changed)?;
        let object = Arc::new(Object::seal(value, revision));
        state.head.advance(&commit.place, before.as_ref(), &object, removed);
        self.submit(state, Change::Object(Made { place: commit.place, object: object.clone(), removed, before }));
        Ok(object)
    }

    fn submit(&self, state: &mut State, change: Change) {
        match state.mode {
            Mode::Memory => state.apply(vec![change]),
            Mode::Journal => {
                state.pending.changes.push(change);
                self.shared.work.notify_one();
            }
            Mode::Stopped => drop(state.roll_back(JournalFailure::stopped())),
        }
    }

    /// To be asked before the first look at what a writer builds on.
    pub(crate) fn era(&self) -> Era {
        self.lock().era
    }

    /// Waits until everything that was written up to now is durable. What a writer is told, a refusal too, rests on that; and
    /// on that nothing was rolled back since it began to look.
    pub(crate) fn settled(&self, since: Era) -> impl Future<Output = Result<(), JournalFailure>> + Send + use<> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.era != since {
            let failure = state.failure.clone().unwrap_or_else(JournalFailure::stopped);
            return Either::Left(std::future::ready(Err(failure)));
        }
        let waiting = match state.pending.changes.is_empty() {
            false => Some(&mut state.pending.waiting),
            true => state.flying.as_mut(),
        };
        let Some(waiting) = waiting else { return Either::Left(std::future::ready(Ok(()))) };
        let (tell, told) = oneshot::channel();
        waiting.push(tell);
        Either::Right(async move { told.await.unwrap_or_else(|_| Err(JournalFailure::stopped())) })
    }

    /// The objects of a table (of one namespace), at a revision of the past where one is given.
    pub(crate) fn snapshot(&self, table: &str, namespace: Option<&str>, at: Option<u64>) -> Result<Snapshot, Unknown> {
        let state = self.lock();
        let table = state.tables.get(table).ok_or(Unknown::NoTable)?;
        let revision = at.unwrap_or(state.revision);
        if revision > state.revision {
            return Err(Unknown::TooNew(state.revision));
        }
        let inside = |key: &Key| namespace.is_none_or(|n| key.namespace == n);
        // Of each object that changed since, the first change says how it was.
        let mut undone: BTreeMap<&Key, &Event> = BTreeMap::new();
        for event in table.history.after(revision)? {
            undone.entry(&event.key).or_insert(event);
        }
        let from = Key::new(namespace.unwrap_or_default(), "");
        let present = table.objects.range(from..).take_while(|(key, _)| inside(key));
        if undone.is_empty() {
            return Ok(Snapshot { revision, objects: present.map(|(_, o)| o.clone()).collect() });
        }
        let mut objects: BTreeMap<Key, Arc<Object>> =
            present.map(|(key, object)| (key.clone(), object.clone())).collect();
        for (key, event) in undone.into_iter().filter(|(key, _)| inside(key)) {
            match event.before() {
                Some(object) => objects.insert(key.clone(), object),
                None => objects.remove(key),
            };
        }
        Ok(Snapshot { revision, objects: objects.into_values().collect() })
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
}
