//! Nodes that read an image from each other, told as small stories.

use std::collections::BTreeMap;

use stoker_core::model::{Job, PeerRef};
use stoker_core::world::NodeState;
use stoker_core::{Ask, Event, Origin, PeerFacts, PeerKey, PullSource, Reason, Report, Waiting};

use crate::build::{id, job, names, node, of_namespace, pulling};
use crate::scene::{NOTHING, Scene};

mod edits;
mod moves;
mod promises;
mod queues;
mod stalls;

const WEB: &str = "web@sha256:w";

fn facts(rate: Option<u64>, keeps: bool) -> PeerFacts {
    let (address, key) = ([10, 0, 0, 1].into(), PeerKey::new("key"));
    PeerFacts { address, port: 7000, key, keeps, rate, sent: rate }
}

impl Scene {
    /// Nodes whose agents serve others.
    fn of_peers(nodes: &[&str]) -> Self {
        let mut scene = Scene::of(nodes);
        scene.world.relay(true);
        nodes.iter().for_each(|name| scene.serves(name, facts(None, true)));
        scene
    }

    fn serves(&mut self, name: &str, facts: PeerFacts) {
        self.features(name, &["look", "resolve", "sealed", "peers"]);
        self.world.apply(Event::Peer(name.into(), Some(facts)));
    }

    fn in_zone(&mut self, name: &str, zone: &str) {
        self.change_node(name, |node| {
            node.labels.insert("topology.kubernetes.io/zone".into(), zone.into());
        });
    }

    fn in_group(&mut self, name: &str, group: &str) {
        self.change_node(name, |node| {
            node.labels.insert("stoker.dev/peer-group".into(), group.into());
        });
    }

    /// Where each node with an order gets the image from; `~` marks nodes of another zone.
    fn ways(&self, nodes: &[&str], image: &str) -> Vec<String> {
        let named = |peer: &PeerRef| format!("{}{}", if peer.far { "~" } else { "" }, peer.node);
        let way = |node: &&str| {
            let order = self.order(node, image)?;
            let peers: Vec<String> = order.peers.iter().map(named).collect();
            Some(match order.upstream {
                true => format!("{node} < registry"),
                false => format!("{node} < {}", peers.join(" ")),
            })
        };
        nodes.iter().filter_map(way).collect()
    }

    /// The agent cannot read from any of its list.
    fn starves(&mut self, node: &str, image: &str, done: u64) {
        let peers: Vec<_> = self.order(node, image).unwrap().peers.into_iter().map(|peer| peer.node).collect();
        self.report(node, image, |report| {
            (report.reason, report.bad, report.bytes.done) = (Some(Reason::NoSource), peers, done);
        });
    }

    fn brings(&mut self, node: &str, image: &str) {
        let digest = self.order(node, image).and_then(|order| order.pin().map(|pin| pin.digest.as_str().into()));
        let now = self.now;
        self.report(node, image, |report| {
            report.phase = stoker_core::Phase::Succeeded;
            (report.digest, report.finished, report.reason) = (digest, Some(now), None);
        });
    }
}

fn web() -> Job {
    job("web", &[WEB])
}

/// Nodes of another platform have the index in common, and no layer.
#[test]
fn nodes_of_another_platform_have_a_seed_of_their_own() {
    let nodes = ["n1", "n2", "n3", "n4"];
    let mut scene = Scene::of_peers(&nodes);
    for node in nodes {
        let architecture = if ["n1", "n2"].contains(&node) { "amd64" } else { "arm64" };
        scene.change_node(node, |node| {
            let labels = [("kubernetes.io/os", "linux"), ("kubernetes.io/arch", architecture)];
            node.labels.extend(labels.map(|(key, value)| (key.to_string(), value.to_string())));
        });
    }
    scene.job(web());
    scene.plan();
    assert_eq!(scene.ways(&nodes, WEB), ["n1 < registry", "n2 < n1", "n3 < registry", "n4 < n3"]);
}

#[test]
fn one_node_goes_upstream_and_the_others_form_a_chain() {
    let nodes = ["n1", "n2", "n3", "n4", "n5"];
    let mut scene = Scene::of_peers(&nodes);
    scene.job(web());
    scene.plan();
    let chain = ["n1 < registry", "n2 < n1", "n3 < n2 n1", "n4 < n3 n2 n1", "n5 < n4 n3 n2"];
    assert_eq!(scene.ways(&nodes, WEB), chain);
    assert!(scene.order("n2", WEB).unwrap().features().any(|feature| feature == "peers"));
    assert_eq!(scene.order("n1", WEB).unwrap().features().count(), 0);
    assert_eq!(scene.plan(), NOTHING);
}

