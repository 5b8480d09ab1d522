//! Jobs that stand for entries which people make in objects of nodes: each node counts from its own time, and no end comes.

use std::time::Duration;

use jiff::Timestamp;
use stoker_core::model::{Found, Job, LoginId, Offer, SecretId};
use stoker_core::world::{NodeState, ROOM_OF_A_NAMESPACE};
use stoker_core::{Completion, JobId, Plan, Reason, Stage, Waiting};

use crate::build::{at, job, own_times, standing};
use crate::scene::{NOTHING, Scene};

const WEB: &str = "web@sha256:w";

#[test]
fn each_node_gets_what_the_tag_means_at_its_own_time() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.put(standing("tags", "web:1", &[("n1", 0)]));
    assert_eq!(scene.plan(), ["n1 asks for web:1"]);
    scene.resolves("n1", "web:1", "sha256:old");
    assert_eq!(scene.plan(), ["n1 pulls web:1 at sha256:old"]);
    scene.succeeds("n1", "web:1");
    scene.plan();
    scene.pass(100);
    scene.edit("tags", |job| job.names = own_times(&[("n1", 0), ("n2", 100)]));
    assert_eq!(scene.plan(), ["n2 asks for web:1"], "what was asked before is too old");
    scene.resolves("n2", "web:1", "sha256:new");
    assert_eq!(scene.plan(), ["n2 pulls web:1 at sha256:new"]);
    assert_eq!(scene.states("tags"), ["n1 done", "n2 pulls"]);
}

#[test]
fn one_answer_is_enough_for_all_nodes_that_counted_before_it_was_asked_for() {
    let mut scene = Scene::of_strangers(&["n1", "n2", "n3", "n4"]);
    scene.pass(50);
    scene.put(standing("tags", "web:1", &[("n1", 0), ("n2", 10), ("n3", 20), ("n4", 50)]));
    assert_eq!(scene.plan(), ["n1 asks for web:1", "n2 asks for web:1"]);
    scene.resolves("n1", "web:1", "sha256:a");
    scene.resolves("n2", "web:1", "sha256:a");
    let all = ["n1", "n2", "n3", "n4"].map(|node| format!("{node} pulls web:1 at sha256:a"));
    assert_eq!(scene.plan(), all);
}

/// A node whose digest is known may wait for its place: it is a witness for a later one all the same.
#[test]
fn a_node_that_waits_for_its_place_is_asked_for_the_sake_of_a_later_one() {
    let mut scene = Scene::of_strangers(&["n1", "n2", "n3"]);
    scene.put(Job { parallelism: 1, ..standing("tags", "web:1", &[("n1", 0), ("n2", 0)]) });
    assert_eq!(scene.plan(), ["n1 asks for web:1", "n2 asks for web:1"]);
    scene.resolves("n1", "web:1", "sha256:a");
    scene.resolves("n2", "web:1", "sha256:a");
    assert_eq!(scene.plan(), ["n1 pulls web:1 at sha256:a"]);
    scene.pass(10);
    scene.edit("tags", |job| job.names = own_times(&[("n1", 0), ("n2", 0), ("n3", 10)]));
    assert_eq!(scene.plan(), ["n2 asks for web:1", "n3 asks for web:1"]);
    assert_eq!(scene.states("tags"), ["n1 pulls", "n2 waits: Parallelism", "n3 waits: Unresolved"]);
    scene.succeeds("n1", "web:1");
    assert_eq!(scene.plan(), ["n2 pulls web:1 at sha256:a"], "it does not wait for an answer that it does not need");
}

