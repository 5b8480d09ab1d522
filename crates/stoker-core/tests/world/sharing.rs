//! One pull and one report serve all jobs that want an image on a node.

use stoker_core::model::{Completion, Job, Policy};
use stoker_core::{Phase, Reason, Stage};

use crate::build::{id, job, of_namespace, secs};
use crate::scene::{NOTHING, Scene};

const WEB: &str = "web@sha256:w";

#[test]
fn two_jobs_share_one_pull() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(job("a", &[WEB]));
    scene.job(job("b", &[WEB]));
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    assert_eq!(scene.order("n1", WEB).unwrap().jobs, [id("a"), id("b")].into());
    scene.succeeds("n1", WEB);
    scene.plan();
    assert_eq!((scene.outcome("a").stage, scene.outcome("b").stage), (Stage::Succeeded, Stage::Succeeded));
}

#[test]
fn a_job_that_joins_later_counts_only_what_was_asked_since_it_began() {
    let mut scene = Scene::of(&["n1"]);
    let mut first = job("first", &[WEB]);
    first.completion = Completion::Continuous { resync: secs(86_400) };
    scene.job(first);
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.plan();
    scene.pass(5);
    scene.job(job("second", &[WEB]));
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"], "asked again");
    assert_eq!(scene.order("n1", WEB).unwrap().jobs, [id("second")].into(), "the first has its answer");
    assert_eq!((scene.states("first"), scene.states("second")), (vec!["n1 done".into()], vec!["n1 pulls".into()]));
    scene.succeeds("n1", WEB);
    scene.plan();
    assert_eq!(scene.outcome("second").stage, Stage::Succeeded);
}

#[test]
fn a_job_joins_a_pull_that_is_young_enough_without_asking_again() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut slow = job("slow", &[WEB]);
    slow.parallelism = 0;
    scene.job(slow);
    scene.plan();
    scene.pass(5);
    scene.job(job("fast", &[WEB]));
    scene.plan();
    let asked = scene.order("n1", WEB).unwrap().asked;
    scene.pass(5);
    scene.edit("slow", |job| job.parallelism = 1);
    assert_eq!(scene.plan(), ["n1 keeps web@sha256:w"]);
    assert_eq!(scene.order("n1", WEB).unwrap().asked, asked);
    assert_eq!(scene.states("slow"), ["n1 pulls", "n2 waits: Parallelism"]);
    scene.succeeds("n1", WEB);
    scene.succeeds("n2", WEB);
    scene.plan();
    assert_eq!(scene.outcome("slow").stage, Stage::Succeeded, "n2 was pulled by the other job alone");
}

#[test]
fn a_job_that_has_its_answer_does_not_pull_again_for_another() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut first = job("first", &[WEB]);
    first.parallelism = 1;
    scene.job(first);
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.plan();
    scene.pass(5);
    let mut second = job("second", &[WEB]);
    second.names = crate::build::names(&["n1"]);
    scene.job(second);
    scene.plan();
    assert_eq!(scene.states("first"), ["n1 done", "n2 pulls"], "one at a time");
    scene.progresses("n1", WEB);
    scene.plan();
    assert_eq!(scene.states("first"), ["n1 waits: Parallelism", "n2 pulls"], "still one at a time");
    scene.succeeds("n1", WEB);
    scene.plan();
    assert_eq!(scene.states("first"), ["n1 done", "n2 pulls"]);
}

#[test]
fn a_pull_of_the_last_round_holds_its_place_in_the_next() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut web = job("web", &[WEB]);
    web.parallelism = 1;
    web.completion = Completion::Continuous { resync: secs(100) };
    scene.job(web);
    scene.plan();
    scene.succeeds("n1", WEB);
    assert_eq!(scene.plan(), ["n2 pulls web@sha256:w at sha256:w"]);
    scene.pass(100);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["n1 waits: Parallelism", "n2 pulls"]);
}

