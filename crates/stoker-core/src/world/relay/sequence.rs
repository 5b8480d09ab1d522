//! In which order the writes of a plan go. Thousands of them take a minute, and a node whose source was not told yet receives nothing.

use std::collections::BTreeMap;

use crate::model::{Key, NodeName};
use crate::world::OrderWrite;

/// Puts writes of nodes that others read from before those others; else they stay as they are. `source` says which node is the first that a
/// node reads an image from.
pub(in crate::world) fn sources_first<'a>(
    writes: &mut [OrderWrite],
    source: impl Fn(&NodeName, Key) -> Option<&'a NodeName>,
) {
    let mut reads: BTreeMap<(&NodeName, Key), &NodeName> = BTreeMap::new();
    for write in writes.iter() {
        let sources = write.keys.iter().filter_map(|key| Some(((&write.node, *key), source(&write.node, *key)?)));
        reads.extend(sources);
    }
    if reads.is_empty() {
        return;
    }
    let mut depths: BTreeMap<(&NodeName, Key), usize> = BTreeMap::new();
    for &reader in reads.keys() {
        // Up to a node that is not written to, or whose depth is known, and back.
        let (mut way, mut at) = (Vec::new(), reader);
        while !depths.contains_key(&at) && way.len() <= reads.len() {
            let Some(source) = reads.get(&at) else { break };
            way.push(at);
            at = (source, at.1);
        }
        let mut depth = depths.get(&at).copied().unwrap_or_default();
        for at in way.into_iter().rev() {
            depth += 1;
            depths.insert(at, depth);
        }
    }
    let mut deepest: BTreeMap<NodeName, usize> = BTreeMap::new();
    for ((node, _), depth) in depths {
        let most = deepest.entry(node.clone()).or_default();
        *most = depth.max(*most);
    }
    writes.sort_by_key(|write| deepest.get(&write.node).copied().unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order in which nodes are written to that read from each other like this.
    fn sorted(reads: &[(&str, Option<&str>)]) -> String {
        let keys = || [Key::of("r/i:1")].into();
        let mut writes: Vec<OrderWrite> =
            reads.iter().map(|(node, _)| OrderWrite { node: (*node).into(), keys: keys() }).collect();
        let sources = reads.iter().filter_map(|(node, source)| Some(((*node).into(), (*source)?.into())));
        let sources: BTreeMap<NodeName, NodeName> = sources.collect();
        sources_first(&mut writes, |node, _| sources.get(node));
        writes.iter().map(|write| &*write.node).collect()
    }

    #[test]
    fn who_is_read_from_is_written_to_first() {
        let reads =
            [("a", Some("d")), ("b", Some("a")), ("c", None), ("d", Some("e")), ("e", None), ("f", Some("elsewhere"))];
        assert_eq!(sorted(&reads), "cedfab");
        assert_eq!(sorted(&[("a", Some("b")), ("b", Some("a"))]).len(), 2, "a circle");
    }
}
