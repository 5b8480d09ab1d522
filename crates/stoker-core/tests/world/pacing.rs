//! How many nodes pull at one time: parallelism, pause, suspension, edits, deletion.

use stoker_core::model::{Job, Policy};
use stoker_core::{Event, Reason, Stage};

use crate::build::{id, job, names, node, of_namespace, pool, secs};
use crate::scene::{NOTHING, Scene};

/// An image that needs no resolving, so that only the pace decides.
const WEB: &str = "web@sha256:w";

#[test]
fn as_many_nodes_pull_as_parallelism_allows() {
    let mut scene = Scene::of(&["n1", "n2", "n3"]);
    let mut web = job("web", &[WEB]);
    web.parallelism = 2;
    scene.job(web);
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w", "n2 pulls web@sha256:w at sha256:w"]);
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 pulls", "n3 waits: Parallelism"]);
    scene.progresses("n1", WEB);
    assert_eq!(scene.plan(), NOTHING, "progress frees no place");
    scene.succeeds("n2", WEB);
    assert_eq!(scene.plan(), ["n3 pulls web@sha256:w at sha256:w"]);
    scene.fails("n1", WEB, Reason::NotFound);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["n1 failed: NotFound", "n2 done", "n3 pulls"]);
}

#[test]
fn a_percentage_is_of_the_jobs_own_nodes_and_rounded_up() {
    for (nodes, percent, places) in
        [(10, 30, 3), (10, 31, 4), (3, 1, 1), (3, 100, 3), (1, 50, 1), (0, 50, 0), (10, 0, 0), (10, 250, 10)]
    {
        let mut web = job("web", &[WEB]);
        (web.parallelism, web.percent) = (percent, true);
        assert_eq!(web.places(nodes), places, "{percent}% of {nodes}");
    }
    let mut scene = Scene::of(&["n1", "n2", "n3", "n4", "n5"]);
    let mut web = job("web", &[WEB]);
    (web.parallelism, web.percent, web.names) = (34, true, crate::build::names(&["n1", "n2", "n3"]));
    scene.job(web);
    assert_eq!(scene.plan().len(), 2, "two of three, whatever other nodes there are");
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 pulls", "n3 waits: Parallelism"]);
    scene.edit("web", |job| job.names = None);
    assert_eq!(scene.plan(), NOTHING, "34 % of five are two");
    scene.edit("web", |job| job.parallelism = 41);
    assert_eq!(scene.plan(), ["n3 pulls web@sha256:w at sha256:w"]);
    scene.edit("web", |job| job.parallelism = 0);
    scene.succeeds("n1", WEB);
    assert_eq!(scene.plan(), NOTHING, "0 % pauses");
}

#[test]
fn all_images_of_a_node_are_one_place() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut web = job("web", &[WEB, "db@sha256:d"]);
    web.parallelism = 1;
    scene.job(web);
    assert_eq!(scene.plan().len(), 2);
    scene.succeeds("n1", WEB);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 waits: Parallelism"]);
    scene.succeeds("n1", "db@sha256:d");
    assert_eq!(scene.plan().len(), 2);
    assert_eq!(scene.states("web"), ["n1 done", "n2 pulls"]);
}

#[test]
fn zero_pauses_and_a_lower_limit_hands_out_nothing_until_it_is_met() {
    let mut scene = Scene::of(&["n1", "n2", "n3", "n4"]);
    let mut web = job("web", &[WEB]);
    web.parallelism = 3;
    scene.job(web);
    assert_eq!(scene.plan().len(), 3);
    scene.edit("web", |job| job.parallelism = 0);
    scene.succeeds("n1", WEB);
    assert_eq!(scene.plan(), NOTHING, "what runs goes on, nothing new is handed out");
    assert_eq!(scene.states("web"), ["n1 done", "n2 pulls", "n3 pulls", "n4 waits: Parallelism"]);
    scene.edit("web", |job| job.parallelism = 1);
    scene.succeeds("n2", WEB);
    assert_eq!(scene.plan(), NOTHING, "n3 is the one");
    scene.succeeds("n3", WEB);
    assert_eq!(scene.plan(), ["n4 pulls web@sha256:w at sha256:w"]);
}

