//! Which containerd: where its programs are on this machine, and why not.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::image::busybox;

/// Where `cargo xtask test --all` says that containerd 2.2 is.
const VARIABLE: &str = "STOKER_TEST_CONTAINERD_2";
/// CAP_SYS_ADMIN: without it nobody mounts anything.
const MAY_MOUNT: u64 = 1 << 21;

/// The versions that users have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The one that is installed: 1.6 on Debian 12.
    Debian,
    /// 2.2, as `cargo xtask test --all` built it.
    Two,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Debian => "containerd",
            Self::Two => "containerd 2.2",
        })
    }
}

/// The programs of one version.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) containerd: PathBuf,
    pub(super) ctr: PathBuf,
    /// A PATH where its own shim is found first.
    pub(super) path: OsString,
    /// 1 or 2: the configuration differs.
    pub(super) major: u32,
}

/// What is missing on this machine.
#[derive(Debug, thiserror::Error)]
pub(super) enum Missing {
    #[error("the right to mount is missing; run the tests as root")]
    Rights,
    #[error("{VARIABLE} is not set; `cargo xtask test --all` builds it where Go is")]
    Two,
    #[error("{0} is not installed")]
    Program(&'static str),
    #[error("{0}")]
    Busybox(#[from] crate::image::NoBusybox),
    #[error("`{0} --version` says nothing that we know")]
    Unknown(PathBuf),
}

impl Version {
    /// Finds its programs.
    pub(super) fn find(self) -> Result<Programs, Missing> {
        if !may_mount() {
            return Err(Missing::Rights);
        }
        busybox()?;
        let mut folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
        // Some shells leave out where Debian has runc and mount's like.
        folders.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
        if self == Self::Two {
            folders
                .insert(0, std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty()).ok_or(Missing::Two)?.into());
        }
        let find = |name: &'static str| {
            let places = folders.iter().map(|folder| folder.join(name));
            places.into_iter().find(|place| place.is_file()).ok_or(Missing::Program(name))
        };
        find("runc")?;
        find("containerd-shim-runc-v2")?;
        let containerd = find("containerd")?;
        let major = major(&containerd).ok_or_else(|| Missing::Unknown(containerd.clone()))?;
        let path = std::env::join_paths(&folders).unwrap_or_default();
        Ok(Programs { ctr: find("ctr")?, containerd, path, major })
    }
}

/// `containerd github.com/containerd/containerd 1.6.20 …` or `… v2.2.9 …`.
fn major(containerd: &Path) -> Option<u32> {
    let output = Command::new(containerd).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.split_whitespace().nth(2)?.trim_start_matches('v').split('.').next()?.parse().ok()
}

fn may_mount() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = line.and_then(|rights| u64::from_str_radix(rights.trim(), 16).ok());
    rights.is_some_and(|rights| rights & MAY_MOUNT != 0)
}
