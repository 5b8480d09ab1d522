//! Promises that become stricter while nodes pull: their job is edited, or another one joins.

use super::promises::{NODES, limited, peers_only};
use super::*;

#[test]
fn a_job_that_becomes_peers_only_gives_the_registry_back() {
    let mut scene = Scene::of_peers(&NODES);
    scene.job(limited("web", &NODES, None));
    scene.plan();
    scene.edit("web", peers_only);
    assert_eq!(scene.plan().len(), 3, "the terms of all orders change");
    assert_eq!(scene.ways(&NODES, WEB), ["n1 < ", "n2 < n1", "n3 < n2 n1"], "nobody else has it");
    assert_eq!(scene.plan(), NOTHING);
    // Its agent need not say that it has nothing to read from.
    scene.node(node("n4"));
    scene.agent("n4");
    scene.serves("n4", facts(None, true));
    scene.job(limited("other", &["n4"], None));
    scene.plan();
    assert_eq!(scene.ways(&["n1", "n4"], WEB), ["n1 < n4", "n4 < registry"]);
}

#[test]
fn a_seed_whose_job_becomes_peers_only_reads_from_another_one() {
    for change in [peers_only, |job: &mut Job| job.pull.upstream_copies = Some(0)] {
        let mut scene = Scene::of_peers(&NODES);
        scene.job(limited("other", &["n3"], Some(2)));
        scene.plan();
        scene.job(limited("web", &["n1", "n2"], Some(2)));
        scene.plan();
        assert_eq!(scene.ways(&NODES, WEB), ["n1 < registry", "n2 < n1 n3", "n3 < registry"]);
        let asked = scene.order("n1", WEB).unwrap().asked;
        scene.edit("web", change);
        scene.plan();
        assert_eq!(scene.ways(&NODES, WEB), ["n1 < n3", "n2 < n1 n3", "n3 < registry"]);
        assert_eq!(scene.order("n1", WEB).unwrap().asked, asked, "the attempt under way changes its source");
        assert_eq!(scene.plan(), NOTHING);
    }
}

/// Its seeds go on, and nobody takes the place of one that fails.
#[test]
fn fewer_copies_stop_no_seed_and_let_nobody_follow_it() {
    let nodes = ["n1", "n2", "n3", "n4"];
    let mut scene = Scene::of_peers(&nodes);
    scene.job(limited("web", &nodes, Some(3)));
    scene.plan();
    let ways = ["n1 < registry", "n2 < registry", "n3 < registry", "n4 < n1 n2"];
    assert_eq!(scene.ways(&nodes, WEB)[..3], ways[..3]);
    scene.edit("web", |job| job.pull.upstream_copies = Some(1));
    scene.plan();
    assert_eq!(scene.ways(&nodes, WEB)[..3], ways[..3]);
    for _ in 0..4 {
        scene.starves("n4", WEB, 0);
        scene.plan();
    }
    assert!(!scene.order("n4", WEB).unwrap().upstream, "it takes the place of none");
    assert_eq!(scene.ways(&nodes, WEB)[..3], ways[..3]);
}

#[test]
fn a_job_of_another_namespace_keeps_the_registry_for_an_order_that_both_share() {
    let mut scene = Scene::of_peers(&NODES);
    scene.job(limited("web", &["n1"], None));
    scene.plan();
    scene.job(of_namespace("elsewhere", limited("guest", &["n1"], None)));
    scene.plan();
    assert_eq!(scene.order("n1", WEB).unwrap().jobs.len(), 2);
    scene.edit("web", peers_only);
    scene.plan();
    assert_eq!(scene.ways(&NODES, WEB), ["n1 < registry"]);
    scene.delete("guest");
    scene.plan();
    assert_eq!(scene.ways(&NODES, WEB), ["n1 < "], "nobody else wants that");
}

/// In one namespace the strictest terms hold: the seed would lose the registry to a job that came later.
#[test]
fn a_peers_only_job_does_not_join_the_seed_of_its_namespace() {
    let mut scene = Scene::of_peers(&NODES);
    scene.job(limited("other", &["n3"], None));
    let mut web = limited("web", &NODES, None);
    peers_only(&mut web);
    scene.job(web);
    scene.plan();
    scene.plan();
    assert_eq!(scene.ways(&NODES, WEB), ["n1 < n3", "n2 < n1 n3", "n3 < registry"]);
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 pulls", "n3 waits: NoSource"]);
    scene.brings("n3", WEB);
    scene.plan();
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 pulls", "n3 done"]);
}

/// Where it may read from somebody else, it does so for both jobs.
#[test]
fn a_seed_that_a_peers_only_job_joins_reads_from_others() {
    let mut scene = Scene::of_peers(&NODES);
    scene.job(limited("first", &["n2", "n3"], Some(2)));
    scene.plan();
    assert_eq!(scene.ways(&NODES, WEB), ["n2 < registry", "n3 < registry"]);
    scene.brings("n2", WEB);
    let mut web = limited("web", &["n3"], None);
    peers_only(&mut web);
    scene.job(web);
    scene.plan();
    assert_eq!(scene.order("n3", WEB).unwrap().jobs.len(), 2);
    assert_eq!(scene.ways(&["n3"], WEB), ["n3 < n2"]);
}
