use super::wish::{MIN_READY, PARALLELISM, TIMEOUT};
use super::*;
use serde_json::{Value, json};

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

fn containers(images: &[(&str, &str)]) -> Value {
    images.iter().map(|(name, image)| json!({ "name": name, "image": image })).collect()
}

/// A workload of this kind with three pods, whose new template has these images.
fn workload(api_version: &str, kind: &str, images: &[(&str, &str)], more: Value) -> DynamicObject {
    let mut value = json!({
        "apiVersion": api_version, "kind": kind,
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "u", "generation": 2, "annotations": { PARALLELISM: "2" },
        },
        "spec": {
            "replicas": 3,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" }, "annotations": { "note": "x" } },
                "spec": {
                    "containers": containers(images),
                    "initContainers": containers(&[("init", "init:2")]),
                    "imagePullSecrets": [{ "name": "login" }, { "name": "" }],
                },
            },
        },
        "status": { "observedGeneration": 2, "replicas": 3 },
    });
    merge(&mut value, &more);
    object(value)
}

fn merge(into: &mut Value, from: &Value) {
    match from {
        Value::Object(from) if into.is_object() => {
            for (key, value) in from {
                merge(&mut into[key], value);
            }
        }
        from => into.clone_from(from),
    }
}

type Revision = (String, RevisionRow);

fn kept(name: &str, row: Row) -> Revision {
    match row {
        Row::Revision(row) => (name.into(), *row),
        row => panic!("{row:?}"),
    }
}

fn replica_set(name: &str, number: u64, (pods, ready): (u64, u64), images: &[(&str, &str)]) -> Revision {
    let set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {
            "name": name, "labels": { "app": "web", "pod-template-hash": name.trim_start_matches("web-") },
            "annotations": { "deployment.kubernetes.io/revision": number.to_string() },
        },
        "spec": { "template": { "spec": { "containers": containers(images) } } },
        "status": { "replicas": pods, "readyReplicas": ready },
    });
    kept(name, row::replica_set(object(set)))
}

fn controller_revision(name: &str, number: u64, images: &[(&str, &str)], labels: Value) -> Revision {
    let mut revision = json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision",
        "metadata": { "name": name, "labels": { "app": "web" } },
        "data": { "spec": { "template": { "spec": { "containers": containers(images) } } } },
        "revision": number,
    });
    revision["metadata"]["labels"][child::HASH] = json!(name.trim_start_matches("web-"));
    merge(&mut revision["metadata"]["labels"], &labels);
    kept(name, row::controller_revision(object(revision)))
}

fn underway<'a>(shape: Shape, workload: &DynamicObject, revisions: &'a [Revision]) -> Option<Underway<'a>> {
    let revisions: Vec<(&str, &RevisionRow)> = revisions.iter().map(|(name, row)| (name.as_str(), row)).collect();
    match rollout::stage(shape, workload) {
        Stage::Underway => rollout::underway(shape, workload, &revisions),
        Stage::Unknown | Stage::Over => None,
    }
}

/// The jobs that are wanted, by container and image.
fn jobs(shape: Shape, workload: &DynamicObject, revisions: &[Revision]) -> Vec<(String, String)> {
    let Some(underway) = underway(shape, workload, revisions) else { return Vec::new() };
    let named = |job: &DynamicObject| {
        let name = job.metadata.name.clone().unwrap();
        let (name, _) = name.rsplit_once('-').unwrap();
        (name.to_owned(), job.data["spec"]["image"].as_str().unwrap().to_owned())
    };
    child::wanted(workload, &wish::wish(workload), &underway).iter().map(named).collect()
}

fn pairs(jobs: &[(&str, &str)]) -> Vec<(String, String)> {
    jobs.iter().map(|(name, image)| (name.to_string(), image.to_string())).collect()
}

const NEW: &[(&str, &str)] = &[("main", "web:2"), ("more", "cache:1"), ("side", "proxy:1")];
const OLD: &[(&str, &str)] = &[("main", "web:1"), ("side", "proxy:1")];

