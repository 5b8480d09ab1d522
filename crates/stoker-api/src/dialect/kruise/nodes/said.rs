//! The status of a NodeImage: what came of its tags, from the reports of its node. A version that has ended stays as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use kube_core::dynamic::DynamicObject;
use serde_json::{Map, Value, json};
use stoker_core::model::{JobId, Phase, Report, after};
use stoker_core::world::NodeState;
use stoker_core::{Reference, Waiting, text};

use super::people::{self, has_ended};
use super::row::{COUNTS, Counts, NodeImageRow, OtherStatus, TagRow, TagSpec, seconds};
use super::tags::{is_ahead, name_and_tag};
use super::{NODE_IMAGES, Sight, resource};
use crate::dialect::kruise::node_image::ImageTagStatus;
use crate::dialect::kruise::{IMAGE_PULL_JOBS, from_core::whole_seconds};
use crate::events;
use crate::view::Reader;
use crate::write::Write;

/// Upstream's manager fails a tag of which nothing is said for ten minutes: something is said by then.
const SILENT_FOR: Duration = Duration::from_secs(240);

/// What is to be said.
#[derive(Default)]
pub(super) struct News {
    /// The change of the status, as a merge patch.
    pub(super) status: Option<Value>,
    /// Events about it.
    pub(super) events: Vec<Write>,
    /// When time alone changes something.
    pub(super) wake: Option<Timestamp>,
}

/// The change of the status of a NodeImage whose spec is as it should be.
pub(super) fn status(row: &NodeImageRow, sight: Sight<'_>, reader: &Reader<'_>) -> News {
    let mut news = News::default();
    let mut changed: BTreeMap<(&str, &str), ImageTagStatus> = BTreeMap::new();
    let mut counts: Counts = [i32::try_from(row.tags.len()).unwrap_or(i32::MAX), 0, 0, 0, 0];
    for tag in &row.tags {
        let before = row.status(tag);
        let now = match &before {
            Some(before) if has_ended(before) => None,
            _ => {
                let (said, wake) = said_of(row, tag, before.as_ref(), sight, reader);
                news.wake = news.wake.into_iter().chain(wake).min();
                said.filter(|said| before.as_ref() != Some(said))
            }
        };
        let phase = now.as_ref().or(before.as_ref()).map(|status| status.phase.as_str());
        let at = match phase {
            Some("Succeeded") => 1,
            Some("Failed") => 2,
            Some("Pulling") => 3,
            _ => 4,
        };
        if let Some(count) = counts.get_mut(at) {
            *count += 1;
        }
        if let Some(now) = now {
            news.events.extend(event(row, tag, &now, sight));
            changed.insert((&tag.spec.image, &tag.spec.tag), now);
        }
    }
    let removed = row.counts.is_some_and(|[desired, ..]| desired > counts[0]);
    // Upstream's manager counts tags, too, and leaves what was said of those that are gone.
    let removed = removed || row.others.iter().any(|other| is_left(row, other, sight.now));
    if changed.is_empty() && !removed {
        return news;
    }
    let images = images(row, &changed, sight.now);
    let mut status: Map<String, Value> =
        COUNTS.iter().zip(counts).map(|(field, count)| ((*field).to_owned(), count.into())).collect();
    if !images.is_empty() {
        status.insert("imageStatuses".into(), Value::Object(images));
    }
    news.status = Some(Value::Object(status));
    news
}

