//! One stored object and the rules of `metadata`. In: JSON from a client. Out: an immutable object that is serialised at most
//! once, or the causes why its metadata is wrong. It knows no kind.

use crate::refusal::Cause;
use crate::select::{is_label_key, is_label_value};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::sync::OnceLock;

/// Where an object lives inside its table: namespace (empty for cluster scope) and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// An object as it is stored: never changed, only replaced.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) value: Value,
    pub(crate) revision: u64,
    json: OnceLock<Bytes>,
}

impl Object {
    /// Stamps the revision into the metadata and seals the object. One that was never stored (a dry run) has revision 0.
    pub(crate) fn seal(mut value: Value, revision: u64) -> Self {
        if revision > 0 {
            metadata_mut(&mut value).insert("resourceVersion".to_owned(), json!(revision.to_string()));
        }
        Self { value, revision, json: OnceLock::new() }
    }

    /// An object of the past, from its JSON.
    pub(crate) fn parse(json: &Bytes) -> Option<Self> {
        let value: Value = serde_json::from_slice(json).ok()?;
        let revision = text(&value, "resourceVersion").parse().ok()?;
        Some(Self { value, revision, json: OnceLock::from(json.clone()) })
    }

    /// The JSON of the stored form; every list, watch and history shares these bytes.
    pub(crate) fn json(&self) -> Bytes {
        // They are kept as long as the object, so without the room that the text left while it grew.
        let text = || Bytes::from(self.value.to_string().into_boxed_str().into_boxed_bytes());
        self.json.get_or_init(text).clone()
    }

    pub(crate) fn key(&self) -> Key {
        Key::new(text(&self.value, "namespace"), text(&self.value, "name"))
    }

    pub(crate) fn uid(&self) -> &str {
        text(&self.value, "uid")
    }

    pub(crate) fn is_deleting(&self) -> bool {
        meta(&self.value, "deletionTimestamp").is_some()
    }
}

/// A field of `metadata`.
pub(crate) fn meta<'a>(value: &'a Value, field: &str) -> Option<&'a Value> {
    value.get("metadata").and_then(|m| m.get(field)).filter(|v| !v.is_null())
}

/// A text field of `metadata`, empty where it is absent.
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    meta(value, field).and_then(Value::as_str).unwrap_or_default()
}

/// The finalizers of an object.
pub(crate) fn finalizers(value: &Value) -> Vec<&str> {
    let list = meta(value, "finalizers").and_then(Value::as_array);
    list.map(|l| l.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
}

/// The `metadata` map, made where it is missing or not a map.
pub(crate) fn metadata_mut(value: &mut Value) -> &mut Map<String, Value> {
    field_map_mut(object_mut(value), "metadata")
}

/// `value` as a map; anything else becomes an empty one.
pub(crate) fn object_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("the lines above made it a map"),
    }
}

fn field_map_mut<'a>(map: &'a mut Map<String, Value>, field: &str) -> &'a mut Map<String, Value> {
    object_mut(map.entry(field).or_insert_with(|| json!({})))
}

/// An RFC 1123 subdomain: most names.
pub(crate) fn is_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_plain_label)
}

/// An RFC 1123 label: names of namespaces.
pub(crate) fn is_dns_label(name: &str) -> bool {
    name.len() <= 63 && is_plain_label(name)
}

fn is_plain_label(label: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = label.as_bytes();
    bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
        && edge(bytes.first())
        && edge(bytes.last())
}

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
/// All annotations of an object together, as a real server bounds them.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// How the names of a kind are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameRule {
    Subdomain,
    Label,
}

/// Every rule of `metadata` that holds for all kinds.
pub(crate) fn check_metadata(value: &Value, rule: NameRule) -> Vec<Cause> {
    let mut causes = Vec::new();
    check_name(value, rule, &mut causes);
    check_labels(value, &mut causes);
    check_annotations(value, &mut causes);
    check_finalizers(value, &mut causes);
    check_owners(value, &mut causes);
    causes
}

fn check_name(value: &Value, rule: NameRule, causes: &mut Vec<Cause>) {
    let name = text(value, "name");
    let (good, advice, longest) = match rule {
        NameRule::Subdomain => (is_subdomain(name), SUBDOMAIN, 253),
        NameRule::Label => (is_dns_label(name), LABEL, 63),
    };
    if name.is_empty() {
        causes.push(Cause::required("metadata.name", "name or generateName is required"));
    } else if name.len() > longest {
        let detail = format!("must be no more than {longest} characters");
        causes.push(Cause::invalid("metadata.name", &json!(name), detail));
    } else if rule == NameRule::Label && is_subdomain(name) && name.contains('.') {
        causes.push(Cause::invalid("metadata.name", &json!(name), "must not contain dots"));
    } else if !good {
        causes.push(Cause::invalid("metadata.name", &json!(name), advice));
    }
}