#[test]
fn suspend_holds_what_runs_and_resume_goes_on_with_it_first() {
    let mut scene = Scene::of(&["n1", "n2", "n3"]);
    let mut web = job("web", &[WEB]);
    web.parallelism = 2;
    scene.job(web);
    scene.plan();
    scene.succeeds("n1", WEB);
    assert_eq!(scene.plan(), ["n3 pulls web@sha256:w at sha256:w"]);
    scene.edit("web", |job| job.suspend = true);
    assert_eq!(scene.plan(), ["n2 holds web@sha256:w", "n3 holds web@sha256:w"]);
    assert_eq!(scene.states("web"), ["n1 done", "n2 waits: Suspended", "n3 waits: Suspended"]);
    assert_eq!(scene.outcome("web").stage, Stage::Suspended);
    assert_eq!(scene.plan(), NOTHING);
    scene.node(crate::build::node("n0"));
    scene.agent("n0");
    scene.pass(3600);
    scene.edit("web", |job| (job.suspend, job.parallelism) = (false, 1));
    assert_eq!(scene.plan(), ["n2 pulls web@sha256:w at sha256:w"], "it has a part of it; n1 is still done");
    assert_eq!(scene.states("web")[..3], ["n0 waits: Parallelism", "n1 done", "n2 pulls"]);
    scene.succeeds("n2", WEB);
    assert_eq!(scene.plan(), ["n3 pulls web@sha256:w at sha256:w"]);
    scene.succeeds("n3", WEB);
    assert_eq!(scene.plan(), ["n0 pulls web@sha256:w at sha256:w"]);
}

#[test]
fn what_is_held_goes_with_its_job() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(job("web", &[WEB]));
    scene.plan();
    scene.edit("web", |job| job.suspend = true);
    assert_eq!(scene.plan(), ["n1 holds web@sha256:w"]);
    scene.job(job("other", &[WEB]));
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"], "another job wants it now");
    scene.delete("other");
    assert_eq!(scene.plan(), ["n1 drops web@sha256:w"], "the suspended one is not served by it any more");
    scene.delete("web");
    assert_eq!(scene.plan(), NOTHING);
}

#[test]
fn a_place_is_free_when_the_node_has_been_told_to_stop() {
    let mut scene = Scene::of(&["n1", "n2", "n3"]);
    let mut web = job("web", &[WEB]);
    (web.parallelism, web.names) = (1, crate::build::names(&["n2"]));
    scene.job(web);
    assert_eq!(scene.plan(), ["n2 pulls web@sha256:w at sha256:w"]);
    scene.edit("web", |job| {
        job.names = crate::build::names(&["n1", "n2"]);
        job.images = vec![crate::build::image("web@sha256:x")];
    });
    let plan = scene.world.plan(scene.now);
    let nodes: Vec<&str> = plan.orders.iter().map(|write| &*write.node).collect();
    assert_eq!(nodes, ["n2"], "n2 drops the old image, and its place is its own until it has");
    scene.edit("web", |job| job.names = crate::build::names(&["n1"]));
    let plan = scene.world.plan(scene.now);
    let nodes: Vec<&str> = plan.orders.iter().map(|write| &*write.node).collect();
    assert_eq!(nodes, ["n2"], "n1 waits until n2 has dropped it");
    assert_eq!(scene.states("web"), ["n1 waits: Parallelism"]);
    let orders = scene.world.orders("n2").unwrap();
    scene.world.apply(stoker_core::Event::Orders("n2".into(), orders));
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:x at sha256:x"]);
}

