//! `stoker install` and `stoker uninstall` against the API in the box: what it can serve is made, refused or removed as on
//! any cluster, and nothing stays.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::core::gvk::GroupVersionKind;
use serde_json::json;
use stoker_embedded::{Server, Settings};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::bed::{Ran, stoker};

/// What the API in the box does not serve, and so neither installs nor removes.
const LACKING: [&str; 7] = [
    "ClusterRole",
    "ClusterRoleBinding",
    "PodDisruptionBudget",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

/// An API server with nothing on it.
struct Bare {
    client: Client,
    kubeconfig: PathBuf,
    cancel: CancellationToken,
    serving: JoinHandle<Result<(), stoker_embedded::Error>>,
    _dir: tempfile::TempDir,
}

impl Bare {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let api = stoker_embedded::Api::new(Settings::new(vec![], Arc::new(jiff::Timestamp::now))).unwrap();
        let client = api.client("default");
        // It has our namespace from the start; a cluster has not.
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces.delete("stoker-system", &Default::default()).await.unwrap();
        let server = Server::bind(api, ([127, 0, 0, 1], 0).into()).await.unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        std::fs::write(&kubeconfig, server.kubeconfig()).unwrap();
        let cancel = CancellationToken::new();
        let serving = tokio::spawn(server.run(cancel.clone()));
        Self { client, kubeconfig, cancel, serving, _dir: dir }
    }

    async fn stop(self) {
        self.cancel.cancel();
        self.serving.await.unwrap().unwrap();
    }

    async fn run(&self, args: &[&str]) -> Ran {
        run(Some(&self.kubeconfig), args).await
    }

    /// Makes every object of the text that is served; returns the kinds of the others.
    async fn apply(&self, text: &str) -> BTreeSet<String> {
        let mut lacking = BTreeSet::new();
        for part in text.split("---\n").skip(1) {
            let object: DynamicObject = serde_saphyr::from_str(part).unwrap();
            let types = object.types.clone().unwrap();
            let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types).unwrap());
            let api: Api<DynamicObject> = match &object.metadata.namespace {
                Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
                None => Api::all_with(self.client.clone(), &resource),
            };
            match api.create(&PostParams::default(), &object).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    lacking.insert(types.kind);
                }
                made => {
                    made.unwrap();
                }
            }
        }
        lacking
    }

    /// Names of all objects of a kind, in all namespaces.
    async fn names<K>(&self) -> Vec<String>
    where
        K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + k8s_openapi::serde::de::DeserializeOwned,
    {
        let all = Api::<K>::all(self.client.clone()).list(&ListParams::default()).await.unwrap();
        all.items.iter().map(|object| object.meta().name.clone().unwrap()).collect()
    }

    /// Makes an object of no schema that matters here.
    async fn make(&self, api_version: &str, kind: &str, object: serde_json::Value) -> DynamicObject {
        let mut object: DynamicObject = serde_json::from_value(object).unwrap();
        let types = kube::core::TypeMeta { api_version: api_version.into(), kind: kind.into() };
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types).unwrap());
        object.types = Some(types);
        let namespace = object.metadata.namespace.clone().unwrap();
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &namespace, &resource);
        api.create(&PostParams::default(), &object).await.unwrap()
    }
}

