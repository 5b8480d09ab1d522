//! `stoker install` and `stoker uninstall` against the API in the box: what it can serve is made, refused or removed as on
//! any cluster, and nothing stays.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::http::{StatusCode, Uri};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::core::gvk::GroupVersionKind;
use kube::runtime::wait::await_condition;
use serde_json::json;
use stoker_embedded::{Server, Settings};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::bed::{Ran, stoker};

/// What the API in the box does not serve, and so neither installs nor removes.
const LACKING: [&str; 7] = [
    "ClusterRole",
    "FlowSchema",
    "PodDisruptionBudget",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

const IMAGE: &str = "registry.example/stoker:v1";

/// A copy of a login, as the controller labels it.
fn copy_in(namespace: &str) -> serde_json::Value {
    let labels = json!({ "app.kubernetes.io/managed-by": "stoker" });
    json!({ "metadata": { "name": "pull-of-a-job", "namespace": namespace, "labels": labels } })
}

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

/// The CRD of this name in a text.
fn manifest(text: &str, name: &str) -> CustomResourceDefinition {
    let part = text.split("---\n").find(|part| part.contains(&format!("name: {name}")));
    serde_saphyr::from_str(part.unwrap()).unwrap()
}

async fn run(kubeconfig: Option<&Path>, args: &[&str]) -> Ran {
    let mut command = stoker();
    if let Some(kubeconfig) = kubeconfig {
        command.arg("--kubeconfig").arg(kubeconfig);
    }
    command.args(args);
    Ran::by(command).await
}

const NONE: [&str; 0] = [];

/// What is said besides the one thing that everybody is told who installs: who may run preheated images.
fn notes(ran: &Ran) -> Vec<&str> {
    let (told, others): (Vec<&str>, Vec<&str>) = ran.err.lines().partition(|line| line.contains("AlwaysVerify"));
    assert_eq!(told.len(), 1, "{}", ran.err);
    // From which version on that can be set, and what can be done before.
    for word in ["1.35", "1.33", "KubeletEnsureSecretPulledImages", "AlwaysPullImages"] {
        assert!(told[0].contains(word), "{word}: {}", told[0]);
    }
    others
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_installed_is_removed_and_nothing_stays() {
    let bare = Bare::start().await;
    let printed = bare.run(&["install", "--image", IMAGE, "--dialects", "kruise"]).await;
    assert_eq!(notes(printed.exits(0)), NONE);
    let lacking = bare.apply(&printed.out).await;
    assert_eq!(lacking, LACKING.map(String::from).into());
    let spec = json!({ "images": [{ "image": "registry.example/a:1" }] });
    let metadata = json!({ "name": "web", "namespace": "default", "finalizers": ["stoker.dev/orders"] });
    bare.make("stoker.dev/v1alpha1", "Preheat", json!({ "metadata": metadata, "spec": spec })).await;
    bare.make("v1", "Secret", copy_in("stoker-system")).await;
    for (kind, name) in [
        ("Pod", "guest"),
        ("Secret", "password"),
        ("ConfigMap", "settings"),
        ("ConfigMap", "kube-root-ca.crt"),
        ("ServiceAccount", "robot"),
        ("ServiceAccount", "default"),
    ] {
        let metadata = json!({ "name": name, "namespace": "stoker-system" });
        bare.make("v1", kind, json!({ "metadata": metadata, "spec": {} })).await;
    }
    let metadata = json!({ "name": "shop", "namespace": "stoker-system" });
    bare.make("apps/v1", "Deployment", json!({ "metadata": metadata, "spec": {} })).await;

    let refused = bare.run(&["uninstall"]).await;
    refused
        .exits(1)
        .says("1 Preheat (default/web)")
        .says("1 other Pod in namespace stoker-system (guest)")
        .says("1 other Secret in namespace stoker-system (password)")
        .says("1 other ConfigMap in namespace stoker-system (settings)")
        .says("1 other ServiceAccount in namespace stoker-system (robot)")
        .says("1 other Deployment in namespace stoker-system (shop)")
        .says("--yes");
    assert_eq!(bare.names::<CustomResourceDefinition>().await.len(), 6, "nothing was deleted");

    let removed = bare.run(&["uninstall", "--yes"]).await;
    removed.exits(0).says("Deployment stoker-controller deleted").says("Namespace stoker-system deleted");
    removed.says("this API server has no ").says("/var/lib/stoker");
    for kind in LACKING {
        removed.says(kind);
    }
    assert_eq!(bare.names::<CustomResourceDefinition>().await, Vec::<String>::new());
    assert_eq!(bare.names::<Deployment>().await, Vec::<String>::new());
    assert_eq!(bare.names::<k8s_openapi::api::apps::v1::DaemonSet>().await, Vec::<String>::new());
    assert_eq!(bare.names::<ServiceAccount>().await, Vec::<String>::new());
    assert_eq!(bare.names::<k8s_openapi::api::core::v1::Secret>().await, Vec::<String>::new());
    assert_eq!(bare.names::<Pod>().await, Vec::<String>::new());
    assert_eq!(bare.names::<Namespace>().await, ["default"]);

    bare.run(&["uninstall"]).await.exits(0).says("nothing of Stoker is here");
    bare.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_of_others_stays_as_it_is() {
    let bare = Bare::start().await;
    let labels = json!({ "team": "platform", "pod-security.kubernetes.io/enforce": "baseline" });
    let theirs = serde_json::from_value(json!({ "metadata": { "name": "platform", "labels": labels } })).unwrap();
    let namespaces: Api<Namespace> = Api::all(bare.client.clone());
    let theirs = namespaces.create(&PostParams::default(), &theirs).await.unwrap();
    let metadata = json!({ "name": "guest", "namespace": "platform" });
    bare.make("v1", "Pod", json!({ "metadata": metadata, "spec": {} })).await;

    let printed = bare.run(&["install", "--image", IMAGE, "-n", "platform"]).await;
    printed.exits(0).says("the namespace platform was there before Stoker").says("it has `baseline`");
    printed.says("kubectl label --overwrite namespace platform pod-security.kubernetes.io/enforce=privileged");
    assert!(!printed.out.contains("kind: Namespace\n"), "{}", printed.out);
    bare.apply(&printed.out).await;
    // As a controller would have left them.
    bare.make("v1", "Secret", copy_in("platform")).await;
    let metadata = json!({ "name": "stoker-controller", "namespace": "platform" });
    bare.make("coordination.k8s.io/v1", "Lease", json!({ "metadata": metadata })).await;
    let metadata = json!({ "name": "password", "namespace": "platform" });
    bare.make("v1", "Secret", json!({ "metadata": metadata })).await;
    bare.run(&["install", "--image", IMAGE]).await.exits(1).says("Stoker is in the namespace platform");
    bare.run(&["install", "--image", IMAGE, "-n", "platform"]).await.exits(0);

    let refused = bare.run(&["uninstall", "--yes", "-n", "east"]).await;
    refused.exits(1).says("nothing was deleted").says("Stoker is in the namespace platform of this cluster");
    assert_eq!(bare.names::<Deployment>().await, ["stoker-controller"]);
    bare.run(&["uninstall", "-n", "platform"]).await.exits(0).says("Lease stoker-controller deleted");
    assert_eq!(namespaces.get("platform").await.unwrap().metadata.labels, theirs.metadata.labels);
    assert_eq!(bare.names::<Pod>().await, ["guest"]);
    assert_eq!(bare.names::<k8s_openapi::api::core::v1::Secret>().await, ["password"]);
    assert_eq!(bare.names::<k8s_openapi::api::coordination::v1::Lease>().await, Vec::<String>::new());
    assert_eq!(bare.names::<ServiceAccount>().await, Vec::<String>::new());
    bare.run(&["uninstall"]).await.exits(0).says("nothing of Stoker is here");
    bare.stop().await;
}

/// What everybody who may edit a namespace can make in it: objects that look like Stoker's.
#[tokio::test(flavor = "multi_thread")]
async fn what_strangers_label_as_ours_neither_blocks_nor_goes() {
    let bare = Bare::start().await;
    let theirs = serde_json::from_value(json!({ "metadata": { "name": "shop" } })).unwrap();
    Api::<Namespace>::all(bare.client.clone()).create(&PostParams::default(), &theirs).await.unwrap();
    let labels = json!({ "app.kubernetes.io/managed-by": "stoker", "app.kubernetes.io/part-of": "stoker" });
    let metadata = json!({ "name": "stoker-controller", "namespace": "shop", "labels": labels });
    bare.make("apps/v1", "Deployment", json!({ "metadata": metadata, "spec": {} })).await;
    bare.make("coordination.k8s.io/v1", "Lease", json!({ "metadata": metadata })).await;
    bare.make("v1", "Secret", copy_in("shop")).await;

    bare.run(&["uninstall"]).await.exits(0).says("nothing of Stoker is here");
    let printed = bare.run(&["install", "--image", IMAGE]).await;
    bare.apply(&printed.exits(0).out).await;
    bare.run(&["install", "--image", IMAGE]).await.exits(0);
    let elsewhere = bare.run(&["install", "--image", IMAGE, "-n", "shop"]).await;
    elsewhere.exits(1).says("Stoker is in the namespace stoker-system");
    bare.run(&["uninstall", "-n", "shop"]).await.exits(1).says("Stoker is in the namespace stoker-system");
    bare.run(&["uninstall", "-n", "stoker-system"]).await.exits(0).says("Namespace stoker-system deleted");
    assert_eq!(bare.names::<Deployment>().await, ["stoker-controller"]);
    assert_eq!(bare.names::<k8s_openapi::api::coordination::v1::Lease>().await, ["stoker-controller"]);
    assert_eq!(bare.names::<k8s_openapi::api::core::v1::Secret>().await, ["pull-of-a-job"]);
    bare.stop().await;
}

/// The namespace is somebody else's and carries no label: only the binding, which goes last, shows where the rest is.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_uninstall_finds_the_rest() {
    let bare = Bare::start().await;
    let theirs = serde_json::from_value(json!({ "metadata": { "name": "platform" } })).unwrap();
    Api::<Namespace>::all(bare.client.clone()).create(&PostParams::default(), &theirs).await.unwrap();
    bare.apply(&bare.run(&["install", "--image", IMAGE, "-n", "platform"]).await.exits(0).out).await;
    let accounts: Api<ServiceAccount> = Api::namespaced(bare.client.clone(), "platform");
    let finalizers = async |finalizers: serde_json::Value| {
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": finalizers } }));
        accounts.patch("stoker-agent", &PatchParams::default(), &patch).await.unwrap();
    };
    finalizers(json!(["somebody.example/else"])).await;
    for _ in 0..2 {
        let held = bare.run(&["uninstall", "--timeout", "1s"]).await;
        held.exits(1).says("ServiceAccount stoker-agent is still there");
    }
    finalizers(json!(null)).await;
    bare.run(&["uninstall"]).await.exits(0).says("ClusterRoleBinding stoker-controller deleted");
    assert_eq!(bare.names::<ServiceAccount>().await, Vec::<String>::new());
    bare.run(&["uninstall"]).await.exits(0).says("nothing of Stoker is here");
    bare.stop().await;
}

/// A controller works until it is gone, and may copy a login when everything else was found already.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_controller_makes_while_it_is_removed_goes_too() {
    let bare = Bare::start().await;
    let theirs = serde_json::from_value(json!({ "metadata": { "name": "platform" } })).unwrap();
    Api::<Namespace>::all(bare.client.clone()).create(&PostParams::default(), &theirs).await.unwrap();
    bare.apply(&bare.run(&["install", "--image", IMAGE, "-n", "platform"]).await.exits(0).out).await;
    let controllers: Api<Deployment> = Api::namespaced(bare.client.clone(), "platform");
    let finalizers = async |finalizers: serde_json::Value| {
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": finalizers } }));
        controllers.patch("stoker-controller", &PatchParams::default(), &patch).await.unwrap();
    };
    finalizers(json!(["somebody.example/still-runs"])).await;

    let meanwhile = async {
        let going = |it: Option<&Deployment>| it.is_some_and(|it| it.metadata.deletion_timestamp.is_some());
        await_condition(controllers.clone(), "stoker-controller", going).await.unwrap();
        bare.make("v1", "Secret", copy_in("platform")).await;
        finalizers(json!(null)).await;
    };
    let (removed, ()) = tokio::join!(bare.run(&["uninstall"]), meanwhile);
    removed.exits(0).says("Secret pull-of-a-job deleted");
    assert_eq!(bare.names::<k8s_openapi::api::core::v1::Secret>().await, Vec::<String>::new());
    bare.stop().await;
}

/// Somebody's home with the kubeconfig of an API server, where one usually is.
fn home_with(server: std::net::SocketAddr) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join(".kube")).unwrap();
    let kubeconfig = dir.path().join(".kube/config");
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "clusters": [{ "name": "x", "cluster": { "server": format!("http://{server}") } }],
        "users": [{ "name": "x", "user": {} }],
        "contexts": [{ "name": "x", "context": { "cluster": "x", "user": "x" } }],
    });
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    (dir, kubeconfig)
}

