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
fn the_first_node_asks_and_all_get_its_answer() {
    let mut scene = scene(&["n1", "n2", "n3"]);
    assert_eq!(scene.states("web"), ["n1 waits: Unresolved", "n2 waits: Unresolved", "n3 waits: Unresolved"]);
    scene.progresses("n1", "web:1");
    assert_eq!(scene.plan(), NOTHING);
    scene.resolves("n1", "web:1", "sha256:a");
    let writes = scene.plan();
    assert_eq!(writes, ["n1 pulls web:1 at sha256:a", "n2 pulls web:1 at sha256:a", "n3 pulls web:1 at sha256:a"]);
    assert_eq!(scene.outcome("web").digests["web:1"], "sha256:a");
}

#[test]
fn asking_takes_no_place_and_a_paused_job_does_not_ask() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut web = job("web", &["db@sha256:d"]);
    web.parallelism = 1;
    scene.job(web);
    assert_eq!(scene.plan(), ["n1 pulls db@sha256:d at sha256:d"]);
    scene.edit("web", |job| job.images.push(crate::build::image("web:1")));
    assert_eq!(scene.plan(), ["n2 asks for web:1"], "n1 pulls, and n2 is free to ask");
    assert_eq!((scene.outcome("web").pulling, scene.outcome("web").waiting), (1, 1));
    let mut paused = job("paused", &["other:1"]);
    paused.parallelism = 0;
    scene.job(paused);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("paused"), ["n1 waits: Parallelism", "n2 waits: Parallelism"]);
}

#[test]
fn a_registry_that_is_away_is_found_out_by_doubling_numbers() {
    let names: Vec<String> = (1..=100).map(|n| format!("n{n:03}")).collect();
    let mut scene = Scene::of(&names.iter().map(String::as_str).collect::<Vec<_>>());
    scene.job(job("web", &["web:1"]));
    let mut rounds = Vec::new();
    loop {
        let writes = scene.plan();
        if writes.is_empty() {
            break;
        }
        assert!(writes.iter().all(|write| write.ends_with("asks for web:1")), "{writes:?}");
        for write in &writes {
            scene.fails(write.split(' ').next().unwrap(), "web:1", Reason::Unreachable);
        }
        rounds.push(writes.len());
    }
    assert_eq!(rounds, [1, 2, 4, 8, 16, 32, 37]);
    let outcome = scene.outcome("web");
    assert_eq!((outcome.stage, outcome.failed), (stoker_core::Stage::Failed, 100));
    assert!(outcome.failures.iter().all(|failed| failed.reason == Reason::Unreachable));
}

#[test]
fn a_node_that_could_not_ask_is_not_given_up_when_another_could() {
    let mut scene = scene(&["n1", "n2", "n3"]);
    scene.fails("n1", "web:1", Reason::Unreachable);
    assert_eq!(scene.plan(), ["n2 asks for web:1", "n3 asks for web:1"]);
    assert_eq!(scene.states("web"), ["n1 failed: Unreachable", "n2 waits: Unresolved", "n3 waits: Unresolved"]);
    scene.resolves("n3", "web:1", "sha256:a");
    let writes = scene.plan();
    assert_eq!(writes, ["n1 pulls web:1 at sha256:a", "n2 pulls web:1 at sha256:a", "n3 pulls web:1 at sha256:a"]);
    scene.fails("n1", "web:1", Reason::Unreachable);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["n1 failed: Unreachable", "n2 pulls", "n3 pulls"]);
}

#[test]
fn a_node_that_cannot_resolve_pulls_what_the_tag_means_and_says_what_it_was() {
    let mut scene = scene(&["n1", "n2", "n3"]);
    scene.cannot_resolve("n1", "web:1");
    assert_eq!(scene.plan(), ["n1 pulls web:1 at any digest", "n2 asks for web:1"], "another may be able to resolve");
    scene.cannot_resolve("n2", "web:1");
    assert_eq!(scene.plan(), ["n3 asks for web:1"], "one pulls without a digest");
    scene.cannot_resolve("n3", "web:1");
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 waits: Unresolved", "n3 waits: Unresolved"]);
    scene.resolves("n1", "web:1", "sha256:a");
    assert_eq!(scene.plan(), ["n2 pulls web:1 at sha256:a", "n3 pulls web:1 at sha256:a"]);
}

