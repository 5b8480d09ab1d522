//! What somebody asks for with annotations of a workload, or with fields of a CloneSet.

use kube_core::dynamic::DynamicObject;
use serde_json::Value;

use super::{is_kruise, text};
use crate::share::Share;

/// How many nodes pull at one time. Workloads of Kubernetes ask for pre-download with this annotation.
pub(super) const PARALLELISM: &str = "apps.kruise.io/image-predownload-parallelism";
/// How long one attempt may take.
pub(super) const TIMEOUT: &str = "apps.kruise.io/image-predownload-timeout-seconds";
/// How many updated pods must be ready before it begins.
pub(super) const MIN_READY: &str = "apps.kruise.io/image-predownload-min-updated-ready-pods";
/// All of them.
pub(super) const ANNOTATIONS: [&str; 3] = [PARALLELISM, TIMEOUT, MIN_READY];
/// Where newer CloneSets say the same.
const FIELDS: &str = "/spec/updateStrategy/rollingUpdate/inPlaceUpdateStrategy";

/// How pre-download is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) parallelism: Share,
    pub(super) timeout: i32,
    pub(super) min_ready: Share,
    /// What cannot be read, and what is done instead.
    pub(super) problems: Vec<String>,
}

/// Whether pre-download is asked for. Workloads of Kubernetes ask with an annotation. Workloads of OpenKruise need none, as with its own
/// controller: CloneSets and StatefulSets must update pods in place.
pub(super) fn asks(workload: &DynamicObject) -> bool {
    if !is_kruise(workload) {
        return workload.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(PARALLELISM));
    }
    let policies = ["/spec/updateStrategy/type", "/spec/updateStrategy/rollingUpdate/podUpdatePolicy"];
    let in_place = |at: &&str| text(workload, at).is_some_and(|policy| policy.starts_with("InPlace"));
    workload.types.as_ref().is_some_and(|types| types.kind == "DaemonSet") || policies.iter().any(in_place)
}

/// How a workload wants it. What cannot be read counts as not said.
pub(super) fn wish(workload: &DynamicObject) -> Wish {
    let mut problems = Vec::new();
    let parallelism = read(
        workload,
        (PARALLELISM, "imagePreDownloadParallelism"),
        ("a number or a percentage", "1"),
        &mut problems,
        parallelism,
    );
    let timeout = read(
        workload,
        (TIMEOUT, "imagePreDownloadTimeoutSeconds"),
        ("a positive number of seconds", "300"),
        &mut problems,
        |text| text.parse::<i32>().ok().filter(|seconds| *seconds > 0),
    );
    let min_ready = read(
        workload,
        (MIN_READY, "imagePreDownloadMinUpdatedReadyPods"),
        ("a number or a percentage", "0"),
        &mut problems,
        |text| text.parse().ok(),
    );
    let number = |number| Share { number, percent: false };
    Wish {
        parallelism: parallelism.unwrap_or(number(1)),
        timeout: timeout.unwrap_or(300),
        min_ready: min_ready.unwrap_or(number(0)),
        problems,
    }
}

/// One setting, from its annotation or else from its field.
fn read<T>(
    workload: &DynamicObject,
    (annotation, field): (&str, &str),
    (wanted, otherwise): (&str, &str),
    problems: &mut Vec<String>,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Option<T> {
    let annotations = workload.metadata.annotations.as_ref();
    let (place, said) = match annotations.and_then(|all| all.get(annotation)) {
        Some(text) => (format!("annotation {annotation}"), text.clone()),
        None => match workload.data.pointer(&format!("{FIELDS}/{field}"))? {
            Value::String(text) => (format!("field {field}"), text.clone()),
            value => (format!("field {field}"), value.to_string()),
        },
    };
    let value = parse(said.trim());
    if value.is_none() {
        problems.push(format!("{place}: `{said:.80}` is not {wanted}, so {otherwise} is used"));
    }
    value
}

/// As the schema of ImagePullJobs takes it.
fn parallelism(text: &str) -> Option<Share> {
    text.parse().ok().filter(|share: &Share| share.number <= 999_999_999)
}