#[test]
fn nothing_changes_where_nodes_are_not_told_to_relay() {
    let nodes = ["n1", "n2"];
    for relay in [false, true] {
        let mut scene = Scene::of_peers(&nodes);
        scene.world.relay(relay);
        // An agent that does not know such orders is asked as ever, too.
        nodes.iter().filter(|_| relay).for_each(|name| scene.features(name, &["look", "resolve", "sealed"]));
        scene.job(web());
        scene.plan();
        assert_eq!(scene.ways(&nodes, WEB), ["n1 < registry", "n2 < registry"], "{relay}");
    }
}

#[test]
fn groups_have_a_chain_each_and_a_node_without_one_is_alone() {
    let nodes = ["n1", "n2", "n3", "n4", "n5"];
    let mut scene = Scene::of_peers(&nodes);
    ["n3", "n4"].iter().for_each(|name| scene.in_group(name, "shop"));
    scene.in_group("n5", "none");
    scene.job(web());
    scene.plan();
    let ways = ["n1 < registry", "n2 < n1", "n3 < registry", "n4 < n3", "n5 < registry"];
    assert_eq!(scene.ways(&nodes, WEB), ways);
}

#[test]
fn the_image_comes_into_a_zone_once() {
    let nodes = ["n1", "n2", "n3", "n4", "n5", "n6"];
    let mut scene = Scene::of_peers(&nodes);
    for (name, zone) in [("n1", "a"), ("n2", "b"), ("n3", "a"), ("n4", "b"), ("n5", "a"), ("n6", "b")] {
        scene.in_zone(name, zone);
    }
    scene.job(web());
    scene.plan();
    let ways = ["n1 < registry", "n3 < n1", "n5 < n3 n1", "n2 < ~n5 ~n3 ~n1", "n4 < n2 ~n5 ~n3", "n6 < n4 n2 ~n5"];
    assert_eq!(scene.ways(&["n1", "n3", "n5", "n2", "n4", "n6"], WEB), ways);
}

#[test]
fn fast_nodes_come_first_and_slow_ones_are_leaves() {
    let nodes = ["n1", "n2", "n3", "n4"];
    let mut scene = Scene::of_peers(&nodes);
    for (name, rate) in [("n1", Some(1 << 20)), ("n2", None), ("n3", Some(1 << 24)), ("n4", Some(1 << 24))] {
        scene.serves(name, facts(rate, true));
    }
    // Others that the job does not want.
    for name in ["m1", "m2"] {
        scene.node(node(name));
        scene.agent(name);
        scene.serves(name, facts(Some(1 << 23), true));
    }
    scene.job(Job { parallelism: 3, names: names(&nodes), ..web() });
    scene.plan();
    assert_eq!(scene.ways(&nodes, WEB), ["n1 < n4 n3", "n3 < registry", "n4 < n3"]);
    // The median of n1, m1, m2 and n4. What its source claims does not count.
    assert_eq!(scene.order("n4", WEB).unwrap().expect, Some(1 << 23));
    // Those whose speed nobody knows come last, and read from nobody who is known to be slow.
    scene.brings("n3", WEB);
    scene.plan();
    assert_eq!(scene.ways(&["n2"], WEB), ["n2 < n4 n3 n1"]);
}

#[test]
fn a_limit_of_the_job_counts_as_speed() {
    let nodes = ["n1", "n2", "n3", "n4", "n5", "n6"];
    let mut scene = Scene::of_peers(&nodes);
    nodes.iter().for_each(|name| scene.serves(name, facts(Some(1 << 24), true)));
    let mut web = web();
    web.pull.bandwidth = Some(1 << 22);
    scene.job(web);
    scene.plan();
    let first: Vec<String> =
        nodes[1..].iter().filter_map(|node| Some(scene.order(node, WEB)?.peers.first()?.node.to_string())).collect();
    // Each of them takes a quarter of an uplink.
    assert_eq!(first, ["n1", "n2", "n3", "n4", "n5"], "whoever has least to send is read from");
    assert_eq!(scene.order("n2", WEB).unwrap().expect, Some(1 << 22), "nobody gets more than the limit");
}

