//! What people read: outcomes with their counts, bytes and failures, and a sentence for whoever waits.

use stoker_core::model::{Completion, Image, Unreachable};
use stoker_core::world::NodeState;
use stoker_core::{Bytes, Event, Reason, SecretId, Stage, Waiting, Words};

use crate::build::{WORDS, at, id, image, job, names, node, secs, short};
use crate::scene::Scene;

#[test]
fn an_outcome_counts_nodes_and_adds_up_bytes() {
    let mut scene = Scene::of(&["n1", "n2", "n3", "n4", "n5"]);
    let mut web = job("web", &["web:1", "db@sha256:d"]);
    web.parallelism = 3;
    scene.job(web);
    scene.plan();
    scene.resolves("n1", "web:1", "sha256:a");
    scene.plan();
    scene.pass(10);
    for node in ["n1", "n2"] {
        for image in ["web:1", "db@sha256:d"] {
            scene.report(node, image, |report| {
                report.bytes = Bytes { total: 100, done: 50, upstream: 40, peers: 10, mirrors: 5 };
            });
        }
    }
    scene.succeeds("n1", "web:1");
    scene.succeeds("n1", "db@sha256:d");
    scene.fails("n3", "web:1", Reason::Unauthorized);
    scene.fails("n3", "db@sha256:d", Reason::NotFound);
    scene.plan();
    let outcome = scene.outcome("web");
    assert_eq!((outcome.stage, outcome.desired), (Stage::Running, 5));
    assert_eq!((outcome.succeeded, outcome.failed, outcome.pulling, outcome.waiting), (1, 1, 3, 0));
    assert_eq!(outcome.bytes, Bytes { total: 400, done: 200, upstream: 160, peers: 40, mirrors: 20 });
    let digests: Vec<String> =
        outcome.digests.iter().map(|(image, digest)| format!("{image} {}", short(digest))).collect();
    assert_eq!(digests, ["db@sha256:d sha256:d", "web:1 sha256:a"]);
    let failed = &outcome.failures[0];
    assert_eq!(
        (&*failed.node, failed.reason, failed.message.as_str()),
        ("n3", Reason::Unauthorized, "web:1 went wrong")
    );
    assert_eq!(outcome.eta, Some(at(50)), "200 of what will be 1000 in 10 seconds");
}

#[test]
fn only_the_first_failures_are_described_but_all_are_named() {
    let nodes: Vec<String> = (10..40).map(|n| format!("n{n}")).collect();
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let mut scene = Scene::of(&nodes);
    let mut web = job("web", &["web@sha256:w"]);
    web.parallelism = 100;
    scene.job(web);
    scene.plan();
    for node in &nodes {
        scene.fails(node, "web@sha256:w", Reason::NotFound);
    }
    scene.plan();
    let outcome = scene.outcome("web");
    assert_eq!((outcome.failed, outcome.failures.len(), outcome.failed_nodes.len()), (30, 20, 30));
    assert_eq!((&*outcome.failures[0].node, &*outcome.failed_nodes[29]), ("n10", "n39"));
}

#[test]
fn an_outcome_is_said_once() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(job("web", &["web:1"]));
    assert_eq!(scene.world.plan(at(0)).outcomes.len(), 1);
    assert!(scene.world.plan(at(1)).is_empty());
    scene.world.touch_everything();
    assert!(scene.world.plan(at(2)).is_empty(), "an estimate that moves with the clock is no news");
}

#[test]
fn each_reason_to_wait_has_a_sentence() {
    let secret = SecretId::new("shop", "regcred");
    let image = || "shop/web:v42".to_string();
    let unresolved = |others, trouble: &str| Waiting::Unresolved {
        image: image(),
        by: "node-7".into(),
        others,
        trouble: trouble.into(),
    };
    let asking = |trouble: &str| Waiting::Asking { image: image(), trouble: trouble.into() };
    let reasons = [
        Waiting::Suspended { resume: WORDS.resume },
        Waiting::Parallelism { limit: 0 },
        Waiting::Parallelism { limit: 1 },
        Waiting::Parallelism { limit: 10 },
        unresolved(0, ""),
        unresolved(1, ""),
        unresolved(7, "registry.example: 503"),
        asking(""),
        asking("registry.example: 503"),
        Waiting::NodeNotReady,
        Waiting::NoAgent,
        Waiting::NodeUnknown,
        Waiting::SecretUnread { secret: secret.clone() },
        Waiting::SecretForbidden { secret: secret.clone() },
        Waiting::SecretMissing { secret },
        Waiting::AgentTooOld,
        Waiting::Pending,
        Waiting::StatusUnreadable { problem: "startTime: not a time".into() },
    ];
    let sentences: Vec<String> = reasons.iter().map(|waiting| format!("{}: {waiting}", waiting.reason())).collect();
    insta::assert_snapshot!(sentences.join("\n"));
}

