//! Nothing a client sends may panic the server: every answer is a response.

use crate::setup::*;
use kube::api::PostParams;
use proptest::prelude::*;
use serde_json::{Value, json};

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|f| json!(f)),
        "[a-zA-Z0-9 ./$%_-]{0,12}".prop_map(Value::from),
        Just(json!("a")),
        Just(json!("Widget")),
        Just(json!("example.com/v1")),
    ];
    let known = [
        "apiVersion",
        "kind",
        "metadata",
        "spec",
        "status",
        "name",
        "namespace",
        "labels",
        "annotations",
        "finalizers",
        "ownerReferences",
        "resourceVersion",
        "pace",
        "parallelism",
        "tags",
        "orders",
        "conditions",
        "mode",
        "epoch",
        "generateName",
        "$patch",
        "propagationPolicy",
        "preconditions",
        "uid",
        "op",
        "path",
        "value",
    ];
    let key = prop_oneof![4 => prop::sample::select(known.to_vec()).prop_map(str::to_owned), 1 => "[a-z]{1,4}"];
    leaf.prop_recursive(5, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..6).prop_map(|m| m.into_iter().collect()),
        ]
    })
}

/// A body that gets past the first door.
fn almost_widget() -> impl Strategy<Value = Value> {
    (any_json(), any_json(), any_json()).prop_map(|(metadata, spec, status)| {
        let mut metadata = if metadata.is_object() { metadata } else { json!({}) };
        metadata["name"] = json!("a");
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata, "spec": spec, "status": status})
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_body_panics(bodies in prop::collection::vec(prop_oneof![any_json(), almost_widget()], 1..6), query in "[a-zA-Z0-9=&%,!()]{0,40}") {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = client();
            widgets(&client).create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
            let all = "/apis/example.com/v1/namespaces/default/widgets";
            let one = format!("{all}/a");
            let status = format!("{one}/status");
            let node = "/api/v1/nodes/n";
            for body in bodies {
                for (method, path, media) in [
                    ("POST", all, "application/json"),
                    ("PUT", &one, "application/json"),
                    ("PUT", &status, "application/json"),
                    ("PATCH", &one, "application/merge-patch+json"),
                    ("PATCH", &status, "application/merge-patch+json"),
                    ("PATCH", &one, "application/json-patch+json"),
                    ("POST", "/api/v1/nodes", "application/json"),
                    ("PATCH", node, "application/strategic-merge-patch+json"),
                    ("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "application/json"),
                    ("DELETE", &one, "application/json"),
                ] {
                    let answer = raw(&client, method, path, &[("content-type", media)], body.clone()).await;
                    assert!(answer.code >= 200 && answer.code != 500, "{method} {path} {}", answer.body);
                }
            }
            let answer = raw(&client, "GET", &format!("{all}?{query}&watch=false"), &[], Value::Null).await;
            assert!(matches!(answer.code, 200 | 400 | 410 | 422 | 504), "{query} {}", answer.body);
        });
    }
}
