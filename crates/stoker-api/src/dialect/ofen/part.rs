//! What a NodeImageSet is named after, and how an object says what it is a part of.
//!
//! Names and labels are those that ofen gives, so that sets that ofen has made are gone on with. A label takes 63 characters, and names may be
//! longer: such a label is cut, and an annotation has the whole.

use std::collections::BTreeMap;

use kube_core::dynamic::DynamicObject;
use ring::digest;
use serde_json::Value;

use crate::dialect::Place;
use crate::view::ObjectName;

/// The labels of a part, in which the namespace and the name of its ImagePrefetch are, and its node.
const NAMESPACE: &str = "image-prefetch.ofen.cybozu.io/owner-namespace";
const NAME: &str = "image-prefetch.ofen.cybozu.io/owner-name";
const NODE: &str = "image-prefetch.ofen.cybozu.io/node-name";
/// The annotations that have what does not fit into a label.
const WHOLE_NAME: &str = "stoker.dev/image-prefetch";
const WHOLE_NODE: &str = "stoker.dev/node";

/// The longest value of a label.
const LONGEST_LABEL: usize = 63;
/// The longest name of an object.
const LONGEST_NAME: usize = 253;

/// The name of the NodeImageSet of a node for this ImagePrefetch, as ofen makes it. One that would be too long for an API server is cut.
pub fn set_name((namespace, name): (&str, &str), node: &str) -> String {
    let hash = short_hash(&format!("{name}\0{namespace}\0{node}"));
    let (before, after) = ("nodeimageset-", format!("-{hash}"));
    let room = LONGEST_NAME - before.len() - after.len();
    let name = name.get(..room).map_or(name, |cut| cut.trim_end_matches(['-', '.']));
    format!("{before}{name}{after}")
}

/// The first characters of a SHA-1, as ofen shortens texts. It guards nothing.
fn short_hash(text: &str) -> String {
    let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
    hash.as_ref().iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// A text as a label has it.
fn label(text: &str) -> String {
    match text.len() > LONGEST_LABEL {
        true => format!("{}-{}", text.get(..LONGEST_LABEL - 9).unwrap_or_default(), short_hash(text)),
        false => text.to_owned(),
    }
}

/// The labels of the NodeImageSet of a node for this ImagePrefetch.
pub(super) fn labels((namespace, name): (&str, &str), node: &str) -> BTreeMap<&'static str, String> {
    [(NAMESPACE, label(namespace)), (NAME, label(name)), (NODE, label(node))].into()
}

/// The annotations that have what does not fit into these labels.
pub(super) fn annotations((_, name): (&str, &str), node: &str) -> BTreeMap<&'static str, String> {
    let texts = [(WHOLE_NAME, name), (WHOLE_NODE, node)];
    let long = texts.into_iter().filter(|(_, text)| text.len() > LONGEST_LABEL);
    long.map(|(key, text)| (key, text.to_owned())).collect()
}

/// The namespace whose Secrets an object names that is no part of anything: ofen takes that of the label, which people may write, too.
pub(super) fn namespace_of_secrets(object: &DynamicObject) -> Option<&str> {
    let labels = object.metadata.labels.as_ref()?;
    labels.get(NAMESPACE).map(String::as_str).filter(|namespace| !namespace.is_empty())
}

/// Where a NodeImageSet belongs: it is a part of the ImagePrefetch that its labels name, if its name is the one of such a part. Whoever edits the
/// spec does not make it anything else.
pub(super) fn place(object: &DynamicObject) -> Place {
    let metadata = &object.metadata;
    let of = |texts: &Option<BTreeMap<String, String>>, key: &str| texts.as_ref()?.get(key).cloned();
    let either =
        |annotation: &str, key: &str| of(&metadata.annotations, annotation).or_else(|| of(&metadata.labels, key));
    let spoken = object.data.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
    let whole = of(&metadata.labels, NAMESPACE).zip(either(WHOLE_NAME, NAME));
    let part = whole.and_then(|(namespace, name)| {
        let nodes = [Some(spoken.to_owned()), either(WHOLE_NODE, NODE)].into_iter().flatten();
        let is_own = |node: &String| Some(set_name((namespace.as_str(), name.as_str()), node)) == metadata.name;
        let node = nodes.into_iter().find(is_own)?;
        Some(Place { node, whole: Some(ObjectName::from((namespace, name))) })
    });
    part.unwrap_or_else(|| Place { node: spoken.to_owned(), whole: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_those_that_ofen_gives() {
        // printf 'sample\0shop\0worker1' | sha1sum
        assert_eq!(set_name(("shop", "sample"), "worker1"), "nodeimageset-sample-e73820e5");
        let long = set_name(("shop", &"x".repeat(253)), "worker1");
        assert_eq!(long.len(), 253);
        assert_ne!(long, set_name(("shop", &"x".repeat(253)), "worker2"));
    }

    fn set(
        name: &str,
        labels: &BTreeMap<&str, String>,
        annotations: &BTreeMap<&str, String>,
        node: &str,
    ) -> DynamicObject {
        let metadata = json!({ "name": name, "labels": labels, "annotations": annotations });
        serde_json::from_value(json!({
            "apiVersion": "ofen.cybozu.io/v1", "kind": "NodeImageSet", "metadata": metadata, "spec": { "nodeName": node },
        }))
        .unwrap()
    }

    #[test]
    fn a_set_belongs_where_its_labels_and_its_name_say_whatever_its_spec_says() {
        let owner = ("shop", "sample");
        let (name, labels) = (set_name(owner, "n1"), labels(owner, "n1"));
        let whole = Some(("shop".to_owned(), "sample".to_owned()));
        for (node, place_node) in [("n1", "n1"), ("another", "n1"), ("", "n1")] {
            let place = place(&set(&name, &labels, &BTreeMap::new(), node));
            assert_eq!(place, Place { node: place_node.into(), whole: whole.clone() }, "{node}");
        }
        let by_hand = Place { node: "n1".into(), whole: None };
        assert_eq!(place(&set("mine", &labels, &BTreeMap::new(), "n1")), by_hand, "another name");
        assert_eq!(place(&set(&name, &BTreeMap::new(), &BTreeMap::new(), "n1")), by_hand, "no labels");
    }

    #[test]
    fn names_that_fit_into_no_label_are_no_obstacle() {
        let (name, node) = ("x".repeat(200), format!("{}.example.com", "n".repeat(70)));
        let owner = ("shop", name.as_str());
        let (labels, annotations) = (labels(owner, &node), annotations(owner, &node));
        assert!(labels.values().all(|value| value.len() <= 63), "{labels:?}");
        let place = place(&set(&set_name(owner, &node), &labels, &annotations, "another"));
        assert_eq!(place, Place { node, whole: Some(("shop".into(), name)) });
    }
}
