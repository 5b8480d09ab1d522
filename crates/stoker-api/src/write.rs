//! Changes of API objects as values: made by pure functions, performed by whoever holds a client.

use kube_core::Status;
use kube_core::discovery::ApiResource;
use kube_core::dynamic::DynamicObject;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Which object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its kind.
    pub resource: ApiResource,
    /// Its namespace, where it has one.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

impl Target {
    /// The target of an object that was read.
    pub fn of(resource: ApiResource, object: &DynamicObject) -> Self {
        let name = object.metadata.name.clone().unwrap_or_default();
        Self { resource, namespace: object.metadata.namespace.clone(), name }
    }
}

/// One change of one object.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// A JSON merge patch of the object itself.
    Patch(Target, Value),
    /// A JSON merge patch of its status.
    Status(Target, Value),
    /// A JSON merge patch of the object as it is in the one version that the patch names: what somebody else has changed meanwhile
    /// ends it.
    Guarded(Target, Value),
    /// The same of its status.
    GuardedStatus(Target, Value),
    /// A new object.
    Create(Target, Value),
    /// The object goes, if it is still the one with this uid.
    Delete(Target, Option<String>),
}

impl Write {
    /// The object that it changes.
    pub fn target(&self) -> &Target {
        match self {
            Write::Patch(target, _)
            | Write::Status(target, _)
            | Write::Guarded(target, _)
            | Write::GuardedStatus(target, _)
            | Write::Create(target, _)
            | Write::Delete(target, _) => target,
        }
    }
}

/// Whether the API server has refused a write because of what the write says: the same write is refused however often it is tried,
/// and a part of it may be taken.
pub fn is_refused_for_its_content(status: &Status) -> bool {
    // etcd's limit on the size of an object comes as a 500 with these words.
    matches!(status.code, 400 | 413 | 422) || status.message.contains("request is too large")
}

/// The change of an object's status, if there is one. It carries the uid: an object that was deleted and made anew
/// under the same name refuses what was meant for its predecessor. Fields that `S` does not have are somebody else's, and stay.
/// Conditions are one list of all their writers: a patch of them is for the one version of the object that they were read from.
pub(crate) fn status_write<S: Serialize + DeserializeOwned>(
    resource: ApiResource,
    object: &DynamicObject,
    status: &S,
) -> Option<Write> {
    let from = object.data.get("status").cloned().unwrap_or_default();
    let own = serde_json::from_value::<S>(from.clone()).and_then(serde_json::to_value).unwrap_or_default();
    let patch = difference(&from, &own, &serde_json::to_value(status).ok()?)?;
    let metadata = &object.metadata;
    let version = metadata.resource_version.as_ref().filter(|_| patch.get("conditions").is_some());
    let guards = [("uid", metadata.uid.as_ref()), ("resourceVersion", version)];
    let guards = guards.into_iter().filter_map(|(field, value)| Some((field.to_string(), json!(value?))));
    let guards: Map<String, Value> = guards.collect();
    let mut write = json!({ "status": patch });
    if let Some(whole) = write.as_object_mut().filter(|_| !guards.is_empty()) {
        whole.insert("metadata".into(), Value::Object(guards));
    }
    Some(Write::Status(Target::of(resource, object), write))
}

/// The merge patch that makes `to` of `from` where both are objects; `None` where they are the same. Of what `to` does not have only
/// that is taken away which is `own`.
fn difference(from: &Value, own: &Value, to: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (from, to) else {
        return (from != to).then(|| to.clone());
    };
    let gone = old.keys().filter(|key| !new.contains_key(*key) && own.get(key.as_str()).is_some());
    let gone = gone.map(|key| (key.clone(), Value::Null));
    let changed = new.iter().filter_map(|(key, value)| match old.get(key) {
        None | Some(Value::Null) => (!value.is_null()).then(|| (key.clone(), value.clone())),
        Some(before) => {
            let own = own.get(key).unwrap_or(&Value::Null);
            difference(before, own, value).map(|patch| (key.clone(), patch))
        }
    });
    let patch: Map<String, Value> = gone.chain(changed).collect();
    (!patch.is_empty()).then_some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_refused_for_what_it_says_or_may_be_taken_later() {
        for (code, message, refused) in [
            (400, "cannot decode", true),
            (413, "limit is 3145728", true),
            (422, "status.reports: Invalid value", true),
            (500, "etcdserver: request is too large", true),
            (500, "etcdserver: leader changed", false),
            (403, "forbidden", false),
            (404, "not found", false),
            (409, "the object has been modified", false),
            (429, "too many requests", false),
            (503, "apiserver is shutting down", false),
        ] {
            let status = Status::failure(message, "").with_code(code);
            assert_eq!(is_refused_for_its_content(&status), refused, "{code} {message}");
        }
    }

    #[test]
    fn differences_are_merge_patches() {
        let cases = [
            (json!({"a": 1}), json!({"a": 1}), None),
            (json!({"a": 1, "b": 2}), json!({"a": 1}), Some(json!({"b": null}))),
            (json!({}), json!({"a": {"b": 1}}), Some(json!({"a": {"b": 1}}))),
            (json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": 1, "c": 3}}), Some(json!({"a": {"c": 3}}))),
            (json!({"a": [1]}), json!({"a": [1, 2]}), Some(json!({"a": [1, 2]}))),
            (json!(null), json!({"a": 1}), Some(json!({"a": 1}))),
        ];
        for (from, to, patch) in cases {
            assert_eq!(difference(&from, &from, &to), patch, "{from} -> {to}");
        }
    }

    #[test]
    fn what_others_have_written_stays() {
        let (from, own) = (json!({"a": 1, "b": 2, "c": {"d": 1, "e": 2}}), json!({"a": 1, "c": {"d": 1}}));
        assert_eq!(difference(&from, &own, &json!({"c": {}})), Some(json!({"a": null, "c": {"d": null}})));
        assert_eq!(difference(&from, &own, &own), None);
    }
}
