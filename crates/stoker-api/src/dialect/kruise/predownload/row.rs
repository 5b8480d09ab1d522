//! What is kept of workloads and of their revisions. Of a workload that asks for nothing, nothing is.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::dynamic::DynamicObject;
use serde_json::{Map, Value, json};

use super::wish::{self, ANNOTATIONS};
use crate::view::{Row, controller_of};

/// OpenKruise's controller marks revisions for which it has made the jobs itself, or has decided not to.
const MARKS: [&str; 2] = ["apps.kruise.io/pre-predownload-created", "apps.kruise.io/image-predownload-ignored"];
/// Labels of a revision with its hash, which its pods have as well.
const HASHES: [&str; 3] = ["pod-template-hash", "controller-revision-hash", super::child::HASH];
/// The annotation of a ReplicaSet with the number of the revision.
const REVISION: &str = "deployment.kubernetes.io/revision";

const SPEC: &[&str] = &["replicas", "selector", "strategy", "updateStrategy"];
const STATUS: &[&str] = &[
    "observedGeneration",
    "replicas",
    "updatedReplicas",
    "readyReplicas",
    "updatedReadyReplicas",
    "currentRevision",
    "updateRevision",
    "currentNumberScheduled",
    "desiredNumberScheduled",
    "updatedNumberScheduled",
    "numberReady",
];

/// What is kept of a ReplicaSet or a ControllerRevision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevisionRow {
    /// The uid of the workload that controls it.
    owner: Option<Arc<str>>,
    /// Higher numbers are newer.
    pub(super) number: u64,
    /// What its pods have in the label that names their revision, or a part of that.
    pub(super) hash: Option<String>,
    /// Images by container.
    pub(super) images: BTreeMap<String, String>,
    /// How many pods a ReplicaSet has.
    pub(super) pods: u64,
    /// How many of them are ready.
    pub(super) ready: u64,
    /// OpenKruise's own controller has taken care of it.
    pub(super) is_marked: bool,
}

impl RevisionRow {
    /// Whether this very workload controls it, and not one of the same name.
    pub(super) fn is_of(&self, workload: &DynamicObject) -> bool {
        self.owner.is_some() && self.owner.as_deref() == workload.metadata.uid.as_deref()
    }
}

/// Keeps a ReplicaSet.
pub(super) fn replica_set(object: DynamicObject) -> Row {
    let annotations = object.metadata.annotations.as_ref();
    let number = annotations.and_then(|all| all.get(REVISION)?.parse().ok()).unwrap_or_default();
    revision(&object, number, "/spec/template/spec/containers")
}

/// Keeps a ControllerRevision.
pub(super) fn controller_revision(object: DynamicObject) -> Row {
    revision(&object, number(&object, "/revision"), "/data/spec/template/spec/containers")
}

fn revision(object: &DynamicObject, number_of: u64, at: &str) -> Row {
    let label = |key: &str| object.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let owner = controller_of(object).map(|owner| Arc::from(owner.uid.as_str()));
    Row::Revision(Box::new(RevisionRow {
        owner,
        number: number_of,
        hash: HASHES.iter().find_map(|key| label(key)).cloned(),
        images: images(object, at),
        pods: number(object, "/status/replicas"),
        ready: number(object, "/status/readyReplicas"),
        is_marked: MARKS.iter().any(|mark| label(mark).is_some_and(|value| value == "true")),
    }))
}

/// Images by container. Init containers are left out: what a pod needs for its start alone is no reason to pull ahead, as upstream has it.
pub(super) fn images(object: &DynamicObject, at: &str) -> BTreeMap<String, String> {
    let containers = object.data.pointer(at).and_then(Value::as_array).into_iter().flatten();
    let texts =
        containers.filter_map(|container| Some((container.get("name")?.as_str()?, container.get("image")?.as_str()?)));
    texts.map(|(name, image)| (name.to_owned(), image.to_owned())).collect()
}

/// Keeps a workload that asks for it, without the many parts that nobody looks at.
pub(super) fn workload(object: DynamicObject) -> Row {
    if !wish::asks(&object) {
        return Row::Nothing;
    }
    let from = &object.metadata;
    let mut annotations = from.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| ANNOTATIONS.contains(&key.as_str()));
    let metadata = ObjectMeta {
        name: from.name.clone(),
        namespace: from.namespace.clone(),
        uid: from.uid.clone(),
        generation: from.generation,
        // Events are named by the version of their object. Every pod that comes or goes makes a new one, and means nothing here.
        resource_version: from.generation.map(|generation| generation.to_string()),
        deletion_timestamp: from.deletion_timestamp.clone(),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    };
    let part = |of: &str, fields: &[&str]| -> Map<String, Value> {
        let found = |field: &&str| Some((field.to_string(), object.data.get(of)?.get(*field)?.clone()));
        fields.iter().filter_map(found).collect()
    };
    let of_template =
        |pointer: &str| object.data.pointer(&format!("/spec/template{pointer}")).cloned().unwrap_or_default();
    let containers = images(&object, "/spec/template/spec/containers");
    let containers: Vec<Value> =
        containers.into_iter().map(|(name, image)| json!({ "name": name, "image": image })).collect();
    let mut spec = part("spec", SPEC);
    let template = json!({
        "metadata": { "labels": of_template("/metadata/labels"), "annotations": of_template("/metadata/annotations") },
        "spec": { "containers": containers, "imagePullSecrets": of_template("/spec/imagePullSecrets") },
    });
    spec.insert("template".into(), template);
    let data = json!({ "spec": spec, "status": part("status", STATUS) });
    Row::Whole(Box::new(DynamicObject { types: object.types, metadata, data }))
}

pub(super) fn number(object: &DynamicObject, pointer: &str) -> u64 {
    object.data.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}