#[test]
fn the_strictest_terms_hold_and_edits_reach_an_order_in_flight() {
    let mut scene = Scene::of(&["n1"]);
    let mut a = job("a", &[WEB]);
    (a.pull.timeout, a.pull.retries) = (secs(100), 5);
    let mut b = job("b", &[WEB]);
    (b.pull.timeout, b.pull.retries, b.pull.policy) = (secs(200), 1, Policy::Always);
    scene.job(a);
    scene.job(b);
    scene.plan();
    let terms = |scene: &Scene| {
        let order = scene.order("n1", WEB).unwrap();
        (order.terms.pull.timeout, order.terms.pull.retries, order.terms.pull.policy)
    };
    assert_eq!(terms(&scene), (secs(100), 1, Policy::Always));
    scene.edit("a", |job| (job.pull.timeout, job.pull.retries) = (secs(50), 0));
    assert_eq!(scene.plan(), ["n1 keeps web@sha256:w"]);
    assert_eq!(terms(&scene), (secs(50), 0, Policy::Always));
    scene.delete("a");
    assert_eq!(scene.plan(), ["n1 keeps web@sha256:w"], "the other job still wants it, on its own terms");
    assert_eq!(terms(&scene), (secs(200), 1, Policy::Always));
    assert_eq!(scene.order("n1", WEB).unwrap().jobs, [id("b")].into());
}

#[test]
fn what_another_job_wants_is_not_taken_back() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(job("a", &[WEB]));
    scene.job(job("b", &[WEB]));
    scene.plan();
    scene.edit("a", |job| job.suspend = true);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!((scene.states("a"), scene.states("b")), (vec!["n1 waits: Suspended".into()], vec!["n1 pulls".into()]));
    scene.fails("n1", WEB, Reason::NotFound);
    scene.plan();
    assert_eq!(scene.outcome("b").stage, Stage::Failed);
    assert_eq!(scene.outcome("a").stage, Stage::Suspended);
}

#[test]
fn who_wants_the_registry_asked_is_not_content_with_less() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut content = job("a-content", &["web:1"]);
    content.completion = Completion::Continuous { resync: secs(3600) };
    let mut strict = job("b-strict", &["web:1"]);
    (strict.pull.policy, strict.parallelism) = (Policy::Always, 0);
    scene.job(content);
    scene.job(strict);
    scene.plan();
    scene.succeeds("n1", "web:1"); // it had the tag
    assert_eq!(scene.plan(), ["n2 asks for web:1"]);
    assert_eq!(scene.states("b-strict"), ["n1 waits: Parallelism", "n2 waits: Parallelism"]);
    scene.resolves("n2", "web:1", "sha256:a");
    scene.pass(1);
    scene.edit("b-strict", |job| job.parallelism = 2);
    assert_eq!(scene.plan(), ["n1 pulls web:1 at sha256:a", "n2 pulls web:1 at sha256:a"], "asked again, both");
    assert_eq!(scene.order("n2", "web:1").unwrap().terms.pull.policy, Policy::Always);
}

#[test]
fn a_stricter_policy_is_a_new_ask_of_what_runs_and_of_what_is_done() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.job(job("web", &[WEB]));
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.pass(5);
    scene.edit("web", |job| job.pull.policy = Policy::Always);
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    scene.succeeds("n2", WEB);
    assert_eq!(scene.plan(), ["n2 pulls web@sha256:w at sha256:w"], "what was under way was no answer");
    scene.edit("web", |job| job.pull.policy = Policy::IfNotPresent);
    assert_eq!(scene.plan(), ["n1 keeps web@sha256:w", "n2 keeps web@sha256:w"], "a weaker one is not");
}

#[test]
fn a_stricter_policy_does_not_wake_a_silent_node() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(job("web", &[WEB]));
    scene.plan();
    scene.acknowledge = false;
    scene.pass(601);
    scene.edit("web", |job| (job.pull.policy, job.parallelism) = (Policy::Always, 0));
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["n1 failed: NodeSilent"]);
}

