//! A server to test, embedded or real, with a namespace and one custom kind for the test; and short ways to speak to it.

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use stoker_embedded::Settings;

/// A behaviour by name.
pub(crate) type Behaviour = (&'static str, fn(Server) -> Pin<Box<dyn Future<Output = ()>>>);

/// One server, seen from one namespace.
#[derive(Clone)]
pub(crate) struct Server {
    /// Its default namespace is the test's own.
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

pub(crate) fn widget_crd() -> Value {
    serde_json::from_str(include_str!("../support/widget.json")).unwrap()
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

/// Runs behaviours on a real server, with the test's kind installed, one after another; says all that failed.
pub(crate) async fn on_real(kubeconfig: &str, behaviours: &[Behaviour]) {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.read_timeout = None;
    let connect = |namespace: &str| {
        let mut config = config.clone();
        config.default_namespace = namespace.to_owned();
        Client::try_from(config).unwrap()
    };
    let crds = definitions(&connect("default"));
    crds.create(&PostParams::default(), &dynamic(widget_crd())).await.unwrap();
    let probe = Server { client: connect("default"), namespace: "default".to_owned() };
    eventually("the test's kind is served", || async { probe.widgets().list(&ListParams::default()).await.is_ok() })
        .await;
    let mut failed = Vec::new();
    let only = std::env::var("STOKER_TEST_ONLY").unwrap_or_default();
    for (name, behaviour) in behaviours.iter().filter(|(name, _)| name.contains(&only)) {
        let server = Server::new(connect).await;
        println!("{name} …");
        if AssertUnwindSafe(behaviour(server.clone())).catch_unwind().await.is_err() {
            failed.push(*name);
        }
        server.clean().await;
    }
    crds.delete("widgets.example.com", &DeleteParams::default()).await.unwrap();
    assert!(failed.is_empty(), "{} of {} behave otherwise: {failed:#?}", failed.len(), behaviours.len());
}

pub(crate) fn definitions(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition"))
}

impl Server {
    async fn new(connect: impl Fn(&str) -> Client) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let namespace = format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let client = connect(&namespace);
        let object: Namespace = serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
        Self { client, namespace }
    }

    async fn clean(self) {
        // A test that failed may leave objects that wait for a finalizer.
        let clear = kube::api::Patch::Merge(json!({"metadata": {"finalizers": null}}));
        for map in self.maps().list(&ListParams::default()).await.unwrap() {
            let _ = self.maps().patch(&map.metadata.name.unwrap_or_default(), &Default::default(), &clear).await;
        }
        let namespaces: Api<Namespace> = Api::all(self.client);
        let _ = namespaces.delete(&self.namespace, &DeleteParams::default()).await;
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

pub(crate) fn resource(group: &str, version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

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

/// Waits for what a real server's controllers do in their own time. The embedded API has done it already.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    for _ in 0..600 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}: never");
}
