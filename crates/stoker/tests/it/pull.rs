//! Commands without a cluster.

use crate::bed::{Ran, stoker};

#[test]
fn without_a_cluster_the_error_says_what_to_do() {
    let run = |args: &[&str]| Ran::of(stoker().args(args).output().unwrap());
    run(&["get"]).exits(1).says("no cluster").says("stoker up --data DIR");
    run(&["get", "--kubeconfig", "/nonexistent/config"]).exits(2).says("/nonexistent/config cannot be read");
    run(&["pull"]).exits(2).says("IMAGE");
    run(&["--version"]).exits(0).says(env!("CARGO_PKG_VERSION"));
    run(&["completions", "bash"]).exits(0).says("complete -F");
}
