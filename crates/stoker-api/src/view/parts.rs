//! Roots that are objects about one node each, of which there may be thousands: parts of what other objects want, and such as stand for
//! themselves. They do not note that they have read what they are parts of, and that does not note its parts: what makes them due is here.

use std::collections::{BTreeMap, BTreeSet};

use kube_core::dynamic::DynamicObject;

use super::{ObjectName, Query, Root, View};
use crate::dialect::{self, JobKind, Place, RootsOf};

/// By which such objects are found.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    on_node: BTreeMap<String, BTreeSet<Root>>,
    of: BTreeMap<Root, BTreeSet<Root>>,
}

impl Parts {
    /// The objects about a node.
    fn on_node(&self, node: &str) -> impl Iterator<Item = &Root> {
        self.on_node.get(node).into_iter().flatten()
    }

    /// The parts of an object.
    pub(super) fn of<'a>(&'a self, whole: &Root) -> impl Iterator<Item = &'a Root> + use<'a> {
        self.of.get(whole).into_iter().flatten()
    }

    fn add(&mut self, part: &Root, place: Place, whole: Option<Root>) {
        self.on_node.entry(place.node).or_default().insert(part.clone());
        if let Some(whole) = whole {
            self.of.entry(whole).or_default().insert(part.clone());
        }
    }

    fn remove(&mut self, part: &Root, place: &Place, whole: Option<&Root>) {
        take(&mut self.on_node, &place.node, part);
        if let Some(whole) = whole {
            take(&mut self.of, whole, part);
        }
    }
}

/// Takes an entry out of a set of a map; no set stays empty.
fn take<K: Ord>(map: &mut BTreeMap<K, BTreeSet<Root>>, key: &K, part: &Root) {
    if let Some(set) = map.get_mut(key) {
        set.remove(part);
        if set.is_empty() {
            map.remove(key);
        }
    }
}

/// Which object of its name one is, and whether it is being deleted.
#[derive(Clone, Debug, PartialEq)]
struct Identity {
    uid: Option<String>,
    going: bool,
}

impl Identity {
    fn of(object: &DynamicObject) -> Self {
        Self { uid: object.metadata.uid.clone(), going: object.metadata.deletion_timestamp.is_some() }
    }
}

/// What others go by of one object: of its status nobody does.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Belonging {
    /// Where it belongs, for one that may be a part.
    part: Option<(Identity, Place)>,
    /// Its generation, for one that may have parts.
    whole: Option<(Identity, Option<i64>)>,
}

/// A kind of objects that may be parts, with where such an object belongs and the kind of what it is a part of.
type PartKind = (&'static JobKind, fn(&DynamicObject) -> Place, &'static JobKind);

/// The kind of an object that may be a part.
fn kind_of_parts(query: &Query) -> Option<PartKind> {
    dialect::kinds_of_nodes().find_map(|kind| match kind.roots {
        RootsOf::ObjectsOnNodes { place, wholes } if *query == Query::all(&kind.kind) => Some((kind, place, wholes)),
        _ => None,
    })
}

/// The kind of an object that may have parts.
fn kind_of_wholes(query: &Query) -> Option<&'static JobKind> {
    dialect::kinds_of_nodes().find_map(|kind| match kind.roots {
        RootsOf::ObjectsOnNodes { wholes, .. } if *query == Query::all(&wholes.kind) => Some(wholes),
        _ => None,
    })
}

fn root(kind: &'static JobKind, name: &ObjectName) -> Root {
    Root { kind, namespace: name.0.clone(), name: name.1.clone() }
}

impl View {
    /// What others go by of the object of this name.
    pub(super) fn belonging(&self, query: &Query, name: &ObjectName) -> Belonging {
        let object = || self.rows.get(query, name)?.object();
        Belonging {
            part: kind_of_parts(query).and_then(|(_, place, _)| Some((Identity::of(object()?), place(object()?)))),
            whole: kind_of_wholes(query).and_then(|_| Some((Identity::of(object()?), object()?.metadata.generation))),
        }
    }

    /// An object has changed of which others went by this. An edit of an object is one for its parts, and one that comes or goes is looked at by
    /// what it is a part of.
    pub(super) fn regard(&mut self, query: &Query, name: &ObjectName, before: Belonging) {
        let now = self.belonging(query, name);
        if now == before {
            return;
        }
        if let Some((kind, _, wholes)) = kind_of_parts(query) {
            let (part, whole_of) =
                (root(kind, name), |place: &Place| place.whole.as_ref().map(|name| root(wholes, name)));
            if let Some((_, place)) = &before.part {
                let whole = whole_of(place);
                self.rows.parts.remove(&part, place, whole.as_ref());
                whole.into_iter().for_each(|whole| self.touch_root(whole));
            }
            if let Some((_, place)) = now.part {
                let whole = whole_of(&place);
                whole.iter().for_each(|whole| self.touch_root(whole.clone()));
                self.rows.parts.add(&part, place, whole);
            }
        }
        if let Some(kind) = kind_of_wholes(query) {
            let parts: Vec<Root> = self.rows.parts.of(&root(kind, name)).cloned().collect();
            parts.into_iter().for_each(|part| self.touch_root(part));
        }
    }

    /// All objects of a kind are known now. Until then none of those that they are parts of, or that are parts of them, could be missed.
    pub(super) fn touch_kin(&mut self, query: &Query) {
        let wholes = kind_of_parts(query).map(|(.., wholes)| wholes);
        let is_kin = |root: &&Root| match root.kind.roots {
            RootsOf::ObjectsOnNodes { wholes, .. } => *query == Query::all(&wholes.kind),
            _ => Some(root.kind) == wholes,
        };
        let roots: Vec<Root> = self.roots.keys().filter(is_kin).cloned().collect();
        self.due.extend(roots);
    }

    /// Something of a node has changed: all objects about it are looked at.
    pub(super) fn touch_parts_on(&mut self, node: &str) {
        let parts: Vec<Root> = self.rows.parts.on_node(node).cloned().collect();
        parts.into_iter().for_each(|part| self.touch_root(part));
    }
}
