//! The tags that a NodeImage should have. Orders of the node that serve ImagePullJobs are shown as tags that these jobs own; tags of jobs
//! that are gone go with them, and tags whose time to live is over go too. A tag that somebody wrote by hand and that a job wants as well is
//! given one owner more besides the job, the NodeImage itself, so that it stays when the job goes.
//!
//! Which tags find room is decided in `room`, and what NodeImages without a Node get besides tags in `loans`.

mod loans;
mod room;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use stoker_core::model::{Completion, Job, JobId, Key, Phase, Policy, after};
use stoker_core::{Reference, World};

use super::Sight;
use super::people::{ended_before, has_ended, needs_time};
use super::row::{NodeImageRow, TagRow, TagSpec, is_job, seconds, text};
use crate::dialect::kruise::IMAGE_PULL_JOBS;
use crate::dialect::kruise::node_image::{ImageTagPullPolicy, TagOwner};
use crate::dialect::kruise::types::GROUP;
use crate::view::Reader;
use loans::Loans;
use room::{TagName, Tags};

/// What upstream's manager adds to the time to live of the tags of a job that ends, in seconds.
const TTL_MORE: i64 = 300;
/// And at most so much more, so that not all tags go at one time.
const TTL_SPREAD: u64 = 300;
/// The time to live of the tags of a job that does not end, and how much longer or shorter it is.
const TTL_OF_ROUNDS: (i64, u64) = (24 * 3600 - 600, 1200);
/// Tags whose time to live is over within so long go together.
const SWEPT_TOGETHER: Duration = Duration::from_secs(600);
/// Jobs that are shown as owners of a tag, at most. Jobs that have ended make room for others.
const MOST_OWNERS: usize = 16;
const ENDED_OWNERS: usize = 8;
/// What a clock may be ahead, in seconds. A time later than that was not taken from a clock.
const AHEAD: u32 = 3600;
/// A time that was given within so many seconds is not given again.
const JUST_NOW: u32 = 60;

/// What is to be changed of the spec.
#[derive(Default)]
pub(super) struct Changes {
    /// By repository, as a merge patch.
    pub(super) images: BTreeMap<String, Value>,
    /// When time alone changes something.
    pub(super) wake: Option<Timestamp>,
}

/// A tag as it should be.
struct Tag {
    /// As it is written.
    json: Value,
    changed: bool,
}

/// The repository as upstream names it, and the tag or digest.
pub(super) fn name_and_tag(reference: &Reference) -> (String, String) {
    let repository = match (reference.registry(), reference.repository()) {
        ("docker.io", repository) => repository.strip_prefix("library/").unwrap_or(repository).to_owned(),
        (registry, repository) => format!("{registry}/{repository}"),
    };
    let tag = reference.digest().or(reference.tag()).unwrap_or("latest");
    (repository, tag.to_owned())
}