/// The lists that are written again: those of changed tags, and those with entries of tags that are not there any more.
fn images(row: &NodeImageRow, changed: &BTreeMap<(&str, &str), ImageTagStatus>, now: Timestamp) -> Map<String, Value> {
    let is_left = |other: &OtherStatus| is_left(row, other, now);
    let named: BTreeSet<&str> = changed
        .keys()
        .map(|(image, _)| *image)
        .chain(row.others.iter().filter(|o| is_left(o)).map(|o| &*o.image))
        .collect();
    let list = |image: &str| {
        let mut entries: Vec<(String, Value)> = Vec::new();
        for tag in row.of_image(image) {
            let new = changed.get(&(image, tag.spec.tag.as_str()));
            // What was kept as text is among the others.
            let kept = || tag.said_here().then(|| row.status(tag)).flatten();
            let entry = new.cloned().or_else(kept).and_then(|entry| serde_json::to_value(entry).ok());
            entries.extend(entry.map(|entry| (tag.spec.tag.clone(), entry)));
        }
        let others = row.others.iter().filter(|other| *other.image == *image && !is_left(other));
        let others = others.filter(|other| !changed.contains_key(&(image, &other.tag)));
        entries.extend(others.map(|other| (other.tag.to_string(), other.json())));
        entries.sort_by(|one, other| one.0.cmp(&other.0));
        entries.into_iter().map(|(_, entry)| entry).collect::<Vec<Value>>()
    };
    let lists = named.into_iter().map(|image| {
        let entries = list(image);
        (image.to_owned(), if entries.is_empty() { Value::Null } else { json!({ "tags": entries }) })
    });
    lists.collect()
}

/// Whether an entry of the status is about a tag that is gone. Such entries go, as upstream's daemon does it. An entry that waits in a version that
/// no tag can have is somebody else's. An entry of another version that ended in the far future goes, too: no version after it could begin.
fn is_left(row: &NodeImageRow, other: &OtherStatus, now: Timestamp) -> bool {
    let entry = other.parsed();
    if let Some(tag) = row.tag(&other.image, &other.tag) {
        let is_before = has_ended(&entry) && entry.version.unwrap_or_default() != tag.version;
        return is_before && is_ahead(seconds(entry.completion_time.as_deref()), now);
    }
    has_ended(&entry) || entry.phase == "Pulling" || entry.phase == "Waiting" && entry.version.unwrap_or_default() >= 0
}

/// What there is to say of a tag that has not ended, and when time alone changes that.
fn said_of(
    row: &NodeImageRow,
    tag: &TagRow,
    before: Option<&ImageTagStatus>,
    sight: Sight<'_>,
    reader: &Reader<'_>,
) -> (Option<ImageTagStatus>, Option<Timestamp>) {
    let spec = &*tag.spec;
    let is_peoples = spec.is_peoples(sight.half);
    // The time of a job's tag was written together with its version.
    let own = people::since(row, tag);
    let of_jobs = Timestamp::from_second(i64::from(tag.created)).ok().filter(|_| tag.created != 0).unwrap_or(own);
    let since = if is_peoples { own } else { of_jobs };
    let reference = match spec.written().parse::<Reference>() {
        Ok(reference) => reference,
        Err(problem) => return (Some(failed(tag, None, problem.to_string(), sight.now)), None),
    };
    let deadline = spec.parsed().pull_policy.and_then(|policy| policy.active_deadline_seconds);
    let deadline = deadline.filter(|_| is_peoples && !sight.half);
    let deadline = deadline.map(|seconds| after(since, Duration::from_secs(u64::try_from(seconds).unwrap_or(0))));
    let mut jobs: Vec<(JobId, Timestamp)> = Vec::new();
    if !sight.half {
        let of = |(namespace, name): &(String, String)| IMAGE_PULL_JOBS.job_id(namespace, name);
        jobs.extend(spec.jobs.iter().map(|name| (of(name), of_jobs)));
    }
    if is_peoples {
        jobs.push((people::job_id(&spec.group), own));
    }
    // When all jobs of a tag have ended, no more reports about it come: it shows how these jobs have ended.
    let over = jobs.iter().all(|(id, _)| sight.world.job(id).is_some_and(|job| job.ended.is_some()));
    let found = jobs.iter().filter_map(|(id, since)| found(id, &reference, (*since, over), sight, reader));
    let found: Vec<Found<'_>> = found.collect();
    let best = found.iter().min_by_key(|found| found.rank());
    let pinned = || {
        let order = sight.world.order(sight.node, reference.key()).filter(|_| is_peoples)?;
        order.pin().map(|pin| pin.asked)
    };
    let said = match best {
        Some(Found::At(report)) => Some(at_work(tag, report, pinned())),
        Some(Found::Done(report)) => Some(succeeded(tag, *report, pinned(), sight.now)),
        Some(Found::Failed(report, why)) => Some(failed(tag, *report, why.clone(), sight.now)),
        Some(Found::Ended(false)) => Some(succeeded(tag, None, None, sight.now)),
        Some(Found::Ended(true)) => {
            Some(failed(tag, None, "the node has failed in a job that has ended".into(), sight.now))
        }
        Some(Found::Waits(_)) | None => None,
    };
    if said.is_some() {
        return (said, None);
    }
    if deadline.is_some_and(|deadline| deadline <= sight.now) {
        return (Some(failed(tag, None, "pulling exceeds the activeDeadlineSeconds".into(), sight.now)), None);
    }
    let waits = after(since, SILENT_FOR);
    match before {
        None if waits <= sight.now => {
            let why = best.map(|found| match found {
                Found::Waits(why) => why.clone(),
                _ => String::new(),
            });
            let message = why.filter(|why| !why.is_empty());
            (Some(ImageTagStatus { phase: "Waiting".into(), message, ..entry(tag) }), deadline)
        }
        None => (None, Some(waits).into_iter().chain(deadline).min()),
        Some(_) => (None, deadline),
    }
}

