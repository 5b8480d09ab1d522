//! Discovery and OpenAPI, as kube and kubectl ask for them.

use crate::server::*;
use kube::discovery::{Discovery, Scope};
use serde_json::{Value, json};

pub(crate) async fn every_kind_is_found_both_ways(server: Server) {
    let one_by_one = Discovery::new(server.client.clone()).run().await.unwrap();
    let at_once = Discovery::new(server.client.clone()).run_aggregated().await.unwrap();
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

pub(crate) async fn short_names_and_categories(server: Server) {
    let list = server.raw("GET", "/apis/example.com/v1", &[], Value::Null).await.body;
    let names: Vec<&Value> = list["resources"].as_array().unwrap().iter().map(|r| &r["name"]).collect();
    assert_eq!(names, [&json!("widgets"), &json!("widgets/status")]);
    assert_eq!(list["resources"][0]["shortNames"], json!(["wd"]));
    assert_eq!(list["resources"][0]["categories"], json!(["all"]));
    let mut verbs: Vec<&str> =
        list["resources"][0]["verbs"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    verbs.sort_unstable();
    assert_eq!(verbs, ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]);
}

pub(crate) async fn aggregated_documents_say_their_form(server: Server) {
    let accept = [("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json")];
    for path in ["/api", "/apis"] {
        let answer = server.raw("GET", path, &accept, Value::Null).await;
        assert_eq!(
            answer.headers["content-type"],
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        );
        assert_eq!(answer.body["kind"], json!("APIGroupDiscoveryList"));
    }
}

pub(crate) async fn openapi_lets_kubectl_apply_and_explain(server: Server) {
    let index = server.raw("GET", "/openapi/v3", &[], Value::Null).await.body;
    let url = index["paths"]["apis/example.com/v1"]["serverRelativeURL"].as_str().unwrap();
    let document = server.raw("GET", url, &[], Value::Null).await.body;
    let path = &document["paths"]["/apis/example.com/v1/namespaces/{namespace}/widgets/{name}"];
    let parameters = path["patch"]["parameters"].as_array().unwrap();
    assert!(parameters.iter().any(|p| p["name"] == json!("fieldValidation") && p["in"] == json!("query")));
    let schema = &document["components"]["schemas"]["com.example.v1.Widget"];
    assert_eq!(schema["properties"]["spec"]["properties"]["pace"]["description"], json!("How fast."));
    let again = server.raw("GET", "/openapi/v3", &[], Value::Null).await.body;
    assert_eq!(
        index["paths"]["apis/example.com/v1"], again["paths"]["apis/example.com/v1"],
        "the hash may only change with the document"
    );
}
