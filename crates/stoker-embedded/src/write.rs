//! Create, update and patch. In: a target and a body from a client. Out: the object as it is stored now, or a refusal. What is
//! to be written is computed by pure functions from the state that was read; [`Store::commit`] alone makes it true, and where
//! another write came first the computation starts again.

mod admit;
mod checks;
mod evolve;

use crate::crd;
use crate::kind::{Kind, Role, Served};
use crate::object::{Key, Object, metadata_mut, object_mut, text};
use crate::patch::Patch;
use crate::random;
use crate::refusal::{About, Cause, Refusal};
use crate::store::{Commit, Lost, Next, Place, Store};
pub(crate) use admit::{FieldValidation, present};
use evolve::{Evolved, evolve};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;

/// How often a write is computed anew when others write the same object at the same time.
const ATTEMPTS: usize = 16;
/// How often another generated name is tried.
const NAMES: usize = 8;

/// Wall time, handed in by whoever starts the server.
pub(crate) type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The store together with the rules of writing.
#[derive(Clone)]
pub(crate) struct Keeper {
    pub(crate) store: Arc<Store>,
    pub(crate) clock: Clock,
}

/// What a request is about.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) served: Served,
    /// Empty for cluster scope, and for a collection over all namespaces.
    pub(crate) namespace: String,
    /// Empty for a collection.
    pub(crate) name: String,
    pub(crate) status: bool,
}

impl Target {
    pub(crate) fn about(&self) -> About<'_> {
        about(&self.served.kind, &self.name)
    }

    pub(crate) fn place(&self) -> Place {
        Place { table: self.served.kind.table.clone(), key: Key::new(&self.namespace, &self.name) }
    }
}

pub(crate) fn about<'a>(kind: &'a Kind, name: &'a str) -> About<'a> {
    About { group: &kind.group, kind: &kind.kind, plural: &kind.plural, name }
}

/// The options that all writes share.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Options<'a> {
    pub(crate) dry_run: bool,
    pub(crate) validation: FieldValidation,
    /// Paths of fields that the body gave more than once.
    pub(crate) repeated: &'a [String],
}

/// A write that was done (or would be, in a dry run).
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) object: Arc<Object>,
    pub(crate) warnings: Vec<String>,
}

/// A question with its answer in it.
pub(crate) fn review(served: &Served, body: Value, status: &Value) -> Result<Value, Refusal> {
    let mut value = admit::decode(served, body)?;
    object_mut(&mut value).insert("status".to_owned(), status.clone());
    Ok(value)
}

/// An update that does not say which version it is of.
fn blind(target: &Target) -> Refusal {
    let cause = Cause::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
    // A real server names the resource here, not the kind.
    Refusal::invalid(About { kind: &target.served.kind.plural, ..target.about() }, &[cause])
}

