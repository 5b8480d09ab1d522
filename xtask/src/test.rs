//! Runs the tests and counts: passed, failed, and skipped, which a test says in a line that begins with `SKIPPED: `. What
//! failed is said once more at the end. Before that the real programs come that tests use: Debian's packages, and for all
//! tests a containerd 2.2 and a cluster.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use crate::cluster::loan::{self, Loan};
use crate::{containerd, packages, shell};

use self::reading::{FailedTest, Reading};

mod reading;
pub(crate) mod soak;

/// Programs that tests use, each with the Debian package that has it.
const PROGRAMS: &[(&str, &str)] = &[
    ("busybox", "busybox-static"),
    ("containerd", "containerd"),
    ("docker-registry", "docker-registry"),
    ("htpasswd", "apache2-utils"),
    ("runc", "runc"),
    ("skopeo", "skopeo"),
];

/// Cargo's arguments; what follows goes to the tests.
const QUICK: [&str; 6] = ["test", "--workspace", "--locked", "--no-fail-fast", "--", "--show-output"];

/// Lines of a failed test that are repeated at the end, at most: other failures should not be lost behind them.
const MOST_LINES: usize = 40;

/// Tell tests of a real API server, and of a cluster.
const KUBECONFIG: &str = "STOKER_TEST_KUBECONFIG";
const CLUSTER: &str = "STOKER_TEST_CLUSTER";

/// The quick tests, or all.
pub(crate) fn run(all: bool) -> anyhow::Result<()> {
    let missing = packages::install(PROGRAMS);
    if !missing.is_empty() {
        println!("not installed, tests that need them are skipped: {}", missing.join(", "));
    }
    if !all {
        let mut command = shell::cargo_command(&QUICK);
        // Quick tests know Debian's containerd alone and no cluster, whatever the environment says.
        command.env_remove(containerd::VARIABLE).env_remove(KUBECONFIG).env_remove(CLUSTER);
        return count(command);
    }
    // Whoever made a mistake hears of it before a cluster is up.
    shell::cargo(&["test", "--workspace", "--locked", "--no-run"], &[])?;
    let two = containerd::two();
    let loan = match loan::take()? {
        Ok(loan) => Some(loan),
        Err(lack) => {
            println!("no cluster, tests that need it are skipped: {lack}");
            None
        }
    };
    let ran = all_tests(loan.as_ref()).and_then(|mut command| {
        if let Some(folder) = two {
            command.env(containerd::VARIABLE, folder);
        }
        count(command)
    });
    match loan {
        Some(loan) => loan.end(ran),
        None => ran,
    }
}

fn all_tests(loan: Option<&Loan>) -> anyhow::Result<Command> {
    let inside = loan.map(Loan::inside).transpose()?;
    let [test, rest @ ..] = QUICK;
    let mut args = vec![test];
    args.extend(inside.iter().flat_map(|inside| ["--config", inside]));
    args.extend(rest);
    args.push("--include-ignored");
    Ok(shell::cargo_command(&args))
}

/// Runs them and says how many passed, failed and were skipped.
fn count(mut command: Command) -> anyhow::Result<()> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot run cargo test")?;
    let mut reading = Reading::default();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines() {
            let line = line?;
            if reading.read(&line) {
                println!("{line}");
            }
        }
    }
    let status = child.wait()?;
    let Reading { passed, failed, ignored, skipped, failures, .. } = &reading;
    for skip in skipped {
        println!("SKIPPED: {skip}");
    }
    if *ignored > 0 {
        println!("{ignored} long tests were left out; `cargo xtask test --all` runs them");
    }
    for FailedTest { test, said } in failures {
        println!(
            "\nFAILED: {test}\n{}",
            said.iter().take(MOST_LINES).map(String::as_str).collect::<Vec<_>>().join("\n")
        );
        if said.len() > MOST_LINES {
            println!("({} more lines of it stand above)", said.len() - MOST_LINES);
        }
    }
    // A test that skipped itself has passed nothing.
    let passed = passed.saturating_sub(skipped.len() as u64);
    println!("\n{passed} passed, {failed} failed, {} skipped", skipped.len() as u64 + ignored);
    match status.success() {
        true if passed > 0 => Ok(()),
        true => bail!("no test ran"),
        false if failures.is_empty() => bail!("tests failed: a program of them did not end by itself, see above"),
        false => bail!(
            "tests failed: {}",
            failures.iter().map(|failure| failure.test.as_str()).collect::<Vec<_>>().join(", ")
        ),
    }
}
