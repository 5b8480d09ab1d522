//! Every manifest below `tests/fixtures/` is taken through a View and a World with two nodes and two Pods: drop a file in and you have
//! a test. The snapshots say which jobs it means, which queries it asks for, and what is written. Each also shows that the writes
//! lead somewhere: when all are done nothing more is written, also by a controller that starts anew.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use jiff::Timestamp;
use kube_core::dynamic::DynamicObject;
use serde_json::json;
use stoker_api::native::PREHEAT_POLICIES;
use stoker_api::view::{Query, Root};
use stoker_api::{View, Write, served_kinds};
use stoker_core::{Event, World};
use stoker_testbed::paper::Paper;

fn manifests(folder: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(folder);
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    assert!(!files.is_empty());
    let read = |file: std::path::PathBuf| {
        (file.file_stem().unwrap().to_str().unwrap().to_string(), std::fs::read_to_string(&file).unwrap())
    };
    files.into_iter().map(read).collect()
}

/// What a controller knows that has listed everything that is wanted.
fn seen(paper: &Paper, now: Timestamp) -> (View, World) {
    let (mut view, mut world) = (View::without_signs(), fleet());
    assert_eq!(paper.list_all(&mut view, &mut world), [""; 0]);
    assert!(view.is_known());
    world.plan(now);
    (view, world)
}

/// An object of the namespace `default`.
fn put(paper: &mut Paper, mut object: DynamicObject) {
    object.metadata.namespace = Some("default".into());
    let name = object.metadata.name.clone().unwrap();
    object.metadata.uid.get_or_insert_with(|| format!("uid of {name}"));
    paper.put(object);
}

fn fleet() -> World {
    let mut world = World::new();
    for (name, pool) in [("n1", "serverless"), ("n2", "vm")] {
        world.apply(Event::Node(stoker_core::Node {
            name: name.into(),
            labels: [("resource-pool".to_string(), pool.to_string())].into(),
            ready: true,
            ready_changed: None,
            cordoned: false,
            foreign: false,
        }));
        world.apply(Event::Orders(name.into(), Default::default()));
    }
    world
}

/// All writes that are asked for.
fn writes(view: &mut View, world: &World, now: Timestamp) -> Vec<Write> {
    let roots: Vec<Root> = view.due(now).cloned().collect();
    roots.iter().flat_map(|root| view.project(root, world, now)).collect()
}

fn shown(write: &Write) -> String {
    let name = &write.target().name;
    match write {
        Write::Create(target, event) if target.resource.kind == "Event" => {
            format!("event: {} {}: {}\n", event["type"], event["reason"], event["message"]).replace('"', "")
        }
        Write::Create(_, value) => format!("create {name}\n{value:#}\n"),
        Write::Patch(_, value) => format!("patch {name}\n{value:#}\n"),
        Write::Status(_, value) => format!("status of {name}\n{value:#}\n"),
        Write::Guarded(_, value) => format!("patch of one version of {name}\n{value:#}\n"),
        Write::GuardedStatus(_, value) => format!("status of one version of {name}\n{value:#}\n"),
        Write::Delete(..) => format!("delete {name}\n"),
    }
}

fn walk(manifest: &str) -> String {
    let now: Timestamp = "2026-01-02T03:04:05.678Z".parse().unwrap();
    let mut paper = Paper::default();
    for (app, node) in [("web", "n1"), ("db", "n2")] {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": app, "labels": { "app": app } },
            "spec": { "nodeName": node } });
        put(&mut paper, serde_json::from_value(pod).unwrap());
    }
    let mut object: DynamicObject = serde_saphyr::from_str(manifest).unwrap();
    object.metadata.generation = Some(1);
    object.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
    put(&mut paper, object);

    let (mut view, world) = seen(&paper, now);
    // What policies leave a job no dialect says.
    let jobs = world.jobs().map(|id| format!("{:#?}\n\n", world.job(id).unwrap()).replace("    bounds: none,\n", ""));
    let jobs: String = jobs.collect();
    let always = [&PREHEAT_POLICIES].into_iter().chain(served_kinds().map(|kind| &kind.kind));
    let base: Vec<Query> = always.map(Query::all).collect();
    let asked = view.wanted().into_iter().filter(|query| !base.contains(query));
    let asked: String =
        asked.map(|query| format!("watches {}s with `{}`\n\n", query.kind.name, query.labels)).collect();
    let first = writes(&mut view, &world, now);
    let text: Vec<String> = first.iter().map(shown).collect();

    let mut next = first;
    for _ in 0..5 {
        for write in next.iter().filter(|write| write.target().resource.kind != "Event") {
            paper.perform(write, now).unwrap();
        }
        let (mut view, world) = seen(&paper, now);
        next = writes(&mut view, &world, now);
    }
    assert_eq!(next, [], "it is never done");
    format!("{jobs}{asked}{}", text.join("\n"))
}

#[test]
fn native() {
    for (name, manifest) in manifests("native") {
        insta::assert_snapshot!(format!("native-{name}"), walk(&manifest));
    }
}

#[test]
fn kruise() {
    for (name, manifest) in manifests("kruise") {
        insta::assert_snapshot!(format!("kruise-{name}"), walk(&manifest));
    }
}
