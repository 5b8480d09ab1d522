//! One kind in two versions, without conversion: each request sees and writes the version that it names.

use crate::server::*;
use futures::TryStreamExt as _;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::{Value, json};
use std::pin::pin;

fn older(server: &Server) -> Api<DynamicObject> {
    Api::default_namespaced_with(server.client.clone(), &resource("example.com", "v1beta1", "Widget"))
}

/// The version of an object, its mode and its phase.
fn seen(object: &DynamicObject) -> (String, Value, Value) {
    let version = object.types.as_ref().unwrap().api_version.clone();
    (version, object.data["spec"]["mode"].clone(), object.data["status"]["phase"].clone())
}

pub(crate) async fn every_verb_works_in_either_version(server: Server) {
    const OLD: &str = "example.com/v1beta1";
    const NEW: &str = "example.com/v1";
    let (old, new) = (older(&server), server.widgets());
    let params = WatchParams::default().disable_bookmarks();
    let mut old_events = pin!(old.watch(&params, "0").await.unwrap());
    let mut new_events = pin!(new.watch(&params, "0").await.unwrap());
    let mut wanted = Vec::new();

    let object = json!({"apiVersion": OLD, "kind": "Widget", "metadata": {"name": "w"}, "spec": {"mode": "Once"}});
    let made = old.create(&PostParams::default(), &dynamic(object)).await.unwrap();
    assert_eq!(seen(&made), (OLD.into(), json!("Once"), Value::Null));
    wanted.push(("ADDED", json!("Once"), Value::Null));

    let merge = Patch::Merge(json!({"spec": {"mode": "Continuous"}}));
    let patched = new.patch("w", &PatchParams::default(), &merge).await.unwrap();
    assert_eq!(seen(&patched), (NEW.into(), json!("Continuous"), Value::Null));
    wanted.push(("MODIFIED", json!("Continuous"), Value::Null));

    let mut put = old.get("w").await.unwrap();
    put.data["spec"]["mode"] = json!("Once");
    let put = old.replace("w", &PostParams::default(), &put).await.unwrap();
    assert_eq!(seen(&put), (OLD.into(), json!("Once"), Value::Null));
    wanted.push(("MODIFIED", json!("Once"), Value::Null));

    let phase = |phase: &str| Patch::Merge(json!({"status": {"phase": phase}}));
    let told = old.patch_status("w", &PatchParams::default(), &phase("Running")).await.unwrap();
    assert_eq!(seen(&told), (OLD.into(), json!("Once"), json!("Running")));
    wanted.push(("MODIFIED", json!("Once"), json!("Running")));
    let told = new.patch_status("w", &PatchParams::default(), &phase("Done")).await.unwrap();
    assert_eq!(seen(&told), (NEW.into(), json!("Once"), json!("Done")));
    wanted.push(("MODIFIED", json!("Once"), json!("Done")));
    assert_eq!(told.metadata.generation, Some(3), "a write of the status is no new generation");

    for (api, version) in [(&old, OLD), (&new, NEW)] {
        assert_eq!(seen(&api.get("w").await.unwrap()).0, version);
        let list = api.list(&ListParams::default()).await.unwrap();
        assert_eq!((list.types.api_version.as_str(), seen(&list.items[0]).0.as_str()), (version, version));
    }
    let wrong = refusal(new.create(&PostParams::default(), &made).await);
    assert_eq!(wrong["code"], json!(400), "the body says another version than the URL");
    old.delete("w", &DeleteParams::default()).await.unwrap();
    wanted.push(("DELETED", json!("Once"), json!("Done")));

    for (kind, mode, phase) in wanted {
        for (events, version) in [(&mut old_events, OLD), (&mut new_events, NEW)] {
            let (found, object) = match events.try_next().await.unwrap().unwrap() {
                WatchEvent::Added(object) => ("ADDED", object),
                WatchEvent::Modified(object) => ("MODIFIED", object),
                WatchEvent::Deleted(object) => ("DELETED", object),
                other => panic!("{other:?}"),
            };
            assert_eq!((found, seen(&object)), (kind, (version.to_owned(), mode.clone(), phase.clone())));
        }
    }
}

pub(crate) async fn columns_are_those_of_the_version(server: Server) {
    server.widgets().create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")];
    for (version, wanted) in
        [("v1", &["Name", "Mode", "Ready", "Parallelism", "Age"][..]), ("v1beta1", &["Name", "Age"])]
    {
        let path = format!("/apis/example.com/{version}/namespaces/{}/widgets", server.namespace);
        let table = server.raw("GET", &path, &accept, Value::Null).await.body;
        let columns: Vec<&str> =
            table["columnDefinitions"].as_array().unwrap().iter().filter_map(|column| column["name"].as_str()).collect();
        assert_eq!(columns, wanted, "{version}");
        assert_eq!(table["rows"][0]["cells"][0], json!("a"));
    }
}

pub(crate) async fn versions_that_were_stored_are_remembered(server: Server) {
    let group = format!("{}.example.com", server.namespace);
    let name = format!("widgets.{group}");
    let mut definition = widget_crd();
    definition["metadata"]["name"] = json!(name);
    definition["spec"]["group"] = json!(group);
    let crds = definitions(&server.client);
    crds.create(&PostParams::default(), &dynamic(definition)).await.unwrap();
    let api = |version: &str| -> Api<DynamicObject> {
        Api::default_namespaced_with(server.client.clone(), &resource(&group, version, "Widget"))
    };
    eventually("the kind is served", || async { api("v1").list(&ListParams::default()).await.is_ok() }).await;
    let stored = async || crds.get(&name).await.unwrap().data["status"]["storedVersions"].clone();
    assert_eq!(stored().await, json!(["v1"]));
    let object = json!({"apiVersion": format!("{group}/v1"), "kind": "Widget", "metadata": {"name": "w"}, "spec": {}});
    api("v1").create(&PostParams::default(), &dynamic(object)).await.unwrap();

    let flip = json!([
        {"op": "replace", "path": "/spec/versions/0/storage", "value": false},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": true},
    ]);
    let flip = Patch::Json::<()>(serde_json::from_value(flip).unwrap());
    crds.patch(&name, &PatchParams::default(), &flip).await.unwrap();
    assert_eq!(stored().await, json!(["v1", "v1beta1"]));
    for version in ["v1", "v1beta1"] {
        let read = api(version).get("w").await.unwrap();
        assert_eq!(seen(&read), (format!("{group}/{version}"), json!("Once"), Value::Null));
    }
    let forget = Patch::Merge(json!({"status": {"storedVersions": ["v1beta1"]}}));
    crds.patch_status(&name, &PatchParams::default(), &forget).await.unwrap();
    assert_eq!(stored().await, json!(["v1beta1"]));
    crds.delete(&name, &DeleteParams::default()).await.unwrap();
}
