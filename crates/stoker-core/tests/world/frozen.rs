//! A kind whose objects cannot be listed: its jobs keep what they were given, and all others go on.

use stoker_core::{Completion, Event, Order, Plan, Stage, World};

use crate::build::{OTHER, at, id, image, job, key, kind, node, secs};
use crate::scene::{NOTHING, Scene};

const WEB: &str = "web@sha256:w";
const DB: &str = "db@sha256:d";

/// A World made anew from the node and its orders, to which the other kind is not known.
fn restarted(order: Order) -> World {
    let mut world = World::new();
    world.apply(Event::Freeze(kind(1)));
    world.apply(Event::Node(node("n1")));
    world.apply(Event::Orders("n1".into(), [(key(WEB), order)].into()));
    world
}

/// The order of the other job on n1.
fn ordered() -> Order {
    let mut scene = Scene::of(&["n1"]);
    scene.job(job(OTHER, &[WEB]));
    scene.plan();
    scene.order("n1", WEB).unwrap()
}

#[test]
fn what_a_frozen_job_has_stays_and_it_gets_nothing_more() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(job(OTHER, &[WEB]));
    scene.plan();
    scene.world.apply(Event::Freeze(kind(1)));
    // What is heard of it meanwhile counts later.
    scene.edit(OTHER, |job| job.images.push(image(DB)));
    scene.node(node("n2"));
    scene.agent("n2");
    assert_eq!(scene.plan(), NOTHING);
    scene.delete(OTHER);
    assert_eq!(scene.plan(), NOTHING, "its order is not taken back");
    scene.world.apply(Event::Thaw(kind(1)));
    assert_eq!(scene.plan(), ["n1 drops web@sha256:w"]);
}

#[test]
fn a_job_that_is_not_known_keeps_its_order_and_shares_it() {
    let mut world = restarted(ordered());
    assert_eq!(world.plan(at(1)), Plan::default());
    let mut web = job("web", &[WEB]);
    web.pull.timeout = secs(60);
    world.apply(Event::Job(Box::new(web.clone())));
    world.plan(at(1));
    let shared = world.orders("n1").unwrap().remove(&key(WEB)).unwrap();
    assert_eq!(shared.jobs, [id(OTHER), id("web")].into());
    assert_eq!(shared.terms.pull.timeout, secs(60), "the strictest of a namespace, whatever the other one wants");
    // Nobody knows whether the other one allows more.
    (web.pull.timeout, web.started) = (secs(900), Some(at(1)));
    world.apply(Event::Job(Box::new(web)));
    world.plan(at(2));
    assert_eq!(world.orders("n1").unwrap()[&key(WEB)].terms, shared.terms);
    world.apply(Event::JobGone(id("web")));
    assert!(world.plan(at(3)).orders.is_empty(), "the pull goes on for the other one");
    world.apply(Event::Thaw(kind(1)));
    let plan = world.plan(at(4));
    assert_eq!(plan.orders[0].keys, [key(WEB)].into(), "there is no such job");
    assert_eq!(world.order("n1", key(WEB)), None);
}

#[test]
fn a_finished_order_of_a_job_that_is_not_known_is_not_swept() {
    let order = ordered();
    let mut world = restarted(order.clone());
    let mut report = crate::build::pulling(order.asked, at(1));
    report.phase = stoker_core::Phase::Succeeded;
    world.apply(Event::Reports("n1".into(), [(key(WEB), report)].into()));
    world.apply(Event::Job(Box::new(job("db", &[DB]))));
    assert_eq!(world.plan(at(1)).orders.len(), 1);
    assert_eq!(world.orders("n1").unwrap().len(), 2);
    // It is what the job counts.
    let mut other = job(OTHER, &[WEB]);
    other.started = Some(at(0));
    world.apply(Event::Job(Box::new(other)));
    world.apply(Event::Thaw(kind(1)));
    let plan = world.plan(at(1));
    assert_eq!((plan.orders.len(), plan.outcomes[0].stage), (0, Stage::Succeeded));
}

#[test]
fn time_decides_nothing_about_a_frozen_job() {
    for completion in [
        Completion::Once { deadline: Some(secs(100)), ttl: None },
        Completion::Once { deadline: None, ttl: Some(secs(100)) },
        Completion::Continuous { resync: secs(100) },
    ] {
        let mut scene = Scene::of(&["n1"]);
        let mut other = job(OTHER, &[WEB]);
        other.completion = completion.clone();
        scene.job(other);
        scene.plan();
        if !matches!(completion, Completion::Once { deadline: Some(_), .. }) {
            scene.succeeds("n1", WEB);
            scene.plan();
        }
        scene.world.apply(Event::Freeze(kind(1)));
        scene.pass(200);
        let plan = scene.world.plan(scene.now);
        assert_eq!(plan, Plan::default(), "{completion:?}: and nobody is woken for it");
        scene.world.apply(Event::Thaw(kind(1)));
        let plan = scene.world.plan(scene.now);
        assert!(!plan.is_empty(), "{completion:?}");
    }
}

#[test]
fn a_job_whose_status_became_unreadable_does_not_keep_the_controller_busy() {
    let mut scene = Scene::of(&["n1"]);
    let mut web = job("web", &[WEB]);
    web.completion = Completion::Once { deadline: Some(secs(100)), ttl: None };
    scene.job(web);
    scene.plan();
    scene.edit("web", |job| job.unreadable = Some("it is not JSON".into()));
    scene.pass(200);
    assert_eq!(scene.world.plan(scene.now), Plan::default(), "its deadline would be a time to wake up for ever");
}

#[test]
fn others_go_on_beside_a_frozen_job() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let mut other = job(OTHER, &[WEB]);
    other.parallelism = 1;
    scene.job(other);
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    scene.world.apply(Event::Freeze(kind(1)));
    scene.job(job("web", &[WEB, DB]));
    let mut written = scene.plan();
    written.sort();
    assert_eq!(
        written,
        [
            "n1 keeps web@sha256:w",
            "n1 pulls db@sha256:d at sha256:d",
            "n2 pulls db@sha256:d at sha256:d",
            "n2 pulls web@sha256:w at sha256:w"
        ]
    );
    assert_eq!(scene.order("n1", WEB).unwrap().jobs, [id(OTHER), id("web")].into());
    assert_eq!(scene.order("n2", WEB).unwrap().jobs, [id("web")].into());
    scene.delete("web");
    scene.plan();
    assert_eq!(scene.order("n1", WEB).map(|order| order.hold), Some(false), "it is still pulled for the other one");
    assert_eq!(scene.order("n2", WEB), None);
}
