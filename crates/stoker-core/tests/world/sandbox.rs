//! What a runtime is told about a pod: bounded, however many jobs say something.

use std::collections::BTreeMap;

use stoker_core::model::Sandbox;
use stoker_core::world::ROOM;
use stoker_core::{Job, JobId};

use crate::build::{job, key};
use crate::scene::Scene;

const WEB: &str = "web@sha256:w";

/// A job of a namespace that says as much as one may.
fn of(namespace: usize, number: usize) -> Job {
    let pairs = |what: &str| -> BTreeMap<String, String> {
        (0..Sandbox::MOST_OF_A_JOB).map(|n| (format!("{what}-{namespace}-{number}-{n}"), "v".into())).collect()
    };
    let mut job = job("web", &[WEB]);
    job.id = JobId::new(("stoker.dev", "Preheat"), &format!("ns{namespace}"), &format!("j{namespace}-{number}"));
    job.pull.sandbox = Sandbox { labels: pairs("l"), annotations: pairs("a") };
    job
}

#[test]
fn an_order_says_what_its_schema_allows_however_many_jobs_it_serves() {
    let mut scene = Scene::of(&["n1"]);
    for namespace in 0..30 {
        (0..3).for_each(|number| scene.job(of(namespace, number)));
    }
    scene.plan();
    let order = scene.order("n1", WEB).unwrap();
    let Sandbox { labels, annotations } = &order.terms.pull.sandbox;
    assert!(
        labels.len() <= Sandbox::MOST && annotations.len() <= Sandbox::MOST,
        "{} {}",
        labels.len(),
        annotations.len()
    );
    assert!(labels.contains_key("l-0-0-0") && !labels.contains_key("l-0-1-0"), "the oldest of a namespace comes first");
    assert!(labels.contains_key("l-1-0-0"), "and leaves room for other namespaces");
}

#[test]
fn jobs_that_are_edited_do_not_outgrow_the_object_of_a_node() {
    let mut scene = Scene::of(&["n1"]);
    let images: Vec<String> = (0..100).map(|n| format!("i{n}@sha256:{n}")).collect();
    for (number, image) in images.iter().enumerate() {
        let mut one = of(0, number);
        (one.images, one.pull.sandbox) = (job("web", &[image]).images, Sandbox::default());
        scene.job(one);
    }
    scene.plan();
    for number in 0..images.len() {
        let (name, told) = (format!("j0-{number}"), "x".repeat(Sandbox::MOST_BYTES / 2));
        scene.edit(&name, |job| job.pull.sandbox.annotations = [("told".into(), told)].into());
    }
    scene.plan();
    let orders = scene.world.orders("n1").unwrap();
    let told =
        |image: &String| orders.get(&key(image)).is_some_and(|order| !order.terms.pull.sandbox.annotations.is_empty());
    let count = images.iter().filter(|image| told(image)).count();
    assert_eq!(orders.len(), images.len());
    assert!(count > 0 && count * Sandbox::MOST_BYTES / 2 < ROOM, "{count}");
}