#[test]
fn nodes_that_have_the_image_are_sources() {
    let nodes = ["n1", "n2", "n3", "n4"];
    let mut scene = Scene::of_peers(&nodes);
    let mut first = job("first", &[WEB]);
    first.names = names(&["n2"]);
    scene.job(first);
    scene.plan();
    scene.brings("n2", WEB);
    scene.plan();
    scene.pass(3_600);
    scene.job(web());
    scene.plan();
    // n2 is asked again, as every node of the new job. It will find that it has the image, and the others can read from it at once.
    assert_eq!(scene.ways(&["n1", "n3"], WEB), ["n1 < n2", "n3 < n1 n2"]);
}

#[test]
fn blobs_that_are_not_kept_are_served_for_five_minutes() {
    for (seconds, way) in [(299, "n2 < n1"), (300, "n2 < registry")] {
        let mut scene = Scene::of(&["n1", "n2"]);
        scene.world.relay(true);
        ["n1", "n2"].iter().for_each(|name| scene.serves(name, facts(None, false)));
        let mut first = job("first", &[WEB]);
        first.names = names(&["n1"]);
        scene.job(first);
        scene.plan();
        scene.brings("n1", WEB);
        scene.plan();
        scene.pass(seconds);
        let mut second = job("second", &[WEB]);
        second.names = names(&["n2"]);
        scene.job(second);
        scene.plan();
        assert_eq!(scene.ways(&["n2"], WEB), [way], "after {seconds} s");
    }
}

#[test]
fn a_promise_is_kept() {
    let nodes = ["n1", "n2", "n3"];
    let copies = |copies| {
        let mut scene = Scene::of_peers(&nodes);
        let mut web = web();
        web.pull.upstream_copies = Some(copies);
        scene.job(web);
        scene.plan();
        scene.ways(&nodes, WEB)
    };
    assert_eq!(copies(2), ["n1 < registry", "n2 < registry", "n3 < n1 n2"]);
    assert_eq!(copies(9), ["n1 < registry", "n2 < registry", "n3 < registry"]);
    assert_eq!(copies(0), NOTHING);
}

#[test]
fn peers_only_waits_until_somebody_has_the_image() {
    let mut scene = Scene::of_peers(&["n1", "n2", "n3"]);
    let mut web = web();
    web.pull.source = PullSource::PeersOnly;
    web.names = names(&["n1", "n2"]);
    scene.job(web);
    scene.plan();
    assert_eq!(scene.states("web"), ["n1 waits: NoSource", "n2 waits: NoSource"]);
    let views = scene.world.nodes(&id("web"), scene.now);
    let NodeState::Waiting(waiting @ Waiting::NoSource { .. }) = &views[0].state else { panic!("{views:?}") };
    assert!(waiting.to_string().starts_with("the job takes web@sha256:w from other nodes alone"), "{waiting}");
    let mut other = job("other", &[WEB]);
    other.names = names(&["n3"]);
    scene.job(other);
    scene.plan();
    assert_eq!(scene.ways(&["n1", "n2", "n3"], WEB), ["n1 < n3", "n2 < n1 n3", "n3 < registry"]);
}

#[test]
fn a_promise_holds_for_agents_that_cannot_relay() {
    for relay in [false, true] {
        let mut scene = Scene::of(&["n1", "n2"]);
        scene.world.relay(relay);
        let mut web = web();
        web.pull.upstream_copies = Some(1);
        scene.job(web);
        scene.plan();
        assert_eq!(scene.ways(&["n1", "n2"], WEB), ["n1 < registry"]);
        assert_eq!(scene.states("web"), ["n1 pulls", "n2 waits: NoSource"]);
        // The copy was made; that nobody can be served from it changes nothing.
        scene.brings("n1", WEB);
        scene.plan();
        assert_eq!(scene.states("web"), ["n1 done", "n2 waits: NoSource"]);
    }
}

/// Three nodes in a chain, of which the last has lost its source.
fn broken(copies: Option<u32>) -> Scene {
    let mut scene = Scene::of_peers(&["n1", "n2", "n3"]);
    let mut web = web();
    web.pull.upstream_copies = copies;
    scene.job(web);
    scene.plan();
    assert_eq!(scene.ways(&["n1", "n2", "n3"], WEB), ["n1 < registry", "n2 < n1", "n3 < n2 n1"]);
    scene
}

