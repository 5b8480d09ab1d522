//! Measures, in release builds, and prints figures for docs/benchmarks.md. Asserts nothing about time.

use anyhow::bail;

use crate::cluster::{self, Fleet};
use crate::{built, containerd, shell};

/// How long a fleet's pull takes: short, so that the API server is never idle while one is awaited.
const PULL_TIME: &str = "100ms";

/// Each benchmark with the cargo command that runs it.
const BENCHES: &[(&str, &[&str])] = &[
    ("plan", &["run", "--quiet", "--release", "--locked", "--package", "stoker-testbed", "--bin", "plan-bench"]),
    ("relay", &["run", "--quiet", "--release", "--locked", "--package", "stoker-testbed", "--bin", "relay-bench"]),
    (PULL, &["bench", "--quiet", "--locked", "--package", "stoker", "--bench", "pull"]),
    ("memory", &["bench", "--quiet", "--locked", "--package", "stoker", "--bench", "memory"]),
    ("bytes", &["bench", "--quiet", "--locked", "--package", "stoker", "--bench", "bytes"]),
    ("peers", &["bench", "--quiet", "--locked", "--package", "stoker", "--bench", "peers"]),
    ("hop", &["bench", "--quiet", "--locked", "--package", "stoker-transfer", "--bench", "hop"]),
    ("away", &["bench", "--quiet", "--locked", "--package", "stoker", "--bench", "away"]),
    (
        SCALE,
        &["bench", "--quiet", "--locked", "--package", "stoker", "--package", "stoker-testbed", "--bench", "scale"],
    ),
];

/// The one that runs against containerd, of both versions where the newer one can be built.
const PULL: &str = "pull";
/// The one that runs on a cluster of simulated nodes, with how many of them, and what is measured there.
const SCALE: &str = "scale";
const FLEETS: [(usize, &[&str]); 2] = [
    (1000, &["writes", "latency", "witnesses", "pulljobs", "nodeimages"]),
    (5000, &["writes", "latency", "memory", "pulljobs-memory", "nodeimages-memory"]),
];

/// Runs one, or all.
pub(crate) fn run(name: Option<&str>) -> anyhow::Result<()> {
    let chosen: Vec<_> = BENCHES.iter().filter(|(bench, _)| name.is_none_or(|name| name == *bench)).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = BENCHES.iter().map(|(bench, _)| *bench).collect();
        bail!("no such benchmark; there are: {}", names.join(", "));
    }
    for (bench, command) in chosen {
        println!("== {bench}");
        match *bench {
            SCALE => scale(command)?,
            PULL => {
                let folder = containerd::two().map(|folder| folder.display().to_string());
                let variables: Vec<(&str, &str)> =
                    folder.as_deref().map(|folder| (containerd::VARIABLE, folder)).into_iter().collect();
                shell::cargo(command, &variables)?;
            }
            _ => shell::cargo(command, &[])?,
        }
    }
    Ok(())
}

/// The same command on clusters of several sizes, each in a folder of its own that is gone afterwards.
fn scale(command: &[&str]) -> anyhow::Result<()> {
    shell::cargo(&[command, &["--no-run"]].concat(), &[])?;
    for (nodes, parts) in FLEETS {
        let fleet = Fleet { nodes, pull_time: Some(PULL_TIME.to_string()), fail_every: None, binary: None };
        let dir = built::cache()?.join("bench-scale");
        let run = |inside: &str, ends: &str| {
            shell::cargo(&[command, &["--config", inside, "--"], parts, &[ends]].concat(), &[])
        };
        if let Some(lack) = cluster::with_fake_nodes(dir, fleet, run)? {
            println!("SKIPPED: {lack}");
            return Ok(());
        }
    }
    Ok(())
}
