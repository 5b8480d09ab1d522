//! Create, update, patch, status, no-op writes and optimistic locking.

use crate::setup::*;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams, PostParams, ValidationDirective};
use serde_json::{Value, json};

fn spec(object: &kube::api::DynamicObject) -> &Value {
    &object.data["spec"]
}

#[tokio::test]
async fn a_new_object_is_complete() {
    let widgets = widgets(&client());
    let made = widgets.create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    assert_eq!(spec(&made), &json!({"mode": "Once", "pace": {"parallelism": 10}}));
    assert_eq!(made.metadata.generation, Some(1));
    assert_eq!(made.namespace().as_deref(), Some("default"));
    assert!(made.uid().is_some_and(|uid| uid.len() == 36));
    assert_eq!(made.creation_timestamp().unwrap().0, now());
    assert_eq!(widgets.get("a").await.unwrap(), made);
}

#[tokio::test]
async fn names_are_generated() {
    let widgets = widgets(&client());
    let mut wanted = widget("", json!({}));
    wanted.metadata.name = None;
    wanted.metadata.generate_name = Some("job-".to_owned());
    let a = widgets.create(&PostParams::default(), &wanted).await.unwrap().name_any();
    let b = widgets.create(&PostParams::default(), &wanted).await.unwrap().name_any();
    assert!(a.starts_with("job-") && a.len() == 9 && a != b, "{a} {b}");
}

#[tokio::test]
async fn an_update_wants_the_version_it_read() {
    let widgets = widgets(&client());
    let first = widgets.create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    let mut mine = first.clone();
    mine.data["spec"]["epoch"] = json!(1);
    let second = widgets.replace("a", &PostParams::default(), &mine).await.unwrap();
    assert_eq!(second.metadata.generation, Some(2));
    let status = refusal(widgets.replace("a", &PostParams::default(), &mine).await);
    assert_eq!((&status["code"], &status["reason"]), (&json!(409), &json!("Conflict")));
    mine.metadata.resource_version = None;
    let status = refusal(widgets.replace("a", &PostParams::default(), &mine).await);
    assert_eq!(status["code"], json!(422), "{status}");
}

#[tokio::test]
async fn a_built_in_kind_may_be_updated_blindly() {
    let maps: Api<ConfigMap> = Api::default_namespaced(client());
    let map = |value: &str| -> ConfigMap {
        serde_json::from_value(json!({"metadata": {"name": "m"}, "data": {"k": value}})).unwrap()
    };
    maps.create(&PostParams::default(), &map("a")).await.unwrap();
    let now = maps.replace("m", &PostParams::default(), &map("b")).await.unwrap();
    assert_eq!(now.data.unwrap()["k"], "b");
}

#[tokio::test]
async fn patches_merge() {
    let widgets = widgets(&client());
    widgets.create(&PostParams::default(), &widget("a", json!({"orders": {"x": {"image": "1"}}}))).await.unwrap();
    let params = PatchParams::default();
    let patch = Patch::Merge(json!({"spec": {"orders": {"x": null, "y": {"image": "2"}}}}));
    let merged = widgets.patch("a", &params, &patch).await.unwrap();
    assert_eq!(spec(&merged)["orders"], json!({"y": {"image": "2"}}));
    assert_eq!(merged.metadata.generation, Some(2));

    let client = client_of_patch().await;
    let answer = raw(
        &client,
        "PATCH",
        "/apis/example.com/v1/namespaces/default/widgets/a",
        &[("content-type", "application/json-patch+json")],
        json!([{"op": "replace", "path": "/spec/mode", "value": "Continuous"}]),
    )
    .await;
    assert_eq!((answer.code, &answer.body["spec"]["mode"]), (200, &json!("Continuous")));
}

async fn client_of_patch() -> kube::Client {
    let client = client();
    widgets(&client).create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    client
}

#[tokio::test]
async fn strategic_merge_is_for_built_in_kinds() {
    let client = client_of_patch().await;
    let nodes: Api<Node> = Api::all(client.clone());
    let node = json!({"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    let patch =
        json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "X", "status": "True"}]}});
    let node = nodes.patch_status("n", &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
    let conditions = node.status.unwrap().conditions.unwrap();
    let found: Vec<_> = conditions.iter().map(|c| (c.type_.as_str(), c.status.as_str())).collect();
    assert_eq!(found, [("Ready", "True"), ("X", "True")]);

    let patch = Patch::Strategic(json!({"spec": {}}));
    let status = refusal(widgets(&client).patch("a", &PatchParams::default(), &patch).await);
    assert_eq!(status["code"], json!(415));
    let patch = Patch::Apply(widget("a", json!({})));
    let status = refusal(widgets(&client).patch("a", &PatchParams::apply("me"), &patch).await);
    assert_eq!(status["code"], json!(501));
    assert!(status["message"].as_str().unwrap().contains("server-side apply"), "{status}");
}