async fn run(kubeconfig: Option<&Path>, args: &[&str]) -> Ran {
    let mut command = stoker();
    if let Some(kubeconfig) = kubeconfig {
        command.arg("--kubeconfig").arg(kubeconfig);
    }
    command.args(args);
    Ran::by(command).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_installed_is_removed_and_nothing_stays() {
    let bare = Bare::start().await;
    let printed = bare.run(&["install", "--dialects", "kruise"]).await;
    assert_eq!(printed.exits(0).err, "");
    let lacking = bare.apply(&printed.out).await;
    assert_eq!(lacking, LACKING.map(String::from).into());
    let spec = json!({ "images": [{ "image": "registry.example/a:1" }] });
    let metadata = json!({ "name": "web", "namespace": "default", "finalizers": ["stoker.dev/orders"] });
    bare.make("stoker.dev/v1alpha1", "Preheat", json!({ "metadata": metadata, "spec": spec })).await;
    let metadata = json!({ "name": "pull-of-a-job", "namespace": "stoker-system" });
    bare.make("v1", "Secret", json!({ "metadata": metadata })).await;
    let metadata = json!({ "name": "guest", "namespace": "stoker-system" });
    bare.make("v1", "Pod", json!({ "metadata": metadata, "spec": {} })).await;

    let refused = bare.run(&["uninstall"]).await;
    refused
        .exits(1)
        .says("1 Preheat (default/web)")
        .says("1 other pod in namespace stoker-system (guest)")
        .says("--yes");
    assert_eq!(bare.names::<CustomResourceDefinition>().await.len(), 3, "nothing was deleted");

    let removed = bare.run(&["uninstall", "--yes"]).await;
    removed.exits(0).says("Deployment stoker-controller deleted").says("Namespace stoker-system deleted");
    removed.says("this API server has no ").says("/var/lib/stoker");
    for kind in LACKING {
        removed.says(kind);
    }
    assert_eq!(bare.names::<CustomResourceDefinition>().await, Vec::<String>::new());
    assert_eq!(bare.names::<k8s_openapi::api::apps::v1::Deployment>().await, Vec::<String>::new());
    assert_eq!(bare.names::<k8s_openapi::api::apps::v1::DaemonSet>().await, Vec::<String>::new());
    assert_eq!(bare.names::<k8s_openapi::api::core::v1::ServiceAccount>().await, Vec::<String>::new());
    assert_eq!(bare.names::<k8s_openapi::api::core::v1::Secret>().await, Vec::<String>::new());
    assert_eq!(bare.names::<Pod>().await, Vec::<String>::new());
    assert_eq!(bare.names::<Namespace>().await, ["default"]);

    bare.run(&["uninstall"]).await.exits(0).says("nothing of Stoker is here");
    bare.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crds_of_others_are_neither_replaced_nor_removed() {
    let bare = Bare::start().await;
    let printed = bare.run(&["install", "--dialects", "kruise"]).await;
    let theirs = printed.exits(0).out.split("---\n").find(|part| part.contains("name: imagepulljobs.apps.kruise.io"));
    let mut theirs: CustomResourceDefinition = serde_saphyr::from_str(theirs.unwrap()).unwrap();
    theirs.metadata.labels = None;
    Api::all(bare.client.clone()).create(&PostParams::default(), &theirs).await.unwrap();
    let metadata = json!({ "name": "base", "namespace": "default" });
    let job = json!({ "metadata": metadata, "spec": { "image": "registry.example/a:1" } });
    bare.make("apps.kruise.io/v1alpha1", "ImagePullJob", job).await;

    let refused = bare.run(&["install", "--dialects", "kruise"]).await;
    refused.exits(1).says("imagepulljobs.apps.kruise.io").says("leave --dialects out");
    assert_eq!(refused.out, "");
    let printed = bare.run(&["install"]).await;
    bare.apply(&printed.exits(0).out).await;
    bare.run(&["uninstall"]).await.exits(0);
    assert_eq!(bare.names::<CustomResourceDefinition>().await, ["imagepulljobs.apps.kruise.io"]);
    assert_eq!(bare.names::<stoker_api::dialect::kruise::ImagePullJob>().await, ["base"]);
    bare.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_go_is_named_with_what_holds_it() {
    let bare = Bare::start().await;
    bare.apply(&bare.run(&["install"]).await.exits(0).out).await;
    let spec = json!({ "images": [{ "image": "registry.example/a:1" }] });
    let metadata = json!({ "name": "web", "namespace": "default", "finalizers": ["somebody.example/else"] });
    bare.make("stoker.dev/v1alpha1", "Preheat", json!({ "metadata": metadata, "spec": spec })).await;
    let stuck = bare.run(&["uninstall", "--yes", "--timeout", "1s"]).await;
    stuck
        .exits(1)
        .says("CustomResourceDefinition preheats.stoker.dev is still there after 1 s")
        .says("default/web with finalizers somebody.example/else");
    let preheats: Api<stoker_api::native::Preheat> = Api::namespaced(bare.client.clone(), "default");
    let free = json!({ "metadata": { "finalizers": null } });
    preheats.patch("web", &PatchParams::default(), &Patch::Merge(free)).await.unwrap();
    bare.run(&["uninstall"]).await.exits(0).says("Namespace stoker-system deleted");
    assert_eq!(bare.names::<CustomResourceDefinition>().await, Vec::<String>::new());
    bare.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_cluster_it_prints_and_says_what_was_not_checked() {
    let noted = run(None, &["install"]).await;
    noted.exits(0).says("note: no cluster was looked at").says("Kubernetes 1.30");
    let quiet = run(None, &["install", "--offline"]).await;
    assert_eq!((quiet.exits(0).err.as_str(), &quiet.out), ("", &noted.out));
    let named = run(Some(Path::new("/nonexistent/kubeconfig")), &["install"]).await;
    named.exits(1).says("/nonexistent/kubeconfig");
    let elsewhere = run(None, &["install", "--offline", "-n", "elsewhere"]).await;
    elsewhere.exits(0).says("--namespace=elsewhere").says("name: elsewhere");
    run(None, &["install", "--offline", "-n", "Else Where"])
        .await
        .exits(1)
        .says("--namespace Else Where")
        .says("letters");
    run(None, &["install", "--image", "not an image"]).await.exits(2).says("not an image");
    run(None, &["install", "--data", "relative"]).await.exits(2).says("absolute path");
}
