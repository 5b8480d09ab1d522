//! Roots that are nodes: objects of other projects of which there is one for each node, and what these name. There may be thousands, so they
//! note nothing of what they read: what makes them due is here.

use std::collections::BTreeMap;

use jiff::Timestamp;
use stoker_core::World;

use super::rows::Kept;
use super::{Heard, ObjectName, Query, Root, Row, View};
use crate::dialect::kruise::IMAGE_PULL_JOBS;
use crate::dialect::{self, JobKind, RootsOf};
use crate::sign::HandOver;

impl View {
    /// The groups that the object of this name names, and from when on it counts in each.
    pub(super) fn groups(&self, query: &Query, name: &ObjectName) -> BTreeMap<String, Timestamp> {
        let kind = dialect::node_kinds().find(|kind| kind.kind == *query.kind);
        match (kind, kind.map(|kind| kind.roots), self.rows.get(query, name)) {
            (Some(kind), Some(RootsOf::Nodes { named, .. }), Some(row)) => named(row, self.is_half(kind)),
            _ => BTreeMap::new(),
        }
    }

    /// The object of a node, which has named these groups, has changed: those are derived in which it counts otherwise than before. Most
    /// changes are of a status, and a group may have thousands of nodes.
    pub(super) fn regroup(&mut self, query: &Query, name: &ObjectName, before: &BTreeMap<String, Timestamp>) {
        let now = self.groups(query, name);
        let Some(kind) = dialect::node_kinds().find(|kind| kind.kind == *query.kind) else { return };
        let RootsOf::Nodes { groups, .. } = kind.roots else { return };
        for group in before.keys().chain(now.keys()).filter(|group| before.get(*group) != now.get(*group)) {
            self.rows.name_group(group, &name.1, now.contains_key(group));
            self.dirty.insert(Root { kind: groups, namespace: String::new(), name: group.clone() });
        }
    }

    /// All roots that objects of nodes of a dialect name.
    pub(super) fn all_groups(&self, dialect: &str) -> Vec<Root> {
        let kinds = dialect::node_kinds().filter(|kind| kind.dialect == dialect);
        let kinds = kinds.filter_map(|kind| match kind.roots {
            RootsOf::Nodes { groups, .. } => Some(groups),
            _ => None,
        });
        let roots = kinds.flat_map(|kind| {
            self.rows.groups().map(move |group| Root { kind, namespace: String::new(), name: group.to_owned() })
        });
        roots.collect()
    }

    /// Notes an ImagePullJob that goes or ends: objects of nodes that name it are looked at, see [`View::settle`]. Of these nobody notes what
    /// they read: there are thousands.
    pub(super) fn note_end(&mut self, query: &Query, name: &ObjectName, row: Option<&Kept>) {
        if *query != Query::all(&IMAGE_PULL_JOBS.kind) {
            return;
        }
        // Whether it has ended and is going, and which object it is.
        let state = |row: Option<&Row>| {
            let object = row.and_then(Row::object)?;
            let ended = object.data.pointer("/status/completionTime").is_some_and(|time| !time.is_null());
            Some((ended, object.metadata.deletion_timestamp.is_some(), object.metadata.uid.clone()))
        };
        let (before, now) = (state(self.rows.get(query, name)), state(row.map(|kept| &kept.row)));
        // An edit of one that runs is heard of by way of its orders.
        if before.is_some() && before != now {
            self.over.insert(name.clone());
        }
    }

    /// The nodes whose objects name ImagePullJobs that are over are looked at.
    pub(super) fn look_at_ends(&mut self) {
        let over = std::mem::take(&mut self.over);
        if over.is_empty() {
            return;
        }
        for kind in dialect::node_kinds() {
            let rows = self.rows.of(&Query::all(&kind.kind));
            let named = rows.filter(|(_, row)| matches!(row, Row::NodeImage(row) if row.names_any(&over)));
            let roots = named.map(|(name, _)| Root { kind, namespace: String::new(), name: name.1.clone() });
            let roots: Vec<Root> = roots.filter(|root| self.roots.contains_key(root)).collect();
            self.due.extend(roots);
        }
    }

    /// Something of a node has changed: its Node, its orders, its reports, or where a job stands there. Its Node is there, or is not.
    pub fn touch_node(&mut self, node: &str, there: bool) {
        self.touch_parts_on(node);
        let kinds = dialect::node_kinds().filter(|kind| self.is_listed(kind));
        let roots = kinds.map(|kind| Root { kind, namespace: String::new(), name: node.to_owned() });
        for root in roots.collect::<Vec<Root>>() {
            if there {
                self.roots.entry(root.clone()).or_default();
                self.due.insert(root);
            } else if self.roots.contains_key(&root) {
                self.dirty.insert(root);
            }
        }
    }

    /// Whether the objects of a kind were listed.
    pub(super) fn is_listed(&self, kind: &'static JobKind) -> bool {
        matches!(self.rows.heard(&Query::all(&kind.kind)), Heard::Listed | Heard::Deaf { listed: true })
    }

    /// Whether the original controller of this kind goes on with the jobs.
    pub(super) fn is_half(&self, kind: &JobKind) -> bool {
        self.foreign.handed_over.get(kind.dialect) == Some(&HandOver::Half)
    }

    /// Tells the World of a node of somebody else, where the root is one; of none where its objects are left alone.
    pub(super) fn tell_of_foreign(&self, root: &Root, world: &mut World) {
        let RootsOf::Nodes { foreign, .. } = root.kind.roots else { return };
        let dialect = root.kind.dialect;
        if self.foreign.unknown.contains(dialect) {
            return;
        }
        let theirs = self.left_alone.contains_key(dialect) || self.is_half(root.kind);
        let name = (root.namespace.clone(), root.name.clone());
        let row = self.rows.get(&Query::all(&root.kind.kind), &name).filter(|_| !theirs);
        let events = foreign(&root.name, row, world);
        events.into_iter().for_each(|event| world.apply(event));
    }
}
