//! A node's word binds only itself: two must hear the same from the registry before others are told.

use stoker_core::{Ask, Phase, Pin, Policy, Reason};

use crate::build::{at, job, key, names, pulling};
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

/// What an agent says of a later ask than it was given counts for the one that it was given, and not for the next one.
#[test]
fn an_answer_ahead_of_its_order_is_not_an_answer_to_later_jobs() {
    let image = "web@sha256:w";
    let mut scene = Scene::of(&["n1"]);
    scene.job(job("first", &[image]));
    scene.plan();
    let ahead = at(50);
    scene.report("n1", image, |report| (report.phase, report.asked) = (Phase::Succeeded, ahead));
    scene.plan();
    assert_eq!(scene.outcome("first").succeeded, 1, "the API server may have lost the order that this answers");
    scene.pass(20);
    scene.job(job("second", &[image]));
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    assert!(
        scene.order("n1", image).unwrap().asked > ahead,
        "within the skew of clocks the next ask is later than the answer"
    );
    assert_eq!(scene.states("second"), ["n1 pulls"]);
}
