//! Seeds that have something else to do, or are none any more.

use super::*;

/// Its nodes have something to fetch that is not done.
fn other_work(nodes: &[&str]) -> Job {
    let mut job = job("other", &["other@sha256:o"]);
    job.names = names(nodes);
    job
}

#[test]
fn a_node_with_other_work_is_no_seed_where_another_one_has_none() {
    let nodes = ["n1", "n2", "n3"];
    let ways = |busy: &[&str], done: bool| {
        let mut scene = Scene::of_peers(&nodes);
        scene.job(other_work(busy));
        scene.plan();
        if done {
            busy.iter().for_each(|node| scene.brings(node, "other@sha256:o"));
            scene.plan();
        }
        scene.job(web());
        scene.plan();
        scene.ways(&nodes, WEB)
    };
    assert_eq!(ways(&["n1"], false), ["n1 < n3 n2", "n2 < registry", "n3 < n2"]);
    assert_eq!(ways(&["n1"], true), ["n1 < registry", "n2 < n1", "n3 < n2 n1"], "it is done");
    assert_eq!(ways(&nodes, false), ["n1 < registry", "n2 < n1", "n3 < n2 n1"], "all have some");
}

#[test]
fn the_image_comes_first_to_a_zone_whose_nodes_have_nothing_else_to_do() {
    let nodes = ["n1", "n2", "n3"];
    let mut scene = Scene::of_peers(&nodes);
    for (name, zone, rate) in [("n1", "a", 1 << 24), ("n2", "b", 1 << 20), ("n3", "b", 1 << 20)] {
        scene.in_zone(name, zone);
        scene.serves(name, facts(Some(rate), true));
    }
    scene.job(other_work(&["n1"]));
    scene.plan();
    scene.job(web());
    scene.plan();
    assert_eq!(scene.ways(&nodes, WEB), ["n1 < ~n3 ~n2", "n2 < registry", "n3 < n2"]);
}

#[test]
fn a_node_that_pulls_the_same_image_for_another_job_joins_first() {
    let mut scene = Scene::of_peers(&["n1", "n2", "n3"]);
    let mut first = job("first", &[WEB]);
    first.names = names(&["n2"]);
    scene.job(first);
    scene.plan();
    scene.job(Job { parallelism: 2, ..web() });
    scene.plan();
    assert_eq!(scene.ways(&["n1", "n2", "n3"], WEB), ["n1 < n2", "n2 < registry"]);
}

#[test]
fn a_seed_that_was_replaced_goes_upstream_again_when_no_list_helps_unless_that_breaks_a_promise() {
    for copies in [None, Some(1)] {
        let mut scene = broken(copies);
        scene.report("n2", WEB, |report| report.bytes.done = 10);
        scene.report("n1", WEB, |report| report.reason = Some(Reason::Unreachable));
        scene.plan();
        assert_eq!(scene.ways(&["n1", "n2"], WEB), ["n1 < n3 n2", "n2 < registry"], "{copies:?}");
        for second in 1..6 {
            scene.pass(second);
            if !scene.order("n1", WEB).unwrap().upstream {
                scene.starves("n1", WEB, 1);
            }
            scene.plan();
        }
        assert_eq!(scene.order("n1", WEB).unwrap().upstream, copies.is_none(), "{copies:?}");
    }
}
