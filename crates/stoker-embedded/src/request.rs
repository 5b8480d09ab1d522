//! From a URL to what is asked. In: method, path, query and headers of a stranger. Out: a [`Target`] and typed parameters, or a
//! refusal. It reads no body and no store.

use crate::collect::Propagation;
use crate::kind::{Catalog, Role};
use crate::refusal::Refusal;
use crate::select::{FieldTerm, Fields, Labels};
use crate::write::{FieldValidation, Target, about};
use http::header::ACCEPT;
use http::{HeaderMap, Method};
use serde_json::json;
use std::time::Duration;

/// The decoded parts of a path.
pub(crate) fn segments(path: &str) -> Result<Vec<String>, Refusal> {
    let decode = |part: &str| {
        let decoded = percent_encoding::percent_decode_str(part).decode_utf8();
        decoded.map(|d| d.into_owned()).map_err(|_| Refusal::bad_request("the path is not UTF-8"))
    };
    path.split('/').filter(|part| !part.is_empty()).map(decode).collect()
}

/// The resource that the part of a path after `/api/v1` or `/apis/GROUP/VERSION` names.
pub(crate) fn target(catalog: &Catalog, group: &str, version: &str, rest: &[&str]) -> Result<Target, Refusal> {
    let find = |plural: &str| catalog.resource(group, version, plural);
    let found = |plural: &str| find(plural).ok_or_else(|| nowhere(catalog, group));
    let (served, namespace, rest) = match rest {
        // A namespace's own subresources look the same; no resource has their names.
        ["namespaces", namespace, plural, rest @ ..] if find(plural).is_some_and(|served| served.kind.namespaced) => {
            (found(plural)?, *namespace, rest)
        }
        [plural, rest @ ..] => (found(plural)?, "", rest),
        [] => return Err(nowhere(catalog, group)),
    };
    // Without a namespace only the collection over all of them can be meant.
    if served.kind.namespaced && namespace.is_empty() && !rest.is_empty() {
        return Err(nowhere(catalog, group));
    }
    let (name, status) = match rest {
        [] => ("", false),
        [name] => (*name, false),
        [name, "status"] if served.version().status != crate::kind::StatusUse::Plain => (*name, true),
        // Rather a kind that is not served than a part of the namespace.
        [_, _, ..] if served.kind.role == Role::Namespace => return Err(nowhere(catalog, group)),
        [name, subresource, ..] => {
            return Err(Refusal::no_subresource(about(&served.kind, name), subresource, served.kind.stored_only));
        }
    };
    Ok(Target { served, namespace: namespace.to_owned(), name: name.to_owned(), status })
}

/// What is said where nothing is: groups that are built in have a word of their own for it.
pub(crate) fn nowhere(catalog: &Catalog, group: &str) -> Refusal {
    let built_in = catalog.kinds().any(|kind| kind.group == group && !kind.custom);
    // Of those that this server lacks, most have no dot in their names, which custom ones must have.
    match built_in || !group.contains('.') {
        true => Refusal::no_such_resource(),
        false => Refusal::no_page(),
    }
}

/// The parameters of a request.
#[derive(Debug, Default)]
pub(crate) struct Query {
    pub(crate) labels: Labels,
    pub(crate) fields: Fields,
    pub(crate) watch: bool,
    pub(crate) limit: Option<usize>,
    pub(crate) continue_token: Option<String>,
    pub(crate) resource_version: Option<u64>,
    pub(crate) exact: bool,
    pub(crate) not_older: bool,
    pub(crate) bookmarks: bool,
    pub(crate) initial_events: Option<bool>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) dry_run: bool,
    pub(crate) validation: FieldValidation,
    pub(crate) propagation: Option<Propagation>,
    pub(crate) pretty: bool,
    pub(crate) include: Include,
    /// What a real server calls the parameters of this method.
    options: &'static str,
}

/// What the rows of a table carry of their object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Include {
    #[default]
    Metadata,
    Object,
    None,
}

