//! Objects on paper as the types that they are.

use kube::api::DynamicObject;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stoker_api::JobKind;
use stoker_api::job_kinds;
use stoker_core::JobId;
use stoker_testbed::paper::PaperId;

pub(super) fn read<T: DeserializeOwned>(object: &DynamicObject) -> T {
    // By way of a text, as it comes over a wire.
    let text = serde_json::to_string(object).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|problem| panic!("{problem}: {text}"))
}

/// The kind of job that an object is.
pub(super) fn job_kind(object: &DynamicObject) -> Option<&'static JobKind> {
    let kind = &object.types.as_ref()?.kind;
    job_kinds().find(|job| job.kind.name == kind)
}

/// The job that an object means, where it means one.
pub(super) fn job_id(object: &DynamicObject) -> Option<JobId> {
    let kind = job_kind(object).filter(|kind| kind.kind.name != "ImageListPullJob")?;
    Some(kind.job_id_of(object))
}

pub(super) fn field<'a>(object: &'a DynamicObject, path: &str) -> &'a Value {
    object.data.pointer(path).unwrap_or(&Value::Null)
}

pub(super) fn uid(object: &DynamicObject) -> String {
    object.metadata.uid.clone().unwrap_or_default()
}

/// Whether the object says that it has ended, for what it wishes now.
pub(super) fn has_ended(object: &DynamicObject) -> bool {
    job_kind(object).is_some_and(|kind| (kind.summary)(object).ended)
}

/// Node, repository, tag and version.
pub(super) type Tag = (String, String, String, i64);

/// The NodeImage of a node.
pub(super) fn node_image(node: &str) -> PaperId {
    PaperId::new("NodeImage", "", node)
}

/// The tags of a NodeImage, with their repositories.
pub(super) fn tags(object: &DynamicObject) -> Vec<(&String, &Value)> {
    listed(field(object, "/spec/images"))
}

/// What the status of a NodeImage says, with the repositories.
pub(super) fn entries(object: &DynamicObject) -> Vec<(&String, &Value)> {
    listed(field(object, "/status/imageStatuses"))
}

fn listed(images: &Value) -> Vec<(&String, &Value)> {
    let images = images.as_object().into_iter().flatten();
    images.flat_map(|(image, of)| of["tags"].as_array().into_iter().flatten().map(move |tag| (image, tag))).collect()
}

/// What the status says of a tag of this name, in whichever version.
pub(super) fn entry<'a>(object: &'a DynamicObject, image: &str, tag: &str) -> Option<&'a Value> {
    entries(object).into_iter().find(|(of, entry)| *of == image && entry["tag"] == tag).map(|(_, entry)| entry)
}

/// What the status says of a tag in its version.
pub(super) fn said<'a>(object: &'a DynamicObject, image: &str, tag: &Value) -> Option<&'a Value> {
    let own = |of: &str, entry: &Value| of == image && entry["tag"] == tag["tag"] && version(entry) == version(tag);
    entries(object).into_iter().find(|(of, entry)| own(of, entry)).map(|(_, entry)| entry)
}

/// The version of a tag, or of what is said of one.
pub(super) fn version(tag: &Value) -> i64 {
    tag["version"].as_i64().unwrap_or_default()
}

/// Whether an entry of a status says that a pull is over.
pub(super) fn is_done(entry: &Value) -> bool {
    entry["phase"] == "Succeeded" || entry["phase"] == "Failed"
}