#[test]
fn changed_and_new_containers_of_a_deployment_have_a_job_while_old_pods_are_there() {
    let sets = [
        replica_set("web-b", 2, (1, 1), NEW),
        replica_set("web-a", 1, (2, 2), OLD),
        replica_set("web-0", 0, (0, 0), NEW),
    ];
    let begun = json!({ "status": { "updatedReplicas": 1 } });
    let deployment = workload("apps/v1", "Deployment", NEW, begun);
    let wanted = pairs(&[("web-b-main", "web:2"), ("web-b-more", "cache:1")]);
    assert_eq!(jobs(Shape::Deployment, &deployment, &sets), wanted);
    for (what, status, spec) in [
        ("all are updated", json!({ "updatedReplicas": 3 }), json!({})),
        ("not looked at", json!({ "updatedReplicas": 1, "observedGeneration": 1 }), json!({})),
        ("all go at once", json!({ "updatedReplicas": 0 }), json!({ "strategy": { "type": "Recreate" } })),
        (
            "one batch",
            json!({ "updatedReplicas": 0 }),
            json!({ "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "100%" } } }),
        ),
        ("one pod", json!({ "updatedReplicas": 0 }), json!({ "replicas": 1, "strategy": { "type": "RollingUpdate" } })),
    ] {
        let deployment = workload("apps/v1", "Deployment", NEW, json!({ "status": status, "spec": spec }));
        assert_eq!(jobs(Shape::Deployment, &deployment, &sets), [], "{what}");
    }
    assert_eq!(jobs(Shape::Deployment, &deployment, &[]), [], "its ReplicaSets are not known");
    assert_eq!(jobs(Shape::Deployment, &deployment, &sets[1..]), [], "the newest ReplicaSet is not known yet");
}

#[test]
fn a_set_that_names_its_revisions_has_jobs_until_they_are_the_same_or_all_pods_are_updated() {
    let revisions = [controller_revision("web-a", 1, OLD, json!({})), controller_revision("web-b", 2, NEW, json!({}))];
    let status = |current: &str, updated: u64| json!({ "status": { "currentRevision": current, "updateRevision": "web-b", "updatedReplicas": updated } });
    let wanted = pairs(&[("web-b-main", "web:2"), ("web-b-more", "cache:1")]);
    for (api, kind) in [("apps/v1", "StatefulSet"), ("apps.kruise.io/v1alpha1", "CloneSet")] {
        for (current, updated, wanted) in
            [("web-a", 0, &wanted[..]), ("web-a", 2, &wanted), ("web-a", 3, &[]), ("web-b", 0, &[])]
        {
            let set = workload(api, kind, NEW, status(current, updated));
            assert_eq!(jobs(Shape::Named, &set, &revisions), wanted, "{kind} {current} {updated}");
        }
    }
    let mut set = workload("apps/v1", "StatefulSet", NEW, status("web-a", 0));
    set.data["spec"]["updateStrategy"] = json!({ "type": "OnDelete" });
    assert_eq!(jobs(Shape::Named, &set, &revisions), wanted, "pods that somebody deletes find their image");
    set.types.as_mut().unwrap().api_version = "apps.kruise.io/v1beta1".into();
    assert_eq!(jobs(Shape::Named, &set, &revisions), [], "as OpenKruise has it");
}

#[test]
fn a_daemon_set_counts_and_its_last_two_revisions_are_compared() {
    let revisions = [
        controller_revision("web-a", 1, OLD, json!({})),
        controller_revision("web-c", 3, NEW, json!({})),
        controller_revision("web-b", 2, &[("main", "web:2"), ("more", "cache:1"), ("side", "proxy:0")], json!({})),
    ];
    let counts = json!({ "desiredNumberScheduled": 3, "currentNumberScheduled": 3 });
    let with = |updated: u64| {
        let mut set = workload("apps/v1", "DaemonSet", NEW, json!({ "status": counts }));
        set.data["status"]["updatedNumberScheduled"] = json!(updated);
        set
    };
    assert_eq!(jobs(Shape::DaemonSet, &with(1), &revisions), pairs(&[("web-c-side", "proxy:1")]));
    assert_eq!(jobs(Shape::DaemonSet, &with(3), &revisions), []);
}

#[test]
fn revisions_that_openkruise_marks_are_its_own() {
    let status = json!({ "status": { "currentRevision": "web-a", "updateRevision": "web-b" } });
    let clone_set = workload("apps.kruise.io/v1alpha1", "CloneSet", NEW, status);
    let old = controller_revision("web-a", 1, OLD, json!({}));
    for mark in ["apps.kruise.io/pre-predownload-created", "apps.kruise.io/image-predownload-ignored"] {
        let newest = controller_revision("web-b", 2, NEW, json!({ mark: "true" }));
        assert_eq!(jobs(Shape::Named, &clone_set, &[old.clone(), newest]), [], "{mark}");
    }
}

#[test]
fn ready_pods_of_the_new_revision_are_counted_without_looking_at_pods() {
    let revisions = [controller_revision("web-a", 1, OLD, json!({})), controller_revision("web-b", 2, NEW, json!({}))];
    let named = json!({ "currentRevision": "web-a", "updateRevision": "web-b" });
    let daemons = json!({ "desiredNumberScheduled": 3, "currentNumberScheduled": 3 });
    for (shape, kind, known, status, ready) in [
        (Shape::Named, "StatefulSet", &named, json!({ "readyReplicas": 3, "updatedReplicas": 1 }), 1),
        // It may be the updated one that is not ready.
        (Shape::Named, "StatefulSet", &named, json!({ "readyReplicas": 2, "updatedReplicas": 1 }), 0),
        (Shape::Named, "CloneSet", &named, json!({ "readyReplicas": 1, "updatedReadyReplicas": 1 }), 1),
        (Shape::DaemonSet, "DaemonSet", &daemons, json!({ "numberReady": 3, "updatedNumberScheduled": 2 }), 2),
        (Shape::DaemonSet, "DaemonSet", &daemons, json!({ "numberReady": 1, "updatedNumberScheduled": 2 }), 0),
    ] {
        let mut set = workload("apps/v1", kind, NEW, json!({ "status": known }));
        merge(&mut set.data["status"], &status);
        assert_eq!(underway(shape, &set, &revisions).unwrap().ready, ready, "{kind} {status}");
    }
    let sets = [replica_set("web-b", 2, (2, 1), NEW), replica_set("web-a", 1, (2, 2), OLD)];
    let deployment = workload("apps/v1", "Deployment", NEW, json!({ "status": { "updatedReplicas": 1 } }));
    assert_eq!(underway(Shape::Deployment, &deployment, &sets).unwrap().ready, 1);
}

#[test]
fn who_asks_for_it_and_how() {
    let set = |api: &str, kind: &str, annotations: Value, strategy: Value| {
        let mut set = workload(api, kind, NEW, json!({}));
        set.metadata.annotations = serde_json::from_value(annotations).unwrap();
        set.data["spec"]["updateStrategy"] = strategy;
        set
    };
    let [kubernetes, kruise] = ["apps/v1", "apps.kruise.io/v1beta1"];
    for (api, kind, annotations, strategy, asks) in [
        (kubernetes, "Deployment", json!({}), json!({}), false),
        (kubernetes, "Deployment", json!({ TIMEOUT: "60" }), json!({}), false),
        (kubernetes, "Deployment", json!({ PARALLELISM: "5" }), json!({}), true),
        (kubernetes, "DaemonSet", json!({}), json!({}), false),
        (kruise, "DaemonSet", json!({}), json!({}), true),
        (kruise, "CloneSet", json!({ PARALLELISM: "5" }), json!({ "type": "ReCreate" }), false),
        (kruise, "CloneSet", json!({}), json!({ "type": "InPlaceIfPossible" }), true),
        (kruise, "StatefulSet", json!({}), json!({ "rollingUpdate": { "podUpdatePolicy": "InPlaceOnly" } }), true),
        (kruise, "StatefulSet", json!({}), json!({ "rollingUpdate": { "podUpdatePolicy": "ReCreate" } }), false),
    ] {
        let set = set(api, kind, annotations.clone(), strategy.clone());
        assert_eq!(wish::asks(&set), asks, "{api} {kind} {annotations} {strategy}");
        assert_eq!(matches!(row::workload(set), Row::Whole(_)), asks);
    }
    let read = |annotations: Value, fields: Value| {
        let strategy = json!({ "type": "InPlaceOnly", "rollingUpdate": { "inPlaceUpdateStrategy": fields } });
        let wish = wish::wish(&set(kruise, "CloneSet", annotations, strategy));
        (wish.parallelism.to_string(), wish.timeout, wish.min_ready.of(5), wish.problems)
    };
    assert_eq!(read(json!({}), json!({})), ("1".into(), 300, 0, vec![]));
    assert_eq!(read(json!({ PARALLELISM: " 5 ", MIN_READY: "3" }), json!({})), ("5".into(), 300, 3, vec![]));
    let percents = json!({ PARALLELISM: "020%", TIMEOUT: "60", MIN_READY: "50%" });
    assert_eq!(read(percents, json!({})), ("20%".into(), 60, 3, vec![]));
    let fields = json!({
        "imagePreDownloadParallelism": 4, "imagePreDownloadTimeoutSeconds": 90, "imagePreDownloadMinUpdatedReadyPods": 2,
    });
    assert_eq!(read(json!({}), fields.clone()), ("4".into(), 90, 2, vec![]));
    let (parallelism, .., problems) = read(json!({ PARALLELISM: "7" }), fields);
    assert_eq!((parallelism.as_str(), problems), ("7", vec![]), "the annotation comes first");
    for not_a_share in ["+5", "+5%", "101%", "-1", "1.5"] {
        let said = json!({ PARALLELISM: not_a_share, MIN_READY: not_a_share });
        let (parallelism, _, ready, problems) = read(said, json!({}));
        assert_eq!((parallelism.as_str(), ready, problems.len()), ("1", 0, 2), "{not_a_share}");
    }
    let wrong = json!({ PARALLELISM: "many", TIMEOUT: "-1" });
    let (parallelism, timeout, ready, problems) = read(wrong, json!({ "imagePreDownloadMinUpdatedReadyPods": {} }));
    assert_eq!((parallelism.as_str(), timeout, ready), ("1", 300, 0));
    insta::assert_snapshot!(problems.join("\n"));
}

#[test]
fn a_job_selects_the_pods_of_older_revisions_and_other_settings_mean_another_job() {
    let revisions =
        [controller_revision("web-a", 1, OLD, json!({})), controller_revision("web-b", 2, &NEW[..1], json!({}))];
    let begun = json!({ "status": { "currentRevision": "web-a", "updateRevision": "web-b" } });
    let mut set = workload("apps/v1", "StatefulSet", &NEW[..1], begun);
    let wanted = |set: &DynamicObject| {
        let underway = underway(Shape::Named, set, &revisions).unwrap();
        child::wanted(set, &wish::wish(set), &underway).remove(0)
    };
    let job = wanted(&set);
    insta::assert_snapshot!(serde_json::to_string_pretty(&job).unwrap());
    assert_eq!(child::unwanted(std::slice::from_ref(&job), &[&job]), []);
    set.metadata.annotations.as_mut().unwrap().insert(PARALLELISM.into(), "5".into());
    let other = wanted(&set);
    assert_ne!(other.metadata.name, job.metadata.name);
    let mut there = job.clone();
    there.metadata.uid = Some("j".into());
    let [Write::Delete(target, uid)] = &child::unwanted(&[other], &[&there])[..] else { panic!("it goes") };
    assert_eq!((Some(&target.name), uid.as_deref()), (job.metadata.name.as_ref(), Some("j")));
}

#[test]
fn names_fit_however_long_those_of_revisions_and_containers_are() {
    let (long, container) = ("web-".to_owned() + &"x".repeat(240), "c".repeat(63));
    let images: &[(&str, &str)] = &[(&container, "web:2")];
    let revisions = [controller_revision(&long, 1, images, json!({ child::HASH: "b" }))];
    let status = json!({ "status": { "currentRevision": "gone", "updateRevision": long } });
    let set = workload("apps/v1", "StatefulSet", images, status);
    let underway = underway(Shape::Named, &set, &revisions).unwrap();
    let job = child::wanted(&set, &wish::wish(&set), &underway).remove(0);
    let name = job.metadata.name.unwrap();
    assert!(name.len() <= 253 && name.starts_with("web-xxx"), "{name}");
    let values = job.data.pointer("/spec/podSelector/matchExpressions/0/values").unwrap();
    assert_eq!(*values, json!(["b"]), "a label holds no more than 63 characters");
}
