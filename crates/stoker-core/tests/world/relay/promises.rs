//! Jobs with different promises for one image.

use stoker_core::Completion;

use super::*;
use crate::build::{reference, secs};

pub(super) const NODES: [&str; 3] = ["n1", "n2", "n3"];

pub(super) fn limited(name: &str, nodes: &[&str], copies: Option<u32>) -> Job {
    let mut job = job(name, &[WEB]);
    job.names = names(nodes);
    job.pull.upstream_copies = copies;
    job
}

pub(super) fn peers_only(job: &mut Job) {
    job.pull.source = PullSource::PeersOnly;
}

/// The job `other` with a seed on n3, and the job `web` whose other nodes read from it.
fn mixed(other: Option<u32>, web: impl FnOnce(&mut Job)) -> Scene {
    let mut scene = Scene::of_peers(&NODES);
    scene.job(limited("other", &["n3"], other));
    scene.plan();
    let mut job = limited("web", &["n1", "n2"], None);
    web(&mut job);
    scene.job(job);
    scene.plan();
    assert_eq!(scene.ways(&NODES, WEB), ["n1 < n3", "n2 < n1 n3", "n3 < registry"]);
    scene
}

#[test]
fn a_node_of_a_peers_only_job_waits_where_it_reaches_no_source() {
    let mut scene = mixed(None, peers_only);
    scene.starves("n1", WEB, 0);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.ways(&NODES, WEB), ["n1 < n3", "n2 < n1 n3", "n3 < registry"]);
}

/// Each of the two has what it would have alone: the one reads from nodes, the other one may fetch from mirrors. The registry gives nothing.
#[test]
fn a_job_of_mirrors_may_use_them_where_a_peers_only_job_of_another_namespace_wants_the_image_too() {
    let mut scene = mixed(None, peers_only);
    let mut mirrors = of_namespace("nodes", limited("mirrors", &["n1"], None));
    mirrors.pull.source = PullSource::MirrorsOnly;
    scene.job(mirrors);
    scene.plan();
    assert_eq!(scene.ways(&NODES, WEB), ["n1 < n3", "n2 < n1 n3", "n3 < registry"]);
    let order = scene.order("n1", WEB).unwrap();
    assert_eq!((order.terms.pull.source, order.jobs.len()), (PullSource::PeersOrMirrors, 2));
    assert!(order.features().any(|feature| feature == "mirrors"));
    scene.change_node("n3", |node| node.ready = false);
    scene.starves("n1", WEB, 0);
    scene.plan();
    assert!(scene.order("n1", WEB).unwrap().upstream, "{:?}", scene.ways(&NODES, WEB));
    assert!(!scene.order("n2", WEB).unwrap().upstream);
    // Without the other job no mirror may give it any more.
    scene.delete("mirrors");
    scene.plan();
    let order = scene.order("n1", WEB).unwrap();
    assert_eq!((order.terms.pull.source, order.upstream), (PullSource::PeersOnly, false));
}

/// A job that may ask the registry must not bring a question about permission to one that need not ask.
#[test]
fn a_job_of_mirrors_needs_no_permission_where_another_namespace_asks_the_registry() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(web());
    let mut mirrors = of_namespace("nodes", job("mirrors", &[WEB]));
    mirrors.pull.source = PullSource::MirrorsOnly;
    scene.job(mirrors);
    scene.plan();
    let source = scene.order("n1", WEB).unwrap().terms.pull.source;
    assert_eq!((source, source.needs_permission(), source.may_ask()), (PullSource::AnyOrMirrors, false, true));
}

#[test]
fn a_seed_that_fails_is_not_replaced_by_a_node_of_a_peers_only_job() {
    let mut scene = mixed(None, peers_only);
    scene.report("n3", WEB, |report| report.reason = Some(Reason::Unreachable));
    assert_eq!(scene.plan(), NOTHING);
    assert!(scene.order("n3", WEB).unwrap().upstream);
}

#[test]
fn a_seed_that_fails_is_replaced_by_the_first_node_whose_job_allows_a_copy() {
    let mut scene = Scene::of_peers(&NODES);
    scene.job(limited("other", &["n2", "n3"], None));
    scene.plan();
    let mut web = limited("web", &["n1"], None);
    peers_only(&mut web);
    scene.job(web);
    scene.plan();
    assert_eq!(scene.ways(&NODES, WEB), ["n1 < n3 n2", "n2 < registry", "n3 < n2"]);
    // n1 has more of the image.
    scene.report("n1", WEB, |report| report.bytes.done = 50);
    scene.report("n2", WEB, |report| report.reason = Some(Reason::Unreachable));
    scene.plan();
    assert_eq!(scene.ways(&NODES, WEB), ["n1 < n3 n2", "n2 < n1 n3", "n3 < registry"]);
}

/// Whether anybody takes the place of a seed that n1 cannot reach.
#[test]
fn a_stricter_promise_takes_no_seed_from_a_softer_one() {
    for (other, web, takes) in [(None, 1, false), (Some(2), 1, false), (Some(1), 1, true)] {
        let mut scene = mixed(other, |job| job.pull.upstream_copies = Some(web));
        scene.starves("n1", WEB, 0);
        scene.plan();
        let is_seed = |node| scene.order(node, WEB).unwrap().upstream;
        assert_eq!((is_seed("n1"), is_seed("n3")), (takes, !takes), "{other:?} {web}");
    }
}

