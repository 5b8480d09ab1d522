//! From an ImagePullJob to a job.

use std::collections::BTreeSet;
use std::time::Duration;

use kube_core::dynamic::DynamicObject;
use serde::Deserialize as _;
use serde_json::Value;
use stoker_core::model::{Completion, Empty, Job, JobId, Policy, Pull, SecretId, Unreachable, Words};
use stoker_core::rollup::FailedNode;
use stoker_core::select::{Operator, Requirement, Selector};
use stoker_core::{Reason, text};

use super::types::{CompletionType, GROUP, NodeSelector};
use super::{ImagePullJobSpec, ImagePullJobStatus};
use crate::dialect::{Extras, NotReadable, Summary, created, part, status_or_why};
use crate::pods;
use crate::share::Share;
use crate::view::{Answer, Derived, Reader, Root, Unready};
use crate::{image, labels, native};

/// How long an image of a job that does not end is taken to be fresh.
const ROUND: Duration = Duration::from_secs(24 * 3600);
/// How often a failed attempt is repeated where the job does not say.
const RETRIES: u32 = 3;

/// How users of an ImagePullJob call things. It cannot be suspended.
const WORDS: Words = Words { resume: "make another job", secrets: "pullSecrets", orders: "NodePreheat" };

/// Upstream's daemon says of every pull that it does it. Plugins of container runtimes look at this annotation of the pod.
pub(super) const PULLED_BY: (&str, &str) = ("apps.kruise.io/pulling-image-by", "kruise-daemon");

/// The job of an ImagePullJob; one that is being deleted has none.
pub(super) fn derive(root: &Root, reader: &mut Reader<'_>) -> Derived {
    let Some(object) = reader.own(root).filter(|object| object.metadata.deletion_timestamp.is_none()) else {
        return Ok(Vec::new());
    };
    let job = job_on(object, BTreeSet::new())?;
    let spec: ImagePullJobSpec = part(object, "spec")?;
    let Some(selector) = spec.template.pod_selector.filter(|_| job.ended.is_none()) else { return Ok(vec![job]) };
    if let Some(problem) = labels::problem(&selector) {
        return Err(NotReadable::new(object, "spec.podSelector", &problem).into());
    }
    match pods::nodes(reader, &root.namespace, &selector) {
        Answer::Known(nodes) => Ok(vec![job_on(object, nodes)?]),
        Answer::Unlisted => Err(Unready::Unlisted),
        Answer::Unseen => Ok(vec![Job { unseen: Some(pods::PODS.name), ..job }]),
    }
}

/// The job that an ImagePullJob describes, with the nodes of the Pods that its podSelector selects. They mean nothing to a job
/// without a podSelector.
pub(super) fn job_on(object: &DynamicObject, nodes_of_pods: BTreeSet<String>) -> Result<Job, NotReadable> {
    let spec: ImagePullJobSpec = part(object, "spec")?;
    let (status, unreadable) = status_or_why(object);
    let status: ImagePullJobStatus = status;
    let template = spec.template;
    let selector = template.selector.unwrap_or_default();
    // Upstream's webhook refuses it. A job that has ended selects no node any more, and still has a time to live.
    if let Some(problem) = labels::problem(&selector.labels).filter(|_| status.completion_time.is_none()) {
        return Err(NotReadable::new(object, "spec.selector", &problem));
    }
    let policy = &template.completion_policy;
    let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    let names = match template.pod_selector.is_some() {
        true => Some(Job::named(nodes_of_pods)),
        false => Some(&selector.names).filter(|names| !names.is_empty()).map(|names| Job::named(names.iter().cloned())),
    };
    let sandbox = template.sandbox_config.unwrap_or_default();
    let mut sandbox = native::to_core::sandbox(object, "spec.sandboxConfig", sandbox)?;
    sandbox.annotations.insert(PULLED_BY.0.into(), PULLED_BY.1.into());
    let (parallelism, percent) = parallelism(template.parallelism.as_ref());
    let secrets = template.pull_secrets.iter().filter(|name| !name.is_empty());
    let mut job = Job {
        id: JobId::new((GROUP, "ImagePullJob"), namespace, object.metadata.name.as_deref().unwrap_or_default()),
        uid: object.metadata.uid.clone().unwrap_or_default(),
        generation: object.metadata.generation.unwrap_or_default(),
        created: created(object),
        images: image::images(
            [(spec.image.as_str(), secrets.map(|name| SecretId::new(namespace, name)).collect())].into_iter(),
        ),
        names,
        pick: None,
        selector: node_selector(&selector),
        // Selectors see the labels of NodeImages that have no Node behind them.
        foreign_nodes: true,
        parallelism,
        percent,
        tolerance: None,
        unseen: None,
        pull: Pull {
            policy: pull_policy(&spec.image_pull_policy),
            timeout: seconds(template.pull_policy.timeout_seconds),
            // A negative number is upstream's way to write the default.
            retries: u32::try_from(template.pull_policy.backoff_limit).unwrap_or(RETRIES),
            bandwidth: None,
            priority: 0,
            sandbox,
            source: Default::default(),
            upstream_copies: None,
        },
        completion: match policy.kind {
            CompletionType::Always => Completion::Once {
                deadline: policy.active_deadline_seconds.map(seconds),
                ttl: policy.ttl_seconds_after_finished.map(seconds),
            },
            CompletionType::Never => Completion::Continuous { resync: ROUND },
        },
        suspend: false,
        words: &WORDS,
        unreachable: Unreachable::GiveUp,
        bounds: Default::default(),
        empty: Empty::Completes,
        started: status.start_time,
        // Once ended, edits change nothing.
        ended: status.completion_time,
        unreadable,
    };
    Extras::of(object).apply(&mut job);
    Ok(job)
}

