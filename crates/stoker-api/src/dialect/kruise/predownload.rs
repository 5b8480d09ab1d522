//! While the first pods of a rollout come up, nodes whose pods are still to be replaced pull the images of the new revision.
//!
//! In: a workload, its revisions, and the ImagePullJobs that it controls. Out: the ImagePullJobs that should be there, the writes that
//! lead to them, and Events about them. They are deleted when no pod of an older revision is left. This never looks at nodes: each
//! ImagePullJob selects the pods of older revisions. It writes nothing to workloads and revisions.

mod child;
mod kinds;
mod rollout;
mod row;
#[cfg(test)]
mod tests;
mod wish;

use jiff::Timestamp;
use kube_core::dynamic::DynamicObject;
use serde_json::Value;
use stoker_core::World;

use super::{IMAGE_PULL_JOBS, types::GROUP};
use crate::dialect::{self, JobKind};
use crate::events;
use crate::labels::{self, LabelSelector};
use crate::view::{Answer, Derived, Projected, Query, Reader, Root, Row, controller_of, controls};
use crate::write::Write;
pub use kinds::{
    ADVANCED_DAEMON_SETS, ADVANCED_STATEFUL_SETS, CLONE_SETS, CONTROLLER_REVISIONS, DAEMON_SETS, DEPLOYMENTS,
    REPLICA_SETS, STATEFUL_SETS,
};
use rollout::{Shape, Stage, Underway};
pub use row::RevisionRow;

/// The name under which an installation asks for it.
pub const DIALECT: &str = "kruise-rollouts";

/// Reasons of Events, as upstream has them.
const CREATED: &str = "CreatedImagePullJob";
const FAILED: &str = "FailedCreateImagePullJob";

/// Nothing means a job here: ImagePullJobs do. What they are made of is read here too, so that it is watched.
fn derive(root: &Root, reader: &mut Reader<'_>) -> Derived {
    if let Some(workload) = reader.own(root) {
        reach(root, workload, reader);
    }
    Ok(Vec::new())
}

/// How far the rollout of a workload is; none while that is not known.
enum Reached<'a> {
    /// No ImagePullJob has anything to do.
    Over,
    /// Pods of older revisions are there.
    Underway(Underway<'a>),
}

fn reach<'a>(root: &Root, workload: &'a DynamicObject, reader: &mut Reader<'a>) -> Option<Reached<'a>> {
    let shape = Shape::of(root.kind);
    match rollout::stage(shape, workload) {
        Stage::Unknown => None,
        Stage::Over => Some(Reached::Over),
        Stage::Underway => {
            let revisions = revisions(shape, root, workload, reader)?;
            rollout::underway(shape, workload, &revisions).map(Reached::Underway)
        }
    }
}

/// The revisions of a workload with their names. They are watched only while a rollout is under way, and only those that the selector
/// of the workload selects: that is how its own controller finds them.
fn revisions<'a>(
    shape: Shape,
    root: &Root,
    workload: &DynamicObject,
    reader: &mut Reader<'a>,
) -> Option<Vec<(&'a str, &'a RevisionRow)>> {
    let selector = selector(workload)?;
    let query =
        Query { kind: shape.revisions(), namespace: Some(root.namespace.clone()), labels: labels::to_text(&selector) };
    let Answer::Known(rows) = reader.select(query) else { return None };
    let own = rows.filter_map(|((_, name), row)| match row {
        Row::Revision(row) if row.is_of(workload) => Some((name.as_str(), &**row)),
        _ => None,
    });
    Some(own.collect())
}

fn selector(workload: &DynamicObject) -> Option<LabelSelector> {
    let selector = serde_json::from_value(workload.data.pointer("/spec/selector")?.clone()).ok();
    // No API server would list anything for it, whoever wrote the workload past its schema.
    selector.filter(|selector| labels::problem(selector).is_none())
}

/// What a workload asks to be written: ImagePullJobs, and Events about those that are made.
fn project(root: &Root, reader: &mut Reader<'_>, _: &World, now: Timestamp) -> Projected {
    // The ImagePullJobs of a workload that is being deleted are collected with it.
    let workload = reader.own(root).filter(|workload| workload.metadata.deletion_timestamp.is_none());
    let Some(workload) = workload else { return Projected::default() };
    let uid = workload.metadata.uid.clone().unwrap_or_default();
    // Whoever does not see them would make them again.
    let Answer::Known(jobs) = reader.owned(&IMAGE_PULL_JOBS.kind, &uid) else { return Projected::default() };
    let jobs: Vec<&DynamicObject> = jobs.into_iter().filter(|job| child::is_ours(job)).collect();
    let Some(reached) = reach(root, workload, reader) else { return Projected::default() };
    let wish = wish::wish(workload);
    let wanted = match &reached {
        Reached::Over => Vec::new(),
        Reached::Underway(underway) => child::wanted(workload, &wish, underway),
    };
    let begins = match &reached {
        Reached::Over => false,
        Reached::Underway(underway) => underway.ready >= wish.min_ready.of(underway.pods),
    };
    let mut writes = child::unwanted(&wanted, &jobs);
    let mut told = Vec::new();
    for job in wanted.iter().filter(|_| begins) {
        let name = job.metadata.name.clone().unwrap_or_default();
        let of_name = reader.one(&IMAGE_PULL_JOBS.kind, (root.namespace.clone(), name.clone()));
        let (reason, good, message) = match of_name {
            // One that is being deleted is in the way until it is gone.
            Some(there) if controls(workload, there) => continue,
            Some(_) => (FAILED, false, format!("an ImagePullJob {name} of somebody else is there")),
            None => {
                writes.extend(child::create(job));
                match reader.failed(&IMAGE_PULL_JOBS.kind, &name) {
                    Some(why) => (FAILED, false, format!("cannot create ImagePullJob {name}: {why}")),
                    None => (CREATED, true, child::said(job)),
                }
            }
        };
        told.push(events::event(root.kind, workload, reason, good, &message, now));
    }
    if !told.is_empty() {
        let say = |problem: &String| events::event(root.kind, workload, "InvalidAnnotation", false, problem, now);
        told.extend(wish.problems.iter().map(say));
    }
    writes.extend(told);
    writes.into()
}

/// The deletion of an ImagePullJob that was made for a rollout of a workload that does not ask for it any more. The workload itself is
/// not kept then, so that nobody else would notice.
pub(super) fn left_over(job: &DynamicObject, reader: &mut Reader<'_>) -> Option<Write> {
    let owner = controller_of(job).filter(|_| child::is_ours(job))?;
    let of_owner = |kind: &&JobKind| {
        let resource = kind.kind.newest();
        resource.kind == owner.kind && owner.api_version.split('/').next() == Some(resource.group.as_str())
    };
    let kind = dialect::workload_kinds().find(of_owner)?;
    let name = (job.metadata.namespace.clone().unwrap_or_default(), owner.name.clone());
    let Answer::Known(workload) = reader.find(&kind.kind, name) else { return None };
    if workload.is_some_and(|workload| workload.metadata.uid.as_deref() == Some(owner.uid.as_str())) {
        return None;
    }
    Some(child::delete(job))
}

/// Whether an object is of OpenKruise's own group.
fn is_kruise(object: &DynamicObject) -> bool {
    object.types.as_ref().is_some_and(|types| types.api_version.split('/').next() == Some(GROUP))
}

fn text<'a>(object: &'a DynamicObject, pointer: &str) -> Option<&'a str> {
    object.data.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty())
}
