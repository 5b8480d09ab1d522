//! Programs that are built from source once a machine, and kept in the user's cache, by version.
//!
//! A name, a version and a way to build come in; the folder with the programs goes out. Half a build is never seen: the
//! folder gets its name when all is there. It never changes what is installed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::shell;

/// What is built: the folder is named after it, and holds exactly these programs.
pub(crate) struct Built {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) programs: &'static [&'static str],
}

impl Built {
    /// The folder with the programs, built with Go now if it never was. `build` gets an empty folder to fill.
    pub(crate) fn find_or_build(&self, build: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<PathBuf> {
        let (cache, folder) = (cache()?, self.folder()?);
        if self.is_whole(&folder) {
            return Ok(folder);
        }
        if let Some(lack) = self.lack()? {
            bail!("{lack}");
        }
        println!("building {} {} into {}", self.name, self.version, folder.display());
        let fresh = cache.join(format!("{}-{}.{}", self.name, self.version, std::process::id()));
        let built = fs::create_dir_all(&fresh)
            .with_context(|| format!("cannot make {}", fresh.display()))
            .and_then(|()| build(&fresh))
            .and_then(|()| self.keep(&fresh, &folder));
        if built.is_err() {
            let _ = fs::remove_dir_all(&fresh);
        }
        built.map(|()| folder)
    }

    /// What is missing to have the programs, if something is.
    pub(crate) fn lack(&self) -> anyhow::Result<Option<String>> {
        let can = self.is_whole(&self.folder()?) || shell::is_there("go");
        Ok((!can).then(|| format!("Go is not installed, and {} {} was never built", self.name, self.version)))
    }

    /// Where the programs are, or will be.
    pub(crate) fn folder(&self) -> anyhow::Result<PathBuf> {
        Ok(cache()?.join(format!("{}-{}", self.name, self.version)))
    }

    /// Gives the new folder its name. Another run may have been first: its folder is as good.
    fn keep(&self, fresh: &Path, folder: &Path) -> anyhow::Result<()> {
        if !self.is_whole(fresh) {
            bail!("the build of {} left programs out; it should have made {}", self.name, self.programs.join(", "));
        }
        if !self.is_whole(folder) {
            let _ = fs::remove_dir_all(folder);
        }
        match fs::rename(fresh, folder) {
            Err(_) if self.is_whole(folder) => fs::remove_dir_all(fresh).context("cannot remove a second build"),
            renamed => renamed.with_context(|| format!("cannot make {}", folder.display())),
        }
    }

    fn is_whole(&self, folder: &Path) -> bool {
        self.programs.iter().all(|program| folder.join(program).is_file())
    }
}

/// Where this project keeps what it can make again.
pub(crate) fn cache() -> anyhow::Result<PathBuf> {
    cache_of(env::var_os("XDG_CACHE_HOME").map(PathBuf::from), env::var_os("HOME").map(PathBuf::from))
        .context("neither XDG_CACHE_HOME nor HOME is set")
}

fn cache_of(xdg: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let base = xdg.filter(|base| base.is_absolute()).or_else(|| Some(home?.join(".cache")))?;
    Some(base.join("stoker"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: Built = Built { name: "two", version: "2", programs: &["ctr", "shim"] };

    #[test]
    fn the_cache_is_where_users_have_theirs() {
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(cache_of(path("/c"), path("/home/ada")), path("/c/stoker"));
        assert_eq!(cache_of(path("relative"), path("/home/ada")), path("/home/ada/.cache/stoker"));
        assert_eq!(cache_of(None, None), None);
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
        let (folder, half) = (make("kept", &["ctr"]), make("half", &["ctr"]));
        let (first, second) = (make("first", TWO.programs), make("second", TWO.programs));
        assert!(TWO.keep(&half, &folder).is_err());
        TWO.keep(&first, &folder).unwrap();
        TWO.keep(&second, &folder).unwrap();
        assert_eq!(fs::read_to_string(folder.join("ctr")).unwrap(), "first");
        assert!(!first.exists() && !second.exists());
        fs::remove_dir_all(dir).unwrap();
    }
}
