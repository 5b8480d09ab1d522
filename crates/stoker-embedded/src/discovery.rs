//! What the server serves, for clients that ask first. In: the catalog. Out: the discovery documents, one by one and aggregated.
//! It reads no objects.

use crate::kind::{Catalog, Kind, StatusUse, Version, api_version};
use serde_json::{Value, json};

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

fn verbs(kind: &Kind) -> Vec<&'static str> {
    let has = |verb: &&str| match *verb {
        "create" => true,
        _ if kind.review.is_some() => false,
        "deletecollection" => kind.can_go_together(),
        _ => true,
    };
    VERBS.into_iter().filter(has).collect()
}

const STATUS_VERBS: [&str; 3] = ["get", "patch", "update"];

/// Kinds of one group and version, each with that version.
fn served<'a>(catalog: &'a Catalog, group: &'a str, version: &'a str) -> impl Iterator<Item = (&'a Kind, &'a Version)> {
    catalog.kinds().filter(move |kind| kind.group == group).filter_map(move |kind| {
        let version = kind.versions.iter().find(|v| v.served && v.name == version)?;
        Some((&**kind, version))
    })
}

/// `/api`.
pub(crate) fn core_versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
}

/// `/apis`.
pub(crate) fn groups(catalog: &Catalog) -> Value {
    let names = catalog.groups();
    let groups = names.keys().filter(|name| !name.is_empty()).filter_map(|name| group(catalog, name));
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups.collect::<Vec<_>>()})
}

/// `/apis/GROUP`.
pub(crate) fn group(catalog: &Catalog, name: &str) -> Option<Value> {
    let groups = catalog.groups();
    let entry = |version: &&str| json!({"groupVersion": api_version(name, version), "version": version});
    let versions: Vec<Value> = groups.get(name)?.iter().map(entry).collect();
    Some(json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": name,
        "preferredVersion": versions.first(), "versions": versions,
    }))
}

/// `/api/v1` and `/apis/GROUP/VERSION`.
pub(crate) fn resources(catalog: &Catalog, group: &str, version: &str) -> Option<Value> {
    let mut list = Vec::new();
    for (kind, version) in served(catalog, group, version) {
        let mut resource = json!({
            "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced,
            "kind": kind.kind, "verbs": verbs(kind),
        });
        if !kind.short_names.is_empty() {
            resource["shortNames"] = json!(kind.short_names);
        }
        if !kind.categories.is_empty() {
            resource["categories"] = json!(kind.categories);
        }
        list.push(resource);
        if version.status != StatusUse::Plain {
            list.push(json!({
                "name": format!("{}/status", kind.plural), "singularName": "",
                "namespaced": kind.namespaced, "kind": kind.kind, "verbs": STATUS_VERBS,
            }));
        }
    }
    if list.is_empty() {
        return None;
    }
    let group_version = api_version(group, version);
    Some(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list}))
}

/// `/api` or `/apis` in one document, which is what current clients ask for first.
pub(crate) fn aggregated(catalog: &Catalog, core: bool, form: &str) -> Value {
    let groups = catalog.groups();
    let items = groups.iter().filter(|(name, _)| name.is_empty() == core).map(|(name, versions)| {
        let versions: Vec<Value> = versions
            .iter()
            .map(|version| {
                let resources: Vec<Value> =
                    served(catalog, name, version).map(|(kind, v)| aggregated_resource(kind, v)).collect();
                json!({"version": version, "freshness": "Current", "resources": resources})
            })
            .collect();
        json!({"metadata": {"name": name, "creationTimestamp": null}, "versions": versions})
    });
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{form}"),
        "metadata": {},
        "items": items.collect::<Vec<_>>(),
    })
}

fn aggregated_resource(kind: &Kind, version: &Version) -> Value {
    let response = json!({"group": kind.group, "version": version.name, "kind": kind.kind});
    let mut resource = json!({
        "resource": kind.plural,
        "responseKind": response,
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular,
        "verbs": verbs(kind),
        "shortNames": kind.short_names,
        "categories": kind.categories,
    });
    if version.status != StatusUse::Plain {
        resource["subresources"] = json!([{"subresource": "status", "responseKind": response, "verbs": STATUS_VERBS}]);
    }
    resource
}

/// `/version`: the API level that clients may count on.
pub(crate) fn version() -> Value {
    json!({
        "major": "1", "minor": "34",
        "gitVersion": concat!("v1.34.0+stoker-", env!("CARGO_PKG_VERSION")),
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none", "compiler": "rustc", "platform": std::env::consts::OS,
    })
}
