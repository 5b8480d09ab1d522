//! From a body to an object that may be stored. In: JSON of a stranger, for a kind and version. Out: the stored form, complete
//! (defaults) and clean (unknown fields gone), or a refusal. Pure.

use super::{Options, Target, about, checks, timestamp};
use crate::kind::{Role, Served, StatusUse};
use crate::object::{check_metadata, metadata_mut, object_mut, text};
use crate::random;
use crate::refusal::{About, Cause, Refusal};
use base64::Engine as _;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// What happens to fields that the schema does not know.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    /// Dropped in silence.
    Ignore,
    /// Dropped, with a warning header.
    #[default]
    Warn,
    /// The request is refused.
    Strict,
    /// The same for a patch, which a real server refuses with another code.
    StrictPatch,
}

/// Every namespace has it, so that selectors can name one.
const NAMESPACE_LABEL: &str = "kubernetes.io/metadata.name";

const METADATA: [&str; 15] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// The stored form of a body: its group, version and kind are checked, and its fields have the stored names.
pub(super) fn decode(served: &Served, mut body: Value) -> Result<Value, Refusal> {
    let kind = &served.kind;
    let Some(map) = body.as_object_mut() else {
        return Err(Refusal::bad_request(format!("the body must be a {} as a JSON object", kind.kind)));
    };
    let found =
        |map: &Map<String, Value>, field: &str| map.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (mut found_kind, mut found_version) = (found(map, "kind"), found(map, "apiVersion"));
    let wanted = served.api_version();
    if !kind.custom {
        // The URL says it, for kinds that a real server knows itself.
        let given = |text: String, default: &str| if text.is_empty() { default.to_owned() } else { text };
        (found_kind, found_version) = (given(found_kind, &kind.kind), given(found_version, &wanted));
    }
    if found_kind.is_empty() {
        return Err(Refusal::bad_request(format!("Object 'Kind' is missing: write kind: {}", kind.kind)));
    }
    if kind.custom && found_kind != kind.kind {
        // Custom kinds are checked by another part of a real server, which says it so.
        let cause = Cause::invalid("kind", &json!(found_kind), format!("must be {}", kind.kind));
        let name = map.get("metadata").and_then(|m| m.get("name")).and_then(Value::as_str).unwrap_or_default();
        return Err(Refusal::invalid(About { kind: &found_kind, ..about(kind, name) }, &[cause]));
    }
    if kind.custom && found_version != wanted {
        return Err(Refusal::bad_request(format!(
            "the API version in the data ({found_version}) does not match the expected API version ({wanted})"
        )));
    }
    if found_kind != kind.kind || found_version != wanted {
        return Err(Refusal::bad_request(format!(
            "the API version in the data ({found_version}, Kind={found_kind}) does not match the expected API version ({wanted}, Kind={})",
            kind.kind
        )));
    }
    checks::readable(served, &body)?;
    let map = object_mut(&mut body);
    for (here, stored) in served.version().renames {
        if let Some(value) = map.remove(*here) {
            map.insert((*stored).to_owned(), value);
        }
    }
    map.insert("apiVersion".to_owned(), json!(kind.stored_api_version));
    map.insert("kind".to_owned(), json!(kind.kind));
    metadata_mut(&mut body).retain(|_, value| !value.is_null());
    Ok(body)
}

/// The form of a stored object in the version that a client asked for.
pub(crate) fn present(served: &Served, stored: &Value) -> Value {
    let mut value = stored.clone();
    let version = served.version();
    let map = object_mut(&mut value);
    for (here, stored) in version.renames {
        if let Some(value) = map.remove(*stored) {
            map.insert((*here).to_owned(), value);
        }
    }
    map.insert("apiVersion".to_owned(), json!(served.api_version()));
    map.insert("kind".to_owned(), json!(served.kind.kind));
    // Defaults are those of the version that was written and of the stored one, not of the one that is read.
    if let Some(shape) = version.shape.as_ref().filter(|_| !version.storage) {
        shape.prune(&mut value);
    }
    value
}

/// Makes name and namespace of the body agree with those of the request.
pub(super) fn place(target: &Target, value: &mut Value) -> Result<(), Refusal> {
    let (name, namespace) = (text(value, "name"), text(value, "namespace"));
    if !target.name.is_empty() && !name.is_empty() && name != target.name {
        return Err(Refusal::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            target.name
        )));
    }
    if target.served.kind.namespaced && !namespace.is_empty() && namespace != target.namespace {
        return Err(Refusal::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let metadata = metadata_mut(value);
    if !target.name.is_empty() {
        metadata.insert("name".to_owned(), json!(target.name));
    }
    if target.namespace.is_empty() {
        metadata.remove("namespace");
    } else {
        metadata.insert("namespace".to_owned(), json!(target.namespace));
    }
    Ok(())
}

/// What the server alone says about a new object.
pub(super) fn newborn(served: &Served, value: &mut Value, now: Timestamp) -> Result<(), Refusal> {
    if !text(value, "resourceVersion").is_empty() {
        return Err(Refusal::bad_request("resourceVersion should not be set on objects to be created"));
    }
    if served.version().status == StatusUse::Dropped {
        object_mut(value).remove("status");
    }
    let metadata = metadata_mut(value);
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "generation"] {
        metadata.remove(field);
    }
    if served.kind.generation {
        metadata.insert("generation".to_owned(), json!(1));
    }
    metadata.insert("uid".to_owned(), json!(random::uid()?));
    metadata.insert("creationTimestamp".to_owned(), json!(timestamp(now)));
    Ok(())
}