/// The seed of another job that promises less is away: it neither counts nor changes.
#[test]
fn a_lost_seed_of_a_softer_job_keeps_no_stricter_one_from_its_own_copy() {
    let mut scene = mixed(None, |job| job.pull.upstream_copies = Some(1));
    scene.change_node("n3", |node| node.ready = false);
    scene.starves("n1", WEB, 0);
    scene.plan();
    assert_eq!(scene.ways(&NODES, WEB), ["n1 < registry", "n2 < n1 n3", "n3 < registry"]);
    // Among its own nodes the promise holds. What n1 gets now comes to n2, unless that takes too long.
    scene.starves("n2", WEB, 0);
    assert_eq!(scene.plan(), NOTHING);
    scene.pass(30);
    scene.plan();
    assert_eq!(scene.ways(&NODES, WEB), ["n1 < n2", "n2 < registry", "n3 < registry"]);
}

#[test]
fn a_node_that_had_nobody_to_read_from_says_so_when_the_deadline_passes() {
    let mut scene = Scene::of_peers(&NODES);
    let mut web = limited("web", &["n1"], None);
    peers_only(&mut web);
    web.completion = Completion::Once { deadline: Some(secs(60)), ttl: None };
    scene.job(web);
    scene.plan();
    scene.lacks("n1", WEB);
    scene.pass(60);
    scene.plan();
    let message = &scene.outcome("web").failures[0].message;
    assert!(message.contains("NoSource: it takes the image from other nodes alone"), "{message}");
}

/// Each sentence says what to do; a node that reads from no other node is not told to wait for one.
#[test]
fn a_node_without_a_source_is_told_its_group_and_what_to_do() {
    let nodes = ["n1", "n2", "n3", "n4"];
    let mut scene = Scene::of_peers(&nodes);
    scene.in_group("n1", "shop");
    scene.in_group("n3", "none");
    scene.features("n4", &["look", "resolve", "sealed"]);
    let mut told = Vec::new();
    let mut tell = |scene: &Scene, job: &str| {
        for view in scene.world.nodes(&id(job), scene.now) {
            if let NodeState::Waiting(waiting @ Waiting::NoSource { .. }) = view.state {
                told.push(format!("{} {job}: {waiting}", view.node));
            }
        }
    };
    let mut web = limited("web", &nodes, None);
    peers_only(&mut web);
    scene.job(web);
    scene.plan();
    tell(&scene, "web");
    scene.delete("web");
    // The copy goes to a node that serves nobody.
    scene.job(limited("other", &["n4", "n5"], Some(1)));
    scene.node(node("n5"));
    scene.agent("n5");
    scene.serves("n5", facts(None, true));
    scene.plan();
    tell(&scene, "other");
    scene.world.relay(false);
    scene.plan();
    tell(&scene, "other");
    insta::assert_snapshot!("no_source", told.join("\n"));
}

/// It would wait for ever: nobody asks whether it has an image whose digest is known.
#[test]
fn a_node_that_has_the_image_needs_no_source() {
    for (relay, pull) in [(true, peers_only as fn(&mut Job)), (false, peers_only), (false, |_| {})] {
        let mut scene = Scene::of_peers(&NODES);
        scene.world.relay(relay);
        let mut web = limited("web", &NODES, Some(1));
        pull(&mut web);
        web.pull.upstream_copies = web.pull.upstream_copies.filter(|_| web.pull.source == PullSource::Any);
        let promised = web.pull.upstream_copies.is_some();
        scene.job(web);
        let first = if promised { "n1 pulls web@sha256:w at sha256:w" } else { "n1 looks for web@sha256:w" };
        assert_eq!(scene.plan(), [first, "n2 looks for web@sha256:w", "n3 looks for web@sha256:w"]);
        assert_eq!(scene.states("web")[1..], ["n2 waits: NoSource", "n3 waits: NoSource"]);
        scene.lacks("n2", WEB);
        scene.report("n3", WEB, |report| {
            report.phase = stoker_core::Phase::Succeeded;
            report.digest = reference(WEB).unwrap().digest().map(Into::into);
        });
        scene.plan();
        let n2 = if relay { "n2 pulls" } else { "n2 waits: NoSource" };
        assert_eq!(scene.states("web")[1..], [n2, "n3 done"], "{relay}");
        assert_eq!(scene.ways(&["n2"], WEB), if relay { vec!["n2 < n1 n3"] } else { vec![] });
        assert_eq!(scene.plan(), NOTHING, "it is not asked again");
    }
}

/// A node that no longer says anything is no longer waited for.
#[test]
fn a_node_that_does_not_answer_whether_it_has_the_image_is_silent() {
    let mut scene = Scene::of_peers(&NODES);
    let mut web = limited("web", &["n1"], None);
    peers_only(&mut web);
    scene.job(web);
    assert_eq!(scene.plan(), ["n1 looks for web@sha256:w"]);
    scene.now = scene.world.plan(scene.now).wake.unwrap();
    scene.plan();
    assert_eq!(scene.outcome("web").failures[0].reason, Reason::NodeSilent);
}
