//! NodeImages: one for each node, where people see what the node pulls for ImagePullJobs, and where they ask one node for an image.
//!
//! In: a NodeImage, its Node, and in the World the orders and reports of that node. Out: the NodeImage that should be there. Tags that no
//! ImagePullJob owns were written by hand: all nodes with the same wish make one job that stands as long as one of them wants it
//! ([`people`]). All writes are for the one version of the NodeImage that was read, because lists are replaced as a whole: tags, owners and
//! entries of the status that are not ours are written back as they were ([`row`]).
//!
//! Where upstream's manager keeps ImagePullJobs and NodeImages for itself (half a hand-over), every tag counts as written by hand, and
//! only the status is written.

mod fake;
mod people;
mod row;
mod said;
mod tags;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kube_core::discovery::ApiResource;
use kube_core::dynamic::DynamicObject;
use serde_json::{Map, Value, json};
use stoker_core::model::after;
use stoker_core::{Node, World};

use super::{DIALECT, NodeImage, versions};
use crate::dialect::{JobKind, RootsOf, Summary};
use crate::view::{Kind, Projected, Reader, Root, Row};
use crate::write::{Target, Write};
pub use row::{Interned, NodeImageRow};

/// The label of a NodeImage that has no Node: whoever made it plays the agent and writes its status.
pub(super) const FAKE: &str = "apps.kruise.io/fake-nodeimage";
/// Nodes with this label have no images.
const VIRTUAL: (&str, &str) = ("type", "virtual-kubelet");
/// A node is made a NodeImage when it was Ready for so long, as upstream does.
const READY_FOR: Duration = Duration::from_secs(30);

/// NodeImages.
pub static NODE_IMAGES: JobKind = JobKind {
    kind: Kind { name: "NodeImage", versions: || versions::<NodeImage>().into(), keep: row::keep, fields: None },
    dialect: DIALECT,
    namespaced: false,
    verbs: &["create", "delete", "patch"],
    made_of: None,
    roots: RootsOf::Nodes { groups: &TAG_GROUPS, named: groups, foreign: fake::facts },
    in_half: true,
    derive: |_, _| Ok(Vec::new()),
    project,
    summary: |_| Summary::default(),
};

/// Tags that people wrote, the same on some nodes. They are no objects: NodeImages name them.
pub static TAG_GROUPS: JobKind = JobKind {
    kind: Kind {
        name: "NodeImageTags",
        versions: || versions::<NodeImage>().into(),
        keep: |_| Row::Nothing,
        fields: None,
    },
    dialect: DIALECT,
    namespaced: false,
    verbs: &[],
    made_of: None,
    roots: RootsOf::Groups,
    in_half: true,
    derive: people::derive,
    project: |_, _, _, _| Projected::default(),
    summary: |_| Summary::default(),
};

/// The groups of tags that a NodeImage names.
fn groups(row: &Row, half: bool) -> BTreeMap<String, Timestamp> {
    match row {
        Row::NodeImage(row) => {
            people::wishes(row, half).map(|tag| (tag.spec.group.clone(), people::since(row, tag))).collect()
        }
        _ => BTreeMap::new(),
    }
}

/// What a NodeImage is looked at with.
#[derive(Clone, Copy)]
struct Sight<'a> {
    /// The name of the node.
    node: &'a str,
    world: &'a World,
    now: Timestamp,
    /// Upstream's manager writes the spec.
    half: bool,
}

/// What a node asks to be written about its NodeImage.
fn project(root: &Root, reader: &mut Reader<'_>, world: &World, now: Timestamp) -> Projected {
    let sight = Sight { node: &root.name, world, now, half: reader.is_half() };
    let node = world.node(&root.name).filter(|node| !node.foreign);
    match (reader.node_image(&root.name), node) {
        (None, Some(node)) if !sight.half => make(node, sight, reader),
        (None, _) => Projected::default(),
        (Some(row), _) if row.going => Projected::default(),
        (Some(row), None) if row.fake.is_none() => {
            let gone = Write::Delete(target(row.is_older, &root.name), Some(row.uid.to_string()));
            let writes = if sight.half { Vec::new() } else { vec![gone] };
            writes.into()
        }
        (Some(row), node) => keep(row, node, sight, reader),
    }
}

/// The NodeImage of a node that has none.
fn make(node: &Node, sight: Sight<'_>, reader: &Reader<'_>) -> Projected {
    let is_virtual = node.labels.get(VIRTUAL.0).is_some_and(|value| value == VIRTUAL.1);
    // One that is not ours to see may be there.
    if !node.ready || is_virtual || !reader.was_listed(&NODE_IMAGES.kind) {
        return Projected::default();
    }
    let since = node.ready_changed.filter(|since| *since <= sight.now);
    let ready = since.map(|since| after(since, READY_FOR)).filter(|at| *at > sight.now);
    if ready.is_some() {
        return Projected { writes: Vec::new(), wake: ready };
    }
    let target = target(false, sight.node);
    let changes = tags::changes(&NodeImageRow::default(), sight, reader);
    let images: Map<String, Value> = changes.images.into_iter().filter(|(_, image)| !image.is_null()).collect();
    let object = json!({
        "apiVersion": target.resource.api_version,
        "kind": target.resource.kind,
        "metadata": { "name": sight.node, "labels": own_labels(node) },
        "spec": { "images": images },
    });
    vec![Write::Create(target, object)].into()
}