#[test]
fn an_ask_in_the_same_instant_is_still_a_new_one() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut first = job("first", &[WEB]);
    first.completion = Completion::Continuous { resync: secs(3600) };
    scene.job(first);
    scene.plan();
    scene.succeeds("n1", WEB);
    let mut strict = job("strict", &[WEB]);
    strict.pull.policy = Policy::Always;
    scene.job(strict);
    scene.plan();
    assert_eq!(scene.states("strict"), ["n1 pulls", "n2 pulls"], "the old answer does not pass for the new");
    assert_eq!(scene.plan(), NOTHING);
}

#[test]
fn an_order_that_is_taken_back_and_handed_out_at_once_is_a_newer_ask() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(job("a", &[WEB]));
    scene.plan();
    let mut b = job("b", &[WEB]);
    b.parallelism = 0;
    scene.job(b);
    scene.plan();
    let asked = scene.order("n1", WEB).unwrap().asked;
    scene.delete("a");
    scene.edit("b", |job| job.parallelism = 1);
    scene.plan();
    assert!(scene.order("n1", WEB).unwrap().asked > asked);
}

/// Terms that ruin every pull.
fn ruinous(name: &str, image: &str) -> Job {
    let mut job = of_namespace("hostile", job(name, &[image]));
    (job.pull.timeout, job.pull.retries, job.pull.bandwidth) = (secs(1), 0, Some(1));
    job
}

#[test]
fn between_namespaces_the_most_generous_terms_hold_and_inside_one_the_strictest() {
    let mut scene = Scene::of(&["n1"]);
    let mut first = job("first", &[WEB]);
    (first.pull.timeout, first.pull.retries, first.pull.bandwidth) = (secs(600), 3, Some(1_000));
    let mut second = job("second", &[WEB]);
    (second.pull.timeout, second.pull.retries, second.pull.bandwidth) = (secs(300), 5, Some(2_000));
    scene.job(ruinous("throttle", WEB));
    scene.job(first);
    scene.job(second);
    scene.plan();
    let pull = scene.order("n1", WEB).unwrap().terms.pull;
    assert_eq!((pull.timeout, pull.retries, pull.bandwidth), (secs(300), 3, Some(1_000)));
    scene.job(of_namespace("third", job("unlimited", &[WEB])));
    scene.plan();
    assert_eq!(
        scene.order("n1", WEB).unwrap().terms.pull.bandwidth,
        None,
        "who sets no limit is not limited by others"
    );
}

#[test]
fn what_fails_on_the_terms_of_one_namespace_has_not_failed_for_another() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut web = job("web", &[WEB]);
    web.parallelism = 1;
    scene.job(web);
    scene.plan();
    scene.pass(1);
    scene.job(ruinous("early", WEB));
    scene.plan();
    scene.fails("n2", WEB, Reason::Timeout);
    scene.plan();
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 waits: Parallelism"], "its own terms were not tried on n2");
    scene.succeeds("n1", WEB);
    scene.plan();
    assert_eq!(scene.order("n2", WEB).unwrap().terms.pull.timeout, secs(600));
    scene.succeeds("n2", WEB);
    scene.plan();
    assert_eq!(scene.outcome("web").stage, Stage::Succeeded);
}

#[test]
fn a_job_in_a_hurry_does_not_make_questions_fail() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(ruinous("hurry", "web:1"));
    scene.plan();
    assert_eq!(scene.question("n1", "web:1").unwrap().terms.pull.timeout, secs(30));
    scene.pass(1);
    assert_eq!(scene.plan(), NOTHING);
}

/// A job of another namespace that would wait for ever.
fn endless(name: &str, image: &str) -> Job {
    let mut job = of_namespace("generous", job(name, &[image]));
    (job.pull.timeout, job.pull.retries) = (secs(365 * 24 * 3600), 100);
    job
}

