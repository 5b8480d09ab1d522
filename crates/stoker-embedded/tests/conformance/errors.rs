//! Refusals: codes, reasons and messages.

use crate::server::*;
use kube::api::PostParams;
use serde_json::{Value, json};

const NO_RESOURCE: &str = "the server could not find the requested resource";
/// In plain text: the one refusal that is no Status.
const NO_PAGE: &str = "404 page not found\n";
const NO_METHOD: &str = "the server does not allow this method on the requested resource";

/// Codes are the same everywhere. So are the messages, except where they are empty here.
pub(crate) async fn each_refusal_is_a_status(server: Server) {
    server.widgets().create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    let body = |name: &str, spec: Value| serde_json::to_value(widget(name, spec)).unwrap();
    let of = |path: &str| server.path(path);
    let maps = |path: &str| format!("/api/v1/namespaces/{}/configmaps{path}", server.namespace);
    let map = |name: &str| json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}});
    let owned = |owners: Value| {
        let mut body = body("b", json!({}));
        body["metadata"]["ownerReferences"] = owners;
        body
    };
    let gone = "/apis/example.com/v1/namespaces/nowhere-at-all/widgets".to_owned();
    let cases = [
        ("GET", of("/x"), Value::Null, 404, r#"widgets.example.com "x" not found"#),
        ("GET", "/apis/example.com/v9/widgets".to_owned(), Value::Null, 404, NO_PAGE),
        ("GET", "/apis/example.com/v1/gadgets".to_owned(), Value::Null, 404, NO_PAGE),
        ("POST", "/apis/example.com/v1/gadgets".to_owned(), Value::Null, 404, NO_PAGE),
        ("GET", "/apis/example.com/v1/widgets/a".to_owned(), Value::Null, 404, NO_PAGE),
        ("GET", "/apis/example.com/v9".to_owned(), Value::Null, 404, NO_PAGE),
        ("GET", "/apis/nowhere.example.com/v1/widgets".to_owned(), Value::Null, 404, NO_PAGE),
        ("GET", "/apis/nowhere.example.com".to_owned(), Value::Null, 404, NO_PAGE),
        ("GET", "/nowhere".to_owned(), Value::Null, 404, NO_PAGE),
        ("GET", "/api/v1/gadgets".to_owned(), Value::Null, 404, NO_RESOURCE),
        ("GET", "/api/v9/gadgets".to_owned(), Value::Null, 404, NO_RESOURCE),
        ("GET", "/apis/apps/v9".to_owned(), Value::Null, 404, NO_RESOURCE),
        ("GET", "/apis/apiextensions.k8s.io/v1/gadgets".to_owned(), Value::Null, 404, NO_RESOURCE),
        // A real server says that the resource, or the object, is not there; the embedded one what is missing of it.
        ("GET", maps("/a/scale"), Value::Null, 404, ""),
        ("GET", of("/a/scale"), Value::Null, 404, ""),
        // Of custom kinds a real server takes these two for a create and a badly named update.
        ("POST", maps("/a"), map("a"), 405, NO_METHOD),
        ("PUT", maps(""), map("a"), 405, NO_METHOD),
        (
            "POST",
            maps(""),
            json!({"kind": "Secret", "apiVersion": "v1"}),
            400,
            "",
        ),
        ("POST", of(""), body("a", json!({})), 409, r#"widgets.example.com "a" already exists"#),
        ("POST", gone, body("b", json!({})), 404, r#"namespaces "nowhere-at-all" not found"#),
        ("POST", of(""), json!([]), 400, ""),
        (
            "POST",
            of(""),
            json!({"kind": "Gadget", "apiVersion": "example.com/v1"}),
            422,
            r#"Gadget.example.com "" is invalid: kind: Invalid value: "Gadget": must be Widget"#,
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
            r#"Widget.example.com "b" is invalid: [spec.mode: Unsupported value: "Never": supported values: "Once", "Continuous", <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation]"#,
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
        (
            "POST",
            of(""),
            body("b", json!({"tags": ["1", "2", "3", "4", "5", "6"]})),
            422,
            r#"Widget.example.com "b" is invalid: [spec.tags: Too many: 6: must have at most 5 items, <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation]"#,
        ),
        (
            "POST",
            of(""),
            body("b", json!({"tags": ["much too long"]})),
            422,
            r#"Widget.example.com "b" is invalid: [spec.tags[0]: Too long: may not be more than 10 bytes, <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation]"#,
        ),
        (
            "POST",
            of(""),
            body("b", json!({"epoch": "1"})),
            422,
            r#"Widget.example.com "b" is invalid: [spec.epoch: Invalid value: "string": spec.epoch in body must be of type integer: "string", <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation]"#,
        ),
        (
            "POST",
            of(""),
            body("b", json!({"pace": {"parallelism": true}})),
            422,
            r#"Widget.example.com "b" is invalid: [spec.pace.parallelism: Invalid value: "boolean": spec.pace.parallelism in body must be of type integer,string: "boolean", <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation]"#,
        ),
        (
            "POST",
            of(""),
            json!({"kind": "Widget", "apiVersion": "example.com/v1", "spec": {}}),
            422,
            r#"Widget.example.com "" is invalid: [metadata.name: Required value: name or generateName is required, <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation]"#,
        ),
        (
            "POST",
            of(""),
            json!({"kind": "Widget", "apiVersion": "example.com/v1", "metadata": {"name": "b"}}),
            422,
            r#"Widget.example.com "b" is invalid: [spec: Required value, <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation]"#,
        ),
        ("GET", of("?labelSelector=a%3D%3D%3Db"), Value::Null, 400, ""),
        ("GET", of("?fieldSelector=spec.color%3Dred"), Value::Null, 400, "field label not supported: spec.color"),
        ("GET", of("?continue=x"), Value::Null, 400, ""),
        ("GET", of("?limit=x"), Value::Null, 400, ""),
        ("GET", of("?resourceVersion=x"), Value::Null, 400, ""),
        ("GET", of("?limit=-1"), Value::Null, 200, ""),
        (
            "POST",
            of(""),
            owned(json!([{"apiVersion": "v1", "kind": "Node", "name": ""}])),
            422,
            r#"Widget.example.com "b" is invalid: [metadata.ownerReferences.name: Invalid value: "": must not be empty, metadata.ownerReferences.uid: Invalid value: "": must not be empty]"#,
        ),
    ];
    let mut wrong = Vec::new();
    for (method, path, body, code, message) in cases {
        let answer = server.raw(method, &path, JSON, body.clone()).await;
        let said = answer.body.as_str().or(answer.body["message"].as_str()).unwrap_or_default().to_owned();
        let status = answer.body["kind"] == json!("Status") || answer.code == 200 || message == NO_PAGE;
        if answer.code != code || !status || !message.is_empty() && said != message {
            wrong.push(format!("{method} {path} {body}\n  is {} {said}\n  not {code} {message}\n", answer.code));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

pub(crate) async fn causes_name_every_wrong_field(server: Server) {
    let wrong = widget("B_", json!({"mode": 1, "tags": ["much too long"]}));
    let status = refusal(server.widgets().create(&PostParams::default(), &wrong).await);
    let mut causes: Vec<_> =
        status["details"]["causes"].as_array().unwrap().iter().map(|c| c["field"].as_str().unwrap()).collect();
    causes.sort_unstable();
    causes.dedup();
    assert_eq!(causes, ["<nil>", "metadata.name", "spec.mode", "spec.tags[0]"], "{status:#}");
    assert_eq!(status["details"]["kind"], json!("Widget"));
}

pub(crate) async fn options_are_refused_by_the_name_of_their_method(server: Server) {
    server.widgets().create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    let body = serde_json::to_value(widget("a", json!({}))).unwrap();
    let dry = r#"dryRun: Unsupported value: ["Some"]: supported values: "All""#;
    let cases = [
        ("POST", "?dryRun=Some", "CreateOptions", dry),
        ("PUT", "/a?dryRun=Some", "UpdateOptions", dry),
        ("DELETE", "/a?dryRun=Some", "DeleteOptions", dry),
        (
            "POST",
            "?fieldValidation=Some",
            "CreateOptions",
            r#"fieldValidation: Unsupported value: "Some": supported values: "", "Ignore", "Strict", "Warn""#,
        ),
        (
            "DELETE",
            "/a?propagationPolicy=Some",
            "DeleteOptions",
            r#"propagationPolicy: Unsupported value: "Some": supported values: "Foreground", "Background", "Orphan", "nil""#,
        ),
        (
            "GET",
            "?resourceVersionMatch=Some&resourceVersion=1",
            "ListOptions",
            r#"resourceVersionMatch: Unsupported value: "Some": supported values: "Exact", "NotOlderThan", """#,
        ),
    ];
    for (method, rest, options, said) in cases {
        let body = if matches!(method, "POST" | "PUT") { body.clone() } else { Value::Null };
        let answer = server.raw(method, &server.path(rest), JSON, body).await;
        assert_eq!(answer.code, 422, "{rest}");
        assert_eq!(answer.body["message"], json!(format!("{options}.meta.k8s.io \"\" is invalid: {said}")));
    }
}

pub(crate) async fn wrong_media_types(server: Server) {
    let strange = [("accept", "text/strange")];
    assert_eq!(server.raw("GET", &server.path(""), &strange, Value::Null).await.code, 406);
    let text = [("content-type", "text/plain")];
    assert_eq!(server.raw("PATCH", &server.path("/a"), &text, json!({})).await.code, 415);
}

pub(crate) async fn a_body_has_a_bound(server: Server) {
    let mut big = serde_json::to_value(widget("a", json!({}))).unwrap();
    big["metadata"]["annotations"] = json!({"a": "x".repeat(4 << 20)});
    let answer = server.raw("POST", &server.path(""), JSON, big).await;
    assert_eq!((answer.code, &answer.body["reason"]), (413, &json!("RequestEntityTooLarge")));
}
