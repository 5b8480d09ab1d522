//! What is this suite's own on a real server, known by a label, and how it goes again. A cluster comes in; one with a Stoker
//! or with jobs of somebody else is refused, for our controller would work on theirs. Whatever has not the label stays.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node, Secret};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams};
use kube::{Client, ResourceExt as _};
use serde_json::Value;
use stoker_api::native::{GROUP, NodePreheat};

use crate::heartbeat;
use crate::real::SYSTEM;
use crate::up::{Login, eventually};

/// What tests make has this label, and what this suite makes has it with this value.
pub(crate) const LABEL: &str = "tests.stoker.dev/suite";
const SUITE: &str = "scenarios";

/// Marks an object that is about to be made.
pub(crate) fn mark(object: &mut Value) {
    object["metadata"]["labels"][LABEL] = SUITE.into();
}

/// Selects what is marked.
fn ours() -> ListParams {
    ListParams::default().labels(&format!("{LABEL}={SUITE}"))
}

/// The names of the namespaces that are marked.
async fn namespaces(client: &Client) -> Vec<String> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.list(&ours()).await.unwrap().iter().map(|namespace| namespace.name_any()).collect()
}

/// Fails with a sentence where somebody else's things would be touched.
pub(crate) async fn or_refuse(client: &Client) {
    if std::env::var_os("STOKER_TEST_CLUSTER").is_some() {
        return;
    }
    if let Some(what) = of_others(client).await {
        panic!(
            "this cluster has {what}, which these tests did not make and would change or remove: name another cluster, or set \
             STOKER_TEST_CLUSTER if this one was made for tests"
        );
    }
}

/// Something that is not ours and would not stay as it is.
async fn of_others(client: &Client) -> Option<String> {
    let ours = namespaces(client).await;
    for kind in stoker_api::job_kinds().filter(|kind| kind.namespaced) {
        let jobs: Api<DynamicObject> = Api::all_with(client.clone(), &kind.kind.newest());
        let Some(jobs) = served(jobs.list(&ListParams::default()).await) else { continue };
        let mut places = jobs.iter().map(|job| (job.namespace().unwrap(), job.name_any()));
        if let Some((namespace, name)) = places.find(|(namespace, _)| !ours.contains(namespace)) {
            return Some(format!("the {} {namespace}/{name}", kind.kind.name));
        }
    }
    // The namespace is made before and removed after everything else of an installation.
    if ours.iter().any(|namespace| namespace == SYSTEM) {
        return None;
    }
    let all: Api<Namespace> = Api::all(client.clone());
    if all.get_opt(SYSTEM).await.unwrap().is_some() {
        return Some(format!("a namespace {SYSTEM}"));
    }
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let definitions = definitions.list(&ListParams::default()).await.unwrap();
    let other = definitions.iter().find(|definition| definition.spec.group == GROUP)?;
    Some(format!("the CRD {}", other.name_any()))
}

/// The answer, unless the kind is not served: then there are none of it.
fn served<T>(answer: kube::Result<T>) -> Option<T> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        answer => Some(answer.unwrap()),
    }
}

/// Removes what a scenario made. Its processes are gone.
pub(crate) async fn forget(client: &Client) {
    for namespace in namespaces(client).await {
        for kind in stoker_api::job_kinds().filter(|kind| kind.namespaced) {
            let jobs: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &kind.kind.newest());
            let deleted = jobs.delete_collection(&DeleteParams::default(), &ListParams::default()).await;
            if served(deleted).is_none() {
                continue;
            }
            let none = async || jobs.list(&ListParams::default()).await.unwrap().items.is_empty();
            eventually("no jobs are left", none).await;
        }
    }
    // Of our own installation: there is no other.
    let preheats: Api<NodePreheat> = Api::all(client.clone());
    let _ = preheats.delete_collection(&DeleteParams::default(), &ListParams::default()).await;
    let copies: Api<Secret> = Api::namespaced(client.clone(), SYSTEM);
    let made = ListParams::default().labels("app.kubernetes.io/managed-by=stoker");
    let _ = copies.delete_collection(&DeleteParams::default(), &made).await;
    // Nobody gave it back.
    let leases: Api<Lease> = Api::namespaced(client.clone(), SYSTEM);
    let _ = leases.delete("stoker-controller", &DeleteParams::default()).await;
    let all: Api<Namespace> = Api::all(client.clone());
    for namespace in namespaces(client).await.iter().filter(|namespace| *namespace != SYSTEM) {
        let _ = all.delete(namespace, &DeleteParams::default()).await;
    }
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    bindings.delete_collection(&DeleteParams::default(), &ours()).await.unwrap();
}

/// Removes Stoker and everything that this suite made, and waits until it is gone.
pub(crate) async fn clean(administrator: &Login) {
    let client = administrator.client().await;
    administrator.run(&["uninstall", "--yes"]).await.exits(0);
    forget(&client).await;
    let nodes: Api<Node> = Api::all(client.clone());
    let leases: Api<Lease> = Api::namespaced(client.clone(), heartbeat::NAMESPACE);
    for node in nodes.list(&ours()).await.unwrap() {
        nodes.delete(&node.name_any(), &DeleteParams::default()).await.unwrap();
        let _ = leases.delete(&node.name_any(), &DeleteParams::default()).await;
    }
    let gone = async || namespaces(&client).await.is_empty();
    eventually("the namespaces of scenarios are gone", gone).await;
}
