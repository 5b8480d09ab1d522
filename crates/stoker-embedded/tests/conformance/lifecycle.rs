//! Deleting: finalizers, preconditions, owners, namespaces, definitions. A real server's controllers take their time, so what
//! they do is awaited.

use crate::server::*;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use serde_json::{Value, json};

async fn map(server: &Server, name: &str, metadata: Value) -> ConfigMap {
    let mut value = json!({"metadata": {"name": name}});
    value["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    let map: ConfigMap = serde_json::from_value(value).unwrap();
    server.maps().create(&PostParams::default(), &map).await.unwrap()
}

fn owned_by(owners: &[&ConfigMap]) -> Value {
    let owner = |o: &&ConfigMap| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": o.name_any(), "uid": o.uid().unwrap(),
            "blockOwnerDeletion": true})
    };
    json!({"ownerReferences": owners.iter().map(owner).collect::<Vec<_>>()})
}

/// All ConfigMaps but the one that a real server puts into every namespace.
async fn names(server: &Server) -> Vec<String> {
    let list = server.maps().list(&ListParams::default()).await.unwrap();
    list.iter().map(|m| m.name_any()).filter(|name| name != "kube-root-ca.crt").collect()
}

async fn left(server: &Server, wanted: &[&str]) {
    eventually(&format!("{wanted:?} are left"), || async { names(server).await == wanted }).await;
}

fn no_finalizers() -> Patch<Value> {
    Patch::Merge(json!({"metadata": {"finalizers": null}}))
}

pub(crate) async fn a_finalizer_holds_an_object(server: Server) {
    let maps = server.maps();
    map(&server, "a", json!({"finalizers": ["example.com/hold"]})).await;
    let deleted = maps.delete("a", &DeleteParams::default()).await.unwrap();
    let waiting = deleted.left().expect("an object that waits comes back as itself");
    assert!(waiting.metadata.deletion_timestamp.is_some());
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    let again: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
    let status = refusal(maps.create(&PostParams::default(), &again).await);
    assert_eq!(status["message"], json!(r#"object is being deleted: configmaps "a" already exists"#));
    let more = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}}));
    let status = refusal(maps.patch("a", &PatchParams::default(), &more).await);
    assert_eq!(status["details"]["causes"][0]["field"], json!("metadata.finalizers"));
    let last = maps.patch("a", &PatchParams::default(), &no_finalizers()).await.unwrap();
    assert_eq!(last.metadata.finalizers, None);
    assert!(maps.get_opt("a").await.unwrap().is_none());
}

pub(crate) async fn preconditions_are_kept(server: Server) {
    let made = map(&server, "a", json!({})).await;
    for (uid, version) in [(Some("other".to_owned()), None), (None, Some("1".to_owned()))] {
        let preconditions = Some(Preconditions { uid, resource_version: version });
        let params = DeleteParams { preconditions, ..Default::default() };
        assert_eq!(refusal(server.maps().delete("a", &params).await)["code"], json!(409));
    }
    let preconditions = Some(Preconditions { uid: made.uid(), resource_version: made.resource_version() });
    let params = DeleteParams { preconditions, ..Default::default() };
    let status = server.maps().delete("a", &params).await.unwrap().right().expect("gone at once");
    assert_eq!(status.details.unwrap().uid, made.uid().unwrap());
}

pub(crate) async fn dependents_go_with_their_last_owner(server: Server) {
    let (a, b) = (map(&server, "a", json!({})).await, map(&server, "b", json!({})).await);
    let child = map(&server, "child", owned_by(&[&a])).await;
    map(&server, "grandchild", owned_by(&[&child])).await;
    map(&server, "shared", owned_by(&[&a, &b])).await;
    server.maps().delete("a", &DeleteParams::background()).await.unwrap();
    left(&server, &["b", "shared"]).await;
    eventually("the shared one knows one owner", || async {
        server.maps().get("shared").await.unwrap().owner_references().len() == 1
    })
    .await;
    server.maps().delete("b", &DeleteParams::background()).await.unwrap();
    left(&server, &[]).await;
}

