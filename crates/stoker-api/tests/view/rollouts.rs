//! Rollouts depend on workloads, revisions and ImagePullJobs, each of which may be unknown.

use kube_core::dynamic::DynamicObject;
use serde_json::{Value, json};
use stoker_api::dialect::kruise::{CONTROLLER_REVISIONS, IMAGE_PULL_JOBS, ROLLOUTS, STATEFUL_SETS};
use stoker_api::view::{Heard, Query, Root};
use stoker_api::{View, Write};
use stoker_core::World;

use crate::telling::now;

fn template(image: &str) -> Value {
    json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [{ "name": "main", "image": image }] } })
}

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

/// A StatefulSet of which one pod is updated.
fn set() -> DynamicObject {
    object(json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {
            "name": "web", "namespace": "a", "uid": "w", "generation": 1,
            "annotations": { "apps.kruise.io/image-predownload-parallelism": "1" },
        },
        "spec": { "replicas": 3, "selector": { "matchLabels": { "app": "web" } }, "template": template("web:2") },
        "status": {
            "observedGeneration": 1, "replicas": 3, "updatedReplicas": 1, "currentRevision": "web-a", "updateRevision": "web-b",
        },
    }))
}

fn revision(name: &str, number: u64, image: &str) -> DynamicObject {
    object(json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision",
        "metadata": {
            "name": name, "namespace": "a", "labels": { "app": "web" },
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "w", "controller": true }],
        },
        "data": { "spec": { "template": template(image) } }, "revision": number,
    }))
}

fn revisions() -> Query {
    Query { kind: &CONTROLLER_REVISIONS, namespace: Some("a".into()), labels: "app=web".into() }
}

/// A View that knows the StatefulSet, and that there are no ImagePullJobs.
fn scene() -> View {
    let mut view = View::without_signs();
    view.serve(&[ROLLOUTS].into());
    view.see(&Query::all(&STATEFUL_SETS.kind), set());
    view.hear(&Query::all(&STATEFUL_SETS.kind), Heard::Listed);
    view.hear(&Query::all(&IMAGE_PULL_JOBS.kind), Heard::Listed);
    view
}

fn hear_revisions(view: &mut View) {
    view.see(&revisions(), revision("web-a", 1, "web:1"));
    view.see(&revisions(), revision("web-b", 2, "web:2"));
    view.hear(&revisions(), Heard::Listed);
}

fn writes(view: &mut View) -> Vec<Write> {
    let mut world = World::new();
    view.settle(&mut world);
    let roots: Vec<Root> = view.due(now()).cloned().collect();
    roots.iter().flat_map(|root| view.project(root, &world, now())).collect()
}

/// How many are created of what.
fn created(writes: &[Write], kind: &str) -> usize {
    writes.iter().filter(|write| matches!(write, Write::Create(target, _) if target.resource.kind == kind)).count()
}

#[test]
fn nothing_is_made_until_revisions_and_jobs_are_known() {
    let mut view = scene();
    assert_eq!(writes(&mut view), []);
    assert!(view.wanted().contains(&revisions()), "{:?}", view.wanted());
    for unknown in [Heard::Deaf { listed: false }, Heard::Refused] {
        view.hear(&revisions(), unknown);
        assert_eq!(writes(&mut view), [], "{unknown:?}");
    }
    hear_revisions(&mut view);
    view.hear(&Query::all(&IMAGE_PULL_JOBS.kind), Heard::Deaf { listed: false });
    assert_eq!(writes(&mut view), []);
    view.hear(&Query::all(&IMAGE_PULL_JOBS.kind), Heard::Listed);
    let made = writes(&mut view);
    assert_eq!((created(&made, "ImagePullJob"), created(&made, "Event"), made.len()), (1, 1, 2));
}

#[test]
fn workloads_are_left_alone_together_with_image_pull_jobs() {
    let mut view = scene();
    view.leave_alone("kruise", Some("its Lease is renewed".into()));
    hear_revisions(&mut view);
    assert_eq!(writes(&mut view), []);
    assert!(!view.wanted().contains(&revisions()), "nobody reads them");
    view.leave_alone("kruise", None);
    assert_eq!(created(&writes(&mut view), "ImagePullJob"), 1);
}

#[test]
fn revisions_are_not_watched_when_the_rollout_is_over() {
    let mut view = scene();
    hear_revisions(&mut view);
    writes(&mut view);
    let mut over = set();
    over.data["status"]["currentRevision"] = json!("web-b");
    view.see(&Query::all(&STATEFUL_SETS.kind), over);
    writes(&mut view);
    assert!(!view.wanted().contains(&revisions()), "{:?}", view.wanted());
}

#[test]
fn a_workload_that_asks_for_nothing_is_not_kept() {
    let mut view = scene();
    let mut unasked = set();
    unasked.metadata.annotations = None;
    view.see(&Query::all(&STATEFUL_SETS.kind), unasked);
    assert_eq!(writes(&mut view), []);
    assert_eq!(view.roots().count(), 0);
}

#[test]
fn why_a_job_could_not_be_made_is_said() {
    let mut view = scene();
    hear_revisions(&mut view);
    let made = writes(&mut view);
    let target = made.iter().map(Write::target).find(|target| target.resource.kind == "ImagePullJob").unwrap();
    let root = view.roots().next().unwrap().clone();
    view.failed(root.clone(), target, "exceeded quota");
    let again = view.project(&root, &World::new(), now());
    assert_eq!(created(&again, "ImagePullJob"), 1);
    let said = again.iter().find_map(|write| match write {
        Write::Create(target, event) if target.resource.kind == "Event" => Some(event),
        _ => None,
    });
    let said = said.unwrap();
    assert_eq!(said["reason"], "FailedCreateImagePullJob");
    assert_eq!(said["message"], json!(format!("cannot create ImagePullJob {}: exceeded quota", target.name)));
}

/// Whoever wrote it past its schema: an API server refuses such a selector, and the watch would be tried again for ever.
#[test]
fn revisions_of_a_selector_that_no_api_server_could_evaluate_are_not_watched() {
    let mut view = scene();
    let mut set = set();
    set.data["spec"]["selector"] = json!({ "matchLabels": { "a..b/x": "web" } });
    view.see(&Query::all(&STATEFUL_SETS.kind), set);
    assert_eq!(writes(&mut view), []);
    assert!(view.wanted().iter().all(|query| *query.kind != CONTROLLER_REVISIONS), "{:?}", view.wanted());
}