#[tokio::test]
async fn status_and_spec_are_apart() {
    let widgets = widgets(&client());
    let mut wanted = widget("a", json!({}));
    wanted.data["status"] = json!({"phase": "Made up"});
    let made = widgets.create(&PostParams::default(), &wanted).await.unwrap();
    assert_eq!(made.data.get("status"), None);

    let params = PatchParams::default();
    let both =
        Patch::Merge(json!({"spec": {"epoch": 7}, "status": {"phase": "Running"}, "metadata": {"labels": {"a": "b"}}}));
    let of_status = widgets.patch_status("a", &params, &both).await.unwrap();
    assert_eq!(of_status.data["status"], json!({"phase": "Running"}));
    assert_eq!(spec(&of_status).get("epoch"), None);
    assert_eq!((of_status.metadata.generation, of_status.metadata.labels), (Some(1), None));

    let both = Patch::Merge(json!({"spec": {"epoch": 7}, "status": {"phase": "Done"}}));
    let of_spec = widgets.patch("a", &params, &both).await.unwrap();
    assert_eq!((&of_spec.data["status"]["phase"], &spec(&of_spec)["epoch"]), (&json!("Running"), &json!(7)));
    assert_eq!(of_spec.metadata.generation, Some(2));
    let mut whole = of_spec;
    whole.data["status"]["phase"] = json!("Done");
    let put = widgets.replace_status("a", &PostParams::default(), &whole).await.unwrap();
    assert_eq!(put.data["status"]["phase"], json!("Done"));
}

#[tokio::test]
async fn writing_the_same_changes_nothing() {
    let widgets = widgets(&client());
    let made = widgets.create(&PostParams::default(), &widget("a", json!({"epoch": 1}))).await.unwrap();
    let same = Patch::Merge(json!({"spec": {"epoch": 1}, "metadata": {"labels": {}, "annotations": null}}));
    let patched = widgets.patch("a", &PatchParams::default(), &same).await.unwrap();
    assert_eq!(patched, made);
    let put = widgets.replace("a", &PostParams::default(), &made).await.unwrap();
    assert_eq!(put, made);
}

#[tokio::test]
async fn labels_do_not_touch_the_generation() {
    let widgets = widgets(&client());
    widgets.create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}, "uid": null, "creationTimestamp": null}}));
    let labelled = widgets.patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(labelled.metadata.generation, Some(1));
    assert!(labelled.uid().is_some() && labelled.creation_timestamp().is_some());
}

#[tokio::test]
async fn a_dry_run_leaves_no_trace() {
    let widgets = widgets(&client());
    let dry = PostParams { dry_run: true, ..Default::default() };
    let shown = widgets.create(&dry, &widget("a", json!({}))).await.unwrap();
    assert_eq!(spec(&shown)["mode"], json!("Once"));
    assert!(widgets.get_opt("a").await.unwrap().is_none());
    let made = widgets.create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    let params = PatchParams { dry_run: true, ..Default::default() };
    let shown = widgets.patch("a", &params, &Patch::Merge(json!({"spec": {"epoch": 1}}))).await.unwrap();
    assert_eq!(spec(&shown)["epoch"], json!(1));
    assert_eq!(widgets.get("a").await.unwrap(), made);
    let dry = kube::api::DeleteParams { dry_run: true, ..Default::default() };
    widgets.delete("a", &dry).await.unwrap();
    assert_eq!(widgets.get("a").await.unwrap(), made);
}

#[tokio::test]
async fn misspelt_fields_are_named() {
    let client = client();
    let body = serde_json::to_value(widget("a", json!({"pace": {"paralelism": 1}}))).unwrap();
    let path = "/apis/example.com/v1/namespaces/default/widgets";
    let json_type = [("content-type", "application/json")];
    let strict = raw(&client, "POST", &format!("{path}?fieldValidation=Strict"), &json_type, body.clone()).await;
    assert_eq!(strict.code, 400);
    assert_eq!(
        strict.body["message"],
        json!(
            r#"Widget in version "v1" cannot be handled as a Widget: strict decoding error: unknown field "spec.pace.paralelism""#
        )
    );
    let warned = raw(&client, "POST", path, &json_type, body.clone()).await;
    assert_eq!(warned.code, 201);
    assert_eq!(warned.headers["warning"], r#"299 - "unknown field \"spec.pace.paralelism\"""#);
    assert_eq!(warned.body["spec"]["pace"], json!({"parallelism": 10}));
    let mut other = body;
    other["metadata"]["name"] = json!("b");
    let ignored = raw(&client, "POST", &format!("{path}?fieldValidation=Ignore"), &json_type, other).await;
    assert_eq!((ignored.code, ignored.headers.get("warning")), (201, None));

    let params = PatchParams { field_validation: Some(ValidationDirective::Strict), ..Default::default() };
    let patch = Patch::Merge(json!({"spec": {"typo": 1}}));
    let status = refusal(widgets(&client).patch("a", &params, &patch).await);
    assert_eq!(status["code"], json!(422));
    assert!(status["message"].as_str().unwrap().contains(r#"unknown field "spec.typo""#), "{status}");
}

#[tokio::test]
async fn secrets_take_plain_text() {
    let secrets: Api<Secret> = Api::default_namespaced(client());
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"k": "value"}});
    let made = secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    assert_eq!(made.data.unwrap()["k"].0, b"value");
    assert_eq!((made.string_data, made.type_.as_deref()), (None, Some("Opaque")));
}

#[tokio::test]
async fn concurrent_patches_all_arrive() {
    let widgets = widgets(&client());
    widgets.create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    let patches = (0..64).map(|i| {
        let widgets = widgets.clone();
        async move {
            let patch = Patch::Merge(json!({"spec": {"orders": {format!("o{i}"): {"image": "x"}}}}));
            widgets.patch("a", &PatchParams::default(), &patch).await.unwrap();
        }
    });
    futures::future::join_all(patches).await;
    let orders = widgets.get("a").await.unwrap();
    assert_eq!(spec(&orders)["orders"].as_object().unwrap().len(), 64);
}