/// Fills in what is absent, at every depth.
fn supply(value: &mut Value, from: &Value) {
    if let (Some(map), Some(from)) = (value.as_object_mut(), from.as_object()) {
        for (key, default) in from {
            match map.get_mut(key) {
                Some(found) => supply(found, default),
                None => {
                    map.insert(key.clone(), default.clone());
                }
            }
        }
    }
}

/// Prunes, fills in defaults and validates. Out: the warnings for the client.
pub(super) fn complete(
    served: &Served,
    value: &mut Value,
    old: Option<&Value>,
    options: Options<'_>,
) -> Result<Vec<String>, Refusal> {
    if let Some(born_with) = &served.kind.born_with {
        supply(value, born_with);
    }
    if served.kind.role == Role::Namespace {
        let name = text(value, "name").to_owned();
        let labels = metadata_mut(value).entry("labels").or_insert_with(|| json!({}));
        object_mut(labels).insert(NAMESPACE_LABEL.to_owned(), json!(name));
    }
    encode(served, value);
    let mut dropped = clean_metadata(value);
    let shape = served.version().shape.as_ref();
    if let Some(shape) = shape {
        dropped.extend(shape.prune(value));
        shape.fill(value);
    }
    let twice = options.repeated.iter().map(|path| format!("duplicate field {path:?}"));
    let texts: Vec<String> = twice.chain(dropped.iter().map(|path| format!("unknown field {path:?}"))).collect();
    let name = text(value, "name").to_owned();
    let mut warnings = unknown(served, &name, texts, options.validation)?;
    warnings.extend(checks::unqualified(value, old));
    let mut causes = check_metadata(value, served.kind.name_rule);
    if let Some(shape) = shape {
        causes.extend(shape.validate(value, old, &causes));
    }
    causes.extend(checks::of_kind(served, value, old));
    if !causes.is_empty() {
        return Err(Refusal::invalid(about(&served.kind, &name), &causes));
    }
    // What came in another version is stored as the stored one has it.
    if let Some(stored) = served.kind.storage().and_then(|v| v.shape.as_ref()).filter(|_| !served.version().storage) {
        stored.prune(value);
        stored.fill(value);
    }
    Ok(warnings)
}

fn unknown(
    served: &Served,
    name: &str,
    texts: Vec<String>,
    validation: FieldValidation,
) -> Result<Vec<String>, Refusal> {
    if texts.is_empty() {
        return Ok(Vec::new());
    }
    let kind = &served.kind;
    let strict = format!("strict decoding error: {}", texts.join(", "));
    match validation {
        FieldValidation::Ignore => Ok(Vec::new()),
        FieldValidation::Warn => Ok(texts),
        FieldValidation::Strict => Err(Refusal::bad_request(checks::cannot(served, &strict))),
        FieldValidation::StrictPatch => {
            let cause = Cause::invalid("patch", &json!("…"), strict);
            Err(Refusal::invalid(about(kind, name), &[cause]))
        }
    }
}

fn clean_metadata(value: &mut Value) -> Vec<String> {
    let mut dropped = Vec::new();
    let metadata = metadata_mut(value);
    metadata.retain(|field, _| {
        let known = METADATA.contains(&field.as_str());
        if !known {
            dropped.push(format!("metadata.{field}"));
        }
        known && field != "managedFields" && field != "selfLink"
    });
    // An empty map or list says the same as none; kept out, so that writing it changes nothing.
    metadata.retain(|_, value| {
        let empty = value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty);
        !empty
    });
    dropped
}

/// Moves plain text fields to where they are stored encoded.
fn encode(served: &Served, value: &mut Value) {
    let Some((from, to)) = served.kind.encoded else { return };
    let Some(Value::Object(plain)) = object_mut(value).remove(from) else { return };
    let target = object_mut(object_mut(value).entry(to).or_insert_with(|| json!({})));
    for (key, text) in plain {
        if let Some(text) = text.as_str() {
            let encoded = base64::engine::general_purpose::STANDARD.encode(text);
            target.insert(key, json!(encoded));
        }
    }
}
