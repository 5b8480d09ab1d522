//! What the server says when it says no. In: the facts of a refusal. Out: a `metav1.Status` with the code, reason, message and
//! causes that a real API server gives, because clients branch on them. It never holds a value of a Secret.

use crate::journal::JournalFailure;
use serde_json::{Value, json};
use std::fmt;

/// One refusal, ready to be sent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) details: Option<Value>,
}

/// The thing a refusal speaks of: a resource, and perhaps one object of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About<'a> {
    pub(crate) group: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) plural: &'a str,
    pub(crate) name: &'a str,
}

impl About<'_> {
    /// `preheats.stoker.dev`, or `nodes` for the core group.
    fn resource(&self) -> String {
        qualified(self.plural, self.group)
    }

    fn details(&self, kind: &str) -> Value {
        let mut details = json!({ "kind": kind });
        if !self.name.is_empty() {
            details["name"] = json!(self.name);
        }
        if !self.group.is_empty() {
            details["group"] = json!(self.group);
        }
        details
    }
}

fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

/// One wrong field of an object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cause {
    pub(crate) reason: &'static str,
    pub(crate) field: String,
    pub(crate) message: String,
}

impl Cause {
    /// `Invalid value: <value>: <detail>`.
    pub(crate) fn invalid(field: impl Into<String>, value: &Value, detail: impl fmt::Display) -> Self {
        Self::new("FieldValueInvalid", field, format!("Invalid value: {}: {detail}", brief(value)))
    }

    pub(crate) fn required(field: impl Into<String>, detail: &str) -> Self {
        let message = if detail.is_empty() { "Required value".to_owned() } else { format!("Required value: {detail}") };
        Self::new("FieldValueRequired", field, message)
    }

    pub(crate) fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self::new("FieldValueDuplicate", field, format!("Duplicate value: {}", brief(value)))
    }

    pub(crate) fn forbidden(field: impl Into<String>, detail: impl fmt::Display) -> Self {
        Self::new("FieldValueForbidden", field, format!("Forbidden: {detail}"))
    }

    pub(crate) fn unsupported(field: impl Into<String>, value: &Value, known: &[Value]) -> Self {
        let known = known.iter().map(brief).collect::<Vec<_>>().join(", ");
        let message = format!("Unsupported value: {}: supported values: {known}", brief(value));
        Self::new("FieldValueNotSupported", field, message)
    }

    pub(crate) fn new(reason: &'static str, field: impl Into<String>, message: String) -> Self {
        Self { reason, field: field.into(), message }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = if self.field.is_empty() { "<nil>" } else { &self.field };
        write!(f, "{field}: {}", self.message)
    }
}

/// A value as it may stand in a message: short, whatever the client sent.
fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(160) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

impl Refusal {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn forbidden(about: About<'_>, why: impl fmt::Display) -> Self {
        let message = format!("{} {:?} is forbidden: {why}", about.resource(), about.name);
        Self::new(403, "Forbidden", message).with(about.details(about.plural))
    }

    pub(crate) fn namespace_ending(about: About<'_>, namespace: &str) -> Self {
        let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut refusal = Self::forbidden(about, why);
        if let Some(details) = &mut refusal.details {
            details["causes"] = json!([{
                "reason": "NamespaceTerminating", "field": "metadata.namespace",
                "message": format!("namespace {namespace} is being terminated"),
            }]);
        }
        refusal
    }

    /// A parameter of a request that is none of the known ones. `options` is what a real server calls those of this method.
    pub(crate) fn unsupported_option(options: &str, field: &str, value: &Value, known: &[&str]) -> Self {
        let known: Vec<Value> = known.iter().map(|text| json!(text)).collect();
        Self::wrong_option(options, Cause::unsupported(field, value, &known))
    }

    /// Parameters of a request that do not fit together.
    pub(crate) fn wrong_option(options: &str, cause: Cause) -> Self {
        let about = About { group: "meta.k8s.io", kind: options, plural: "", name: "" };
        Self::invalid(about, &[cause])
    }

    pub(crate) fn not_found(about: About<'_>) -> Self {
        let message = format!("{} {:?} not found", about.resource(), about.name);
        Self::new(404, "NotFound", message).with(about.details(about.plural))
    }

    /// An object, if it is there, has no such part here. A real server says that the object or the resource is missing.
    pub(crate) fn no_subresource(about: About<'_>, subresource: &str, stored_only: bool) -> Self {
        let resource = about.resource();
        let why = if stored_only { format!(", which only stores {resource}") } else { String::new() };
        let message = format!("{resource} have no subresource {subresource:?} on this server{why}");
        Self::new(404, "NotFound", message).with(about.details(about.plural))
    }

