//! Create, update, patch, status, no-op writes and optimistic locking.

use crate::server::*;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, ValidationDirective};
use serde_json::{Value, json};

fn spec(object: &kube::api::DynamicObject) -> &Value {
    &object.data["spec"]
}

pub(crate) async fn a_new_object_is_complete(server: Server) {
    let made = server.widgets().create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    assert_eq!(spec(&made), &json!({"mode": "Once", "pace": {"parallelism": 10}}));
    assert_eq!(made.metadata.generation, Some(1));
    assert_eq!(made.namespace(), Some(server.namespace.clone()));
    assert!(made.uid().is_some_and(|uid| uid.len() == 36));
    assert!(made.creation_timestamp().is_some());
    assert_eq!(server.widgets().get("a").await.unwrap(), made);
}

pub(crate) async fn names_are_generated(server: Server) {
    let mut wanted = widget("", json!({}));
    wanted.metadata.name = None;
    wanted.metadata.generate_name = Some("job-".to_owned());
    let a = server.widgets().create(&PostParams::default(), &wanted).await.unwrap().name_any();
    let b = server.widgets().create(&PostParams::default(), &wanted).await.unwrap().name_any();
    assert!(a.starts_with("job-") && a.len() == 9 && a != b, "{a} {b}");
}

pub(crate) async fn an_update_wants_the_version_it_read(server: Server) {
    let widgets = server.widgets();
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
    assert_eq!(
        status["message"],
        json!(r#"widgets.example.com "a" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update"#)
    );
    let mut stale = second.clone();
    stale.metadata.uid = Some("other".to_owned());
    assert_eq!(refusal(widgets.replace("a", &PostParams::default(), &stale).await)["code"], json!(409));
    let none = widget("none", json!({}));
    assert_eq!(refusal(widgets.replace("none", &PostParams::default(), &none).await)["code"], json!(404));
    let stale = Patch::Merge(json!({"metadata": {"resourceVersion": "1"}, "spec": {"epoch": 9}}));
    assert_eq!(refusal(widgets.patch("a", &PatchParams::default(), &stale).await)["code"], json!(409));
}

pub(crate) async fn a_built_in_kind_may_be_updated_blindly(server: Server) {
    let map = |value: &str| -> ConfigMap {
        serde_json::from_value(json!({"metadata": {"name": "m"}, "data": {"k": value}})).unwrap()
    };
    server.maps().create(&PostParams::default(), &map("a")).await.unwrap();
    let now = server.maps().replace("m", &PostParams::default(), &map("b")).await.unwrap();
    assert_eq!(now.data.unwrap()["k"], "b");
}

pub(crate) async fn patches_merge(server: Server) {
    let widgets = server.widgets();
    widgets.create(&PostParams::default(), &widget("a", json!({"orders": {"x": {"image": "1"}}}))).await.unwrap();
    let params = PatchParams::default();
    let patch = Patch::Merge(json!({"spec": {"orders": {"x": null, "y": {"image": "2"}}}}));
    let merged = widgets.patch("a", &params, &patch).await.unwrap();
    assert_eq!(spec(&merged)["orders"], json!({"y": {"image": "2"}}));
    assert_eq!(merged.metadata.generation, Some(2));
    let json_patch = [("content-type", "application/json-patch+json")];
    let replace = json!([{"op": "replace", "path": "/spec/mode", "value": "Continuous"}]);
    let answer = server.raw("PATCH", &server.path("/a"), &json_patch, replace).await;
    assert_eq!((answer.code, &answer.body["spec"]["mode"]), (200, &json!("Continuous")));
    for (patch, code) in [
        (json!([{"op": "test", "path": "/spec/mode", "value": "Once"}]), 422),
        (json!([{"op": "remove", "path": "/spec/nothing"}]), 422),
        (json!({"op": "remove"}), 400),
    ] {
        let answer = server.raw("PATCH", &server.path("/a"), &json_patch, patch.clone()).await;
        assert_eq!(answer.code, code, "{patch}: {}", answer.body);
    }
    let strategic = Patch::Strategic(json!({"spec": {}}));
    assert_eq!(refusal(widgets.patch("a", &params, &strategic).await)["code"], json!(415));
    assert_eq!(refusal(widgets.patch("none", &params, &patch).await)["code"], json!(404));
}

pub(crate) async fn a_patch_cannot_make_another_object(server: Server) {
    let widgets = server.widgets();
    widgets.create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
    server.maps().create(&PostParams::default(), &map).await.unwrap();
    let nameless = "the name of the object (a based on URL) was undeterminable: name must be provided";
    let immutable = r#"metadata.uid: Invalid value: "x": field is immutable"#;
    for (patch, code, said) in [
        (json!({"metadata": null}), 400, nameless),
        (json!({"metadata": {"name": null}}), 400, nameless),
        (json!({"metadata": {"uid": "x"}}), 422, immutable),
    ] {
        let patch = Patch::Merge(patch);
        let refusals = [
            refusal(widgets.patch("a", &PatchParams::default(), &patch).await),
            refusal(server.maps().patch("a", &PatchParams::default(), &patch).await),
        ];
        for status in refusals {
            assert_eq!(status["code"], json!(code));
            assert!(status["message"].as_str().unwrap().ends_with(said), "{status}");
        }
    }
    for (patch, said) in [
        (
            json!({"apiVersion": "other/v1"}),
            r#"Widget.other "a" is invalid: apiVersion: Invalid value: "other/v1": must be example.com/v1"#,
        ),
        (
            json!({"metadata": {"resourceVersion": null}}),
            r#"widgets.example.com "a" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update"#,
        ),
    ] {
        let status = refusal(widgets.patch("a", &PatchParams::default(), &Patch::Merge(patch)).await);
        assert_eq!((&status["code"], &status["message"]), (&json!(422), &json!(said)));
    }
    let media = [("content-type", "application/json-patch+json")];
    let answer = server.raw("PATCH", &server.path("/a"), &media, json!([{"op": "zap", "path": "/spec"}])).await;
    assert_eq!((answer.code, &answer.body["reason"]), (422, &json!("Invalid")));
}

pub(crate) async fn a_finalizer_that_anybody_might_use_is_warned_of(server: Server) {
    let mut body = serde_json::to_value(widget("a", json!({}))).unwrap();
    body["metadata"]["finalizers"] = json!(["hold", "example.com/hold"]);
    let made = server.raw("POST", &server.path(""), JSON, body).await;
    let warning = r#"299 - "metadata.finalizers: \"hold\": prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers""#;
    assert_eq!((made.code, made.headers["warning"].to_str().unwrap()), (201, warning));
    // Once is enough.
    let merge = [("content-type", "application/merge-patch+json")];
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let labelled = server.raw("PATCH", &server.path("/a"), &merge, label).await;
    assert_eq!((labelled.code, labelled.headers.get("warning")), (200, None));
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    server.widgets().patch("a", &PatchParams::default(), &free).await.unwrap();
}

pub(crate) async fn lists_of_built_in_kinds_merge_by_key(server: Server) {
    let nodes: Api<Node> = Api::all(server.client.clone());
    let name = server.name("n");
    let status = json!({"conditions": [{"type": "Ready", "status": "False"}]});
    let node = json!({"metadata": {"name": name, "labels": labels()}, "status": status});
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    let patch =
        json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "X", "status": "True"}]}});
    let node = nodes.patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
    let conditions = node.status.unwrap().conditions.unwrap();
    let mut found: Vec<_> = conditions.iter().map(|c| (c.type_.as_str(), c.status.as_str())).collect();
    found.sort_unstable();
    assert_eq!(found, [("Ready", "True"), ("X", "True")]);
    nodes.delete(&name, &DeleteParams::default()).await.unwrap();
}

