//! What a patch makes of an object, and what keeps it from being applied.

use kube::api::DynamicObject;
use kube::core::Status;
use serde_json::{Map, Value};

use super::{PaperId, refusal};

/// Whether an object is the one that a write is for, in the version that the write is for.
pub(super) fn check(
    id: &PaperId,
    object: &DynamicObject,
    uid: Option<&str>,
    version: Option<&str>,
) -> Result<(), Box<Status>> {
    let metadata = &object.metadata;
    if uid.is_some() && uid != metadata.uid.as_deref() {
        let message =
            format!("{id}: Precondition failed: UID in precondition: {uid:?}, UID in object meta: {:?}", metadata.uid);
        return Err(refusal(409, "Conflict", message));
    }
    if version.is_some() && version != metadata.resource_version.as_deref() {
        return Err(refusal(409, "Conflict", format!("{id}: the object has been modified")));
    }
    Ok(())
}

/// The object with a merge patch of its status, or of all but its status where that is written by itself. Another spec is another
/// generation. The API server's own fields stay.
pub(super) fn patched(
    before: &DynamicObject,
    patch: &Value,
    status: bool,
    apart: bool,
) -> serde_json::Result<DynamicObject> {
    let old = serde_json::to_value(before)?;
    let mut new = old.clone();
    merge(&mut new, patch);
    let (Some(old), Some(all)) = (old.as_object(), new.as_object_mut()) else { return Ok(before.clone()) };
    if status {
        let said = all.get("status").cloned();
        *all = old.clone();
        set(all, "status", said);
    } else if apart {
        set(all, "status", old.get("status").cloned());
    }
    let mut after: DynamicObject = serde_json::from_value(new)?;
    let (was, is) = (&before.metadata, &mut after.metadata);
    is.uid.clone_from(&was.uid);
    is.resource_version.clone_from(&was.resource_version);
    is.creation_timestamp.clone_from(&was.creation_timestamp);
    is.deletion_timestamp.clone_from(&was.deletion_timestamp);
    let same = before.data.get("spec") == after.data.get("spec");
    after.metadata.generation = was.generation.map(|generation| generation + i64::from(!same));
    Ok(after)
}

fn set(fields: &mut Map<String, Value>, field: &str, value: Option<Value>) {
    match value {
        Some(value) => fields.insert(field.into(), value),
        None => fields.remove(field),
    };
}

/// RFC 7386.
fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        into.clone_from(patch);
        return;
    };
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    let Some(into) = into.as_object_mut() else { return };
    for (key, value) in patch {
        match value {
            Value::Null => {
                into.remove(key);
            }
            value => merge(into.entry(key).or_insert(Value::Null), value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::Paper;
    use jiff::Timestamp;
    use serde_json::json;

    fn job(spec: Value) -> DynamicObject {
        let object =
            json!({ "apiVersion": "g/v1", "kind": "Job", "metadata": { "name": "j", "namespace": "a" }, "spec": spec });
        serde_json::from_value(object).unwrap()
    }

    fn code<T>(result: Result<T, Box<Status>>) -> Option<u16> {
        result.err().map(|status| status.code)
    }

    #[test]
    fn writes_are_checked_and_versions_count() {
        let (mut paper, now, id) = (Paper::default(), Timestamp::UNIX_EPOCH, PaperId::new("Job", "a", "j"));
        let made = paper.create(job(json!({ "n": 1 })), now).unwrap();
        assert_eq!(code(paper.create(job(json!({})), now)), Some(409));
        assert_eq!(code(paper.patch(&id, &json!({ "metadata": { "uid": "other" } }), true)), Some(409));
        assert_eq!(code(paper.patch(&PaperId::new("Job", "a", "k"), &json!({}), true)), Some(404));

        let said = paper.patch(&id, &json!({ "spec": { "n": 2 }, "status": { "x": 1, "y": 2 } }), true).unwrap();
        assert_eq!((&said.data["spec"]["n"], &said.data["status"]["x"]), (&json!(1), &json!(1)), "only the status");
        let version = made.metadata.resource_version.unwrap();
        let old = json!({ "metadata": { "resourceVersion": version }, "spec": { "n": 3 } });
        assert_eq!(code(paper.patch(&id, &old, false)), Some(409));
        let edited = paper.patch(&id, &json!({ "spec": { "n": 3 }, "status": null }), false).unwrap();
        assert_eq!(
            (edited.metadata.generation, &edited.data["status"]["y"]),
            (Some(2), &json!(2)),
            "all but the status"
        );
        let before = paper.version();
        paper.patch(&id, &json!({ "spec": { "n": 3 } }), false).unwrap();
        assert_eq!(paper.version(), before, "nothing has changed");
    }

    #[test]
    fn finalizers_hold_an_object_and_what_it_owns_goes_after_it() {
        let (mut paper, now, id) = (Paper::default(), Timestamp::UNIX_EPOCH, PaperId::new("Job", "a", "j"));
        let made = paper.create(job(json!({})), now).unwrap();
        let mut child = job(json!({}));
        child.metadata.name = Some("child".into());
        let owner = json!([{ "apiVersion": "g/v1", "kind": "Job", "name": "j", "uid": made.metadata.uid }]);
        child.metadata.owner_references = serde_json::from_value(owner).unwrap();
        paper.create(child, now).unwrap();
        paper.patch(&id, &json!({ "metadata": { "finalizers": ["x/y"] } }), false).unwrap();
        assert_eq!(code(paper.delete(&id, Some("other"), now)), Some(409));
        paper.delete(&id, made.metadata.uid.as_deref(), now).unwrap();
        paper.collect(now);
        assert_eq!(paper.all().count(), 2);
        paper.patch(&id, &json!({ "metadata": { "finalizers": null } }), false).unwrap();
        assert_eq!(paper.all().count(), 1);
        paper.collect(now);
        assert_eq!(paper.all().count(), 0);
        let told: Vec<bool> = paper.since(0).iter().map(|entry| entry.after.is_some()).collect();
        assert_eq!(told, [true, true, true, true, false, false]);
    }
}