impl Query {
    pub(crate) fn parse(method: &Method, text: &str) -> Result<Self, Refusal> {
        let options = match *method {
            Method::POST => "CreateOptions",
            Method::PUT => "UpdateOptions",
            Method::PATCH => "PatchOptions",
            Method::DELETE => "DeleteOptions",
            _ => "ListOptions",
        };
        let mut query = Query { options, ..Query::default() };
        for (key, value) in form_urlencoded::parse(text.as_bytes()) {
            query.set(&key, &value)?;
        }
        Ok(query)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Refusal> {
        let wrong = |known: &str| Refusal::bad_request(format!("{key}: invalid value {value:?}: use {known}"));
        // Whatever does not deny, affirms: as a real server reads it.
        let flag = || !(value.eq_ignore_ascii_case("false") || value == "0");
        let said = |e: crate::select::SelectError| Refusal::bad_request(e.to_string());
        match key {
            "labelSelector" => self.labels = Labels::parse(value).map_err(said)?,
            "fieldSelector" => self.fields = Fields::parse(value).map_err(said)?,
            "watch" => self.watch = flag(),
            "allowWatchBookmarks" => self.bookmarks = flag(),
            "sendInitialEvents" => self.initial_events = Some(flag()),
            "pretty" => self.pretty = flag(),
            "limit" => {
                let limit: i64 = value.parse().map_err(|_| wrong("a number"))?;
                self.limit = usize::try_from(limit).ok().filter(|limit| *limit > 0);
            }
            "continue" => self.continue_token = (!value.is_empty()).then(|| value.to_owned()),
            "resourceVersion" if value.is_empty() => {}
            "resourceVersion" => {
                self.resource_version = Some(value.parse().map_err(|_| wrong("a version from a list"))?);
            }
            "resourceVersionMatch" => match value {
                "Exact" => self.exact = true,
                "NotOlderThan" => self.not_older = true,
                "" => {}
                _ => {
                    return Err(Refusal::unsupported_option(
                        self.options,
                        key,
                        &json!(value),
                        &["Exact", "NotOlderThan", ""],
                    ));
                }
            },
            "timeoutSeconds" => {
                let seconds: u32 = value.parse().map_err(|_| wrong("a number of seconds"))?;
                self.timeout = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
            }
            "dryRun" => match value {
                "All" => self.dry_run = true,
                "" => {}
                _ => return Err(Refusal::unsupported_option(self.options, key, &json!([value]), &["All"])),
            },
            "fieldValidation" => {
                self.validation = match value {
                    "Strict" => FieldValidation::Strict,
                    "Warn" | "" => FieldValidation::Warn,
                    "Ignore" => FieldValidation::Ignore,
                    _ => {
                        let known = ["", "Ignore", "Strict", "Warn"];
                        return Err(Refusal::unsupported_option(self.options, key, &json!(value), &known));
                    }
                }
            }
            "propagationPolicy" => self.propagation = propagation(value)?,
            "includeObject" => {
                self.include = match value {
                    "Object" => Include::Object,
                    "None" => Include::None,
                    "Metadata" | "" => Include::Metadata,
                    _ => return Err(wrong("None, Metadata or Object")),
                }
            }
            // A real server ignores what it does not know, too.
            _ => {}
        }
        Ok(())
    }

    /// The name that the field selector pins, if it pins one: such a watch is told of one object only.
    pub(crate) fn pinned(&self, field: &str) -> Option<&str> {
        let pins = |term: &&FieldTerm| term.equal && term.field == field;
        self.fields.0.iter().find(pins).map(|term| term.value.as_str())
    }
}

/// Reads a propagation policy, from a query or a body.
pub(crate) fn propagation(text: &str) -> Result<Option<Propagation>, Refusal> {
    match text {
        "" => Ok(None),
        "Background" => Ok(Some(Propagation::Background)),
        "Foreground" => Ok(Some(Propagation::Foreground)),
        "Orphan" => Ok(Some(Propagation::Orphan)),
        _ => {
            let known = ["Foreground", "Background", "Orphan", "nil"];
            Err(Refusal::unsupported_option("DeleteOptions", "propagationPolicy", &json!(text), &known))
        }
    }
}

/// Commands of kubectl that are not supported, and what to do instead. kubectl says which one it runs.
const REFUSED_COMMANDS: &[(&str, &str)] =
    &[("kubectl diff", "see what would be stored with kubectl apply --dry-run=server -o yaml")];

/// Refuses a command by its name, where its requests alone would not tell why it fails.
pub(crate) fn refuse_command(headers: &HeaderMap) -> Result<(), Refusal> {
    let command = headers.get("kubectl-command").and_then(|value| value.to_str().ok()).unwrap_or_default();
    match REFUSED_COMMANDS.iter().find(|(refused, _)| *refused == command) {
        Some((refused, instead)) => Err(Refusal::not_implemented(refused, instead)),
        None => Ok(()),
    }
}

/// Refuses to speak for another user: there is none, and an answer would be taken for theirs.
pub(crate) fn refuse_impersonation(headers: &HeaderMap) -> Result<(), Refusal> {
    match headers.keys().any(|name| name.as_str().starts_with("impersonate-")) {
        true => {
            Err(Refusal::not_implemented("impersonation", "it has one user; leave out --as, --as-group and --as-uid"))
        }
        false => Ok(()),
    }
}

/// The form of the answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Form {
    #[default]
    Plain,
    Table,
    Metadata,
    Discovery(&'static str),
}

/// The first form of the `Accept` header that can be served.
pub(crate) fn form(headers: &HeaderMap) -> Result<Form, Refusal> {
    let accepts: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok()).collect();
    if accepts.is_empty() {
        return Ok(Form::Plain);
    }
    let choices = accepts.iter().flat_map(|line| line.split(','));
    choices.filter_map(choice).next().ok_or_else(|| Refusal::not_acceptable(&["application/json"]))
}

