//! Runs the tests and counts: passed, failed, and skipped, which a test says in a line that begins with `SKIPPED: `. Before
//! that the real programs come that tests use: Debian's packages, and for all tests a containerd 2.2.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use anyhow::{Context as _, bail};

use crate::{containerd, packages, shell};

/// Programs that tests use, each with the Debian package that has it.
const PROGRAMS: &[(&str, &str)] = &[
    ("busybox", "busybox-static"),
    ("containerd", "containerd"),
    ("docker-registry", "docker-registry"),
    ("htpasswd", "apache2-utils"),
    ("runc", "runc"),
    ("skopeo", "skopeo"),
];

#[derive(Default)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
    skipped: Vec<String>,
}

/// The quick tests, or all.
pub(crate) fn run(all: bool) -> anyhow::Result<()> {
    let missing = packages::install(PROGRAMS);
    if !missing.is_empty() {
        println!("not installed, tests that need them are skipped: {}", missing.join(", "));
    }
    let mut args = vec!["test", "--workspace", "--locked", "--no-fail-fast", "--", "--show-output"];
    if all {
        args.push("--include-ignored");
    }
    let mut command = shell::cargo_command(&args);
    // Quick tests know Debian's containerd alone, whatever the environment says.
    command.env_remove(containerd::VARIABLE);
    if all && let Some(folder) = containerd::two() {
        command.env(containerd::VARIABLE, folder);
    }
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot run cargo test")?;
    let mut counts = Counts::default();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines() {
            let line = line?;
            println!("{line}");
            counts.read(&line);
        }
    }
    let status = child.wait()?;
    let Counts { passed, failed, ignored, skipped } = &counts;
    for skip in skipped {
        println!("SKIPPED: {skip}");
    }
    if *ignored > 0 {
        println!("{ignored} long tests were left out; `cargo xtask test --all` runs them");
    }
    // A test that skipped itself has passed nothing.
    let passed = passed.saturating_sub(skipped.len() as u64);
    println!("\n{passed} passed, {failed} failed, {} skipped", skipped.len() as u64 + ignored);
    match status.success() {
        true if passed > 0 => Ok(()),
        true => bail!("no test ran"),
        false => bail!("tests failed"),
    }
}

impl Counts {
    fn read(&mut self, line: &str) {
        if let Some(skip) = line.strip_prefix("SKIPPED: ") {
            self.skipped.push(skip.to_string());
        }
        let Some(result) = line.strip_prefix("test result: ") else { return };
        for part in result.split([';', '.']) {
            let mut words = part.split_whitespace();
            if let (Some(Ok(number)), Some(what)) = (words.next().map(str::parse::<u64>), words.next()) {
                match what {
                    "passed" => self.passed += number,
                    "failed" => self.failed += number,
                    "ignored" => self.ignored += number,
                    _ => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted() {
        let mut counts = Counts::default();
        counts.read("test result: ok. 12 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.04s");
        counts.read("SKIPPED: no kubectl");
        counts.read("test other::test ... ok");
        assert_eq!((counts.passed, counts.failed, counts.ignored, counts.skipped.len()), (12, 1, 3, 1));
    }
}