pub(crate) async fn a_dependent_of_nobody_goes(server: Server) {
    let a = map(&server, "a", json!({})).await;
    server.maps().delete("a", &DeleteParams::default()).await.unwrap();
    map(&server, "late", owned_by(&[&a])).await;
    left(&server, &[]).await;
    // An owner of a kind that is not served cannot be known to be gone.
    let foreign = json!({"ownerReferences": [{"apiVersion": "x.y/v1", "kind": "Z", "name": "z", "uid": "u"}]});
    map(&server, "foreign", foreign).await;
    assert_eq!(names(&server).await, ["foreign"]);
}

pub(crate) async fn propagation_policies(server: Server) {
    for (policy, after_delete, after_clear) in [
        (PropagationPolicy::Orphan, &["child"][..], &["child"][..]),
        (PropagationPolicy::Background, &["child"], &[]),
        (PropagationPolicy::Foreground, &["child", "owner"], &[]),
    ] {
        let owner = map(&server, "owner", json!({})).await;
        let mut metadata = owned_by(&[&owner]);
        metadata["finalizers"] = json!(["example.com/hold"]);
        map(&server, "child", metadata).await;
        // The garbage collector knows what it was told of: it must have seen both.
        let params = DeleteParams { propagation_policy: Some(policy.clone()), ..Default::default() };
        server.maps().delete("owner", &params).await.unwrap();
        left(&server, after_delete).await;
        let orphan = policy == PropagationPolicy::Orphan;
        eventually("the child hears of it", || async {
            let child = server.maps().get("child").await.unwrap();
            match orphan {
                true => child.owner_references().is_empty(),
                false => child.metadata.deletion_timestamp.is_some(),
            }
        })
        .await;
        server.maps().patch("child", &PatchParams::default(), &no_finalizers()).await.unwrap();
        left(&server, after_clear).await;
        let _ = server.maps().delete("child", &DeleteParams::default()).await;
    }
}

async fn circle(server: &Server, length: usize) {
    let mut owner = map(server, "c0", json!({})).await;
    for number in 1..length {
        owner = map(server, &format!("c{number}"), owned_by(&[&owner])).await;
    }
    let close = Patch::Merge(json!({"metadata": owned_by(&[&owner])}));
    server.maps().patch("c0", &PatchParams::default(), &close).await.unwrap();
}

pub(crate) async fn a_circle_of_owners_ends(server: Server) {
    circle(&server, 12).await;
    server.maps().delete("c0", &DeleteParams::background()).await.unwrap();
    left(&server, &[]).await;
}

pub(crate) async fn a_circle_ends_in_the_foreground_too(server: Server) {
    circle(&server, 3).await;
    server.maps().delete("c0", &DeleteParams::foreground()).await.unwrap();
    left(&server, &[]).await;
}

pub(crate) async fn a_cluster_scoped_owner_takes_its_dependents_along(server: Server) {
    let nodes: Api<Node> = Api::all(server.client.clone());
    let (name, other) = (server.name("n"), server.name("other"));
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels()}})).unwrap();
    let node = nodes.create(&PostParams::default(), &node).await.unwrap();
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.uid().unwrap()}]);
    let owned = json!({"metadata": {"name": other, "labels": labels(), "ownerReferences": owner}});
    nodes.create(&PostParams::default(), &serde_json::from_value(owned).unwrap()).await.unwrap();
    map(&server, "m", json!({"ownerReferences": owner})).await;
    nodes.delete(&name, &DeleteParams::default()).await.unwrap();
    eventually("the other node is gone", || async { nodes.get_opt(&other).await.unwrap().is_none() }).await;
    left(&server, &[]).await;
}

