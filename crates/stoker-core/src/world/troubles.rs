//! What keeps a node from getting what was planned for it: orders that the API server refuses, and logins for which its object has no
//! room. Whoever writes the object says so here, and the jobs are told.

use std::collections::{BTreeMap, BTreeSet};

use super::World;
use crate::model::{Job, Key, LoginId, NodeName, Offer};
use crate::rollup::RefusedOrder;
use crate::select::selects;

/// What could not be written for one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTroubles {
    /// Orders that the API server refuses because of what is in them, and its words.
    pub refused: BTreeMap<Key, String>,
    /// Logins that orders name and that were left out of the object.
    pub left_out: BTreeSet<LoginId>,
}

impl World {
    /// This could not be written for a node; all else of it could.
    pub fn set_troubles(&mut self, node: &str, troubles: NodeTroubles) {
        let known = self.troubles.get(node).cloned().unwrap_or_default();
        if known == troubles {
            return;
        }
        match troubles == NodeTroubles::default() {
            true => drop(self.troubles.remove(node)),
            false => drop(self.troubles.insert(node.into(), troubles)),
        }
        if let Some(&at) = self.by_name.get(node) {
            self.touch_node(at);
        }
    }

    /// What could not be written for a node.
    pub fn troubles(&self, node: &str) -> NodeTroubles {
        self.troubles.get(node).cloned().unwrap_or_default()
    }

    /// The nodes of a job with troubles, by name.
    fn troubled_nodes<'a>(&'a self, job: &'a Job) -> impl Iterator<Item = (&'a NodeName, &'a NodeTroubles)> + 'a {
        let node = |name: &NodeName| self.slots.get(*self.by_name.get(name)?)?.node.as_ref();
        self.troubles.iter().filter(move |(name, _)| node(name).is_some_and(|node| selects(job, node)))
    }

    /// The orders for images of a job that the API server refuses, one for each image.
    pub(super) fn refused_orders(&self, job: &Job) -> Vec<RefusedOrder> {
        let mut all: BTreeMap<&str, RefusedOrder> = BTreeMap::new();
        for (node, troubles) in self.troubled_nodes(job) {
            for image in &job.images {
                let Ok(reference) = &image.reference else { continue };
                let keys = [reference.key(), reference.key().question()];
                let Some(why) = keys.iter().find_map(|key| troubles.refused.get(key)) else { continue };
                let first =
                    || RefusedOrder { image: image.written.clone(), node: node.clone(), nodes: 0, why: why.clone() };
                all.entry(&image.written).or_insert_with(first).nodes += 1;
            }
        }
        all.into_values().collect()
    }

    /// The first node of a job that one of these logins was left out of.
    pub(super) fn left_out_of<'a>(&'a self, job: &'a Job, offers: &[Offer]) -> Option<&'a NodeName> {
        let lacks = |troubles: &NodeTroubles| offers.iter().any(|offer| troubles.left_out.contains(&offer.id));
        self.troubled_nodes(job).find(|(_, troubles)| lacks(troubles)).map(|(node, _)| node)
    }
}
