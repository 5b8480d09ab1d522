//! Tags that people wrote into NodeImages: from the same tag on some nodes to one job, in which each node counts from its own time. The
//! NodeImages are its memory: a node whose status says how a version has ended is none of its nodes any more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube_core::dynamic::DynamicObject;
use stoker_core::model::{Completion, Empty, Job, JobId, NodeName, Policy, Pull, SecretId, Unreachable, Words};
use stoker_core::select::Selector;

use super::row::{NodeImageRow, TagRow, TagSpec, seconds};
use crate::dialect::kruise::node_image::ImageTagStatus;
use crate::dialect::kruise::to_core::PULLED_BY;
use crate::dialect::kruise::types::GROUP;
use crate::image;
use crate::native::to_core;
use crate::view::{Derived, Reader, Root};

/// How people who write NodeImages call things.
const WORDS: Words = Words { resume: "raise the version of the tag", secrets: "pullSecrets", orders: "NodePreheat" };

/// What upstream's webhook sets where nothing is given.
const TIMEOUT: i32 = 600;
const RETRIES: u32 = 3;

/// The job of a group of tags.
pub(super) fn job_id(group: &str) -> JobId {
    JobId::new((GROUP, "NodeImage"), "", group)
}

/// The job that the nodes with this wish make together; none where all of them have it, or have given it up.
pub(super) fn derive(root: &Root, reader: &mut Reader<'_>) -> Derived {
    let half = reader.is_half();
    let mut names: BTreeMap<NodeName, Timestamp> = BTreeMap::new();
    let mut wish: Option<Arc<TagSpec>> = None;
    for (node, row) in reader.naming(&root.name) {
        for tag in row.of_group(&root.name).filter(|tag| is_wish(row, tag, half)) {
            names.insert(node.into(), since(row, tag));
            wish.get_or_insert_with(|| tag.spec.clone());
        }
    }
    Ok(wish.map(|wish| job(&root.name, &wish, names)).into_iter().collect())
}

/// The tags of a NodeImage that people wrote and that have not ended.
pub(super) fn wishes(row: &NodeImageRow, half: bool) -> impl Iterator<Item = &TagRow> {
    row.tags.iter().filter(move |tag| is_wish(row, tag, half))
}

/// Whether people wrote this tag, and it has not ended.
fn is_wish(row: &NodeImageRow, tag: &TagRow, half: bool) -> bool {
    // Whoever made one without a Node pulls for it.
    let is_served = !row.going && row.fake.is_none();
    // One without a time is given one first, see [`super::tags`].
    is_served && tag.spec.is_peoples(half) && !row.has_ended(tag) && (half || !needs_time(row, tag))
}

/// Whether a tag that people wrote is to be given a time: answers from before it was written do not count. Upstream's webhook gives one to
/// tags that have none, and upstream's manager a new one to versions that it raises.
pub(super) fn needs_time(row: &NodeImageRow, tag: &TagRow) -> bool {
    let is_open = || row.fake.is_none() && !row.has_ended(tag) && row.began(tag) == 0;
    let is_new = || tag.created == 0 && tag.lacks_time();
    let is_raised = || tag.created != 0 && ended_before(row, tag).is_some_and(|ended| tag.created <= ended);
    tag.spec.is_peoples(false) && (is_new() || is_raised()) && is_open()
}

/// When the version of a tag before this one ended, in seconds.
pub(super) fn ended_before(row: &NodeImageRow, tag: &TagRow) -> Option<u32> {
    let status = row.stale(&tag.spec.image, &tag.spec.tag, Some(tag.version)).filter(has_ended)?;
    Some(seconds(status.completion_time.as_deref())).filter(|ended| *ended != 0)
}

fn job(group: &str, wish: &TagSpec, names: BTreeMap<NodeName, Timestamp>) -> Job {
    let tag = wish.parsed();
    let policy = tag.pull_policy.unwrap_or_default();
    let secrets = wish.secrets.iter().filter(|secret| !secret.name.is_empty());
    let secrets = secrets.map(|secret| SecretId::new(&secret.namespace, &secret.name)).collect();
    // One that is too large for an order is left out: there is no place to say so.
    let nameless = DynamicObject::new("", &super::resource(false));
    let sandbox = to_core::sandbox(&nameless, "sandboxConfig", wish.sandbox().unwrap_or_default());
    let mut sandbox = sandbox.unwrap_or_default();
    sandbox.annotations.insert(PULLED_BY.0.into(), PULLED_BY.1.into());
    Job {
        id: job_id(group),
        uid: group.into(),
        generation: 0,
        // Its nodes have times of their own.
        created: Timestamp::UNIX_EPOCH,
        images: image::images([(wish.written().as_str(), secrets)].into_iter()),
        names: Some(Arc::new(names)),
        pick: None,
        selector: Selector::default(),
        foreign_nodes: false,
        // Everybody asks for one node alone.
        parallelism: u32::MAX,
        percent: false,
        tolerance: None,
        unseen: None,
        pull: Pull {
            policy: match tag.image_pull_policy.as_deref() {
                Some("IfNotPresent") => Policy::IfNotPresent,
                _ => Policy::Always,
            },
            timeout: Duration::from_secs(u64::try_from(policy.timeout_seconds.unwrap_or(TIMEOUT)).unwrap_or(0).max(1)),
            retries: policy.backoff_limit.map_or(RETRIES, |limit| u32::try_from(limit).unwrap_or(RETRIES)),
            bandwidth: None,
            priority: 0,
            sandbox,
            source: Default::default(),
            upstream_copies: None,
        },
        completion: Completion::Standing,
        suspend: false,
        words: &WORDS,
        unreachable: Unreachable::GiveUp,
        bounds: Default::default(),
        empty: Empty::Completes,
        started: None,
        ended: None,
        unreadable: None,
    }
}

/// From when on answers about this version of a tag count. Where its time cannot be read that is when its pull began, or when the NodeImage was
/// made. A version that was raised counts from after the end of the one before.
pub(super) fn since(row: &NodeImageRow, tag: &TagRow) -> Timestamp {
    let began = row.began(tag);
    let given = [tag.created, began, row.made].into_iter().find(|time| *time != 0).unwrap_or_default();
    let before = row.stale(&tag.spec.image, &tag.spec.tag, Some(tag.version)).map_or(0, |status| {
        let [began, ended] = [status.start_time, status.completion_time].map(|time| seconds(time.as_deref()));
        // A time that was given after that one had begun is the time of this version.
        let is_own = tag.created > if began == 0 { ended } else { began };
        let last = began.max(ended);
        if last == 0 || is_own { 0 } else { last.saturating_add(1) }
    });
    Timestamp::from_second(i64::from(given.max(began).max(before))).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Whether a status says that a pull is over.
pub(super) fn has_ended(status: &ImageTagStatus) -> bool {
    matches!(status.phase.as_str(), "Succeeded" | "Failed")
}