/// The changes of the spec of a NodeImage. A tag that people wrote without a time is given one.
pub(super) fn changes(row: &NodeImageRow, sight: Sight<'_>, reader: &Reader<'_>) -> Changes {
    let mut tags = Tags::new();
    let mut touched: BTreeSet<String> = BTreeSet::new();
    let (mut ends, mut gone) = (Vec::new(), BTreeSet::new());
    for tag in &row.tags {
        let spec = &tag.spec;
        let expiry = expiry(row, tag).filter(|_| !is_in_use(spec, sight.world));
        if expiry.is_some_and(|end| end <= sight.now) {
            touched.insert(spec.image.clone());
            gone.insert((spec.image.clone(), spec.tag.clone()));
            continue;
        }
        ends.extend(expiry);
        match kept(row, tag, sight, reader) {
            Some(kept) => {
                if kept.changed {
                    touched.insert(spec.image.clone());
                }
                tags.insert((spec.image.clone(), spec.tag.clone()), kept);
            }
            None => {
                touched.insert(spec.image.clone());
            }
        }
    }
    let (mut missing, mut loans) = (Vec::new(), Loans::default());
    let orders = sight.world.orders(sight.node).unwrap_or_default();
    for (key, order) in &orders {
        let Ok(reference) = order.image.parse::<Reference>() else { continue };
        // What a question was asked for is told by the pull that follows it.
        if order.ask.is_question() && orders.contains_key(&reference.key()) {
            continue;
        }
        let name = name_and_tag(&reference);
        for id in order.jobs.iter().filter(|id| is_image_pull_job(id)) {
            let Some(job) = sight.world.job(id).filter(|job| is_shown(job, *key, &name, sight)) else { continue };
            let asked = u32::try_from(order.asked.as_second()).unwrap_or_default();
            let wanted = Wanted { row, job, asked, policy: order.terms.pull.policy, name: name.clone() };
            match tags.get_mut(&name) {
                Some(tag) => {
                    wanted.join(tag);
                    loans.add(&wanted);
                    touched.extend(tag.changed.then(|| name.0.clone()));
                }
                None => missing.push((*key, wanted)),
            }
        }
    }
    // Jobs that have ended take what room is left.
    missing.sort_by_key(|(_, wanted)| wanted.job.ended.is_some());
    for (key, wanted) in missing {
        let name = &wanted.name;
        // Another job has wanted it, too.
        if let Some(tag) = tags.get_mut(name) {
            wanted.join(tag);
            loans.add(&wanted);
            continue;
        }
        // The order of a tag that has just gone stays until the next write to its node.
        if gone.contains(name) || is_over(sight, key, wanted.job) {
            continue;
        }
        let Some(replaced) = room::make(row, &mut tags, &wanted, sight.world) else { continue };
        touched.extend(replaced.iter().map(|(image, _)| image.clone()).chain([name.0.clone()]));
        gone.extend(replaced);
        tags.insert(name.clone(), wanted.tag());
        loans.add(&wanted);
    }
    touched.extend(loans.images().cloned());
    let images = touched.into_iter().map(|image| {
        let entries: Vec<&Value> = tags.iter().filter(|((of, _), _)| *of == image).map(|(_, tag)| &tag.json).collect();
        if entries.is_empty() {
            let patch = loans::without_tags(row, &image);
            return (image, patch);
        }
        let mut patch = json!({ "tags": entries });
        loans.write(&image, &mut patch);
        (image, patch)
    });
    // Those that end soon after the first go along with it.
    ends.sort_unstable();
    let first = ends.first().map(|end| after(*end, SWEPT_TOGETHER));
    let wake = ends.iter().copied().filter(|end| first.is_some_and(|first| *end <= first)).max();
    Changes { images: images.collect(), wake }
}

