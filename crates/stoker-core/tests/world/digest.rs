//! Digest once: one node asks the registry, all others get its answer.

use stoker_core::{Phase, Policy, Reason};

use crate::build::{job, secs};
use crate::scene::{NOTHING, Scene};

fn scene(nodes: &[&str]) -> Scene {
    let mut scene = Scene::of(nodes);
    scene.job(job("web", &["web:1"]));
    assert_eq!(scene.plan(), ["n1 asks for web:1"]);
    scene
}

#[test]
fn the_first_node_asks_and_the_others_get_its_answer() {
    let mut scene = scene(&["n1", "n2", "n3"]);
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 waits: Unresolved", "n3 waits: Unresolved"]);
    scene.progresses("n1", "web:1");
    assert_eq!(scene.plan(), NOTHING);
    scene.resolves("n1", "web:1", "sha256:a");
    assert_eq!(scene.plan(), ["n2 pulls web:1 at sha256:a", "n3 pulls web:1 at sha256:a"]);
    assert_eq!(scene.outcome("web").digests["web:1"], "sha256:a");
}

#[test]
fn a_node_that_fails_to_ask_hands_over() {
    let mut scene = scene(&["n1", "n2", "n3"]);
    scene.fails("n1", "web:1", Reason::Unreachable);
    assert_eq!(scene.plan(), ["n2 asks for web:1"]);
    assert_eq!(scene.states("web"), ["n1 failed: Unreachable", "n2 pulls", "n3 waits: Unresolved"]);
}

#[test]
fn a_node_that_had_the_image_hands_over() {
    let mut scene = scene(&["n1", "n2"]);
    scene.has("n1", "web:1");
    assert_eq!(scene.plan(), ["n2 asks for web:1"]);
    assert!(scene.outcome("web").digests.is_empty(), "the digest comes from a node that asked the registry");
}

