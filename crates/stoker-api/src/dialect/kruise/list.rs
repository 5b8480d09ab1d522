//! An ImageListPullJob is made of ImagePullJobs, one for each image. In: the list and the ImagePullJobs that it controls. Out: the
//! ImagePullJobs that should be there, the writes that lead to them, and the status of the list. It never looks at nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use kube_core::discovery::ApiResource;
use kube_core::dynamic::DynamicObject;
use serde_json::{Value, json};
use stoker_core::model::Key;
use stoker_core::{World, text};

use super::from_core::whole_seconds;
use super::versions::{version_of, versions};
use super::{
    CompletionType, FailedImageStatus, IMAGE_PULL_JOBS, ImageListPullJob, ImageListPullJobSpec, ImageListPullJobStatus,
    ImagePullJob, ImagePullJobSpec, ImagePullJobStatus,
};
use crate::dialect::{Extras, MissingJob, NotReadable, Summary, part, project_unreadable};
use crate::events;
use crate::view::{Answer, Projected, Reader, Root, controls};
use crate::write::{Target, Write, status_write};

/// The label with the hash of the template, on the list and on its children.
const REVISION: &str = "controller-revision-hash";

/// What a list asks to be written: its children, its status, events about children.
pub(super) fn project(root: &Root, reader: &mut Reader<'_>, _: &World, now: Timestamp) -> Projected {
    let Some(list) = reader.own(root) else { return Projected::default() };
    let uid = list.metadata.uid.clone().unwrap_or_default();
    let has_ended = status_of(list).is_ok_and(|status| status.completion_time.is_some());
    let mut jobs = match reader.owned(&IMAGE_PULL_JOBS.kind, &uid) {
        Answer::Known(jobs) => jobs,
        // What is left to do about it does not depend on its children.
        Answer::Unlisted | Answer::Unseen if has_ended => Vec::new(),
        // Whoever does not see its children would make them again, and say that none of them has done anything.
        Answer::Unlisted | Answer::Unseen => return Projected::default(),
    };
    // Somebody else's job may have the name of a child.
    for child in children(list).unwrap_or_default() {
        let name = (root.namespace.clone(), child.metadata.name.unwrap_or_default());
        jobs.extend(reader.one(&IMAGE_PULL_JOBS.kind, name).filter(|job| !controls(list, job)));
    }
    let mut projected = match plan(list, &jobs, now) {
        Ok(projected) => projected,
        Err(problem) if problem.is_status => {
            return vec![events::unreadable(root.kind, list, &problem.problem, now)].into();
        }
        // Its status has no field for a message.
        Err(problem) => {
            let status = |_: ImageListPullJobStatus, _| None;
            return project_unreadable((root.kind, list), &problem.problem, now, status);
        }
    };
    let told = projected.writes.iter().filter_map(|write| {
        let (done, child) = match write {
            Write::Create(child, _) => ("create", child),
            Write::Delete(child, _) if child.resource.kind == IMAGE_PULL_JOBS.kind.name => ("delete", child),
            _ => return None,
        };
        let (reason, message) =
            (format!("Successful {done} ImagePullJob"), format!("{done} ImagePullJob {}", child.name));
        Some(events::related(events::event(root.kind, list, &reason, true, &message, now), child))
    });
    let mut told: Vec<Write> = told.collect();
    let refused = projected.writes.iter().filter_map(|write| match write {
        Write::Create(child, _) => Some((child, reader.failed(&IMAGE_PULL_JOBS.kind, &child.name)?)),
        _ => None,
    });
    told.extend(refused.map(|(child, why)| {
        let message = format!("create ImagePullJob {}: {why}", child.name);
        events::related(events::event(root.kind, list, "Failed create ImagePullJob", false, &message, now), child)
    }));
    projected.writes.extend(told);
    projected
}