fn choice(text: &str) -> Option<Form> {
    let mut parts = text.split(';').map(str::trim);
    let media = parts.next()?;
    if !matches!(media, "application/json" | "*/*" | "application/*" | "") {
        return None;
    }
    let (mut shape, mut group, mut version) = ("", "", "");
    for (key, value) in parts.filter_map(|part| part.split_once('=')) {
        match key {
            "as" => shape = value,
            "g" => group = value,
            "v" => version = value,
            _ => {}
        }
    }
    match (shape, group, version) {
        ("", _, _) => Some(Form::Plain),
        ("Table", "meta.k8s.io", "v1") => Some(Form::Table),
        ("PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io", "v1") => Some(Form::Metadata),
        ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => Some(Form::Discovery("v2")),
        ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2beta1") => Some(Form::Discovery("v2beta1")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    #[test]
    fn accept_headers() {
        for (accept, wanted) in [
            ("application/json", Some(Form::Plain)),
            ("*/*", Some(Form::Plain)),
            ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Some(Form::Table)),
            ("application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json", Some(Form::Plain)),
            ("application/vnd.kubernetes.protobuf, application/json", Some(Form::Plain)),
            ("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", Some(Form::Discovery("v2"))),
            ("application/vnd.kubernetes.protobuf", None),
            ("application/yaml", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(form(&headers).ok(), wanted, "{accept}");
        }
        assert_eq!(form(&HeaderMap::new()).unwrap(), Form::Plain);
    }

    #[test]
    fn wrong_parameters_are_named() {
        for (text, code) in [
            ("limit=x", 400),
            ("resourceVersion=a", 400),
            ("dryRun=Some", 422),
            ("fieldValidation=x", 422),
            ("resourceVersionMatch=x", 422),
            ("labelSelector=a%20in", 400),
        ] {
            assert_eq!(Query::parse(&Method::GET, text).unwrap_err().code, code, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_query_or_path_panics(text in "\\PC{0,60}") {
            let _ = Query::parse(&Method::GET, &text);
            let _ = segments(&text);
        }
    }
}