/// The changes of a NodeImage that is there: of its labels and tags, or else of its status. One at a time: each makes another version. Where a
/// write has failed, both are tried: an API server that refuses the tags still takes the status.
fn keep(row: &NodeImageRow, node: Option<&Node>, sight: Sight<'_>, reader: &Reader<'_>) -> Projected {
    let (metadata, mut spec) = (json!({ "uid": *row.uid, "resourceVersion": *row.version }), None);
    let changes = if sight.half { tags::Changes::default() } else { tags::changes(row, sight, reader) };
    let labels =
        node.filter(|node| !sight.half && row.labels != row::hash(&own_labels(node))).map(|node| labels(row, node));
    if labels.is_some() || !changes.images.is_empty() {
        let (mut patch, mut metadata) = (Map::new(), metadata.clone());
        if let (Some(labels), Some(metadata)) = (labels, metadata.as_object_mut()) {
            metadata.insert("labels".into(), labels);
        }
        patch.insert("metadata".into(), metadata);
        if !changes.images.is_empty() {
            patch.insert("spec".into(), json!({ "images": changes.images }));
        }
        spec = Some(Write::Guarded(target(row.is_older, sight.node), Value::Object(patch)));
    }
    let has_failed = reader.failed(&NODE_IMAGES.kind, sight.node).is_some();
    if let Some(spec) = spec.take_if(|_| !has_failed) {
        return Projected { writes: vec![spec], wake: changes.wake };
    }
    // Whoever made one without a Node writes its status.
    if row.fake.is_some() {
        return Projected { writes: spec.into_iter().collect(), wake: changes.wake };
    }
    let said = said::status(row, sight, reader);
    let wake = changes.wake.into_iter().chain(said.wake).min();
    let mut writes: Vec<Write> = spec.into_iter().chain(said.events).collect();
    writes.extend(said.status.map(|status| {
        let patch = json!({ "metadata": metadata, "status": status });
        Write::GuardedStatus(target(row.is_older, sight.node), patch)
    }));
    Projected { writes, wake }
}

/// The labels of the node instead of those that the NodeImage has.
fn labels(row: &NodeImageRow, node: &Node) -> Value {
    let own = own_labels(node);
    let gone = row.label_keys.lines().filter(|key| !own.contains_key(*key));
    let gone = gone.map(|key| (key.to_owned(), Value::Null)).collect::<Vec<_>>();
    Value::Object(gone.into_iter().chain(own.into_iter().map(|(key, value)| (key, json!(value)))).collect())
}

/// The labels of a node that its NodeImage has, too. The label of NodeImages without a Node is none of them: a kubelet that gave it to its Node
/// would have a NodeImage that nobody reports to and that outlives the node.
fn own_labels(node: &Node) -> BTreeMap<String, String> {
    let own = node.labels.iter().filter(|(key, _)| *key != FAKE);
    own.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The tags of a NodeImage whose present version has failed, as jobs write these images, each with its message.
pub fn failed_tags(object: &DynamicObject) -> Vec<(String, String)> {
    let Row::NodeImage(row) = row::keep(object.clone()) else { return Vec::new() };
    let failed = row.tags.iter().filter_map(|tag| {
        let status = row.status(tag).filter(|status| status.phase == "Failed")?;
        Some((tag.spec.written(), status.message.unwrap_or_default()))
    });
    failed.collect()
}

fn resource(is_older: bool) -> ApiResource {
    let [newest, older] = versions::<NodeImage>();
    if is_older { older } else { newest }
}

fn target(is_older: bool, name: &str) -> Target {
    Target { resource: resource(is_older), namespace: None, name: name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_does_not_hand_on_the_label_of_node_images_without_a_node() {
        let labels = [("zone", "a"), (FAKE, "true")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let node = Node {
            name: "n1".into(),
            labels: labels.into(),
            ready: true,
            ready_changed: None,
            cordoned: false,
            foreign: false,
        };
        assert_eq!(own_labels(&node).into_keys().collect::<Vec<_>>(), ["zone"]);
        // One that somebody has put there is taken away.
        let row = NodeImageRow { label_keys: format!("zone\n{FAKE}").as_str().into(), ..NodeImageRow::default() };
        assert_eq!(super::labels(&row, &node)[FAKE], Value::Null);
    }
}