/// What the status of a list says. It counts images.
pub(super) fn summary(list: &DynamicObject) -> Summary {
    let status = status_of(list).unwrap_or_default();
    let count = |images: i32| u32::try_from(images).unwrap_or(0);
    let (ended, failed) = (status.completion_time.is_some(), status.completed.saturating_sub(status.succeeded));
    let phase = match (ended, failed, status.start_time) {
        (true, 0, _) => "Succeeded",
        (true, ..) => "Failed",
        (false, _, Some(_)) => "Running",
        (false, _, None) => "",
    };
    let jobs: Vec<String> =
        status.failed_image_statuses.iter().map(|failed| format!("imagepulljob/{}", failed.image_pull_job)).collect();
    let mut message = format!("{} of {} images are done, an ImagePullJob each", status.completed, status.desired);
    if !jobs.is_empty() {
        message.push_str(&format!("; nodes failed in {}: ask `stoker why` about it", jobs.join(", ")));
    }
    Summary {
        phase: phase.into(),
        desired: count(status.desired),
        succeeded: count(status.succeeded),
        pulling: count(status.active),
        failed: count(failed),
        ended,
        message: text::message(&message),
        ..Summary::default()
    }
}

/// What to do about a list. `jobs` are the ImagePullJobs of its namespace, or at least those that it controls.
fn plan(list: &DynamicObject, jobs: &[&DynamicObject], now: Timestamp) -> Result<Projected, NotReadable> {
    let spec: ImageListPullJobSpec = part(list, "spec")?;
    let before = status_of(list)?;
    if list.metadata.deletion_timestamp.is_some() {
        // Its children are collected with it.
        return Ok(Projected::default());
    }
    let resource = version_of::<ImageListPullJob>(list);
    if let Some(completed) = before.completion_time {
        return Ok(expiry(resource, list, &spec, completed, now));
    }
    let wanted = children(list)?;
    let taken: BTreeSet<Option<&str>> = jobs.iter().map(|job| job.metadata.name.as_deref()).collect();
    let mut writes: Vec<Write> = label(resource.clone(), list).into_iter().collect();
    let unwanted = jobs.iter().filter(|job| controls(list, job) && !wanted.iter().any(|child| is_for(child, job)));
    writes.extend(
        unwanted
            .filter(|job| job.metadata.deletion_timestamp.is_none())
            .map(|job| Write::Delete(Target::of(version_of::<ImagePullJob>(job), job), job.metadata.uid.clone())),
    );
    // One of this name that is being deleted, or that the list does not control, is in the way until it is gone.
    let missing = wanted.iter().filter(|child| !taken.contains(&child.metadata.name.as_deref()));
    let creates = missing.filter_map(|child| {
        let target = Target::of(version_of::<ImagePullJob>(child), child);
        Some(Write::Create(target, serde_json::to_value(child).ok()?))
    });
    writes.extend(creates);
    writes.extend(status_write(resource, list, &status(list, jobs, now)?));
    Ok(Projected { writes, wake: None })
}

/// The ImagePullJobs that a list wants, in the order of its images. They are named after what they contain: another template, or
/// another list of the same name, means other names.
fn children(list: &DynamicObject) -> Result<Vec<DynamicObject>, NotReadable> {
    let spec: ImageListPullJobSpec = part(list, "spec")?;
    let revision = revision(list);
    let names = names(list, &revision, &spec.images);
    let newer = version_of::<ImageListPullJob>(list);
    let [newest, older] = versions::<ImagePullJob>();
    let resource = if newer.version == older.version { older } else { newest };
    let mut seen = BTreeSet::new();
    let once = spec.images.iter().filter(|image| seen.insert(image.as_str()));
    let child = |image: &String| {
        let name = names.get(image.as_str()).map(String::as_str).unwrap_or_default();
        let mut child = DynamicObject::new(name, &resource);
        child.metadata.namespace = list.metadata.namespace.clone();
        child.metadata.labels = Some([(REVISION.to_string(), revision.clone())].into());
        let owner = json!([{
            "apiVersion": newer.api_version, "kind": newer.kind, "controller": true,
            "name": list.metadata.name, "uid": list.metadata.uid,
        }]);
        child.metadata.owner_references = serde_json::from_value(owner).ok();
        child.metadata.annotations = Some(extras(list)).filter(|extras| !extras.is_empty());
        let mut spec = template(list);
        spec.insert("image".into(), json!(image));
        child.data = json!({ "spec": spec });
        child
    };
    Ok(once.map(child).collect())
}

