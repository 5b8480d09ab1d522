//! Table output and metadata-only output.

use crate::setup::*;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

const TABLE: (&str, &str) = ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json");

async fn ready() -> kube::Client {
    let client = client();
    let widgets = widgets(&client);
    widgets.create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    let status =
        json!({"status": {"conditions": [{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}]}});
    widgets.patch_status("a", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    client
}

#[tokio::test]
async fn columns_of_the_definition() {
    let client = ready().await;
    let path = "/apis/example.com/v1/namespaces/default/widgets";
    for path in [path.to_owned(), format!("{path}/a")] {
        let table = raw(&client, "GET", &path, &[TABLE], Value::Null).await.body;
        assert_eq!(table["kind"], json!("Table"));
        let columns: Vec<(Value, Value)> = table["columnDefinitions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| (c["name"].clone(), c["priority"].clone()))
            .collect();
        let wanted = [("Name", 0), ("Mode", 0), ("Ready", 0), ("Parallelism", 1), ("Age", 0)];
        assert_eq!(columns, wanted.map(|(n, p)| (json!(n), json!(p))));
        assert_eq!(table["rows"][0]["cells"], json!(["a", "Once", "True", 10, "0s"]));
        assert_eq!(table["rows"][0]["object"]["kind"], json!("PartialObjectMetadata"));
    }
    let whole = raw(&client, "GET", &format!("{path}?includeObject=Object"), &[TABLE], Value::Null).await.body;
    assert_eq!(whole["rows"][0]["object"]["spec"]["mode"], json!("Once"));
    let none = raw(&client, "GET", &format!("{path}?includeObject=None"), &[TABLE], Value::Null).await.body;
    assert_eq!(none["rows"][0].get("object"), None);
}

#[tokio::test]
async fn built_in_kinds_have_columns() {
    let table = raw(&client(), "GET", "/api/v1/namespaces", &[TABLE], Value::Null).await.body;
    assert_eq!(table["rows"][0]["cells"], json!(["default", "Active", "0s"]));
}

#[tokio::test]
async fn metadata_alone() {
    let accept = [("accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")];
    let list = raw(&ready().await, "GET", "/apis/example.com/v1/widgets", &accept, Value::Null).await.body;
    assert_eq!(list["kind"], json!("PartialObjectMetadataList"));
    assert_eq!(list["items"][0]["metadata"]["name"], json!("a"));
    assert_eq!(list["items"][0].get("spec"), None);
}
