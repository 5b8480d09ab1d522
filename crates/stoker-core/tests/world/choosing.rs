//! Jobs that want only some of the nodes that they could have.

use std::collections::{BTreeMap, BTreeSet};

use stoker_core::model::{Job, Node};
use stoker_core::{Completion, Event, Reason, Stage, World};

use crate::build::{at, job, names, node, pool, secs};
use crate::scene::{NOTHING, Scene};

/// An image that needs no resolving.
const WEB: &str = "web@sha256:w";

fn in_zone(name: &str, zone: &str) -> Node {
    let mut node = node(name);
    node.labels.insert("topology.kubernetes.io/zone".into(), zone.into());
    node
}

/// Nodes n1 and n2 in the zone east, n3 and n4 in the zone west.
fn two_zones() -> Scene {
    let mut scene = Scene::of(&["n1", "n2", "n3", "n4"]);
    for (name, zone) in [("n1", "east"), ("n2", "east"), ("n3", "west"), ("n4", "west")] {
        scene.node(in_zone(name, zone));
    }
    scene
}

fn some(number: u32) -> Job {
    let mut job = job("web", &[WEB]).picking(number, None);
    job.completion = Completion::Continuous { resync: secs(86_400) };
    job
}

fn chosen(scene: &Scene) -> Vec<String> {
    scene.outcome("web").chosen.iter().flat_map(|chosen| chosen.keys()).map(ToString::to_string).collect()
}

fn pulls(node: &str) -> String {
    format!("{node} pulls {WEB} at sha256:w")
}

fn drops(node: &str) -> String {
    format!("{node} drops {WEB}")
}

#[test]
fn nodes_are_spread_over_zones_and_all_others_get_nothing() {
    let mut scene = two_zones();
    scene.job(some(2));
    assert_eq!(scene.plan(), [pulls("n1"), pulls("n3")]);
    assert_eq!(chosen(&scene), ["n1", "n3"]);
    assert_eq!(scene.states("web"), ["n1 pulls", "n3 pulls"]);
    ["n1", "n3"].into_iter().for_each(|node| scene.succeeds(node, WEB));
    scene.plan();
    assert_eq!((scene.outcome("web").desired, scene.outcome("web").succeeded), (2, 2));
}

#[test]
fn a_node_is_replaced_when_it_leaves_or_is_not_ready_or_does_not_match() {
    type Change = fn(&mut Scene);
    let changes: [(&str, Change); 3] = [
        ("gone", |scene| scene.world.apply(Event::NodeGone("n1".into()))),
        ("not ready", |scene| scene.change_node("n1", |node| node.ready = false)),
        ("another label", |scene| {
            scene.change_node("n1", |node| node.labels.insert("pool".into(), "spare".into()).map_or((), drop))
        }),
    ];
    for (what, change) in changes {
        let mut scene = two_zones();
        scene.job(Job { selector: pool("main"), ..some(2) });
        scene.plan();
        change(&mut scene);
        assert!(scene.plan().contains(&pulls("n2")), "{what}");
        assert_eq!(chosen(&scene), ["n2", "n3"], "{what}");
        scene.node(in_zone("n1", "east"));
        assert_eq!(scene.plan(), NOTHING, "{what}: a node that comes back is not needed");
    }
}

#[test]
fn a_node_stays_while_it_can() {
    let mut scene = two_zones();
    scene.job(some(2));
    scene.plan();
    scene.change_node("n1", |node| node.cordoned = true);
    scene.node(in_zone("n0", "north"));
    scene.agent("n0");
    scene.fails("n3", WEB, Reason::NotFound);
    assert_eq!(scene.plan(), NOTHING, "neither a cordon, nor a better spread, nor a failure is a cause");
    assert_eq!(chosen(&scene), ["n1", "n3"]);
}

fn ready(scene: &mut Scene, node: &str, ready: bool) {
    let now = scene.now;
    scene.change_node(node, |node| (node.ready, node.ready_changed) = (ready, Some(now)));
}

