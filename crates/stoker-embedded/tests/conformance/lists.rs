//! Lists: selectors, pages, versions of the past, several versions of one kind, events under two names.

use crate::server::*;
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{Event, Pod, ServiceAccount};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::{Value, json};
use std::pin::pin;

async fn three(server: &Server) -> Api<kube::api::DynamicObject> {
    for (name, tier, mode) in [("a", "x", "Once"), ("b", "y", "Continuous"), ("c", "x", "Continuous")] {
        let mut object = widget(name, json!({"mode": mode}));
        object.labels_mut().insert("tier".to_owned(), tier.to_owned());
        server.widgets().create(&PostParams::default(), &object).await.unwrap();
    }
    server.widgets()
}

pub(crate) async fn selectors_select(server: Server) {
    let widgets = three(&server).await;
    let own = format!("metadata.name!=b,metadata.namespace={}", server.namespace);
    for (labels, fields, found) in [
        ("", "", &["a", "b", "c"][..]),
        ("tier=x", "", &["a", "c"]),
        ("tier in (y, z)", "", &["b"]),
        ("tier!=x,tier", "", &["b"]),
        ("tier notin (x)", "", &["b"]),
        ("!tier", "", &[]),
        ("", "metadata.name=b", &["b"]),
        ("", own.as_str(), &["a", "c"]),
        ("", "metadata.namespace=elsewhere", &[]),
        ("", "spec.mode=Continuous", &["b", "c"]),
        ("tier=x", "spec.mode=Continuous", &["c"]),
    ] {
        let list = widgets.list(&ListParams::default().labels(labels).fields(fields)).await.unwrap();
        let names: Vec<String> = list.iter().map(|o| o.name_any()).collect();
        assert_eq!(names, found, "{labels} {fields}");
    }
}

pub(crate) async fn pages_show_one_moment(server: Server) {
    let widgets = three(&server).await;
    let first = widgets.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(first.items.len(), 2);
    assert_eq!(first.metadata.remaining_item_count, Some(1));
    let token = first.metadata.continue_.unwrap();
    // What happens between two pages is not seen by the second.
    widgets.delete("c", &DeleteParams::default()).await.unwrap();
    widgets.create(&PostParams::default(), &widget("d", json!({}))).await.unwrap();
    let second = widgets.list(&ListParams::default().limit(2).continue_token(&token)).await.unwrap();
    let names: Vec<String> = second.iter().map(|o| o.name_any()).collect();
    assert_eq!(names, ["c"]);
    assert_eq!(second.metadata.resource_version, first.metadata.resource_version);
    assert_eq!(second.metadata.continue_.filter(|t| !t.is_empty()), None);
}

pub(crate) async fn one_kind_in_two_versions(server: Server) {
    let new = three(&server).await;
    let old: Api<kube::api::DynamicObject> =
        Api::default_namespaced_with(server.client.clone(), &resource("example.com", "v1beta1", "Widget"));
    let seen = old.get("a").await.unwrap();
    assert_eq!(seen.types.as_ref().unwrap().api_version, "example.com/v1beta1");
    // What only the stored version has is not shown, and what only this one has is not stored.
    assert_eq!(seen.data["spec"], json!({"mode": "Once"}));
    let list = old.list(&ListParams::default()).await.unwrap();
    assert_eq!(list.items.len(), 3);
    let made = dynamic(
        json!({"apiVersion": "example.com/v1beta1", "kind": "Widget", "metadata": {"name": "o"}, "spec": {"mode": "Once"}}),
    );
    let made = old.create(&PostParams::default(), &made).await.unwrap();
    assert_eq!(made.data["spec"], json!({"mode": "Once"}));
    let stored = new.get("o").await.unwrap();
    assert_eq!(stored.types.unwrap().api_version, "example.com/v1");
    assert_eq!(stored.data["spec"], json!({"mode": "Once", "pace": {"parallelism": 10}}));
}

pub(crate) async fn events_are_the_same_under_both_names(server: Server) {
    let newer: Api<k8s_openapi::api::events::v1::Event> = Api::default_namespaced(server.client.clone());
    let event = json!({
        "metadata": {"name": "e"}, "note": "hello", "reason": "Started", "type": "Normal", "action": "Start",
        "reportingController": "example.com/stoker", "reportingInstance": "x", "eventTime": "2026-11-15T12:00:00.000000Z",
        "regarding": {"kind": "Widget", "name": "w", "namespace": server.namespace, "uid": "u"},
    });
    newer.create(&PostParams::default(), &serde_json::from_value(event).unwrap()).await.unwrap();
    let older: Api<Event> = Api::default_namespaced(server.client.clone());
    let fields = "involvedObject.kind=Widget,involvedObject.name=w,involvedObject.uid=u";
    let found = older.list(&ListParams::default().fields(fields)).await.unwrap();
    assert_eq!(found.items[0].message.as_deref(), Some("hello"));
    assert_eq!(found.items[0].involved_object.name.as_deref(), Some("w"));
    let found = newer.list(&ListParams::default().fields("regarding.name=w")).await.unwrap();
    assert_eq!(found.items[0].note.as_deref(), Some("hello"));
}