/// What is known of a job on the node.
enum Found<'a> {
    At(&'a Report),
    Done(Option<&'a Report>),
    Failed(Option<&'a Report>, String),
    Waits(String),
    /// It has ended, and nothing but its own status says how: whether the node has failed.
    Ended(bool),
}

impl Found<'_> {
    /// A pull that goes on counts more than one that has ended, and one that has succeeded more than one that has failed.
    fn rank(&self) -> u8 {
        match self {
            Found::At(_) => 0,
            Found::Done(_) => 1,
            Found::Failed(..) => 2,
            Found::Waits(_) => 3,
            Found::Ended(_) => 4,
        }
    }
}

fn found<'a>(
    id: &JobId,
    reference: &Reference,
    (since, over): (Timestamp, bool),
    sight: Sight<'a>,
    reader: &Reader<'_>,
) -> Option<Found<'a>> {
    let job = sight.world.job(id)?;
    // A tag has no room for both a tag and a digest, which a job may name.
    let name = name_and_tag(reference);
    let mut own = job.images.iter().filter_map(|image| image.reference.as_ref().ok());
    let key = own.find(|own| name_and_tag(own) == name).unwrap_or(reference).key();
    let counts = |report: &&Report| report.asked >= since;
    if job.ended.is_some() {
        // Its seats are forgotten, and its orders may be: whoever hears of its end first has not shown the last nodes yet.
        let reports = [key, key.question()].into_iter().filter_map(|key| sight.world.report(sight.node, key));
        let mut reports = reports.filter(counts);
        if let Some(report) = reports.find(|report| matches!(report.phase, Phase::Succeeded | Phase::Failed)) {
            return Some(match report.phase {
                Phase::Failed => Found::Failed(Some(report), report.message.clone()),
                _ => Found::Done(Some(report)),
            });
        }
        let name = (id.namespace().to_owned(), id.name().to_owned());
        // A tag with a later time than the end of this job waits for another job. Where there is no other job, the clock was set back.
        let counts = over || job.ended.is_some_and(|end| since <= end);
        let object = reader.peek(&IMAGE_PULL_JOBS.kind, &name).filter(|_| counts)?;
        return Some(Found::Ended(failed_there(object, sight.node)));
    }
    let view = sight.world.seat_of(id, sight.node, sight.now)?;
    let report = view.images.iter().find_map(|(_, report)| *report).filter(counts);
    Some(match view.state {
        NodeState::Succeeded => Found::Done(report),
        NodeState::Failed(_, why) => Found::Failed(report, why),
        NodeState::Pulling => match report.filter(|report| report.phase == Phase::Pulling) {
            Some(report) => Found::At(report),
            None => Found::Waits(String::new()),
        },
        // That its turn comes at once is nothing to say.
        NodeState::Waiting(Waiting::Pending) => Found::Waits(String::new()),
        NodeState::Waiting(waiting) => Found::Waits(waiting.to_string()),
    })
}

