//! A real API server for tests. A kubeconfig comes in that may do everything there; clients with the test's own kind
//! installed go out, and namespaces that are known as a test's. What an earlier run left, killed in its middle or not, goes
//! before this one begins, and what this one made at its end. It touches nothing that tests did not make.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;
use std::time::Duration;

/// Selects what tests make: namespaces, and what is in none of them. Nothing else is ever removed.
pub(crate) const OURS: &str = "tests.stoker.dev/suite=api";

/// Only what hangs takes so long.
const PATIENCE: Duration = Duration::from_secs(600);

/// A server that was cleaned and has the test's kind.
pub(crate) struct Real(Config);

impl Real {
    pub(crate) async fn new(kubeconfig: &str) -> Self {
        let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        config.read_timeout = None;
        let real = Self(config);
        let client = real.client("default");
        real.clean().await;
        let crd = serde_json::from_value(widget_crd()).unwrap();
        match definitions(&client).create(&PostParams::default(), &crd).await {
            Err(kube::Error::Api(status)) if status.code == 409 => panic!(
                "the cluster has a CRD widgets.example.com without the label {OURS}, which is not of these tests; delete it, \
                 or name another cluster"
            ),
            made => made.unwrap(),
        };
        let widgets: Api<DynamicObject> = Api::all_with(client.clone(), &resource("example.com", "v1", "Widget"));
        eventually("the test's kind is served", async || widgets.list(&ListParams::default()).await.is_ok()).await;
        // What kubectl and clients look at comes later.
        let path = http::Request::get("/openapi/v3").body(Vec::new()).unwrap();
        let described = async || {
            let index: Value = client.request(path.clone()).await.unwrap_or_default();
            index["paths"].get("apis/example.com/v1").is_some()
                && index["paths"].get("apis/example.com/v1beta1").is_some()
        };
        eventually("the test's kind is in the OpenAPI", described).await;
        real
    }

    /// A client with this default namespace.
    pub(crate) fn client(&self, namespace: &str) -> Client {
        let mut config = self.0.clone();
        config.default_namespace = namespace.to_owned();
        Client::try_from(config).unwrap()
    }

    /// Removes everything that tests made, and waits until it is gone.
    pub(crate) async fn clean(&self) {
        let client = self.client("default");
        let ours = ListParams::default().labels(OURS);
        let nodes: Api<Node> = Api::all(client.clone());
        nodes.delete_collection(&DeleteParams::default(), &ours).await.unwrap();
        let namespaces: Api<Namespace> = Api::all(client.clone());
        for namespace in namespaces.list(&ours).await.unwrap() {
            remove(&client, &namespace.name_any()).await;
        }
        // The kinds go last: while one goes, the server cannot say what a namespace holds, and its controller tries again
        // ever later.
        eventually("every namespace of the tests is gone", async || gone(&namespaces, &ours).await).await;
        let crds = definitions(&client);
        crds.delete_collection(&DeleteParams::default(), &ours).await.unwrap();
        eventually("every kind of the tests is gone", async || gone(&crds, &ours).await).await;
    }
}

/// Not yet, where the server does not say.
async fn gone<K>(api: &Api<K>, which: &ListParams) -> bool
where
    K: Clone + DeserializeOwned + Debug,
{
    api.list(which).await.is_ok_and(|left| left.items.is_empty())
}

/// What tests make in no namespace has these labels.
pub(crate) fn labels() -> Value {
    let (name, value) = OURS.split_once('=').unwrap();
    json!({name: value})
}

/// Makes a namespace that is known as a test's.
pub(crate) async fn make(client: &Client, namespace: &str) {
    let object = json!({"metadata": {"name": namespace, "labels": labels()}});
    let object: Namespace = serde_json::from_value(object).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
}

/// Begins to remove a namespace. A test that failed may leave objects that wait for a finalizer.
pub(crate) async fn remove(client: &Client, namespace: &str) {
    let clear = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    for map in maps.list(&ListParams::default()).await.unwrap() {
        let _ = maps.patch(&map.name_any(), &Default::default(), &clear).await;
    }
    let widgets: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), namespace, &resource("example.com", "v1", "Widget"));
    // The kind may be gone already.
    if let Ok(left) = widgets.list(&ListParams::default()).await {
        for widget in left {
            let _ = widgets.patch(&widget.name_any(), &Default::default(), &clear).await;
        }
    }
    let _ = Api::<Namespace>::all(client.clone()).delete(namespace, &DeleteParams::default()).await;
}

pub(crate) fn widget_crd() -> Value {
    serde_json::from_str(include_str!("widget.json")).unwrap()
}

pub(crate) fn resource(group: &str, version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

pub(crate) fn definitions(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition"))
}

/// Waits for what a real server's controllers do in their own time. The embedded API has done it already.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let held = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, held).await.unwrap_or_else(|_| panic!("{what}: never"));
}
