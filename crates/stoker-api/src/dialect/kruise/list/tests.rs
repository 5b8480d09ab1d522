use super::*;

fn time(text: &str) -> Timestamp {
    format!("2026-01-01T{text}Z").parse().unwrap()
}

fn list(images: &[&str], spec: Value) -> DynamicObject {
    let mut list: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "apps.kruise.io/v1beta1", "kind": "ImageListPullJob",
        "metadata": { "name": "base", "namespace": "shop", "uid": "list-uid" }, "spec": spec,
    }))
    .unwrap();
    list.data["spec"]["images"] = json!(images);
    list
}

/// What the status of a child says, if it has one: active, succeeded, failed, desired.
type Child = Option<[i32; 4]>;

/// The children of a list as an API server has them.
fn stored(list: &DynamicObject, statuses: &[Child]) -> Vec<DynamicObject> {
    let mut jobs = children(list).unwrap();
    for (job, status) in jobs.iter_mut().zip(statuses) {
        job.metadata.uid = job.metadata.name.as_ref().map(|name| format!("uid of {name}"));
        if let Some([active, succeeded, failed, desired]) = status {
            job.data["status"] = json!({
                "startTime": "2026-01-01T00:00:00Z", "desired": desired, "active": active, "succeeded": succeeded, "failed": failed,
            });
            if succeeded + failed == *desired {
                job.data["status"]["completionTime"] = json!("2026-01-01T00:00:00Z");
            }
        }
    }
    jobs
}

fn refs(jobs: &[DynamicObject]) -> Vec<&DynamicObject> {
    jobs.iter().collect()
}

fn names_of(list: &DynamicObject) -> Vec<String> {
    children(list).unwrap().into_iter().filter_map(|child| child.metadata.name).collect()
}

/// Writes in a few words.
fn told(plan: &Projected) -> Vec<String> {
    let word = |write: &Write| match write {
        Write::Patch(target, _) => format!("label {}", target.name),
        Write::Create(target, _) => format!("create {}", target.name),
        Write::Delete(target, _) => format!("delete {}", target.name),
        Write::Status(..) => "status".into(),
        Write::Guarded(..) | Write::GuardedStatus(..) => panic!("{write:?}"),
    };
    plan.writes.iter().map(word).collect()
}

/// What the list is after its writes of its own object.
fn after(mut list: DynamicObject, plan: &Projected) -> DynamicObject {
    for write in &plan.writes {
        match write {
            Write::Patch(_, patch) => {
                list.metadata.labels = serde_json::from_value(patch["metadata"]["labels"].clone()).unwrap();
            }
            Write::Status(_, patch) => {
                let status = list.data.as_object_mut().unwrap().entry("status").or_insert(json!({}));
                status.as_object_mut().unwrap().extend(patch["status"].as_object().unwrap().clone());
            }
            _ => {}
        }
    }
    list
}

#[test]
fn a_child_is_the_template_with_one_image() {
    let spec = json!({
        "parallelism": 3, "pullSecrets": ["regcred"], "selector": { "matchLabels": { "pool": "a" } }, "completionPolicy": {
            "type": "Always", "ttlSecondsAfterFinished": 300,
        },
    });
    let list = list(&["nginx:1", "redis:7"], spec.clone());
    let made = serde_json::to_value(children(&list).unwrap()).unwrap();
    for (child, image) in made.as_array().unwrap().iter().zip(["nginx:1", "redis:7"]) {
        let mut wanted = spec.clone();
        wanted["image"] = json!(image);
        assert_eq!(child["spec"], wanted, "no imagePullPolicy: the child has its own default");
        assert_eq!((&child["apiVersion"], &child["kind"]), (&json!("apps.kruise.io/v1beta1"), &json!("ImagePullJob")));
        let owner = json!([{
            "apiVersion": "apps.kruise.io/v1beta1", "kind": "ImageListPullJob", "name": "base", "uid": "list-uid", "controller": true,
        }]);
        assert_eq!(child["metadata"]["ownerReferences"], owner);
        assert_eq!(child["metadata"]["namespace"], "shop");
        assert_eq!(child["metadata"]["labels"], json!({ REVISION: revision(&list) }));
        assert!(child["metadata"].get("annotations").is_none());
    }
    let mut policy = list.clone();
    policy.data["spec"]["imagePullPolicy"] = json!("Always");
    assert_eq!(children(&policy).unwrap()[0].data["spec"]["imagePullPolicy"], "Always");
    let mut older = list;
    older.types.as_mut().unwrap().api_version = "apps.kruise.io/v1alpha1".into();
    let child = &children(&older).unwrap()[0];
    assert_eq!(child.types.as_ref().unwrap().api_version, "apps.kruise.io/v1alpha1");
}

