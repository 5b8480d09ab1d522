//! A node's word binds only itself: two must hear the same from the registry before others are told.

use stoker_core::world::NodeState;
use stoker_core::{Ask, Phase, Pin, Policy, Reason, Waiting};

use crate::build::{at, id, image, job, key, names, of_namespace, pulling};
use crate::scene::{NOTHING, Scene};

fn scene(nodes: &[&str]) -> Scene {
    let mut scene = Scene::of_strangers(nodes);
    scene.job(job("web", &["web:1"]));
    scene
}

/// Whether the digest that a node is told to pull is one node's word.
fn is_alone(scene: &Scene, node: &str) -> bool {
    let Some(Ask::Fetch(Some(pin))) = scene.order(node, "web:1").map(|order| order.ask) else {
        panic!("{node}: no pull")
    };
    pin.alone
}

#[test]
fn two_nodes_ask_and_what_both_heard_is_what_all_pull() {
    let mut scene = scene(&["n1", "n2", "n3"]);
    assert_eq!(scene.plan(), ["n1 asks for web:1", "n2 asks for web:1"]);
    scene.resolves("n1", "web:1", "sha256:a");
    assert_eq!(scene.plan(), NOTHING, "nobody asks again, and nobody pulls");
    assert_eq!(scene.states("web"), ["n1 waits: Unresolved", "n2 waits: Unresolved", "n3 waits: Unresolved"]);
    assert!(scene.outcome("web").digests.is_empty());
    scene.resolves("n2", "web:1", "sha256:a");
    let writes = scene.plan();
    assert_eq!(writes, ["n1 pulls web:1 at sha256:a", "n2 pulls web:1 at sha256:a", "n3 pulls web:1 at sha256:a"]);
    assert!(["n1", "n2", "n3"].iter().all(|node| !is_alone(&scene, node)));
    assert!(scene.outcome("web").alone.is_empty());
}

#[test]
fn a_node_that_says_something_else_is_outvoted() {
    let mut scene = scene(&["n1", "n2", "n3", "n4"]);
    scene.plan();
    scene.resolves("n1", "web:1", "sha256:lie");
    scene.resolves("n2", "web:1", "sha256:a");
    assert_eq!(
        scene.plan(),
        ["n3 asks for web:1", "n4 asks for web:1"],
        "one that is lacking, one for the other answer"
    );
    scene.resolves("n3", "web:1", "sha256:a");
    let writes = scene.plan();
    assert_eq!(writes.len(), 4, "{writes:?}");
    assert!(writes.iter().all(|write| write.ends_with("pulls web:1 at sha256:a")), "{writes:?}");
}

#[test]
fn what_a_node_was_not_asked_does_not_count() {
    let answer = |asked| {
        let mut report = pulling(asked, at(0));
        (report.phase, report.pin) = (Phase::Resolved, Some(Pin::new(asked, "sha256:lie")));
        report
    };
    for ahead in [0, 3_600] {
        let mut scene = scene(&["n1", "n2", "n3", "n4"]);
        for node in ["n3", "n4"] {
            scene.says_unasked(node, key("web:1"), answer(at(ahead)));
            scene.says_unasked(node, key("web:1").question(), answer(at(ahead)));
        }
        assert_eq!(scene.plan(), ["n1 asks for web:1", "n2 asks for web:1"]);
        scene.resolves("n1", "web:1", "sha256:a");
        scene.resolves("n2", "web:1", "sha256:a");
        assert!(scene.plan().iter().all(|write| write.ends_with("at sha256:a")));
        // Told to pull one digest, they say that the tag means another, now and in future.
        for node in ["n3", "n4"] {
            let asked = scene.order(node, "web:1").unwrap().asked;
            scene.report(node, "web:1", |report| report.pin = Some(Pin::new(asked, "sha256:lie")));
        }
        scene.pass(60);
        scene.job(job("later", &["web:1"]));
        assert_eq!(scene.plan(), ["n1 asks for web:1", "n2 asks for web:1"], "{ahead}");
    }
}

#[test]
fn an_answer_to_an_older_or_a_newer_ask_does_not_count() {
    for asked in [at(-10), at(10)] {
        let mut scene = scene(&["n1", "n2", "n3"]);
        scene.plan();
        for node in ["n1", "n2"] {
            scene.report(node, "web:1", |report| {
                (report.phase, report.pin) = (Phase::Resolved, Some(Pin::new(asked, "sha256:lie")));
            });
        }
        assert_eq!(scene.plan(), ["n3 asks for web:1"], "an answer without content is none");
        assert!(scene.outcome("web").digests.is_empty());
    }
}