#[test]
fn sentences_use_the_words_of_the_api_that_the_job_is_written_in() {
    let mut scene = Scene::of(&["n1"]);
    let mut web = job("web", &["web@sha256:w"]);
    web.words = &Words { resume: "set paused to no", secrets: "credentials", orders: "Tasks" };
    web.images[0].secrets = vec![SecretId::new("default", "regcred")];
    scene.job(web);
    scene.plan();
    let secrets = &scene.outcome("web").secrets;
    assert!(secrets[0].message.ends_with("create it, or remove it from credentials"), "{secrets:?}");
    scene.edit("web", |job| job.suspend = true);
    scene.plan();
    assert_eq!(told(&scene, "web"), "n1: waits (Suspended): the job is suspended; set paused to no to go on");
    let full = Waiting::TooManyOrders { namespace: None, object: "Tasks" }.to_string();
    assert!(full.starts_with("all jobs together have as many orders on this node as its Tasks can hold"), "{full}");
}

fn told(scene: &Scene, name: &str) -> String {
    let views = scene.world.nodes(&id(name), scene.now);
    let lines = views.iter().map(|view| match &view.state {
        NodeState::Succeeded => format!("{}: has every image", view.node),
        NodeState::Pulling => format!("{}: pulls", view.node),
        NodeState::Waiting(waiting) => format!("{}: waits ({}): {waiting}", view.node, waiting.reason()),
        NodeState::Failed(reason, message) => format!("{}: failed ({reason}): {message}", view.node),
    });
    lines.collect::<Vec<String>>().join("\n")
}

#[test]
fn every_node_of_a_job_is_told_of() {
    let mut scene = Scene::of(&["n1", "n2", "n3", "n4", "n5", "n6"]);
    scene.node(node("n7"));
    scene.node(node("n8"));
    scene.agent("n8");
    scene.change_node("n8", |node| node.ready = false);
    let mut web = job("web", &["db@sha256:d"]);
    web.names = names(&["n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9"]);
    web.parallelism = 2;
    scene.job(web);
    scene.plan();
    scene.succeeds("n1", "db@sha256:d");
    scene.fails("n2", "db@sha256:d", Reason::NotFound);
    scene.plan();
    // n3 falls silent, n4 gives a sign of life.
    scene.pass(400);
    scene.progresses("n4", "db@sha256:d");
    scene.pass(200);
    scene.plan();
    insta::assert_snapshot!("running", told(&scene, "web"));
    scene.job(job("tagged", &["web:1"]));
    scene.plan();
    insta::assert_snapshot!("unresolved", told(&scene, "tagged"));
    scene.edit("web", |job| job.parallelism = 0);
    scene.plan();
    insta::assert_snapshot!("paused", told(&scene, "web"));
    scene.edit("web", |job| job.suspend = true);
    scene.plan();
    insta::assert_snapshot!("suspended", told(&scene, "web"));
    scene.edit("web", |job| {
        job.suspend = false;
        job.images.push(Image { reference: Err("no upper case".into()), ..image("Web:!") });
        job.completion = Completion::Once { deadline: Some(secs(60)), ttl: None };
    });
    scene.acknowledge = false;
    scene.plan();
    insta::assert_snapshot!("overdue", told(&scene, "web"));
}

#[test]
fn an_ended_job_tells_of_the_nodes_whose_reports_are_there() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut web = job("web", &["web@sha256:w"]);
    web.unreachable = Unreachable::GiveUp;
    scene.job(web);
    scene.plan();
    scene.succeeds("n1", "web@sha256:w");
    scene.fails("n2", "web@sha256:w", Reason::NoSpace);
    scene.plan();
    scene.plan();
    assert_eq!(scene.states("web"), ["n1 done", "n2 failed: NoSpace"]);
    scene.world.apply(Event::Reports("n1".into(), Default::default()));
    assert_eq!(scene.states("web"), ["n2 failed: NoSpace"]);
}

#[test]
fn an_ended_job_is_not_told_of_by_the_reports_of_others() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(job("first", &["web@sha256:w"]));
    scene.plan();
    scene.succeeds("n1", "web@sha256:w");
    scene.plan();
    scene.plan();
    assert_eq!(scene.states("first"), ["n1 done"]);
    scene.pass(5);
    scene.job(job("second", &["web@sha256:w"]));
    scene.plan();
    scene.fails("n1", "web@sha256:w", Reason::NoSpace);
    scene.plan();
    assert_eq!(scene.states("second"), ["n1 failed: NoSpace"]);
    assert!(scene.states("first").is_empty(), "what the second one did says nothing about it");
}