pub(crate) async fn status_and_spec_are_apart(server: Server) {
    let widgets = server.widgets();
    let mut wanted = widget("a", json!({}));
    wanted.data["status"] = json!({"phase": "Made up"});
    let made = widgets.create(&PostParams::default(), &wanted).await.unwrap();
    assert_eq!(made.data.get("status"), None);

    let params = PatchParams::default();
    let both = Patch::Merge(json!({"spec": {"epoch": 7}, "status": {"phase": "Running"}}));
    let of_status = widgets.patch_status("a", &params, &both).await.unwrap();
    assert_eq!(of_status.data["status"], json!({"phase": "Running"}));
    assert_eq!(spec(&of_status).get("epoch"), None);
    assert_eq!(of_status.metadata.generation, Some(1));

    // Of the metadata, a write of the status changes nothing.
    let labels = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}));
    let labelled = widgets.patch_status("a", &params, &labels).await.unwrap();
    assert_eq!((labelled.metadata.labels, labelled.metadata.annotations), (None, None));

    let both = Patch::Merge(json!({"spec": {"epoch": 7}, "status": {"phase": "Done"}}));
    let of_spec = widgets.patch("a", &params, &both).await.unwrap();
    assert_eq!((&of_spec.data["status"]["phase"], &spec(&of_spec)["epoch"]), (&json!("Running"), &json!(7)));
    assert_eq!(of_spec.metadata.generation, Some(2));
    let mut whole = of_spec;
    whole.data["status"]["phase"] = json!("Done");
    let put = widgets.replace_status("a", &PostParams::default(), &whole).await.unwrap();
    assert_eq!(put.data["status"]["phase"], json!("Done"));
}

