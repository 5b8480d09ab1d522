//! The built-in kinds, a row each. In: nothing. Out: [`Kind`]s for the catalog. Their objects are stored as they come, if a
//! client can read them: only kinds that a definition brings have a schema.

mod access;
mod admission;
mod reviews;
mod workloads;

use crate::kind::{Column, Field, Kind, Role, StatusUse, Typed, Version, api_version, table_id};
use crate::object::NameRule;
use crate::protobuf::{self, METADATA, Wire};
use crate::table::jsonpath::{JsonPath, PathError};
use k8s_openapi::api::{coordination, core, events};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// One built-in kind. `ROW` holds what most rows share.
struct Row {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    categories: &'static [&'static str],
    namespaced: bool,
    generation: bool,
    status: StatusUse,
    name_rule: NameRule,
    role: Role,
    blind_update: bool,
    born_with: &'static str,
    encoded: Option<(&'static str, &'static str)>,
    typed: Typed,
    fixed: &'static [&'static str],
    fixed_on_wish: &'static [&'static str],
    content: &'static [(&'static str, &'static str)],
    about: Option<&'static str>,
    keep: Option<usize>,
    /// Nothing of this server acts on it.
    stored_only: bool,
    /// The `status` with which a create is answered, where nothing is stored.
    review: &'static str,
    /// Names that may not be deleted.
    permanent: &'static [&'static str],
    /// How kubectl's imperative forms write it.
    wire: &'static [protobuf::WireField],
    /// Selectable fields besides name and namespace: (label, path in the stored form).
    fields: &'static [(&'static str, &'static str)],
    /// Columns between NAME and AGE, or after NAME where `age` is not wanted: (name, type, priority, path).
    columns: &'static [(&'static str, &'static str, i64, &'static str)],
    age: bool,
    /// The `(group, version, plural)` whose table this kind shares, with the fields that have another name there.
    shares: Option<(&'static str, &'static str, &'static str)>,
    renames: &'static [(&'static str, &'static str)],
}

const ROW: Row = Row {
    group: "",
    version: "v1",
    kind: "",
    plural: "",
    short: &[],
    categories: &[],
    namespaced: true,
    generation: false,
    status: StatusUse::Plain,
    name_rule: NameRule::Subdomain,
    role: Role::Plain,
    blind_update: true,
    born_with: "",
    encoded: None,
    typed: |_| Ok(()),
    fixed: &[],
    fixed_on_wish: &[],
    content: &[],
    about: None,
    keep: None,
    stored_only: false,
    review: "",
    permanent: &[],
    wire: &[],
    fields: &[],
    columns: &[],
    age: true,
    shares: None,
    renames: &[],
};

/// A real server drops Events after an hour. A bound on their number needs no clock and holds in a storm of them too; Events of
/// objects that are gone stay until newer ones take their place. In memory an Event takes about 6 KiB.
const EVENTS_KEPT: usize = 1000;

const EVENT_COLUMNS: &[(&str, &str, i64, &str)] = &[
    ("Last Seen", "date", 0, ".lastTimestamp"),
    ("Type", "string", 0, ".type"),
    ("Reason", "string", 0, ".reason"),
    ("Kind", "string", 0, ".involvedObject.kind"),
    ("Object", "string", 0, ".involvedObject.name"),
    ("Source", "string", 1, ".source.component"),
    ("Message", "string", 0, ".message"),
];

