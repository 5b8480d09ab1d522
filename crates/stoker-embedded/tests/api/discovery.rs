//! Discovery and OpenAPI, as kube and kubectl ask for them.

use crate::setup::*;
use kube::discovery::{Discovery, Scope};
use serde_json::{Value, json};

#[tokio::test]
async fn kube_finds_every_kind_both_ways() {
    let client = client();
    let one_by_one = Discovery::new(client.clone()).run().await.unwrap();
    let at_once = Discovery::new(client).run_aggregated().await.unwrap();
    for discovery in [one_by_one, at_once] {
        let gvk = kube::api::GroupVersionKind::gvk("example.com", "v1", "Widget");
        let (resource, capabilities) = discovery.resolve_gvk(&gvk).unwrap();
        assert_eq!((resource.plural.as_str(), &capabilities.scope), ("widgets", &Scope::Namespaced));
        assert!(capabilities.supports_operation("watch"));
        assert!(capabilities.subresources.iter().any(|(r, _)| r.plural.ends_with("status")));
        let gvk = kube::api::GroupVersionKind::gvk("", "v1", "Node");
        assert_eq!(discovery.resolve_gvk(&gvk).unwrap().1.scope, Scope::Cluster);
        let group = discovery.get("example.com").unwrap();
        assert_eq!(group.versions().collect::<Vec<_>>(), ["v1", "v1beta1"]);
    }
}

#[tokio::test]
async fn short_names_and_categories() {
    let list = raw(&client(), "GET", "/apis/example.com/v1", &[], Value::Null).await.body;
    let names: Vec<&Value> = list["resources"].as_array().unwrap().iter().map(|r| &r["name"]).collect();
    assert_eq!(names, [&json!("widgets"), &json!("widgets/status")]);
    assert_eq!(list["resources"][0]["shortNames"], json!(["wd"]));
    assert_eq!(list["resources"][0]["categories"], json!(["all"]));
}

#[tokio::test]
async fn aggregated_documents_say_their_form() {
    let accept = [("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json")];
    for path in ["/api", "/apis"] {
        let answer = raw(&client(), "GET", path, &accept, Value::Null).await;
        assert_eq!(
            answer.headers["content-type"],
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        );
        assert_eq!(answer.body["kind"], json!("APIGroupDiscoveryList"));
    }
}

#[tokio::test]
async fn openapi_lets_kubectl_apply_and_explain() {
    let client = client();
    let index = raw(&client, "GET", "/openapi/v3", &[], Value::Null).await.body;
    let url = index["paths"]["apis/example.com/v1"]["serverRelativeURL"].as_str().unwrap();
    let document = raw(&client, "GET", url, &[], Value::Null).await.body;
    let path = &document["paths"]["/apis/example.com/v1/namespaces/{namespace}/widgets/{name}"];
    let parameters = path["patch"]["parameters"].as_array().unwrap();
    assert!(parameters.iter().any(|p| p["name"] == json!("fieldValidation") && p["in"] == json!("query")));
    let schema = &document["components"]["schemas"]["com.example.v1.Widget"];
    assert_eq!(schema["properties"]["spec"]["properties"]["pace"]["description"], json!("How fast."));
    let again = raw(&client, "GET", "/openapi/v3", &[], Value::Null).await.body;
    assert_eq!(index, again, "the hash may only change with the document");
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
