//! containerd 2.2 for the tests, built with Go from its module, once a machine: it is kept in the user's cache, by version.
//!
//! Nothing comes in; the folder with its programs goes out, or a line that says why there is none. It never changes what is
//! installed, and half a build is never seen: the folder gets its name when all is there.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::shell;

/// Tells tests where it is.
pub(crate) const VARIABLE: &str = "STOKER_TEST_CONTAINERD_2";

const VERSION: &str = "2.2.9";
const MODULE: &str = "github.com/containerd/containerd/v2/cmd";
const PROGRAMS: [&str; 3] = ["containerd", "containerd-shim-runc-v2", "ctr"];
/// Snapshotters that want C libraries, and that no test uses.
const TAGS: &str = "no_btrfs no_devmapper no_zfs";

/// The folder with its programs, built now if it never was; `None` where that cannot be.
pub(crate) fn two() -> Option<PathBuf> {
    match find_or_build() {
        Ok(folder) => Some(folder),
        Err(problem) => {
            println!("no containerd {VERSION}, tests that need it are skipped: {problem:#}");
            None
        }
    }
}

fn find_or_build() -> anyhow::Result<PathBuf> {
    let cache = cache(env::var_os("XDG_CACHE_HOME").map(PathBuf::from), env::var_os("HOME").map(PathBuf::from))
        .context("neither XDG_CACHE_HOME nor HOME is set")?;
    let folder = cache.join(format!("containerd-{VERSION}"));
    if is_whole(&folder) {
        return Ok(folder);
    }
    if !shell::is_there("go") {
        bail!("Go is not installed");
    }
    println!("building containerd {VERSION} into {}", folder.display());
    let fresh = cache.join(format!("containerd-{VERSION}.{}", std::process::id()));
    let built = build(&fresh).and_then(|()| keep(&fresh, &folder));
    if built.is_err() {
        let _ = fs::remove_dir_all(&fresh);
    }
    built.map(|()| folder)
}

fn build(into: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(into).with_context(|| format!("cannot make {}", into.display()))?;
    let mut command = Command::new("go");
    command.args(["install", "-trimpath", "-tags", TAGS]);
    command.args(PROGRAMS.map(|program| format!("{MODULE}/{program}@v{VERSION}")));
    // Not in the repository, whose settings are not for this; and for this machine, whatever the environment says.
    command.current_dir(into).env("GOBIN", into).env_remove("GOOS").env_remove("GOARCH");
    match command.status().context("cannot run go")?.success() && is_whole(into) {
        true => Ok(()),
        false => bail!("`go install` failed"),
    }
}

/// Gives the new folder its name. Another run may have been first: its folder is as good.
fn keep(fresh: &Path, folder: &Path) -> anyhow::Result<()> {
    if !is_whole(folder) {
        let _ = fs::remove_dir_all(folder);
    }
    match fs::rename(fresh, folder) {
        Err(_) if is_whole(folder) => fs::remove_dir_all(fresh).context("cannot remove a second build"),
        renamed => renamed.with_context(|| format!("cannot make {}", folder.display())),
    }
}

fn is_whole(folder: &Path) -> bool {
    PROGRAMS.iter().all(|program| folder.join(program).is_file())
}

fn cache(xdg: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let base = xdg.filter(|base| base.is_absolute()).or_else(|| Some(home?.join(".cache")))?;
    Some(base.join("stoker"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_where_users_have_theirs() {
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(cache(path("/c"), path("/home/ada")), path("/c/stoker"));
        assert_eq!(cache(path("relative"), path("/home/ada")), path("/home/ada/.cache/stoker"));
        assert_eq!(cache(None, None), None);
    }

    #[test]
    fn a_second_build_gives_way_to_the_first_and_half_a_one_to_both() {
        let dir = env::temp_dir().join(format!("stoker-xtask-{}", std::process::id()));
        let make = |name: &str, programs: &[&str]| {
            let folder = dir.join(name);
            fs::create_dir_all(&folder).unwrap();
            programs.iter().for_each(|program| fs::write(folder.join(program), name).unwrap());
            folder
        };
        let (folder, first, second) = (make("kept", &["ctr"]), make("first", &PROGRAMS), make("second", &PROGRAMS));
        keep(&first, &folder).unwrap();
        keep(&second, &folder).unwrap();
        assert_eq!(fs::read_to_string(folder.join("ctr")).unwrap(), "first");
        assert!(!first.exists() && !second.exists());
        fs::remove_dir_all(dir).unwrap();
    }
}
