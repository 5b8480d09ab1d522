use super::*;
use crate::testing::order;
use stoker_core::model::{PeerKey, PeerRef};
use stoker_transfer::peer::PeerIdentity;

#[test]
fn a_node_whose_key_cannot_be_read_is_left_out() {
    let peer = |node: &str, key: &str| PeerRef {
        node: node.into(),
        address: ([10, 0, 0, 1], 7447).into(),
        key: PeerKey::new(key),
        far: true,
    };
    let good = PeerIdentity::generate().unwrap().id();
    let peers = vec![peer("a", "no key"), peer("b", &good.to_string())];
    let order = Order { upstream: false, peers, ..order() };
    let list = list(&order, Some(&"t".to_string()));
    let names: Vec<&str> = list.peers.iter().map(|peer| &*peer.node).collect();
    assert_eq!((names, &*list.ticket, list.upstream), (vec!["b"], "t", false));
    assert_eq!((list.peers[0].id, list.peers[0].far), (good, true));
    assert_eq!(&*super::list(&order, None).ticket, "");
}
