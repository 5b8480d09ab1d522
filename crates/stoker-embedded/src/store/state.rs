//! What readers and watchers see, and what waits to become that. In: changes in order. Out: tables with their history; events to
//! watchers. Everything here happens under the store's lock.

use super::Place;
use super::head::Head;
use super::history::{Event, History};
use super::watchers::Watchers;
use crate::journal::{Contents, JournalFailure};
use crate::kind::{Catalog, Kind};
use crate::object::{Key, Object};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Who waits for a batch.
pub(super) type Waiting = Vec<oneshot::Sender<Result<(), JournalFailure>>>;

/// A time in which nothing was rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Era(u64);

/// When a change is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// At once.
    Memory,
    /// When it is in the journal.
    Journal,
    /// Never: the thread that writes the journal is gone.
    Stopped,
}

/// One change, of objects or of the kinds they are of.
#[derive(Debug)]
pub(super) enum Change {
    Object(Made),
    Define(Arc<Kind>),
    Undefine(String),
}

/// One change of an object.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) place: Place,
    /// The state after; for a removal the last state, with the removal's revision.
    pub(super) object: Arc<Object>,
    pub(super) removed: bool,
    pub(super) before: Option<Arc<Object>>,
}

/// Changes that will be written together, and who waits for them.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) changes: Vec<Change>,
    pub(super) waiting: Waiting,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) mode: Mode,
    pub(super) revision: u64,
    pub(super) catalog: Arc<Catalog>,
    pub(super) tables: BTreeMap<String, Table>,
    pub(super) head: Head,
    /// Not yet taken by the writer.
    pub(super) pending: Batch,
    /// Who waits for what the writer is writing now; `None` when it is idle.
    pub(super) flying: Option<Waiting>,
    /// The store is going away: the writer ends.
    pub(super) closing: bool,
    /// How often changes were rolled back, and why the last time.
    pub(super) era: Era,
    pub(super) failure: Option<JournalFailure>,
    /// Objects of the journal whose kind is not defined (yet).
    pub(super) unclaimed: BTreeMap<String, BTreeMap<Key, Arc<Object>>>,
}

#[derive(Debug)]
pub(super) struct Table {
    pub(super) objects: BTreeMap<Key, Arc<Object>>,
    pub(super) history: History,
    pub(super) watchers: Watchers,
}

impl State {
    pub(super) fn new(mode: Mode, contents: Contents) -> Self {
        let mut unclaimed: BTreeMap<String, BTreeMap<Key, Arc<Object>>> = BTreeMap::new();
        for (Place { table, key }, object) in contents.objects {
            unclaimed.entry(table).or_default().insert(key, Arc::new(object));
        }
        Self {
            mode,
            revision: contents.revision,
            catalog: Arc::default(),
            tables: BTreeMap::new(),
            head: Head::new(contents.revision),
            pending: Batch::default(),
            flying: None,
            closing: false,
            era: Era(0),
            failure: None,
            unclaimed,
        }
    }

    /// Makes changes true for readers, in their order.
    pub(super) fn apply(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Object(made) => {
                    self.revision = made.object.revision;
                    self.head.landed(&made.place, made.object.revision);
                    if let Some(table) = self.tables.get_mut(&made.place.table) {
                        table.apply(made);
                    }
                }
                Change::Define(kind) => self.define(kind),
                Change::Undefine(id) => {
                    if let Some(kind) = self.catalog.get(&id).cloned() {
                        self.tables.remove(&kind.table);
                    }
                    Arc::make_mut(&mut self.catalog).remove(&id);
                }
            }
        }
    }

    fn define(&mut self, kind: Arc<Kind>) {
        let floor = self.revision;
        let table = self.tables.entry(kind.table.clone()).or_insert_with(|| Table::new(floor));
        for (key, object) in self.unclaimed.remove(&kind.table).unwrap_or_default() {
            let place = Place { table: kind.table.clone(), key: key.clone() };
            self.head.index_owners(&place, None, Some(&object));
            table.objects.insert(key, object);
        }
        table.refresh(&kind);
        Arc::make_mut(&mut self.catalog).put(kind);
    }

    /// Forgets what could not be made durable. Out: everyone who waited for it.
    pub(super) fn roll_back(&mut self, failure: JournalFailure) -> Waiting {
        self.era.0 += 1;
        self.failure = Some(failure);
        let mut waiting = std::mem::take(&mut self.pending).waiting;
        waiting.extend(self.flying.take().unwrap_or_default());
        self.head = Head::new(self.revision);
        self.head.catalog = self.catalog.clone();
        for (name, table) in &self.tables {
            for (key, object) in &table.objects {
                let place = Place { table: name.clone(), key: key.clone() };
                self.head.index_owners(&place, None, Some(object));
            }
        }
        waiting
    }
}

impl Table {
    fn new(floor: u64) -> Self {
        Self { objects: BTreeMap::new(), history: History::new(floor), watchers: Watchers::default() }
    }

    fn apply(&mut self, made: Made) {
        let Made { place: Place { key, .. }, object, removed, before } = made;
        let event = Arc::new(Event::new(key.clone(), &object, removed, before.as_deref()));
        match removed {
            true => drop(self.objects.remove(&key)),
            false => drop(self.objects.insert(key, object)),
        }
        self.watchers.publish(&event);
        self.history.push(event);
    }

    /// Rewrites what is stored without a new revision: new defaults of a changed definition show up on read.
    fn refresh(&mut self, kind: &Kind) {
        let Some(shape) = kind.storage().and_then(|version| version.shape.as_ref()) else { return };
        for object in self.objects.values_mut() {
            let mut value = object.value.clone();
            shape.fill(&mut value);
            value["apiVersion"] = json!(kind.stored_api_version);
            if value != object.value {
                *object = Arc::new(Object::seal(value, object.revision));
            }
        }
    }
}
