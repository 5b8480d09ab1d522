//! Objects as the View holds them: one table for each query, each object cut down to what its kind keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_core::discovery::ApiResource;
use kube_core::dynamic::DynamicObject;

use crate::sign::LeaseRow;

/// Namespace (empty for a cluster-scoped kind) and name of an object.
pub type ObjectName = (String, String);

/// A kind of object that dialects read.
pub struct Kind {
    /// Its name, unique among all kinds here with the same `fields`.
    pub name: &'static str,
    /// How it is found on an API server, the newest version first. The first that is served is used.
    pub versions: fn() -> Vec<ApiResource>,
    /// What is kept of an object.
    pub keep: fn(DynamicObject) -> Row,
    /// Of which objects of a query nobody wants to know, as the API server understands it.
    pub fields: Option<&'static str>,
}

impl Kind {
    /// The newest version.
    pub fn newest(&self) -> ApiResource {
        (self.versions)().swap_remove(0)
    }

    /// The API group; empty for Kubernetes' own first one.
    pub fn group(&self) -> String {
        self.newest().group
    }

    /// The version in which this object was read.
    pub fn resource_of(&self, object: &DynamicObject) -> ApiResource {
        let read = object.types.as_ref().map(|types| types.api_version.as_str());
        let mut versions = (self.versions)();
        let at = versions.iter().position(|version| Some(version.api_version.as_str()) == read).unwrap_or_default();
        versions.swap_remove(at)
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        (self.name, self.fields) == (other.name, other.fields)
    }
}

impl Eq for Kind {}

impl PartialOrd for Kind {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Kind {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.name, self.fields).cmp(&(other.name, other.fields))
    }
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// A list that is watched: all objects of a kind, or those of a namespace that labels select. The API server selects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Query {
    /// The kind.
    pub kind: &'static Kind,
    /// The namespace; none means all of them.
    pub namespace: Option<String>,
    /// The labels, as a command line writes them; empty selects everything.
    pub labels: String,
}

impl Query {
    /// All objects of a kind.
    pub fn all(kind: &'static Kind) -> Self {
        Self { kind, namespace: None, labels: String::new() }
    }
}

/// What is kept of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Row {
    /// Everything that somebody may look at.
    Whole(Box<DynamicObject>),
    /// The node of a pod that runs there or is about to; none for one that is on its way out.
    Pod(Option<Arc<str>>),
    /// What a Lease shows of its holder.
    Lease(LeaseRow),
    /// The kinds of dialects that a webhook configuration names.
    Webhook(BTreeSet<&'static str>),
}

impl Row {
    /// An object without what only its writers look at.
    pub fn whole(mut object: DynamicObject) -> Self {
        object.metadata.managed_fields = None;
        if let Some(annotations) = &mut object.metadata.annotations {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
        Self::Whole(Box::new(object))
    }

    /// The whole object, where that is kept.
    pub fn object(&self) -> Option<&DynamicObject> {
        match self {
            Row::Whole(object) => Some(object),
            Row::Pod(_) | Row::Lease(_) | Row::Webhook(_) => None,
        }
    }
}

/// How far a query is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heard {
    /// It was not answered yet.
    #[default]
    Unlisted,
    /// Everything is known, and changes are heard.
    Listed,
    /// It was listed, and changes are not heard; or it cannot be listed.
    Deaf {
        /// Whether it was ever listed.
        listed: bool,
    },
    /// The API server has no such kind, or does not let us see it.
    Refused,
}

/// The answer to one query.
#[derive(Clone, Debug, Default)]
struct Table {
    rows: BTreeMap<ObjectName, Row>,
    heard: Heard,
}

/// All tables.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    tables: BTreeMap<Query, Table>,
    /// By the uid of the object that controls them: those that are kept whole.
    owned: BTreeMap<String, BTreeSet<(Query, ObjectName)>>,
}

impl Rows {
    /// One row of a query.
    pub(super) fn get(&self, query: &Query, name: &ObjectName) -> Option<&Row> {
        self.tables.get(query)?.rows.get(name)
    }

    /// All rows of a query, by name.
    pub(super) fn of<'a>(&'a self, query: &Query) -> impl Iterator<Item = (&'a ObjectName, &'a Row)> + use<'a> {
        self.tables.get(query).into_iter().flat_map(|table| &table.rows)
    }

    /// How far a query is known.
    pub(super) fn heard(&self, query: &Query) -> Heard {
        self.tables.get(query).map(|table| table.heard).unwrap_or_default()
    }

    /// The objects of a kind that the object with this uid controls.
    pub(super) fn owned<'a>(&'a self, kind: &'static Kind, uid: &str) -> impl Iterator<Item = &'a DynamicObject> {
        let ids = self.owned.get(uid).into_iter().flatten();
        ids.filter(move |(query, _)| query.kind == kind).filter_map(|(query, name)| self.get(query, name)?.object())
    }

    /// Puts a row in place or takes one away. Returns the uids of those who control what it was and is; none where nothing has
    /// changed.
    pub(super) fn set(&mut self, query: &Query, name: &ObjectName, row: Option<Row>) -> Option<Vec<String>> {
        let table = self.tables.entry(query.clone()).or_default();
        if table.rows.get(name) == row.as_ref() {
            return None;
        }
        let (before, now) = (table.rows.get(name).and_then(owner), row.as_ref().and_then(owner));
        match row {
            Some(row) => table.rows.insert(name.clone(), row),
            None => table.rows.remove(name),
        };
        let id = (query.clone(), name.clone());
        if let Some(uid) = &before
            && let Some(owned) = self.owned.get_mut(uid)
        {
            owned.remove(&id);
            if owned.is_empty() {
                self.owned.remove(uid);
            }
        }
        if let Some(uid) = &now {
            self.owned.entry(uid.clone()).or_default().insert(id);
        }
        Some(before.into_iter().chain(now).collect())
    }

    /// Notes how far a query is known. Returns whether that is another answer than before to whoever reads it.
    pub(super) fn hear(&mut self, query: &Query, heard: Heard) -> bool {
        let table = self.tables.entry(query.clone()).or_default();
        std::mem::replace(&mut table.heard, heard) != heard
    }

    /// Nobody reads this query any more.
    pub(super) fn forget(&mut self, query: &Query) {
        self.tables.remove(query);
    }
}

/// The uid of the object that controls this one.
fn owner(row: &Row) -> Option<String> {
    let owners = row.object()?.metadata.owner_references.as_deref().unwrap_or_default();
    let controls = |owner: &&OwnerReference| owner.controller == Some(true);
    owners.iter().find(controls).map(|owner| owner.uid.clone())
}