fn check_labels(value: &Value, causes: &mut Vec<Cause>) {
    let Some(labels) = meta(value, "labels") else { return };
    let Some(labels) = labels.as_object() else {
        causes.push(Cause::invalid("metadata.labels", labels, "must be a map of strings"));
        return;
    };
    for (key, label) in labels {
        if !is_label_key(key) {
            causes.push(Cause::invalid("metadata.labels", &json!(key), "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"));
        }
        if !label.as_str().is_some_and(is_label_value) {
            causes.push(Cause::invalid("metadata.labels", label, "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"));
        }
    }
}

fn check_annotations(value: &Value, causes: &mut Vec<Cause>) {
    let Some(annotations) = meta(value, "annotations") else { return };
    let Some(annotations) = annotations.as_object() else {
        causes.push(Cause::invalid("metadata.annotations", &json!("…"), "must be a map of strings"));
        return;
    };
    let mut size = 0;
    for (key, annotation) in annotations {
        if !is_label_key(&key.to_ascii_lowercase()) {
            causes.push(Cause::invalid("metadata.annotations", &json!(key), "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"));
        }
        match annotation.as_str() {
            Some(text) => size += key.len() + text.len(),
            None => causes.push(Cause::invalid(format!("metadata.annotations.{key}"), annotation, "must be a string")),
        }
    }
    if size > MAX_ANNOTATIONS {
        let message = format!("Too long: may not be more than {MAX_ANNOTATIONS} bytes");
        causes.push(Cause::new("FieldValueTooLong", "metadata.annotations", message));
    }
}

fn check_finalizers(value: &Value, causes: &mut Vec<Cause>) {
    let Some(list) = meta(value, "finalizers") else { return };
    let Some(list) = list.as_array() else {
        causes.push(Cause::invalid("metadata.finalizers", list, "must be a list of strings"));
        return;
    };
    for (at, finalizer) in list.iter().enumerate() {
        if !finalizer.as_str().is_some_and(is_label_key) {
            let field = format!("metadata.finalizers[{at}]");
            causes.push(Cause::invalid(field, finalizer, "must be a qualified name such as example.com/cleanup"));
        }
    }
}

fn check_owners(value: &Value, causes: &mut Vec<Cause>) {
    let Some(list) = meta(value, "ownerReferences") else { return };
    let Some(list) = list.as_array() else {
        causes.push(Cause::invalid("metadata.ownerReferences", list, "must be a list"));
        return;
    };
    let mut controllers = 0;
    for owner in list {
        for (field, detail) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if owner.get(field).and_then(Value::as_str).is_none_or(str::is_empty) {
                causes.push(Cause::invalid(format!("metadata.ownerReferences.{field}"), &json!(""), detail));
            }
        }
        controllers += usize::from(owner.get("controller") == Some(&json!(true)));
    }
    if controllers > 1 {
        let detail = "Only one reference can have Controller set to true";
        causes.push(Cause::invalid("metadata.ownerReferences", &json!(controllers), detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_by_rfc_1123() {
        for (name, subdomain, label) in [
            ("a", true, true),
            ("a-b.c", true, false),
            ("A", false, false),
            ("a_b", false, false),
            ("-a", false, false),
            ("a-", false, false),
            ("a..b", false, false),
            ("", false, false),
        ] {
            assert_eq!((is_subdomain(name), is_dns_label(name)), (subdomain, label), "{name}");
        }
    }

    #[test]
    fn wrong_metadata_names_the_field() {
        for (metadata, field) in [
            (json!({}), "metadata.name"),
            (json!({"name": "X"}), "metadata.name"),
            (json!({"name": "x", "labels": {"a b": "c"}}), "metadata.labels"),
            (json!({"name": "x", "labels": {"a": 1}}), "metadata.labels"),
            (json!({"name": "x", "annotations": {"a": 1}}), "metadata.annotations.a"),
            (json!({"name": "x", "finalizers": [""]}), "metadata.finalizers[0]"),
            (
                json!({"name": "x", "ownerReferences": [{"uid": "u", "kind": "K", "name": "n"}]}),
                "metadata.ownerReferences.apiVersion",
            ),
        ] {
            let causes = check_metadata(&json!({"metadata": metadata}), NameRule::Subdomain);
            assert_eq!(causes.first().map(|c| c.field.as_str()), Some(field), "{metadata}");
        }
        let good = json!({"metadata": {"name": "x", "labels": {"a.b/c": "D_1"}, "annotations": {"Ab/c": "any ä"}}});
        assert_eq!(check_metadata(&good, NameRule::Subdomain), []);
    }
}