/// The children that a list wants and that are not among these jobs. A list that has ended wants none.
pub(super) fn missing(list: &DynamicObject, jobs: &[&DynamicObject]) -> Vec<MissingJob> {
    if status_of(list).is_ok_and(|status| status.completion_time.is_some()) {
        return Vec::new();
    }
    let wanted = children(list).unwrap_or_default().into_iter();
    let missing = wanted.filter(|child| !jobs.iter().any(|job| is_for(child, job)));
    let named = missing.map(|child| {
        let image = part::<ImagePullJobSpec>(&child, "spec").map(|spec| spec.image).unwrap_or_default();
        MissingJob { name: child.metadata.name.unwrap_or_default(), image }
    });
    named.collect()
}

/// How a list stands. Counts are of images; a list that has ended stays as it is.
fn status(
    list: &DynamicObject,
    jobs: &[&DynamicObject],
    now: Timestamp,
) -> Result<ImageListPullJobStatus, NotReadable> {
    let spec: ImageListPullJobSpec = part(list, "spec")?;
    let before = status_of(list)?;
    if before.completion_time.is_some() {
        return Ok(before);
    }
    let wanted = children(list)?;
    let mut status = ImageListPullJobStatus {
        start_time: before.start_time.or(Some(whole_seconds(now))),
        desired: i32::try_from(wanted.len()).unwrap_or(i32::MAX),
        ..Default::default()
    };
    let ends = spec.template.completion_policy.kind == CompletionType::Always;
    let mut times = Vec::new();
    for child in &wanted {
        let job = jobs.iter().find(|job| is_for(child, job) && controls(list, job));
        // One that has not begun says nothing: its zeros are no result.
        let Some((name, said)) = job.and_then(|job| Some((job.metadata.name.as_deref()?, begun(job)?))) else {
            continue;
        };
        status.active += i32::from(said.active > 0);
        // One without nodes is done when it says so: its nodes may be unknown because Pods cannot be listed.
        if said.desired == 0 && said.completion_time.is_none() && ends {
            continue;
        }
        // Somebody may have written any number there.
        if said.succeeded.saturating_add(said.failed) == said.desired {
            status.completed += 1;
            times.push(said.completion_time);
        }
        status.succeeded += i32::from(said.succeeded == said.desired);
        if said.failed > 0 {
            let image = part::<ImagePullJobSpec>(child, "spec").map(|spec| spec.image).unwrap_or_default();
            status.failed_image_statuses.push(FailedImageStatus {
                image_pull_job: name.into(),
                name: image,
                message: format!("Please check for details which nodes failed by 'kubectl get ImagePullJob {name}'."),
            });
        }
    }
    // The time of the last one, so that a status that is written twice says the same time twice.
    let last = || times.iter().copied().collect::<Option<Vec<_>>>()?.into_iter().max();
    let over = ends && status.completed == status.desired;
    status.completion_time = over.then(|| last().unwrap_or_else(|| whole_seconds(now)));
    Ok(status)
}

/// Whether an ImagePullJob is what this child should be. One whose image somebody has changed is not; all else of it may be edited.
fn is_for(child: &DynamicObject, job: &DynamicObject) -> bool {
    let image = |job: &DynamicObject| job.data.pointer("/spec/image").cloned();
    job.metadata.name == child.metadata.name && image(job) == image(child)
}

/// The status of a job that has begun, or ended: a job that a policy holds ends without a start time when its last node goes away.
fn begun(job: &DynamicObject) -> Option<ImagePullJobStatus> {
    let status: ImagePullJobStatus = part(job, "status").ok()?;
    Some(status).filter(|status| status.start_time.or(status.completion_time).is_some())
}