/// The home of somebody with a server that has this version, and nothing else; or that may not be asked for anything else.
async fn served_version(version: serde_json::Value, allowed: bool) -> (tempfile::TempDir, PathBuf) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let home = home_with(listener.local_addr().unwrap());
    let failure = |code: u16, reason: &str| {
        let status = json!({ "kind": "Status", "code": code, "reason": reason, "message": "no", "status": "Failure" });
        (StatusCode::from_u16(code).unwrap(), status.to_string())
    };
    let router = axum::Router::new().fallback(async move |uri: Uri| match uri.path() {
        "/version" => (StatusCode::OK, version.to_string()),
        _ if !allowed => failure(403, "Forbidden"),
        path if path.ends_with("s") => (StatusCode::OK, json!({ "metadata": {}, "items": [] }).to_string()),
        _ => failure(404, "NotFound"),
    });
    tokio::spawn(async move { axum::serve(listener, router).await });
    home
}

fn version(major: &str, minor: &str, git: &str) -> serde_json::Value {
    let rest = ["gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"];
    let mut version = json!({ "major": major, "minor": minor, "gitVersion": git });
    rest.iter().for_each(|key| version[*key] = "".into());
    version
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_too_old_is_refused_and_one_of_no_known_age_is_told() {
    let (_dir, old) = served_version(version("1", "29", "v1.29.8"), true).await;
    let refused = run(Some(&old), &["install", "--image", IMAGE]).await;
    refused.exits(1).says("this cluster is Kubernetes v1.29.8").says("Kubernetes 1.30 or newer");
    assert_eq!(refused.out, "");
    let (_dir, new) = served_version(version("1", "30+", "v1.30.1-vendor"), true).await;
    assert_eq!(notes(run(Some(&new), &["install", "--image", IMAGE]).await.exits(0)), NONE);
    let (_dir, strange) = served_version(version("", "", "main"), true).await;
    let told = run(Some(&strange), &["install", "--image", IMAGE]).await;
    told.exits(0)
        .says("note: the version of this cluster cannot be read")
        .says("`main`")
        .says("Kubernetes 1.30 or newer");
}

/// What is printed goes to `kubectl apply` on the same cluster, and would make a namespace of somebody else Stoker's.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_cannot_be_looked_at_gets_nothing() {
    let (forbidding, _) = served_version(version("1", "34", "v1.34.1"), false).await;
    let unbound = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (silent, _) = home_with(unbound);
    let (mistaken, kubeconfig) = home_with(unbound);
    std::fs::write(&kubeconfig, json!({ "current-context": "gone" }).to_string()).unwrap();
    for home in [forbidding, silent, mistaken] {
        let install = async |more: &[&str]| {
            let mut command = stoker();
            command.args(["install", "--image", IMAGE]).args(more).env("HOME", home.path());
            Ran::by(command).await
        };
        let refused = install(&[]).await;
        assert_eq!(refused.exits(1).says("cannot be checked").says("--offline").out, "");
        install(&["--offline"]).await.exits(0).says("kind: Namespace");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn crds_of_others_are_neither_replaced_nor_removed() {
    let bare = Bare::start().await;
    let printed = bare.run(&["install", "--dialects", "kruise"]).await;
    let mut theirs = manifest(&printed.exits(0).out, "imagepulljobs.apps.kruise.io");
    theirs.metadata.labels = None;
    Api::all(bare.client.clone()).create(&PostParams::default(), &theirs).await.unwrap();
    let metadata = json!({ "name": "base", "namespace": "default" });
    let job = json!({ "metadata": metadata, "spec": { "image": "registry.example/a:1" } });
    bare.make("apps.kruise.io/v1alpha1", "ImagePullJob", job).await;

    let refused = bare.run(&["install", "--dialects", "kruise"]).await;
    refused.exits(1).says("imagepulljobs.apps.kruise.io").says("leave --dialects out");
    assert_eq!(refused.out, "");
    let handed_over = bare.run(&["install", "--dialects", "kruise=whole"]).await;
    handed_over.exits(0).says("stay as they are").says("--handed-over=kruise=whole");
    assert!(!handed_over.out.contains("name: imagepulljobs.apps.kruise.io"), "theirs is not replaced");
    assert!(handed_over.out.contains("name: imagelistpulljobs.apps.kruise.io"), "one that is not there is made");
    let printed = bare.run(&["install"]).await;
    bare.apply(&printed.exits(0).out).await;
    bare.run(&["uninstall"]).await.exits(0);
    assert_eq!(bare.names::<CustomResourceDefinition>().await, ["imagepulljobs.apps.kruise.io"]);
    // Labels of ours that somebody put over theirs make it no less theirs.
    let ours =
        manifest(&bare.run(&["crds", "--dialects", "kruise"]).await.exits(0).out, "imagepulljobs.apps.kruise.io");
    let over = json!({ "metadata": {
        "labels": ours.metadata.labels, "annotations": { "controller-gen.kubebuilder.io/version": "v0.16.5" },
    }});
    let definitions: Api<CustomResourceDefinition> = Api::all(bare.client.clone());
    let name = "imagepulljobs.apps.kruise.io";
    definitions.patch(name, &PatchParams::default(), &Patch::Merge(over)).await.unwrap();
    bare.run(&["install", "--dialects", "kruise"]).await.exits(1).says(name);
    bare.run(&["uninstall", "--yes"]).await.exits(0);
    assert_eq!(bare.names::<CustomResourceDefinition>().await, [name]);
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
    let stuck = bare.run(&["uninstall", "--yes", "--timeout", "10s"]).await;
    stuck
        .exits(1)
        .says("CustomResourceDefinition preheats.stoker.dev is still there after 10 s")
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
    let noted = run(None, &["install", "--image", IMAGE]).await;
    noted.exits(0).says("note: no cluster was looked at").says("Kubernetes 1.30");
    let quiet = run(None, &["install", "--image", IMAGE, "--offline"]).await;
    assert_eq!((notes(quiet.exits(0)), &quiet.out), (NONE.to_vec(), &noted.out));
    let named = run(Some(Path::new("/nonexistent/kubeconfig")), &["install"]).await;
    named.exits(2).says("/nonexistent/kubeconfig");
    let mut command = stoker();
    command.arg("install").env("KUBECONFIG", "/nonexistent/other");
    let named = Ran::by(command).await;
    assert_eq!(named.exits(2).says("$KUBECONFIG is /nonexistent/other").out, "");
    let imageless = run(None, &["install", "--offline"]).await;
    imageless
        .exits(0)
        .says("note: no image is published")
        .says("cargo xtask image --push")
        .says("stoker.invalid/stoker:v");
    let elsewhere = run(None, &["install", "--offline", "-n", "elsewhere"]).await;
    elsewhere.exits(0).says("--namespace=elsewhere").says("name: elsewhere");
    run(None, &["install", "--offline", "-n", "Else Where"]).await.exits(2).says("--namespace <NAME>").says("letters");
    run(None, &["install", "--image", "not an image"]).await.exits(2).says("not an image");
    run(None, &["install", "--data", "relative"]).await.exits(2).says("absolute path");
}

#[tokio::test(flavor = "multi_thread")]
async fn crds_of_others_are_printed_only_where_they_are_asked_for() {
    let own = run(None, &["crds"]).await;
    own.exits(0).says("name: preheats.stoker.dev").says("name: nodepreheats.stoker.dev");
    assert!(!own.out.contains("kruise"), "{}", own.out);
    run(None, &["crds", "--dialects", "kruise"]).await.exits(0).says("name: imagepulljobs.apps.kruise.io");
}
