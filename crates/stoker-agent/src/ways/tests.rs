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

/// 256 MiB in 40 minutes. A limit of the job is nothing to complain of.
#[test]
fn an_image_that_will_be_here_in_time_comes_fast_enough() {
    let mut pull = order().terms.pull;
    (pull.timeout, pull.retries, pull.bandwidth) = (std::time::Duration::from_secs(600), 3, None);
    let bytes = |seconds: u64| least(&pull, 256 << 20) * seconds;
    assert!(bytes(2_400) < 256 << 20 && bytes(2_500) > 256 << 20, "with the pauses between attempts");
    assert_eq!(least(&Pull { bandwidth: Some(1_000), ..pull.clone() }, 256 << 20), 500);
    assert_eq!(least(&Pull { bandwidth: Some(1 << 30), ..pull.clone() }, 256 << 20), least(&pull, 256 << 20));
    assert_eq!(least(&pull, 0), 0);
}
