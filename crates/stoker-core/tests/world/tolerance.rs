//! How many nodes may fail before a job gives up.

use stoker_core::model::{Completion, Tolerance};
use stoker_core::{Reason, Stage};

use crate::build::{job, names, secs};
use crate::scene::{NOTHING, Scene};

/// An image that needs no resolving.
const WEB: &str = "web@sha256:w";

fn tolerates(number: u32, percent: bool) -> Option<Tolerance> {
    Some(Tolerance { number, percent })
}

#[test]
fn a_percentage_is_not_rounded() {
    for (number, percent, failed, nodes, allowed) in [
        (0, false, 0, 10, true),
        (0, false, 1, 10, false),
        (2, false, 2, 3, true),
        (2, false, 3, 3, false),
        (10, true, 1, 10, true),
        (10, true, 1, 9, false),
        (10, true, 2, 20, true),
        (100, true, 5, 5, true),
        (0, true, 0, 0, true),
        (u32::MAX, false, usize::MAX, 0, false),
    ] {
        let tolerance = Tolerance { number, percent };
        assert_eq!(tolerance.allows(failed, nodes), allowed, "{failed} of {nodes}, {tolerance:?} may fail");
    }
}

#[test]
fn past_its_tolerance_a_job_begins_nothing_more_and_fails_when_what_runs_has_ended() {
    let mut scene = Scene::of(&["n1", "n2", "n3", "n4", "n5"]);
    let mut web = job("web", &[WEB]);
    (web.parallelism, web.tolerance) = (2, tolerates(1, false));
    web.names = names(&["n1", "n2", "n3", "n4", "n5", "n9"]);
    scene.job(web);
    scene.plan();
    scene.fails("n1", WEB, Reason::NotFound);
    assert_eq!(scene.plan(), ["n3 pulls web@sha256:w at sha256:w"], "one may fail");
    scene.fails("n2", WEB, Reason::NotFound);
    assert_eq!(scene.plan(), NOTHING);
    let waits = "waits: FailureTolerance";
    assert_eq!(
        scene.states("web"),
        [
            "n1 failed: NotFound",
            "n2 failed: NotFound",
            "n3 pulls",
            &format!("n4 {waits}"),
            &format!("n5 {waits}"),
            "n9 waits: NodeUnknown"
        ]
    );
    assert_eq!((scene.outcome("web").stage, scene.outcome("web").completed), (Stage::Running, None));
    scene.succeeds("n3", WEB);
    scene.plan();
    let outcome = scene.outcome("web");
    assert_eq!((outcome.stage, outcome.succeeded, outcome.failed, outcome.waiting), (Stage::Failed, 1, 5, 0));
    assert_eq!(outcome.completed, Some(scene.now));
    let untried: Vec<&str> = outcome
        .failures
        .iter()
        .filter(|failed| failed.reason == Reason::FailureTolerance)
        .map(|failed| &*failed.node)
        .collect();
    assert_eq!(untried, ["n4", "n5", "n9"]);
}

#[test]
fn a_job_of_which_no_more_nodes_fail_than_it_tolerates_succeeds() {
    for (tolerance, stage) in
        [(None, Stage::Failed), (tolerates(50, true), Stage::Succeeded), (tolerates(1, false), Stage::Succeeded)]
    {
        let mut scene = Scene::of(&["n1", "n2"]);
        let mut web = job("web", &[WEB]);
        web.tolerance = tolerance;
        scene.job(web);
        scene.plan();
        scene.fails("n1", WEB, Reason::NotFound);
        scene.succeeds("n2", WEB);
        scene.plan();
        let outcome = scene.outcome("web");
        assert_eq!((outcome.stage, outcome.succeeded, outcome.failed), (stage, 1, 1), "{tolerance:?}");
    }
}

#[test]
fn who_raises_the_tolerance_has_the_job_go_on_and_a_new_round_begins_anew() {
    let mut scene = Scene::of(&["n1", "n2", "n3"]);
    let mut web = job("web", &[WEB]);
    (web.parallelism, web.tolerance) = (2, tolerates(0, false));
    scene.job(web.clone());
    scene.plan();
    scene.fails("n1", WEB, Reason::NotFound);
    assert_eq!(scene.plan(), NOTHING, "n2 is at work");
    scene.edit("web", |job| job.tolerance = tolerates(1, false));
    assert_eq!(scene.plan(), ["n3 pulls web@sha256:w at sha256:w"]);

    let mut scene = Scene::of(&["n1", "n2"]);
    (web.parallelism, web.completion) = (1, Completion::Continuous { resync: secs(3600) });
    scene.job(web);
    scene.plan();
    scene.fails("n1", WEB, Reason::NotFound);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["n1 failed: NotFound", "n2 failed: FailureTolerance"]);
    scene.pass(3600);
    assert_eq!(scene.plan().len(), 1, "a new round");
}

#[test]
fn a_suspended_job_has_given_nothing_up() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut web = job("web", &[WEB]);
    (web.parallelism, web.tolerance) = (1, tolerates(0, false));
    scene.job(web);
    scene.acknowledge = false;
    scene.plan();
    scene.fails("n1", WEB, Reason::NotFound);
    scene.edit("web", |job| job.suspend = true);
    scene.plan();
    assert_eq!(scene.outcome("web").stage, Stage::Suspended);
    assert_eq!(scene.states("web"), ["n1 failed: NotFound", "n2 waits: Suspended"]);
}
