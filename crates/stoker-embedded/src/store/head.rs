//! The newest state, which writers build on: what readers see, with the changes that are not durable yet laid over it. In:
//! changes as they are made. Out: the objects, kinds and dependents as they will be. It never waits for the journal.

use super::state::State;
use super::{Commit, Lost, Place, Store};
use crate::kind::Catalog;
use crate::object::{Key, Object, meta};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is newer than the durable state.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) revision: u64,
    pub(super) catalog: Arc<Catalog>,
    /// Objects that changed, with the revision of their last change; `None` where it removed them.
    changed: BTreeMap<Place, (u64, Option<Arc<Object>>)>,
    /// Owner uid -> what it owns; of the newest state as a whole.
    dependents: BTreeMap<String, BTreeSet<Place>>,
}

impl Head {
    pub(super) fn new(revision: u64) -> Self {
        Self { revision, catalog: Arc::default(), changed: BTreeMap::new(), dependents: BTreeMap::new() }
    }

    /// Notes a change.
    pub(super) fn advance(&mut self, place: &Place, before: Option<&Arc<Object>>, object: &Arc<Object>, removed: bool) {
        let after = (!removed).then(|| object.clone());
        self.index_owners(place, before.map(|b| &**b), after.as_deref());
        self.revision = object.revision;
        self.changed.insert(place.clone(), (object.revision, after));
    }

    /// A change is durable: unless a newer one stands over it, readers see the same now.
    pub(super) fn landed(&mut self, place: &Place, revision: u64) {
        if self.changed.get(place).is_some_and(|(newest, _)| *newest == revision) {
            self.changed.remove(place);
        }
    }

    pub(super) fn index_owners(&mut self, place: &Place, before: Option<&Object>, after: Option<&Object>) {
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

    /// Lays the changes over the places of the durable state.
    fn lay_over(&self, places: &mut BTreeSet<Place>, covers: impl Fn(&Place) -> bool) {
        for (place, (_, object)) in self.changed.iter().filter(|(place, _)| covers(place)) {
            match object {
                Some(_) => places.insert(place.clone()),
                None => places.remove(place),
            };
        }
    }
}

impl State {
    pub(super) fn head_object(&self, place: &Place) -> Option<Arc<Object>> {
        match self.head.changed.get(place) {
            Some((_, object)) => object.clone(),
            None => self.tables.get(&place.table)?.objects.get(&place.key).cloned(),
        }
    }

    /// Whether a change still fits. Out: what it changes.
    pub(super) fn check(&self, commit: &Commit) -> Result<Option<Arc<Object>>, Lost> {
        let catalog = &self.head.catalog;
        if catalog.get(&commit.place.table).is_none() {
            return Err(Lost::NoTable);
        }
        let before = self.head_object(&commit.place);
        if before.as_ref().map(|b| b.revision) != commit.seen {
            return Err(Lost::Changed);
        }
        let namespace = &commit.place.key.namespace;
        if before.is_none() && !namespace.is_empty() {
            let table = catalog.namespaces().ok_or(Lost::NoNamespace)?.table.clone();
            let place = Place { table, key: Key::new("", namespace) };
            if self.head_object(&place).ok_or(Lost::NoNamespace)?.is_deleting() {
                return Err(Lost::NamespaceEnding);
            }
        }
        Ok(before)
    }
}

impl Store {
    /// What names this uid as an owner.
    pub(crate) fn dependents(&self, uid: &str) -> Vec<Place> {
        self.lock().head.dependents.get(uid).map(|set| set.iter().cloned().collect()).unwrap_or_default()
    }

    /// Everything inside a namespace, in every table.
    pub(crate) fn inside_namespace(&self, namespace: &str) -> Vec<Place> {
        let state = self.lock();
        let mut places = BTreeSet::new();
        let from = Key::new(namespace, "");
        for (name, table) in &state.tables {
            let keys = table.objects.range(from.clone()..).map(|(key, _)| key);
            let keys = keys.take_while(|key| key.namespace == namespace);
            places.extend(keys.map(|key| Place { table: name.clone(), key: key.clone() }));
        }
        state.head.lay_over(&mut places, |place| place.key.namespace == namespace);
        places.into_iter().collect()
    }

    /// Everything in one table.
    pub(crate) fn inside_table(&self, table: &str) -> Vec<Place> {
        let state = self.lock();
        let keys = state.tables.get(table).into_iter().flat_map(|t| t.objects.keys());
        let mut places: BTreeSet<Place> = keys.map(|key| Place { table: table.to_owned(), key: key.clone() }).collect();
        state.head.lay_over(&mut places, |place| place.table == table);
        places.into_iter().collect()
    }
}