    /// A path of a built-in group that nothing answers.
    pub(crate) fn no_such_resource() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource").with(json!({}))
    }

    /// A path that nothing answers at all: the only refusal that is no Status, but this text.
    pub(crate) fn no_page() -> Self {
        Self::new(404, "", "404 page not found\n")
    }

    /// What of it is no Status.
    pub(crate) fn text(&self) -> Option<&str> {
        self.reason.is_empty().then_some(&self.message)
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
            .with(json!({}))
    }

    pub(crate) fn already_exists(about: About<'_>) -> Self {
        let message = format!("{} {:?} already exists", about.resource(), about.name);
        Self::new(409, "AlreadyExists", message).with(about.details(about.plural))
    }

    /// It is there, but not for long.
    pub(crate) fn still_exists(about: About<'_>) -> Self {
        let refusal = Self::already_exists(about);
        Self { message: format!("object is being deleted: {}", refusal.message), ..refusal }
    }

    pub(crate) fn conflict(about: About<'_>, why: impl fmt::Display) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {:?}: {why}", about.resource(), about.name);
        Self::new(409, "Conflict", message).with(about.details(about.plural))
    }

    /// The usual conflict: somebody else wrote in between.
    pub(crate) fn modified(about: About<'_>) -> Self {
        Self::conflict(
            about,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!("the request is larger than the limit of {limit} bytes; send less at once");
        Self::new(413, "RequestEntityTooLarge", message)
    }

    pub(crate) fn unsupported_media(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub(crate) fn not_acceptable(accepted: &[&str]) -> Self {
        let message = format!("only the following media types are accepted: {}", accepted.join(", "));
        Self::new(406, "NotAcceptable", message)
    }

    pub(crate) fn invalid(about: About<'_>, causes: &[Cause]) -> Self {
        let texts = causes.iter().map(Cause::to_string).collect::<Vec<_>>();
        let text = match texts.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let message = format!("{} {:?} is invalid: {text}", qualified(about.kind, about.group), about.name);
        let mut details = about.details(about.kind);
        details["causes"] = causes
            .iter()
            .map(|cause| json!({"reason": cause.reason, "message": cause.message, "field": cause.field}))
            .collect();
        Self::new(422, "Invalid", message).with(details)
    }

    pub(crate) fn not_implemented(what: &str, instead: &str) -> Self {
        Self::new(501, "NotImplemented", format!("{what} is not supported by this server; {instead}"))
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "InternalError", format!("Internal error occurred: {}", message.into()))
    }

    /// The write did not become durable, so it did not happen.
    pub(crate) fn not_stored(failure: &JournalFailure) -> Self {
        match failure.full {
            true => Self::new(507, "InsufficientStorage", format!("nothing was written: {failure}")),
            false => Self::internal(format!("nothing was written: {failure}")),
        }
    }

    fn with(mut self, details: Value) -> Self {
        self.details = Some(details);
        self
    }

    /// The body to send.
    pub(crate) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        });
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABOUT: About<'_> = About { group: "stoker.dev", kind: "Preheat", plural: "preheats", name: "x" };

    #[test]
    fn messages_are_those_of_a_real_server() {
        let cause = Cause::invalid("spec.pace.parallelism", &json!(-1), "should be greater than or equal to 0");
        let cases = [
            (Refusal::not_found(ABOUT), 404, r#"preheats.stoker.dev "x" not found"#),
            (Refusal::already_exists(ABOUT), 409, r#"preheats.stoker.dev "x" already exists"#),
            (
                Refusal::invalid(ABOUT, &[cause]),
                422,
                r#"Preheat.stoker.dev "x" is invalid: spec.pace.parallelism: Invalid value: -1: should be greater than or equal to 0"#,
            ),
            (
                Refusal::modified(About { group: "", kind: "Node", plural: "nodes", name: "n" }),
                409,
                r#"Operation cannot be fulfilled on nodes "n": the object has been modified; please apply your changes to the latest version and try again"#,
            ),
        ];
        for (refusal, code, message) in cases {
            assert_eq!((refusal.code, refusal.message.as_str()), (code, message));
            assert_eq!(refusal.status()["code"], json!(code));
        }
    }

    #[test]
    fn long_values_are_cut() {
        let text = brief(&json!("ä".repeat(1000)));
        assert!(text.chars().count() < 200, "{text}");
    }
}
