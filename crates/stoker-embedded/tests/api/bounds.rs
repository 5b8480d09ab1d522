//! What is this server's own: its bounds, what is there at start, and what it refuses by name because it does not do it.

use crate::setup::*;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::sync::Arc;
use stoker_embedded::Settings;

#[tokio::test]
async fn two_namespaces_are_there_from_the_start() {
    let namespaces: Api<Namespace> = Api::all(client());
    let found: Vec<String> =
        namespaces.list(&ListParams::default()).await.unwrap().iter().map(|n| n.name_any()).collect();
    assert_eq!(found, ["default", "stoker-system"]);
}

#[tokio::test]
async fn health_and_version() {
    let client = client();
    for path in ["/healthz", "/readyz", "/livez"] {
        let answer = raw(&client, "GET", path, &[], Value::Null).await;
        assert_eq!((answer.code, answer.body), (200, json!("ok")));
    }
    assert_eq!(client.apiserver_version().await.unwrap().minor, "34");
}

#[tokio::test]
async fn what_is_not_done_is_refused_by_name() {
    let client = client();
    widgets(&client).create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    let patch = Patch::Apply(widget("a", json!({})));
    let status = refusal(widgets(&client).patch("a", &PatchParams::apply("me"), &patch).await);
    assert_eq!(status["code"], json!(501));
    assert!(status["message"].as_str().unwrap().contains("server-side apply"), "{status}");
    let answer = raw(&client, "GET", "/openapi/v2", &[], Value::Null).await;
    assert_eq!(answer.code, 501);
    assert!(answer.body["message"].as_str().unwrap().contains("OpenAPI v2"));
    // A real server of version 1.34 panics at this one.
    let protobuf = [("content-type", "application/vnd.kubernetes.protobuf")];
    let path = "/apis/example.com/v1/namespaces/default/widgets";
    assert_eq!(raw(&client, "POST", path, &protobuf, json!({})).await.code, 415);
    let yaml = [("accept", "application/yaml")];
    assert_eq!(raw(&client, "GET", "/api/v1/namespaces", &yaml, Value::Null).await.code, 406);
}

#[tokio::test]
async fn parts_that_objects_do_not_have_are_named() {
    let client = client();
    widgets(&client).create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    for (path, said) in [
        (
            "/apis/example.com/v1/namespaces/default/widgets/a/scale",
            r#"widgets.example.com have no subresource "scale""#,
        ),
        ("/apis/apps/v1/namespaces/default/deployments/a/scale", r#"deployments.apps have no subresource "scale""#),
        ("/api/v1/namespaces/default/pods/a/log", r#""log" on this server, which only stores pods"#),
        ("/api/v1/namespaces/default/endpoints", "the server could not find the requested resource"),
    ] {
        let answer = raw(&client, "GET", path, &[], Value::Null).await;
        assert_eq!((answer.code, &answer.body["reason"]), (404, &json!("NotFound")), "{path}");
        assert!(answer.body["message"].as_str().unwrap().contains(said), "{path}: {}", answer.body);
    }
}

/// A pod that nobody will ever run is stored, because Stoker reads pods; whoever makes it is told.
#[tokio::test]
async fn whoever_makes_what_nothing_acts_on_is_warned() {
    let client = client();
    let core = "/api/v1/namespaces/default";
    let apps = "/apis/apps/v1/namespaces/default";
    for (path, warned) in [
        (format!("{core}/pods"), true),
        (format!("{core}/services"), true),
        (format!("{apps}/deployments"), true),
        (format!("{apps}/daemonsets"), true),
        (format!("{apps}/statefulsets"), true),
        (format!("{apps}/replicasets"), true),
        (format!("{apps}/controllerrevisions"), false),
        (format!("{core}/configmaps"), false),
        (format!("{core}/secrets"), false),
    ] {
        let plural = path.rsplit('/').next().unwrap();
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}});
        let spec = match plural {
            "pods" => json!({"containers": []}),
            _ => json!({"selector": {"matchLabels": {"a": "b"}}, "serviceName": "a", "template": template}),
        };
        let spec = if plural == "services" { json!({"ports": []}) } else { spec };
        let made =
            raw(&client, "POST", &path, &[], json!({"metadata": {"name": "a"}, "revision": 1, "spec": spec})).await;
        assert_eq!(made.code, 201, "{path}: {}", made.body);
        let said =
            format!(r#"299 - "this server only stores {plural}: nothing acts on them, and no container starts""#);
        assert_eq!(made.warnings, if warned { vec![said] } else { vec![] }, "{path}");
        let patch = json!({"metadata": {"labels": {"x": "y"}}});
        let merge = [("content-type", "application/merge-patch+json")];
        let patched = raw(&client, "PATCH", &format!("{path}/a"), &merge, patch).await;
        assert_eq!((patched.code, patched.warnings.len()), (200, 0), "{path}: it was said");
    }
}

