//! The tower service: from an HTTP request to an HTTP response, for the in-process client and for HTTPS alike. In: any request.
//! Out: always a response; whatever is wrong becomes a `Status` body. It asks nobody who is asking: that is `https`'s.

mod answer;

use crate::body::{self, Parsed};
use crate::collect::{DeleteOptions, Deleted};
use crate::encode::Encoder;
use crate::kind::Kind;
use crate::patch::Patch;
use crate::protobuf;
use crate::read;
use crate::refusal::Refusal;
use crate::request::{self, Form, Query};
use crate::watch;
use crate::write::{FieldValidation, Keeper, Options, Target, Written};
use crate::{discovery, openapi};
use answer::Answer;
pub use answer::Body;
pub(crate) use answer::refused;
use bytes::{Buf, Bytes};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Limited};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio_util::sync::CancellationToken;

/// The largest body that is read, as a real server has it.
const MAX_BODY: usize = 3 << 20;

/// The API as a tower service. Cheap to clone; watches of all clones end when its token is cancelled.
#[derive(Clone)]
pub struct Service {
    keeper: Keeper,
    until: CancellationToken,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

impl<B> tower::Service<Request<B>> for Service
where
    B: http_body::Body + Send + 'static,
    B::Data: Buf + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let answer = match collect(body).await {
                Ok(body) => service.durable_answer(&parts, &body).await,
                Err(refusal) => Err(refusal),
            };
            Ok(answer.unwrap_or_else(|refusal| Answer::refusal(&refusal)).into_response())
        })
    }
}

async fn collect<B>(body: B) -> Result<Bytes, Refusal>
where
    B: http_body::Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(Refusal::too_large(MAX_BODY)),
        Err(error) => Err(Refusal::bad_request(format!("the body could not be read: {error}"))),
    }
}

impl Service {
    pub(crate) fn new(keeper: Keeper, until: CancellationToken) -> Self {
        Self { keeper, until }
    }

    /// Nobody is told of a write, nor of a refusal that rests on one, before it is durable.
    async fn durable_answer(&self, parts: &http::request::Parts, body: &[u8]) -> Result<Answer, Refusal> {
        let store = &self.keeper.store;
        let since = store.era();
        let answer = self.answer(parts, body);
        if parts.method != Method::GET && parts.method != Method::HEAD {
            store.settled(since).await.map_err(|failure| Refusal::not_stored(&failure))?;
        }
        answer
    }

