//! containerd 2.2 for the tests and the test cluster, built with Go from its module.
//!
//! Nothing comes in; the folder with its programs goes out, or a line that says why there is none.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::built::Built;

/// Tells tests where it is.
pub(crate) const VARIABLE: &str = "STOKER_TEST_CONTAINERD_2";

const TWO: Built =
    Built { name: "containerd", version: "2.2.9", programs: &["containerd", "containerd-shim-runc-v2", "ctr"] };
const MODULE: &str = "github.com/containerd/containerd/v2/cmd";
/// Snapshotters that want C libraries, and that no test uses.
const TAGS: &str = "no_btrfs no_devmapper no_zfs";

/// The folder with its programs, built now if it never was; `None` where that cannot be.
pub(crate) fn two() -> Option<PathBuf> {
    match find_or_build() {
        Ok(folder) => Some(folder),
        Err(problem) => {
            println!("no containerd {}, tests that need it are skipped: {problem:#}", TWO.version);
            None
        }
    }
}

/// The folder with its programs, built now if it never was.
pub(crate) fn find_or_build() -> anyhow::Result<PathBuf> {
    TWO.find_or_build(build)
}

/// What is missing for that, if something is.
pub(crate) fn lack() -> anyhow::Result<Option<String>> {
    TWO.lack()
}

fn build(into: &Path) -> anyhow::Result<()> {
    let mut command = Command::new("go");
    command.args(["install", "-trimpath", "-tags", TAGS]);
    command.args(TWO.programs.iter().map(|program| format!("{MODULE}/{program}@v{}", TWO.version)));
    // Not in the repository, whose settings are not for this; and for this machine, whatever the environment says.
    command.current_dir(into).env("GOBIN", into).env_remove("GOOS").env_remove("GOARCH");
    match command.status().context("cannot run go")?.success() {
        true => Ok(()),
        false => bail!("`go install` failed"),
    }
}