/// A job that gives up soon: five seconds, no retry.
fn hasty(name: &str, image: &str) -> Job {
    let mut job = job(name, &[image]);
    (job.pull.timeout, job.pull.retries) = (secs(5), 0);
    job
}

#[test]
fn a_job_gives_up_on_its_own_terms_however_long_others_would_wait() {
    // What is asked first: the digest of the tag, or the pull. A question has 30 s at least.
    for (image, allowed) in [("web:1", 30 + 30), (WEB, 5 + 30)] {
        let mut scene = Scene::of(&["n1"]);
        scene.job(endless("stranger", image));
        scene.plan();
        scene.job(hasty("mine", image));
        scene.plan();
        // That the job has ended is not heard of.
        scene.acknowledge = false;
        scene.progresses("n1", image);
        scene.plan();
        let began = scene.now;
        let wake = scene.world.plan(scene.now).wake.unwrap();
        assert!(wake <= began + secs(allowed), "{image}: looked at again at {wake}");
        scene.pass(i64::try_from(allowed).unwrap() - 1);
        assert_eq!(scene.plan(), NOTHING, "{image}");
        assert!(scene.outcome("mine").stage == Stage::Running, "{image}: {:?}", scene.states("mine"));
        scene.pass(1);
        assert_eq!(scene.plan(), NOTHING, "{image}: it goes on for the other");
        assert_eq!(scene.states("mine"), ["n1 failed: Timeout"], "{image}");
        let outcome = scene.outcome("mine");
        assert_eq!(outcome.stage, Stage::Failed);
        let message = &outcome.failures[0].message;
        assert!(message.starts_with("it took longer than this job allows (1 attempt of 5 s)"), "{message}");
        let running = scene.order("n1", image).or_else(|| scene.question("n1", image)).unwrap();
        assert_eq!(running.terms.pull.retries, 100);
        // It comes after all, before anybody heard that the job has ended.
        scene.succeeds("n1", image);
        scene.plan();
        assert_eq!(scene.states("mine"), ["n1 done"], "{image}");
    }
}

#[test]
fn a_job_has_as_many_attempts_as_it_asks_for_however_many_others_have() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(endless("stranger", WEB));
    let mut mine = job("mine", &[WEB]);
    mine.pull.retries = 1;
    scene.job(mine);
    scene.plan();
    scene.acknowledge = false;
    for attempt in [1, 2] {
        scene.report("n1", WEB, |report| (report.attempt, report.reason) = (attempt, Some(Reason::RegistryError)));
        scene.plan();
        assert_eq!(scene.states("mine"), ["n1 pulls"]);
    }
    scene.report("n1", WEB, |report| report.attempt = 3);
    scene.plan();
    assert_eq!(scene.states("mine"), ["n1 failed: RegistryError"]);
}

#[test]
fn the_time_before_its_turn_on_a_node_counts_for_no_terms() {
    for message in
        ["behind 3 other images on this node", "waits for its turn: it has given its place on this node to others"]
    {
        let mut scene = Scene::of(&["n1"]);
        scene.job(endless("stranger", WEB));
        scene.job(hasty("mine", WEB));
        scene.plan();
        scene.acknowledge = false;
        let waits = |report: &mut stoker_core::model::Report| {
            (report.attempt, report.message) = (u32::from(message.starts_with("waits")), message.into());
        };
        for _ in 0..5 {
            scene.report("n1", WEB, waits);
            scene.pass(300);
            scene.plan();
            assert_eq!(scene.states("mine"), ["n1 pulls"], "{message}");
        }
        let now = scene.now;
        scene.report("n1", WEB, |report| (report.attempt, report.message, report.started) = (1, String::new(), now));
        scene.pass(34);
        scene.plan();
        assert_eq!(scene.states("mine"), ["n1 pulls"], "{message}");
        scene.pass(1);
        scene.plan();
        assert_eq!(scene.states("mine"), ["n1 failed: Timeout"], "{message}");
    }
}