#[tokio::test]
async fn the_one_user_may_do_everything_and_is_nobody_else() {
    let client = client();
    let ask = async |group: &str, plural: &str, kind: &str, spec: Value| {
        let body = json!({"apiVersion": format!("{group}/v1"), "kind": kind, "spec": spec});
        let path = format!("/apis/{group}/v1/{plural}");
        let answer = raw(&client, "POST", &path, &[], body).await;
        assert_eq!((answer.code, &answer.body["kind"]), (201, &json!(kind)), "{}", answer.body);
        assert_eq!(answer.body["spec"], spec);
        assert_eq!(raw(&client, "GET", &path, &[], Value::Null).await.code, 405, "nothing is stored");
        answer.body["status"].clone()
    };
    let wish = json!({"resourceAttributes": {"verb": "create", "group": "example.com", "resource": "widgets"}});
    let may = ask("authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview", wish).await;
    assert_eq!(may["allowed"], json!(true));
    let where_ = json!({"namespace": "default"});
    let rules = ask("authorization.k8s.io", "selfsubjectrulesreviews", "SelfSubjectRulesReview", where_).await;
    assert_eq!(rules["resourceRules"][0]["verbs"], json!(["*"]));
    let who = ask("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview", json!({})).await;
    assert_eq!(who["userInfo"]["username"], json!("stoker"));
    for header in ["impersonate-user", "impersonate-group", "impersonate-uid"] {
        let answer = raw(&client, "GET", "/api/v1/nodes", &[(header, "eve")], Value::Null).await;
        assert_eq!(answer.code, 501, "{}", answer.body);
        assert!(answer.body["message"].as_str().unwrap().contains("impersonation is not supported"));
    }
}

#[tokio::test]
async fn history_has_a_beginning_and_an_end() {
    // kube's own client would ask for this again and again on a real server, which waits each time.
    let late = raw(&client(), "GET", "/apis/example.com/v1/widgets?resourceVersion=99999", &[], Value::Null).await;
    assert_eq!((late.code, &late.body["reason"]), (504, &json!("Timeout")));
    assert_eq!(late.body["details"]["causes"][0]["reason"], json!("ResourceVersionTooLarge"));
    let path = "/apis/example.com/v1/widgets?resourceVersion=1&resourceVersionMatch=Exact";
    let early = raw(&client(), "GET", path, &[], Value::Null).await;
    assert_eq!((early.code, &early.body["reason"]), (410, &json!("Expired")));
}

#[tokio::test]
async fn only_so_many_events_are_kept() {
    let events: Api<Event> = Api::default_namespaced(client());
    for number in 0..1200 {
        let event = json!({"metadata": {"name": format!("e{number}")}, "involvedObject": {}, "message": "x"});
        events.create(&PostParams::default(), &serde_json::from_value(event).unwrap()).await.unwrap();
    }
    let kept = events.list(&ListParams::default()).await.unwrap().items.len();
    assert!((1000..=1100).contains(&kept), "{kept}");
    assert!(events.get_opt("e0").await.unwrap().is_none());
    assert!(events.get_opt("e1199").await.unwrap().is_some());
}

#[tokio::test]
async fn a_long_chain_of_owners_ends() {
    let maps: Api<ConfigMap> = Api::default_namespaced(client());
    let mut owner: Option<ConfigMap> = None;
    for number in 0..2000 {
        let mut map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": format!("c{number}")}})).unwrap();
        map.metadata.owner_references = owner.map(|owner| {
            serde_json::from_value(json!([
                {"apiVersion": "v1", "kind": "ConfigMap", "name": owner.name_any(), "uid": owner.uid().unwrap()}
            ]))
            .unwrap()
        });
        owner = Some(maps.create(&PostParams::default(), &map).await.unwrap());
    }
    for params in [DeleteParams::foreground(), DeleteParams::background()] {
        let dry = DeleteParams { dry_run: true, ..params };
        maps.delete("c0", &dry).await.unwrap();
    }
    maps.delete("c0", &DeleteParams::background()).await.unwrap();
    assert_eq!(maps.list(&ListParams::default()).await.unwrap().items.len(), 0);
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