pub(crate) async fn writing_the_same_changes_nothing(server: Server) {
    let widgets = server.widgets();
    let made = widgets.create(&PostParams::default(), &widget("a", json!({"epoch": 1}))).await.unwrap();
    let same = Patch::Merge(json!({"spec": {"epoch": 1}, "metadata": {"labels": {}, "annotations": null}}));
    let patched = widgets.patch("a", &PatchParams::default(), &same).await.unwrap();
    assert_eq!(patched.resource_version(), made.resource_version());
    let put = widgets.replace("a", &PostParams::default(), &made).await.unwrap();
    assert_eq!(put.resource_version(), made.resource_version());
}

pub(crate) async fn labels_do_not_touch_the_generation(server: Server) {
    let widgets = server.widgets();
    widgets.create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}, "uid": null, "creationTimestamp": null}}));
    let labelled = widgets.patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(labelled.metadata.generation, Some(1));
    assert!(labelled.uid().is_some() && labelled.creation_timestamp().is_some());
}

pub(crate) async fn a_dry_run_leaves_no_trace(server: Server) {
    let widgets = server.widgets();
    let dry = PostParams { dry_run: true, ..Default::default() };
    let shown = widgets.create(&dry, &widget("a", json!({}))).await.unwrap();
    assert_eq!(spec(&shown)["mode"], json!("Once"));
    assert!(widgets.get_opt("a").await.unwrap().is_none());
    let made = widgets.create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    let params = PatchParams { dry_run: true, ..Default::default() };
    let shown = widgets.patch("a", &params, &Patch::Merge(json!({"spec": {"epoch": 1}}))).await.unwrap();
    assert_eq!(spec(&shown)["epoch"], json!(1));
    assert_eq!(widgets.get("a").await.unwrap(), made);
    let dry = DeleteParams { dry_run: true, ..Default::default() };
    widgets.delete("a", &dry).await.unwrap();
    assert_eq!(widgets.get("a").await.unwrap(), made);
}

