//! When a job starts, ends, is deleted, or goes round.

use stoker_core::model::{Completion, Image};
use stoker_core::{Empty, Event, Reason, Stage};

use crate::build::{at, id, image, job, names, secs};
use crate::scene::{NOTHING, Scene};

const WEB: &str = "web@sha256:w";

#[test]
fn a_job_without_nodes_waits_for_one_unless_its_dialect_says_otherwise() {
    let mut scene = Scene::of(&[]);
    scene.job(job("web", &[WEB]));
    let mut content = job("content", &[WEB]);
    content.empty = Empty::Completes;
    scene.job(content);
    assert_eq!(scene.plan(), NOTHING);
    let outcome = scene.outcome("content");
    assert_eq!((outcome.stage, outcome.desired, outcome.completed), (Stage::Succeeded, 0, Some(at(0))));
    let outcome = scene.outcome("web");
    assert_eq!((outcome.stage, outcome.lacks_nodes, outcome.completed), (Stage::Running, true, None));
    scene.node(crate::build::node("n1"));
    scene.agent("n1");
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    assert!(!scene.outcome("web").lacks_nodes);
}

#[test]
fn a_job_whose_nodes_all_leave_waits_again_and_fails_at_its_deadline() {
    let mut scene = Scene::of(&["n1"]);
    let mut web = job("web", &[WEB]);
    web.completion = Completion::Once { deadline: Some(secs(60)), ttl: None };
    scene.job(web);
    scene.plan();
    scene.world.apply(Event::NodeGone("n1".into()));
    scene.world.apply(Event::AgentGone("n1".into()));
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!((scene.outcome("web").stage, scene.outcome("web").lacks_nodes), (Stage::Running, true));
    assert_eq!(scene.world.plan(scene.now).wake, Some(at(60)));
    scene.pass(60);
    scene.plan();
    let outcome = scene.outcome("web");
    assert_eq!((outcome.stage, outcome.overdue, outcome.completed), (Stage::Failed, true, Some(at(60))));
}

#[test]
fn a_job_whose_status_cannot_be_read_is_left_alone() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut web = job("web", &[WEB]);
    web.parallelism = 1;
    scene.job(web);
    scene.plan();
    scene.edit("web", |job| (job.unreadable, job.started, job.parallelism) = (Some("no time".into()), None, 2));
    let plan = scene.world.plan(scene.now);
    assert!(plan.is_empty(), "{plan:?}");
    assert_eq!(scene.states("web"), ["n1 waits: StatusUnreadable", "n2 waits: StatusUnreadable"]);
    scene.job(job("other", &["db@sha256:d"]));
    assert_eq!(scene.plan().len(), 2, "the others go on");
    scene.edit("web", |job| (job.unreadable, job.started) = (None, Some(at(0))));
    assert_eq!(scene.plan(), ["n2 pulls web@sha256:w at sha256:w"], "n1 was at work all the time");
}

#[test]
fn an_invalid_image_fails_on_every_node_while_the_others_go_on() {
    let mut scene = Scene::of(&["n1"]);
    let mut web = job("web", &[WEB]);
    web.images.push(Image { reference: Err("no upper case in a repository".into()), ..image("Web:!") });
    scene.job(web);
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    scene.succeeds("n1", WEB);
    scene.plan();
    let outcome = scene.outcome("web");
    assert_eq!((outcome.stage, outcome.failures[0].reason), (Stage::Failed, Reason::InvalidReference));
    assert_eq!(outcome.failures[0].message, "Web:!: no upper case in a repository");
}

#[test]
fn the_deadline_fails_whoever_is_not_done() {
    let mut scene = Scene::of(&["n1", "n2", "n3"]);
    let mut web = job("web", &[WEB]);
    web.names = names(&["n1", "n2", "n3", "n9"]);
    web.parallelism = 2;
    web.completion = Completion::Once { deadline: Some(secs(60)), ttl: None };
    scene.job(web);
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.plan();
    assert_eq!(scene.world.plan(scene.now).wake, Some(at(60)));
    scene.pass(60);
    scene.plan();
    let outcome = scene.outcome("web");
    assert_eq!((outcome.stage, outcome.succeeded, outcome.failed), (Stage::Failed, 1, 3));
    assert!(outcome.overdue);
    assert!(outcome.failures.iter().all(|failed| failed.reason == Reason::DeadlineExceeded));
    assert_eq!(outcome.completed, Some(at(60)));
}

#[test]
fn a_deadline_that_passes_after_the_end_says_nothing() {
    let mut scene = Scene::of(&["n1"]);
    let mut web = job("web", &[WEB]);
    web.completion = Completion::Once { deadline: Some(secs(60)), ttl: None };
    scene.job(web);
    scene.acknowledge = false;
    scene.plan();
    scene.fails("n1", WEB, Reason::NotFound);
    scene.plan();
    assert!(!scene.outcome("web").overdue);
    scene.pass(60);
    scene.world.touch_everything();
    assert!(scene.world.plan(scene.now).is_empty());
}

#[test]
fn the_deadline_runs_from_the_start_and_not_before() {
    let mut scene = Scene::of(&["n1"]);
    let mut web = job("web", &[WEB]);
    web.suspend = true;
    web.completion = Completion::Once { deadline: Some(secs(60)), ttl: None };
    scene.job(web);
    scene.plan();
    scene.pass(1000);
    scene.edit("web", |job| job.suspend = false);
    scene.plan();
    assert_eq!(scene.states("web"), ["n1 pulls"]);
}