#[test]
fn where_no_node_can_resolve_few_are_asked_and_failed_pulls_are_followed_by_doubling_numbers() {
    let names: Vec<String> = (1..=9).map(|n| format!("n{n}")).collect();
    let mut scene = Scene::of(&names.iter().map(String::as_str).collect::<Vec<_>>());
    scene.job(job("web", &["web:1"]));
    for node in ["n1", "n2", "n3"] {
        assert!(scene.plan().contains(&format!("{node} asks for web:1")));
        scene.cannot_resolve(node, "web:1");
    }
    assert_eq!(scene.plan(), NOTHING, "n1 pulls, and three said that they cannot resolve");
    scene.fails("n1", "web:1", Reason::Unreachable);
    let writes = scene.plan();
    assert_eq!(writes.iter().filter(|write| write.ends_with("at any digest")).count(), 2, "{writes:?}");
}

#[test]
fn a_node_that_does_not_answer_holds_nobody_up_for_long() {
    let mut scene = scene(&["n1", "n2", "n3", "n4", "n5", "n6", "n7"]);
    scene.pass(29);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.world.plan(scene.now).wake, Some(crate::build::at(30)));
    scene.pass(1);
    assert_eq!(scene.plan(), ["n2 asks for web:1", "n3 asks for web:1"]);
    scene.pass(30);
    assert_eq!(scene.plan().len(), 4);
    scene.resolves("n5", "web:1", "sha256:a");
    assert_eq!(scene.plan().len(), 7, "also those that have not answered");
}

#[test]
fn a_node_that_rests_or_is_not_ready_is_not_waited_for() {
    let mut scene = scene(&["n1", "n2", "n3", "n4"]);
    scene.report("n1", "web:1", |report| report.reason = Some(Reason::RateLimited));
    assert_eq!(scene.plan(), ["n2 asks for web:1", "n3 asks for web:1"], "it may be told to come back in an hour");
    let mut other = Scene::of(&["n1", "n2"]);
    other.job(job("web", &["web:1"]));
    assert_eq!(other.plan(), ["n1 asks for web:1"]);
    other.change_node("n1", |node| node.ready = false);
    assert_eq!(other.plan(), ["n2 asks for web:1"]);
}

#[test]
fn jobs_that_keep_coming_do_not_keep_each_other_from_an_answer() {
    let mut scene = scene(&["n1"]);
    let asked = scene.question("n1", "web:1").unwrap().asked;
    for n in 0..5 {
        scene.pass(1);
        scene.job(job(&format!("later-{n}"), &["web:1"]));
        assert_eq!(scene.plan(), NOTHING, "the question in flight is not replaced");
        assert_eq!(scene.states(&format!("later-{n}")), ["n1 waits: Unresolved"]);
    }
    assert_eq!(scene.question("n1", "web:1").unwrap().asked, asked);
    scene.resolves("n1", "web:1", "sha256:a");
    let mut writes = scene.plan();
    writes.sort();
    assert_eq!(writes, ["n1 asks for web:1", "n1 pulls web:1 at sha256:a"], "for the first job, and for the others");
}

#[test]
fn a_second_job_learns_the_digest_while_the_first_one_pulls() {
    let mut scene = scene(&["n1", "n2"]);
    scene.resolves("n1", "web:1", "sha256:a");
    assert_eq!(scene.plan().len(), 2);
    scene.pass(10);
    let mut second = job("second", &["web:1"]);
    second.pull.policy = Policy::Always;
    scene.job(second);
    assert_eq!(scene.plan(), ["n1 asks for web:1"], "although n1 is pulling it");
    scene.report_question("n1", "web:1", "sha256:a");
    scene.plan();
    assert_eq!(scene.outcome("second").digests["web:1"], "sha256:a");
    assert_eq!(scene.states("second"), ["n1 pulls", "n2 pulls"]);
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
    web.parallelism = 1;
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
    assert_eq!(steps, [1, 2, 4, 8, 16, 32, 64, 128, 256, 489], "looking takes no place of the job's parallelism");
    assert_eq!(scene.outcome("web").succeeded, 1000);
}

#[test]
fn who_looks_and_lacks_the_image_waits_for_who_asks() {
    let mut scene = scene(&["n1", "n2", "n3", "n4"]);
    scene.has("n1", "web:1");
    assert_eq!(scene.plan(), ["n2 asks for web:1", "n3 looks for web:1"]);
    scene.lacks("n3", "web:1");
    assert_eq!(scene.plan(), NOTHING, "as many looked in vain as had it");
    assert_eq!(scene.states("web")[2..], ["n3 waits: Unresolved", "n4 waits: Unresolved"]);
    scene.has("n2", "web:1");
    assert_eq!(scene.plan(), ["n3 asks for web:1", "n4 looks for web:1"]);
    scene.resolves("n3", "web:1", "sha256:a");
    assert_eq!(scene.plan(), ["n3 pulls web:1 at sha256:a", "n4 pulls web:1 at sha256:a"], "no need to look any more");
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
    assert_eq!(scene.states("web"), ["n1 done", "n2 failed: Unreachable", "n3 waits: Unresolved"]);
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
    assert_eq!(scene.states("strict"), ["n1 waits: Unresolved", "n2 waits: Unresolved", "n3 waits: Unresolved"]);
}

