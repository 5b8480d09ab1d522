//! Built-in kinds: what is checked of them, what stays as it is made, and how they look in lists.

use crate::server::*;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

fn core(server: &Server, rest: &str) -> String {
    format!("/api/v1/namespaces/{}/{rest}", server.namespace)
}

/// An object that one client cannot read would spoil every list for it.
pub(crate) async fn what_no_client_can_read_is_refused(server: Server) {
    let cases = [
        ("configmaps", json!({"metadata": {"name": "a"}, "data": {"a": 1}})),
        ("configmaps", json!({"metadata": {"name": "a", "labels": "x"}})),
        ("configmaps", json!({"metadata": "a"})),
        ("secrets", json!({"metadata": {"name": "a"}, "data": {"a": "!!!"}})),
        ("pods", json!({"metadata": {"name": "a"}, "spec": {"containers": {}}})),
        ("events", json!({"metadata": {"name": "a"}, "firstTimestamp": "yesterday"})),
    ];
    for (plural, body) in cases {
        let answer = server.raw("POST", &core(&server, plural), JSON, body.clone()).await;
        assert_eq!((answer.code, &answer.body["reason"]), (400, &json!("BadRequest")), "{body}: {}", answer.body);
        let said = answer.body["message"].as_str().unwrap();
        assert!(said.contains(r#" in version "v1" cannot be handled as a "#), "{said}");
    }
    for labels in [json!("x"), json!({"a": 1})] {
        let mut body = serde_json::to_value(widget("a", json!({}))).unwrap();
        body["metadata"]["labels"] = labels;
        let answer = server.raw("POST", &server.path(""), JSON, body).await;
        assert_eq!((answer.code, &answer.body["reason"]), (400, &json!("BadRequest")), "{}", answer.body);
    }
    // What a patch makes of an object is another matter.
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "m"}})).unwrap();
    server.maps().create(&PostParams::default(), &map).await.unwrap();
    let patch = Patch::Merge(json!({"data": {"a": 1}}));
    let status = refusal(server.maps().patch("m", &PatchParams::default(), &patch).await);
    assert_eq!((&status["code"], &status["reason"]), (&json!(422), &json!("Invalid")));
}

pub(crate) async fn a_body_need_not_say_what_the_url_says(server: Server) {
    let bodies = [json!({}), json!({"kind": "ConfigMap"}), json!({"apiVersion": "v1"})];
    for (number, mut body) in bodies.into_iter().enumerate() {
        body["metadata"] = json!({"name": format!("m{number}")});
        let made = server.raw("POST", &core(&server, "configmaps"), JSON, body).await;
        assert_eq!((made.code, &made.body["kind"], &made.body["apiVersion"]), (201, &json!("ConfigMap"), &json!("v1")));
    }
    // Of a custom kind it must.
    for (missing, said) in [("kind", "Object 'Kind' is missing"), ("apiVersion", "the API version in the data ()")] {
        let mut body = serde_json::to_value(widget("a", json!({}))).unwrap();
        body.as_object_mut().unwrap().remove(missing);
        let answer = server.raw("POST", &server.path(""), JSON, body).await;
        assert_eq!(answer.code, 400);
        assert!(answer.body["message"].as_str().unwrap().contains(said), "{}", answer.body);
    }
}

/// Whoever wants to know the kind of an item of a list must look at the list.
pub(crate) async fn items_of_built_in_kinds_do_not_say_what_they_are(server: Server) {
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "m"}})).unwrap();
    server.maps().create(&PostParams::default(), &map).await.unwrap();
    server.widgets().create(&PostParams::default(), &widget("w", json!({}))).await.unwrap();
    let path = core(&server, "configmaps?fieldSelector=metadata.name%3Dm");
    let list = server.raw("GET", &path, &[], Value::Null).await.body;
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("ConfigMapList"), &json!("v1")));
    assert_eq!((list["items"][0].get("kind"), list["items"][0].get("apiVersion")), (None, None));
    let list = server.raw("GET", &server.path(""), &[], Value::Null).await.body;
    let (kind, version) = (&list["items"][0]["kind"], &list["items"][0]["apiVersion"]);
    assert_eq!((kind, version), (&json!("Widget"), &json!("example.com/v1")));
}