/// The owners of a tag.
fn owners(tag: &Value) -> &[Value] {
    tag.get("ownerReferences").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn parsed(owner: &Value) -> TagOwner {
    serde_json::from_value(owner.clone()).unwrap_or_default()
}

/// The version after one that a status or a spec names, whatever that is.
fn version_after(version: i64) -> i64 {
    version.max(0).checked_add(1).unwrap_or(1)
}

/// A tag that is there, as it should be; none where it should not be there.
fn kept(row: &NodeImageRow, tag: &TagRow, sight: Sight<'_>, reader: &Reader<'_>) -> Option<Tag> {
    let mut present = Tag { json: tag.json(), changed: false };
    if needs_time(row, tag)
        && let (Some(fields), Ok(now)) = (present.json.as_object_mut(), u32::try_from(sight.now.as_second()))
    {
        // Later than the end of the version before, whatever the clock says.
        let ended = ended_before(row, tag).unwrap_or_default();
        let is_absurd = is_ahead(ended, sight.now);
        // What the status says of an absurd time is removed next (`said.rs`), so a time that was given now is enough.
        if !is_absurd || tag.created.saturating_add(JUST_NOW) < now || tag.created > now.saturating_add(AHEAD) {
            let time = if is_absurd { now } else { now.max(ended.saturating_add(1)) };
            fields.insert("createdAt".into(), json!(text(time)));
            present.changed = true;
        }
    }
    if tag.spec.jobs.is_empty() || !reader.is_listed(&IMAGE_PULL_JOBS.kind) {
        return Some(present);
    }
    let ended = row.has_ended(tag);
    let stays = |owner: &Value| {
        let parsed = parsed(owner);
        !is_job(&parsed) || is_there(&parsed, reader) && (ended || is_wanted(&parsed, tag, sight))
    };
    let all = owners(&present.json).len();
    let mut left: Vec<Value> = owners(&present.json).iter().filter(|owner| stays(owner)).cloned().collect();
    let mut too_many = left.len().saturating_sub(ENDED_OWNERS);
    left.retain(|owner| {
        let parsed = parsed(owner);
        let goes = too_many > 0 && is_job(&parsed) && has_ended_job(&parsed, sight.world);
        too_many -= usize::from(goes);
        !goes
    });
    if left.len() == all {
        return Some(present);
    }
    if left.is_empty() {
        return None;
    }
    if let Some(fields) = present.json.as_object_mut() {
        fields.insert("ownerReferences".into(), Value::Array(left));
    }
    Some(Tag { changed: true, ..present })
}

/// Whether the job of an owner has ended.
fn has_ended_job(owner: &TagOwner, world: &World) -> bool {
    world.job(&id_of(owner)).is_some_and(|job| job.ended.is_some())
}

/// Whether a time is later than a clock can be.
pub(super) fn is_ahead(seconds: u32, now: Timestamp) -> bool {
    i64::from(seconds) > now.as_second().saturating_add(i64::from(AHEAD))
}

/// Whether the ImagePullJob that owns a tag is there, and not another one of its name.
fn is_there(owner: &TagOwner, reader: &Reader<'_>) -> bool {
    let name = (owner.namespace.clone().unwrap_or_default(), owner.name.clone().unwrap_or_default());
    reader.peek(&IMAGE_PULL_JOBS.kind, &name).is_some_and(|job| {
        let same = owner.uid.is_none() || owner.uid == job.metadata.uid;
        same && job.metadata.deletion_timestamp.is_none()
    })
}

/// Whether a job that runs still wants the image on this node; of one that has ended that is not known any more.
fn is_wanted(owner: &TagOwner, tag: &TagRow, sight: Sight<'_>) -> bool {
    let job = sight.world.job(&id_of(owner)).filter(|job| job.ended.is_none());
    job.is_none_or(|job| wants(job, &(tag.spec.image.clone(), tag.spec.tag.clone()), sight))
}

/// Whether a job that runs wants this image on this node.
fn wants(job: &Job, name: &(String, String), sight: Sight<'_>) -> bool {
    let mut references = job.images.iter().filter_map(|image| image.reference.as_ref().ok());
    let is_image = references.any(|reference| name_and_tag(reference) == *name);
    let is_known = sight.world.waits_for_sight(&job.id).is_none() && !sight.world.is_frozen(&job.id);
    is_image && (!is_known || sight.world.seat_of(&job.id, sight.node, sight.now).is_some())
}

/// Whether the order under this key is shown as a tag of a job that it names. An answered order stays until the next write to its node. By then
/// the job may want other nodes, or may have ended without an answer that is about the image itself.
fn is_shown(job: &Job, key: Key, name: &(String, String), sight: Sight<'_>) -> bool {
    let report = || sight.world.report(sight.node, key);
    match job.ended {
        Some(_) => report().is_some_and(|report| matches!(report.phase, Phase::Succeeded | Phase::Failed)),
        None => wants(job, name, sight),
    }
}

/// The job of an owner.
pub(super) fn id_of(owner: &TagOwner) -> JobId {
    let [namespace, name] = [&owner.namespace, &owner.name].map(|text| text.as_deref().unwrap_or_default());
    IMAGE_PULL_JOBS.job_id(namespace, name)
}

fn is_image_pull_job(id: &JobId) -> bool {
    (id.group(), id.kind()) == (GROUP, IMAGE_PULL_JOBS.kind.name)
}

/// When a tag goes: its time to live after its end.
fn expiry(row: &NodeImageRow, tag: &TagRow) -> Option<Timestamp> {
    let status = row.status(tag).filter(has_ended)?;
    let completed = seconds(status.completion_time.as_deref());
    let ttl = tag.spec.parsed().pull_policy?.ttl_seconds_after_finished?;
    let completed = Timestamp::from_second(i64::from(completed)).ok().filter(|_| completed != 0)?;
    Some(after(completed, Duration::from_secs(u64::try_from(ttl).unwrap_or(0))))
}

/// Whether a job that has not ended wants a tag. Of a node without an agent of ours the tag is all that says that it is done.
fn is_in_use(spec: &TagSpec, world: &World) -> bool {
    spec.jobs.iter().any(|(namespace, name)| {
        let job = world.job(&IMAGE_PULL_JOBS.job_id(namespace, name));
        job.is_some_and(|job| job.ended.is_none())
    })
}

/// Whether an order was answered so long ago that its tag has gone: an order that is done stays until the next write to its node.
fn is_over(sight: Sight<'_>, key: Key, job: &Job) -> bool {
    let ttl = Duration::from_secs(u64::try_from(time_to_live(job)).unwrap_or(0));
    let report = sight.world.report(sight.node, key).filter(|report| report.ended());
    let end = report.and_then(|report| Timestamp::from_second(report.finished?.as_second()).ok());
    let end = end.map(|finished| after(finished, ttl));
    end.is_some_and(|end| end <= sight.now) && !matches!(job.completion, Completion::Continuous { .. })
}

/// How long a tag of this job stays after its end, in seconds, as upstream's manager has it. What is random there depends on the job here.
fn time_to_live(job: &Job) -> i64 {
    let drawn = |most: u64| {
        let hash = Key::of(&job.uid).to_string();
        let draw = hash.get(..8).and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or_default() % most.max(1);
        i64::try_from(draw).unwrap_or_default()
    };
    let whole = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::from(i32::MAX));
    let ttl = match &job.completion {
        Completion::Once { deadline, ttl } => {
            let work = job.pull.timeout.saturating_mul(job.pull.retries);
            whole(ttl.or(*deadline).unwrap_or(work)).saturating_add(TTL_MORE).saturating_add(drawn(TTL_SPREAD))
        }
        Completion::Continuous { .. } | Completion::Standing => TTL_OF_ROUNDS.0 + drawn(TTL_OF_ROUNDS.1),
    };
    ttl.clamp(0, i64::from(i32::MAX))
}

