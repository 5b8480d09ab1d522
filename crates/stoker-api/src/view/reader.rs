//! What a dialect reads of other objects. Every access is noted: whoever has read something is asked again when that changes, and
//! what somebody has asked for is watched.

use std::collections::{BTreeMap, BTreeSet};

use kube_core::dynamic::DynamicObject;

use super::Root;
use super::cover::{self, Cover};
use super::rows::{Heard, Kind, ObjectName, Query, Row, Rows};
use crate::dialect::kruise::{NODE_IMAGES, NodeImageRow};

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Read {
    /// Everything that a query gives. First, so that all queries stand together in a sorted map.
    Query(Query),
    /// One object of a kind that is watched whole.
    Object(&'static Kind, ObjectName),
    /// What the object with this uid controls.
    Owned(String),
    /// How far a kind that is watched whole is known.
    Heard(&'static Kind),
}

/// What a query gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// This.
    Known(T),
    /// It is being listed for the first time: nobody knows yet.
    Unlisted,
    /// It was never listed, and cannot be: the API server has no such kind, does not let us see it, or fails.
    Unseen,
}

impl<T> Answer<T> {
    fn map<U>(self, change: impl FnOnce(T) -> U) -> Answer<U> {
        match self {
            Answer::Known(value) => Answer::Known(change(value)),
            Answer::Unlisted => Answer::Unlisted,
            Answer::Unseen => Answer::Unseen,
        }
    }
}

/// Why writes have failed, by kind and name of their objects.
pub(super) type FailedWrites = BTreeMap<(String, String), String>;

/// Reads rows, and notes what it has read.
pub struct Reader<'a> {
    rows: &'a Rows,
    cover: &'a Cover,
    noted: BTreeSet<Read>,
    failed: FailedWrites,
    problem: Option<&'a str>,
    half: bool,
    home: &'a str,
}

impl<'a> Reader<'a> {
    pub(super) fn new(rows: &'a Rows, cover: &'a Cover, home: &'a str) -> Self {
        Self { rows, cover, noted: BTreeSet::new(), failed: FailedWrites::new(), problem: None, half: false, home }
    }

    /// The same after these writes of the root have failed.
    pub(super) fn after(self, failed: FailedWrites) -> Self {
        Self { failed, ..self }
    }

    /// The same for a root whose object cannot be read, where it is so.
    pub(super) fn about(self, problem: Option<&'a str>) -> Self {
        Self { problem, ..self }
    }

    /// The same where the original controller of the dialect goes on with the jobs.
    pub(super) fn in_half(self, half: bool) -> Self {
        Self { half, ..self }
    }

    /// Whether the original controller of the dialect goes on with the jobs, and has handed over only what its agents did.
    pub fn is_half(&self) -> bool {
        self.half
    }

    /// The namespace in which Stoker is installed.
    pub fn home(&self) -> &'a str {
        self.home
    }

    /// Why the object of the root cannot be read, where that is so.
    pub fn problem(&self) -> Option<&'a str> {
        self.problem
    }

    /// Why the last write of this object by the root has failed, where it has.
    pub fn failed(&self, kind: &Kind, name: &str) -> Option<&str> {
        let id = (kind.newest().kind, name.to_owned());
        self.failed.get(&id).map(String::as_str)
    }

    /// What was read.
    pub(super) fn noted(self) -> BTreeSet<Read> {
        self.noted
    }

    /// The object that the root is.
    pub fn own(&mut self, root: &Root) -> Option<&'a DynamicObject> {
        self.one(&root.kind.kind, (root.namespace.clone(), root.name.clone()))
    }

    /// The objects of a kind that is watched whole which the object with this uid controls.
    pub fn owned(&mut self, kind: &'static Kind, uid: &str) -> Answer<Vec<&'a DynamicObject>> {
        self.noted.insert(Read::Owned(uid.to_owned()));
        self.noted.insert(Read::Heard(kind));
        self.answer(&Query::all(kind)).map(|()| self.rows.owned(kind, uid).collect())
    }

    /// The object of this name, of a kind that is watched whole.
    pub fn one(&mut self, kind: &'static Kind, name: ObjectName) -> Option<&'a DynamicObject> {
        let row = self.rows.get(&Query::all(kind), &name);
        self.noted.insert(Read::Object(kind, name));
        row?.object()
    }

    /// The same where it matters whether nobody knows of it or it is not there.
    pub fn find(&mut self, kind: &'static Kind, name: ObjectName) -> Answer<Option<&'a DynamicObject>> {
        self.noted.insert(Read::Heard(kind));
        let there = self.one(kind, name);
        self.answer(&Query::all(kind)).map(|()| there)
    }

    /// The NodeImage of a node. Not noted: the root of that node is asked again when it changes.
    pub fn node_image(&self, node: &str) -> Option<&'a NodeImageRow> {
        let name = (String::new(), node.to_owned());
        match self.rows.get(&Query::all(&NODE_IMAGES.kind), &name)? {
            Row::NodeImage(row) => Some(row),
            _ => None,
        }
    }

    /// The NodeImages that name a group, by node. Not noted: a group that a changed one names, or has named, is asked again.
    pub fn naming(&self, group: &str) -> impl Iterator<Item = (&'a str, &'a NodeImageRow)> {
        let nodes = self.rows.naming(group);
        nodes.filter_map(|node| Some((node, self.node_image(node)?)))
    }

    /// The object of this name, of a kind that is watched whole. Not noted: thousands of nodes look at one job. Whoever looks is asked again
    /// when that is gone or has ended, see [`super::View::settle`].
    pub fn peek(&self, kind: &'static Kind, name: &ObjectName) -> Option<&'a DynamicObject> {
        self.rows.get(&Query::all(kind), name)?.object()
    }

    /// The parts of an object, by name. Not noted: it is asked again when one of them comes or goes.
    pub fn parts(&self, whole: &Root) -> impl Iterator<Item = &'a str> + use<'a> {
        self.rows.parts.of(whole).map(|part| part.name.as_str())
    }

    /// Whether everything of a kind that is watched whole is known, and changes are heard.
    pub fn is_listed(&self, kind: &'static Kind) -> bool {
        self.rows.heard(&Query::all(kind)) == Heard::Listed
    }

    /// Whether everything of a kind that is watched whole was listed, and is ours to see.
    pub fn was_listed(&self, kind: &'static Kind) -> bool {
        matches!(self.answer(&Query::all(kind)), Answer::Known(()))
    }

    /// The rows of a query.
    pub fn select(&mut self, query: Query) -> Answer<impl Iterator<Item = (&'a ObjectName, &'a Row)>> {
        let serving = self.cover.serving(&query);
        self.noted.insert(Read::Query(query.clone()));
        let Some(selector) = cover::selector(&query) else { return Answer::Unseen };
        self.answer(&serving).map(|()| self.rows.selected(&query, &serving, selector))
    }

    fn answer(&self, query: &Query) -> Answer<()> {
        match self.rows.heard(query) {
            Heard::Listed | Heard::Deaf { listed: true } => Answer::Known(()),
            Heard::Unlisted => Answer::Unlisted,
            Heard::Refused | Heard::Deaf { listed: false } => Answer::Unseen,
        }
    }
}
