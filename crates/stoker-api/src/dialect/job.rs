//! What every object that is one job has in common: its events, its status, and its end.

use jiff::Timestamp;
use kube_core::dynamic::DynamicObject;
use stoker_core::{Outcome, World};

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
    status: fn(&DynamicObject, &Outcome, Timestamp) -> Option<Write>,
) -> Projected {
    let Some(object) = reader.own(root).filter(|object| object.metadata.deletion_timestamp.is_none()) else {
        return Projected::default();
    };
    let id = root.job();
    let Some(job) = world.job(&id) else { return Projected::default() };
    if let Some(problem) = &job.unreadable {
        return vec![events::unreadable(root.kind, object, problem, now)].into();
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