#[test]
fn one_node_has_one_word_however_it_was_asked() {
    let mut scene = scene(&["n1", "n2", "n3", "n4", "n5", "n6"]);
    scene.plan();
    scene.cannot_resolve("n1", "web:1");
    assert_eq!(scene.plan(), ["n1 pulls web:1 at any digest", "n3 asks for web:1"]);
    scene.resolves("n1", "web:1", "sha256:lie");
    let asked = scene.question("n1", "web:1").unwrap().asked;
    let mut report = pulling(asked, at(0));
    (report.phase, report.pin) = (Phase::Resolved, Some(Pin::new(asked, "sha256:lie")));
    scene.says_unasked("n1", key("web:1").question(), report);
    assert_eq!(scene.plan(), NOTHING);
}

#[test]
fn a_job_for_one_node_goes_by_its_word() {
    let mut scene = Scene::of_strangers(&["n1", "n2"]);
    let mut web = job("web", &["web:1"]);
    web.names = names(&["n1"]);
    scene.job(web);
    assert_eq!(scene.plan(), ["n1 asks for web:1"]);
    scene.resolves("n1", "web:1", "sha256:a");
    assert_eq!(scene.plan(), ["n1 pulls web:1 at sha256:a"]);
    assert!(scene.outcome("web").alone.is_empty(), "it decides for nobody else");
}

#[test]
fn where_no_other_can_be_asked_one_answer_counts_and_that_is_said() {
    let mut scene = scene(&["n1", "n2", "n3"]);
    scene.change_node("n3", |node| node.ready = false);
    scene.plan();
    scene.resolves("n1", "web:1", "sha256:a");
    scene.fails("n2", "web:1", Reason::Unreachable);
    assert_eq!(scene.plan(), ["n1 pulls web:1 at sha256:a", "n2 pulls web:1 at sha256:a"]);
    assert!(is_alone(&scene, "n1"));
    assert_eq!(scene.outcome("web").alone, ["web:1"]);
    scene.change_node("n3", |node| node.ready = true);
    assert_eq!(scene.plan(), ["n3 asks for web:1"], "it can be asked now");
    assert_eq!(scene.outcome("web").digests["web:1"], "sha256:a");
    scene.resolves("n3", "web:1", "sha256:a");
    assert_eq!(scene.plan(), ["n3 pulls web:1 at sha256:a"]);
}

#[test]
fn after_three_that_could_not_reach_the_registry_one_answer_counts() {
    let mut scene = scene(&["n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"]);
    scene.plan();
    scene.fails("n1", "web:1", Reason::Unreachable);
    scene.resolves("n2", "web:1", "sha256:a");
    assert_eq!(scene.plan(), ["n3 asks for web:1", "n4 asks for web:1"]);
    scene.fails("n3", "web:1", Reason::Unreachable);
    scene.plan();
    scene.fails("n4", "web:1", Reason::Unreachable);
    let writes = scene.plan();
    assert_eq!(writes.iter().filter(|write| write.ends_with("pulls web:1 at sha256:a")).count(), 8, "{writes:?}");
    assert_eq!(scene.outcome("web").alone, ["web:1"]);
}

/// Nodes that another namespace asks, and that cannot reach the registry or say so because they were taken over, prove nothing about the
/// nodes of this job: its tag still takes two witnesses.
#[test]
fn failures_of_nodes_that_others_ask_do_not_make_one_answer_enough() {
    let mut scene = Scene::of_strangers(&["n1", "n2", "n3", "n4", "x1", "x2", "x3"]);
    let mut theirs = of_namespace("another", job("theirs", &["web:1"]));
    theirs.names = names(&["x1", "x2", "x3"]);
    scene.job(theirs);
    let mut web = job("web", &["web:1"]);
    web.names = names(&["n1", "n2", "n3", "n4"]);
    scene.job(web);
    assert_eq!(scene.plan(), ["x1 asks for web:1", "x2 asks for web:1"]);
    scene.fails("x1", "web:1", Reason::Unreachable);
    scene.fails("x2", "web:1", Reason::Unreachable);
    assert_eq!(scene.plan(), ["n1 asks for web:1", "n2 asks for web:1", "n3 asks for web:1", "x3 asks for web:1"]);
    scene.fails("x3", "web:1", Reason::Unreachable);
    scene.resolves("n1", "web:1", "sha256:lie");
    scene.plan();
    assert!(scene.order("n2", "web:1").is_none(), "{:?}", scene.states("web"));
    scene.resolves("n2", "web:1", "sha256:a");
    scene.resolves("n3", "web:1", "sha256:a");
    let writes = scene.plan();
    assert!(writes.iter().all(|write| write.ends_with("pulls web:1 at sha256:a")), "{writes:?}");
    assert!(scene.outcome("web").alone.is_empty());
}

