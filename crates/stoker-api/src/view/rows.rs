//! Objects as the View holds them: one table for each query, each object cut down to what its kind keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_core::discovery::ApiResource;
use kube_core::dynamic::DynamicObject;
use stoker_core::select::Selector;

use super::parts::Parts;
use crate::dialect::kruise::{Interned, NodeImageRow, RevisionRow};
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

/// A list that somebody reads: all objects of a kind, or those of a namespace that labels select.
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
    /// What is looked at of a ReplicaSet or a ControllerRevision.
    Revision(Box<RevisionRow>),
    /// What is looked at of a NodeImage.
    NodeImage(Box<NodeImageRow>),
    /// Nothing: the object is of no interest, as if it were not there.
    Nothing,
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
            Row::Pod(_) | Row::Lease(_) | Row::Webhook(_) | Row::Revision(_) | Row::NodeImage(_) | Row::Nothing => None,
        }
    }
}

/// Labels of an object, one in a line. There may be many objects: one text takes a third of the memory of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Labels(Box<str>);

impl Labels {
    fn of(labels: Option<&BTreeMap<String, String>>) -> Self {
        let lines = labels.into_iter().flatten().map(|(key, value)| format!("{key}={value}\n"));
        Self(lines.collect::<String>().into())
    }

    /// Whether they are selected.
    pub(super) fn are(&self, selector: &Selector) -> bool {
        selector.holds_for(|key| self.0.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')))
    }
}

/// A row, and the labels of its object where the API server has not selected it by them and somebody may.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Kept {
    pub(super) row: Row,
    pub(super) labels: Option<Labels>,
}

impl Kept {
    /// What is kept of an object of a query; nothing where it is of no interest.
    pub(super) fn of(query: &Query, object: DynamicObject) -> Option<Self> {
        let labels = query.labels.is_empty().then(|| Labels::of(object.metadata.labels.as_ref()));
        let row = (query.kind.keep)(object);
        let is_selected = matches!(row, Row::Pod(_) | Row::Revision(_));
        (row != Row::Nothing).then(|| Self { row, labels: labels.filter(|_| is_selected) })
    }
}

/// An object of a query, cut down to what the View keeps of it, and which state of which object that is. Whoever reads objects makes it at
/// once: as JSON values a NodeImage with 20 tags takes tens of kilobytes, and many objects may wait for the controller's loop.
#[derive(Clone, Debug)]
pub struct SeenRow {
    /// The namespace and name of the object.
    pub name: ObjectName,
    /// The uid of the object.
    pub uid: String,
    /// The version of the object; later ones are greater.
    pub version: u64,
    /// None where the object is of no interest.
    pub(super) kept: Option<Kept>,
}

impl SeenRow {
    /// What is kept of an object of this query.
    pub fn of(query: &Query, object: DynamicObject) -> Self {
        let meta = &object.metadata;
        let name = (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
        let uid = meta.uid.clone().unwrap_or_default();
        let version = meta.resource_version.as_ref().and_then(|version| version.parse().ok()).unwrap_or_default();
        Self { name, uid, version, kept: Kept::of(query, object) }
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
    rows: BTreeMap<ObjectName, Kept>,
    heard: Heard,
}

/// All tables.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    tables: BTreeMap<Query, Table>,
    /// By the uid of the object that controls them: those that are kept whole.
    owned: BTreeMap<String, BTreeSet<(Query, ObjectName)>>,
    /// What many rows have in common.
    interned: Interned,
    /// By group: the nodes whose objects name it.
    naming: BTreeMap<String, BTreeSet<String>>,
    /// Objects about one node each.
    pub(super) parts: Parts,
}

impl Rows {
    /// The nodes whose objects name a group.
    pub(super) fn naming(&self, group: &str) -> impl Iterator<Item = &str> {
        self.naming.get(group).into_iter().flatten().map(String::as_str)
    }

    /// All groups that objects of nodes name.
    pub(super) fn groups(&self) -> impl Iterator<Item = &str> {
        self.naming.keys().map(String::as_str)
    }

    /// The object of a node names a group from now on, or does not any more.
    pub(super) fn name_group(&mut self, group: &str, node: &str, names: bool) {
        if names {
            self.naming.entry(group.to_owned()).or_default().insert(node.to_owned());
        } else if let Some(nodes) = self.naming.get_mut(group) {
            nodes.remove(node);
            if nodes.is_empty() {
                self.naming.remove(group);
            }
        }
    }

    /// One row of a query.
    pub(super) fn get(&self, query: &Query, name: &ObjectName) -> Option<&Row> {
        Some(&self.tables.get(query)?.rows.get(name)?.row)
    }

    /// The labels of an object of a query, where they are kept.
    pub(super) fn labels(&self, query: &Query, name: &ObjectName) -> Option<&Labels> {
        self.tables.get(query)?.rows.get(name)?.labels.as_ref()
    }

    /// All rows of a query, by name.
    pub(super) fn of<'a>(&'a self, query: &Query) -> impl Iterator<Item = (&'a ObjectName, &'a Row)> + use<'a> {
        self.tables.get(query).into_iter().flat_map(|table| &table.rows).map(|(name, kept)| (name, &kept.row))
    }

    /// The rows of a query by name, from the table of the one that serves it.
    pub(super) fn selected<'a>(
        &'a self,
        query: &Query,
        serving: &Query,
        selector: Selector,
    ) -> impl Iterator<Item = (&'a ObjectName, &'a Row)> + use<'a> {
        let namespace = query.namespace.clone().unwrap_or_default();
        let is_all = query.namespace.is_none() || query == serving && !query.labels.is_empty();
        let table = self.tables.get(serving).into_iter();
        let rows = table.flat_map(move |table| table.rows.range((namespace.clone(), String::new())..));
        let namespace = query.namespace.clone();
        let rows = rows.take_while(move |(name, _)| namespace.as_ref().is_none_or(|namespace| name.0 == *namespace));
        let rows =
            rows.filter(move |(_, kept)| is_all || kept.labels.as_ref().is_some_and(|labels| labels.are(&selector)));
        rows.map(|(name, kept)| (name, &kept.row))
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
    pub(super) fn set(&mut self, query: &Query, name: &ObjectName, mut row: Option<Kept>) -> Option<Vec<String>> {
        if let Some(Kept { row: Row::NodeImage(row), .. }) = &mut row {
            self.interned.intern(row);
        }
        let table = self.tables.entry(query.clone()).or_default();
        if table.rows.get(name) == row.as_ref() {
            return None;
        }
        let owner = |kept: &Kept| owner(&kept.row);
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

/// What controls an object. An API server lets an object have one such owner.
pub fn controller_of(object: &DynamicObject) -> Option<&OwnerReference> {
    object.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Whether this very object controls the other one, and not one of the same name. A reference to an object of another namespace is none.
pub fn controls(object: &DynamicObject, other: &DynamicObject) -> bool {
    let is_owner = |owner: &OwnerReference| object.metadata.uid.as_deref() == Some(owner.uid.as_str());
    object.metadata.namespace == other.metadata.namespace && controller_of(other).is_some_and(is_owner)
}

/// The uid of the object that controls this one.
fn owner(row: &Row) -> Option<String> {
    controller_of(row.object()?).map(|owner| owner.uid.clone())
}
