//! Deleting: finalizers, preconditions, owners, namespaces, definitions.

use crate::setup::*;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

fn maps(client: &Client) -> Api<ConfigMap> {
    Api::default_namespaced(client.clone())
}

async fn map(client: &Client, name: &str, metadata: Value) -> ConfigMap {
    let mut value = json!({"metadata": {"name": name}});
    value["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    let map: ConfigMap = serde_json::from_value(value).unwrap();
    maps(client).create(&PostParams::default(), &map).await.unwrap()
}

fn owned_by(owners: &[&ConfigMap]) -> Value {
    let owner = |o: &&ConfigMap| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": o.name_any(), "uid": o.uid().unwrap()});
    json!({"ownerReferences": owners.iter().map(owner).collect::<Vec<_>>()})
}

async fn names(client: &Client) -> Vec<String> {
    let list = maps(client).list(&ListParams::default()).await.unwrap();
    list.iter().map(|m| m.name_any()).collect()
}

#[tokio::test]
async fn a_finalizer_holds_an_object() {
    let client = client();
    map(&client, "a", json!({"finalizers": ["example.com/hold"]})).await;
    let deleted = maps(&client).delete("a", &DeleteParams::default()).await.unwrap();
    let waiting = deleted.left().expect("an object that waits comes back as itself");
    assert!(waiting.metadata.deletion_timestamp.is_some());
    maps(&client).delete("a", &DeleteParams::default()).await.unwrap();
    let more = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}}));
    let status = refusal(maps(&client).patch("a", &PatchParams::default(), &more).await);
    assert_eq!(status["details"]["causes"][0]["field"], json!("metadata.finalizers"));
    let clear = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let last = maps(&client).patch("a", &PatchParams::default(), &clear).await.unwrap();
    assert_eq!(last.metadata.finalizers, None);
    assert!(maps(&client).get_opt("a").await.unwrap().is_none());
}

#[tokio::test]
async fn preconditions_are_kept() {
    let client = client();
    let made = map(&client, "a", json!({})).await;
    for (uid, version) in [(Some("other".to_owned()), None), (None, Some("1".to_owned()))] {
        let preconditions = Some(Preconditions { uid, resource_version: version });
        let params = DeleteParams { preconditions, ..Default::default() };
        assert_eq!(refusal(maps(&client).delete("a", &params).await)["code"], json!(409));
    }
    let preconditions = Some(Preconditions { uid: made.uid(), resource_version: made.resource_version() });
    let params = DeleteParams { preconditions, ..Default::default() };
    let status = maps(&client).delete("a", &params).await.unwrap().right().expect("gone at once");
    assert_eq!(status.details.unwrap().uid, made.uid().unwrap());
}

