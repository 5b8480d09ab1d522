//! What is said of images on a node: the status of a NodeImageSet, and the Events about it, in upstream's words.

use jiff::Timestamp;
use kube_core::dynamic::DynamicObject;
use stoker_core::model::{Ask, Job, JobId, Order, Phase, Report};
use stoker_core::reason::Waiting;
use stoker_core::world::{NodeState, NodeView};
use stoker_core::{Reason, Reference, World, text};

use super::{ContainerImageStatus, NODE_IMAGE_SETS, NodeImageSetStatus, RegistryPolicy};
use crate::events;
use crate::native::Condition;
use crate::write::Write;

const WAITING: &str = "WaitingForImageDownload";
const IN_PROGRESS: &str = "ImageDownloadInProgress";
const DOWNLOADED: &str = "ImageDownloaded";
const FAILED: &str = "ImageDownloadFailed";
const TEMPORARILY_FAILED: &str = "ImageDownloadTemporarilyFailed";

/// One image of a NodeImageSet, and the job that it is an image of.
pub(super) struct WantedImage {
    /// As it was written.
    pub(super) image: String,
    /// Where it may come from.
    pub(super) policy: RegistryPolicy,
    /// The job.
    pub(super) job: JobId,
}

/// Where to look.
#[derive(Clone, Copy)]
pub(super) struct OnNode<'a> {
    /// The name of the node.
    pub(super) node: &'a str,
    pub(super) world: &'a World,
    pub(super) now: Timestamp,
}

impl OnNode<'_> {
    /// How these images stand, and the Events that lie between what the object says and that.
    pub(super) fn status(
        self,
        object: &DynamicObject,
        wishes: &[WantedImage],
        before: &NodeImageSetStatus,
    ) -> (NodeImageSetStatus, Vec<Write>) {
        let all: Vec<(ContainerImageStatus, bool)> = wishes.iter().map(|wish| self.image(wish)).collect();
        let events = all.iter().filter_map(|(status, came)| self.event(object, before, status, *came));
        let events = events.collect();
        let statuses: Vec<ContainerImageStatus> = all.into_iter().map(|(status, _)| status).collect();
        let count = |state: &str| {
            let such = statuses.iter().filter(|status| status.last_state == state).count();
            i64::try_from(such).unwrap_or(i64::MAX)
        };
        let (available, failed) = (count(DOWNLOADED), count(FAILED));
        let desired = i64::try_from(statuses.len()).unwrap_or(i64::MAX);
        let generation = object.metadata.generation.unwrap_or_default();
        let ours = [
            Statement {
                kind: "ImageAvailable",
                holds: available == desired,
                yes: ("ImageDownloadComplete", "All images are downloadedImage"),
                no: ("ImageDownloadIncomplete", "Waiting for images to be downloadedImage"),
            },
            Statement {
                kind: "ImageDownloadSucceeded",
                holds: failed == 0,
                yes: ("NoImagePullFailed", "No image pull failed"),
                no: ("ImageDownloadFailed", "Some images failed to download"),
            },
        ];
        let status = NodeImageSetStatus {
            observed_generation: Some(generation),
            desired_images: desired,
            available_images: available,
            download_failed_images: failed,
            container_image_statuses: statuses,
            conditions: conditions(&ours, &before.conditions, generation, self.now),
        };
        (status, events)
    }

    /// How an image stands, and whether bytes of it have come for it.
    fn image(self, wish: &WantedImage) -> (ContainerImageStatus, bool) {
        let job = self.world.job(&wish.job);
        let view = self.world.seat_of(&wish.job, self.node, self.now);
        let (state, error, came) = match (job, view) {
            (Some(job), Some(view)) => self.judged(wish, job, &view),
            _ => (WAITING, String::new(), false),
        };
        let error = text::message(&error);
        (ContainerImageStatus { image_ref: wish.image.clone(), error, last_state: state.into() }, came)
    }

    fn judged(self, wish: &WantedImage, job: &Job, view: &NodeView<'_>) -> (&'static str, String, bool) {
        let reference = match wish.image.parse::<Reference>() {
            Ok(reference) => reference,
            Err(problem) => return (FAILED, format!("{}: {problem}", wish.image), false),
        };
        let key = reference.key();
        // Two ways to write one image are one image of the job.
        let is_it = |reference: &Reference| reference.key() == key;
        let place = job.images.iter().position(|image| image.reference.as_ref().is_ok_and(is_it));
        let report = place.and_then(|place| view.images.get(place)).and_then(|(_, report)| *report);
        let order = self.world.order(self.node, key).filter(|order| matches!(order.ask, Ask::Fetch(_)));
        let came = report.is_some_and(|report| report.bytes.upstream > 0 || report.bytes.peers > 0);
        let (state, error) = match (&view.state, report) {
            (NodeState::Succeeded, _) | (_, Some(Report { phase: Phase::Succeeded, .. })) => {
                (DOWNLOADED, String::new())
            }
            (_, Some(report)) if has_failed(report) && is_answered(order.as_ref(), report) => {
                failed(wish.policy, report.reason, &report.message)
            }
            (NodeState::Failed(reason, message), _) => failed(wish.policy, Some(*reason), message),
            (NodeState::Pulling, report) => match (report, &order) {
                // It waits for its turn on the node.
                (Some(report), _) if !report.ended() && report.attempt == 0 => (WAITING, String::new()),
                (Some(report), Some(_)) => under_way(wish.policy, report),
                (None, Some(_)) => (IN_PROGRESS, String::new()),
                (_, None) => (WAITING, String::new()),
            },
            (NodeState::Waiting(waiting), _) => (WAITING, sentence(waiting)),
        };
        (state, error, came)
    }

    /// What upstream's agent says when the state of an image has changed to this one.
    fn event(
        self,
        object: &DynamicObject,
        before: &NodeImageSetStatus,
        status: &ContainerImageStatus,
        came: bool,
    ) -> Option<Write> {
        let ContainerImageStatus { image_ref, error, last_state } = status;
        let old = before.container_image_statuses.iter().find(|old| old.image_ref == *image_ref);
        let was = old.map(|old| old.last_state.as_str()).unwrap_or_default();
        let node = self.node;
        let (reason, good, message) = match last_state.as_str() {
            IN_PROGRESS if was != IN_PROGRESS => {
                ("ImageDownloading", true, format!("downloading image {image_ref} on {node}"))
            }
            // Of an image that was there nothing is said.
            DOWNLOADED if was != DOWNLOADED && (came || was == IN_PROGRESS) => {
                ("ImageDownloaded", true, format!("successfully downloaded image {image_ref} on {node}"))
            }
            FAILED if was != FAILED || old.is_some_and(|old| old.error != *error) => {
                ("ImageDownloadFailed", false, format!("failed to download image {image_ref}: {error} on {node}"))
            }
            _ => return None,
        };
        Some(events::event(&NODE_IMAGE_SETS, object, reason, good, &message, self.now))
    }
}

