//! OpenAPI v3, as far as kubectl reads it: that PATCH takes `fieldValidation` (else `apply` wants OpenAPI v2), and the schemas
//! that `explain` prints. In: the catalog. Out: documents. Built-in kinds are open objects.

use crate::kind::{Catalog, Kind, Version, api_version};
use serde_json::{Map, Value, json};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// `/openapi/v3`: where the documents are.
pub(crate) fn index(catalog: &Catalog) -> Value {
    let mut paths = Map::new();
    for (group, versions) in catalog.groups() {
        for version in versions {
            let path = prefix(group, version);
            let mut hasher = DefaultHasher::new();
            document(catalog, group, version).map(|d| d.to_string()).hash(&mut hasher);
            let url = format!("/openapi/v3/{path}?hash={:016X}", hasher.finish());
            paths.insert(path, json!({ "serverRelativeURL": url }));
        }
    }
    json!({ "paths": paths })
}

fn prefix(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// The document of one group and version.
pub(crate) fn document(catalog: &Catalog, group: &str, version: &str) -> Option<Value> {
    let (mut paths, mut schemas) = (Map::new(), Map::new());
    for kind in catalog.kinds().filter(|kind| kind.group == group) {
        let Some(version) = kind.versions.iter().find(|v| v.served && v.name == version) else { continue };
        describe(kind, version, &mut paths, &mut schemas);
    }
    if paths.is_empty() {
        return None;
    }
    schemas.insert(META.to_owned(), object_meta());
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Stoker", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "components": { "schemas": schemas },
    }))
}

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

fn describe(kind: &Kind, version: &Version, paths: &mut Map<String, Value>, schemas: &mut Map<String, Value>) {
    let gvk = json!({"group": kind.group, "version": version.name, "kind": kind.kind});
    let mut reversed: Vec<&str> = kind.group.split('.').rev().filter(|p| !p.is_empty()).collect();
    reversed.extend([version.name.as_str(), kind.kind.as_str()]);
    let name = reversed.join(".");
    schemas.insert(name.clone(), schema(version, &gvk));
    let list = format!("{name}List");
    let reference = |to: &str| json!({"$ref": format!("#/components/schemas/{to}")});
    schemas.insert(
        list.clone(),
        json!({
            "type": "object",
            "required": ["items"],
            "properties": {
                "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
                "items": {"type": "array", "items": reference(&name)},
            },
            "x-kubernetes-group-version-kind": [{"group": kind.group, "version": version.name, "kind": kind.list_kind}],
        }),
    );
    let answer =
        |to: &str| json!({"200": {"description": "OK", "content": {"application/json": {"schema": reference(to)}}}});
    let operation = |action: &str, to: &str, query: &[&str]| {
        let parameters: Vec<Value> = query.iter().map(|name| parameter(name)).collect();
        json!({
            "responses": answer(to), "parameters": parameters,
            "x-kubernetes-action": action, "x-kubernetes-group-version-kind": gvk,
        })
    };
    let base = if kind.group.is_empty() {
        format!("/api/{}", version.name)
    } else {
        format!("/apis/{}", api_version(&kind.group, &version.name))
    };
    let collection = if kind.namespaced {
        format!("{base}/namespaces/{{namespace}}/{}", kind.plural)
    } else {
        format!("{base}/{}", kind.plural)
    };
    let write = ["dryRun", "fieldManager", "fieldValidation"];
    if kind.review.is_some() {
        paths.insert(collection, json!({ "post": operation("post", &name, &write) }));
        return;
    }
    paths.insert(
        format!("{collection}/{{name}}"),
        json!({
            "get": operation("get", &name, &[]),
            "put": operation("put", &name, &write),
            "patch": operation("patch", &name, &write),
            "delete": operation("delete", &name, &["dryRun", "propagationPolicy"]),
        }),
    );
    paths.insert(
        collection,
        json!({
            "get": operation("list", &list, &["labelSelector", "fieldSelector", "limit", "continue", "watch"]),
            "post": operation("post", &name, &write),
            "delete": operation("deletecollection", &list, &["labelSelector", "fieldSelector"]),
        }),
    );
}

fn parameter(name: &str) -> Value {
    let kind = match name {
        "limit" => "integer",
        "watch" => "boolean",
        _ => "string",
    };
    json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}})
}

fn schema(version: &Version, gvk: &Value) -> Value {
    let mut schema = version
        .document
        .clone()
        .unwrap_or_else(|| json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));
    schema["x-kubernetes-group-version-kind"] = json!([gvk]);
    let map = crate::object::object_mut(&mut schema);
    let properties = crate::object::object_mut(map.entry("properties").or_insert_with(|| json!({})));
    let text = |what: &str| json!({"type": "string", "description": what});
    properties.insert("apiVersion".to_owned(), text("The group and version of this object's schema."));
    properties.insert("kind".to_owned(), text("The kind of this object."));
    let reference = json!({"$ref": format!("#/components/schemas/{META}")});
    properties.insert(
        "metadata".to_owned(),
        json!({"description": "Standard object's metadata.", "allOf": [reference], "default": {}}),
    );
    schema
}

fn object_meta() -> Value {
    let text = json!({"type": "string"});
    let map = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let time = json!({"type": "string", "format": "date-time"});
    json!({
        "type": "object",
        "description": "What every object has.",
        "properties": {
            "name": text, "namespace": text, "generateName": text, "uid": text, "resourceVersion": text,
            "labels": map, "annotations": map,
            "generation": {"type": "integer", "format": "int64"},
            "creationTimestamp": time, "deletionTimestamp": time,
            "finalizers": {"type": "array", "items": {"type": "string"}},
            "ownerReferences": {"type": "array", "items": {"type": "object", "properties": {
                "apiVersion": text, "kind": text, "name": text, "uid": text,
                "controller": {"type": "boolean"}, "blockOwnerDeletion": {"type": "boolean"},
            }}},
        },
    })
}