#[test]
fn where_all_nodes_have_the_image_each_step_is_for_twice_as_many() {
    let names: Vec<String> = (1..=1000).map(|n| format!("n{n:04}")).collect();
    let mut scene = Scene::of(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let mut web = job("web", &["web:1"]);
    web.parallelism = 1000;
    scene.job(web);
    let mut steps = Vec::new();
    loop {
        let writes = scene.plan();
        if writes.is_empty() {
            break;
        }
        assert_eq!(writes.iter().filter(|write| write.ends_with("asks for web:1")).count(), 1);
        for write in &writes {
            scene.has(write.split(' ').next().unwrap(), "web:1");
        }
        steps.push(writes.len());
    }
    assert_eq!(steps, [1, 2, 4, 8, 16, 32, 64, 128, 256, 489]);
    assert_eq!(scene.outcome("web").succeeded, 1000);
}

#[test]
fn who_looks_and_lacks_the_image_waits_for_who_asks() {
    let mut scene = scene(&["n1", "n2", "n3", "n4"]);
    scene.has("n1", "web:1");
    assert_eq!(scene.plan(), ["n2 asks for web:1", "n3 looks for web:1"]);
    scene.lacks("n3", "web:1");
    assert_eq!(scene.plan(), NOTHING, "as many looked in vain as had it");
    assert_eq!(scene.states("web")[1..], ["n2 pulls", "n3 waits: Unresolved", "n4 waits: Unresolved"]);
    scene.has("n2", "web:1");
    assert_eq!(scene.plan(), ["n3 asks for web:1", "n4 looks for web:1"]);
    scene.resolves("n3", "web:1", "sha256:a");
    assert_eq!(scene.plan(), NOTHING);
    scene.lacks("n4", "web:1");
    assert_eq!(scene.plan(), ["n4 pulls web:1 at sha256:a"]);
    assert!(!scene.order("n4", "web:1").unwrap().looks());
}

#[test]
fn who_looked_may_be_the_next_to_ask() {
    let mut scene = scene(&["n1", "n2", "n3"]);
    scene.has("n1", "web:1");
    scene.plan();
    scene.lacks("n3", "web:1");
    assert_eq!(scene.plan(), NOTHING);
    scene.fails("n2", "web:1", Reason::Unreachable);
    assert_eq!(scene.plan(), ["n3 asks for web:1"]);
    assert_eq!(scene.states("web"), ["n1 done", "n2 failed: Unreachable", "n3 pulls"]);
}

#[test]
fn an_agent_that_cannot_look_waits_like_one_that_has_looked() {
    let mut scene = scene(&["n1", "n2", "n3"]);
    scene.has("n1", "web:1");
    scene.plan();
    scene.fails("n3", "web:1", Reason::Unsupported);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web")[2], "n3 waits: Unresolved");
}

#[test]
fn a_look_in_vain_is_no_answer_to_the_other_job_either() {
    for reason in [Reason::Unresolved, Reason::Unsupported] {
        let mut scene = Scene::of(&["n1", "n2", "n3"]);
        scene.job(job("a", &["web:1"]));
        scene.job(job("b", &["web:1"]));
        scene.plan();
        scene.has("n1", "web:1");
        assert_eq!(scene.plan(), ["n2 asks for web:1", "n3 looks for web:1"]);
        scene.fails("n3", "web:1", reason);
        scene.plan();
        scene.resolves("n2", "web:1", "sha256:a");
        scene.plan();
        scene.succeeds("n2", "web:1");
        scene.plan();
        assert_eq!(scene.states("b"), ["n1 done", "n2 done", "n3 pulls"], "{reason}");
        scene.succeeds("n3", "web:1");
        scene.plan();
        assert_eq!(scene.outcome("b").succeeded, 3);
    }
}

#[test]
fn a_look_in_vain_that_is_told_after_it_was_taken_back_is_no_answer() {
    let mut scene = scene(&["n1", "n2", "n3"]);
    scene.has("n1", "web:1");
    assert_eq!(scene.plan(), ["n2 asks for web:1", "n3 looks for web:1"]);
    let mut report = crate::build::pulling(scene.order("n3", "web:1").unwrap().asked, scene.now);
    (report.phase, report.reason) = (Phase::Failed, Some(Reason::Unresolved));
    scene.edit("web", |job| job.suspend = true);
    assert_eq!(scene.plan(), ["n2 drops web:1", "n3 drops web:1"]);
    let reports = [(crate::build::key("web:1"), report)].into();
    scene.world.apply(stoker_core::Event::Reports("n3".into(), reports));
    scene.edit("web", |job| job.suspend = false);
    assert_eq!(scene.plan(), ["n2 asks for web:1", "n3 looks for web:1"]);
    assert_eq!(scene.states("web"), ["n1 done", "n2 pulls", "n3 pulls"]);
}

#[test]
fn nobody_looks_where_the_registry_must_be_asked() {
    let mut scene = Scene::of(&["n1", "n2", "n3"]);
    let mut strict = job("strict", &["web:1"]);
    strict.pull.policy = Policy::Always;
    let mut web = job("web", &["web:1"]);
    web.names = crate::build::names(&["n1"]);
    scene.job(web);
    assert_eq!(scene.plan(), ["n1 asks for web:1"]);
    scene.has("n1", "web:1");
    scene.plan();
    scene.job(strict);
    assert_eq!(scene.plan(), ["n1 asks for web:1"]);
    assert_eq!(scene.states("strict"), ["n1 pulls", "n2 waits: Unresolved", "n3 waits: Unresolved"]);
}

#[test]
fn a_silent_node_hands_over_and_its_late_answer_changes_nothing() {
    let mut scene = scene(&["n1", "n2", "n3", "n4"]);
    scene.edit("web", |job| job.parallelism = 2);
    scene.pass(599);
    assert_eq!(scene.plan(), NOTHING);
    scene.pass(1);
    assert_eq!(scene.plan(), ["n2 asks for web:1"]);
    assert_eq!(scene.states("web")[0], "n1 failed: NodeSilent");
    scene.resolves("n2", "web:1", "sha256:b");
    assert_eq!(scene.plan(), ["n3 pulls web:1 at sha256:b"]);
    scene.resolves("n1", "web:1", "sha256:a");
    scene.succeeds("n2", "web:1");
    scene.succeeds("n3", "web:1");
    assert_eq!(scene.plan(), ["n4 pulls web:1 at sha256:b"], "what was handed out first is what all get");
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 done", "n3 done", "n4 pulls"], "n1 counts again");
}

#[test]
fn a_node_that_leaves_while_it_asks_hands_over() {
    let mut scene = scene(&["n1", "n2"]);
    scene.world.apply(stoker_core::Event::AgentGone("n1".into()));
    assert_eq!(scene.plan(), ["n2 asks for web:1"]);
    assert_eq!(scene.states("web"), ["n1 waits: NoAgent", "n2 pulls"]);
}

#[test]
fn a_node_waits_while_one_of_its_images_is_unresolved() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.job(job("web", &["db@sha256:d", "web:1"]));
    let mut writes = scene.plan();
    writes.sort();
    assert_eq!(writes, ["n1 asks for web:1", "n1 pulls db@sha256:d at sha256:d"]);
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 waits: Unresolved"]);
}