    fn answer(&self, parts: &http::request::Parts, body: &[u8]) -> Result<Answer, Refusal> {
        let segments = request::segments(parts.uri.path())?;
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let catalog = self.keeper.store.catalog();
        let (group, version, rest) = match segments.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
            ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
            other => return self.document(parts, other),
        };
        request::refuse_impersonation(&parts.headers)?;
        let target = request::target(&catalog, group, version, rest)?;
        request::refuse_command(&parts.headers)?;
        self.resource(parts, &target, body)
    }

    /// What is not about objects.
    fn document(&self, parts: &http::request::Parts, segments: &[&str]) -> Result<Answer, Refusal> {
        if parts.method != Method::GET && parts.method != Method::HEAD {
            return Err(Refusal::method_not_allowed());
        }
        let catalog = self.keeper.store.catalog();
        let aggregated = match request::form(&parts.headers) {
            Ok(Form::Discovery(form)) => Some(form),
            _ => None,
        };
        let found = match segments {
            ["healthz" | "readyz" | "livez", ..] => return Ok(Answer::text(200, "ok")),
            ["version"] => Some(discovery::version()),
            [root @ ("api" | "apis")] if aggregated.is_some() => {
                let form = aggregated.unwrap_or("v2");
                let document = discovery::aggregated(&catalog, *root == "api", form);
                return Ok(Answer::discovery(&document, form));
            }
            ["api"] => Some(discovery::core_versions()),
            ["apis"] => Some(discovery::groups(&catalog)),
            ["api", version] => discovery::resources(&catalog, "", version),
            ["apis", group] => discovery::group(&catalog, group),
            ["apis", group, version] => discovery::resources(&catalog, group, version),
            ["openapi", "v2"] => {
                return Err(Refusal::not_implemented("OpenAPI v2", "use /openapi/v3 (kubectl 1.28 or later does)"));
            }
            ["openapi", "v3"] => Some(openapi::index(&catalog)),
            ["openapi", "v3", "api", version] => openapi::document(&catalog, "", version),
            ["openapi", "v3", "apis", group, version] => openapi::document(&catalog, group, version),
            [] => Some(json!({"paths": ["/api", "/apis", "/healthz", "/openapi/v3", "/version"]})),
            _ => None,
        };
        let group = match segments {
            ["api", ..] => Some(""),
            ["apis", group, ..] => Some(*group),
            _ => None,
        };
        let nowhere = || group.map_or_else(Refusal::no_page, |group| request::nowhere(&catalog, group));
        found.map(|document| Answer::json(&document)).ok_or_else(nowhere)
    }

    fn resource(&self, parts: &http::request::Parts, target: &Target, body: &[u8]) -> Result<Answer, Refusal> {
        let query = Query::parse(&parts.method, parts.uri.query().unwrap_or_default())?;
        if let Some(status) = &target.served.kind.review {
            return review(parts, target, body, status);
        }
        let encoder = Encoder {
            served: target.served.clone(),
            form: request::form(&parts.headers)?,
            include: query.include,
            clock: self.keeper.clock.clone(),
        };
        let named = !target.name.is_empty();
        let all_namespaces = target.served.kind.namespaced && target.namespace.is_empty();
        let options = Options { dry_run: query.dry_run, validation: query.validation, repeated: &[] };
        match (&parts.method, named) {
            (&Method::GET | &Method::HEAD, _) if query.watch => self.watch(target, &query, encoder),
            (&Method::GET | &Method::HEAD, true) => {
                let found = self.keeper.store.get(&target.place());
                let object = found.ok_or_else(|| Refusal::not_found(target.about()))?;
                Ok(Answer::object(200, encoder.one(&object)))
            }
            (&Method::GET | &Method::HEAD, false) => {
                let page = read::list(&self.keeper.store, target, &query)?;
                Ok(Answer::object(200, encoder.list(&page)))
            }
            (&Method::POST, false) if !all_namespaces => {
                let Parsed { value, repeated } = read_body(&parts.headers, body, &target.served.kind)?;
                let options = Options { repeated: &repeated, ..options };
                Ok(written(201, &encoder, self.keeper.create(target, value, options)?))
            }
            (&Method::PUT, true) => {
                let Parsed { value, repeated } = read_body(&parts.headers, body, &target.served.kind)?;
                let options = Options { repeated: &repeated, ..options };
                Ok(written(200, &encoder, self.keeper.update(target, value, options)?))
            }
            (&Method::PATCH, true) => {
                let media = media_type(&parts.headers);
                let (patch, repeated) = Patch::read(&media, body, target.served.kind.strategic_merge)?;
                let validation = match options.validation {
                    FieldValidation::Strict => FieldValidation::StrictPatch,
                    other => other,
                };
                let options = Options { validation, repeated: &repeated, ..options };
                Ok(written(200, &encoder, self.keeper.patch(target, &patch, options)?))
            }
            (&Method::DELETE, true) if !target.status => {
                let options = delete_options(&query, body)?;
                Ok(self.deleted(target, &encoder, self.keeper.delete(target, &options)?))
            }
            (&Method::DELETE, false) if !all_namespaces && target.served.kind.can_go_together() => {
                self.delete_collection(target, &query, &encoder, body)
            }
            _ => Err(Refusal::method_not_allowed()),
        }
    }

    fn watch(&self, target: &Target, query: &Query, encoder: Encoder) -> Result<Answer, Refusal> {
        match watch::begin(&self.keeper.store, target, query, encoder, self.until.clone()) {
            Ok(watch) => Ok(Answer::stream(watch.into_stream())),
            Err(refusal) if refusal.code == 410 => {
                Ok(Answer::stream(futures::stream::iter([watch::error_line(&refusal)])))
            }
            Err(refusal) => Err(refusal),
        }
    }

    fn deleted(&self, target: &Target, encoder: &Encoder, deleted: Deleted) -> Answer {
        match deleted {
            Deleted::Waiting(object) => Answer::object(200, encoder.one(&object)),
            Deleted::Gone(object) => {
                let kind = &target.served.kind;
                let mut details = json!({"name": target.name, "kind": kind.plural, "uid": object.uid()});
                if !kind.group.is_empty() {
                    details["group"] = json!(kind.group);
                }
                Answer::json(&json!({
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
                }))
            }
        }
    }

    fn delete_collection(
        &self,
        target: &Target,
        query: &Query,
        encoder: &Encoder,
        body: &[u8],
    ) -> Result<Answer, Refusal> {
        let options = delete_options(query, body)?;
        let page = read::list(&self.keeper.store, target, query)?;
        for object in &page.objects {
            let key = object.key();
            let one = Target { name: key.name, namespace: key.namespace, ..target.clone() };
            match self.keeper.delete(&one, &options) {
                // Gone with one that was deleted before it.
                Err(refusal) if refusal.code == 404 => {}
                other => {
                    other?;
                }
            }
        }
        Ok(Answer::object(200, encoder.list(&page)))
    }
}