#[test]
fn names_follow_from_what_a_child_contains() {
    let base = list(&["a", "b", "c"], json!({}));
    let names = names_of(&base);
    // If this changes, an upgrade replaces the children of every list that runs.
    assert_eq!(names, ["base-r9cpp", "base-5jht9", "base-prn87"]);
    assert_eq!(names_of(&list(&["c", "a"], json!({}))), [names[2].clone(), names[0].clone()], "order does not matter");
    assert_eq!(names_of(&list(&["a", "a"], json!({}))), [names[0].clone()]);
    let edited = names_of(&list(&["a", "b", "c"], json!({ "parallelism": 2 })));
    assert!(edited.iter().all(|name| !names.contains(name)), "{edited:?}");
    let mut again = base.clone();
    again.metadata.uid = Some("another".into());
    assert!(
        names_of(&again).iter().all(|name| !names.contains(name)),
        "those of a list that was deleted are in nobody's way"
    );

    let mut long = base;
    for length in [57, 58, 60, 253] {
        long.metadata.name = Some("x".repeat(length));
        let name = &names_of(&long)[0];
        assert!(name.len() <= 63 && name.starts_with(&"x".repeat(57)), "{name}");
    }
    let many: Vec<String> = (0..255).map(|number| format!("registry.example/image:{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let unique: BTreeSet<String> = names_of(&list(&many, json!({}))).into_iter().collect();
    assert_eq!(unique.len(), 255);
}

#[test]
fn children_are_made_replaced_and_made_again_until_the_list_ends() {
    let first = list(&["a", "b"], json!({ "completionPolicy": { "type": "Always" } }));
    let names = names_of(&first);
    let begun = plan(&first, &[], time("00:00:00")).unwrap();
    assert_eq!(
        told(&begun),
        ["label base".to_string(), format!("create {}", names[0]), format!("create {}", names[1]), "status".into()]
    );
    let first = after(first, &begun);

    let jobs = stored(&first, &[Some([1, 0, 0, 2]), None]);
    let running = plan(&first, &refs(&jobs), time("00:00:01")).unwrap();
    assert_eq!(told(&running), ["status"]);
    let first = after(first, &running);
    assert_eq!(told(&plan(&first, &refs(&jobs), time("00:00:02")).unwrap()), [""; 0], "nothing changed");

    // A child that somebody deleted, or whose own time to live is over.
    let again = plan(&first, &refs(&jobs)[..1], time("00:00:03")).unwrap();
    assert_eq!(told(&again), [format!("create {}", names[1])]);
    let mut leaving = jobs.clone();
    leaving[1].metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(told(&plan(&first, &refs(&leaving), time("00:00:03")).unwrap()), [""; 0], "its name is not free yet");

    let mut fewer = first.clone();
    fewer.data["spec"]["images"] = json!(["b"]);
    let removed = plan(&fewer, &refs(&jobs), time("00:00:04")).unwrap();
    assert_eq!(told(&removed), [format!("delete {}", names[0]), "status".into()]);
    assert!(matches!(&removed.writes[0], Write::Delete(_, Some(uid)) if *uid == format!("uid of {}", names[0])));

    let mut edited = first.clone();
    edited.data["spec"]["parallelism"] = json!(9);
    let replaced = plan(&edited, &refs(&jobs), time("00:00:04")).unwrap();
    let new = names_of(&edited);
    let wanted = [
        "label base".to_string(),
        format!("delete {}", names[0]),
        format!("delete {}", names[1]),
        format!("create {}", new[0]),
        format!("create {}", new[1]),
        "status".into(),
    ];
    assert_eq!(told(&replaced), wanted);
    assert_eq!(
        status(&edited, &refs(&jobs), time("00:00:04")).unwrap().active,
        0,
        "those of the old template do not count"
    );

    // Jobs of the same namespace that the list does not control are left alone.
    let mut others = stored(&first, &[None, None]);
    others[0].metadata.owner_references = None;
    others[0].metadata.name = Some("own".into());
    others[1].metadata.owner_references.as_mut().unwrap()[0].uid = "another list".into();
    others[1].metadata.name = Some("of-another".into());
    others.extend(jobs);
    assert_eq!(told(&plan(&first, &refs(&others), time("00:00:05")).unwrap()), [""; 0]);

    let mut going = first;
    going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(plan(&going, &[], time("00:00:05")).unwrap(), Projected::default());
}

#[test]
fn the_status_counts_images_in_upstreams_words() {
    // The children, then active, completed, succeeded, failed images, ended.
    let cases: [(&str, &[Child], [usize; 4], bool); 8] = [
        ("Always", &[None, None], [0, 0, 0, 0], false),
        ("Always", &[Some([1, 0, 0, 3]), None], [1, 0, 0, 0], false),
        ("Always", &[Some([1, 1, 1, 3]), Some([0, 3, 0, 3])], [1, 1, 1, 1], false),
        ("Always", &[Some([0, 3, 0, 3]), Some([0, 3, 0, 3])], [0, 2, 2, 0], true),
        ("Always", &[Some([0, 2, 1, 3]), Some([0, 3, 0, 3])], [0, 2, 1, 1], true),
        ("Always", &[Some([0, 0, 0, 0]), Some([0, 0, 0, 0])], [0, 2, 2, 0], true),
        ("Always", &[Some([0, 3, 0, 3]), None], [0, 1, 1, 0], false),
        ("Never", &[Some([0, 3, 0, 3]), Some([0, 3, 0, 3])], [0, 2, 2, 0], false),
    ];
    for (kind, children, [active, completed, succeeded, failed], ended) in cases {
        let list = list(&["a", "b"], json!({ "completionPolicy": { "type": kind } }));
        let jobs = stored(&list, children);
        let said = status(&list, &refs(&jobs), time("00:00:01.5")).unwrap();
        let count = |number: i32| usize::try_from(number).unwrap();
        assert_eq!(said.desired, 2);
        assert_eq!(
            [count(said.active), count(said.completed), count(said.succeeded)],
            [active, completed, succeeded],
            "{children:?}"
        );
        assert_eq!((said.failed_image_statuses.len(), said.completion_time.is_some()), (failed, ended), "{children:?}");
        assert_eq!(said.start_time, Some(time("00:00:01")), "upstream's times have no fractions");
        for failed in &said.failed_image_statuses {
            let name = names_of(&list)[0].clone();
            let message = format!("Please check for details which nodes failed by 'kubectl get ImagePullJob {name}'.");
            assert_eq!(*failed, FailedImageStatus { image_pull_job: name, name: "a".into(), message });
        }
    }
}

/// Where Pods cannot be listed nobody knows the nodes of a podSelector: such a child has none, and has not ended.
#[test]
fn a_child_whose_nodes_are_unknown_is_not_done() {
    let list = list(&["a"], json!({ "podSelector": {} }));
    let mut jobs = stored(&list, &[Some([0, 0, 0, 0])]);
    jobs[0].data["status"]["completionTime"] = Value::Null;
    let said = status(&list, &refs(&jobs), time("00:00:01")).unwrap();
    assert_eq!((said.completed, said.succeeded, said.completion_time), (0, 0, None));
}

#[test]
fn a_child_with_another_image_is_replaced_and_does_not_count() {
    let first = list(&["a", "b"], json!({}));
    let first = after(first.clone(), &plan(&first, &[], time("00:00:00")).unwrap());
    let mut jobs = stored(&first, &[Some([0, 3, 0, 3]), None]);
    jobs[0].data["spec"]["parallelism"] = json!(9);
    let counted = plan(&first, &refs(&jobs), time("00:00:01")).unwrap();
    assert_eq!(told(&counted), ["status"], "other edits are its user's matter");
    let name = names_of(&first).remove(0);
    jobs[0].data["spec"]["image"] = json!("c");
    let replaced = plan(&first, &refs(&jobs), time("00:00:01")).unwrap();
    assert_eq!(told(&replaced), [format!("delete {name}")], "its name is not free yet");
}

#[test]
fn a_list_that_has_ended_stays_as_it_is_and_goes_when_its_time_is_over() {
    let mut list = list(&["a"], json!({ "completionPolicy": { "type": "Always" } }));
    let mut jobs = stored(&list, &[Some([0, 1, 0, 1])]);
    jobs[0].data["status"]["completionTime"] = json!("2026-01-01T00:10:00Z");
    let ends = plan(&list, &refs(&jobs), time("00:10:01")).unwrap();
    assert_eq!(told(&ends), ["label base", "status"]);
    list = after(list, &ends);
    let ended = status(&list, &refs(&jobs), time("00:11:00")).unwrap();
    assert_eq!(ended.completion_time, Some(time("00:10:00")));

    // Neither a child that is gone nor an edit begins anything.
    list.data["spec"]["images"] = json!(["a", "b"]);
    assert_eq!(plan(&list, &[], time("00:11:00")).unwrap(), Projected::default());
    assert_eq!(status(&list, &[], time("00:11:00")).unwrap(), ended);
    // But an edit of the time to live counts.
    list.data["spec"]["completionPolicy"]["ttlSecondsAfterFinished"] = json!(300);
    let waits = plan(&list, &[], time("00:11:00")).unwrap();
    assert_eq!(waits, Projected { writes: vec![], wake: Some(time("00:15:00")) });
    let over = plan(&list, &[], time("00:15:00")).unwrap();
    assert_eq!(told(&over), ["delete base"]);
    assert!(matches!(&over.writes[0], Write::Delete(_, Some(uid)) if uid == "list-uid"));
}

#[test]
fn a_list_whose_status_cannot_be_read_is_left_alone() {
    let mut list = list(&["a"], json!({}));
    list.data["status"] = json!({ "completionTime": "some time ago", "desired": 1 });
    assert!(plan(&list, &[], time("00:00:00")).is_err());
}

/// Whoever may write a status may write any number into it.
#[test]
fn numbers_that_no_controller_writes_end_nothing_and_fail_nothing() {
    let list = list(&["a"], json!({}));
    let mut jobs = stored(&list, &[None]);
    jobs[0].data["status"] = json!({
        "startTime": "2026-01-01T00:00:00Z", "desired": 2, "succeeded": i32::MAX, "failed": 1,
    });
    assert_eq!(status(&list, &refs(&jobs), time("00:00:00")).unwrap().completed, 0);
    let mut odd = list;
    odd.data["status"] = json!({ "desired": 1, "completed": i32::MIN, "succeeded": i32::MAX });
    assert_eq!(summary(&odd).failed, 0);
}

#[test]
fn an_owner_of_another_namespace_is_none() {
    let list = list(&["a"], json!({}));
    let mut jobs = stored(&list, &[Some([0, 1, 0, 1])]);
    assert!(controls(&list, &jobs[0]));
    jobs[0].metadata.namespace = Some("evil".into());
    assert!(!controls(&list, &jobs[0]));
}

/// A write whose answer is lost is made once more, later.
#[test]
fn a_list_ends_with_the_last_of_its_children_whenever_that_is_said() {
    let list = list(&["nginx:1", "redis:7"], json!({}));
    let mut jobs = stored(&list, &[Some([0, 1, 0, 1]), Some([0, 0, 1, 1])]);
    jobs[1].data["status"]["completionTime"] = json!("2026-01-01T00:00:07Z");
    for now in ["00:00:08", "00:00:50", "00:00:02"] {
        let said = status(&list, &refs(&jobs), time(now)).unwrap();
        assert_eq!(said.completion_time, Some(time("00:00:07")), "at {now}");
    }
}

/// A policy held this child until the last of its nodes went away.
#[test]
fn a_child_that_ends_without_a_start_time_is_done() {
    let list = list(&["a:1", "b:1"], json!({ "completionPolicy": { "type": "Always" } }));
    let mut jobs = stored(&list, &[Some([0, 1, 0, 1]), Some([0, 0, 0, 0])]);
    jobs[1].data["status"]["startTime"] = Value::Null;
    jobs[1].data["status"]["completionTime"] = json!("2026-01-01T00:01:00Z");
    let status = status(&list, &refs(&jobs), time("00:02:00")).unwrap();
    assert_eq!((status.completed, status.completion_time), (2, Some(time("00:01:00"))));
}

#[test]
fn a_child_that_is_not_there_is_named_until_the_list_has_ended() {
    let mut list = list(&["web:1", "db:1"], json!({}));
    let jobs = stored(&list, &[None, None]);
    let names = names_of(&list);
    let [web, db] =
        [(0, "web:1"), (1, "db:1")].map(|(at, image)| MissingJob { name: names[at].clone(), image: image.into() });
    assert_eq!(missing(&list, &[]), [web, db.clone()]);
    assert_eq!(missing(&list, &refs(&jobs[..1])), [db]);
    assert_eq!(missing(&list, &refs(&jobs)), []);
    list.data["status"] = json!({ "desired": 2, "completionTime": "2026-01-01T00:00:00Z" });
    assert_eq!(missing(&list, &[]), [], "none of them is made again");
}