#[test]
fn a_node_is_asked_again_when_its_time_moves_and_no_other() {
    let mut scene = Scene::of(&["n1", "n2", "n3"]);
    scene.put(standing("tags", WEB, &[("n1", 0), ("n2", 0), ("n3", 0)]));
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.fails("n2", WEB, Reason::NotFound);
    scene.succeeds("n3", WEB);
    scene.plan();
    scene.pass(86_400);
    assert_eq!(scene.plan(), NOTHING, "a node that failed stays so");
    assert_eq!(scene.states("tags"), ["n1 done", "n2 failed: NotFound", "n3 done"]);
    for (moved, node) in [("n2", "n2 pulls"), ("n3", "n3 pulls")] {
        let second = scene.now.as_second() - at(0).as_second();
        scene.edit("tags", |job| {
            let mut names = job.names.as_deref().cloned().unwrap();
            names.insert(moved.into(), at(second));
            job.names = Some(names.into());
        });
        assert_eq!(scene.plan(), [format!("{moved} pulls {WEB} at sha256:w")]);
        assert!(scene.states("tags").contains(&node.to_string()), "{:?}", scene.states("tags"));
        scene.succeeds(moved, WEB);
        scene.plan();
        assert_eq!(scene.states("tags"), ["n1 done", "n2 done", "n3 done"]);
        scene.pass(10);
    }
}

#[test]
fn a_pull_under_way_is_finished_before_its_node_is_asked_again() {
    let mut scene = Scene::of(&["n1"]);
    scene.put(standing("tags", WEB, &[("n1", 0)]));
    scene.plan();
    scene.progresses("n1", WEB);
    scene.pass(10);
    scene.edit("tags", |job| job.names = own_times(&[("n1", 10)]));
    assert_eq!(scene.plan(), NOTHING);
    scene.succeeds("n1", WEB);
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
}

#[test]
fn it_never_ends() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.put(standing("tags", WEB, &[("n1", 0), ("n2", 0)]));
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.succeeds("n2", WEB);
    scene.plan();
    let outcome = scene.outcome("tags");
    assert_eq!((outcome.stage, outcome.succeeded, outcome.completed), (Stage::Synced, 2, None));
    assert_eq!(outcome.started, Some(Timestamp::UNIX_EPOCH));
    scene.pass(10 * 365 * 86_400);
    assert_eq!(scene.world.plan(scene.now), Plan::default(), "time alone changes nothing");
    scene.edit("tags", |job| job.names = own_times(&[("n2", 0)]));
    scene.plan();
    assert_eq!(scene.states("tags"), ["n2 done"]);
    scene.delete("tags");
    scene.put(Job { completion: Completion::Once { deadline: None, ttl: None }, ..job("web", &["db@sha256:d"]) });
    let swept =
        ["n1", "n2"].map(|node| [format!("{node} drops {WEB}"), format!("{node} pulls db@sha256:d at sha256:d")]);
    let mut swept: Vec<String> = swept.into_iter().flatten().collect();
    let mut plan = scene.plan();
    swept.sort();
    plan.sort();
    assert_eq!(plan, swept, "what nobody wants any more goes with the next write");
}

#[test]
fn an_image_that_somebody_removes_is_not_brought_again() {
    let mut scene = Scene::of(&["n1"]);
    scene.put(standing("tags", WEB, &[("n1", 0)]));
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.plan();
    scene.fails("n1", WEB, Reason::Removed);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("tags"), ["n1 done"]);
    scene.pass(10);
    scene.edit("tags", |job| job.names = own_times(&[("n1", 10)]));
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"], "until somebody asks for it");
}

#[test]
fn a_node_that_is_away_fails_ten_minutes_after_its_own_time() {
    let mut scene = Scene::of(&["n1", "n2", "n3"]);
    for name in ["n1", "n2"] {
        scene.change_node(name, |node| (node.ready, node.ready_changed) = (false, Some(at(-10_000))));
    }
    scene.pass(700);
    scene.put(standing("tags", WEB, &[("n1", 0), ("n2", 500), ("n3", 500)]));
    scene.plan();
    assert_eq!(scene.states("tags"), ["n1 failed: NodeSilent", "n2 waits: NodeNotReady", "n3 pulls"]);
    let wake = scene.world.plan(scene.now).wake;
    assert_eq!(wake, Some(at(1_100)));
    scene.pass(400);
    scene.progresses("n3", WEB);
    scene.plan();
    assert_eq!(scene.states("tags"), ["n1 failed: NodeSilent", "n2 failed: NodeSilent", "n3 pulls"]);
    let view = scene.world.seat_of(&JobId::new(("apps.test", "NodeImage"), "", "tags"), "n2", scene.now).unwrap();
    let message = "the node has not responded for a long time".to_string();
    assert_eq!(view.state, NodeState::Failed(Reason::NodeSilent, message));
    scene.change_node("n2", |node| node.ready = true);
    assert_eq!(scene.plan(), ["n2 pulls web@sha256:w at sha256:w"], "it is back");
}

