//! From one state of an object to the next. In: the stored object and what a client wants it to be. Out: the next state, that
//! nothing changes, or that the object has ended. Pure.

use super::admit::complete;
use super::{Options, Target};
use crate::kind::{Served, StatusUse};
use crate::object::{Object, finalizers, meta, metadata_mut, object_mut, text};
use crate::refusal::{Cause, Refusal};
use serde_json::{Value, json};

/// The outcome of an update.
#[derive(Debug)]
pub(super) enum Evolved {
    /// Nothing changes: no write, no event.
    Same,
    /// The next state.
    Changed(Value),
    /// The last finalizer of a deleted object went; this is its last state.
    Ended(Value),
}

/// Fields of `metadata` that only the server writes.
const SERVER_OWNED: [&str; 8] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generateName",
    "generation",
    "namespace",
    "resourceVersion",
    "uid",
];

pub(super) fn evolve(
    target: &Target,
    current: &Object,
    mut candidate: Value,
    options: Options<'_>,
) -> Result<(Evolved, Vec<String>), Refusal> {
    let uid = text(&candidate, "uid");
    if !uid.is_empty() && uid != current.uid() {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {}", current.uid());
        return Err(Refusal::conflict(target.about(), why));
    }
    keep_other_half(target, &current.value, &mut candidate);
    let metadata = metadata_mut(&mut candidate);
    for field in SERVER_OWNED {
        match meta(&current.value, field) {
            Some(value) => metadata.insert(field.to_owned(), value.clone()),
            None => metadata.remove(field),
        };
    }
    let warnings = complete(&target.served, &mut candidate, Some(&current.value), options)?;
    refuse_new_finalizers(target, current, &candidate)?;
    if candidate == current.value {
        return Ok((Evolved::Same, warnings));
    }
    if !target.status && target.served.kind.generation && differs(&target.served, &current.value, &candidate) {
        let generation = meta(&current.value, "generation").and_then(Value::as_i64).unwrap_or(0);
        metadata_mut(&mut candidate).insert("generation".to_owned(), json!(generation + 1));
    }
    if current.is_deleting() && finalizers(&candidate).is_empty() {
        return Ok((Evolved::Ended(candidate), warnings));
    }
    Ok((Evolved::Changed(candidate), warnings))
}

/// A write of the status changes nothing else, and a write of the rest no status.
fn keep_other_half(target: &Target, current: &Value, candidate: &mut Value) {
    if target.status {
        let status = object_mut(candidate).remove("status");
        *candidate = current.clone();
        put(candidate, status);
    } else if target.served.version().status != StatusUse::Plain {
        put(candidate, current.get("status").cloned());
    }
}

fn put(value: &mut Value, status: Option<Value>) {
    let map = object_mut(value);
    match status {
        Some(status) => map.insert("status".to_owned(), status),
        None => map.remove("status"),
    };
}

fn refuse_new_finalizers(target: &Target, current: &Object, candidate: &Value) -> Result<(), Refusal> {
    if !current.is_deleting() {
        return Ok(());
    }
    let old = finalizers(&current.value);
    let new: Vec<&str> = finalizers(candidate).into_iter().filter(|f| !old.contains(f)).collect();
    if new.is_empty() {
        return Ok(());
    }
    let detail = format!("no new finalizers can be added if the object is being deleted, found new finalizers {new:?}");
    Err(Refusal::invalid(target.about(), &[Cause::forbidden("metadata.finalizers", detail)]))
}

/// Whether anything but metadata (and status, where it is a subresource) is another.
fn differs(served: &Served, old: &Value, new: &Value) -> bool {
    let status_apart = served.version().status != StatusUse::Plain;
    let skip = |key: &str| key == "metadata" || status_apart && key == "status";
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else { return true };
    let mut left = old.iter().filter(|(key, _)| !skip(key));
    let mut right = new.iter().filter(|(key, _)| !skip(key));
    !left.by_ref().eq(right.by_ref())
}
