//! What is checked of an object beside its schema: that clients can read it, what a patch may not change, and the rules that a
//! kind has as data. In: the object, and the one before. Out: a refusal, causes of one, or warnings. Pure; nothing here names a
//! kind.

use super::Target;
use crate::kind::{Kind, Served};
use crate::object::{Object, finalizers, text};
use crate::refusal::{About, Cause, Refusal};
use base64::Engine as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize as _;
use serde_json::{Value, json};

const ON_WISH: &str = "field is immutable when `immutable` is set";
const WRONG_TYPE: &str = "a field has a wrong type, or is not encoded as it must be";
const PREFER_QUALIFIED: &str =
    "prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers";

/// The rules of the kind that are not kept.
pub(super) fn of_kind(served: &Served, value: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = match old {
        Some(old) => changed(served, value, old),
        None => elsewhere(served, value).into_iter().collect(),
    };
    causes.extend(content(served, value));
    causes
}

/// Refuses what a client of the kind could not read: one such object would spoil every list that it is in.
pub(super) fn readable(served: &Served, body: &Value) -> Result<(), Refusal> {
    let kind = &served.kind;
    let metadata = body.get("metadata").filter(|metadata| !metadata.is_null());
    let read = metadata.map_or(Ok(()), |metadata| ObjectMeta::deserialize(metadata).map(drop));
    let read = read.and_then(|()| kind.typed.map_or(Ok(()), |typed| typed(body)));
    read.map_err(|problem| {
        // Where content is encoded, it is not for messages.
        let why = if kind.encoded.is_some() { WRONG_TYPE.to_owned() } else { problem.to_string() };
        Refusal::bad_request(cannot(served, &why))
    })
}

/// A real server's words for a body that it cannot read.
pub(super) fn cannot(served: &Served, why: &str) -> String {
    let (kind, version) = (&served.kind.kind, &served.version().name);
    format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}")
}

/// What a patch may not change, in the words that a real server has for each.
pub(super) fn patched(target: &Target, current: &Object, value: &Value) -> Result<(), Refusal> {
    let kind = &target.served.kind;
    let name = text(value, "name");
    if name.is_empty() {
        let what = format!("the name of the object ({} based on URL) was undeterminable", target.name);
        return Err(Refusal::bad_request(format!("{what}: name must be provided")));
    }
    let version = value.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    if (kind.custom || !version.is_empty()) && version != target.served.api_version() {
        let detail = format!("must be {}", target.served.api_version());
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let about = About { group, ..target.about() };
        return Err(Refusal::invalid(about, &[Cause::invalid("apiVersion", &json!(version), detail)]));
    }
    let uid = text(value, "uid");
    if !uid.is_empty() && uid != current.uid() {
        let cause = Cause::invalid("metadata.uid", &json!(uid), "field is immutable");
        return Err(Refusal::invalid(target.about(), &[cause]));
    }
    Ok(())
}

/// Fields that may not be changed and were.
fn changed(served: &Served, value: &Value, old: &Value) -> Vec<Cause> {
    let differs = |field: &&&str| value.get(**field) != old.get(**field);
    let fixed = served.kind.fixed.iter().filter(differs).map(|field| {
        let found = value.get(*field).cloned().unwrap_or_default();
        Cause::invalid(*field, &found, "field is immutable")
    });
    let immutable = Some(&json!(true));
    let wished = served.kind.fixed_on_wish.iter().filter(|_| old.get("immutable") == immutable);
    let wished = wished.filter(differs).map(|field| Cause::forbidden(*field, ON_WISH));
    let lifted = old.get("immutable") == immutable && value.get("immutable") != immutable;
    let lifted =
        lifted.then(|| Cause::forbidden("immutable", ON_WISH)).filter(|_| !served.kind.fixed_on_wish.is_empty());
    fixed.chain(lifted).chain(wished).collect()
}

/// A reference into another namespace. What is in no namespace is spoken of in the default one.
fn elsewhere(served: &Served, value: &Value) -> Option<Cause> {
    let field = served.kind.about?;
    let other = value.get(field)?.get("namespace").and_then(Value::as_str).unwrap_or_default();
    let own = text(value, "namespace");
    let fits = other == own || other.is_empty() && own == "default";
    let detail = format!("does not match {}.namespace", served.kind.singular);
    (!fits).then(|| Cause::invalid(format!("{field}.namespace"), &json!(other), detail))
}

/// What objects of a type must hold, and do not.
fn content(served: &Served, value: &Value) -> Option<Cause> {
    let (_, encoded) = served.kind.encoded?;
    let is_of = |(kind, _): &&(&str, &str)| value.get("type").and_then(Value::as_str) == Some(*kind);
    let (_, key) = served.kind.content.iter().find(is_of)?;
    let field = format!("{encoded}[{key}]");
    let Some(found) = value.get(encoded).and_then(|data| data.get(key)).and_then(Value::as_str) else {
        return Some(Cause::required(field, ""));
    };
    let bytes = base64::engine::general_purpose::STANDARD.decode(found).unwrap_or_default();
    let problem = serde_json::from_slice::<Value>(&bytes).err()?;
    let detail = format!("not JSON at line {} column {}", problem.line(), problem.column());
    Some(Cause::invalid(field, &json!("<secret contents redacted>"), detail))
}

/// A warning for whoever makes an object that nothing acts on.
pub(super) fn stored_only(kind: &Kind) -> Option<String> {
    let what = &kind.plural;
    kind.stored_only.then(|| format!("this server only stores {what}: nothing acts on them, and no container starts"))
}

/// A warning for each finalizer that is new and that anybody might use.
pub(super) fn unqualified(value: &Value, old: Option<&Value>) -> Vec<String> {
    let known = old.map(finalizers).unwrap_or_default();
    let new = finalizers(value).into_iter().filter(|finalizer| !finalizer.contains('/') && !known.contains(finalizer));
    let standard = |finalizer: &&str| !["foregroundDeletion", "kubernetes", "orphan"].contains(finalizer);
    new.filter(standard).map(|finalizer| format!("metadata.finalizers: {finalizer:?}: {PREFER_QUALIFIED}")).collect()
}
