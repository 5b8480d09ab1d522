//! `cargo xtask cluster` as a person runs it: whole commands, each cluster in a folder of its own. What a cluster made is
//! looked for before, during and after; other clusters may live on this machine at the same time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bed;

use std::path::Path;

use bed::{Bed, XTASK, one_at_a_time};

/// A pod, which has what no part of the cluster made itself: a shim, a cgroup below the node's, a cable to the bridge.
const POD: &str = "kubectl run p --image=10.77.0.1:5000/busybox:1 --restart=Never --command -- sleep 600 \
                   && kubectl wait --for=condition=Ready --timeout=600s pod/p";

#[test]
#[ignore = "long"]
fn nothing_is_left_of_a_cluster_wherever_its_up_was_killed() {
    let _turn = one_at_a_time();
    let Some(mut bed) = Bed::apart("real") else { return };
    let before = bed.picture();
    // Nothing but the folder, a machine, a control plane that is not up yet, a node without kubelet: the last after it.
    for part in [None, Some("control"), Some("control/apiserver"), Some("n1/containerd")] {
        if !bed.kill_up(&["--nodes", "2"], part) {
            return;
        }
        assert_ne!(bed.picture(), before, "killed at {part:?}");
        assert!(bed.run(&["down"]).succeeds().contains("the cluster is down"));
        bed.becomes(&before, &format!("killed at {part:?}"));
    }
    // What is left of one that was killed is taken down by the next `up`, too.
    bed.kill_up(&["--nodes", "2"], Some("n2"));
    bed.run(&["up", "--nodes", "2"]).succeeds();
    bed.run(&["exec", "--", "sh", "-c", POD]).succeeds();
    let during = bed.picture();
    for kind in ["cgroup", "mount", "namespace", "process"] {
        assert!(during.iter().any(|line| line.starts_with(kind)), "no {kind} in {during:#?}");
    }
    bed.run(&["down"]).succeeds();
    bed.becomes(&before, "it was up");
}

#[test]
#[ignore = "long"]
fn a_fleet_of_simulated_nodes_comes_and_goes() {
    let _turn = one_at_a_time();
    // Cargo builds it beside our own program, with the tests of its crate.
    let fleet = Path::new(XTASK).with_file_name("fleet").display().to_string();
    if !Path::new(&fleet).exists() {
        println!("SKIPPED: no {fleet}; `cargo build -p stoker-testbed` makes it");
        return;
    }
    let mut bed = Bed::new("fake");
    let before = bed.picture();
    let up = ["up", "--fake-nodes", "20", "--binary", &fleet];
    let ran = bed.run(&up);
    if ran.skipped() {
        return;
    }
    ran.succeeds();
    assert!(bed.run(&["status"]).succeeds().contains("20 simulated nodes"));
    assert_ne!(bed.picture(), before);
    // Asked for otherwise it is not the same, and whoever asks hears how to get what he wants.
    let told = bed.run(&[&up[..], &["--pull-time", "2s"]].concat()).fails();
    assert!(told.contains("--pull-time 2s") && told.contains("cluster down --dir"), "{told}");
    bed.run(&["down"]).succeeds();
    bed.becomes(&before, "it was up");
}
