//! Every manifest below `tests/fixtures/` is taken through a View and a World with two nodes and two Pods: drop a file in and you have
//! a test. The snapshots say which jobs it means, which queries it asks for, and what is written. Each also shows that the writes
//! lead somewhere: when all are done nothing more is written, also by a controller that starts anew.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use kube_core::dynamic::DynamicObject;
use serde_json::{Value, json};
use stoker_api::view::{Heard, Query, Root};
use stoker_api::{View, Write, job_kinds, labels};
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

/// Objects by kind and name, as an API server holds them.
struct Paper {
    objects: BTreeMap<(String, String), DynamicObject>,
    version: u64,
}

impl Paper {
    fn put(&mut self, mut object: DynamicObject) {
        self.version += 1;
        let name = object.metadata.name.clone().unwrap();
        object.metadata.namespace = Some("default".into());
        object.metadata.uid.get_or_insert_with(|| format!("uid of {name}"));
        object.metadata.resource_version = Some(self.version.to_string());
        self.objects.insert((object.types.as_ref().unwrap().kind.clone(), name), object);
    }

    fn perform(&mut self, write: &Write, now: Timestamp) {
        let target = write.target();
        let id = (target.resource.kind.clone(), target.name.clone());
        match write {
            Write::Create(_, object) => {
                let mut object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
                object.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
                object.metadata.generation = Some(1);
                self.put(object);
            }
            Write::Delete(..) => {
                self.objects.remove(&id);
            }
            Write::Patch(_, patch) | Write::Status(_, patch) | Write::Guarded(_, patch) => {
                let mut object = serde_json::to_value(&self.objects[&id]).unwrap();
                merge(&mut object, patch);
                self.put(serde_json::from_value(object).unwrap());
            }
        }
    }

    /// What a controller knows that has listed everything that is wanted.
    fn seen(&self, now: Timestamp) -> (View, World) {
        let (mut view, mut world) = (View::without_signs(), fleet());
        while let Some(query) = view.wanted().into_iter().find(|query| view.heard(query) == Heard::Unlisted) {
            let all = self.objects.values().filter(|object| object.types.as_ref().unwrap().kind == query.kind.name);
            let selected = |object: &&DynamicObject| {
                let selector = (!query.labels.is_empty()).then(|| labels::parse(&query.labels).unwrap());
                let labels = object.metadata.labels.clone().unwrap_or_default();
                selector.is_none_or(|selector| labels::to_core(&selector).matches(&labels))
            };
            all.filter(selected).for_each(|object| view.see(&query, object.clone()));
            view.hear(&query, Heard::Listed);
            assert_eq!(view.settle(&mut world).problems, [""; 0]);
        }
        assert!(view.is_known());
        world.plan(now);
        (view, world)
    }
}

fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        into.clone_from(patch);
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    let into = into.as_object_mut().unwrap();
    for (key, value) in patch {
        match value {
            Value::Null => {
                into.remove(key);
            }
            value => merge(into.entry(key).or_insert(Value::Null), value),
        }
    }
}

fn fleet() -> World {
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
        Write::Delete(..) => format!("delete {name}\n"),
    }
}

fn walk(manifest: &str) -> String {
    let now: Timestamp = "2026-01-02T03:04:05.678Z".parse().unwrap();
    let mut paper = Paper { objects: BTreeMap::new(), version: 0 };
    for (app, node) in [("web", "n1"), ("db", "n2")] {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": app, "labels": { "app": app } },
            "spec": { "nodeName": node } });
        paper.put(serde_json::from_value(pod).unwrap());
    }
    let mut object: DynamicObject = serde_saphyr::from_str(manifest).unwrap();
    object.metadata.generation = Some(1);
    object.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
    paper.put(object);

    let (mut view, world) = paper.seen(now);
    let jobs: String = world.jobs().map(|id| format!("{:#?}\n\n", world.job(id).unwrap())).collect();
    let base: Vec<Query> = job_kinds().map(|kind| Query::all(&kind.kind)).collect();
    let asked = view.wanted().into_iter().filter(|query| !base.contains(query));
    let asked: String =
        asked.map(|query| format!("watches {}s with `{}`\n\n", query.kind.name, query.labels)).collect();
    let first = writes(&mut view, &world, now);
    let text: Vec<String> = first.iter().map(shown).collect();

    let mut next = first;
    for _ in 0..5 {
        next.iter().filter(|write| write.target().resource.kind != "Event").for_each(|write| paper.perform(write, now));
        let (mut view, world) = paper.seen(now);
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