#[test]
fn a_job_that_was_made_suspended_starts_when_it_is_resumed() {
    let mut scene = Scene::of(&["n1"]);
    let mut web = job("web", &[WEB]);
    web.suspend = true;
    scene.job(web);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.outcome("web").started, None);
    scene.pass(100);
    scene.edit("web", |job| job.suspend = false);
    scene.plan();
    assert_eq!(scene.outcome("web").started, Some(scene.now));
}

#[test]
fn a_deleted_job_takes_back_what_runs_at_once_and_what_is_finished_with_the_next_write() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.job(job("web", &[WEB]));
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.delete("web");
    assert_eq!(scene.plan(), ["n2 drops web@sha256:w"], "n1 is not written to only to be swept");
    scene.job(job("db", &["db@sha256:d"]));
    let mut writes = scene.plan();
    writes.sort();
    let expected = ["n1 drops web@sha256:w", "n1 pulls db@sha256:d at sha256:d", "n2 pulls db@sha256:d at sha256:d"];
    assert_eq!(writes, expected);
}

#[test]
fn an_ended_job_frees_everything() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut web = job("web", &[WEB]);
    web.completion = stoker_core::Completion::Once { deadline: Some(crate::build::secs(60)), ttl: None };
    scene.job(web);
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.pass(60);
    assert_eq!(scene.plan(), NOTHING, "this plan says that the job is over");
    assert_eq!(scene.plan(), ["n2 drops web@sha256:w"]);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["n1 done"], "results stay until they are swept");
}

#[test]
fn edited_images_are_handed_out_and_the_old_ones_taken_back() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(job("web", &[WEB]));
    scene.plan();
    scene.edit("web", |job| job.images = vec![crate::build::image("web@sha256:x")]);
    let mut writes = scene.plan();
    writes.sort();
    assert_eq!(writes, ["n1 drops web@sha256:w", "n1 pulls web@sha256:x at sha256:x"]);
}

#[test]
fn an_edited_selector_takes_back_from_the_nodes_it_leaves() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.change_node("n2", |node| node.labels.clear());
    scene.job(job("web", &[WEB]));
    assert_eq!(scene.plan().len(), 2);
    scene.edit("web", |job| job.selector = pool("main"));
    assert_eq!(scene.plan(), ["n2 drops web@sha256:w"]);
    assert_eq!(scene.states("web"), ["n1 pulls"]);
}

#[test]
fn a_silent_node_that_leaves_and_comes_back_waits_for_a_place() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut web = job("web", &["web@sha256:w"]);
    web.parallelism = 1;
    web.completion = stoker_core::Completion::Continuous { resync: secs(86_400) };
    scene.job(web);
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    scene.pass(601);
    assert_eq!(scene.plan(), ["n2 pulls web@sha256:w at sha256:w"], "n1 fell silent");
    // Its order is taken back, and nobody hears yet that it is gone.
    scene.world.apply(Event::NodeGone("n1".into()));
    assert_eq!(scene.world.plan(scene.now).orders.len(), 1);
    scene.world.apply(Event::Node(node("n1")));
    assert!(scene.world.plan(scene.now).orders.is_empty(), "n2 has the only place");
}

#[test]
fn a_node_that_only_says_that_it_pulls_keeps_no_other_waiting() {
    let mut scene = Scene::of(&["n1", "n2", "n3"]);
    let mut web = job("web", &[WEB]);
    (web.parallelism, web.pull.timeout, web.pull.retries) = (1, secs(5), 0);
    scene.job(web);
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    for _ in 0..2 {
        scene.pass(300);
        scene.progresses("n1", WEB);
        assert_eq!(scene.plan(), NOTHING, "it may wait for its turn on the node");
    }
    scene.progresses("n1", WEB);
    let wake = scene.world.plan(scene.now).wake.unwrap();
    assert_eq!(wake, crate::build::at(5 + 600), "twice its five seconds, and at least ten minutes more");
    scene.pass(5);
    assert_eq!(scene.plan(), ["n2 pulls web@sha256:w at sha256:w"]);
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 pulls", "n3 waits: Parallelism"]);
    assert_eq!(scene.plan(), NOTHING, "one place, and n2 has it");
    scene.succeeds("n2", WEB);
    assert_eq!(scene.plan(), ["n3 pulls web@sha256:w at sha256:w"]);
    scene.succeeds("n1", WEB);
    scene.succeeds("n3", WEB);
    scene.plan();
    assert_eq!(scene.outcome("web").stage, Stage::Succeeded, "it came after all");
}

