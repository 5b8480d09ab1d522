//! Policies that come, change and go, and what holds of those that the controller knows.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};
use stoker_core::{JobId, World};
use stoker_testbed::paper::{Paper, PaperId};

use super::cluster::Cluster;
use super::laws::{Asked, all_nodes};
use super::users::NAMESPACES;

pub(super) const POLICIES: [&str; 2] = ["p", "q"];

/// The namespaces of jobs, of which the first has a label.
pub(super) fn namespaces(paper: &mut Paper, now: Timestamp) {
    for (name, team) in NAMESPACES.into_iter().zip(["a", "b"]) {
        let metadata = json!({ "name": name, "labels": { "team": team } });
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata });
        paper.create(serde_json::from_value(namespace).unwrap(), now).unwrap();
    }
}

/// What a policy says; none of the others means that there is none.
fn spec(content: usize) -> Option<Value> {
    Some(match content {
        0 => json!({ "images": ["reg.test/web"] }),
        1 => json!({ "namespaces": { "matchLabels": { "team": "a" } }, "images": ["reg.test/db"] }),
        2 => json!({ "nodes": { "matchLabels": { "pool": "main" } } }),
        3 => json!({ "max": { "jobs": 1 } }),
        4 => json!({ "max": { "nodes": 2, "bandwidth": "1Mi" } }),
        5 => json!({ "images": 5 }),
        _ => return None,
    })
}

impl Cluster {
    pub(super) fn policy(&mut self, policy: usize, content: usize) {
        let (name, now) = (POLICIES[policy % POLICIES.len()], self.now());
        let id = PaperId::new("PreheatPolicy", "", name);
        let _ = self.paper.delete(&id, None, now);
        if let Some(spec) = spec(content) {
            let metadata = json!({ "name": name });
            let object = json!({ "apiVersion": "stoker.dev/v1alpha1", "kind": "PreheatPolicy", "metadata": metadata, "spec": spec });
            self.paper.create(serde_json::from_value(object).unwrap(), now).unwrap();
        }
    }
}

/// Nothing is ordered anew for jobs alone that the World knows not to be allowed.
pub(super) fn nothing_new_for_held_jobs(before: &Asked, world: &World) -> Result<(), String> {
    for node in all_nodes() {
        for (key, order) in world.orders(node).into_iter().flatten() {
            let new = before.get(&(node, key)).map(|order| order.asked) != Some(order.asked) && !order.hold;
            let off_limits = |id: &&JobId| {
                let bounds = world.job(id).map(|job| &job.bounds);
                let there = world.node(node);
                bounds.is_some_and(|bounds| bounds.refusal.is_some() || there.is_some_and(|there| !bounds.allow(there)))
            };
            let held: BTreeSet<&JobId> = order.jobs.iter().filter(off_limits).collect();
            if new && held.len() == order.jobs.len() {
                return Err(format!("{node} is asked for {key} by {held:?}, which are not allowed"));
            }
        }
    }
    Ok(())
}
