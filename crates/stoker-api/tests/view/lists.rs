//! A list of images depends on objects that others write, too.

use serde_json::json;
use stoker_api::View;
use stoker_api::dialect::kruise::{IMAGE_LIST_PULL_JOBS, IMAGE_PULL_JOBS};
use stoker_api::view::{Heard, Query, Root};
use stoker_core::World;
use stoker_testbed::paper::Paper;

use crate::telling::now;

/// Both kinds, of which lists are listed, and a list of two images.
fn scene() -> (Paper, View, [Query; 2]) {
    let (lists, jobs) = (Query::all(&IMAGE_LIST_PULL_JOBS.kind), Query::all(&IMAGE_PULL_JOBS.kind));
    let list = json!({
        "apiVersion": "apps.kruise.io/v1beta1", "kind": "ImageListPullJob", "metadata": { "name": "base", "namespace": "a" },
        "spec": { "images": ["web:1", "db:1"] },
    });
    let (mut paper, mut view) = (Paper::default(), View::without_signs());
    let list = paper.create(serde_json::from_value(list).unwrap(), now()).unwrap();
    view.see(&lists, list);
    view.hear(&lists, Heard::Listed);
    (paper, view, [lists, jobs])
}

/// What is asked for, in a word each.
fn writes(view: &mut View) -> Vec<stoker_api::Write> {
    let mut world = World::new();
    view.settle(&mut world);
    let roots: Vec<Root> = view.due(now()).cloned().collect();
    let writes = roots.iter().flat_map(|root| view.project(root, &world, now()));
    writes.filter(|write| write.target().resource.kind != "Event").collect()
}

#[test]
fn a_list_does_nothing_until_its_children_are_known() {
    for unknown in [Heard::Unlisted, Heard::Deaf { listed: false }, Heard::Refused] {
        let (_, mut view, [_, jobs]) = scene();
        view.hear(&jobs, unknown);
        assert_eq!(writes(&mut view), [], "{unknown:?}");
        view.hear(&jobs, Heard::Listed);
        assert_eq!(writes(&mut view).len(), 4, "a label, two children, a status");
    }
}

#[test]
fn a_list_that_has_ended_goes_by_its_time_to_live_whether_or_not_its_children_can_be_seen() {
    for unknown in [Heard::Unlisted, Heard::Deaf { listed: false }, Heard::Refused] {
        let (paper, mut view, [lists, jobs]) = scene();
        let mut list = paper.of_kind("ImageListPullJob").next().unwrap().clone();
        list.data["spec"]["completionPolicy"] = json!({ "ttlSecondsAfterFinished": 0 });
        list.data["status"] = json!({ "desired": 2, "completionTime": now() });
        view.see(&lists, list);
        view.hear(&jobs, unknown);
        let writes = writes(&mut view);
        assert!(matches!(&writes[..], [stoker_api::Write::Delete(target, _)] if target.name == "base"), "{writes:?}");
    }
}

#[test]
fn a_child_is_made_when_nobody_else_has_its_name_any_more() {
    let (mut paper, mut view, [lists, jobs]) = scene();
    view.hear(&jobs, Heard::Listed);
    for write in writes(&mut view) {
        paper.perform(&write, now()).unwrap();
    }
    paper.of_kind("ImageListPullJob").for_each(|list| view.see(&lists, list.clone()));
    let mut children: Vec<_> = paper.of_kind("ImagePullJob").cloned().collect();
    // Somebody takes one of them away from the list.
    children[0].metadata.owner_references = None;
    let name = ("a".to_string(), children[0].metadata.name.clone().unwrap());
    children.into_iter().for_each(|child| view.see(&jobs, child));
    assert_eq!(writes(&mut view), []);
    view.gone(&jobs, &name);
    let again = writes(&mut view);
    assert_eq!(again.iter().map(|write| write.target().name.clone()).collect::<Vec<_>>(), [name.1]);
}