pub(crate) async fn pods_are_found_by_node(server: Server) {
    // A real server wants an account; its controllers make it too, at their own time.
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
    let accounts = Api::default_namespaced(server.client.clone());
    let _ = accounts.create(&PostParams::default(), &account).await;
    let pods: Api<Pod> = Api::default_namespaced(server.client.clone());
    // Nodes that nobody has: no kubelet may take the pods for its own.
    let nodes = [server.name("n1"), server.name("n2")];
    for (name, node) in ["a", "b"].into_iter().zip(&nodes) {
        let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": node, "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "example.com/i:1"}]}});
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    }
    let list = pods.list(&ListParams::default().fields(&format!("spec.nodeName={}", nodes[1]))).await.unwrap();
    assert_eq!(list.items.len(), 1);
    let now = DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
    for name in ["a", "b"] {
        pods.delete(name, &now).await.unwrap();
    }
}

/// A pod of this name, label and node, which no kubelet takes for its own.
fn pod(name: &str, app: &str, node: &str) -> Pod {
    let pod = json!({"metadata": {"name": name, "labels": {"app": app}}, "spec": {"nodeName": node,
        "automountServiceAccountToken": false, "containers": [{"name": "c", "image": "example.com/i:1"}]}});
    serde_json::from_value(pod).unwrap()
}

pub(crate) async fn pods_are_watched_by_label_and_node(server: Server) {
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
    let accounts = Api::default_namespaced(server.client.clone());
    let _ = accounts.create(&PostParams::default(), &account).await;
    let pods: Api<Pod> = Api::default_namespaced(server.client.clone());
    let (near, far) = (server.name("n1"), server.name("n2"));
    let (labels, fields) = ("app in (web, cart)", format!("spec.nodeName={near},status.phase!=Failed"));
    let params = WatchParams::default().labels(labels).fields(&fields).disable_bookmarks();
    let mut events = pin!(pods.watch(&params, "0").await.unwrap());
    for (name, app, node) in [("a", "db", &near), ("b", "web", &far), ("c", "web", &near), ("d", "cart", &near)] {
        pods.create(&PostParams::default(), &pod(name, app, node)).await.unwrap();
    }
    let listed = pods.list(&ListParams::default().labels(labels).fields(&fields)).await.unwrap();
    assert_eq!(listed.iter().map(|pod| pod.name_any()).collect::<Vec<_>>(), ["c", "d"]);
    let change = |body: Value| Patch::Merge(body);
    pods.patch("c", &PatchParams::default(), &change(json!({"metadata": {"labels": {"app": "db"}}}))).await.unwrap();
    pods.patch("a", &PatchParams::default(), &change(json!({"metadata": {"labels": {"app": "web"}}}))).await.unwrap();
    pods.patch_status("d", &PatchParams::default(), &change(json!({"status": {"phase": "Failed"}}))).await.unwrap();
    for wanted in ["ADDED c", "ADDED d", "DELETED c", "ADDED a", "DELETED d"] {
        let found = loop {
            match events.try_next().await.unwrap().unwrap() {
                WatchEvent::Added(pod) => break format!("ADDED {}", pod.name_any()),
                WatchEvent::Deleted(pod) => break format!("DELETED {}", pod.name_any()),
                // A real server's controllers write to pods that nobody runs.
                WatchEvent::Modified(_) => {}
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(found, wanted);
    }
    let now = DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
    for name in ["a", "b", "c", "d"] {
        pods.delete(name, &now).await.unwrap();
    }
}

pub(crate) async fn versions_that_are_not(server: Server) {
    three(&server).await;
    let bad = server.raw("GET", &server.path("?resourceVersionMatch=Exact"), &[], Value::Null).await;
    assert_eq!(bad.code, 422, "{}", bad.body);
    let bad = server.raw("GET", &server.path("?resourceVersion=1&resourceVersionMatch=Other"), &[], Value::Null).await;
    assert_eq!(bad.code, 422, "{}", bad.body);
}