#[test]
fn a_slow_witness_is_followed_by_others_and_holds_nobody_up_where_there_are_none() {
    let mut scene = scene(&["n1", "n2", "n3"]);
    scene.plan();
    scene.resolves("n1", "web:1", "sha256:a");
    assert_eq!(scene.plan(), NOTHING);
    scene.pass(30);
    assert_eq!(scene.plan(), ["n3 asks for web:1"]);
    assert_eq!(scene.plan(), NOTHING);
    scene.pass(30);
    assert_eq!(scene.plan().len(), 3, "both are slow, and nobody else is there");
    assert!(is_alone(&scene, "n3"));
}

#[test]
fn nodes_that_disagree_go_by_their_own_word_when_no_other_can_be_asked() {
    let mut scene = scene(&["n1", "n2"]);
    scene.plan();
    scene.resolves("n1", "web:1", "sha256:a");
    scene.resolves("n2", "web:1", "sha256:b");
    assert_eq!(scene.plan(), ["n1 pulls web:1 at any digest", "n2 pulls web:1 at any digest"]);
    scene.resolves("n1", "web:1", "sha256:a");
    scene.succeeds("n1", "web:1");
    scene.resolves("n2", "web:1", "sha256:b");
    scene.succeeds("n2", "web:1");
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.outcome("web").succeeded, 2);
}

#[test]
fn where_no_node_can_resolve_two_pull_and_must_agree() {
    let mut scene = scene(&["n1", "n2", "n3", "n4", "n5"]);
    scene.plan();
    scene.cannot_resolve("n1", "web:1");
    scene.cannot_resolve("n2", "web:1");
    let writes = scene.plan();
    assert_eq!(writes.iter().filter(|write| write.ends_with("at any digest")).count(), 2, "{writes:?}");
    scene.cannot_resolve("n3", "web:1");
    scene.cannot_resolve("n4", "web:1");
    scene.resolves("n1", "web:1", "sha256:a");
    assert_eq!(scene.plan(), NOTHING);
    scene.resolves("n2", "web:1", "sha256:a");
    let writes = scene.plan();
    assert_eq!(writes.iter().filter(|write| write.ends_with("at sha256:a")).count(), 3, "{writes:?}");
}

/// A runtime that could not resolve yesterday was replaced: what its node says today is not yesterday's word.
#[test]
fn the_last_word_of_a_node_counts() {
    let mut scene = scene(&["n1"]);
    assert_eq!(scene.plan(), ["n1 asks for web:1"]);
    scene.cannot_resolve("n1", "web:1");
    assert_eq!(scene.plan(), ["n1 pulls web:1 at any digest"]);
    scene.resolves("n1", "web:1", "sha256:a");
    scene.succeeds("n1", "web:1");
    scene.plan();
    scene.pass(10);
    let mut again = job("again", &["web:1"]);
    again.pull.policy = Policy::Always;
    scene.job(again);
    assert_eq!(scene.plan(), ["n1 asks for web:1"]);
    scene.report_question("n1", "web:1", "sha256:b");
    assert_eq!(scene.plan(), ["n1 pulls web:1 at sha256:b"]);
}

/// An agent that answers with an ask of a far future, about a question or about what nobody asked it, holds up nobody but itself.
#[test]
fn an_answer_to_an_ask_of_the_far_future_stalls_no_tag() {
    let future = "9999-12-30T00:00:00Z".parse().unwrap();
    for phase in [Phase::Pulling, Phase::Failed, Phase::Resolved, Phase::Succeeded] {
        for asked_before in [true, false] {
            let mut scene = Scene::of_strangers(&["n1", "n2", "n3"]);
            let mut lie = pulling(future, at(0));
            (lie.phase, lie.pin) = (phase, Some(Pin::new(future, "sha256:lie")));
            lie.reason = (phase == Phase::Failed).then_some(Reason::RegistryError);
            if asked_before {
                scene.job(job("first", &["web:1"]));
                scene.plan();
            }
            scene.says_unasked("n1", key("web:1").question(), lie);
            scene.plan();
            scene.pass(60);
            let mut web = job("web", &["web:1"]);
            web.pull.policy = stoker_core::Policy::Always;
            scene.job(web);
            scene.plan();
            let latest = scene.world.orders("n1").unwrap().into_values().map(|order| order.asked).max();
            assert!(latest.is_none_or(|asked| asked <= scene.now), "{phase:?}: n1 is asked at {latest:?}");
            for node in ["n2", "n3"] {
                scene.pass(30);
                scene.plan();
                scene.resolves(node, "web:1", "sha256:a");
            }
            scene.plan();
            for node in ["n2", "n3"] {
                assert!(scene.order(node, "web:1").is_some(), "{phase:?}, {asked_before}: {:?}", scene.states("web"));
            }
        }
    }
}

