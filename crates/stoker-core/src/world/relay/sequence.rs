//! In which order the writes of a plan go. Thousands of them take a minute, and a node whose source was not told yet receives nothing.

use std::collections::BTreeMap;

use crate::model::{Key, NodeName};
use crate::world::OrderWrite;

/// Puts writes of nodes that others read from before those others; else they stay as they are.
pub(in crate::world) fn sources_first(writes: &mut [OrderWrite]) {
    let mut reads: BTreeMap<(&NodeName, Key), &NodeName> = BTreeMap::new();
    for write in writes.iter() {
        let orders = write.changes.iter().filter_map(|(key, order)| Some((*key, order.as_ref()?)));
        for (key, order) in orders {
            reads.extend(order.peers.first().map(|peer| ((&write.node, key), &peer.node)));
        }
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
    use crate::model::testing::order;
    use crate::model::{Order, PeerKey, PeerRef};

    fn write(node: &str, source: Option<&str>) -> OrderWrite {
        let peer = |node: &str| PeerRef {
            node: node.into(),
            address: ([10, 0, 0, 1], 7).into(),
            key: PeerKey::new("key"),
            far: false,
        };
        let peers = source.map(peer).into_iter().collect();
        let changes = [(Key::of("r/i:1"), Some(Order { peers, ..order(1) }))].into();
        OrderWrite { node: node.into(), changes }
    }

    #[test]
    fn who_is_read_from_is_written_to_first() {
        let mut writes = vec![
            write("a", Some("d")),
            write("b", Some("a")),
            write("c", None),
            write("d", Some("e")),
            write("e", None),
            write("f", Some("elsewhere")),
        ];
        sources_first(&mut writes);
        let nodes: String = writes.iter().map(|write| &*write.node).collect();
        assert_eq!(nodes, "cedfab");
        let mut circle = vec![write("a", Some("b")), write("b", Some("a"))];
        sources_first(&mut circle);
        assert_eq!(circle.len(), 2);
    }
}