/// What an ImagePullJob's status says. It has no phase of its own; these are the words of the others.
pub(super) fn summary(object: &DynamicObject) -> Summary {
    let status: ImagePullJobStatus = part(object, "status").unwrap_or_default();
    let count = |nodes: i32| u32::try_from(nodes).unwrap_or(0);
    let ended = status.completion_time.is_some();
    let extras = Extras::of(object);
    let phase = match (ended, status.failed, status.start_time) {
        (true, 0, _) => "Succeeded",
        (true, failed, _) if extras.allows(count(failed), count(status.desired)) => "Succeeded",
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
        failures: status.failed_nodes.iter().map(String::as_str).map(failed_node).collect(),
        secrets: Vec::new(),
        message: text::message(&status.message),
        warnings: extras.problems,
    }
}

fn failed_node(node: &str) -> FailedNode {
    let message =
        "the job's status names this node among those that failed; the report with the cause is not kept any more"
            .into();
    FailedNode { node: node.into(), reason: Reason::Unknown, message }
}

/// Virtual kubelets have no images; upstream leaves them out.
fn node_selector(selector: &NodeSelector) -> Selector {
    let mut selector = labels::to_core(&selector.labels);
    let values = ["virtual-kubelet".to_string()].into();
    selector.0.push(Requirement { key: "type".into(), operator: Operator::NotIn, values });
    selector
}

/// Numbers come as numbers or as strings, and as percentages. What the schema would have refused pauses; it refuses no number for being
/// large.
fn parallelism(value: Option<&Value>) -> (u32, bool) {
    let Some(value) = value.filter(|value| !value.is_null()) else { return (1, false) };
    match Share::deserialize(value) {
        Ok(share) => (share.number, share.percent),
        Err(_) => (value.as_u64().map_or(0, |_| u32::MAX), false),
    }
}

/// Upstream checks the text nowhere: whatever is not IfNotPresent asks the registry.
fn pull_policy(written: &str) -> Policy {
    match written {
        "" | "IfNotPresent" => Policy::IfNotPresent,
        _ => Policy::Always,
    }
}

