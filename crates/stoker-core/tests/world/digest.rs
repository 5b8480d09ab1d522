//! Digest once: one node asks the registry, all others get its answer.

use stoker_core::{Policy, Reason};

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
    scene.report("n1", "web:1", |report| {
        report.phase = stoker_core::Phase::Succeeded;
        report.digest = Some("sha256:old".into());
    });
    assert_eq!(scene.plan(), ["n2 asks for web:1"]);
    assert!(scene.outcome("web").digests.is_empty(), "the digest comes from a node that asked the registry");
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