/// Seconds, as `metav1.Time` has them.
pub(crate) fn timestamp(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Keeper {
    pub(crate) fn create(&self, target: &Target, body: Value, options: Options<'_>) -> Result<Written, Refusal> {
        let kind = &target.served.kind;
        let mut value = admit::decode(&target.served, body)?;
        admit::place(target, &mut value)?;
        let generated = text(&value, "name").is_empty() && !text(&value, "generateName").is_empty();
        let mut warnings = Vec::new();
        for _ in 0..NAMES {
            let mut value = value.clone();
            if generated {
                // The suffix must fit into the longest name.
                let prefix: String = text(&value, "generateName").chars().take(58).collect();
                let name = format!("{prefix}{}", random::suffix()?);
                metadata_mut(&mut value).insert("name".to_owned(), json!(name));
            }
            let name = text(&value, "name").to_owned();
            admit::newborn(&target.served, &mut value, (self.clock)())?;
            warnings = admit::complete(&target.served, &mut value, None, options)?;
            warnings.extend(checks::stored_only(kind));
            let definition = self.definition(kind, &mut value)?;
            let key = Key::new(&target.namespace, &name);
            let commit = Commit { place: Place { table: kind.table.clone(), key }, seen: None, next: Next::Put(value) };
            match self.finish(commit, options.dry_run) {
                Ok(object) => {
                    if !options.dry_run {
                        self.install(definition);
                        self.settle_arrival(&object, kind);
                        self.trim(kind);
                    }
                    return Ok(Written { object, warnings });
                }
                Err(Lost::Changed) if generated => {}
                Err(Lost::Changed) => {
                    let place = Place { table: kind.table.clone(), key: Key::new(&target.namespace, &name) };
                    let going = self.store.head(&place).is_some_and(|object| object.is_deleting());
                    let refuse = if going { Refusal::still_exists } else { Refusal::already_exists };
                    return Err(refuse(about(kind, &name)));
                }
                Err(other) => return Err(self.lost(other, target, &name)),
            }
        }
        drop(warnings);
        Err(Refusal::already_exists(about(kind, text(&value, "generateName"))))
    }

    pub(crate) fn update(&self, target: &Target, body: Value, options: Options<'_>) -> Result<Written, Refusal> {
        let mut candidate = admit::decode(&target.served, body)?;
        admit::place(target, &mut candidate)?;
        let expected = text(&candidate, "resourceVersion").to_owned();
        let kind = &target.served.kind;
        self.change(target, options, |current| {
            if expected.is_empty() && !kind.blind_update {
                return Err(blind(target));
            }
            if !expected.is_empty() && expected != current.revision.to_string() {
                return Err(Refusal::modified(target.about()));
            }
            Ok(candidate.clone())
        })
    }

    pub(crate) fn patch(&self, target: &Target, patch: &Patch, options: Options<'_>) -> Result<Written, Refusal> {
        self.change(target, options, |current| {
            let mut value = present(&target.served, &current.value);
            patch.apply(&mut value)?;
            checks::patched(target, current, &value)?;
            let mut candidate = admit::decode(&target.served, value).map_err(|refusal| match refusal.code {
                // What a patch makes of an object is the patch's fault, not the body's.
                400 => Refusal::invalid(target.about(), &[Cause::invalid("patch", &json!("…"), refusal.message)]),
                _ => refusal,
            })?;
            admit::place(target, &mut candidate)?;
            let expected = text(&candidate, "resourceVersion");
            if expected.is_empty() && !target.served.kind.blind_update {
                return Err(blind(target));
            }
            if !expected.is_empty() && expected != current.revision.to_string() {
                return Err(Refusal::modified(target.about()));
            }
            Ok(candidate)
        })
    }

    /// Reads, computes and commits, until no other write came in between.
    fn change(
        &self,
        target: &Target,
        options: Options<'_>,
        compute: impl Fn(&Object) -> Result<Value, Refusal>,
    ) -> Result<Written, Refusal> {
        let place = target.place();
        for _ in 0..ATTEMPTS {
            let current = self.store.head(&place).ok_or_else(|| Refusal::not_found(target.about()))?;
            let candidate = compute(&current)?;
            let (evolved, warnings) = evolve(target, &current, candidate, options)?;
            let (next, definition) = match evolved {
                Evolved::Same => return Ok(Written { object: current, warnings }),
                Evolved::Ended(value) => (Next::Remove { last: Some(value) }, None),
                Evolved::Changed(mut value) => {
                    let definition = self.definition(&target.served.kind, &mut value)?;
                    (Next::Put(value), definition)
                }
            };
            let ended = matches!(next, Next::Remove { .. });
            let commit = Commit { place: place.clone(), seen: Some(current.revision), next };
            match self.finish(commit, options.dry_run) {
                Ok(object) if options.dry_run => return Ok(Written { object, warnings }),
                Ok(object) => {
                    self.install(definition);
                    if ended {
                        self.settle_removal(&place.table, object.clone());
                    } else {
                        self.settle_arrival(&object, &target.served.kind);
                    }
                    return Ok(Written { object, warnings });
                }
                Err(Lost::Changed) => {}
                Err(other) => return Err(self.lost(other, target, &target.name)),
            }
        }
        Err(Refusal::modified(target.about()))
    }

    /// The one way to the commit; a dry run stops short of it.
    pub(crate) fn finish(&self, commit: Commit, dry_run: bool) -> Result<Arc<Object>, Lost> {
        if !dry_run {
            return self.store.commit(commit);
        }
        let before = self.store.head(&commit.place);
        if before.as_ref().map(|b| b.revision) != commit.seen {
            return Err(Lost::Changed);
        }
        let (value, _) = commit.next.resolve(before.as_deref()).ok_or(Lost::Changed)?;
        Ok(Arc::new(Object::seal(value, commit.seen.unwrap_or(0))))
    }

    /// For a kind whose objects define kinds: what this one defines.
    fn definition(&self, kind: &Kind, value: &mut Value) -> Result<Option<Kind>, Refusal> {
        if kind.role != Role::Definition {
            return Ok(None);
        }
        let name = text(value, "name").to_owned();
        let invalid = |cause: Cause| Refusal::invalid(about(kind, &name), &[cause]);
        let defined = crd::kind(value).map_err(|error| invalid(error.cause()))?;
        if let Some(old) = self.store.head_catalog().get(&defined.id()) {
            if !old.custom {
                return Err(invalid(Cause::forbidden("metadata.name", "this kind is built in")));
            }
            if old.namespaced != defined.namespaced {
                let scope = value.pointer("/spec/scope").cloned().unwrap_or_default();
                return Err(invalid(Cause::invalid("spec.scope", &scope, "field is immutable")));
            }
        }
        let (accepted, stored) = (crd::accepted(value, (self.clock)()), crd::stored_versions(value));
        match value.pointer("/status/conditions") {
            Some(_) => value["status"]["acceptedNames"] = accepted["acceptedNames"].clone(),
            None => value["status"] = accepted,
        }
        value["status"]["storedVersions"] = stored;
        Ok(Some(defined))
    }

    /// Drops the oldest objects of a kind that keeps only so many.
    fn trim(&self, kind: &Kind) {
        for (place, revision) in kind.keep.map(|keep| self.store.surplus(&kind.table, keep)).unwrap_or_default() {
            let commit = Commit { place, seen: Some(revision), next: Next::Remove { last: None } };
            if let Ok(gone) = self.store.commit(commit) {
                self.settle_removal(&kind.table, gone);
            }
        }
    }

    fn install(&self, definition: Option<Kind>) {
        if let Some(kind) = definition {
            self.store.define(Arc::new(kind));
        }
    }

    fn lost(&self, lost: Lost, target: &Target, name: &str) -> Refusal {
        let kind = &target.served.kind;
        let namespace = About { group: "", kind: "Namespace", plural: "namespaces", name: &target.namespace };
        match lost {
            Lost::Changed => Refusal::modified(about(kind, name)),
            Lost::NoNamespace => Refusal::not_found(namespace),
            Lost::NamespaceEnding => Refusal::namespace_ending(about(kind, name), &target.namespace),
            Lost::NoTable => Refusal::no_page(),
        }
    }
}