#[test]
fn when_the_seed_goes_a_reader_fetches_the_rest() {
    for copies in [None, Some(1)] {
        let mut scene = broken(copies);
        scene.change_node("n1", |node| node.ready = false);
        scene.plan();
        assert_eq!(scene.ways(&["n1", "n2"], WEB), ["n1 < registry", "n2 < n1"], "nobody has complained");
        scene.starves("n2", WEB, 50);
        assert_eq!(scene.plan(), ["n2 keeps web@sha256:w", "n1 keeps web@sha256:w"], "neither begins anew");
        assert_eq!(scene.ways(&["n1", "n2", "n3"], WEB), ["n1 < n3 n2", "n2 < registry", "n3 < n2 n1"], "{copies:?}");
        assert_eq!(scene.plan(), NOTHING);
        scene.change_node("n1", |node| node.ready = true);
        assert_eq!(scene.plan(), NOTHING, "it reads from the new seed");
    }
}

/// A network that is parted. A new seed in one half would fetch again what the old one fetches for the other half.
#[test]
fn a_promised_seed_is_replaced_when_nobody_reads_from_it() {
    let nodes = ["n1", "n2", "n3", "n4"];
    let mut scene = Scene::of_peers(&nodes);
    let mut web = web();
    web.pull.upstream_copies = Some(1);
    scene.job(web);
    scene.plan();
    let ways = ["n1 < registry", "n2 < n1", "n3 < n2 n1", "n4 < n3 n2 n1"];
    assert_eq!(scene.ways(&nodes, WEB), ways);
    scene.starves("n3", WEB, 50);
    assert_eq!(scene.plan(), NOTHING, "n2 reads from n1");
    assert_eq!(scene.ways(&nodes, WEB), ways);
    scene.brings("n2", WEB);
    assert_eq!(scene.plan(), NOTHING, "n1 has it, too, and has not said so yet");
    // Now nobody has it whom anybody reaches.
    scene.change_node("n2", |node| node.ready = false);
    assert_eq!(scene.plan(), ["n3 keeps web@sha256:w", "n1 keeps web@sha256:w"]);
    assert_eq!(scene.ways(&["n1", "n3", "n4"], WEB), ["n1 < n4 n3", "n3 < registry", "n4 < n3 n2 n1"]);
}

#[test]
fn a_seed_that_does_not_get_on_is_replaced() {
    let mut scene = broken(None);
    scene.report("n2", WEB, |report| report.bytes.done = 10);
    scene.report("n1", WEB, |report| report.reason = Some(Reason::Unreachable));
    scene.plan();
    assert_eq!(scene.ways(&["n1", "n2", "n3"], WEB), ["n1 < n3 n2", "n2 < registry", "n3 < n2 n1"]);
    // The new one cannot reach the registry, either. The first one is not asked again.
    scene.report("n2", WEB, |report| report.reason = Some(Reason::Unreachable));
    scene.plan();
    assert_eq!(scene.ways(&["n1", "n2", "n3"], WEB), ["n1 < n3 n2", "n2 < n1 n3", "n3 < registry"]);
    scene.report("n3", WEB, |report| report.reason = Some(Reason::Unreachable));
    assert_eq!(scene.plan(), NOTHING, "all have tried");
}

#[test]
fn a_list_that_does_not_help_is_replaced_twice() {
    let nodes = ["n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9"];
    for copies in [None, Some(1)] {
        let mut scene = Scene::of_peers(&nodes);
        let mut web = web();
        web.pull.upstream_copies = copies;
        scene.job(web);
        scene.plan();
        let asked = scene.order("n9", WEB).unwrap().asked;
        let mut lists = scene.ways(&["n9"], WEB);
        for second in 1..6 {
            scene.pass(second);
            scene.starves("n9", WEB, 1);
            scene.plan();
            lists.extend(scene.ways(&["n9"], WEB));
        }
        lists.dedup();
        let last = if copies.is_none() { vec!["n9 < registry"] } else { vec![] };
        let expected: Vec<&str> = ["n9 < n8 n7 n6", "n9 < n1", "n9 < n2 n1"].into_iter().take(2).collect();
        assert_eq!(lists[..2], expected, "{copies:?}");
        assert_eq!(lists.len(), if copies.is_none() { 4 } else { 3 }, "{lists:?}");
        assert!(lists.ends_with(&last.into_iter().map(String::from).collect::<Vec<_>>()), "{lists:?}");
        assert_eq!(scene.order("n9", WEB).unwrap().asked, asked);
    }
}

