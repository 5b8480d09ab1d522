//! The accounts of a registry, as the file that `htpasswd` makes. Passwords go by its standard input, so that no list of
//! processes shows them.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use super::DockerRegistryError;
use crate::plot::Plot;

pub(super) const PROGRAM: &str = "htpasswd";
pub(super) const FILE: &str = "htpasswd";

/// Writes the file anew, in one step.
pub(super) fn write(plot: &Plot, accounts: &[(String, String)]) -> Result<(), DockerRegistryError> {
    let mut lines = String::new();
    for (name, password) in accounts {
        lines += &line(name, password)?;
    }
    let next = plot.write("htpasswd.next", lines)?;
    fs::rename(next, plot.path().join(FILE))?;
    Ok(())
}

fn line(name: &str, password: &str) -> Result<String, DockerRegistryError> {
    let refused = |why: String| DockerRegistryError::Accounts(why);
    // bcrypt, the only kind that the registry knows, at its cheapest.
    let mut child = Command::new(PROGRAM)
        .args(["-n", "-i", "-B", "-C", "4", name])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| refused(error.to_string()))?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(password.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(refused(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned() + "\n")
}
