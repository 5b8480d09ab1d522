//! Refusals: codes, reasons and messages.

use crate::setup::*;
use kube::api::PostParams;
use serde_json::{Value, json};
use std::sync::Arc;
use stoker_embedded::Settings;

const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

#[tokio::test]
async fn each_refusal_is_a_status() {
    let client = client();
    widgets(&client).create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    let body = |name: &str, spec: Value| serde_json::to_value(widget(name, spec)).unwrap();
    let of = |path: &str| format!("{WIDGETS}{path}");
    let gone = "/apis/example.com/v1/namespaces/nowhere/widgets".to_owned();
    let cases = [
        ("GET", of("/x"), Value::Null, 404, r#"widgets.example.com "x" not found"#),
        (
            "GET",
            "/apis/example.com/v9/widgets".to_owned(),
            Value::Null,
            404,
            "the server could not find the requested resource",
        ),
        (
            "GET",
            "/apis/example.com/v1/gadgets".to_owned(),
            Value::Null,
            404,
            "the server could not find the requested resource",
        ),
        ("GET", of("/a/scale"), Value::Null, 404, "the server could not find the requested resource"),
        (
            "POST",
            of("/a"),
            body("a", json!({})),
            405,
            "the server does not allow this method on the requested resource",
        ),
        ("PUT", of(""), body("a", json!({})), 405, "the server does not allow this method on the requested resource"),
        ("POST", of(""), body("a", json!({})), 409, r#"widgets.example.com "a" already exists"#),
        ("POST", gone, body("b", json!({})), 404, r#"namespaces "nowhere" not found"#),
        ("POST", of(""), json!([]), 400, "the body must be a Widget as a JSON object"),
        (
            "POST",
            of(""),
            json!({"kind": "Gadget", "apiVersion": "example.com/v1"}),
            400,
            "the API version in the data (example.com/v1, Kind=Gadget) does not match the expected API version (example.com/v1, Kind=Widget)",
        ),
        (
            "PUT",
            of("/b"),
            body("a", json!({})),
            400,
            "the name of the object (a) does not match the name on the URL (b)",
        ),
        (
            "POST",
            of(""),
            body("b", json!({"mode": "Never"})),
            422,
            r#"Widget.example.com "b" is invalid: spec.mode: Unsupported value: "Never": supported values: "Once", "Continuous""#,
        ),
        (
            "POST",
            of(""),
            body("b", json!({"pace": {"retries": -1}})),
            422,
            r#"Widget.example.com "b" is invalid: spec.pace.retries: Invalid value: -1: spec.pace.retries in body should be greater than or equal to 0"#,
        ),
        (
            "POST",
            of(""),
            body("b", json!({"mode": "Continuous", "tags": ["x"]})),
            422,
            r#"Widget.example.com "b" is invalid: spec: Invalid value: "object": tags are for mode Once"#,
        ),
        (
            "POST",
            of(""),
            body("b", json!({"tags": ["x", "x"]})),
            422,
            r#"Widget.example.com "b" is invalid: spec.tags[1]: Duplicate value: "x""#,
        ),
        ("GET", of("?labelSelector=a%3D%3D%3Db"), Value::Null, 400, ""),
        ("GET", of("?fieldSelector=spec.color%3Dred"), Value::Null, 400, "field label not supported: spec.color"),
        ("GET", of("?continue=x"), Value::Null, 400, ""),
        ("GET", "/openapi/v2".to_owned(), Value::Null, 501, ""),
    ];
    for (method, path, body, code, message) in cases {
        let answer = raw(&client, method, &path, &[("content-type", "application/json")], body).await;
        assert_eq!(answer.code, code, "{method} {path}: {}", answer.body);
        assert_eq!(answer.body["kind"], json!("Status"), "{method} {path}");
        assert_eq!(answer.body["code"], json!(code));
        if !message.is_empty() {
            assert_eq!(answer.body["message"], json!(message), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn causes_name_every_wrong_field() {
    let status = refusal(
        widgets(&client())
            .create(&PostParams::default(), &widget("B_", json!({"mode": 1, "tags": ["much too long"]})))
            .await,
    );
    let causes: Vec<_> = status["details"]["causes"].as_array().unwrap().iter().map(|c| c["field"].clone()).collect();
    assert_eq!(causes, [json!("metadata.name"), json!("spec.mode"), json!("spec.tags[0]")]);
    assert_eq!(status["details"]["kind"], json!("Widget"));
}

#[tokio::test]
async fn wrong_media_types() {
    let client = client();
    let protobuf = [("content-type", "application/vnd.kubernetes.protobuf")];
    assert_eq!(raw(&client, "POST", WIDGETS, &protobuf, json!({})).await.code, 415);
    let yaml = [("accept", "application/yaml")];
    assert_eq!(raw(&client, "GET", WIDGETS, &yaml, Value::Null).await.code, 406);
    let text = [("content-type", "text/plain")];
    assert_eq!(raw(&client, "PATCH", &format!("{WIDGETS}/a"), &text, json!({})).await.code, 415);
}

#[tokio::test]
async fn a_body_has_a_bound() {
    let mut big = serde_json::to_value(widget("a", json!({}))).unwrap();
    big["metadata"]["annotations"] = json!({"a": "x".repeat(4 << 20)});
    let answer = raw(&client(), "POST", WIDGETS, &[("content-type", "application/json")], big).await;
    assert_eq!((answer.code, &answer.body["reason"]), (413, &json!("RequestEntityTooLarge")));
}

#[test]
fn a_wrong_definition_is_refused_with_name_and_path() {
    let mut crd = widget_crd();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["type"] = json!("map");
    let settings = Settings::new(vec![crd], Arc::new(now));
    let error = stoker_embedded::Api::new(settings).unwrap_err().to_string();
    for part in ["widgets.example.com", "spec.versions[0].schema.openAPIV3Schema.properties.spec.type", r#""map""#] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
}
