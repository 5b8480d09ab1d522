//! Measures, in release builds, and prints figures for docs/benchmarks.md. Asserts nothing about time.

use anyhow::bail;

use crate::shell;

/// Each benchmark with the cargo command that runs it.
const BENCHES: &[(&str, &[&str])] = &[
    ("plan", &["run", "--quiet", "--release", "--locked", "--package", "stoker-testbed", "--bin", "plan-bench"]),
    ("pull", &["bench", "--quiet", "--locked", "--package", "stoker", "--bench", "pull"]),
    ("memory", &["bench", "--quiet", "--locked", "--package", "stoker", "--bench", "memory"]),
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
        shell::cargo(command, &[])?;
    }
    Ok(())
}