#[test]
fn a_time_that_is_far_ahead_does_not_count_until_it_is_near() {
    let mut scene = Scene::of(&["n1"]);
    let day = 86_400;
    scene.put(standing("tags", WEB, &[("n1", 0)]));
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.plan();
    scene.edit("tags", |job| job.names = own_times(&[("n1", 30 * day)]));
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.world.plan(scene.now).wake, Some(at(29 * day)));
    scene.pass(29 * day);
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
}

#[test]
fn it_is_the_same_job_whenever_it_is_said_to_be_made() {
    let mut scene = Scene::of(&["n1"]);
    scene.put(standing("tags", WEB, &[("n1", 0)]));
    scene.plan();
    scene.pass(10);
    scene.edit("tags", |job| job.created = at(5));
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("tags"), ["n1 pulls"]);
}

#[test]
fn it_shares_pulls_with_other_jobs() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(job("web", &[WEB]));
    scene.plan();
    scene.put(standing("tags", WEB, &[("n1", 0)]));
    assert_eq!(scene.plan(), ["n1 keeps web@sha256:w"]);
    assert_eq!(scene.order("n1", WEB).unwrap().jobs.len(), 2);
    scene.succeeds("n1", WEB);
    scene.plan();
    assert_eq!((scene.outcome("web").stage, scene.states("tags")), (Stage::Succeeded, vec!["n1 done".to_string()]));
}

/// It comes from an object of the cluster, which lies in no namespace.
#[test]
fn it_may_name_secrets_of_any_namespace() {
    let mut scene = Scene::of(&["n1"]);
    let secret = SecretId::new("shop", "login");
    scene.secrets.insert(secret.clone(), Found::Logins(vec![Offer { id: LoginId::new("shop"), closeness: 0 }]));
    let mut tags = standing("tags", WEB, &[("n1", 0)]);
    tags.images[0].secrets = vec![secret.clone()];
    scene.put(tags);
    let mut web = job("web", &["db@sha256:d"]);
    web.images[0].secrets = vec![secret];
    scene.job(web);
    scene.plan();
    let logins = |image: &str| scene.order("n1", image).unwrap().terms.logins;
    assert_eq!((logins(WEB), logins("db@sha256:d")), (vec![LoginId::new("shop")], vec![]));
}

#[test]
fn it_slows_down_nobody_who_tells_of_progress() {
    let nodes: Vec<String> = (0..40).map(|n| format!("n{n:02}")).collect();
    let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let mut scene = Scene::of(&names);
    let all: Vec<(&str, i64)> = names.iter().map(|name| (*name, 0)).collect();
    scene.put(Job { parallelism: u32::MAX, ..standing("tags", WEB, &all) });
    assert_eq!(scene.plan().len(), 40);
    let progress = |scene: &Scene, image: &str| scene.order("n00", image).unwrap().terms.progress;
    assert_eq!(progress(&scene, WEB), Duration::from_secs(4), "40 nodes pull for it");
    names.iter().for_each(|name| scene.succeeds(name, WEB));
    scene.plan();
    scene.job(Job { parallelism: 1, ..job("db", &["db@sha256:d"]) });
    scene.plan();
    assert_eq!(progress(&scene, "db@sha256:d"), Duration::from_millis(250));
    scene.pass(10);
    scene.edit("tags", |job| {
        let mut names = job.names.as_deref().cloned().unwrap();
        names.insert("n00".into(), at(10));
        job.names = Some(names.into());
    });
    scene.plan();
    assert_eq!(progress(&scene, WEB), Duration::from_millis(250), "one node pulls for it");
}