/// A report of a later ask than its order makes is about another order: the clock was set back since, or the agent lies. Whatever it says,
/// the order is under way, and the answer that names its ask is the one that counts.
#[test]
fn an_answer_to_a_later_ask_is_no_answer() {
    let image = "web@sha256:w";
    for ahead in [1, 50, 86_400] {
        for phase in [Phase::Pulling, Phase::Failed, Phase::Resolved, Phase::Succeeded] {
            let mut scene = Scene::of(&["n1"]);
            let mut old = pulling(at(ahead), at(ahead));
            old.phase = phase;
            scene.says_unasked("n1", key(image), old);
            scene.job(job("web", &[image]));
            assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
            let asked = scene.order("n1", image).unwrap().asked;
            assert_eq!(asked, at(0), "{phase:?}, {ahead}");
            assert_eq!(scene.plan(), NOTHING);
            assert_eq!(scene.states("web"), ["n1 pulls"], "{phase:?}, {ahead}");
            scene.succeeds("n1", image);
            scene.plan();
            assert_eq!(scene.outcome("web").succeeded, 1, "{phase:?}, {ahead}");
        }
    }
}

/// The same of what a tag means, where all nodes have answered when the clock was ahead.
#[test]
fn what_was_said_before_the_clock_was_set_back_is_asked_again() {
    for ahead in [1, 50, 86_400] {
        let mut scene = Scene::of_strangers(&["n1", "n2"]);
        for node in ["n1", "n2"] {
            let mut old = pulling(at(ahead), at(ahead));
            (old.phase, old.pin) = (Phase::Resolved, Some(Pin::new(at(ahead), "sha256:old")));
            scene.says_unasked(node, key("web:1").question(), old);
        }
        scene.job(job("web", &["web:1"]));
        assert_eq!(scene.plan(), ["n1 asks for web:1", "n2 asks for web:1"]);
        scene.resolves("n1", "web:1", "sha256:a");
        scene.resolves("n2", "web:1", "sha256:a");
        assert_eq!(scene.plan(), ["n1 pulls web:1 at sha256:a", "n2 pulls web:1 at sha256:a"], "{ahead}");
    }
}

/// The last node that could still have been asked joins a slow pull of another job: then the word of the other one is enough, in the same
/// plan.
#[test]
fn a_node_that_joins_a_pull_is_nobody_to_wait_for() {
    let mut scene = Scene::of_strangers(&["n1", "n2"]);
    let mut other = job("other", &["web:1"]);
    other.parallelism = 1;
    scene.job(other);
    scene.job(job("edited", &["db:1"]));
    scene.plan();
    scene.report_question("n1", "web:1", "sha256:a");
    scene.cannot_resolve("n2", "web:1");
    assert_eq!(scene.plan(), ["n2 pulls web:1 at any digest"]);
    scene.pass(40);
    scene.plan();
    scene.edit("edited", |job| job.images = vec![image("web:1")]);
    scene.plan();
    assert_eq!(scene.states("edited"), ["n1 pulls", "n2 pulls"]);
}

/// The last node that could still have been asked has to pull, and then the nodes that have answered go by their own word, in the same plan.
#[test]
fn a_node_that_must_pull_is_nobody_to_wait_for() {
    let mut scene = scene(&["n1", "n2", "n3"]);
    scene.plan();
    scene.pass(40);
    assert_eq!(scene.plan(), ["n3 asks for web:1"], "the others are slow");
    scene.resolves("n1", "web:1", "sha256:a");
    scene.cannot_resolve("n2", "web:1");
    scene.fails("n3", "web:1", Reason::NotFound);
    scene.plan();
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 pulls", "n3 failed: NotFound"]);
}

/// A pull may take long: nodes that are at it are asked about other images all the same, and nobody waits for a node that is not asked.
#[test]
fn a_node_that_pulls_is_asked_about_another_image() {
    let mut scene = Scene::of_strangers(&["n1", "n2", "n3"]);
    let mut web = job("web", &["db@sha256:d"]);
    web.parallelism = 2;
    scene.job(web);
    assert_eq!(scene.plan(), ["n1 pulls db@sha256:d at sha256:d", "n2 pulls db@sha256:d at sha256:d"]);
    scene.pass(1);
    scene.edit("web", |job| job.images.push(image("web:1")));
    assert_eq!(scene.plan(), ["n1 asks for web:1", "n3 asks for web:1"]);
    scene.report_question("n3", "web:1", "sha256:a");
    scene.plan();
    let waiting = scene.world.nodes(&id("web"), scene.now)[2].state.clone();
    assert!(matches!(&waiting, NodeState::Waiting(Waiting::Unresolved { by, .. }) if by == "n1"), "{waiting:?}");
    scene.report_question("n1", "web:1", "sha256:a");
    assert_eq!(scene.plan(), ["n1 pulls web:1 at sha256:a", "n2 pulls web:1 at sha256:a"]);
}
