//! A job whose nodes follow from objects that cannot be listed: what it was given stays until they can be.

use stoker_core::model::{Found, LoginId, Offer, SecretId};
use stoker_core::{Completion, Event, Job, Plan, Reason, Stage, World};

use crate::build::{at, id, job, key, names, node, of_namespace, secs};
use crate::scene::{NOTHING, Scene};

const WEB: &str = "web@sha256:w";
const DB: &str = "db@sha256:d";

/// A job that wants the nodes of some pods.
fn on(nodes: &[&str]) -> Job {
    Job { names: names(nodes), ..job("web", &[WEB]) }
}

/// The same while the pods cannot be listed.
fn blind(job: &mut Job) {
    (job.names, job.unseen) = (names(&[]), Some("Pod"));
}

#[test]
fn orders_stay_while_the_nodes_of_their_job_are_not_known() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut web = on(&["n1", "n2"]);
    web.completion = Completion::Once { deadline: Some(secs(100)), ttl: None };
    scene.job(web);
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.plan();
    scene.edit("web", blind);
    assert_eq!(scene.plan(), NOTHING);
    // A write for another job sweeps what is finished and belongs to nobody.
    scene.job(job("db", &[DB]));
    scene.plan();
    assert!(scene.order("n1", WEB).is_some(), "the answer still counts");
    scene.delete("db");
    scene.plan();
    scene.pass(200);
    assert_eq!(scene.world.plan(scene.now), Plan::default(), "its deadline decides nothing, and wakes nobody");
    assert_eq!(scene.world.waits_for_sight(&id("web")), Some("Pod"));
    scene.edit("web", |job| (job.names, job.unseen, job.completion) = (names(&["n1"]), None, job_end()));
    assert_eq!(scene.plan(), ["n2 drops web@sha256:w"], "the pods are seen, and n2 has none");
    let outcome = scene.outcome("web");
    assert_eq!((outcome.stage, outcome.succeeded), (Stage::Succeeded, 1));
}

fn job_end() -> Completion {
    Completion::Once { deadline: None, ttl: None }
}

#[test]
fn a_new_world_keeps_the_orders_of_such_a_job() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(on(&["n1"]));
    scene.plan();
    let order = scene.order("n1", WEB).unwrap();
    let mut world = World::new();
    world.apply(Event::Node(node("n1")));
    world.apply(Event::Orders("n1".into(), [(key(WEB), order)].into()));
    let mut web = on(&[]);
    blind(&mut web);
    web.started = Some(at(0));
    world.apply(Event::Job(Box::new(web)));
    assert_eq!(world.plan(at(1)), Plan::default());
    world.apply(Event::JobGone(id("web")));
    assert_eq!(world.plan(at(2)).orders[0].keys, [key(WEB)].into(), "its user has deleted it");
    assert_eq!(world.order("n1", key(WEB)), None);
}

#[test]
fn what_its_user_says_still_counts() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(Job { images: job("web", &[WEB, DB]).images, ..on(&["n1"]) });
    scene.plan();
    scene.edit("web", blind);
    scene.edit("web", |job| job.images.truncate(1));
    assert_eq!(scene.plan(), ["n1 drops db@sha256:d"]);
    scene.edit("web", |job| job.suspend = true);
    scene.plan();
    assert_eq!(scene.order("n1", WEB).map(|order| order.hold), Some(true));
}

#[test]
fn a_job_without_orders_says_why_it_waits() {
    let mut scene = Scene::of(&["n1"]);
    let mut web = on(&[]);
    blind(&mut web);
    scene.job(web);
    assert_eq!(scene.plan(), NOTHING);
    let outcome = scene.world.outcome(&id("web")).unwrap();
    assert_eq!((outcome.stage, outcome.unseen, outcome.started.is_some()), (Stage::Running, Some("Pod"), true));
    assert!(!outcome.waiting_for.contains_key(&Reason::Pending));
    // The only node that had an order for it is gone, and with it what there was to keep.
    scene.edit("web", |job| (job.names, job.unseen) = (names(&["n1"]), None));
    scene.plan();
    scene.edit("web", blind);
    scene.plan();
    assert_eq!(scene.world.outcome(&id("web")), None);
    scene.world.apply(Event::AgentGone("n1".into()));
    scene.plan();
    assert!(scene.world.outcome(&id("web")).is_some_and(|outcome| outcome.lacks_nodes));
}

#[test]
fn an_ask_in_place_of_that_of_such_a_job_is_planned_once() {
    let mut scene = Scene::of(&["n1"]);
    let mut first = job("first", &["web:1"]);
    (first.pull.bandwidth, first.pull.retries) = (Some(1), 0);
    scene.job(first);
    assert_eq!(scene.plan(), ["n1 asks for web:1"]);
    let mut other = of_namespace("elsewhere", job("other", &["web:1"]));
    other.pull.retries = 0;
    scene.job(other);
    scene.fails("n1", "web:1", Reason::NotFound);
    scene.acknowledge = false;
    let secret = SecretId::new("default", "mine");
    scene.secrets.insert(secret.clone(), Found::Logins(vec![Offer { id: LoginId::new("mine"), closeness: 0 }]));
    scene.edit("first", |job| {
        blind(job);
        job.pull.retries = 1;
        job.images[0].secrets = vec![secret];
    });
    assert_eq!(scene.plan(), ["n1 asks for web:1"], "the failure of the first one is none for the other");
    let terms = scene.question("n1", "web:1").unwrap().terms;
    assert_eq!((terms.pull.retries, terms.logins), (0, vec![]), "the first one has no part in it");
    scene.world.touch_everything();
    assert_eq!(scene.plan(), NOTHING);
}
