//! Lists: selectors, pages, versions of the past, several versions of one kind, events under two names.

use crate::setup::*;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};

async fn three() -> kube::Client {
    let client = client();
    for (name, tier, mode) in [("a", "x", "Once"), ("b", "y", "Continuous"), ("c", "x", "Continuous")] {
        let mut object = widget(name, json!({"mode": mode}));
        object.labels_mut().insert("tier".to_owned(), tier.to_owned());
        widgets(&client).create(&PostParams::default(), &object).await.unwrap();
    }
    client
}

#[tokio::test]
async fn selectors_select() {
    let widgets = widgets(&three().await);
    for (labels, fields, found) in [
        ("", "", vec!["a", "b", "c"]),
        ("tier=x", "", vec!["a", "c"]),
        ("tier in (y, z)", "", vec!["b"]),
        ("tier!=x,tier", "", vec!["b"]),
        ("", "metadata.name=b", vec!["b"]),
        ("", "metadata.name!=b,metadata.namespace=default", vec!["a", "c"]),
        ("", "spec.mode=Continuous", vec!["b", "c"]),
        ("tier=x", "spec.mode=Continuous", vec!["c"]),
    ] {
        let list = widgets.list(&ListParams::default().labels(labels).fields(fields)).await.unwrap();
        let names: Vec<String> = list.iter().map(|o| o.name_any()).collect();
        assert_eq!(names, found, "{labels} {fields}");
    }
}

#[tokio::test]
async fn pages_show_one_moment() {
    let widgets = widgets(&three().await);
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

#[tokio::test]
async fn one_kind_in_two_versions() {
    let client = three().await;
    let old: Api<kube::api::DynamicObject> =
        Api::namespaced_with(client.clone(), "default", &resource("example.com", "v1beta1", "Widget"));
    let seen = old.get("a").await.unwrap();
    assert_eq!(seen.types.as_ref().unwrap().api_version, "example.com/v1beta1");
    assert_eq!(seen.data["spec"], json!({"mode": "Once", "old": "yes"}));
    let list = old.list(&ListParams::default()).await.unwrap();
    assert_eq!(list.items.len(), 3);
    let made = dynamic(
        json!({"apiVersion": "example.com/v1beta1", "kind": "Widget", "metadata": {"name": "o"}, "spec": {"mode": "Once"}}),
    );
    old.create(&PostParams::default(), &made).await.unwrap();
    let new = widgets(&client).get("o").await.unwrap();
    assert_eq!(new.types.unwrap().api_version, "example.com/v1");
}

#[tokio::test]
async fn events_are_the_same_under_both_names() {
    let client = client();
    let newer: Api<k8s_openapi::api::events::v1::Event> = Api::default_namespaced(client.clone());
    let event = json!({
        "metadata": {"name": "e"}, "note": "hello", "reason": "Started", "type": "Normal", "action": "Start",
        "reportingController": "stoker", "reportingInstance": "x", "eventTime": "2026-11-15T12:00:00.000000Z",
        "regarding": {"kind": "Widget", "name": "w", "namespace": "default", "uid": "u"},
    });
    newer.create(&PostParams::default(), &serde_json::from_value(event).unwrap()).await.unwrap();
    let older: Api<Event> = Api::default_namespaced(client);
    let fields = "involvedObject.kind=Widget,involvedObject.name=w,involvedObject.uid=u";
    let found = older.list(&ListParams::default().fields(fields)).await.unwrap();
    assert_eq!(found.items[0].message.as_deref(), Some("hello"));
    assert_eq!(found.items[0].involved_object.name.as_deref(), Some("w"));
    let found = newer.list(&ListParams::default().fields("regarding.name=w")).await.unwrap();
    assert_eq!(found.items[0].note.as_deref(), Some("hello"));
}

#[tokio::test]
async fn only_so_many_events_are_kept() {
    let events: Api<Event> = Api::default_namespaced(client());
    for number in 0..5600 {
        let event = json!({"metadata": {"name": format!("e{number}")}, "involvedObject": {}, "message": "x"});
        events.create(&PostParams::default(), &serde_json::from_value(event).unwrap()).await.unwrap();
    }
    let kept = events.list(&ListParams::default()).await.unwrap().items.len();
    assert!((5000..=5500).contains(&kept), "{kept}");
    assert!(events.get_opt("e0").await.unwrap().is_none());
    assert!(events.get_opt("e5599").await.unwrap().is_some());
}

#[tokio::test]
async fn pods_are_found_by_node() {
    let pods: Api<Pod> = Api::default_namespaced(client());
    for (name, node) in [("a", "n1"), ("b", "n2")] {
        let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": []}});
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    }
    let list = pods.list(&ListParams::default().fields("spec.nodeName=n2")).await.unwrap();
    assert_eq!(list.items.len(), 1);
}

#[tokio::test]
async fn versions_that_are_not() {
    let client = three().await;
    let path = "/apis/example.com/v1/widgets";
    let late = raw(&client, "GET", &format!("{path}?resourceVersion=99999"), &[], Value::Null).await;
    assert_eq!((late.code, &late.body["reason"]), (504, &json!("Timeout")));
    let early =
        raw(&client, "GET", &format!("{path}?resourceVersion=1&resourceVersionMatch=Exact"), &[], Value::Null).await;
    assert_eq!((early.code, &early.body["reason"]), (410, &json!("Expired")));
}