/// Answers what a client asks about itself.
fn review(parts: &http::request::Parts, target: &Target, body: &[u8], status: &Value) -> Result<Answer, Refusal> {
    if parts.method != Method::POST || !target.name.is_empty() {
        return Err(Refusal::method_not_allowed());
    }
    let asked = read_body(&parts.headers, body, &target.served.kind)?.value;
    let answered = crate::write::review(&target.served, asked, status)?;
    Ok(Answer::object(201, answered.to_string()))
}

fn written(code: u16, encoder: &Encoder, written: Written) -> Answer {
    Answer::object(code, encoder.one(&written.object)).with_warnings(&written.warnings)
}

fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

fn read_body(headers: &HeaderMap, body: &[u8], kind: &Kind) -> Result<Parsed, Refusal> {
    match media_type(headers).as_str() {
        "" | "application/json" => {}
        protobuf::MEDIA => return Ok(Parsed { value: protobuf::decode(body, kind.wire)?, repeated: Vec::new() }),
        _ => return Err(Refusal::unsupported_media(&["application/json"])),
    }
    body::parse(body)
        .map_err(|e| Refusal::bad_request(format!("the object provided is unrecognized: it is not JSON: {e}")))
}

fn delete_options(query: &Query, body: &[u8]) -> Result<DeleteOptions, Refusal> {
    let wrong = |e: serde_json::Error| Refusal::bad_request(format!("the delete options are not JSON: {e}"));
    let body: Value = if body.is_empty() { json!({}) } else { serde_json::from_slice(body).map_err(wrong)? };
    let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let in_body = text("/propagationPolicy").map_or(Ok(None), |policy| request::propagation(&policy))?;
    let orphan = body.get("orphanDependents").and_then(Value::as_bool);
    let orphan = orphan.map(|orphan| if orphan { "Orphan" } else { "Background" });
    let legacy = request::propagation(orphan.unwrap_or_default())?;
    let dry_run = body.get("dryRun").and_then(Value::as_array).is_some_and(|list| list.contains(&json!("All")));
    Ok(DeleteOptions {
        propagation: query.propagation.or(in_body).or(legacy).unwrap_or_default(),
        uid: text("/preconditions/uid"),
        resource_version: text("/preconditions/resourceVersion"),
        dry_run: query.dry_run || dry_run,
    })
}