#[test]
fn a_report_that_outlives_its_order_is_for_people_alone() {
    let mut scene = Scene::of(&["n1"]);
    let mut slow = job("slow", &["db@sha256:d"]);
    slow.parallelism = 0;
    scene.job(slow);
    scene.plan();
    scene.pass(5);
    scene.job(job("web", &["web@sha256:w"]));
    scene.plan();
    scene.succeeds("n1", "web@sha256:w");
    scene.plan();
    // Its order is swept away; its report stays.
    scene.world.apply(Event::Orders("n1".into(), Default::default()));
    assert_eq!(scene.states("web"), ["n1 done"]);
    scene.edit("slow", |job| (job.images, job.parallelism) = (vec![image("web@sha256:w")], 1));
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"], "it may have been removed since");
}

#[test]
fn a_deadline_says_what_kept_each_node() {
    let mut scene = Scene::of(&["n1", "n2", "n3", "n5"]);
    scene.node(node("n4"));
    scene.change_node("n5", |node| node.ready = false);
    let mut web = job("web", &["web@sha256:w"]);
    (web.parallelism, web.completion) = (2, Completion::Once { deadline: Some(secs(60)), ttl: None });
    scene.job(web);
    scene.plan();
    scene.report("n1", "web@sha256:w", |report| report.message = "cdn.example answered 503".into());
    scene.report("n2", "web@sha256:w", |report| report.bytes = Bytes { total: 3 << 20, done: 1 << 20, ..report.bytes });
    scene.pass(60);
    scene.acknowledge = false;
    scene.plan();
    insta::assert_snapshot!("deadline", told(&scene, "web"));
}

#[test]
fn bytes_alone_are_told_at_the_pace_of_the_fleet() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(job("web", &["web@sha256:w"]));
    scene.plan();
    let said = |scene: &mut Scene| scene.world.plan(scene.now).outcomes.len();
    scene.pass(1);
    scene.report("n1", "web@sha256:w", |report| report.bytes.done = 10);
    assert_eq!(said(&mut scene), 1);
    scene.report("n1", "web@sha256:w", |report| report.bytes.done = 20);
    let held_back = scene.world.plan(scene.now);
    assert_eq!((held_back.outcomes.len(), held_back.wake.is_some()), (0, true), "a moment ago it was told");
    scene.now = held_back.wake.unwrap();
    assert_eq!(scene.world.plan(scene.now).outcomes[0].bytes.done, 20);
    scene.report("n1", "web@sha256:w", |report| report.bytes.done = 30);
    scene.succeeds("n1", "web@sha256:w");
    assert_eq!(said(&mut scene), 1, "an end is told at once");
}

/// The status of a job is written whenever its outcome changes.
#[test]
fn why_nodes_wait_is_told_by_the_first_of_them_and_changes_with_no_report() {
    let mut scene = Scene::of(&["n1", "n2", "n3", "n4"]);
    ["n3", "n4"].iter().for_each(|name| scene.change_node(name, |node| node.ready = false));
    let mut web = job("web", &["web@sha256:w"]);
    (web.parallelism, web.names) = (1, names(&["n1", "n2", "n3", "n4", "n9"]));
    scene.job(web);
    scene.plan();
    let outcome = scene.outcome("web");
    let counts = [(Reason::Parallelism, 1), (Reason::NodeNotReady, 2), (Reason::NodeUnknown, 1)];
    assert_eq!(outcome.waiting_for, counts.into());
    let told: Vec<String> =
        outcome.waits.iter().map(|wait| format!("{} {}: {}", wait.node, wait.reason, wait.message)).collect();
    insta::assert_snapshot!("waits", told.join("\n"));
    scene.pass(60);
    for trouble in ["a.example answered 503", "a.example answered 502"] {
        scene.report("n1", "web@sha256:w", |report| {
            (report.reason, report.message) = (Some(Reason::Unreachable), trouble.into());
        });
        assert_eq!(scene.world.plan(scene.now).outcomes, []);
    }
    scene.edit("web", |job| job.parallelism = 0);
    scene.plan();
    let paused = scene.outcome("web").waits.iter().find(|wait| wait.reason == Reason::Parallelism);
    assert!(paused.unwrap().message.contains("the job is paused"), "{paused:?}");
}
