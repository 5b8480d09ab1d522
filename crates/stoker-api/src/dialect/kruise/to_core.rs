//! From an ImagePullJob to a job.

use std::time::Duration;

use kube_core::dynamic::DynamicObject;
use serde_json::Value;
use stoker_core::model::{Completion, Empty, Image, Job, JobId, Pull, SecretId, Unreachable};
use stoker_core::select::{Operator, Requirement, Selector};
use stoker_core::text;

use super::types::{CompletionType, GROUP, ImagePullJobSpec, ImagePullJobStatus, NodeSelector};
use crate::dialect::{NotReadable, Summary, created, part, status_or_why};
use crate::labels;
use crate::view::{Derived, Reader, Root};
use crate::{image, native};

/// How long an image of a job that does not end is taken to be fresh.
const ROUND: Duration = Duration::from_secs(24 * 3600);

/// The job of an ImagePullJob; one that is being deleted has none.
pub(super) fn derive(root: &Root, reader: &mut Reader<'_>) -> Derived {
    match reader.own(root).filter(|object| object.metadata.deletion_timestamp.is_none()) {
        Some(object) => Ok(vec![job(object)?]),
        None => Ok(Vec::new()),
    }
}

/// The job that an ImagePullJob describes.
fn job(object: &DynamicObject) -> Result<Job, NotReadable> {
    let spec: ImagePullJobSpec = part(object, "spec")?;
    let (status, unreadable) = status_or_why(object);
    let status: ImagePullJobStatus = status;
    let selector = spec.selector.unwrap_or_default();
    let policy = &spec.completion_policy;
    let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    Ok(Job {
        id: JobId::new((GROUP, "ImagePullJob"), namespace, object.metadata.name.as_deref().unwrap_or_default()),
        uid: object.metadata.uid.clone().unwrap_or_default(),
        generation: object.metadata.generation.unwrap_or_default(),
        created: created(object),
        images: vec![Image {
            secrets: spec.pull_secrets.iter().map(|name| SecretId::new(namespace, name)).collect(),
            ..image(&spec.image)
        }],
        names: Some(&selector.names).filter(|names| !names.is_empty()).map(|names| names.iter().cloned().collect()),
        selector: node_selector(&selector),
        parallelism: parallelism(&spec.parallelism),
        percent: false,
        pull: Pull {
            policy: native::to_core::policy(spec.image_pull_policy),
            timeout: seconds(spec.pull_policy.timeout_seconds),
            retries: u32::try_from(spec.pull_policy.backoff_limit).unwrap_or(0),
            bandwidth: None,
            sandbox: spec.sandbox_config.map(native::to_core::sandbox).unwrap_or_default(),
        },
        completion: match policy.kind {
            CompletionType::Always => Completion::Once {
                deadline: policy.active_deadline_seconds.map(seconds),
                ttl: policy.ttl_seconds_after_finished.map(seconds),
            },
            CompletionType::Never => Completion::Continuous { resync: ROUND },
        },
        suspend: false,
        unreachable: Unreachable::GiveUp,
        empty: Empty::Completes,
        started: status.start_time,
        // Once ended, edits change nothing.
        ended: status.completion_time,
        unreadable,
    })
}

/// What an ImagePullJob's status says. It has no phase of its own; these are the words of the others.
pub(super) fn summary(object: &DynamicObject) -> Summary {
    let status: ImagePullJobStatus = part(object, "status").unwrap_or_default();
    let count = |nodes: i32| u32::try_from(nodes).unwrap_or(0);
    let ended = status.completion_time.is_some();
    let phase = match (ended, status.failed, status.start_time) {
        (true, 0, _) => "Succeeded",
        (true, ..) => "Failed",
        (false, _, Some(_)) => "Running",
        (false, _, None) => "",
    };
    Summary {
        phase: phase.into(),
        desired: count(status.desired),
        succeeded: count(status.succeeded),
        pulling: count(status.active),
        failed: count(status.failed),
        ended,
        // Their status has names only.
        failures: Vec::new(),
        secrets: Vec::new(),
        message: text::message(&status.message),
        warnings: Vec::new(),
    }
}

/// Virtual kubelets have no images; upstream leaves them out.
fn node_selector(selector: &NodeSelector) -> Selector {
    let mut selector = labels::to_core(&selector.labels);
    let values = ["virtual-kubelet".to_string()].into();
    selector.0.push(Requirement { key: "type".into(), operator: Operator::NotIn, values });
    selector
}

/// Numbers come as numbers or as strings; what the schema would have refused pauses.
fn parallelism(value: &Value) -> u32 {
    let number = value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0);
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn seconds(seconds: impl TryInto<u64>) -> Duration {
    Duration::from_secs(seconds.try_into().unwrap_or(0))
}
