//! What a dialect reads of other objects. Every access is noted: whoever has read something is asked again when that changes, and
//! what somebody has asked for is watched.

use std::collections::BTreeSet;

use kube_core::dynamic::DynamicObject;

use super::Root;
use super::rows::{Heard, Kind, ObjectName, Query, Row, Rows};

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
    /// It was never listed: nobody knows yet.
    Unlisted,
    /// The API server has no such kind, or does not let us see it.
    Refused,
}

impl<T> Answer<T> {
    fn map<U>(self, change: impl FnOnce(T) -> U) -> Answer<U> {
        match self {
            Answer::Known(value) => Answer::Known(change(value)),
            Answer::Unlisted => Answer::Unlisted,
            Answer::Refused => Answer::Refused,
        }
    }
}

/// Reads rows, and notes what it has read.
pub struct Reader<'a> {
    rows: &'a Rows,
    noted: BTreeSet<Read>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(rows: &'a Rows) -> Self {
        Self { rows, noted: BTreeSet::new() }
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

    /// The rows of a query.
    pub fn select(&mut self, query: Query) -> Answer<impl Iterator<Item = (&'a ObjectName, &'a Row)>> {
        self.noted.insert(Read::Query(query.clone()));
        self.answer(&query).map(|()| self.rows.of(&query))
    }

    fn answer(&self, query: &Query) -> Answer<()> {
        match self.rows.heard(query) {
            Heard::Listed | Heard::Deaf { listed: true } => Answer::Known(()),
            Heard::Unlisted | Heard::Deaf { listed: false } => Answer::Unlisted,
            Heard::Refused => Answer::Refused,
        }
    }
}
