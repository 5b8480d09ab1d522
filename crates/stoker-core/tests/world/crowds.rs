//! Many jobs of one namespace for one image: they share one order, which names a bounded number of them.

use std::collections::BTreeSet;
use std::time::Duration;

use stoker_core::world::JOBS_OF_A_NAMESPACE;
use stoker_core::{Completion, Reason, Stage};

use crate::build::{GUEST, id, job};
use crate::scene::{NOTHING, Scene};

const WEB: &str = "web@sha256:w";

/// Each job that joins an order has the order made anew. If an order named all of them, such a plan would take minutes.
#[test]
fn thousands_of_jobs_for_one_image_are_one_order_that_names_a_few_of_them() {
    let mut scene = Scene::of(&["n1"]);
    for number in 0..600 {
        scene.job(job(&format!("web-{number}"), &[WEB]));
    }
    scene.job(job(GUEST, &[WEB]));
    scene.plan();
    let named = scene.order("n1", WEB).unwrap().jobs;
    assert_eq!(named.len(), JOBS_OF_A_NAMESPACE + 1);
    assert!(named.contains(&id(GUEST)), "a job of another namespace joins all the same");
    assert_eq!(scene.states("web-599"), ["n1 waits: TooManyOrders"]);
    scene.succeeds("n1", WEB);
    assert_eq!(scene.plan(), NOTHING, "the answer is one for all that began before the ask");
    for number in 0..600 {
        assert_eq!(scene.outcome(&format!("web-{number}")).stage, Stage::Succeeded, "{number}");
    }
}

#[test]
fn who_waits_for_a_crowded_order_is_served_when_it_has_ended() {
    let mut scene = Scene::of(&["n1"]);
    for number in 0..JOBS_OF_A_NAMESPACE {
        scene.job(job(&format!("web-{number}"), &[WEB]));
    }
    scene.plan();
    scene.pass(10);
    scene.job(job("late", &[WEB]));
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("late"), ["n1 waits: TooManyOrders"]);
    scene.succeeds("n1", WEB);
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    assert_eq!(scene.order("n1", WEB).unwrap().jobs, BTreeSet::from([id("late")]));
    scene.succeeds("n1", WEB);
    scene.plan();
    assert_eq!(scene.outcome("late").stage, Stage::Succeeded);
}

#[test]
fn suspended_jobs_keep_no_order_crowded() {
    let mut scene = Scene::of(&["n1"]);
    let all: Vec<String> = (0..JOBS_OF_A_NAMESPACE).map(|number| format!("web-{number}")).collect();
    for name in &all {
        scene.job(job(name, &[WEB]));
    }
    scene.plan();
    scene.job(job("late", &[WEB]));
    scene.plan();
    assert_eq!(scene.states("late"), ["n1 waits: TooManyOrders"]);
    for name in &all {
        scene.edit(name, |job| job.suspend = true);
    }
    scene.plan();
    assert_eq!(scene.states("late"), ["n1 pulls"]);
}

/// The order names no job that could give up on the node, and the jobs that it names never end.
#[test]
fn who_waits_for_a_crowded_order_of_a_silent_node_fails_as_if_it_were_named() {
    let mut scene = Scene::of(&["n1"]);
    for number in 0..JOBS_OF_A_NAMESPACE {
        let mut web = job(&format!("web-{number}"), &[WEB]);
        web.completion = Completion::Continuous { resync: Duration::from_secs(86_400) };
        scene.job(web);
    }
    scene.plan();
    scene.pass(300);
    scene.job(job("late", &[WEB]));
    scene.plan();
    scene.pass(400);
    scene.plan();
    assert_eq!(scene.states("late"), ["n1 waits: TooManyOrders"], "it has its own ten minutes");
    scene.pass(300);
    scene.plan();
    let late = scene.outcome("late");
    assert_eq!((late.stage, late.failures[0].reason), (Stage::Failed, Reason::NodeSilent));
}
