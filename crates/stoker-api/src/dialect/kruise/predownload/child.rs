//! The ImagePullJobs of a rollout: one for each container whose image is new. They are named after what they contain, so that whoever
//! looks again wants the same ones, and other settings mean other ones.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_core::dynamic::DynamicObject;
use serde_json::{Value, json};

use super::rollout::Underway;
use super::selector;
use super::wish::Wish;
use crate::dialect::kruise::list::hash;
use crate::dialect::kruise::{IMAGE_PULL_JOBS, ImagePullJob, versions};
use crate::labels::{Comparison, Expression};
use crate::write::{Target, Write};

/// The label with the hash of the revision, on revisions and on the ImagePullJobs that are made for them.
pub(super) const HASH: &str = "controller.kubernetes.io/hash";
/// The annotation of an ImagePullJob that was made here, with the name of the revision.
const MADE_FOR: &str = "stoker.dev/pre-download";
/// An ImagePullJob has at most so many Secrets.
const SECRETS: usize = 10;

/// The ImagePullJobs that should be there for a rollout that is under way; none for a revision that OpenKruise's own controller has
/// taken care of.
pub(super) fn wanted(workload: &DynamicObject, wish: &Wish, underway: &Underway<'_>) -> Vec<DynamicObject> {
    let changed = underway.changed().filter(|_| !underway.is_marked);
    changed.filter_map(|(container, image)| child(workload, wish, underway, container, image)).collect()
}

/// The ImagePullJob for one container.
fn child(
    workload: &DynamicObject,
    wish: &Wish,
    underway: &Underway<'_>,
    container: &str,
    image: &str,
) -> Option<DynamicObject> {
    let template = workload.data.pointer("/spec/template")?;
    let texts = |pointer: &str| -> BTreeMap<String, String> {
        template.pointer(pointer).and_then(|map| serde_json::from_value(map.clone()).ok()).unwrap_or_default()
    };
    let mut labels = texts("/metadata/labels");
    labels.insert(HASH.into(), underway.hash.into());
    // Pods of the new revision have the image already, or are about to pull it.
    let mut selector = selector(workload)?;
    let values: Vec<String> = underway.values().into_iter().map(str::to_owned).collect();
    selector.match_expressions.push(Expression {
        key: underway.label.into(),
        operator: Comparison::NotIn,
        values: Some(values).filter(|values| !values.is_empty())?,
    });
    let mut spec = json!({
        "image": image,
        "podSelector": selector,
        "parallelism": wish.parallelism.to_string(),
        "pullPolicy": { "timeoutSeconds": wish.timeout, "backoffLimit": 1 },
        // Without a time to live: one that has ended must stay, or it would be made again.
        "completionPolicy": { "type": "Always" },
        "sandboxConfig": { "labels": labels, "annotations": texts("/metadata/annotations") },
    });
    let secrets = template.pointer("/spec/imagePullSecrets").and_then(Value::as_array).into_iter().flatten();
    let secrets = secrets.filter_map(|secret| secret.get("name")?.as_str()).filter(|name| !name.is_empty());
    let secrets: BTreeSet<&str> = secrets.take(SECRETS).collect();
    if !secrets.is_empty()
        && let Some(spec) = spec.as_object_mut()
    {
        spec.insert("pullSecrets".into(), json!(secrets));
    }
    let (uid, types) = (workload.metadata.uid.as_deref().unwrap_or_default(), workload.types.as_ref()?);
    // A name has at most 253 characters, and that of a revision may have as many.
    let start: String = format!("{}-{container}", underway.revision).chars().take(247).collect();
    let name = format!("{}-{}", start.trim_end_matches(['-', '.']), hash(&format!("{uid} {spec}"), 5));
    // Every release of OpenKruise serves this version, and so does our own CRD.
    let [_, resource] = versions::<ImagePullJob>();
    let mut child = DynamicObject::new(&name, &resource);
    child.metadata.namespace = workload.metadata.namespace.clone();
    child.metadata.labels = Some(labels);
    child.metadata.annotations = Some([(MADE_FOR.to_owned(), underway.revision.to_owned())].into());
    child.metadata.owner_references = Some(vec![OwnerReference {
        api_version: types.api_version.clone(),
        kind: types.kind.clone(),
        name: workload.metadata.name.clone().unwrap_or_default(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    child.data = json!({ "spec": spec });
    Some(child)
}

/// Whether an ImagePullJob was made for a rollout, here and not by OpenKruise's own controller.
pub(super) fn is_ours(job: &DynamicObject) -> bool {
    job.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(MADE_FOR))
}

/// The deletions of ImagePullJobs that are not wanted any more.
pub(super) fn unwanted(wanted: &[DynamicObject], there: &[&DynamicObject]) -> Vec<Write> {
    let names: BTreeSet<Option<&str>> = wanted.iter().map(|job| job.metadata.name.as_deref()).collect();
    let unwanted = there.iter().filter(|job| !names.contains(&job.metadata.name.as_deref()));
    let unwanted = unwanted.filter(|job| job.metadata.deletion_timestamp.is_none());
    unwanted.map(|job| delete(job)).collect()
}

/// The deletion of this very ImagePullJob.
pub(super) fn delete(job: &DynamicObject) -> Write {
    Write::Delete(Target::of(IMAGE_PULL_JOBS.kind.resource_of(job), job), job.metadata.uid.clone())
}

/// The creation of an ImagePullJob.
pub(super) fn create(job: &DynamicObject) -> Option<Write> {
    let target = Target::of(IMAGE_PULL_JOBS.kind.resource_of(job), job);
    Some(Write::Create(target, serde_json::to_value(job).ok()?))
}

/// What is said about an ImagePullJob that is made.
pub(super) fn said(job: &DynamicObject) -> String {
    let image = super::text(job, "/spec/image").unwrap_or_default();
    let name = job.metadata.name.as_deref().unwrap_or_default();
    format!("created ImagePullJob {name}: nodes with pods of older revisions pull {image}")
}