/// The control plane loses all kubelets for a moment.
#[test]
fn nodes_stay_chosen_when_all_nodes_are_not_ready_for_a_moment() {
    let names = ["n1", "n2", "n3", "n4", "n5", "n6"];
    let mut scene = Scene::of(&names);
    let mut web = some(2);
    web.pick.as_mut().unwrap().chosen = Some(BTreeSet::from(["n5".into(), "n6".into()]));
    scene.job(web);
    assert_eq!(scene.plan(), [pulls("n5"), pulls("n6")]);
    scene.succeeds("n5", WEB);
    for name in names {
        scene.pass(1);
        ready(&mut scene, name, false);
        assert_eq!(scene.plan(), NOTHING);
    }
    assert_eq!(chosen(&scene), ["n5", "n6"]);
    for name in names {
        scene.pass(10);
        ready(&mut scene, name, true);
        assert_eq!(scene.plan(), NOTHING);
    }
    assert_eq!(chosen(&scene), ["n5", "n6"]);
    assert_eq!(scene.states("web"), ["n5 done", "n6 pulls"]);
}

#[test]
fn who_is_back_for_long_takes_the_place_of_a_node_that_stays_away() {
    let mut scene = Scene::of(&["n1", "n2", "n3"]);
    scene.job(some(2));
    assert_eq!(scene.plan(), [pulls("n1"), pulls("n2")]);
    for name in ["n3", "n2", "n1"] {
        scene.pass(1);
        ready(&mut scene, name, false);
        scene.plan();
    }
    scene.pass(10);
    ready(&mut scene, "n1", true);
    ready(&mut scene, "n3", true);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(chosen(&scene), ["n1", "n2"]);
    let wake = scene.world.plan(scene.now).wake;
    assert_eq!(wake, Some(scene.now + secs(300)));
    scene.pass(300);
    assert_eq!(scene.plan(), [drops("n2"), pulls("n3")]);
    assert_eq!(chosen(&scene), ["n1", "n3"]);
}

/// It would fail a job that waits for another node otherwise.
#[test]
fn a_chosen_node_that_is_not_ready_is_waited_for() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(Job { completion: Completion::Once { deadline: None, ttl: None }, ..some(1) });
    scene.plan();
    scene.progresses("n1", WEB);
    ready(&mut scene, "n1", false);
    scene.plan();
    scene.pass(1_000);
    scene.plan();
    assert_eq!(
        (scene.outcome("web").stage, scene.states("web")),
        (Stage::Running, vec!["n1 waits: NodeNotReady".into()])
    );
    scene.node(node("n2"));
    scene.agent("n2");
    assert!(scene.plan().contains(&pulls("n2")));
    assert_eq!(chosen(&scene), ["n2"]);
}

#[test]
fn neither_a_cordoned_node_is_chosen_nor_one_without_an_agent() {
    let mut scene = two_zones();
    scene.change_node("n1", |node| node.cordoned = true);
    scene.world.apply(Event::AgentGone("n3".into()));
    scene.job(some(2));
    assert_eq!(scene.plan(), [pulls("n2"), pulls("n4")]);
}

#[test]
fn what_is_lacking_waits_until_there_is_a_node() {
    let mut scene = two_zones();
    ["n2", "n3", "n4"].into_iter().for_each(|name| scene.change_node(name, |node| node.cordoned = true));
    scene.job(some(3));
    assert_eq!(scene.plan(), [pulls("n1")]);
    let outcome = scene.outcome("web");
    assert_eq!((outcome.desired, outcome.waiting, outcome.pulling, outcome.lacking), (3, 2, 1, 2));
    assert_eq!(outcome.waiting_for, BTreeMap::from([(Reason::TooFewNodes, 2)]));
    scene.change_node("n4", |node| node.cordoned = false);
    assert_eq!(scene.plan(), [pulls("n4")]);
    assert_eq!(scene.outcome("web").lacking, 1);
}

#[test]
fn a_job_that_lacks_nodes_fails_at_its_deadline() {
    let mut scene = Scene::of(&["n1"]);
    let completion = Completion::Once { deadline: Some(secs(100)), ttl: None };
    scene.job(Job { completion, ..some(2) });
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.plan();
    assert_eq!((scene.outcome("web").stage, scene.outcome("web").completed), (Stage::Running, None));
    scene.pass(100);
    scene.plan();
    let outcome = scene.outcome("web");
    assert_eq!((outcome.stage, outcome.succeeded, outcome.failed, outcome.overdue), (Stage::Failed, 1, 1, true));
}

