//! Every file below `tests/fixtures/kruise-rollouts/` is a workload with its revisions, taken through a View and a World: drop a file in
//! and you have a test. What stands below a line `# Then:` takes the place of what was there before. The snapshots say which queries are
//! asked for and what is written, before and after that. Each also shows that the writes lead somewhere, and that no ImagePullJob
//! stays when its workload is not there any more.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use jiff::Timestamp;
use kube_core::dynamic::DynamicObject;
use stoker_api::dialect::kruise::ROLLOUTS;
use stoker_api::native::PREHEAT_POLICIES;
use stoker_api::view::{Query, Root};
use stoker_api::{View, Write, served_kinds, workload_kinds};
use stoker_core::World;
use stoker_testbed::paper::{Paper, PaperId};

fn now() -> Timestamp {
    "2026-01-02T03:04:05Z".parse().unwrap()
}

/// Puts the objects of a text there.
fn put(paper: &mut Paper, text: &str) {
    for document in text.split("---\n").filter(|document| document.lines().any(|line| !line.starts_with('#'))) {
        let mut object: DynamicObject = serde_saphyr::from_str(document).unwrap();
        object.metadata.namespace = Some("shop".into());
        paper.put(object);
    }
}

/// What a controller knows that has just started, and all writes that it asks for.
fn look(paper: &Paper) -> (View, Vec<Write>) {
    let (mut view, mut world) = (View::without_signs(), World::new());
    view.serve(&[ROLLOUTS].into());
    assert_eq!(paper.list_all(&mut view, &mut world), [""; 0]);
    assert!(view.is_known());
    world.plan(now());
    let roots: Vec<Root> = view.due(now()).cloned().collect();
    let of_rollouts = |write: &Write| !matches!(write, Write::Status(..));
    let writes = roots.iter().flat_map(|root| view.project(root, &world, now())).filter(of_rollouts).collect();
    (view, writes)
}

fn shown(write: &Write) -> String {
    let name = &write.target().name;
    match write {
        Write::Create(target, event) if target.resource.kind == "Event" => {
            let about = &event["involvedObject"];
            format!(
                "event of {} {}: {} {}: {}\n",
                about["kind"], about["name"], event["type"], event["reason"], event["message"]
            )
            .replace('"', "")
        }
        Write::Create(_, value) => format!("create {name}\n{value:#}\n"),
        Write::Delete(..) => format!("delete {name}\n"),
        write => panic!("{write:?}"),
    }
}

/// What is asked for and written, until nothing more is.
fn settle(paper: &mut Paper) -> String {
    let (view, mut next) = look(paper);
    let kinds = served_kinds().chain(workload_kinds()).map(|kind| &kind.kind);
    let base: Vec<Query> = [&PREHEAT_POLICIES].into_iter().chain(kinds).map(Query::all).collect();
    let asked = view.wanted().into_iter().filter(|query| !base.contains(query) && query.kind.name != "Pod");
    let mut text: String =
        asked.map(|query| format!("watches {}s with `{}`\n\n", query.kind.name, query.labels)).collect();
    // Events of ImagePullJobs are those of any other.
    let about_job =
        |write: &&Write| matches!(write, Write::Create(_, event) if event["involvedObject"]["kind"] == "ImagePullJob");
    text += &next.iter().filter(|write| !about_job(write)).map(shown).collect::<Vec<_>>().join("\n");
    for _ in 0..3 {
        for write in next.iter().filter(|write| write.target().resource.kind != "Event") {
            paper.perform(write, now()).unwrap();
        }
        next = look(paper).1;
        next.retain(|write| write.target().resource.kind != "Event");
    }
    assert_eq!(next, [], "it is never done");
    text
}

#[test]
fn rollouts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kruise-rollouts");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut paper = Paper::default();
        let mut said = String::new();
        for (number, part) in text.split("# Then:\n").enumerate() {
            put(&mut paper, part);
            said += if number == 0 { "" } else { "\nthen:\n\n" };
            said += &settle(&mut paper);
        }
        insta::assert_snapshot!(file.file_stem().unwrap().to_str().unwrap(), said);

        // Whoever takes its annotation away, or deletes a workload and leaves its dependents, leaves no ImagePullJob behind.
        let workload = |id: &&PaperId| workload_kinds().any(|kind| kind.kind.newest().kind == id.kind);
        let id = paper.all().map(|(id, _)| id).find(workload).unwrap().clone();
        paper.delete(&id, None, now()).unwrap();
        settle(&mut paper);
        assert_eq!(paper.of_kind("ImagePullJob").count(), 0, "{file:?}");
    }
}
