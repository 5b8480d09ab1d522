//! Runs other programs; cargo in the root of the repository.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde_json::Value;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_path_buf()
}

/// Cargo, as it called us.
pub(crate) fn cargo_command(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// Runs cargo and wants it to succeed.
pub(crate) fn cargo(args: &[&str], env: &[(&str, &str)]) -> anyhow::Result<()> {
    let status = cargo_command(args).envs(env.iter().copied()).status().context("cannot run cargo")?;
    match status.success() {
        true => Ok(()),
        false => bail!("`cargo {}` failed", args.join(" ")),
    }
}

/// Runs a command that must succeed, for what it prints.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim()),
    }
}

/// Builds a program of ours, and gives its path, as cargo says it. One of the packages has it; naming others that are built
/// too has cargo compile what they share once.
pub(crate) fn build(packages: &[&str], program: &str, profile: &str) -> anyhow::Result<PathBuf> {
    let mut cargo = cargo_command(&["build", "--locked", "--bin", program, "--profile", profile]);
    cargo.args(packages.iter().flat_map(|package| ["--package", package]));
    cargo.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = cargo.output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("{program} could not be built");
    }
    let messages = String::from_utf8(output.stdout).context("cargo printed no text")?;
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let binary = messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back();
    binary.context("cargo does not say where the binary is")
}

/// Whether a program is on the PATH.
pub(crate) fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Whether we may do what only root may.
pub(crate) fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n")
}