/// Whether the status of a job that has ended counts this node as failed.
fn failed_there(job: &DynamicObject, node: &str) -> bool {
    let failed = job.data.pointer("/status/failedNodes").and_then(Value::as_array).into_iter().flatten();
    failed.into_iter().any(|name| name == node)
}

fn entry(tag: &TagRow) -> ImageTagStatus {
    let version = Some(tag.version).filter(|version| *version != 0);
    ImageTagStatus { tag: tag.spec.tag.clone(), version, ..ImageTagStatus::default() }
}

/// The same with what a report says. It began when it was asked for, or when the digest was that it pulls: answers count from then on, see
/// [`people::since`].
fn reported(tag: &TagRow, report: Option<&Report>, pinned: Option<Timestamp>) -> ImageTagStatus {
    let started = report.map(|report| whole_seconds(pinned.map_or(report.asked, |pinned| pinned.min(report.asked))));
    let started = started.map(|started| started.to_string());
    ImageTagStatus { start_time: started, ..entry(tag) }
}

fn at_work(tag: &TagRow, report: &Report, pinned: Option<Timestamp>) -> ImageTagStatus {
    let message = Some(text::message(&report.message)).filter(|message| !message.is_empty());
    let progress = Some(percent(report).min(99));
    ImageTagStatus { phase: "Pulling".into(), progress, message, ..reported(tag, Some(report), pinned) }
}

fn succeeded(tag: &TagRow, report: Option<&Report>, pinned: Option<Timestamp>, now: Timestamp) -> ImageTagStatus {
    let digest = report.and_then(|report| report.digest.as_deref());
    ImageTagStatus {
        phase: "Succeeded".into(),
        progress: Some(100),
        completion_time: Some(ended(report, now)),
        image_id: digest.map(|digest| format!("{}@{digest}", tag.spec.image)),
        ..reported(tag, report, pinned)
    }
}

fn failed(tag: &TagRow, report: Option<&Report>, why: String, now: Timestamp) -> ImageTagStatus {
    ImageTagStatus {
        phase: "Failed".into(),
        progress: report.map(|report| percent(report).min(99)),
        completion_time: Some(ended(report, now)),
        message: Some(text::message(&why)).filter(|message| !message.is_empty()),
        ..reported(tag, report, None)
    }
}

/// When it ended. The clock of a node may be wrong: what it says counts between the ask and now.
fn ended(report: Option<&Report>, now: Timestamp) -> String {
    let said = report.and_then(|report| report.finished.filter(|at| (report.asked..=now).contains(at)));
    whole_seconds(said.unwrap_or(now)).to_string()
}

fn percent(report: &Report) -> i32 {
    let done = u128::from(report.bytes.done.min(report.bytes.total)) * 100;
    done.checked_div(u128::from(report.bytes.total)).and_then(|percent| i32::try_from(percent).ok()).unwrap_or(0)
}

/// What upstream's daemon says of a tag that has ended. Of tags of jobs their jobs tell.
fn event(row: &NodeImageRow, tag: &TagRow, status: &ImageTagStatus, sight: Sight<'_>) -> Option<Write> {
    if !tag.spec.is_peoples(sight.half) || !has_ended(status) {
        return None;
    }
    let TagSpec { image, tag: name, .. } = &*tag.spec;
    let mut object = DynamicObject::new(sight.node, &resource(row.is_older));
    object.metadata.uid = Some(row.uid.to_string());
    object.metadata.resource_version = Some(row.version.to_string());
    let (reason, good, message) = match status.phase.as_str() {
        "Succeeded" => {
            let time = |text: &Option<String>| text.as_ref().and_then(|text| text.parse::<Timestamp>().ok());
            let times = time(&status.start_time).zip(time(&status.completion_time));
            let took = times.map_or(0, |(from, to)| to.as_second().saturating_sub(from.as_second()).max(0));
            // As upstream writes it.
            ("PullImageSucceed", true, format!("Image {image}:{name}, ecalpsedTime {took}s"))
        }
        _ => {
            let why = status.message.as_deref().unwrap_or_default();
            ("PullImageFailed", false, format!("Image {image}:{name} {why}"))
        }
    };
    Some(events::event(&NODE_IMAGES, &object, reason, good, &message, sight.now))
}