/// A tag that an ImagePullJob wants.
struct Wanted<'a> {
    row: &'a NodeImageRow,
    job: &'a Job,
    /// When it was asked for, in seconds.
    asked: u32,
    /// Of the order, which serves all jobs that it names. A controller that starts reads the order of a NodeImage without a Node from the tag.
    policy: Policy,
    name: TagName,
}

impl Wanted<'_> {
    fn owner(&self) -> Value {
        json!({
            "apiVersion": super::resource(self.row.is_older).api_version,
            "kind": IMAGE_PULL_JOBS.kind.name,
            "namespace": self.job.id.namespace(),
            "name": self.job.id.name(),
            "uid": self.job.uid,
        })
    }

    fn policy(&self) -> &'static str {
        match self.policy {
            Policy::IfNotPresent => "IfNotPresent",
            _ => "Always",
        }
    }

    /// The tag of a job where there is none yet.
    fn tag(&self) -> Tag {
        let (image, tag) = &self.name;
        let pull = &self.job.pull;
        let deadline = match &self.job.completion {
            Completion::Once { deadline, .. } => *deadline,
            Completion::Continuous { .. } | Completion::Standing => Some(pull.timeout.max(Duration::from_secs(1800))),
        };
        let policy = ImageTagPullPolicy {
            timeout_seconds: Some(i32::try_from(pull.timeout.as_secs()).unwrap_or(i32::MAX)),
            backoff_limit: Some(i32::try_from(pull.retries).unwrap_or(i32::MAX)),
            ttl_seconds_after_finished: Some(i32::try_from(time_to_live(self.job)).unwrap_or(i32::MAX)),
            active_deadline_seconds: deadline.map(|time| i64::try_from(time.as_secs()).unwrap_or(i64::MAX)),
        };
        let mut json = json!({
            "tag": tag,
            "createdAt": text(self.asked),
            "pullPolicy": policy,
            "ownerReferences": [self.owner()],
            "imagePullPolicy": self.policy(),
        });
        // What the status says of an earlier one of this name would otherwise be taken for its own.
        let before = self.row.versions(image, tag).max().map(version_after);
        if let (Some(version), Some(fields)) = (before, json.as_object_mut()) {
            fields.insert("version".into(), version.into());
        }
        Tag { json, changed: true }
    }

    /// Lets a tag that is there serve the job, too. A version that has ended before the job asked is pulled again.
    fn join(&self, tag: &mut Tag) {
        let Some(fields) = tag.json.as_object_mut() else { return };
        let mut owners = fields.get("ownerReferences").and_then(Value::as_array).cloned().unwrap_or_default();
        let parsed: Vec<TagOwner> = owners.iter().map(parsed).collect();
        let is_own = |owner: &TagOwner| {
            let uid = owner.uid.as_deref();
            is_job(owner) && id_of(owner) == self.job.id && (uid.is_none() || uid == Some(self.job.uid.as_str()))
        };
        let most = if self.job.ended.is_some() { ENDED_OWNERS } else { MOST_OWNERS };
        // The mark of a tag that people wrote may come along.
        if !parsed.iter().any(is_own) && owners.len() + 1 < most {
            let is_peoples = !parsed.iter().any(is_job);
            let is_kept = parsed.iter().any(|owner| !is_job(owner));
            owners.push(self.owner());
            if is_peoples && !is_kept {
                let itself = super::resource(self.row.is_older);
                owners.push(json!({ "apiVersion": itself.api_version, "kind": itself.kind, "uid": *self.row.uid }));
            }
            fields.insert("ownerReferences".into(), Value::Array(owners));
            tag.changed = true;
        }
        let Some(own) = self.row.tag(&self.name.0, &self.name.1) else { return };
        let is_fake = self.row.fake.is_some();
        // In a status that this controller writes, a pull began when it was asked for. Whoever plays the agent of a NodeImage without a Node writes
        // when the pull really began. That may be after a second ask, which the pull does not answer (`fake.rs`).
        let answered = if is_fake { own.created } else { own.created.max(self.row.began(own)) };
        // A time that somebody wrote there is not when this node was asked, and no answer would count.
        let is_ahead = is_fake && own.created > self.asked;
        if is_ahead || self.row.has_ended(own) && self.asked > answered {
            let version = version_after(own.version);
            fields.insert("version".into(), version.into());
            fields.insert("createdAt".into(), json!(text(self.asked)));
            // People's own terms stay as they wrote them.
            if parsed.iter().all(is_job) && !parsed.is_empty() {
                fields.insert("imagePullPolicy".into(), self.policy().into());
            }
            tag.changed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_has_one_after_it_that_a_schema_allows() {
        for (version, next) in [(0, 1), (5, 6), (-5, 1), (i64::MIN, 1), (i64::MAX, 1)] {
            assert_eq!(version_after(version), next, "{version}");
        }
    }
}
