//! Deleting, and what goes with what is deleted: dependents, the contents of a namespace, the objects of a taken-away kind. In:
//! a target. Out: writes through the one commit. It runs to its end before the deleting request is answered, so there is no
//! task behind it; an object that waits for a finalizer is finished by the write that clears it.

use crate::kind::{Kind, Role};
use crate::object::{Key, Object, finalizers, meta, metadata_mut, object_mut, text};
use crate::refusal::Refusal;
use crate::store::{Commit, Next, Place};
use crate::write::{Keeper, Target, about, timestamp};
use serde_json::{Value, json};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// The finalizer of an object that waits for its dependents.
const FOREGROUND: &str = "foregroundDeletion";

/// What happens to dependents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Propagation {
    #[default]
    Background,
    Foreground,
    Orphan,
}

/// What a delete asks for.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeleteOptions {
    pub(crate) propagation: Propagation,
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) dry_run: bool,
}

/// What is still to be done. A queue and not recursion: a chain of owners may be as long as a client likes.
type Work = VecDeque<Task>;

#[derive(Debug)]
enum Task {
    /// Delete what is there.
    Remove(Place, Propagation),
    /// An object of this table is gone.
    Removed(String, Arc<Object>),
    /// A dependent of the gone owner with this uid.
    Collect(Place, String),
    /// An owner that may wait for its dependents.
    Release(Place),
    /// A namespace or definition that may wait until it is empty.
    Empty(Place),
}

/// What a delete did.
#[derive(Debug)]
pub(crate) enum Deleted {
    /// The object is gone; this was its last state.
    Gone(Arc<Object>),
    /// It waits for finalizers, or for what it contains.
    Waiting(Arc<Object>),
}

impl Keeper {
    pub(crate) fn delete(&self, target: &Target, options: &DeleteOptions) -> Result<Deleted, Refusal> {
        let place = target.place();
        loop {
            let current = self.store.head(&place).ok_or_else(|| Refusal::not_found(target.about()))?;
            check_preconditions(target, &current, options)?;
            if target.served.kind.permanent.contains(&target.name.as_str()) {
                return Err(Refusal::forbidden(target.about(), "this namespace may not be deleted"));
            }
            if options.dry_run {
                return Ok(Deleted::Gone(current));
            }
            // Lost to another write: look again. Each round means that somebody else made progress.
            let mut work = Work::new();
            if let Some(deleted) = self.begin(&place, &current, options.propagation, &mut work) {
                self.work_off(work);
                return Ok(match (self.store.head(&place), deleted) {
                    (Some(now), Deleted::Waiting(_)) if now.uid() == current.uid() => Deleted::Waiting(now),
                    (_, Deleted::Waiting(last) | Deleted::Gone(last)) => Deleted::Gone(last),
                });
            }
        }
    }

    /// One attempt; `None` where another write came first.
    fn begin(&self, place: &Place, current: &Arc<Object>, how: Propagation, work: &mut Work) -> Option<Deleted> {
        let kind = &*self.store.head_catalog().get(&place.table)?.clone();
        if how == Propagation::Orphan {
            for dependent in self.store.dependents(current.uid()) {
                self.disown(&dependent, current.uid());
            }
        }
        let wait_for_dependents = how == Propagation::Foreground && !self.store.dependents(current.uid()).is_empty();
        let contains = kind.role != Role::Plain && !self.contents(kind, current).is_empty();
        let held = !finalizers(&current.value).is_empty();
        if !held && !wait_for_dependents && !contains {
            let commit =
                Commit { place: place.clone(), seen: Some(current.revision), next: Next::Remove { last: None } };
            let gone = self.store.commit(commit).ok()?;
            work.push_back(Task::Removed(place.table.clone(), gone.clone()));
            return Some(Deleted::Gone(gone));
        }
        let ending = self.mark(kind, place, current, wait_for_dependents)?;
        work.extend(self.contents(kind, &ending).into_iter().map(|content| Task::Remove(content, how)));
        if wait_for_dependents {
            let dependents = self.store.dependents(ending.uid()).into_iter();
            work.extend(dependents.map(|dependent| Task::Remove(dependent, how)));
            work.push_back(Task::Release(place.clone()));
        }
        work.push_back(Task::Empty(place.clone()));
        Some(Deleted::Waiting(ending))
    }

