//! Objects on paper as the types that they are.

use kube::api::DynamicObject;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stoker_api::JobKind;
use stoker_api::job_kinds;
use stoker_core::JobId;

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