#[test]
fn an_edit_of_the_number_takes_or_gives_up_only_what_differs() {
    let mut scene = two_zones();
    scene.job(some(2));
    scene.plan();
    scene.edit("web", |job| job.pick.as_mut().unwrap().number = Some(3));
    assert_eq!(scene.plan(), [pulls("n2")]);
    scene.edit("web", |job| job.pick.as_mut().unwrap().number = Some(1));
    assert_eq!(scene.plan(), [drops("n1"), drops("n2")]);
    assert_eq!(chosen(&scene), ["n3"]);
    scene.edit("web", |job| job.pick = None);
    assert_eq!(scene.plan(), [pulls("n1"), pulls("n2"), pulls("n4")]);
    assert_eq!(scene.outcome("web").chosen, None);
    // The nodes that have orders are those of which some stay.
    scene.edit("web", |job| *job = job.clone().picking(2, None));
    assert_eq!(scene.plan(), [drops("n2"), drops("n4")]);
}

#[test]
fn all_that_are_ready_are_followed_as_they_come_and_go() {
    let mut scene = two_zones();
    scene.change_node("n2", |node| node.ready = false);
    scene.change_node("n3", |node| node.cordoned = true);
    scene.world.apply(Event::AgentGone("n4".into()));
    let all = job("web", &[WEB]).picking(None, None);
    scene.job(Job { completion: Completion::Continuous { resync: secs(86_400) }, ..all });
    assert_eq!(scene.plan(), [pulls("n1")]);
    let outcome = scene.outcome("web");
    assert_eq!((outcome.desired, outcome.lacking, chosen(&scene)), (2, 0, vec!["n1".to_owned(), "n4".to_owned()]));
    assert_eq!(outcome.waiting_for, BTreeMap::from([(Reason::NoAgent, 1)]));
    scene.change_node("n2", |node| node.ready = true);
    assert_eq!(scene.plan(), [pulls("n2")]);
    scene.change_node("n1", |node| node.cordoned = true);
    assert_eq!(scene.plan(), NOTHING, "a cordon is no cause to give a node up");
    scene.change_node("n1", |node| node.ready = false);
    assert_eq!(scene.plan(), [drops("n1")]);
    assert_eq!(chosen(&scene), ["n2", "n4"]);
}

#[test]
fn the_nodes_are_among_those_that_the_job_names() {
    let mut scene = two_zones();
    let named = Job { names: names(&["n2", "n4", "n9"]), ..job("web", &[WEB]) };
    scene.job(named.picking(3, None));
    assert_eq!(scene.plan(), [pulls("n2"), pulls("n4")]);
    assert_eq!(scene.outcome("web").lacking, 1, "n9 does not exist");
}

#[test]
fn a_new_controller_goes_on_with_what_the_status_or_the_orders_say() {
    let mut scene = two_zones();
    scene.job(some(2));
    scene.plan();
    let orders: Vec<Event> =
        ["n1", "n3"].map(|name| Event::Orders(name.into(), scene.world.orders(name).unwrap())).to_vec();
    let said = |chosen: &[&str]| Some(chosen.iter().map(|name| (*name).into()).collect::<BTreeSet<_>>());
    for (chosen, expected) in [(said(&["n2", "n4"]), ["n2", "n4"]), (None, ["n1", "n3"])] {
        let mut world = World::new();
        // Nodes that would come first, if it chose anew.
        for (name, zone) in
            [("m1", "east"), ("m3", "west"), ("n1", "east"), ("n2", "east"), ("n3", "west"), ("n4", "west")]
        {
            world.apply(Event::Node(in_zone(name, zone)));
            world.apply(Event::Orders(name.into(), BTreeMap::new()));
        }
        orders.iter().cloned().for_each(|event| world.apply(event));
        let mut job = some(2);
        job.started = Some(at(0));
        job.pick.as_mut().unwrap().chosen = chosen;
        world.apply(Event::Job(Box::new(job.clone())));
        world.plan(scene.now);
        let names: Vec<String> = world.nodes(&job.id, scene.now).iter().map(|view| view.node.to_string()).collect();
        assert_eq!(names, expected);
    }
}

#[test]
fn what_the_controller_has_chosen_is_newer_than_what_the_object_says() {
    let mut scene = two_zones();
    scene.acknowledge = false;
    scene.job(some(1));
    assert_eq!(scene.plan(), [pulls("n1")]);
    scene.edit("web", |job| job.pick.as_mut().unwrap().chosen = Some(BTreeSet::from(["n4".into()])));
    assert_eq!(scene.plan(), NOTHING);
}
