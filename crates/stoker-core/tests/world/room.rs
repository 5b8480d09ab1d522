//! A node's object holds so much and no more, and no namespace fills it.

use stoker_core::model::{Job, Sandbox};
use stoker_core::world::{ROOM, ROOM_OF_A_NAMESPACE, weight};
use stoker_core::{PullSource, Stage};

use crate::build::{job, of_namespace};
use crate::scene::{NOTHING, Scene};

/// A job of so many images, each of which goes to nodes with a kilobyte of annotations.
fn fat(namespace: &str, name: &str, images: usize) -> Job {
    let images: Vec<String> = (0..images).map(|n| format!("{name}-{n}@sha256:{n}")).collect();
    let images: Vec<&str> = images.iter().map(String::as_str).collect();
    let mut job = of_namespace(namespace, job(name, &images));
    let annotations = [("key".to_string(), "x".repeat(1_000))].into();
    job.pull.sandbox = Sandbox { annotations, ..Sandbox::default() };
    job
}

/// What the orders of a node take.
fn taken(scene: &Scene, node: &str) -> usize {
    scene.world.orders(node).unwrap().values().map(weight).sum()
}

#[test]
fn no_namespace_fills_a_node_and_none_is_kept_out_by_another() {
    let mut scene = Scene::of(&["n1"]);
    for n in 0..10 {
        scene.job(fat("hostile", &format!("a-{n}"), 100));
    }
    scene.plan();
    let hostile = taken(&scene, "n1");
    assert!(hostile <= ROOM_OF_A_NAMESPACE && hostile > ROOM_OF_A_NAMESPACE / 2, "{hostile}");
    scene.job(job("web", &["web@sha256:w"]));
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    for n in 0..10 {
        scene.job(fat(&format!("hostile-{n}"), &format!("b-{n}"), 100));
    }
    scene.plan();
    assert!(taken(&scene, "n1") <= ROOM, "{}", taken(&scene, "n1"));
}

/// Their orders never end, and those who need a node come last.
#[test]
fn several_full_namespaces_leave_a_share_of_a_node_to_those_that_have_nothing() {
    let mut scene = Scene::of(&["n1"]);
    for n in 0..6 {
        scene.job(fat(&format!("hostile-{n}"), &format!("a-{n}"), 300));
    }
    scene.plan();
    assert_eq!(scene.plan(), NOTHING);
    let hostile = taken(&scene, "n1");
    assert!(hostile > ROOM / 8 * 6, "they have filled it: {hostile}");
    for n in 0..8 {
        let name = format!("web-{n}");
        scene.job(of_namespace(&format!("shop-{n}"), job(&name, &[&format!("{name}@sha256:{n}")])));
        assert_eq!(scene.plan(), [format!("n1 pulls {name}@sha256:{n} at sha256:{n}")]);
    }
    // And one whose images are asked for first.
    scene.job(of_namespace("shop", job("tags", &["tags:1"])));
    assert_eq!(scene.plan(), ["n1 asks for tags:1"]);
    scene.resolves("n1", "tags:1", "sha256:t");
    assert_eq!(scene.plan(), ["n1 pulls tags:1 at sha256:t"]);
    assert!(taken(&scene, "n1") <= ROOM, "{}", taken(&scene, "n1"));
    assert!(scene.order("n1", "a-5-0@sha256:0").is_some(), "each of the others has a share, too");
}

#[test]
fn who_has_no_room_waits_for_it_and_says_so() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(fat("default", "first", 100));
    scene.job(fat("default", "second", 150));
    scene.job(fat("default", "third", 20));
    scene.plan();
    assert_eq!(scene.states("third"), ["n1 waits: TooManyOrders"]);
    assert_eq!(scene.plan(), NOTHING);
    for n in 0..100 {
        scene.succeeds("n1", &format!("first-{n}@sha256:{n}"));
    }
    scene.plan();
    assert_eq!(scene.outcome("first").stage, Stage::Succeeded);
    scene.delete("first");
    scene.plan();
    assert_eq!(scene.states("third"), ["n1 pulls"], "the room of orders that nobody wants any more");
}

/// Each look of these nodes is small. All those of a job were asked at one time, because there was room for the first.
#[test]
fn nodes_that_look_whether_they_have_images_are_asked_no_more_than_there_is_room_for() {
    let mut scene = Scene::of(&["n1"]);
    let long = "x".repeat(240);
    for n in 0..5 {
        let images: Vec<String> = (0..100).map(|image| format!("{long}/{n}-{image}@sha256:{image}")).collect();
        let images: Vec<&str> = images.iter().map(String::as_str).collect();
        let mut job = of_namespace("hostile", job(&format!("hostile-{n}"), &images));
        job.pull.source = PullSource::PeersOnly;
        scene.job(job);
    }
    scene.plan();
    let hostile = taken(&scene, "n1");
    // What questions ask of an agent is not counted in advance.
    let few = 16 * 1024;
    assert!(hostile > ROOM_OF_A_NAMESPACE / 2 && hostile <= ROOM_OF_A_NAMESPACE + few, "{hostile}");
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("hostile-4"), ["n1 waits: TooManyOrders"]);
    scene.job(fat("shop", "web", 40));
    scene.plan();
    assert_eq!(scene.states("web"), ["n1 pulls"], "another namespace has more than a share");
}