/// Whether a pull has failed. That the image is not there, or was there and is not any more, is no failure.
fn has_failed(report: &Report) -> bool {
    report.phase == Phase::Failed && !matches!(report.reason, Some(Reason::Removed | Reason::Unresolved))
}

/// Whether the node has not been asked again since.
fn is_answered(order: Option<&Order>, report: &Report) -> bool {
    order.is_none_or(|order| order.asked <= report.asked)
}

/// A pull that goes on, or is about to.
fn under_way(policy: RegistryPolicy, report: &Report) -> (&'static str, String) {
    let removed = matches!(report.reason, Some(Reason::Removed | Reason::Unresolved));
    match report.reason {
        Some(reason) if is_temporary(policy, reason) => (TEMPORARILY_FAILED, report.message.clone()),
        Some(_) if !removed => (IN_PROGRESS, report.message.clone()),
        _ => (IN_PROGRESS, String::new()),
    }
}

fn failed(policy: RegistryPolicy, reason: Option<Reason>, message: &str) -> (&'static str, String) {
    let state = if reason.is_some_and(|reason| is_temporary(policy, reason)) { TEMPORARILY_FAILED } else { FAILED };
    (state, message.to_owned())
}

/// Whether another node or a mirror may have the image in a while: who may not ask the registry waits for that.
fn is_temporary(policy: RegistryPolicy, reason: Reason) -> bool {
    policy == RegistryPolicy::MirrorOnly && matches!(reason, Reason::NotFound | Reason::NoSource)
}

/// Why a node waits, where it is not that its turn has not come.
fn sentence(waiting: &Waiting) -> String {
    match waiting {
        Waiting::Pending
        | Waiting::Parallelism { .. }
        | Waiting::Unresolved { .. }
        | Waiting::Asking { .. }
        | Waiting::SecretUnread { .. } => String::new(),
        waiting => waiting.to_string(),
    }
}

/// A condition, with a reason and a message for both cases.
pub(super) struct Statement<'a> {
    pub(super) kind: &'a str,
    pub(super) holds: bool,
    pub(super) yes: (&'a str, &'a str),
    pub(super) no: (&'a str, &'a str),
}

/// These conditions, each with the time since which it is so, and those of others.
pub(super) fn conditions(
    ours: &[Statement<'_>],
    before: &[Condition],
    generation: i64,
    now: Timestamp,
) -> Vec<Condition> {
    let said = ours.iter().map(|Statement { kind, holds, yes, no }| {
        let status = if *holds { "True" } else { "False" };
        let (reason, message) = if *holds { yes } else { no };
        let since = before.iter().find(|condition| condition.kind == *kind && condition.status == status);
        Condition {
            kind: (*kind).into(),
            status: status.into(),
            reason: (*reason).into(),
            message: (*message).into(),
            last_transition_time: since.map_or(now, |condition| condition.last_transition_time),
            observed_generation: generation,
        }
    });
    let others = before.iter().filter(|condition| !ours.iter().any(|said| said.kind == condition.kind)).cloned();
    said.chain(others).collect()
}

/// The status of a NodeImageSet whose spec cannot be read, for this reason.
pub(super) fn unreadable(
    images: impl Iterator<Item = String>,
    before: NodeImageSetStatus,
    message: &str,
    generation: i64,
    now: Timestamp,
) -> NodeImageSetStatus {
    let failed =
        |image: String| ContainerImageStatus { image_ref: image, error: message.to_owned(), last_state: FAILED.into() };
    let statuses: Vec<ContainerImageStatus> = images.map(failed).collect();
    let count = i64::try_from(statuses.len()).unwrap_or(i64::MAX);
    let ours = [
        Statement {
            kind: "ImageAvailable",
            holds: false,
            yes: ("", ""),
            no: ("ImageDownloadIncomplete", "Waiting for images to be downloadedImage"),
        },
        Statement {
            kind: "ImageDownloadSucceeded",
            holds: false,
            yes: ("", ""),
            no: ("ImageDownloadFailed", "Some images failed to download"),
        },
    ];
    NodeImageSetStatus {
        observed_generation: Some(generation),
        desired_images: count,
        available_images: 0,
        download_failed_images: count,
        container_image_statuses: statuses,
        conditions: conditions(&ours, &before.conditions, generation, now),
    }
}
