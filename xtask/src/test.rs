//! Runs the tests and counts: passed, failed, and skipped, which a test says in a line that begins with `SKIPPED: `. Before
//! that the real programs come that tests use: Debian's packages, and for all tests a containerd 2.2.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use crate::{containerd, shell};

/// Programs that tests use, each with the Debian package that has it.
const PROGRAMS: &[(&str, &str)] = &[
    ("busybox", "busybox-static"),
    ("containerd", "containerd"),
    ("docker-registry", "docker-registry"),
    ("htpasswd", "apache2-utils"),
    ("runc", "runc"),
    ("skopeo", "skopeo"),
];
/// What Debian's packages ask whether their daemons may start.
const POLICY: &str = "/usr/sbin/policy-rc.d";

#[derive(Default)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
    skipped: Vec<String>,
}

/// The quick tests, or all.
pub(crate) fn run(all: bool) -> anyhow::Result<()> {
    install();
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

/// Debian packages that are missing, when this is Debian and we are root. Tests that miss one say so.
fn install() {
    let missing: Vec<&str> =
        PROGRAMS.iter().filter(|(program, _)| !shell::is_there(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return;
    }
    let root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    if !root || !shell::is_there("apt-get") {
        println!("not installed, tests that need them are skipped: {}", missing.join(", "));
        return;
    }
    println!("installing {}", missing.join(", "));
    let apt = |args: &[&str]| {
        let status = Command::new("apt-get").args(args).env("DEBIAN_FRONTEND", "noninteractive").status();
        status.is_ok_and(|status| status.success())
    };
    let _quiet = Quiet::new();
    let packages: Vec<&str> = ["install", "-y", "-qq", "--no-install-recommends"].into_iter().chain(missing).collect();
    if !(apt(&["update", "-qq"]) && apt(&packages)) {
        println!("apt-get failed; tests that need these programs are skipped");
    }
}

/// As long as it lives, packages that are installed do not start their daemons: tests have instances of their own.
struct Quiet {
    ours: bool,
}

impl Quiet {
    fn new() -> Self {
        // A machine with a policy of its own keeps it.
        if Path::new(POLICY).exists() {
            return Self { ours: false };
        }
        let written = fs::write(POLICY, "#!/bin/sh\nexit 101\n")
            .and_then(|()| fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755)));
        if let Err(problem) = written {
            println!("cannot write {POLICY} ({problem}); daemons of new packages may start");
        }
        Self { ours: true }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if self.ours {
            let _ = fs::remove_file(POLICY);
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
