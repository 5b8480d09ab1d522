//! An API with one test kind, and short ways to speak to it.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::sync::Arc;
use stoker_embedded::Settings;

/// A fixed wall clock: ages and timestamps are the same in every run.
pub(crate) fn now() -> jiff::Timestamp {
    "2026-11-15T12:00:00Z".parse().unwrap()
}

pub(crate) fn widget_crd() -> Value {
    serde_json::from_str(include_str!("../support/widget.json")).unwrap()
}

pub(crate) fn start() -> stoker_embedded::Api {
    stoker_embedded::Api::new(Settings::new(vec![widget_crd()], Arc::new(now))).unwrap()
}

pub(crate) fn client() -> Client {
    start().client("default")
}

pub(crate) fn resource(group: &str, version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

pub(crate) fn widgets(client: &Client) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), "default", &resource("example.com", "v1", "Widget"))
}

pub(crate) fn dynamic(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn widget(name: &str, spec: Value) -> DynamicObject {
    dynamic(json!({
        "apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec,
    }))
}

/// An answer: code, warnings, JSON (or text) body.
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) warnings: Vec<String>,
    pub(crate) body: Value,
}

/// A raw request with headers, for what the typed client cannot say.
pub(crate) async fn raw(client: &Client, method: &str, path: &str, headers: &[(&str, &str)], body: Value) -> Answer {
    let mut request = http::Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let response = client.send(request.body(kube::client::Body::from(bytes)).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = body.collect_bytes().await.unwrap();
    let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| json!(String::from_utf8_lossy(&bytes)));
    let warnings = parts.headers.get_all("warning").iter().map(|text| text.to_str().unwrap().to_owned());
    Answer { code: parts.status.as_u16(), warnings: warnings.collect(), body }
}

/// The Status a call was refused with.
pub(crate) fn refusal<T: std::fmt::Debug>(result: kube::Result<T>) -> Value {
    match result.unwrap_err() {
        kube::Error::Api(status) => serde_json::to_value(&*status).unwrap(),
        other => panic!("not a refusal: {other:?}"),
    }
}