#[test]
fn a_node_that_lags_is_left_aside() {
    let nodes = ["n1", "n2", "n3", "n4", "n5"];
    let mut scene = Scene::of_peers(&nodes);
    scene.job(web());
    scene.plan();
    scene.report("n3", WEB, |report| {
        (report.reason, report.from) = (Some(Reason::Lagging), Some(Origin::Peer("n2".into())));
    });
    scene.plan();
    let ways = ["n1 < registry", "n2 < n1", "n3 < n5 n4 n2", "n4 < n2 n1", "n5 < n4 n3 n2"];
    assert_eq!(scene.ways(&nodes, WEB), ways);
    assert_eq!(scene.plan(), NOTHING);
}

#[test]
fn who_sends_wrong_bytes_to_two_nodes_serves_no_more() {
    let nodes = ["n1", "n2", "n3", "n4"];
    let mut scene = Scene::of_peers(&nodes);
    let mut first = web();
    first.parallelism = 3;
    scene.job(first);
    scene.plan();
    for node in ["n2", "n3"] {
        scene.report(node, WEB, |report| (report.reason, report.bad) = (Some(Reason::PeerLied), vec!["n1".into()]));
    }
    scene.brings("n1", WEB);
    scene.plan();
    assert_eq!(scene.ways(&["n4"], WEB), ["n4 < n3 n2"]);
}

/// Whether n6 reads from n1, the seed of six nodes, when it is done and these nodes have accused these others.
fn is_read_after(accusations: &[(&str, &[&str])]) -> bool {
    let nodes = ["n1", "n2", "n3", "n4", "n5", "n6"];
    let mut scene = Scene::of_peers(&nodes);
    scene.job(Job { parallelism: 5, ..web() });
    scene.plan();
    assert_eq!(scene.ways(&["n2", "n3", "n5"], WEB), ["n2 < n1", "n3 < n2 n1", "n5 < n4 n3 n2"]);
    for (node, bad) in accusations {
        let bad = bad.iter().map(|bad| (*bad).into()).collect();
        scene.report(node, WEB, |report| (report.reason, report.bad) = (Some(Reason::PeerLied), bad));
    }
    scene.brings("n1", WEB);
    scene.plan();
    scene.order("n6", WEB).unwrap().peers.iter().any(|peer| &*peer.node == "n1")
}

#[test]
fn a_node_that_is_taken_over_accuses_nobody_by_itself() {
    assert!(is_read_after(&[("n2", &["n1", "n1", "n1", "n1"])]), "one node that names it several times");
    assert!(is_read_after(&[("n3", &["n1"]), ("n5", &["n1"])]), "n5 was never told to read from it");
    assert!(!is_read_after(&[("n3", &["n1"]), ("n4", &["n1"])]));
}

#[test]
fn a_node_that_joins_a_pull_reads_on() {
    let mut scene = broken(None);
    scene.job(job("other", &[WEB]));
    scene.plan();
    assert_eq!(scene.ways(&["n1", "n2", "n3"], WEB), ["n1 < registry", "n2 < n1", "n3 < n2 n1"]);
    assert_eq!(scene.order("n3", WEB).unwrap().jobs.len(), 2);
}

#[test]
fn a_tag_is_asked_for_and_then_relayed() {
    let mut scene = Scene::of_peers(&["n1", "n2", "n3"]);
    scene.job(job("web", &["web:1"]));
    scene.plan();
    assert_eq!(scene.question("n1", "web:1").unwrap().ask, Ask::Resolve);
    assert!(scene.question("n1", "web:1").unwrap().upstream);
    scene.resolves("n1", "web:1", "sha256:a");
    scene.plan();
    assert_eq!(scene.ways(&["n1", "n2", "n3"], "web:1"), ["n1 < registry", "n2 < n1", "n3 < n2 n1"]);
}

#[test]
fn orders_come_back_as_they_were_written() {
    let scene = broken(None);
    let mut restarted = stoker_core::World::new();
    restarted.relay(true);
    restarted.apply(Event::Job(Box::new(web())));
    for name in ["n1", "n2", "n3"] {
        restarted.apply(Event::Node(node(name)));
        restarted.apply(Event::Orders(name.into(), scene.world.orders(name).unwrap()));
        assert_eq!(restarted.orders(name), scene.world.orders(name));
        let report: BTreeMap<_, Report> = scene
            .world
            .orders(name)
            .unwrap()
            .into_iter()
            .map(|(key, order)| (key, pulling(order.asked, scene.now)))
            .collect();
        restarted.apply(Event::Reports(name.into(), report));
    }
    assert!(restarted.plan(scene.now).orders.is_empty());
}
