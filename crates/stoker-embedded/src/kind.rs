//! A kind as the server knows it: names, versions, schema, columns, and the few behaviours that differ from kind to kind as
//! data. In: rows of [`crate::rows`] and definitions of [`crate::crd`]. Out: lookups. Nothing here names a kind.

use crate::object::NameRule;
use crate::protobuf;
use crate::schema::Shape;
use crate::table::jsonpath::JsonPath;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a write of the main resource does with `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatusUse {
    /// There is no status subresource: status is a field like any other.
    Plain,
    /// A subresource; a create drops what came as status.
    Dropped,
    /// A subresource; a create keeps what came as status (a kubelet registers its Node so).
    KeptOnCreate,
}

/// What the objects of a kind do to the rest of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Nothing.
    Plain,
    /// Each is a namespace: others live in it and go with it.
    Namespace,
    /// Each defines a kind.
    Definition,
}

/// Reads an object as clients do, and says why it cannot be read.
pub(crate) type Typed = fn(&Value) -> Result<(), serde_json::Error>;

/// A printer column.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) format: String,
    pub(crate) description: String,
    pub(crate) priority: i64,
    pub(crate) path: JsonPath,
}

/// A field that a field selector may name, and where it is in the stored form.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    pub(crate) label: String,
    pub(crate) path: JsonPath,
}

/// One version of a kind.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) name: String,
    pub(crate) served: bool,
    pub(crate) storage: bool,
    pub(crate) status: StatusUse,
    pub(crate) columns: Vec<Column>,
    pub(crate) fields: Vec<Field>,
    /// Top-level fields that have another name in the stored form: (here, stored).
    pub(crate) renames: &'static [(&'static str, &'static str)],
    pub(crate) shape: Option<Shape>,
    /// What OpenAPI shows.
    pub(crate) document: Option<Value>,
}

/// A kind with all its versions.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) list_kind: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) namespaced: bool,
    pub(crate) generation: bool,
    /// Whether an update may leave out the resourceVersion.
    pub(crate) blind_update: bool,
    pub(crate) strategic_merge: bool,
    pub(crate) name_rule: NameRule,
    pub(crate) role: Role,
    /// Fields that a new object has unless it says otherwise.
    pub(crate) born_with: Option<Value>,
    /// Text fields that are stored encoded under another name: (written, stored).
    pub(crate) encoded: Option<(&'static str, &'static str)>,
    /// Whether a client of this kind could read the object. `None` where a schema says it.
    pub(crate) typed: Option<Typed>,
    /// Fields that stay as they were made.
    pub(crate) fixed: &'static [&'static str],
    /// Fields that stay so from when `immutable` is set.
    pub(crate) fixed_on_wish: &'static [&'static str],
    /// What must be in the encoded fields of objects of a `type`: (type, key), and be JSON.
    pub(crate) content: &'static [(&'static str, &'static str)],
    /// The field with a reference to another object, which must be of the object's own namespace.
    pub(crate) about: Option<&'static str>,
    /// How many objects are kept; past it the oldest go. `None` keeps all.
    pub(crate) keep: Option<usize>,
    /// Nothing of this server acts on its objects; whoever makes one is told so.
    pub(crate) stored_only: bool,
    /// The `status` with which a create is answered, where nothing is stored: a question that a client asks about itself.
    pub(crate) review: Option<Value>,
    /// Names of objects that may not be deleted.
    pub(crate) permanent: &'static [&'static str],
    /// How a protobuf body of this kind is read; empty where it is not.
    pub(crate) wire: &'static [protobuf::WireField],
    /// The table its objects are in, `plural.group`; two kinds may share one.
    pub(crate) table: String,
    /// The `apiVersion` in that table.
    pub(crate) stored_api_version: String,
    pub(crate) versions: Vec<Version>,
    /// Whether a definition object made it (and can take it away).
    pub(crate) custom: bool,
}

impl Kind {
    /// `group/version`, or only the version for the core group.
    pub(crate) fn api_version(&self, version: &str) -> String {
        api_version(&self.group, version)
    }

    /// `plural.group`, which names a kind in the catalog.
    pub(crate) fn id(&self) -> String {
        table_id(&self.plural, &self.group)
    }

    /// Whether a whole collection can be deleted at once.
    pub(crate) fn can_go_together(&self) -> bool {
        self.role != Role::Namespace
    }

    pub(crate) fn storage(&self) -> Option<&Version> {
        self.versions.iter().find(|v| v.storage)
    }
}

pub(crate) fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

pub(crate) fn table_id(plural: &str, group: &str) -> String {
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}

/// A kind together with the version a request asked for.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    pub(crate) kind: Arc<Kind>,
    at: usize,
}

impl Served {
    pub(crate) fn version(&self) -> &Version {
        // `at` was found in this very list, which never changes.
        &self.kind.versions[self.at]
    }

    pub(crate) fn api_version(&self) -> String {
        self.kind.api_version(&self.version().name)
    }

    /// The kind in its stored version.
    pub(crate) fn stored(kind: &Arc<Kind>) -> Option<Self> {
        let at = kind.versions.iter().position(|v| v.storage)?;
        Some(Self { kind: kind.clone(), at })
    }
}

/// All kinds the server knows at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Catalog {
    kinds: BTreeMap<String, Arc<Kind>>,
}

impl Catalog {
    pub(crate) fn put(&mut self, kind: Arc<Kind>) {
        self.kinds.insert(kind.id(), kind);
    }

    pub(crate) fn remove(&mut self, id: &str) {
        self.kinds.remove(id);
    }

    pub(crate) fn get(&self, id: &str) -> Option<&Arc<Kind>> {
        self.kinds.get(id)
    }

    /// Every kind, in the order of `plural.group`.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.kinds.values()
    }

    /// A served version of a resource.
    pub(crate) fn resource(&self, group: &str, version: &str, plural: &str) -> Option<Served> {
        let kind = self.kinds.get(&table_id(plural, group))?;
        let at = kind.versions.iter().position(|v| v.served && v.name == version)?;
        Some(Served { kind: kind.clone(), at })
    }

    /// The kind that an `apiVersion` and `kind` name, as an owner reference does.
    pub(crate) fn named(&self, api_version: &str, kind: &str) -> Option<&Arc<Kind>> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        self.kinds.values().find(|k| k.group == group && k.kind == kind)
    }

    /// The kind whose objects are namespaces.
    pub(crate) fn namespaces(&self) -> Option<&Arc<Kind>> {
        self.kinds.values().find(|k| k.role == Role::Namespace)
    }

    /// Groups with their served versions, the preferred first; the core group is the empty name.
    pub(crate) fn groups(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for kind in self.kinds.values() {
            let versions = groups.entry(&kind.group).or_default();
            for version in kind.versions.iter().filter(|v| v.served) {
                if !versions.contains(&version.name.as_str()) {
                    versions.push(&version.name);
                }
            }
        }
        groups.retain(|_, versions| !versions.is_empty());
        for versions in groups.values_mut() {
            versions.sort_by(|a, b| priority(b).cmp(&priority(a)).then(a.cmp(b)));
        }
        groups
    }
}

/// `v2` before `v1` before `v2beta1` before `v1alpha1`, as Kubernetes orders versions.
fn priority(version: &str) -> (u8, u64, u64) {
    let Some(rest) = version.strip_prefix('v') else { return (0, 0, 0) };
    for (word, rank) in [("alpha", 1), ("beta", 2)] {
        if let Some((major, minor)) = rest.split_once(word) {
            return (rank, major.parse().unwrap_or(0), minor.parse().unwrap_or(0));
        }
    }
    rest.parse().map_or((0, 0, 0), |major| (3, major, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_in_kubernetes_order() {
        let mut versions = vec!["v1alpha1", "v1", "v2beta1", "v2", "v1beta2", "other"];
        versions.sort_by_key(|v| std::cmp::Reverse(priority(v)));
        assert_eq!(versions, ["v2", "v1", "v2beta1", "v1beta2", "v1alpha1", "other"]);
    }
}