fn seconds(seconds: impl TryInto<u64>) -> Duration {
    Duration::from_secs(seconds.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(object: &DynamicObject) -> Result<Job, NotReadable> {
        job_on(object, BTreeSet::new())
    }
    use serde_json::json;

    fn object(spec: Value) -> DynamicObject {
        let mut object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ImagePullJob", "metadata": { "name": "j", "namespace": "shop" },
            "spec": spec,
        }))
        .unwrap();
        object.data["spec"]["image"] = json!("nginx");
        object
    }

    #[test]
    fn what_upstream_leaves_unchecked_has_upstreams_meaning() {
        let policy = |written: Value| job(&object(json!({ "imagePullPolicy": written }))).unwrap().pull.policy;
        for (written, meant) in [
            ("", Policy::IfNotPresent),
            ("IfNotPresent", Policy::IfNotPresent),
            ("Always", Policy::Always),
            ("Never", Policy::Always),
            ("ifnotpresent", Policy::Always),
        ] {
            assert_eq!(policy(json!(written)), meant, "{written:?}");
        }
        for (limit, retries) in [(-7, 3), (0, 0), (3, 3), (9, 9)] {
            let job = job(&object(json!({ "pullPolicy": { "backoffLimit": limit } }))).unwrap();
            assert_eq!(job.pull.retries, retries, "{limit}");
        }
        let ends = |kind: &str| job(&object(json!({ "completionPolicy": { "type": kind } })));
        assert_eq!(ends("").unwrap().completion, Completion::Once { deadline: None, ttl: None });
        assert!(ends("Sometimes").is_err());
        let secrets = job(&object(json!({ "pullSecrets": ["a", "", "a"] }))).unwrap().images.remove(0).secrets;
        assert_eq!(secrets, [SecretId::new("shop", "a")]);
        let marked = object(json!({ "sandboxConfig": { "annotations": { PULLED_BY.0: "me", "x": "y" } } }));
        let marked = job(&marked).unwrap().pull.sandbox.annotations;
        assert_eq!(marked, [PULLED_BY, ("x", "y")].map(|(key, value)| (key.to_string(), value.to_string())).into());
    }

    #[test]
    fn parallelism_is_a_number_or_a_percentage() {
        for (written, number, percent) in [
            (Value::Null, 1, false),
            (json!(0), 0, false),
            (json!(7), 7, false),
            (json!("7"), 7, false),
            (json!("30%"), 30, true),
            (json!("0%"), 0, true),
            (json!("+5"), 0, false),
            (json!("101%"), 0, false),
            (json!(-1), 0, false),
            (json!("many"), 0, false),
            (json!(1u64 << 40), u32::MAX, false),
        ] {
            let job = job(&object(json!({ "parallelism": written }))).unwrap();
            assert_eq!((job.parallelism, job.percent), (number, percent), "{written}");
        }
        let job = job(&object(json!({}))).unwrap();
        assert_eq!((job.parallelism, job.percent), (1, false));
    }

    /// No node has such a label: the job would end at once, without a word.
    #[test]
    fn a_selector_that_no_api_server_could_evaluate_is_no_job_until_the_job_has_ended() {
        for bad in [
            json!({ "matchLabels": { "a..b/x": "a" } }),
            json!({ "matchLabels": { "pool": "a b" } }),
            json!({ "matchExpressions": [{ "key": "a..b/x", "operator": "Exists" }] }),
        ] {
            let mut selected = object(json!({ "selector": bad }));
            let problem = job(&selected).unwrap_err().problem;
            assert!(
                problem.starts_with("spec.selector cannot be read: `a") && problem.contains("of a label"),
                "{problem}"
            );
            selected.data["status"] = json!({ "desired": 0, "completionTime": "2026-01-01T00:00:00Z" });
            assert!(job(&selected).unwrap().ended.is_some(), "its time to live counts");
        }
    }

    #[test]
    fn a_pod_selector_means_the_nodes_of_pods() {
        let selected = object(json!({ "podSelector": { "matchLabels": { "app": "web" } } }));
        let nodes: BTreeSet<String> = ["n1".to_string()].into();
        assert_eq!(job_on(&selected, nodes.clone()).unwrap().names, Some(Job::named(["n1"])));
        assert_eq!(job_on(&selected, BTreeSet::new()).unwrap().names, Some(Default::default()));
        assert_eq!(job_on(&object(json!({})), nodes).unwrap().names, None, "it has no podSelector");
    }

    /// `stoker why` names them when the reports of the nodes are not kept any more.
    #[test]
    fn a_status_names_the_nodes_that_failed() {
        let mut ended = object(json!({}));
        ended.data["status"] = json!({
            "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:10:00Z", "desired": 3, "failed": 2,
            "failedNodes": ["n1", "n3"],
        });
        let summary = summary(&ended);
        let named: Vec<(&str, Reason)> = summary.failures.iter().map(|failed| (&*failed.node, failed.reason)).collect();
        assert_eq!(named, [("n1", Reason::Unknown), ("n3", Reason::Unknown)]);
    }
}
