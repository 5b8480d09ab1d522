//! Get and list. In: a target, selectors, a page. Out: objects of one moment. It never writes.

use crate::kind::Served;
use crate::object::{Key, Object, meta, text};
use crate::refusal::{Cause, Refusal};
use crate::request::Query;
use crate::store::{Snapshot, Store, Unknown};
use crate::table::jsonpath::JsonPath;
use crate::write::Target;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use std::sync::Arc;

/// A field selector whose fields the kind knows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Filter {
    labels: crate::select::Labels,
    /// What must have this value, or must not.
    names: Vec<(Name, String, bool)>,
    fields: Vec<(JsonPath, String, bool)>,
}

/// What every object has, and its key says.
#[derive(Debug, Clone, Copy)]
enum Name {
    Own,
    Namespace,
}

impl Filter {
    pub(crate) fn new(query: &Query, served: &Served) -> Result<Self, Refusal> {
        let (mut names, mut fields) = (Vec::new(), Vec::new());
        for term in &query.fields.0 {
            let label = term.field.as_str();
            let name = match label {
                "metadata.name" => Some(Name::Own),
                "metadata.namespace" => Some(Name::Namespace),
                _ => None,
            };
            if let Some(name) = name {
                names.push((name, term.value.clone(), term.equal));
                continue;
            }
            let field = served.version().fields.iter().find(|field| field.label == label);
            let field = field.ok_or_else(|| Refusal::bad_request(format!("field label not supported: {label}")))?;
            fields.push((field.path.clone(), term.value.clone(), term.equal));
        }
        Ok(Self { labels: query.labels.clone(), names, fields })
    }

    /// Whether nothing but the key of an object decides.
    pub(crate) fn of_names_alone(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether the names of an object are those that are wanted.
    pub(crate) fn fits_key(&self, key: &Key) -> bool {
        self.names.iter().all(|(name, wanted, equal)| {
            let found = match name {
                Name::Own => &key.name,
                Name::Namespace => &key.namespace,
            };
            (found == wanted) == *equal
        })
    }

    pub(crate) fn matches(&self, object: &Object) -> bool {
        let fits = |(path, wanted, equal): &(JsonPath, String, bool)| {
            let found = path.find(&object.value).first().map(|v| plain(v)).unwrap_or_default();
            (found == *wanted) == *equal
        };
        (self.names.is_empty() || self.fits_key(&object.key()))
            && (self.labels.is_empty() || self.labels.matches(meta(&object.value, "labels")))
            && self.fields.iter().all(fits)
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// One page of a list.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) revision: u64,
    pub(crate) objects: Vec<Arc<Object>>,
    pub(crate) next: Option<String>,
    pub(crate) remaining: Option<usize>,
}

pub(crate) fn list(store: &Store, target: &Target, query: &Query) -> Result<Page, Refusal> {
    check(query)?;
    let filter = Filter::new(query, &target.served)?;
    let token = query.continue_token.as_deref().map(ContinueToken::decode).transpose()?;
    let at = match (&token, query.resource_version) {
        (Some(token), _) => Some(token.revision),
        (None, Some(revision)) if query.exact => Some(revision),
        (None, Some(revision)) if revision > store.revision() => {
            return Err(too_new(revision, store.revision()));
        }
        _ => None,
    };
    let namespace = (!target.namespace.is_empty()).then_some(target.namespace.as_str());
    let table = &target.served.kind.table;
    let Snapshot { revision, objects } = store.snapshot(table, namespace, at).map_err(|unknown| match unknown {
        Unknown::TooOld(_) if token.is_none() => {
            Refusal::expired("The resourceVersion for the provided list is too old.")
        }
        unknown => refuse(unknown, at.unwrap_or(0), token.is_some()),
    })?;
    let after = |object: &Arc<Object>| token.as_ref().is_none_or(|token| token.start < start_of(object));
    let mut objects: Vec<_> = objects.into_iter().filter(after).filter(|o| filter.matches(o)).collect();
    let limit = query.limit.unwrap_or(usize::MAX);
    let remaining = objects.len().checked_sub(limit).filter(|left| *left > 0);
    objects.truncate(limit);
    let last = objects.last().filter(|_| remaining.is_some());
    let next = last.map(|object| ContinueToken { revision, start: start_of(object) }.encode());
    Ok(Page { revision, objects, next, remaining })
}

/// A match needs a version to match; a page goes on at the version it has.
fn check(query: &Query) -> Result<(), Refusal> {
    if !query.exact && !query.not_older {
        return Ok(());
    }
    let wrong = match query.resource_version {
        _ if query.continue_token.is_some() => "resourceVersionMatch is forbidden when continue is provided",
        None => "resourceVersionMatch is forbidden unless resourceVersion is provided",
        Some(0) if query.exact => "resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"",
        Some(_) => return Ok(()),
    };
    Err(Refusal::wrong_option("ListOptions", Cause::forbidden("resourceVersionMatch", wrong)))
}

fn start_of(object: &Object) -> (String, String) {
    (text(&object.value, "namespace").to_owned(), text(&object.value, "name").to_owned())
}

/// What a revision that cannot be served is told.
pub(crate) fn refuse(unknown: Unknown, wanted: u64, paged: bool) -> Refusal {
    match unknown {
        Unknown::TooOld(_) if paged => Refusal::expired(
            "The provided continue parameter is too old to display a consistent list result. You must start a new list without the continue parameter.",
        ),
        Unknown::TooOld(floor) => Refusal::expired(format!("too old resource version: {wanted} ({floor})")),
        Unknown::TooNew(now) => too_new(wanted, now),
        Unknown::NoTable => Refusal::no_page(),
    }
}

fn too_new(wanted: u64, now: u64) -> Refusal {
    let mut refusal =
        Refusal::new(504, "Timeout", format!("Timeout: Too large resource version: {wanted}, current: {now}"));
    refusal.details = Some(json!({
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }));
    refusal
}

/// Where the next page begins.
struct ContinueToken {
    revision: u64,
    start: (String, String),
}

impl ContinueToken {
    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(json!([self.revision, self.start.0, self.start.1]).to_string())
    }

    fn decode(text: &str) -> Result<Self, Refusal> {
        let read = || -> Option<Self> {
            let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
            let (revision, namespace, name) = serde_json::from_slice(&bytes).ok()?;
            Some(Self { revision, start: (namespace, name) })
        };
        read().ok_or_else(|| {
            Refusal::bad_request("continue key is not valid: use the value of metadata.continue of the page before")
        })
    }
}
