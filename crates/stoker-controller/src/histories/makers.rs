//! NodeImages without a Node: whoever makes one plays the agent and writes its status, which nobody else does.

use kube::api::DynamicObject;
use proptest::prelude::*;
use serde_json::{Value, json};
use stoker_core::Node;

use super::cluster::Cluster;
use super::manager::whole;
use super::wire::{self, node_image};

/// One that never has a Node.
pub(super) const EDGE: &str = "edge-1";
/// Two of them. The second has the name of a node that may come back.
const FAKES: [&str; 2] = [EDGE, "n4"];
const LABEL: &str = "apps.kruise.io/fake-nodeimage";

/// What the maker does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Making {
    Make,
    Unmake,
    Begin,
    Succeed,
    Fail,
}

impl Making {
    pub(super) fn any() -> impl Strategy<Value = Self> {
        use Making::*;
        prop_oneof![3 => Just(Make), 1 => Just(Unmake), 2 => Just(Begin), 4 => Just(Succeed), 2 => Just(Fail)]
    }
}

/// Whether a NodeImage has no Node.
pub(super) fn is_fake(object: &DynamicObject) -> bool {
    object.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(LABEL))
}

impl Cluster {
    /// The maker of a NodeImage without a Node does something about one of its tags.
    pub(super) fn make(&mut self, fake: usize, tag: usize, making: Making) {
        let (name, now) = (FAKES[fake % FAKES.len()], self.now());
        let id = node_image(name);
        let there = self.paper.get(&id).cloned();
        let phase = match (making, &there) {
            (Making::Make, None) => {
                let metadata = json!({ "name": name, "labels": { LABEL: "", "pool": "main" } });
                let object = json!({
                    "apiVersion": "apps.kruise.io/v1beta1", "kind": "NodeImage", "metadata": metadata, "spec": {},
                });
                self.paper.create(serde_json::from_value(object).unwrap(), now).unwrap();
                return;
            }
            (Making::Unmake, Some(object)) if is_fake(object) => {
                let _ = self.paper.delete(&id, None, now);
                return;
            }
            (Making::Begin, _) => "Pulling",
            (Making::Succeed, _) => "Succeeded",
            (Making::Fail, _) => "Failed",
            (Making::Make | Making::Unmake, _) => return,
        };
        let Some(object) = there.filter(is_fake) else { return };
        let open = wire::tags(&object).into_iter();
        let open: Vec<_> =
            open.filter(|(image, tag)| !wire::said(&object, image, tag).is_some_and(wire::is_done)).collect();
        let Some((image, tag)) = open.get(tag % open.len().max(1)) else { return };
        let mut entry =
            json!({ "tag": tag["tag"], "version": tag["version"], "phase": phase, "startTime": whole(now) });
        if wire::is_done(&entry) {
            entry["completionTime"] = json!(whole(now));
        }
        entry.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        let mut entries = wire::field(&object, "/status/imageStatuses")[image.as_str()]["tags"].as_array().cloned();
        let entries = entries.get_or_insert_default();
        entries.retain(|other| other["tag"] != tag["tag"]);
        entries.push(entry);
        let status =
            json!({ "desired": wire::tags(&object).len(), "imageStatuses": { image.as_str(): { "tags": entries } } });
        self.paper.patch(&id, &json!({ "status": status }), true).unwrap();
    }

    /// Every maker answers everything.
    pub(super) fn make_all(&mut self) {
        for (fake, name) in FAKES.iter().enumerate() {
            let open = |cluster: &Self| {
                let object = cluster.paper.get(&node_image(name)).filter(|object| is_fake(object));
                object.map_or(0, |object| {
                    let tags = wire::tags(object).into_iter();
                    tags.filter(|(image, tag)| !wire::said(object, image, tag).is_some_and(wire::is_done)).count()
                })
            };
            while open(self) > 0 {
                self.make(fake, 0, Making::Succeed);
            }
        }
    }

    /// The nodes of the cluster, and those without a Node where they take part in jobs.
    pub(super) fn nodes(&self) -> Vec<Node> {
        let real = self.paper.of_kind("Node").map(|node| wire::read::<stoker_api::node::PlainNode>(node).into_core());
        let mut nodes: Vec<Node> = real.collect();
        for object in self.paper.of_kind("NodeImage").filter(|object| is_fake(object) && self.manager.is_none()) {
            let name = object.metadata.name.clone().unwrap_or_default();
            if !nodes.iter().any(|node| *node.name == *name) {
                let labels = object.metadata.labels.clone().unwrap_or_default();
                nodes.push(Node {
                    name: name.as_str().into(),
                    labels,
                    ready: true,
                    ready_changed: None,
                    cordoned: false,
                    foreign: true,
                });
            }
        }
        nodes
    }

    /// What the maker of a NodeImage without a Node says of an image.
    pub(super) fn made_of(&self, node: &str, image: &str) -> Option<Value> {
        let object = self.paper.get(&node_image(node)).filter(|object| is_fake(object))?;
        let mut tags = wire::tags(object).into_iter();
        let (image, tag) =
            tags.find(|(of, tag)| format!("{of}:{}", tag["tag"].as_str().unwrap_or_default()) == image)?;
        wire::said(object, image, tag).cloned()
    }
}