#[test]
fn an_ended_job_expires_after_its_ttl() {
    let mut scene = Scene::of(&["n1"]);
    let mut web = job("web", &[WEB]);
    web.completion = Completion::Once { deadline: None, ttl: Some(secs(300)) };
    scene.job(web);
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.plan();
    assert_eq!(scene.plan(), NOTHING);
    let plan = scene.world.plan(at(299));
    assert_eq!((plan.expired.as_slice(), plan.wake), ([].as_slice(), Some(at(300))));
    assert_eq!(scene.world.plan(at(300)).expired, [id("web")]);
    assert!(scene.world.plan(at(301)).is_empty(), "it is said once");
}

#[test]
fn a_continuous_job_goes_in_rounds_and_asks_the_failed_again() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut web = job("web", &[WEB]);
    web.completion = Completion::Continuous { resync: secs(3600) };
    scene.job(web);
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.fails("n2", WEB, Reason::RateLimited);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!((scene.outcome("web").stage, scene.outcome("web").completed), (Stage::Synced, None));
    scene.pass(299);
    assert_eq!(scene.plan(), NOTHING);
    scene.pass(1);
    assert_eq!(scene.plan(), ["n2 pulls web@sha256:w at sha256:w"]);
    scene.succeeds("n2", WEB);
    scene.plan();
    assert_eq!(scene.states("web"), ["n1 done", "n2 done"]);
    scene.pass(3300);
    assert_eq!(scene.plan().len(), 2, "a new round");
}

#[test]
fn a_round_of_no_length_does_not_keep_the_controller_busy() {
    let mut scene = Scene::of(&[]);
    let mut web = job("web", &[WEB]);
    web.completion = Completion::Continuous { resync: secs(0) };
    scene.job(web);
    scene.plan();
    assert!(scene.world.plan(scene.now).wake.unwrap() > scene.now);
}

#[test]
fn the_start_stays_until_it_is_acknowledged_and_after() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut web = job("web", &[WEB]);
    web.parallelism = 1;
    scene.job(web);
    scene.acknowledge = false;
    scene.plan();
    scene.pass(5);
    scene.succeeds("n1", WEB);
    assert_eq!(scene.plan(), ["n2 pulls web@sha256:w at sha256:w"]);
    assert_eq!(scene.outcome("web").started, Some(at(0)));
    scene.edit("web", |job| job.started = Some(at(0)));
    assert_eq!(scene.plan(), NOTHING, "n1 is not asked again");
    assert_eq!(scene.states("web"), ["n1 done", "n2 pulls"]);
}

#[test]
fn a_start_that_came_back_in_whole_seconds_counts_nothing_from_before() {
    let early = at(0) + std::time::Duration::from_millis(200);
    let mut scene = Scene::of(&["n1"]);
    scene.now = early;
    let mut old = job("old", &[WEB]);
    old.completion = Completion::Continuous { resync: secs(3600) };
    scene.job(old);
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.plan();
    scene.now = at(0) + std::time::Duration::from_millis(700);
    scene.acknowledge = false;
    scene.job(job("web", &[WEB]));
    assert_eq!(scene.plan().len(), 1);
    scene.edit("web", |job| job.started = Some(at(0)));
    scene.plan();
    assert_eq!(scene.states("web"), ["n1 pulls"]);
}

#[test]
fn a_restart_before_the_status_was_written_finds_the_start_in_the_orders() {
    let mut scene = Scene::of(&["n1"]);
    scene.acknowledge = false;
    scene.job(job("web", &[WEB]));
    scene.plan();
    let mut restarted = stoker_core::World::new();
    restarted.apply(Event::Job(Box::new(job("web", &[WEB]))));
    restarted.apply(Event::Node(crate::build::node("n1")));
    restarted.apply(Event::Orders("n1".into(), scene.world.orders("n1").unwrap().clone()));
    let plan = restarted.plan(at(30));
    assert_eq!((plan.orders.as_slice(), plan.outcomes[0].started), ([].as_slice(), Some(at(0))));
}

#[test]
fn another_object_of_the_same_name_starts_afresh() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(job("web", &[WEB]));
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.plan();
    scene.pass(60);
    scene.job(job("web", &[WEB]));
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"], "though nobody said that the old one is gone");
    assert_eq!(scene.outcome("web").started, Some(at(60)));
}

#[test]
fn an_edit_of_an_ended_job_is_a_new_run() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(job("web", &[WEB]));
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.plan();
    scene.plan();
    scene.pass(60);
    scene.edit("web", |job| {
        (job.started, job.ended) = (None, None);
        job.images.push(image("db@sha256:d"));
    });
    let mut writes = scene.plan();
    writes.sort();
    assert_eq!(writes, ["n1 pulls db@sha256:d at sha256:d", "n1 pulls web@sha256:w at sha256:w"]);
    assert_eq!(scene.outcome("web").started, Some(at(60)));
}

/// Whoever may write the status of a job could write any start into it.
#[test]
fn a_start_in_the_far_future_counts_for_nothing() {
    for start in ["2099-01-01T00:00:00Z", "9999-12-30T22:00:00.999999999Z"] {
        let mut scene = Scene::of(&["n1"]);
        let mut evil = job("evil", &[WEB]);
        evil.started = Some(start.parse().unwrap());
        evil.completion = Completion::Continuous { resync: secs(3600) };
        scene.job(evil);
        scene.plan();
        scene.fails("n1", WEB, Reason::NotFound);
        scene.plan();
        let asked = scene.world.orders("n1").unwrap().into_values().map(|order| order.asked).max();
        assert!(asked.is_some_and(|asked| asked <= scene.now), "{start}: {asked:?}");
        scene.pass(60);
        scene.job(job("web", &[WEB]));
        assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"], "{start}");
    }
}
