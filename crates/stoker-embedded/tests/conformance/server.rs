//! A server to test, embedded or real, with a namespace and one custom kind for the test; and short ways to speak to it.

use crate::real::{self, Real};
use futures::FutureExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::DynamicObject;
use kube::{Api, Client};
use serde_json::{Value, json};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use stoker_embedded::Settings;

pub(crate) use crate::real::{definitions, eventually, labels, resource, widget_crd};

/// A behaviour by name.
pub(crate) type Behaviour = (&'static str, fn(Server) -> Pin<Box<dyn Future<Output = ()>>>);

/// One server, seen from one namespace.
#[derive(Clone)]
pub(crate) struct Server {
    /// Its default namespace is the test's own.
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

/// The embedded API, in memory or (by `STOKER_TEST_JOURNAL`) with a journal.
pub(crate) async fn embedded() -> Server {
    let mut settings = Settings::new(vec![widget_crd()], Arc::new(jiff::Timestamp::now));
    if std::env::var_os("STOKER_TEST_JOURNAL").is_some() {
        settings.journal = Some(tempfile::tempdir().unwrap().keep().join("journal"));
    }
    let api = stoker_embedded::Api::new(settings).unwrap();
    Server::new(|namespace| api.client(namespace)).await
}

/// Runs behaviours on a real server, one after another; says all that failed.
pub(crate) async fn on_real(kubeconfig: &str, behaviours: &[Behaviour]) {
    let real = Real::new(kubeconfig).await;
    let probe = Server { client: real.client("default"), namespace: "default".to_owned() };
    let lack = crate::streams::lack(&probe).await;
    if let Some(lack) = &lack {
        println!("SKIPPED: streaming lists, which this API server cannot serve: {lack}");
    }
    let mut failed = Vec::new();
    let only = std::env::var("STOKER_TEST_ONLY").unwrap_or_default();
    let wanted = |name: &str| name.contains(&only) && (lack.is_none() || !name.starts_with("streams::"));
    let wanted: Vec<_> = behaviours.iter().filter(|(name, _)| wanted(name)).collect();
    assert!(!wanted.is_empty(), "no behaviour has {only:?} in its name");
    for (name, behaviour) in wanted {
        let server = Server::new(|namespace| real.client(namespace)).await;
        println!("{name} …");
        if AssertUnwindSafe(behaviour(server.clone())).catch_unwind().await.is_err() {
            failed.push(*name);
        }
        real::remove(&server.client, &server.namespace).await;
    }
    real.clean().await;
    assert!(failed.is_empty(), "{} of {} behave otherwise: {failed:#?}", failed.len(), behaviours.len());
}

impl Server {
    async fn new(connect: impl Fn(&str) -> Client) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let namespace = format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let client = connect(&namespace);
        real::make(&client, &namespace).await;
        Self { client, namespace }
    }

    /// A name for what is in no namespace.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.namespace)
    }

    pub(crate) fn widgets(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource("example.com", "v1", "Widget"))
    }

    pub(crate) fn maps(&self) -> Api<ConfigMap> {
        Api::default_namespaced(self.client.clone())
    }

    /// The path of this namespace's widgets, with what follows.
    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/apis/example.com/v1/namespaces/{}/widgets{rest}", self.namespace)
    }

    /// A raw request with headers, for what the typed client cannot say.
    pub(crate) async fn raw(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Value) -> Answer {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        self.send(method, path, headers, text).await
    }

    pub(crate) async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: String) -> Answer {
        let mut request = http::Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(kube::client::Body::from(body.into_bytes())).unwrap();
        let (parts, body) = self.client.send(request).await.unwrap().into_parts();
        let bytes = body.collect_bytes().await.unwrap();
        let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| json!(String::from_utf8_lossy(&bytes)));
        Answer { code: parts.status.as_u16(), headers: parts.headers, body }
    }
}

/// An answer: code, headers, JSON (or text) body.
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Value,
}

pub(crate) const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

pub(crate) fn dynamic(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn widget(name: &str, spec: Value) -> DynamicObject {
    dynamic(json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}))
}

/// The Status a call was refused with.
pub(crate) fn refusal<T: std::fmt::Debug>(result: kube::Result<T>) -> Value {
    match result.unwrap_err() {
        kube::Error::Api(status) => serde_json::to_value(&*status).unwrap(),
        other => panic!("not a refusal: {other:?}"),
    }
}
