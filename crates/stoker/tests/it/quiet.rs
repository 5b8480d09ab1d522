//! What `stoker up` logs when all is well, at the level that it has by default. One snapshot holds all of it, for a person to
//! judge: does any line read as if something were wrong?

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use stoker_testbed::registry::{Registry, noise};

use crate::bed::{Ran, stoker};

/// Starts it, lets somebody do something, stops it; all that it said goes to the file.
fn session(data: &Path, log: &Path, act: impl FnOnce()) {
    let log = File::options().create(true).append(true).open(log).unwrap();
    let mut command = stoker();
    command.args(["up", "--listen", "127.0.0.1:0", "--nodes", "2", "--max-disk", "99", "--data"]).arg(data);
    let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with("Stoker is up")));
    let rest = std::thread::spawn(move || lines.for_each(drop));
    act();
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert!(child.wait().unwrap().success());
    rest.join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_alarming_is_logged_when_all_is_well() {
    let registry = Registry::start().await.unwrap();
    let pushed = registry.push("shop/web", "v1", &[noise(1_000, 1)]);
    let host = registry.host();
    let test = move || {
        let scratch = tempfile::tempdir().unwrap();
        let (data, log) = (scratch.path().join("data"), scratch.path().join("log"));
        let run = |args: &[&str]| {
            Ran::of(stoker().arg("--kubeconfig").arg(data.join("kubeconfig")).args(args).output().unwrap()).exits(0);
        };
        let image = format!("{host}/shop/web:v1");
        session(&data, &log, || {
            run(&["pull", &image, "--name", "web"]);
            run(&["pull", &image]);
        });
        // The second time there is everything that the first one left.
        session(&data, &log, || run(&["delete", "web"]));
        let log = std::fs::read_to_string(&log).unwrap();
        assert!(!log.contains(" WARN ") && !log.contains(" ERROR "), "{log}");
        // Two nodes say the same, in any order.
        let lines: BTreeSet<String> = log
            .lines()
            .map(|line| line.split_once(" INFO ").map_or(line, |(_, said)| said))
            .map(|line| line.replace(&host, "REGISTRY").replace(data.to_str().unwrap(), "DATA"))
            .map(|line| line.replace(&pushed.manifest, "DIGEST").replace("node-2", "node-1"))
            .map(|line| match line.split_once("other nodes read images on 127.0.0.1:") {
                Some((_, rest)) => {
                    format!("other nodes read images on 127.0.0.1:PORT {}", rest.split_once(' ').unwrap().1)
                }
                None => line,
            })
            .collect();
        insta::assert_snapshot!("quiet", lines.into_iter().collect::<Vec<_>>().join("\n"));
    };
    tokio::task::spawn_blocking(test).await.unwrap();
}