fn status_of(list: &DynamicObject) -> Result<ImageListPullJobStatus, NotReadable> {
    match list.data.get("status") {
        None | Some(Value::Null) => Ok(ImageListPullJobStatus::default()),
        Some(_) => part(list, "status"),
    }
}

/// The end of a list that has ended. An edit of its time to live counts, and no other edit.
fn expiry(
    resource: ApiResource,
    list: &DynamicObject,
    spec: &ImageListPullJobSpec,
    completed: Timestamp,
    now: Timestamp,
) -> Projected {
    let ttl = spec.template.completion_policy.ttl_seconds_after_finished;
    let ttl = ttl.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
    match ttl.map(|ttl| completed.saturating_add(ttl).unwrap_or(Timestamp::MAX)) {
        Some(end) if end <= now => {
            let gone = Write::Delete(Target::of(resource, list), list.metadata.uid.clone());
            Projected { writes: vec![gone], wake: None }
        }
        wake => Projected { writes: Vec::new(), wake },
    }
}

/// The list carries the hash of its template, as upstream's does.
fn label(resource: ApiResource, list: &DynamicObject) -> Option<Write> {
    let revision = revision(list);
    let said = list.metadata.labels.as_ref().and_then(|labels| labels.get(REVISION));
    let metadata = json!({ "uid": list.metadata.uid, "labels": { REVISION: revision } });
    (said != Some(&revision)).then(|| Write::Patch(Target::of(resource, list), json!({ "metadata": metadata })))
}

/// All of a list's spec but its images, as it was written.
fn template(list: &DynamicObject) -> serde_json::Map<String, Value> {
    let mut spec = list.data.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
    spec.remove("images");
    spec
}

/// The annotations of a list that its children have too, because Stoker reads them.
fn extras(list: &DynamicObject) -> BTreeMap<String, String> {
    let all = list.metadata.annotations.iter().flatten();
    all.filter(|(name, _)| name.starts_with(Extras::PREFIX))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// The hash of a list's template, and of the annotations that go with it.
fn revision(list: &DynamicObject) -> String {
    let template = Value::Object(template(list)).to_string();
    match extras(list) {
        extras if extras.is_empty() => hash(&template, 10),
        extras => hash(&format!("{template} {}", json!(extras)), 10),
    }
}

/// A name for each image, none twice.
fn names<'a>(list: &DynamicObject, revision: &str, images: &'a [String]) -> BTreeMap<&'a str, String> {
    let uid = list.metadata.uid.as_deref().unwrap_or_default();
    // As long as an API server makes generated names.
    let prefix: String = format!("{}-", list.metadata.name.as_deref().unwrap_or_default()).chars().take(58).collect();
    let mut taken = BTreeSet::new();
    // In an order that does not depend on that of the list, so that moving an image renames nothing.
    let sorted: BTreeSet<&str> = images.iter().map(String::as_str).collect();
    let named = sorted.into_iter().filter_map(|image| {
        let mut tries =
            (0..).map(|attempt: u32| format!("{prefix}{}", hash(&format!("{uid} {revision} {image} {attempt}"), 5)));
        let name = tries.find(|name| taken.insert(name.clone()))?;
        Some((image, name))
    });
    named.collect()
}

/// So many letters and digits that depend on the whole text. No vowels: they spell no words.
pub(super) fn hash(text: &str, length: usize) -> String {
    const LETTERS: [char; 27] = [
        'b', 'c', 'd', 'f', 'g', 'h', 'j', 'k', 'l', 'm', 'n', 'p', 'q', 'r', 's', 't', 'v', 'w', 'x', 'z', '2', '4',
        '5', '6', '7', '8', '9',
    ];
    let digits = Key::of(text).to_string();
    let number = digits.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or_default();
    let letter = |left: &mut u64| {
        let at = usize::try_from(*left % 27).unwrap_or_default();
        *left /= 27;
        LETTERS.get(at).copied()
    };
    std::iter::repeat_n((), length).scan(number, |left, ()| letter(left)).collect()
}

#[cfg(test)]
mod tests;