    /// Sets the deletion timestamp, once.
    fn mark(&self, kind: &Kind, place: &Place, current: &Arc<Object>, foreground: bool) -> Option<Arc<Object>> {
        let mut value = current.value.clone();
        let metadata = metadata_mut(&mut value);
        if !current.is_deleting() {
            metadata.insert("deletionTimestamp".to_owned(), json!(timestamp((self.clock)())));
            metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(0));
            if let Some(generation) = metadata.get("generation").and_then(Value::as_i64) {
                metadata.insert("generation".to_owned(), json!(generation + 1));
            }
            if kind.role == Role::Namespace {
                let status = object_mut(&mut value).entry("status").or_insert_with(|| json!({}));
                object_mut(status).insert("phase".to_owned(), json!("Terminating"));
            }
        }
        if foreground && !finalizers(&value).contains(&FOREGROUND) {
            let mut list: Vec<String> = finalizers(&value).into_iter().map(str::to_owned).collect();
            list.push(FOREGROUND.to_owned());
            metadata_mut(&mut value).insert("finalizers".to_owned(), json!(list));
        }
        if value == current.value {
            return Some(current.clone());
        }
        let commit = Commit { place: place.clone(), seen: Some(current.revision), next: Next::Put(value) };
        self.store.commit(commit).ok()
    }

    fn work_off(&self, mut work: Work) {
        while let Some(task) = work.pop_front() {
            match task {
                Task::Remove(place, how) => self.remove(&place, how, &mut work),
                Task::Removed(table, gone) => self.after_removal(&table, &gone, &mut work),
                Task::Collect(place, uid) => self.collect(&place, &uid, &mut work),
                Task::Release(place) => self.release(&place, &mut work),
                Task::Empty(place) => self.finish_container(&place, &mut work),
            }
        }
    }

    /// Called after an object was removed by another way than a delete: its last finalizer was cleared.
    pub(crate) fn settle_removal(&self, table: &str, gone: Arc<Object>) {
        self.work_off(Work::from([Task::Removed(table.to_owned(), gone)]));
    }

    /// Deletes whatever is at a place, until it is gone or waits.
    fn remove(&self, place: &Place, how: Propagation, work: &mut Work) {
        while let Some(current) = self.store.head(place) {
            // Already on its way (a circle of owners leads back here): it waits for its finalizers or contents.
            let waits = finalizers(&current.value).contains(&FOREGROUND);
            let begun = current.is_deleting() && (how != Propagation::Foreground || waits);
            if begun || self.begin(place, &current, how, work).is_some() {
                return;
            }
        }
    }

    /// What lives inside an object: of a namespace all that is in it, of a definition all objects of its kind.
    fn contents(&self, kind: &Kind, object: &Object) -> Vec<Place> {
        match kind.role {
            Role::Plain => Vec::new(),
            Role::Namespace => self.store.inside_namespace(text(&object.value, "name")),
            Role::Definition => self.store.inside_table(text(&object.value, "name")),
        }
    }

    fn after_removal(&self, table: &str, gone: &Object, work: &mut Work) {
        let catalog = self.store.head_catalog();
        let Some(kind) = catalog.get(table) else { return };
        if kind.role == Role::Definition {
            self.store.undefine(text(&gone.value, "name"));
        }
        for dependent in self.store.dependents(gone.uid()) {
            work.push_back(Task::Collect(dependent, gone.uid().to_owned()));
        }
        for owner in owners(&gone.value) {
            work.extend(self.owner_place(&owner, &gone.key().namespace).map(Task::Release));
        }
        let namespace = gone.key().namespace;
        if let Some(namespaces) = catalog.namespaces().filter(|_| !namespace.is_empty()) {
            let place = Place { table: namespaces.table.clone(), key: Key::new("", &namespace) };
            work.push_back(Task::Empty(place));
        }
        if kind.custom
            && let Some(definitions) = catalog.kinds().find(|k| k.role == Role::Definition)
        {
            let place = Place { table: definitions.table.clone(), key: Key::new("", table) };
            work.push_back(Task::Empty(place));
        }
    }

    /// Called after an object was written: one whose owners are all gone goes too.
    pub(crate) fn settle_arrival(&self, object: &Arc<Object>, kind: &Kind) {
        let place = Place { table: kind.table.clone(), key: object.key() };
        let absent = |owner: &Owner| self.is_absent(owner, &place.key.namespace);
        let all = owners(&object.value);
        if !all.is_empty() && all.iter().all(absent) {
            self.work_off(Work::from([Task::Remove(place, Propagation::Background)]));
        }
    }

    /// A dependent of a gone owner: removed with its last owner, else it only loses the reference.
    fn collect(&self, place: &Place, uid: &str, work: &mut Work) {
        let Some(current) = self.store.head(place) else { return };
        let others = owners(&current.value).into_iter().filter(|o| o.uid != uid);
        if others.into_iter().any(|owner| !self.is_absent(&owner, &place.key.namespace)) {
            self.disown(place, uid);
        } else {
            self.remove(place, Propagation::Background, work);
        }
    }

    fn disown(&self, place: &Place, uid: &str) {
        while let Some(current) = self.store.head(place) {
            let mut value = current.value.clone();
            let metadata = metadata_mut(&mut value);
            if let Some(Value::Array(list)) = metadata.get_mut("ownerReferences") {
                list.retain(|owner| owner.get("uid").and_then(Value::as_str) != Some(uid));
                if list.is_empty() {
                    metadata.remove("ownerReferences");
                }
            }
            let commit = Commit { place: place.clone(), seen: Some(current.revision), next: Next::Put(value) };
            if self.store.commit(commit).is_ok() {
                return;
            }
        }
    }

    /// Ends a foreground deletion whose dependents are all gone.
    fn release(&self, place: &Place, work: &mut Work) {
        while let Some(current) = self.store.head(place) {
            let waiting = current.is_deleting() && finalizers(&current.value).contains(&FOREGROUND);
            let dependents = self.store.dependents(current.uid());
            if !waiting || !dependents.is_empty() && !self.only_a_circle(place, &current, dependents) {
                return;
            }
            let left: Vec<&str> = finalizers(&current.value).into_iter().filter(|f| *f != FOREGROUND).collect();
            let mut value = current.value.clone();
            metadata_mut(&mut value).insert("finalizers".to_owned(), json!(left));
            let removed = left.is_empty();
            let next = if removed { Next::Remove { last: None } } else { Next::Put(value) };
            let commit = Commit { place: place.clone(), seen: Some(current.revision), next };
            if let Ok(object) = self.store.commit(commit) {
                if removed {
                    work.push_back(Task::Removed(place.table.clone(), object));
                }
                return;
            }
        }
    }

    /// Whether all that an object waits for is waiting for it in turn, and for nothing else: then somebody must go first.
    fn only_a_circle(&self, place: &Place, object: &Object, dependents: Vec<Place>) -> bool {
        let mut above = BTreeSet::from([place.clone()]);
        let mut open = vec![object.value.clone()];
        while let Some(value) = open.pop() {
            let namespace = text(&value, "namespace");
            for owner in owners(&value) {
                let Some(place) = self.owner_place(&owner, namespace) else { continue };
                let Some(found) = self.store.head(&place).filter(|found| found.uid() == owner.uid) else { continue };
                if above.insert(place) {
                    open.push(found.value.clone());
                }
            }
        }
        let (mut seen, mut open) = (BTreeSet::new(), dependents);
        while let Some(next) = open.pop() {
            if next == *place || seen.contains(&next) {
                continue;
            }
            let Some(found) = self.store.head(&next) else { continue };
            if !above.contains(&next) || !found.is_deleting() || finalizers(&found.value) != [FOREGROUND] {
                return false;
            }
            open.extend(self.store.dependents(found.uid()));
            seen.insert(next);
        }
        true
    }

    /// Ends the deletion of a namespace or definition that is empty now.
    fn finish_container(&self, place: &Place, work: &mut Work) {
        let Some(kind) = self.store.head_catalog().get(&place.table).cloned() else { return };
        while let Some(current) = self.store.head(place) {
            let ready = kind.role != Role::Plain
                && current.is_deleting()
                && finalizers(&current.value).is_empty()
                && self.contents(&kind, &current).is_empty();
            if !ready {
                return;
            }
            let commit =
                Commit { place: place.clone(), seen: Some(current.revision), next: Next::Remove { last: None } };
            if let Ok(gone) = self.store.commit(commit) {
                work.push_back(Task::Removed(place.table.clone(), gone));
                return;
            }
        }
    }

    fn owner_place(&self, owner: &Owner, namespace: &str) -> Option<Place> {
        let catalog = self.store.head_catalog();
        let kind = catalog.named(&owner.api_version, &owner.kind)?;
        // A cluster-scoped object cannot be owned by one in a namespace: which namespace would that be?
        if kind.namespaced && namespace.is_empty() {
            return None;
        }
        let namespace = if kind.namespaced { namespace } else { "" };
        Some(Place { table: kind.table.clone(), key: Key::new(namespace, &owner.name) })
    }

    /// Whether the owner is known not to exist. An owner of a kind that is not served here is left in peace.
    fn is_absent(&self, owner: &Owner, namespace: &str) -> bool {
        self.owner_place(owner, namespace)
            .is_some_and(|place| self.store.head(&place).is_none_or(|found| found.uid() != owner.uid))
    }
}

#[derive(Debug)]
struct Owner {
    api_version: String,
    kind: String,
    name: String,
    uid: String,
}

fn owners(value: &Value) -> Vec<Owner> {
    let list = meta(value, "ownerReferences").and_then(Value::as_array);
    let owner = |owner: &Value| {
        let text = |field: &str| owner.get(field).and_then(Value::as_str).map(str::to_owned);
        Some(Owner { api_version: text("apiVersion")?, kind: text("kind")?, name: text("name")?, uid: text("uid")? })
    };
    list.into_iter().flatten().filter_map(owner).collect()
}

fn check_preconditions(target: &Target, current: &Object, options: &DeleteOptions) -> Result<(), Refusal> {
    let check = |what: &str, wanted: &Option<String>, found: &str| match wanted {
        Some(wanted) if wanted != found => Err(Refusal::conflict(
            about(&target.served.kind, &target.name),
            format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"),
        )),
        _ => Ok(()),
    };
    check("UID", &options.uid, current.uid())?;
    check("ResourceVersion", &options.resource_version, &current.revision.to_string())
}