#[test]
fn an_agent_whose_clock_is_wrong_fails_no_job_early_and_none_never() {
    for wrong in [-1_000_000_000, 1_000_000] {
        let mut scene = Scene::of(&["n1"]);
        scene.job(endless("stranger", WEB));
        scene.job(hasty("mine", WEB));
        scene.plan();
        scene.acknowledge = false;
        let wrong = |now: jiff::Timestamp| jiff::Timestamp::from_second(now.as_second() + wrong).unwrap();
        let began = wrong(scene.now);
        scene.report("n1", WEB, |report| (report.started, report.updated) = (began, began));
        scene.pass(300);
        scene.plan();
        assert_eq!(scene.states("mine"), ["n1 pulls"], "nothing more was heard of the pull");
        let now = wrong(scene.now);
        scene.report("n1", WEB, |report| report.updated = now);
        scene.plan();
        assert_eq!(scene.states("mine"), ["n1 failed: Timeout"]);
    }
}

/// Two jobs of which each would have tried longer in its way, and one asks for more, in one namespace or in two: a node on which everything
/// fails has failed for both after a few asks, and is not asked for ever.
#[test]
fn jobs_with_different_terms_do_not_wake_each_other_for_ever() {
    for (other, policy) in [
        ("default", Policy::IfNotPresent),
        ("default", Policy::Always),
        ("other", Policy::IfNotPresent),
        ("other", Policy::Always),
    ] {
        let mut scene = Scene::of_strangers(&["n1", "n2"]);
        let mut asks = Vec::new();
        for (name, namespace, retries, timeout, policy) in
            [("a", "default", 2, 60, Policy::IfNotPresent), ("b", other, 0, 600, policy)]
        {
            let mut job = job(name, &["web:1"]);
            (job.pull.retries, job.pull.timeout, job.pull.policy) = (retries, secs(timeout), policy);
            // None of them ends meanwhile.
            job.completion = Completion::Continuous { resync: secs(86_400) };
            scene.job(of_namespace(namespace, job));
            loop {
                let plan = scene.plan();
                scene.pass(1);
                if plan.is_empty() {
                    break;
                }
                for ask in &plan {
                    match ask.as_str() {
                        "n2 asks for web:1" => scene.report_question("n2", "web:1", "sha256:a"),
                        ask if ask.starts_with("n2") => scene.succeeds("n2", "web:1"),
                        _ => scene.fails("n1", "web:1", Reason::NotFound),
                    }
                }
                asks.push(plan);
                assert!(asks.len() < 16, "{other}, {policy:?}: it goes on and on: {asks:#?}");
            }
        }
    }
}

/// What was made more generous for the sake of a job of another namespace stays so while that job wants the image, and no longer. A job
/// that wants it and has not failed there changes nobody's terms.
#[test]
fn an_order_after_a_failure_has_the_patience_of_all_who_want_the_image() {
    let mut scene = Scene::of(&["n1"]);
    let continuous = |name: &str, namespace: &str, retries: u32, timeout: u64| {
        let mut job = of_namespace(namespace, job(name, &[WEB]));
        (job.pull.retries, job.pull.timeout) = (retries, secs(timeout));
        job.completion = Completion::Continuous { resync: secs(86_400) };
        job
    };
    let terms = |scene: &Scene| {
        let pull = scene.order("n1", WEB).unwrap().terms.pull;
        (pull.retries, pull.timeout.as_secs())
    };
    scene.job(continuous("quick", "default", 2, 60));
    let mut paused = continuous("slow", "other", 0, 600);
    paused.parallelism = 0;
    scene.job(paused);
    scene.plan();
    assert_eq!(terms(&scene), (2, 60));
    scene.fails("n1", WEB, Reason::NotFound);
    assert_eq!(scene.plan(), NOTHING);
    scene.edit("slow", |job| job.parallelism = 1);
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    assert_eq!(terms(&scene), (2, 600));
    scene.edit("quick", |job| job.pull.retries = 1);
    scene.plan();
    assert_eq!(terms(&scene), (1, 600));
    scene.delete("quick");
    assert_eq!(scene.plan(), ["n1 keeps web@sha256:w"]);
    assert_eq!(terms(&scene), (0, 600));
}

