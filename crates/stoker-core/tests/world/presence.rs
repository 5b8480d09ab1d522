//! Nodes that join, leave, change, or are not there to be asked.

use std::collections::BTreeMap;

use stoker_core::{Completion, Event, Reason, Stage, Unreachable};

use crate::build::{at, job, names, node, pool, secs};
use crate::scene::{NOTHING, Scene};

const WEB: &str = "web@sha256:w";

#[test]
fn a_node_that_joins_is_asked_when_it_has_an_agent() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(job("web", &[WEB]));
    scene.plan();
    scene.node(node("n2"));
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 waits: NoAgent"]);
    scene.agent("n2");
    assert_eq!(scene.plan(), ["n2 pulls web@sha256:w at sha256:w"]);
}

#[test]
fn a_report_proves_an_agent_too() {
    let mut scene = Scene::of(&[]);
    scene.node(node("n1"));
    scene.job(job("web", &[WEB]));
    scene.world.apply(Event::Reports("n1".into(), BTreeMap::new()));
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
}

#[test]
fn a_node_that_leaves_does_not_count() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.job(job("web", &[WEB]));
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.world.apply(Event::NodeGone("n2".into()));
    scene.world.apply(Event::AgentGone("n2".into()));
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!((scene.outcome("web").desired, scene.outcome("web").stage), (1, Stage::Succeeded));
}

#[test]
fn another_node_in_the_place_of_one_that_left_starts_afresh() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.job(job("web", &[WEB]));
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.world.apply(Event::AgentGone("n1".into()));
    scene.world.apply(Event::NodeGone("n1".into()));
    scene.node(node("n3"));
    scene.agent("n3");
    assert_eq!(scene.plan(), ["n3 pulls web@sha256:w at sha256:w"]);
    assert_eq!(scene.states("web"), ["n2 pulls", "n3 pulls"]);
}

#[test]
fn a_relabelled_node_comes_and_goes() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut web = job("web", &[WEB]);
    web.selector = pool("gpu");
    scene.job(web);
    // Something to wait for, so that the job does not end at once.
    scene.change_node("n1", |node| node.labels = BTreeMap::from([("pool".into(), "gpu".into())]));
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    scene.change_node("n2", |node| node.labels = BTreeMap::from([("pool".into(), "gpu".into())]));
    assert_eq!(scene.plan(), ["n2 pulls web@sha256:w at sha256:w"]);
    scene.change_node("n1", |node| node.labels.clear());
    assert_eq!(scene.plan(), ["n1 drops web@sha256:w"]);
    assert_eq!(scene.states("web"), ["n2 pulls"]);
}

#[test]
fn a_node_that_is_not_ready_is_waited_for_but_what_runs_there_runs_on() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.change_node("n2", |node| node.ready = false);
    scene.job(job("web", &[WEB]));
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    scene.change_node("n1", |node| node.ready = false);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 waits: NodeNotReady"]);
    scene.change_node("n2", |node| node.ready = true);
    assert_eq!(scene.plan(), ["n2 pulls web@sha256:w at sha256:w"]);
}

#[test]
fn a_name_without_a_node_is_waited_for() {
    let mut scene = Scene::of(&["n1"]);
    let mut web = job("web", &[WEB]);
    web.names = names(&["n1", "n9"]);
    scene.job(web);
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.plan();
    assert_eq!(scene.states("web"), ["n1 done", "n9 waits: NodeUnknown"]);
    assert_eq!((scene.outcome("web").desired, scene.outcome("web").stage), (2, Stage::Running));
    scene.node(node("n9"));
    scene.agent("n9");
    assert_eq!(scene.plan(), ["n9 pulls web@sha256:w at sha256:w"]);
}

#[test]
fn who_gives_up_leaves_out_unknown_names_and_fails_absent_nodes_after_silence() {
    let mut scene = Scene::of(&["n1"]);
    scene.node(node("n2"));
    let mut n3 = node("n3");
    (n3.ready, n3.ready_changed) = (false, Some(at(300)));
    scene.node(n3);
    scene.agent("n3");
    let mut web = job("web", &[WEB]);
    web.names = names(&["n1", "n2", "n3", "n9"]);
    web.unreachable = Unreachable::GiveUp;
    scene.job(web);
    scene.plan();
    scene.succeeds("n1", WEB);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["n1 done", "n2 waits: NoAgent", "n3 waits: NodeNotReady"]);
    scene.pass(600);
    scene.plan();
    assert_eq!(scene.states("web"), ["n1 done", "n2 failed: NodeSilent", "n3 waits: NodeNotReady"]);
    scene.pass(300);
    scene.plan();
    assert_eq!((scene.outcome("web").failed, scene.outcome("web").stage), (2, Stage::Failed));
}

#[test]
fn a_silent_node_frees_its_place_and_counts_again_when_it_is_back() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut web = job("web", &[WEB]);
    web.parallelism = 1;
    scene.job(web);
    scene.plan();
    scene.pass(300);
    scene.progresses("n1", WEB);
    assert_eq!(scene.plan(), NOTHING);
    scene.pass(599);
    assert_eq!(scene.plan(), NOTHING, "silence is counted from the last sign of life");
    scene.pass(1);
    assert_eq!(scene.plan(), ["n2 pulls web@sha256:w at sha256:w"]);
    assert_eq!(scene.states("web"), ["n1 failed: NodeSilent", "n2 pulls"]);
    scene.succeeds("n1", WEB);
    scene.plan();
    assert_eq!(scene.states("web"), ["n1 done", "n2 pulls"]);
}

#[test]
fn a_node_that_was_heard_of_is_not_silent_whatever_its_clock_says() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(job("web", &[WEB]));
    scene.plan();
    scene.pass(9 * 60);
    // It says something about another matter; this order it has not even begun.
    scene.world.heard("n1", scene.now);
    scene.pass(9 * 60);
    scene.plan();
    assert_eq!(scene.states("web"), ["n1 pulls"]);
    scene.pass(2 * 60);
    scene.plan();
    assert_eq!(scene.outcome("web").failures[0].reason, Reason::NodeSilent);
}

#[test]
fn silence_while_nobody_could_listen_does_not_count() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.job(job("web", &[WEB]));
    scene.plan();
    // The API server was away for an hour; nothing was planned in that time.
    scene.pass(3600);
    scene.world.listening(scene.now);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 pulls"]);
    scene.succeeds("n1", WEB);
    scene.pass(10 * 60);
    scene.plan();
    let outcome = scene.outcome("web");
    assert_eq!((outcome.succeeded, outcome.failures[0].reason), (1, Reason::NodeSilent));
}

#[test]
fn a_node_that_failed_and_then_turns_out_to_have_the_image_is_done() {
    let mut scene = Scene::of(&["n1"]);
    let mut first = job("first", &["web:1"]);
    first.completion = Completion::Continuous { resync: secs(86_400) };
    scene.job(first);
    scene.plan();
    scene.resolves("n1", "web:1", "sha256:a");
    scene.plan();
    scene.fails("n1", "web:1", Reason::NotFound);
    scene.plan();
    assert_eq!(scene.states("first"), ["n1 failed: NotFound"]);
    scene.pass(10);
    scene.job(job("second", &["web:1"]));
    assert_eq!(scene.plan(), ["n1 asks for web:1"]);
    scene.has("n1", "web:1");
    scene.plan();
    assert_eq!((scene.states("first"), scene.states("second")), (vec!["n1 done".into()], vec!["n1 done".into()]));
}
