//! What can be wrong before there is a cluster, and with the directory and the port of `up`, with what a user then reads. One
//! snapshot holds all of it, for a person to judge: does each name the thing and the next step? The rest is in the scenarios.

use std::fmt::Write as _;

use crate::bed::{Ran, Up, stoker};

#[test]
fn every_mistake_is_answered_with_the_thing_and_the_next_step() {
    let up = Up::start(1);
    let config = std::fs::read_to_string(up.kubeconfig()).unwrap();
    let address = config.lines().find_map(|line| line.trim().strip_prefix("server: ")).unwrap();
    let listen = address.trim().trim_matches('"').trim_start_matches("https://");
    let (data, other) = (up.data().to_str().unwrap(), tempfile::tempdir().unwrap());
    let (file, other) = (up.data().join("a-file"), other.path().to_str().unwrap());
    std::fs::write(&file, "").unwrap();
    let below = file.join("below");
    let mistakes: [(&str, &[&str]); 5] = [
        ("no cluster", &["get"]),
        ("a kubeconfig that is not there", &["get", "--kubeconfig", "/nonexistent/config"]),
        ("a data directory that cannot be written", &["up", "--data", below.to_str().unwrap()]),
        ("a port in use", &["up", "--listen", listen, "--data", other]),
        ("a data directory in use", &["up", "--listen", "127.0.0.1:0", "--data", data]),
    ];
    let mut page = String::new();
    for (what, args) in mistakes {
        let ran = Ran::of(stoker().args(args).output().unwrap());
        writeln!(page, "## {what}\nexit {}: {}{}", ran.code.unwrap(), ran.out, ran.err).unwrap();
    }
    insta::assert_snapshot!("mistakes", page.replace(listen, "API").replace(data, "DATA"));
}