pub(crate) async fn misspelt_fields_are_named(server: Server) {
    let body = serde_json::to_value(widget("a", json!({"pace": {"paralelism": 1}}))).unwrap();
    let strict = server.raw("POST", &server.path("?fieldValidation=Strict"), JSON, body.clone()).await;
    assert_eq!(strict.code, 400);
    assert_eq!(
        strict.body["message"],
        json!(
            r#"Widget in version "v1" cannot be handled as a Widget: strict decoding error: unknown field "spec.pace.paralelism""#
        )
    );
    let warned = server.raw("POST", &server.path(""), JSON, body.clone()).await;
    assert_eq!(warned.code, 201);
    assert_eq!(warned.headers["warning"], r#"299 - "unknown field \"spec.pace.paralelism\"""#);
    assert_eq!(warned.body["spec"]["pace"], json!({"parallelism": 10}));
    let mut other = body;
    other["metadata"]["name"] = json!("b");
    let ignored = server.raw("POST", &server.path("?fieldValidation=Ignore"), JSON, other).await;
    assert_eq!((ignored.code, ignored.headers.get("warning")), (201, None));

    let params = PatchParams { field_validation: Some(ValidationDirective::Strict), ..Default::default() };
    let patch = Patch::Merge(json!({"spec": {"typo": 1}}));
    let status = refusal(server.widgets().patch("a", &params, &patch).await);
    assert_eq!(status["code"], json!(422));
    assert!(status["message"].as_str().unwrap().contains(r#"unknown field "spec.typo""#), "{status}");
    let strange = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "labls": {}}, "data": {}});
    let path = format!("/api/v1/namespaces/{}/configmaps?fieldValidation=Strict", server.namespace);
    let strict = server.raw("POST", &path, JSON, strange).await;
    assert_eq!(
        (strict.code, &strict.body["message"]),
        (400, &json!(r#"ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "metadata.labls""#))
    );
}

pub(crate) async fn fields_given_twice_are_named(server: Server) {
    let widget = |name: &str| {
        format!(
            r#"{{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {{"name": "{name}"}},
            "spec": {{"epoch": 1, "pace": {{"retries": 1, "retries": 2}}, "epoch": 2}}}}"#
        )
    };
    let strict = server.send("POST", &server.path("?fieldValidation=Strict"), JSON, widget("a")).await;
    assert_eq!(strict.code, 400, "{}", strict.body);
    assert_eq!(
        strict.body["message"],
        json!(
            r#"Widget in version "v1" cannot be handled as a Widget: strict decoding error: duplicate field "spec.pace.retries", duplicate field "spec.epoch""#
        )
    );
    let warned = server.send("POST", &server.path(""), JSON, widget("a")).await;
    assert_eq!(warned.code, 201);
    let warnings: Vec<_> = warned.headers.get_all("warning").iter().map(|w| w.to_str().unwrap()).collect();
    let wanted = [r#"299 - "duplicate field \"spec.pace.retries\"""#, r#"299 - "duplicate field \"spec.epoch\"""#];
    assert_eq!(warnings, wanted);
    assert_eq!((&warned.body["spec"]["epoch"], &warned.body["spec"]["pace"]["retries"]), (&json!(2), &json!(2)));
    let ignored = server.send("POST", &server.path("?fieldValidation=Ignore"), JSON, widget("b")).await;
    assert_eq!((ignored.code, ignored.headers.get("warning")), (201, None));
    let merge = [("content-type", "application/merge-patch+json")];
    let patch = r#"{"spec": {"epoch": 5, "epoch": 6}}"#.to_owned();
    let strict = server.send("PATCH", &server.path("/a?fieldValidation=Strict"), &merge, patch).await;
    assert_eq!(strict.code, 422, "{}", strict.body);
    assert!(strict.body["message"].as_str().unwrap().contains(r#"duplicate field "spec.epoch""#), "{}", strict.body);
}

pub(crate) async fn secrets_take_plain_text(server: Server) {
    let secrets: Api<Secret> = Api::default_namespaced(server.client.clone());
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"k": "value"}});
    let made = secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    assert_eq!(made.data.unwrap()["k"].0, b"value");
    assert_eq!((made.string_data, made.type_.as_deref()), (None, Some("Opaque")));
}

pub(crate) async fn concurrent_patches_all_arrive(server: Server) {
    let widgets = server.widgets();
    widgets.create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    let patches = (0..8).map(|i| {
        let widgets = widgets.clone();
        async move {
            let patch = Patch::Merge(json!({"spec": {"orders": {format!("o{i}"): {"image": "x"}}}}));
            widgets.patch("a", &PatchParams::default(), &patch).await.unwrap();
        }
    });
    futures::future::join_all(patches).await;
    let orders = widgets.get("a").await.unwrap();
    assert_eq!(spec(&orders)["orders"].as_object().unwrap().len(), 8);
}