/// A job of another namespace for the same image, which holds no node of it back.
fn stranger(image: &str) -> Job {
    let mut stranger = of_namespace("strangers", job("stranger", &[image]));
    stranger.pull.retries = 100;
    stranger
}

#[test]
fn a_node_that_a_job_gave_up_on_its_own_terms_holds_no_place() {
    let mut scene = Scene::of(&["n1", "n2", "n3"]);
    scene.job(stranger(WEB));
    let mut web = job("web", &[WEB]);
    (web.parallelism, web.pull.retries) = (2, 1);
    web.names = names(&["n1", "n2", "n3"]);
    scene.job(web);
    scene.plan();
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 pulls", "n3 waits: Parallelism"]);
    scene.report("n1", WEB, |report| (report.attempt, report.reason) = (3, Some(Reason::RegistryError)));
    assert_eq!(scene.plan(), ["n3 keeps web@sha256:w"], "web joins the pull of the stranger");
    assert_eq!(scene.states("web"), ["n1 failed: RegistryError", "n2 pulls", "n3 pulls"]);
    // The name of the job is all that says so to the next controller.
    assert!(scene.order("n1", WEB).unwrap().jobs.contains(&id("web")), "it goes on for the stranger");
}

#[test]
fn a_node_that_a_job_has_left_holds_no_place_although_others_pull_there() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.job(stranger(WEB));
    let mut web = job("web", &[WEB]);
    (web.parallelism, web.names) = (1, names(&["n1"]));
    scene.job(web);
    scene.plan();
    assert_eq!(scene.states("web"), ["n1 pulls"]);
    scene.edit("web", |job| job.names = names(&["n2"]));
    assert_eq!(scene.plan(), ["n2 keeps web@sha256:w"]);
    assert!(scene.order("n1", WEB).unwrap().jobs.contains(&id("web")), "no write is needed on n1");
    // Nothing is handed out to a node that comes back with its pull, and it takes no place from another.
    scene.edit("web", |job| job.names = names(&["n1", "n2"]));
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 pulls"]);
}

#[test]
fn a_pull_that_nobody_needs_any_more_keeps_its_place_until_it_ends() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut web = job("web", &[WEB]);
    (web.parallelism, web.pull.policy) = (1, Policy::Always);
    scene.job(web);
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    scene.report("n1", WEB, |report| report.present = true);
    assert_eq!(scene.plan(), NOTHING);
    scene.edit("web", |job| job.pull.policy = Policy::IfNotPresent);
    assert_eq!(scene.plan(), ["n1 keeps web@sha256:w"], "the agent goes on with its attempt");
    assert_eq!(scene.states("web"), ["n1 done", "n2 waits: Parallelism"]);
    scene.pass(300);
    scene.progresses("n1", WEB);
    assert_eq!(scene.plan(), NOTHING);
    scene.succeeds("n1", WEB);
    assert_eq!(scene.plan(), ["n2 pulls web@sha256:w at sha256:w"]);
}

#[test]
fn a_job_that_is_content_leaves_its_place_to_others_while_a_stranger_wants_the_newest() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut newest = stranger(WEB);
    (newest.pull.policy, newest.names) = (Policy::Always, names(&["n1"]));
    scene.job(newest);
    let mut web = job("web", &[WEB]);
    web.parallelism = 1;
    scene.job(web);
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    scene.report("n1", WEB, |report| report.present = true);
    assert_eq!(scene.plan(), ["n2 pulls web@sha256:w at sha256:w"]);
    assert_eq!(scene.states("web"), ["n1 done", "n2 pulls"]);
}