#[tokio::test]
async fn dependents_go_with_their_last_owner() {
    let client = client();
    let (a, b) = (map(&client, "a", json!({})).await, map(&client, "b", json!({})).await);
    let child = map(&client, "child", owned_by(&[&a])).await;
    map(&client, "grandchild", owned_by(&[&child])).await;
    map(&client, "shared", owned_by(&[&a, &b])).await;
    maps(&client).delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(names(&client).await, ["b", "shared"]);
    let shared = maps(&client).get("shared").await.unwrap();
    assert_eq!(shared.owner_references().len(), 1);
    maps(&client).delete("b", &DeleteParams::default()).await.unwrap();
    assert_eq!(names(&client).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_dependent_of_nobody_goes_at_once() {
    let client = client();
    let a = map(&client, "a", json!({})).await;
    maps(&client).delete("a", &DeleteParams::default()).await.unwrap();
    map(&client, "late", owned_by(&[&a])).await;
    assert_eq!(names(&client).await, Vec::<String>::new());
    // An owner of a kind that is not served cannot be known to be gone.
    let foreign = json!({"ownerReferences": [{"apiVersion": "x.y/v1", "kind": "Z", "name": "z", "uid": "u"}]});
    map(&client, "foreign", foreign).await;
    assert_eq!(names(&client).await, ["foreign"]);
}

#[tokio::test]
async fn propagation_policies() {
    let client = client();
    for (policy, after_delete, after_clear) in [
        (PropagationPolicy::Orphan, vec!["child"], vec!["child"]),
        (PropagationPolicy::Background, vec!["child"], vec![]),
        (PropagationPolicy::Foreground, vec!["child", "owner"], vec![]),
    ] {
        let owner = map(&client, "owner", json!({})).await;
        let mut metadata = owned_by(&[&owner]);
        metadata["finalizers"] = json!(["example.com/hold"]);
        map(&client, "child", metadata).await;
        let params = DeleteParams { propagation_policy: Some(policy.clone()), ..Default::default() };
        maps(&client).delete("owner", &params).await.unwrap();
        assert_eq!(names(&client).await, after_delete, "{policy:?}");
        let clear = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        maps(&client).patch("child", &PatchParams::default(), &clear).await.unwrap();
        assert_eq!(names(&client).await, after_clear, "{policy:?}");
        let _ = maps(&client).delete("child", &DeleteParams::default()).await;
    }
}

#[tokio::test]
async fn a_long_chain_and_a_circle_of_owners_end() {
    let client = client();
    let mut owner = map(&client, "c0", json!({})).await;
    for i in 1..2000 {
        owner = map(&client, &format!("c{i}"), owned_by(&[&owner])).await;
    }
    let circle = Patch::Merge(json!({"metadata": owned_by(&[&owner])}));
    maps(&client).patch("c0", &PatchParams::default(), &circle).await.unwrap();
    maps(&client).delete("c0", &DeleteParams::background()).await.unwrap();
    assert_eq!(names(&client).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_cluster_scoped_owner_takes_its_dependents_along() {
    let client = client();
    let nodes: Api<Node> = Api::all(client.clone());
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
    let node = nodes.create(&PostParams::default(), &node).await.unwrap();
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": node.uid().unwrap()}]);
    let other: Node = serde_json::from_value(json!({"metadata": {"name": "other", "ownerReferences": owner}})).unwrap();
    nodes.create(&PostParams::default(), &other).await.unwrap();
    map(&client, "m", json!({"ownerReferences": owner})).await;
    nodes.delete("n", &DeleteParams::default()).await.unwrap();
    assert_eq!(nodes.list(&ListParams::default()).await.unwrap().items.len(), 0);
    assert_eq!(names(&client).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_namespace_goes_with_all_that_is_in_it() {
    let client = client();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let found: Vec<String> =
        namespaces.list(&ListParams::default()).await.unwrap().iter().map(|n| n.name_any()).collect();
    assert_eq!(found, ["default", "stoker-system"]);
    map(&client, "free", json!({})).await;
    map(&client, "held", json!({"finalizers": ["example.com/hold"]})).await;
    namespaces.delete("default", &DeleteParams::default()).await.unwrap();
    let ending = namespaces.get("default").await.unwrap();
    assert_eq!(ending.status.unwrap().phase.as_deref(), Some("Terminating"));
    assert_eq!(names(&client).await, ["held"]);
    let new: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "new"}})).unwrap();
    assert_eq!(refusal(maps(&client).create(&PostParams::default(), &new).await)["code"], json!(403));
    let clear = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    maps(&client).patch("held", &PatchParams::default(), &clear).await.unwrap();
    assert!(namespaces.get_opt("default").await.unwrap().is_none());
}

#[tokio::test]
async fn a_collection_is_deleted_by_selector() {
    let client = client();
    for (name, label) in [("a", "x"), ("b", "y"), ("c", "x")] {
        map(&client, name, json!({"labels": {"l": label}})).await;
    }
    let params = ListParams::default().labels("l=x");
    maps(&client).delete_collection(&DeleteParams::default(), &params).await.unwrap();
    assert_eq!(names(&client).await, ["b"]);
}

#[tokio::test]
async fn definitions_come_and_go_at_run_time() {
    let api = stoker_embedded::Api::new(stoker_embedded::Settings::new(vec![], std::sync::Arc::new(now)));
    let client = api.unwrap().client("default");
    let crds: Api<kube::api::DynamicObject> =
        Api::all_with(client.clone(), &resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition"));
    let widgets = widgets(&client);
    assert_eq!(refusal(widgets.list(&ListParams::default()).await)["code"], json!(404));
    let made = crds.create(&PostParams::default(), &dynamic(widget_crd())).await.unwrap();
    assert_eq!(made.data["status"]["conditions"][1]["type"], json!("Established"));
    widgets.create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();

    // A new default shows up on objects that are already there.
    let properties = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let mut changed = serde_json::to_value(&made).unwrap();
    changed.pointer_mut(properties).unwrap()["epoch"]["default"] = json!(5);
    crds.replace("widgets.example.com", &PostParams::default(), &dynamic(changed)).await.unwrap();
    assert_eq!(widgets.get("a").await.unwrap().data["spec"]["epoch"], json!(5));

    crds.delete("widgets.example.com", &DeleteParams::default()).await.unwrap();
    assert_eq!(refusal(widgets.list(&ListParams::default()).await)["code"], json!(404));
}
