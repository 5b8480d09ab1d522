use futures::FutureExt as _;

use super::*;
use crate::peer::PeerIdentity;

fn peer(name: &str) -> Peer {
    let id = PeerIdentity::generate().unwrap().id();
    Peer { node: name.into(), addr: ([127, 0, 0, 1], 1).into(), id, far: false }
}

fn list(peers: &[&Peer]) -> PeerList {
    let peers = peers.iter().map(|peer| (*peer).clone()).collect();
    PeerList { peers, ..PeerList::default() }
}

/// Ways that were without a list before they got this one, as those of an order are.
fn begun(peers: &[&Peer]) -> PeerWays {
    let ways = PeerWays::new(PeerReader::new(PeerIdentity::generate().unwrap()), PeerList::default());
    ways.begin(list(peers));
    ways
}

fn blob() -> Digest {
    format!("sha256:{}", "7".repeat(64)).parse().unwrap()
}

/// Whom a blob asks first that has found these to be without it; it must not have to leave that node at once.
fn first(ways: &PeerWays, gone: &[&Peer]) -> Arc<str> {
    let gone = gone.iter().map(|peer| peer.id).collect();
    let peer = ways.in_turn(&ways.list(), &gone).remove(0);
    assert!(
        ways.leave(&peer).now_or_never().is_none(),
        "{} is left without a byte, and asked again at once",
        peer.node
    );
    peer.node
}

#[test]
fn a_liar_at_the_head_of_a_new_list_keeps_nobody_from_the_next_node() {
    let [liar, honest] = [peer("liar"), peer("honest")];
    let ways = begun(&[&liar, &honest]);
    assert_eq!(&*first(&ways, &[]), "liar");
    ways.lied(&liar);
    assert_eq!(&*first(&ways, &[]), "honest");
}

#[test]
fn renewed_ways_know_who_lied_and_leave_the_old_ones_without_a_list() {
    let [liar, honest] = [peer("liar"), peer("honest")];
    let old = begun(&[&liar, &honest]);
    old.lied(&liar);
    old.close();
    let new = old.renewed();
    assert!(!new.is_same(&old));
    new.begin(list(&[&liar, &honest]));
    assert_eq!((&*first(&new, &[]), new.count_liars(), old.count_liars()), ("honest", 1, 0));
    new.begin(PeerList { upstream: true, ..PeerList::default() });
    assert!(new.is_upstream() && !old.is_upstream(), "an old fetch asks nobody");
}

#[test]
fn nothing_moves_to_a_liar() {
    let [liar, honest] = [peer("liar"), peer("honest")];
    let ways = begun(&[&liar, &honest]);
    ways.lied(&liar);
    ways.move_to(&ways.list(), &liar);
    assert_eq!(&*first(&ways, &[]), "honest");
}

#[test]
fn an_answer_of_the_node_that_was_left_does_not_bring_the_image_back() {
    let [slow, fast] = [peer("slow"), peer("fast")];
    let ways = begun(&[&slow, &fast]);
    ways.gives(&slow, &blob());
    ways.move_to(&ways.list(), &fast);
    ways.gives(&slow, &blob());
    assert_eq!(&*first(&ways, &[]), "fast");
    ways.begin(list(&[&slow, &fast, &peer("spare")]));
    ways.gives(&fast, &blob());
    assert_eq!(&*first(&ways, &[]), "slow");
}

#[test]
fn a_blob_goes_along_to_a_node_that_did_not_have_it_before() {
    let [slow, late] = [peer("slow"), peer("late")];
    let ways = begun(&[&slow, &late]);
    ways.failed(&late, PeerProblem::Gone);
    ways.gives(&slow, &blob());
    assert_eq!(&*first(&ways, &[&late]), "slow");
    ways.move_to(&ways.list(), &late);
    assert_eq!(&*first(&ways, &[&late]), "late");
    ways.failed(&late, PeerProblem::Gone);
    assert_eq!(&*first(&ways, &[&late]), "slow");
}

/// Blobs that come from the first one already do not begin anew. Whoever looks at the nodes must know where they come from.
#[test]
fn a_new_list_with_the_same_first_node_leaves_the_image_there() {
    let [first, second] = [peer("first"), peer("second")];
    let ways = begun(&[&first, &second]);
    ways.gives(&first, &blob());
    ways.begin(list(&[&first, &peer("other")]));
    assert_eq!(ways.from().as_deref(), Some("first"));
    ways.begin(list(&[&second, &first]));
    assert_eq!(ways.from(), None);
}