#[test]
fn a_later_job_asks_anew_and_what_both_pull_is_the_newer() {
    let mut scene = Scene::of(&["n1", "n2", "n3"]);
    let mut first = job("first", &["web:1"]);
    first.parallelism = 1;
    scene.job(first);
    scene.plan();
    scene.resolves("n1", "web:1", "sha256:a");
    scene.succeeds("n1", "web:1");
    assert_eq!(scene.plan(), ["n2 pulls web:1 at sha256:a"]);
    scene.pass(10);
    let mut second = job("second", &["web:1"]);
    second.pull.policy = Policy::Always;
    scene.job(second);
    assert_eq!(scene.plan(), ["n1 asks for web:1"]);
    assert_eq!(scene.states("first"), ["n1 done", "n2 pulls", "n3 waits: Parallelism"]);
    scene.resolves("n1", "web:1", "sha256:b");
    scene.succeeds("n1", "web:1");
    scene.succeeds("n2", "web:1");
    let writes = scene.plan();
    assert_eq!(writes, ["n2 pulls web:1 at sha256:b", "n3 pulls web:1 at sha256:b"], "for both: the newer one");
    assert_eq!(scene.outcome("first").digests["web:1"], "sha256:b", "no node has the older one any more");
    assert_eq!(scene.outcome("second").digests["web:1"], "sha256:b");
}

#[test]
fn each_round_of_a_continuous_job_asks_anew() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut web = job("web", &["web:1"]);
    web.completion = stoker_core::Completion::Continuous { resync: secs(3600) };
    scene.job(web);
    scene.plan();
    scene.resolves("n1", "web:1", "sha256:a");
    assert_eq!(scene.plan(), ["n2 pulls web:1 at sha256:a"]);
    scene.succeeds("n1", "web:1");
    scene.succeeds("n2", "web:1");
    scene.plan();
    scene.pass(3600);
    assert_eq!(scene.plan(), ["n1 asks for web:1"]);
    scene.resolves("n1", "web:1", "sha256:b");
    assert_eq!(scene.plan(), ["n2 pulls web:1 at sha256:b"]);
}

#[test]
fn a_job_that_joins_a_pull_does_not_make_a_second_node_ask() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut rounds = job("rounds", &["web:1"]);
    rounds.parallelism = 1;
    rounds.completion = stoker_core::Completion::Continuous { resync: secs(3600) };
    scene.job(rounds);
    scene.plan();
    scene.pass(601);
    scene.job(job("web", &["web:1"]));
    assert_eq!(scene.plan(), ["n2 asks for web:1"], "n1 is silent");
    scene.pass(3700);
    assert_eq!(scene.plan(), ["n1 asks for web:1"], "a new round, and n2 is silent too");
    // The answer is good enough for the one job and too old for the round of the other.
    scene.resolves("n2", "web:1", "sha256:late");
    assert_eq!(scene.plan(), ["n1 keeps web:1", "n2 keeps web:1"]);
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 pulls"]);
}

#[test]
fn an_answer_that_is_swept_away_is_missed_in_the_same_plan() {
    let mut scene = Scene::of(&["n1", "n2", "n3"]);
    let mut web = job("web", &["web:1"]);
    (web.parallelism, web.selector) = (2, crate::build::pool("main"));
    scene.job(web);
    scene.plan();
    scene.resolves("n1", "web:1", "sha256:a");
    assert_eq!(scene.plan(), ["n2 pulls web:1 at sha256:a"]);
    scene.edit("web", |job| job.parallelism = 0);
    scene.world.apply(stoker_core::Event::AgentGone("n1".into()));
    scene.succeeds("n2", "web:1");
    scene.plan();
    // Only the finished order of n2 still carries the digest; n2 leaves the job, and another job writes to it.
    scene.change_node("n2", |node| node.labels.clear());
    scene.plan();
    assert_eq!(scene.outcome("web").digests["web:1"], "sha256:a");
    let mut db = job("db", &["db@sha256:d"]);
    db.names = crate::build::names(&["n2"]);
    scene.job(db);
    let mut writes = scene.plan();
    writes.sort();
    assert_eq!(writes, ["n2 drops web:1", "n2 pulls db@sha256:d at sha256:d"]);
    assert!(scene.outcome("web").digests.is_empty());
}