#[test]
fn a_late_answer_changes_nothing() {
    let mut scene = scene(&["n1", "n2", "n3", "n4"]);
    scene.edit("web", |job| job.parallelism = 1);
    scene.pass(30);
    assert_eq!(scene.plan(), ["n2 asks for web:1", "n3 asks for web:1"]);
    scene.resolves("n2", "web:1", "sha256:b");
    assert_eq!(scene.plan(), ["n1 pulls web:1 at sha256:b"]);
    scene.report_question("n1", "web:1", "sha256:a");
    scene.succeeds("n1", "web:1");
    assert_eq!(scene.plan(), ["n2 pulls web:1 at sha256:b"], "what was handed out first is what all get");
}

#[test]
fn a_node_that_leaves_while_it_asks_hands_over() {
    let mut scene = scene(&["n1", "n2"]);
    scene.world.apply(stoker_core::Event::AgentGone("n1".into()));
    assert_eq!(scene.plan(), ["n2 asks for web:1"]);
    assert_eq!(scene.states("web"), ["n1 waits: NoAgent", "n2 waits: Unresolved"]);
}

#[test]
fn a_node_waits_while_one_of_its_images_is_unresolved() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.job(job("web", &["db@sha256:d", "web:1"]));
    assert_eq!(scene.plan(), ["n1 asks for web:1"]);
    assert_eq!(scene.states("web"), ["n1 waits: Unresolved", "n2 waits: Unresolved"]);
    scene.resolves("n1", "web:1", "sha256:a");
    assert_eq!(scene.plan().len(), 4);
}

#[test]
fn an_image_whose_registry_does_not_answer_holds_up_no_other_for_long() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.job(job("web", &["db@sha256:d", "web:1"]));
    assert_eq!(scene.plan(), ["n1 asks for web:1"]);
    assert_eq!(scene.world.plan(scene.now).wake, Some(crate::build::at(5)));
    scene.pass(5);
    let writes = scene.plan();
    assert_eq!(writes, ["n1 pulls db@sha256:d at sha256:d", "n2 pulls db@sha256:d at sha256:d"]);
    scene.resolves("n1", "web:1", "sha256:a");
    let writes = scene.plan();
    assert_eq!(writes, ["n1 pulls web:1 at sha256:a", "n2 pulls web:1 at sha256:a"], "they have their places");
}

#[test]
fn each_job_asks_anew_and_what_runs_for_one_is_not_what_the_other_means() {
    let mut scene = Scene::of(&["n1", "n2", "n3"]);
    let mut first = job("first", &["web:1"]);
    first.parallelism = 1;
    scene.job(first);
    scene.plan();
    scene.resolves("n1", "web:1", "sha256:a");
    assert_eq!(scene.plan(), ["n1 pulls web:1 at sha256:a"]);
    scene.succeeds("n1", "web:1");
    assert_eq!(scene.plan(), ["n2 pulls web:1 at sha256:a"]);
    scene.pass(10);
    let mut second = job("second", &["web:1"]);
    second.pull.policy = Policy::Always;
    scene.job(second);
    assert_eq!(scene.plan(), ["n1 asks for web:1"]);
    assert_eq!(scene.states("first"), ["n1 done", "n2 pulls", "n3 waits: Parallelism"]);
    scene.report_question("n1", "web:1", "sha256:b");
    let writes = scene.plan();
    let expected = ["n1 pulls web:1 at sha256:b", "n2 pulls web:1 at sha256:b", "n3 pulls web:1 at sha256:b"];
    assert_eq!(writes, expected, "asked again, also where the older one is on its way");
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
    assert_eq!(scene.plan(), ["n1 pulls web:1 at sha256:a", "n2 pulls web:1 at sha256:a"]);
    scene.succeeds("n1", "web:1");
    scene.succeeds("n2", "web:1");
    scene.plan();
    scene.pass(3600);
    assert_eq!(scene.plan(), ["n1 asks for web:1"]);
    scene.resolves("n1", "web:1", "sha256:b");
    assert_eq!(scene.plan(), ["n1 pulls web:1 at sha256:b", "n2 pulls web:1 at sha256:b"]);
}

#[test]
fn a_question_is_taken_back_with_its_job() {
    let mut scene = scene(&["n1", "n2"]);
    scene.delete("web");
    assert_eq!(scene.plan(), ["n1 drops web:1"]);
    scene.job(job("again", &["web:1"]));
    assert_eq!(scene.plan(), ["n1 asks for web:1"]);
    scene.edit("again", |job| job.suspend = true);
    assert_eq!(scene.plan(), ["n1 drops web:1"], "a question has nothing to keep");
}