const ROWS: &[Row] = &[
    Row {
        kind: "Namespace",
        typed: readable::<core::v1::Namespace>,
        plural: "namespaces",
        short: &["ns"],
        namespaced: false,
        status: StatusUse::KeptOnCreate,
        name_rule: NameRule::Label,
        role: Role::Namespace,
        permanent: &["default"],
        born_with: r#"{"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}"#,
        wire: &[
            (1, "metadata", Wire::Message(METADATA)),
            (2, "spec", Wire::Message(&[(1, "finalizers", Wire::Texts)])),
            (3, "status", Wire::Ignored),
        ],
        fields: &[("status.phase", ".status.phase")],
        columns: &[("Status", "string", 0, ".status.phase")],
        ..ROW
    },
    Row {
        kind: "Node",
        typed: readable::<core::v1::Node>,
        plural: "nodes",
        short: &["no"],
        namespaced: false,
        status: StatusUse::KeptOnCreate,
        fields: &[("spec.unschedulable", ".spec.unschedulable")],
        columns: &[
            ("Ready", "string", 0, r#".status.conditions[?(@.type=="Ready")].status"#),
            ("Reason", "string", 1, r#".status.conditions[?(@.type=="Ready")].reason"#),
            ("Version", "string", 0, ".status.nodeInfo.kubeletVersion"),
            ("Internal-IP", "string", 1, r#".status.addresses[?(@.type=="InternalIP")].address"#),
            ("OS-Image", "string", 1, ".status.nodeInfo.osImage"),
            ("Container-Runtime", "string", 1, ".status.nodeInfo.containerRuntimeVersion"),
        ],
        ..ROW
    },
    Row {
        kind: "Secret",
        typed: readable::<core::v1::Secret>,
        plural: "secrets",
        born_with: r#"{"type": "Opaque"}"#,
        encoded: Some(("stringData", "data")),
        fixed: &["type"],
        fixed_on_wish: &["data"],
        content: &[("kubernetes.io/dockercfg", ".dockercfg"), ("kubernetes.io/dockerconfigjson", ".dockerconfigjson")],
        wire: &[
            (1, "metadata", Wire::Message(METADATA)),
            (2, "data", Wire::BytesMap),
            (3, "type", Wire::Text),
            (4, "stringData", Wire::TextMap),
            (5, "immutable", Wire::Flag),
        ],
        fields: &[("type", ".type")],
        columns: &[("Type", "string", 0, ".type")],
        ..ROW
    },
    Row {
        kind: "ConfigMap",
        typed: readable::<core::v1::ConfigMap>,
        plural: "configmaps",
        short: &["cm"],
        fixed_on_wish: &["data", "binaryData"],
        wire: &[
            (1, "metadata", Wire::Message(METADATA)),
            (2, "data", Wire::TextMap),
            (3, "binaryData", Wire::BytesMap),
            (4, "immutable", Wire::Flag),
        ],
        ..ROW
    },
    Row {
        kind: "ServiceAccount",
        typed: readable::<core::v1::ServiceAccount>,
        plural: "serviceaccounts",
        short: &["sa"],
        wire: &[
            (1, "metadata", Wire::Message(METADATA)),
            (3, "imagePullSecrets", Wire::Messages(&[(1, "name", Wire::Text)])),
            (4, "automountServiceAccountToken", Wire::Flag),
        ],
        ..ROW
    },
    Row {
        kind: "Event",
        typed: readable::<core::v1::Event>,
        plural: "events",
        short: &["ev"],
        fields: &[
            ("involvedObject.kind", ".involvedObject.kind"),
            ("involvedObject.namespace", ".involvedObject.namespace"),
            ("involvedObject.name", ".involvedObject.name"),
            ("involvedObject.uid", ".involvedObject.uid"),
            ("involvedObject.apiVersion", ".involvedObject.apiVersion"),
            ("involvedObject.resourceVersion", ".involvedObject.resourceVersion"),
            ("involvedObject.fieldPath", ".involvedObject.fieldPath"),
            ("reason", ".reason"),
            ("reportingComponent", ".reportingComponent"),
            ("source", ".source.component"),
            ("type", ".type"),
        ],
        columns: EVENT_COLUMNS,
        about: Some("involvedObject"),
        keep: Some(EVENTS_KEPT),
        ..ROW
    },
    // The same events under their newer name: what a client publishes here, `kubectl describe` reads there.
    Row {
        group: "events.k8s.io",
        kind: "Event",
        typed: readable::<events::v1::Event>,
        plural: "events",
        short: &["ev"],
        fields: &[
            ("regarding.kind", ".involvedObject.kind"),
            ("regarding.namespace", ".involvedObject.namespace"),
            ("regarding.name", ".involvedObject.name"),
            ("regarding.uid", ".involvedObject.uid"),
            ("reason", ".reason"),
            ("reportingController", ".reportingComponent"),
            ("type", ".type"),
        ],
        columns: EVENT_COLUMNS,
        about: Some("involvedObject"),
        keep: Some(EVENTS_KEPT),
        shares: Some(("", "v1", "events")),
        renames: &[
            ("regarding", "involvedObject"),
            ("note", "message"),
            ("reportingController", "reportingComponent"),
            ("deprecatedSource", "source"),
            ("deprecatedCount", "count"),
            ("deprecatedFirstTimestamp", "firstTimestamp"),
            ("deprecatedLastTimestamp", "lastTimestamp"),
        ],
        ..ROW
    },
    Row {
        group: "coordination.k8s.io",
        kind: "Lease",
        typed: readable::<coordination::v1::Lease>,
        plural: "leases",
        blind_update: false,
        columns: &[("Holder", "string", 0, ".spec.holderIdentity")],
        ..ROW
    },
    Row {
        group: "apiextensions.k8s.io",
        kind: "CustomResourceDefinition",
        typed: readable::<CustomResourceDefinition>,
        plural: "customresourcedefinitions",
        short: &["crd", "crds"],
        categories: &["api-extensions"],
        namespaced: false,
        generation: true,
        status: StatusUse::Dropped,
        role: Role::Definition,
        columns: &[("Created At", "string", 0, ".metadata.creationTimestamp")],
        age: false,
        ..ROW
    },
];

/// The built-in kinds. An error is a wrong row of this file, and a test would have found it.
pub(crate) fn kinds() -> Result<Vec<Kind>, PathError> {
    rows().map(kind).collect()
}

fn rows() -> impl Iterator<Item = &'static Row> {
    ROWS.iter().chain(workloads::WORKLOADS).chain(admission::WEBHOOKS).chain(access::BINDINGS).chain(reviews::REVIEWS)
}

/// Whether a client that knows the type could read the object.
fn readable<T: DeserializeOwned>(value: &Value) -> Result<(), serde_json::Error> {
    T::deserialize(value).map(drop)
}

fn kind(row: &Row) -> Result<Kind, PathError> {
    let (group, version, plural) = row.shares.unwrap_or((row.group, row.version, row.plural));
    let mut columns = Vec::new();
    for (name, kind, priority, path) in row.columns {
        columns.push(Column {
            name: (*name).to_owned(),
            kind: (*kind).to_owned(),
            format: String::new(),
            description: String::new(),
            priority: *priority,
            path: JsonPath::parse(path)?,
        });
    }
    if row.age {
        columns.push(age()?);
    }
    let mut fields = Vec::new();
    for (label, path) in row.fields {
        fields.push(Field { label: (*label).to_owned(), path: JsonPath::parse(path)? });
    }
    let owned = |texts: &[&str]| texts.iter().map(|t| (*t).to_owned()).collect();
    Ok(Kind {
        group: row.group.to_owned(),
        kind: row.kind.to_owned(),
        list_kind: format!("{}List", row.kind),
        plural: row.plural.to_owned(),
        singular: row.kind.to_ascii_lowercase(),
        short_names: owned(row.short),
        categories: owned(row.categories),
        namespaced: row.namespaced,
        generation: row.generation,
        blind_update: row.blind_update,
        strategic_merge: true,
        name_rule: row.name_rule,
        role: row.role,
        born_with: serde_json::from_str::<Value>(row.born_with).ok(),
        encoded: row.encoded,
        typed: Some(row.typed),
        fixed: row.fixed,
        fixed_on_wish: row.fixed_on_wish,
        content: row.content,
        about: row.about,
        keep: row.keep,
        stored_only: row.stored_only,
        review: serde_json::from_str::<Value>(row.review).ok(),
        permanent: row.permanent,
        wire: row.wire,
        table: table_id(plural, group),
        stored_api_version: api_version(group, version),
        versions: vec![Version {
            name: row.version.to_owned(),
            served: true,
            storage: true,
            status: row.status,
            columns,
            fields,
            renames: row.renames,
            shape: None,
            document: None,
        }],
        custom: false,
    })
}

/// The column that every kind without columns of its own has.
pub(crate) fn age() -> Result<Column, PathError> {
    Ok(Column {
        name: "Age".to_owned(),
        kind: "date".to_owned(),
        format: String::new(),
        description: "how long ago the object was created".to_owned(),
        priority: 0,
        path: JsonPath::parse(".metadata.creationTimestamp")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_whole() {
        let kinds = kinds().unwrap();
        assert_eq!(kinds.len(), rows().count());
        for (kind, row) in kinds.iter().zip(rows()) {
            assert_eq!(kind.born_with.is_some(), !row.born_with.is_empty(), "{}", row.kind);
            assert_eq!(kind.review.is_some(), !row.review.is_empty(), "{}", row.kind);
            assert!(kinds.iter().any(|k| k.id() == kind.table), "{} shares a table of nobody", row.kind);
        }
        for role in [Role::Namespace, Role::Definition] {
            assert_eq!(kinds.iter().filter(|k| k.role == role).count(), 1);
        }
    }
}
