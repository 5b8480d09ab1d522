//! Table output and metadata-only output.

use crate::server::*;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

const TABLE: (&str, &str) = ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json");

async fn ready(server: &Server) {
    let widgets = server.widgets();
    widgets.create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    let status =
        json!({"status": {"conditions": [{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}]}});
    widgets.patch_status("a", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

pub(crate) async fn columns_of_the_definition(server: Server) {
    ready(&server).await;
    let path = server.path("");
    for path in [path.clone(), server.path("/a")] {
        let table = server.raw("GET", &path, &[TABLE], Value::Null).await.body;
        assert_eq!(table["kind"], json!("Table"));
        let columns: Vec<(Value, Value)> = table["columnDefinitions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| (c["name"].clone(), c["priority"].clone()))
            .collect();
        let wanted = [("Name", 0), ("Mode", 0), ("Ready", 0), ("Parallelism", 1), ("Age", 0)];
        assert_eq!(columns, wanted.map(|(n, p)| (json!(n), json!(p))));
        let cells = table["rows"][0]["cells"].as_array().unwrap();
        assert_eq!(cells[..4], [json!("a"), json!("Once"), json!("True"), json!(10)]);
        assert!(cells[4].as_str().unwrap().ends_with('s'), "{cells:?}");
        assert_eq!(table["rows"][0]["object"]["kind"], json!("PartialObjectMetadata"));
    }
    let whole = server.raw("GET", &format!("{path}?includeObject=Object"), &[TABLE], Value::Null).await.body;
    assert_eq!(whole["rows"][0]["object"]["spec"]["mode"], json!("Once"));
    let none = server.raw("GET", &format!("{path}?includeObject=None"), &[TABLE], Value::Null).await.body;
    assert!(none["rows"][0]["object"].is_null());
}

pub(crate) async fn built_in_kinds_have_columns(server: Server) {
    let path = format!("/api/v1/namespaces/{}", server.namespace);
    let table = server.raw("GET", &path, &[TABLE], Value::Null).await.body;
    assert_eq!(table["rows"][0]["cells"].as_array().unwrap()[..2], [json!(server.namespace), json!("Active")]);
}

pub(crate) async fn metadata_alone(server: Server) {
    ready(&server).await;
    let accept = [("accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")];
    let list = server.raw("GET", &server.path(""), &accept, Value::Null).await.body;
    assert_eq!(list["kind"], json!("PartialObjectMetadataList"));
    assert_eq!(list["items"][0]["metadata"]["name"], json!("a"));
    assert_eq!(list["items"][0].get("spec"), None);
}
