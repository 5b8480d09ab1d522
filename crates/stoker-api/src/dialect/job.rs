//! What every object that is one job has in common: its events, its status, its end, and what is said where it cannot be read.

use jiff::Timestamp;
use kube_core::dynamic::DynamicObject;
use serde::de::DeserializeOwned;
use stoker_core::{Outcome, Reason, World, text};

use crate::dialect::{JobKind, status_or_why};
use crate::events;
use crate::view::{Projected, Reader, Root};
use crate::write::{Target, Write};

/// What the outcome of the one job of an object asks to be written: events, and the status as `status` renders it. An object whose
/// time to live is over is deleted.
pub(crate) fn project_job(
    root: &Root,
    reader: &mut Reader<'_>,
    world: &World,
    now: Timestamp,
    status: impl FnOnce(&DynamicObject, &Outcome, Timestamp) -> Option<Write>,
) -> Projected {
    let Some(object) = reader.own(root).filter(|object| object.metadata.deletion_timestamp.is_none()) else {
        return Projected::default();
    };
    let id = root.job();
    let Some(job) = world.job(&id) else { return Projected::default() };
    if let Some(problem) = &job.unreadable {
        return vec![events::unreadable(root.kind, object, problem, now)].into();
    }
    if let Some(kind) = world.waits_for_sight(&id) {
        return vec![events::lost_sight(root.kind, object, kind, now)].into();
    }
    if world.is_expired(&id) {
        let target = Target::of(root.kind.kind.resource_of(object), object);
        return vec![Write::Delete(target, object.metadata.uid.clone())].into();
    }
    let Some(outcome) = world.outcome(&id) else { return Projected::default() };
    let Some(write) = status(object, &outcome, now) else { return Projected::default() };
    let mut writes = events::events(root.kind, object, (job.images.len(), &outcome), now);
    writes.push(write);
    writes.into()
}

/// What is written about an object whose spec cannot be read, for this reason: an event, and the status that `status` makes of the one
/// that is there. A status that says so already stays, and so does one that cannot be read either.
pub(crate) fn project_unreadable<S: DeserializeOwned + Default>(
    (kind, object): (&JobKind, &DynamicObject),
    problem: &str,
    now: Timestamp,
    status: impl FnOnce(S, String) -> Option<Write>,
) -> Projected {
    let message = format!("{problem}; nothing is pulled for this object until it is corrected");
    let event = events::event(kind, object, Reason::SpecUnreadable.as_str(), false, &message, now);
    match status_or_why(object) {
        (_, Some(_)) => vec![event].into(),
        (before, None) => match status(before, text::message(&message)) {
            Some(status) => vec![event, status].into(),
            None => Projected::default(),
        },
    }
}
