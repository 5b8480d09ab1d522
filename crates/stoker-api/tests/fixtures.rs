//! Every manifest below `tests/fixtures/` becomes a job and a status: drop a file in and you have a test.
//! The snapshots say what the core sees of it, and what its user sees of the outcome.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use jiff::Timestamp;
use kube_core::dynamic::DynamicObject;
use stoker_api::view::{Query, Root};
use stoker_api::{View, Write, job_kinds};
use stoker_core::{Event, World};

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

/// The object as an API server would hand it out, the job it means, and the status of a fleet of two nodes.
fn walk(manifest: &str) -> String {
    let mut object: DynamicObject = serde_saphyr::from_str(manifest).unwrap();
    object.metadata.namespace = Some("default".into());
    object.metadata.generation = Some(1);
    let now: Timestamp = "2026-01-02T03:04:05.678Z".parse().unwrap();
    object.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
    let kind = job_kinds().find(|kind| kind.kind.name == object.types.as_ref().unwrap().kind).unwrap();
    let root = Root { kind, namespace: "default".into(), name: object.metadata.name.clone().unwrap() };
    let mut view = View::default();
    view.see(&Query::all(&kind.kind), object);
    let mut world = World::new();
    for (name, pool) in [("n1", "serverless"), ("n2", "vm")] {
        world.apply(Event::Node(stoker_core::Node {
            name: name.into(),
            labels: [("resource-pool".to_string(), pool.to_string())].into(),
            ready: true,
            ready_changed: None,
        }));
        world.apply(Event::Orders(name.into(), Default::default()));
    }
    let settled = view.settle(&mut world);
    assert_eq!(settled.problems, [""; 0]);
    let job = world.job(&root.job()).unwrap().clone();
    world.plan(now);
    let mut writes = view.project(&root, &world, now);
    let Some(Write::Status(_, patch)) = writes.pop() else { panic!("no status") };
    format!("{job:#?}\n\n{patch:#}")
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