pub(crate) async fn a_namespace_goes_with_all_that_is_in_it(server: Server) {
    let namespaces: Api<Namespace> = Api::all(server.client.clone());
    let own = &server.namespace;
    map(&server, "free", json!({})).await;
    map(&server, "held", json!({"finalizers": ["example.com/hold"]})).await;
    namespaces.delete(own, &DeleteParams::default()).await.unwrap();
    let ending = namespaces.get(own).await.unwrap();
    assert_eq!(ending.status.unwrap().phase.as_deref(), Some("Terminating"));
    left(&server, &["held"]).await;
    let new: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "new"}})).unwrap();
    let status = refusal(server.maps().create(&PostParams::default(), &new).await);
    assert_eq!(
        status["message"],
        json!(format!(
            r#"configmaps "new" is forbidden: unable to create new content in namespace {own} because it is being terminated"#
        ))
    );
    assert_eq!((&status["code"], &status["details"]["causes"][0]["reason"]), (&json!(403), &json!("NamespaceTerminating")));
    server.maps().patch("held", &PatchParams::default(), &no_finalizers()).await.unwrap();
    eventually("the namespace is gone", || async { namespaces.get_opt(own).await.unwrap().is_none() }).await;
}

pub(crate) async fn the_default_namespace_stays(server: Server) {
    let namespaces: Api<Namespace> = Api::all(server.client.clone());
    let status = refusal(namespaces.delete("default", &DeleteParams::default()).await);
    assert_eq!((&status["code"], &status["reason"]), (&json!(403), &json!("Forbidden")));
    assert_eq!(status["message"], json!(r#"namespaces "default" is forbidden: this namespace may not be deleted"#));
    assert!(namespaces.get("default").await.unwrap().metadata.deletion_timestamp.is_none());
}

pub(crate) async fn a_collection_is_deleted_by_selector(server: Server) {
    for (name, label) in [("a", "x"), ("b", "y"), ("c", "x")] {
        map(&server, name, json!({"labels": {"l": label}})).await;
    }
    let params = ListParams::default().labels("l=x");
    server.maps().delete_collection(&DeleteParams::default(), &params).await.unwrap();
    assert_eq!(names(&server).await, ["b"]);
}

pub(crate) async fn definitions_come_and_go_at_run_time(server: Server) {
    let group = format!("{}.example.com", server.namespace);
    let mut definition = widget_crd();
    definition["metadata"]["name"] = json!(format!("widgets.{group}"));
    definition["spec"]["group"] = json!(group);
    let name = format!("widgets.{group}");
    let crds = definitions(&server.client);
    let widgets: Api<kube::api::DynamicObject> =
        Api::default_namespaced_with(server.client.clone(), &resource(&group, "v1", "Widget"));
    assert_eq!(refusal(widgets.list(&ListParams::default()).await)["code"], json!(404));
    crds.create(&PostParams::default(), &dynamic(definition)).await.unwrap();
    eventually("the kind is served", || async { widgets.list(&ListParams::default()).await.is_ok() }).await;
    let made = crds.get(&name).await.unwrap();
    let mut conditions: Vec<(&str, &str)> = Vec::new();
    for condition in made.data["status"]["conditions"].as_array().unwrap() {
        conditions.push((condition["type"].as_str().unwrap(), condition["status"].as_str().unwrap()));
    }
    assert!(conditions.contains(&("Established", "True")) && conditions.contains(&("NamesAccepted", "True")));
    let object = json!({"apiVersion": format!("{group}/v1"), "kind": "Widget", "metadata": {"name": "a"}, "spec": {}});
    widgets.create(&PostParams::default(), &dynamic(object)).await.unwrap();

    // A new default shows up on objects that are already there.
    let properties = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let mut changed = serde_json::to_value(&made).unwrap();
    changed.pointer_mut(properties).unwrap()["epoch"]["default"] = json!(5);
    crds.replace(&name, &PostParams::default(), &dynamic(changed)).await.unwrap();
    eventually("the default shows", || async {
        widgets.get("a").await.is_ok_and(|widget| widget.data["spec"]["epoch"] == json!(5))
    })
    .await;

    crds.delete(&name, &DeleteParams::default()).await.unwrap();
    eventually("the kind is gone", || async {
        matches!(widgets.list(&ListParams::default()).await, Err(kube::Error::Api(status)) if status.code == 404)
    })
    .await;
}
