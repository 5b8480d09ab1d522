//! Sources that give next to nothing, and say of themselves what they like.

use super::*;

const NODES: [&str; 5] = ["n1", "n2", "n3", "n4", "n5"];

/// A chain whose seed gives next to nothing, and says that it pulls.
fn chain(copies: Option<u32>) -> Scene {
    let mut scene = Scene::of_peers(&NODES);
    let mut web = web();
    web.pull.upstream_copies = copies;
    scene.job(web);
    scene.plan();
    let ways = ["n1 < registry", "n2 < n1", "n3 < n2 n1", "n4 < n3 n2 n1", "n5 < n4 n3 n2"];
    assert_eq!(scene.ways(&NODES, WEB), ways);
    scene.report("n1", WEB, |report| report.bytes.done = 1);
    scene
}

impl Scene {
    /// The same as `starves`, of an agent that goes on reading.
    fn trickles(&mut self, node: &str, reason: Reason) {
        let peers: Vec<_> = self.order(node, WEB).unwrap().peers.into_iter().map(|peer| peer.node).collect();
        self.report(node, WEB, |report| {
            report.from = peers.first().cloned().map(Origin::Peer);
            (report.reason, report.bad, report.bytes.done) = (Some(reason), peers, 1);
        });
    }

    fn seeds(&self) -> Vec<&'static str> {
        let is_seed = |node: &&str| self.order(node, WEB).is_some_and(|order| order.upstream);
        NODES.into_iter().filter(is_seed).collect()
    }
}

/// Everybody below the place where bytes stop complains. One copy more is enough for all.
#[test]
fn of_a_chain_that_stalls_one_node_goes_upstream_and_the_others_wait_for_it() {
    let mut scene = chain(None);
    NODES[1..].iter().for_each(|node| scene.trickles(node, Reason::NoSource));
    assert_eq!(scene.plan(), ["n2 keeps web@sha256:w"]);
    assert_eq!(scene.seeds(), ["n1", "n2"]);
    scene.pass(29);
    assert_eq!(scene.plan(), NOTHING);
    let wake = scene.world.plan(scene.now).wake.unwrap();
    assert_eq!(wake.as_second() - scene.now.as_second(), 1, "then the next one has waited long enough");
    // Its bytes have come down the chain.
    for node in &NODES[2..] {
        scene.report(node, WEB, |report| (report.reason, report.bytes.done) = (None, 50));
    }
    scene.pass(60);
    assert_eq!(scene.plan(), NOTHING);
}

#[test]
fn where_that_node_gives_nothing_either_the_next_one_goes_upstream() {
    let mut scene = chain(None);
    NODES[1..].iter().for_each(|node| scene.trickles(node, Reason::NoSource));
    scene.plan();
    scene.pass(30);
    assert_eq!(scene.plan(), ["n3 keeps web@sha256:w"]);
    assert_eq!(scene.seeds(), ["n1", "n2", "n3"]);
    // A node that is away helps nobody.
    scene.change_node("n3", |node| node.ready = false);
    scene.plan();
    assert!(scene.seeds().contains(&"n4"), "{:?}", scene.seeds());
}

/// The seed has k copies to make, and makes none.
#[test]
fn a_promised_seed_that_gives_next_to_nothing_is_replaced() {
    let mut scene = chain(Some(1));
    NODES[1..].iter().for_each(|node| scene.trickles(node, Reason::NoSource));
    scene.plan();
    assert_eq!(scene.seeds(), ["n2"]);
}

/// What its agent says of the sources decides, not that it took long.
#[test]
fn an_attempt_that_ends_in_time_accuses_the_sources_that_it_names() {
    let mut scene = chain(None);
    scene.report("n2", WEB, |report| report.reason = Some(Reason::Timeout));
    assert_eq!(scene.plan(), NOTHING);
    scene.trickles("n2", Reason::Timeout);
    scene.plan();
    assert_eq!(scene.seeds(), ["n1", "n2"]);
}

/// Whether bytes reach this node: it goes upstream, or one of its list has bytes. n1 gives none.
fn is_fed(scene: &Scene, node: &str, depth: usize) -> bool {
    if node == "n1" || depth > NODES.len() {
        return false;
    }
    let Some(order) = scene.order(node, WEB) else { return true };
    order.upstream || order.peers.iter().any(|peer| is_fed(scene, &peer.node, depth + 1))
}

/// Whatever it says of itself, and also where its readers say so only when their attempts are over.
#[test]
fn a_seed_that_gives_nothing_fails_nobody_else() {
    for (says_whole, reason) in
        [(false, Reason::NoSource), (false, Reason::Timeout), (true, Reason::NoSource), (true, Reason::Timeout)]
    {
        let mut scene = chain(None);
        if says_whole {
            scene.brings("n1", WEB);
        }
        let mut done = Vec::new();
        for _ in 0..8 {
            for node in NODES[1..].iter().filter(|node| !done.contains(*node)).collect::<Vec<_>>() {
                match is_fed(&scene, node, 0) {
                    true => {
                        scene.brings(node, WEB);
                        done.push(*node);
                    }
                    false => scene.trickles(node, reason),
                }
            }
            scene.pass(40);
            scene.plan();
        }
        done.sort_unstable();
        assert_eq!(done, NODES[1..], "{says_whole} {reason:?}");
    }
}