pub(crate) async fn a_namespace_has_its_name_as_a_label(server: Server) {
    let namespaces: Api<Namespace> = Api::all(server.client.clone());
    let own = server.namespace.as_str();
    let labelled = |namespace: &Namespace| {
        let labels = namespace.metadata.labels.clone().unwrap_or_default();
        labels.get("kubernetes.io/metadata.name").map(String::as_str) == Some(own)
    };
    let mut namespace = namespaces.get(own).await.unwrap();
    assert!(labelled(&namespace));
    namespace.spec = None;
    namespace.metadata.labels.get_or_insert_default().remove("kubernetes.io/metadata.name");
    let put = namespaces.replace(own, &PostParams::default(), &namespace).await.unwrap();
    assert!(labelled(&put));
    assert_eq!(put.spec.unwrap().finalizers.unwrap(), ["kubernetes"]);
    let all = server.raw("DELETE", "/api/v1/namespaces?labelSelector=no%3Dbody", &[], Value::Null).await;
    assert_eq!(all.code, 405, "namespaces go one by one");
    let listed = server.raw("GET", "/api/v1", &[], Value::Null).await.body;
    let resource = listed["resources"].as_array().unwrap().iter().find(|r| r["name"] == json!("namespaces")).unwrap();
    assert!(!resource["verbs"].as_array().unwrap().contains(&json!("deletecollection")));
    for name in ["a.b", "A"] {
        let new: Namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        let status = refusal(namespaces.create(&PostParams::default(), &new).await);
        let dots = status["message"].as_str().unwrap().ends_with("must not contain dots");
        assert_eq!((&status["code"], dots), (&json!(422), name.contains('.')), "{status}");
    }
}

pub(crate) async fn secrets_hold_what_their_type_says(server: Server) {
    let secrets: Api<Secret> = Api::default_namespaced(server.client.clone());
    let params = PostParams::default();
    let secret = |kind: &str, data: Value| -> Secret {
        serde_json::from_value(json!({"metadata": {"name": "s"}, "type": kind, "stringData": data})).unwrap()
    };
    for (kind, key) in [("dockerconfigjson", ".dockerconfigjson"), ("dockercfg", ".dockercfg")] {
        let kind = format!("kubernetes.io/{kind}");
        let field = json!(format!("data[{key}]"));
        for (data, reason) in
            [(json!({}), "FieldValueRequired"), (json!({key: "hunter2{"}), "FieldValueInvalid")]
        {
            let status = refusal(secrets.create(&params, &secret(&kind, data)).await);
            let cause = &status["details"]["causes"][0];
            assert_eq!((&status["code"], &cause["field"], &cause["reason"]), (&json!(422), &field, &json!(reason)));
            assert!(!status.to_string().contains("hunter2"), "{status}");
        }
    }
    secrets.create(&params, &secret("Opaque", json!({"a": "b"}))).await.unwrap();
    let patch = |change: Value| Patch::Merge(change);
    let params = PatchParams::default();
    let status = refusal(secrets.patch("s", &params, &patch(json!({"type": "other"}))).await);
    assert_eq!(status["message"], json!(r#"Secret "s" is invalid: type: Invalid value: "other": field is immutable"#));
    secrets.patch("s", &params, &patch(json!({"immutable": true}))).await.unwrap();
    for (change, field) in [(json!({"stringData": {"a": "c"}}), "data"), (json!({"immutable": null}), "immutable")] {
        let status = refusal(secrets.patch("s", &params, &patch(change)).await);
        let said = format!(r#"Secret "s" is invalid: {field}: Forbidden: field is immutable when `immutable` is set"#);
        assert_eq!(status["message"], json!(said));
    }
    secrets.patch("s", &params, &patch(json!({"metadata": {"labels": {"a": "b"}}}))).await.unwrap();
}

pub(crate) async fn an_event_is_where_its_object_is(server: Server) {
    let event = |name: &str, namespace: Value| {
        let involved = json!({"kind": "Widget", "name": "w", "namespace": namespace});
        json!({"metadata": {"name": name}, "involvedObject": involved, "reason": "R", "message": "m", "type": "Normal"})
    };
    for (name, namespace, code) in [
        ("own", json!(server.namespace), 201),
        ("other", json!("elsewhere"), 422),
        ("nowhere", Value::Null, 422),
    ] {
        let answer = server.raw("POST", &core(&server, "events"), JSON, event(name, namespace)).await;
        assert_eq!(answer.code, code, "{name}: {}", answer.body);
    }
}

pub(crate) async fn webhooks_are_objects_like_others(server: Server) {
    let name = server.name("hooks");
    // It calls nobody: the tests of others may run on the same server.
    let made: ValidatingWebhookConfiguration =
        serde_json::from_value(json!({"metadata": {"name": name}, "webhooks": []})).unwrap();
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(server.client.clone());
    validating.create(&PostParams::default(), &made).await.unwrap();
    let made: MutatingWebhookConfiguration =
        serde_json::from_value(json!({"metadata": {"name": name}, "webhooks": []})).unwrap();
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(server.client.clone());
    mutating.create(&PostParams::default(), &made).await.unwrap();
    let one = ListParams::default().fields(&format!("metadata.name={name}"));
    assert_eq!(validating.list(&one).await.unwrap().items.len(), 1);
    assert_eq!(mutating.list(&one).await.unwrap().items.len(), 1);
    validating.delete(&name, &Default::default()).await.unwrap();
    mutating.delete(&name, &Default::default()).await.unwrap();
    let nobody = json!({"metadata": {"name": name}, "webhooks": [{"name": 7}]});
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    assert_eq!(server.raw("POST", path, JSON, nobody).await.code, 400);
}
