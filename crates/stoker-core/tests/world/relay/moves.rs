//! Nodes that others read from, and that serve somewhere else or with another key from now on.

use super::*;

fn at_port(port: u16) -> PeerFacts {
    PeerFacts { port, ..facts(None, true) }
}

/// The ports of the nodes that a node may read from.
fn ports(scene: &Scene, node: &str) -> Vec<u16> {
    scene.order(node, WEB).unwrap().peers.iter().map(|peer| peer.address.port()).collect()
}

#[test]
fn readers_are_told_the_new_address_and_key_of_their_source() {
    let mut scene = broken(None);
    let before = scene.order("n3", WEB).unwrap();
    scene.pass(5);
    for (new, wrote) in [
        (PeerFacts { rate: Some(1 << 20), ..facts(None, true) }, 0),
        (at_port(7001), 2),
        (PeerFacts { address: [10, 0, 0, 9].into(), ..at_port(7001) }, 2),
        (PeerFacts { address: [10, 0, 0, 9].into(), key: PeerKey::new("other"), ..at_port(7001) }, 2),
    ] {
        scene.serves("n1", new.clone());
        assert_eq!(scene.plan().len(), wrote, "{new:?}");
        assert_eq!(scene.plan(), NOTHING);
        for node in ["n2", "n3"] {
            let order = scene.order(node, WEB).unwrap();
            let told = order.peers.iter().find(|peer| &*peer.node == "n1").unwrap();
            assert_eq!((told.address, &told.key), ((new.address, new.port).into(), &new.key));
        }
    }
    let after = scene.order("n3", WEB).unwrap();
    assert_eq!((after.asked, after.past.lists), (before.asked, 0));
    assert_eq!(scene.ways(&["n1", "n2", "n3"], WEB), ["n1 < registry", "n2 < n1", "n3 < n2 n1"]);
}

#[test]
fn an_address_is_not_forgotten_while_an_agent_says_nothing() {
    let mut scene = broken(None);
    scene.world.apply(Event::Peer("n1".into(), None));
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(ports(&scene, "n2"), [7000]);
    scene.serves("n1", at_port(7001));
    scene.plan();
    assert_eq!(ports(&scene, "n2"), [7001]);
}

#[test]
fn orders_that_are_done_are_left_alone() {
    let mut scene = broken(None);
    scene.brings("n3", WEB);
    scene.plan();
    scene.serves("n1", at_port(7001));
    assert_eq!(scene.plan(), ["n2 keeps web@sha256:w"]);
}

/// What the agent said is about the old address. Nobody is sent anywhere else for it until the agent has had time to try the new one.
#[test]
fn a_complaint_about_the_old_address_is_none_about_the_new_one() {
    for copies in [None, Some(1), Some(0)] {
        let mut scene = Scene::of_peers(&["n1", "n2"]);
        let mut first = job("first", &[WEB]);
        first.names = names(&["n1"]);
        scene.job(first);
        scene.plan();
        let mut web = web();
        web.names = names(&["n2"]);
        web.pull.upstream_copies = copies;
        scene.job(web);
        scene.plan();
        assert_eq!(scene.ways(&["n2"], WEB), ["n2 < n1"], "{copies:?}");
        scene.starves("n2", WEB, 0);
        scene.serves("n1", at_port(7001));
        scene.plan();
        assert_eq!((scene.ways(&["n2"], WEB), ports(&scene, "n2")), (vec!["n2 < n1".into()], vec![7001]), "{copies:?}");
        assert_eq!(scene.plan(), NOTHING);
        // It was still on its way.
        scene.pass(1);
        scene.starves("n2", WEB, 0);
        assert_eq!(scene.plan(), NOTHING);
        scene.pass(28);
        assert_eq!(scene.plan(), NOTHING);
        // The new address is no better.
        scene.pass(1);
        scene.plan();
        let upstream = copies.is_none();
        assert_eq!(scene.order("n2", WEB).unwrap().upstream, upstream, "{copies:?}");
        assert_eq!(scene.plan(), NOTHING);
    }
}

#[test]
fn a_plan_is_wanted_when_the_complaint_counts_again() {
    let mut scene = broken(None);
    scene.starves("n2", WEB, 0);
    scene.serves("n1", at_port(7001));
    let wake = scene.world.plan(scene.now).wake.unwrap();
    assert_eq!(wake.as_second() - scene.now.as_second(), 30);
}

/// The address is in the order before or after the new one is known.
#[test]
fn a_world_made_anew_tells_the_new_address_whatever_it_hears_first() {
    let scene = broken(None);
    for orders_first in [true, false] {
        let mut restarted = stoker_core::World::new();
        restarted.relay(true);
        restarted.apply(Event::Job(Box::new(web())));
        let nodes = ["n1", "n2", "n3"];
        let orders = nodes.map(|name| Event::Orders(name.into(), scene.world.orders(name).unwrap()));
        let features = ["look", "resolve", "sealed", "peers"].map(String::from);
        let peers = nodes.into_iter().flat_map(|name| {
            let features = Event::Features(name.into(), features.clone().into());
            [Event::Peer(name.into(), Some(at_port(7001))), features]
        });
        let nodes = nodes.map(|name| Event::Node(node(name)));
        let (first, then): (Vec<Event>, Vec<Event>) = match orders_first {
            true => (orders.into(), peers.collect()),
            false => (peers.collect(), orders.into()),
        };
        nodes.into_iter().chain(first).chain(then).for_each(|event| restarted.apply(event));
        let nodes: Vec<_> = restarted.plan(scene.now).orders.into_iter().map(|write| write.node.to_string()).collect();
        assert_eq!(nodes, ["n2", "n3"], "{orders_first}");
    }
}

/// Or nobody who reads from it could ever complain.
#[test]
fn a_node_that_moves_again_and_again_mutes_nobody() {
    let mut scene = broken(None);
    for port in 7001..7004 {
        scene.serves("n1", at_port(port));
        scene.plan();
        scene.pass(20);
        scene.starves("n2", WEB, 0);
        scene.plan();
    }
    assert!(scene.order("n2", WEB).unwrap().upstream);
}
