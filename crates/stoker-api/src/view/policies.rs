//! Policies, and the labels of namespaces where one selects by them: told to the World as they are. They are no roots, because nothing is
//! written to them.

use std::collections::BTreeSet;

use stoker_core::{Event, Restriction, World};

use super::{Heard, ObjectName, Query, Row, View};
use crate::native::{self, NAMESPACES, PREHEAT_POLICIES};

/// What the World knows of policies.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// Something has changed since it was told.
    dirty: bool,
    /// Namespaces that have changed.
    namespaces: BTreeSet<String>,
    /// Whether a policy selects namespaces by their labels.
    selects: bool,
}

impl View {
    /// The objects that say what is allowed: namespaces only where a policy goes by their labels.
    pub(super) fn policy_queries(&self) -> impl Iterator<Item = Query> {
        let namespaces = self.policies.selects.then(|| Query::all(&NAMESPACES));
        [Query::all(&PREHEAT_POLICIES)].into_iter().chain(namespaces)
    }

    /// An object has changed, or how far its kind is known where no object is named.
    pub(super) fn touch_policies(&mut self, query: &Query, name: Option<&ObjectName>) {
        let is_namespace = *query.kind == NAMESPACES;
        if !is_namespace && *query.kind != PREHEAT_POLICIES {
            return;
        }
        self.policies.dirty = true;
        self.policies.namespaces.extend(name.filter(|_| is_namespace).map(|(_, name)| name.clone()));
    }

    /// Tells the World what is allowed, or that nobody knows.
    pub(super) fn tell_policies(&mut self, world: &mut World) {
        if !std::mem::take(&mut self.policies.dirty) {
            return;
        }
        let namespaces = Query::all(&NAMESPACES);
        for name in std::mem::take(&mut self.policies.namespaces) {
            let row = self.rows.get(&namespaces, &(String::new(), name.clone())).and_then(Row::object);
            let labels = row.map(|object| object.metadata.labels.clone().unwrap_or_default());
            world.apply(Event::Namespace(name, labels));
        }
        let policies = Query::all(&PREHEAT_POLICIES);
        let heard = match self.rows.heard(&policies) {
            // Nothing is planned before it is listed for the first time.
            Heard::Unlisted => return,
            Heard::Deaf { .. } => return world.apply(Event::PoliciesUnseen(PREHEAT_POLICIES.name)),
            // There is no such kind.
            Heard::Refused => Vec::new(),
            Heard::Listed => {
                let objects = self.rows.of(&policies).filter_map(|(_, row)| row.object());
                objects.map(native::restriction).collect()
            }
        };
        let restrictions: Vec<Restriction> = heard;
        self.policies.selects = restrictions.iter().any(|restriction| restriction.namespaces.is_some());
        // What a policy allows to whom is known only with the labels.
        world.apply(match self.rows.heard(&namespaces) {
            Heard::Listed => Event::Policies(restrictions),
            _ if self.policies.selects => Event::PoliciesUnseen(NAMESPACES.name),
            _ => Event::Policies(restrictions),
        });
    }

    /// Labels of namespaces are not looked at any more.
    pub(super) fn forget_policies(&mut self, query: &Query) {
        if *query.kind == NAMESPACES {
            let gone: Vec<String> = self.rows.of(query).map(|(name, _)| name.1.clone()).collect();
            self.policies.namespaces.extend(gone);
            self.policies.dirty = true;
        }
    }
}