/// A node has some image of the name. Somebody who wants what the tag means now is held up by a registry: who is content with any image has it,
/// and neither waits nor fails.
#[test]
fn an_image_that_is_there_is_enough_beside_a_stranger_who_wants_the_newest() {
    let strict = || {
        let mut job = endless("stranger", "web:1");
        job.pull.policy = Policy::Always;
        job
    };
    let stalls = |report: &mut stoker_core::model::Report| report.present = true;
    // The question is under way.
    let mut scene = Scene::of(&["n1"]);
    scene.job(strict());
    assert_eq!(scene.plan(), ["n1 asks for web:1"]);
    scene.report("n1", "web:1", stalls);
    scene.job(hasty("mine", "web:1"));
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.outcome("mine").stage, Stage::Succeeded);
    // The pull is under way, and has failed.
    for phase in [Phase::Pulling, Phase::Failed] {
        let mut scene = Scene::of(&["n1"]);
        scene.job(strict());
        scene.plan();
        scene.resolves("n1", "web:1", "sha256:b");
        assert_eq!(scene.plan(), ["n1 pulls web:1 at sha256:b"]);
        scene.job(hasty("mine", "web:1"));
        scene.plan();
        scene.report("n1", "web:1", |report| (report.present, report.phase) = (true, phase));
        scene.plan();
        assert_eq!(scene.outcome("mine").stage, Stage::Succeeded, "{phase:?}");
    }
    // It counts for no other job, on no other node, and no longer than the node is heard.
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.job(strict());
    scene.plan();
    scene.report("n1", "web:1", stalls);
    scene.pass(60);
    scene.acknowledge = false;
    scene.job(job("mine", &["web:1"]));
    scene.plan();
    assert_eq!(scene.states("mine"), ["n1 done", "n2 waits: Unresolved"]);
    let mut newest = job("newest", &["web:1"]);
    newest.pull.policy = Policy::Always;
    scene.job(newest);
    scene.plan();
    assert_eq!(scene.states("newest"), ["n1 waits: Unresolved", "n2 waits: Unresolved"]);
    scene.report("n1", "web:1", |report| report.present = false);
    scene.plan();
    assert_eq!(scene.states("mine"), ["n1 waits: Unresolved", "n2 waits: Unresolved"], "somebody has removed it");
    scene.report("n1", "web:1", stalls);
    scene.plan();
    assert_eq!(scene.states("mine")[0], "n1 done");
    scene.pass(600);
    scene.plan();
    assert_ne!(scene.states("mine")[0], "n1 done", "nothing is heard of the node any more");
}

/// The orders of a job that has ended stay until the next write. What they say was true when the job ended: a job that begins later has the
/// node look for itself.
#[test]
fn what_an_ended_order_says_is_there_is_looked_for_again() {
    let mut scene = Scene::of(&["n1"]);
    let mut newest = job("newest", &["web:1"]);
    newest.pull.policy = Policy::Always;
    scene.job(newest);
    scene.plan();
    scene.report("n1", "web:1", |report| report.present = true);
    scene.resolves("n1", "web:1", "sha256:b");
    scene.plan();
    scene.succeeds("n1", "web:1");
    scene.plan();
    assert_eq!(scene.outcome("newest").stage, Stage::Succeeded);
    scene.pass(5);
    scene.job(job("mine", &["web:1"]));
    assert_ne!(scene.plan(), NOTHING, "the node is asked");
    assert_ne!(scene.outcome("mine").stage, Stage::Succeeded);
}