/// People may write 256 images into the object of a node. Their jobs have no namespace, and take the room of one.
#[test]
fn as_many_entries_as_a_node_may_have_find_room() {
    let mut scene = Scene::of(&["n1"]);
    let image = |n: usize| format!("team-{n:03}/project/a-service-with-a-long-name@sha256:{n}");
    for n in 0..256 {
        let mut tags = standing(&format!("tags-{n}"), &image(n), &[("n1", 0)]);
        tags.id = JobId::new(("apps.kruise.io", "NodeImage"), "", &format!("{n:020}"));
        scene.put(Job { parallelism: 1_000, ..tags });
    }
    assert_eq!(scene.plan().len(), 256);
    let more = |n: usize| Job {
        id: JobId::new(("apps.kruise.io", "NodeImage"), "", &format!("more-{n}")),
        ..standing("more", &format!("more-{n}@sha256:{n}"), &[("n1", 0)])
    };
    let texts = ROOM_OF_A_NAMESPACE / 500;
    (0..texts).for_each(|n| scene.put(more(n)));
    scene.plan();
    let last = (0..texts).rev().find_map(|n| scene.world.seat_of(&more(n).id, "n1", scene.now)).unwrap();
    let NodeState::Waiting(waiting @ Waiting::TooManyOrders { .. }) = &last.state else { panic!("{:?}", last.state) };
    assert!(waiting.to_string().starts_with("the jobs of objects without a namespace have"), "{waiting}");
    scene.job(job("web", &[WEB]));
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"], "no namespace is kept out by them");
}

/// A tag of a private image, on nodes with these own times.
fn private(names: &[(&str, i64)]) -> Job {
    let mut tags = standing("tags", WEB, names);
    tags.images[0].secrets = vec![SecretId::new("shop", "login")];
    tags
}

fn login(id: &str) -> Found {
    Found::Logins(vec![Offer { id: LoginId::new(id), closeness: 0 }])
}

/// Whoever makes a tag and its Secret at one time need not know which is seen first.
#[test]
fn a_secret_that_is_not_there_is_waited_for_from_the_own_time_of_each_node() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.pass(100);
    scene.put(private(&[("n1", 100)]));
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("tags"), ["n1 waits: SecretMissing"]);
    scene.pass(3);
    scene.secrets.insert(SecretId::new("shop", "login"), login("new"));
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    assert_eq!(scene.order("n1", WEB).unwrap().terms.logins, [LoginId::new("new")]);
    scene.succeeds("n1", WEB);
    scene.plan();
    // It is gone again: the next node waits as long, and then goes without.
    scene.secrets.clear();
    scene.pass(100);
    scene.edit("tags", |job| job.names = own_times(&[("n1", 100), ("n2", 203)]));
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("tags")[1], "n2 waits: SecretMissing");
    assert_eq!(scene.world.plan(at(208)).orders.len(), 1);
}

/// The other node keeps the job and what is known of its Secrets alive.
#[test]
fn a_secret_is_read_again_for_a_node_that_counts_anew() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let secret = SecretId::new("shop", "login");
    scene.secrets.insert(secret.clone(), login("old"));
    scene.change_node("n2", |node| node.ready = false);
    scene.put(private(&[("n1", 0), ("n2", 0)]));
    scene.plan();
    assert_eq!(scene.order("n1", WEB).unwrap().terms.logins, [LoginId::new("old")]);
    scene.succeeds("n1", WEB);
    scene.plan();
    scene.pass(60);
    // It was mended, and nobody has read it since.
    scene.reads = false;
    scene.put(private(&[("n1", 60), ("n2", 0)]));
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("tags")[0], "n1 waits: SecretUnread");
    assert_eq!(scene.world.wanted_secrets()[&secret].since, Some(at(60)), "whoever reads is told to");
    scene.secrets.insert(secret, login("new"));
    scene.reads = true;
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    assert_eq!(scene.order("n1", WEB).unwrap().terms.logins, [LoginId::new("new")]);
}
