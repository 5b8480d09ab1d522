//! What containerd is told about images: its snapshotter, its hosts.toml files, its image verifiers.
//!
//! containerd 1 tells all of it over CRI. containerd 2 does not, nor by any other service: there the file that it was
//! started with is read, as it reads it itself, imports included. What cannot be read is as containerd has it without
//! being told, except for image verifiers: where they are is not known then. It never writes.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Value;

use self::file::{Loaded, load};
use super::ContainerdInner;
use super::sight::VisibleFiles;
use crate::grpc::{self, Error, RuntimeErrorKind};
use crate::wire::cri;

mod file;

/// Where containerd's file is, unless it was told otherwise.
const FILE: &str = "/etc/containerd/config.toml";
/// Where containerd 2 looks for hosts.toml files, unless it was told otherwise.
const HOSTS: [&str; 2] = ["/etc/containerd/certs.d", "/etc/docker/certs.d"];
/// Where it looks for programs that judge images, unless it was told otherwise.
const VERIFIERS: &str = "/opt/containerd/image-verifier/bin";
/// What containerd imports from this version on, beside what its file names.
const DROP_INS: &str = "/etc/containerd/conf.d/*.toml";
const DROP_INS_SINCE: (u32, u32) = (2, 2);

/// What it is told, as far as it could be found out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContainerdConfig {
    pub(super) snapshotter: Option<String>,
    pub(super) discards: bool,
    /// Directories of hosts.toml files, the first one first.
    pub(super) hosts: Vec<PathBuf>,
    /// Where programs would be that judge images; `None` where that could not be found out.
    pub(super) verifiers: Option<Vec<PathBuf>>,
    /// Which of its files are seen from here.
    pub(super) sight: VisibleFiles,
}

/// Asks containerd, and looks into its file for what it does not say.
pub(super) async fn look(inner: &ContainerdInner, version: &str) -> Result<ContainerdConfig, Error> {
    if let Some(told) = by_cri(inner).await? {
        return Ok(told);
    }
    let pid = serving(&inner.settings.socket).await;
    let drop_ins = is_since(version, DROP_INS_SINCE).then_some(DROP_INS);
    let read = tokio::task::spawn_blocking(move || of_process(pid, drop_ins));
    Ok(read.await.unwrap_or_else(|_| of_file(&Loaded::default(), VisibleFiles::default())))
}

/// The settings of a process of containerd 2.
fn of_process(pid: Option<i32>, drop_ins: Option<&str>) -> ContainerdConfig {
    let sight = VisibleFiles::of(pid);
    let named = pid.and_then(started_with);
    let file = named.clone().unwrap_or_else(|| FILE.into());
    let mut loaded = load(&file, drop_ins, &sight);
    // Without the process it is a guess which file containerd reads; a file that it was told to read must be there.
    loaded.complete &= pid.is_some() && (named.is_none() || file.exists());
    of_file(&loaded, sight)
}

/// Whether a version such as 2.2.9 or v2.1.5-k3s1 is this one or a later one. One that cannot be read is taken for a new one.
fn is_since(version: &str, (major, minor): (u32, u32)) -> bool {
    let mut numbers = version.trim_start_matches('v').split('.').map(|number| number.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(have), Some(less)) => (have, less) >= (major, minor),
        _ => true,
    }
}

/// The settings of containerd 1's CRI plugin.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct One {
    registry: OneRegistry,
    containerd: OneInside,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OneRegistry {
    config_path: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OneInside {
    snapshotter: String,
    discard_unpacked_layers: bool,
}

/// What CRI says; nothing where it does not speak of images, as from containerd 2 on.
async fn by_cri(inner: &ContainerdInner) -> Result<Option<ContainerdConfig>, Error> {
    let answer = grpc::once_started(|| {
        let mut client = cri::runtime_service_client::RuntimeServiceClient::new(inner.channel.clone());
        let request = inner.ask(cri::StatusRequest { verbose: true });
        async move { client.status(request).await }
    });
    match answer.await {
        Ok(answer) => Ok(answer.into_inner().info.get("config").and_then(|config| of_one(config))),
        Err(status) if RuntimeErrorKind::of(&status) == RuntimeErrorKind::Unavailable => {
            Err(inner.failed("say its settings", &status))
        }
        // One without CRI.
        Err(_) => Ok(None),
    }
}

fn of_one(config: &str) -> Option<ContainerdConfig> {
    let One { registry, containerd } = serde_json::from_str(config).ok()?;
    Some(ContainerdConfig {
        snapshotter: Some(containerd.snapshotter).filter(|name| !name.is_empty()),
        discards: containerd.discard_unpacked_layers,
        hosts: paths(&registry.config_path),
        verifiers: None,
        sight: VisibleFiles::default(),
    })
}

/// A list of directories, as in PATH.
fn paths(text: &str) -> Vec<PathBuf> {
    text.split(':').filter(|path| !path.is_empty()).map(PathBuf::from).collect()
}

/// Who listens on a socket, where that can be seen from here.
async fn serving(socket: &Path) -> Option<i32> {
    let stream = tokio::net::UnixStream::connect(socket).await.ok()?;
    stream.peer_cred().ok()?.pid().filter(|pid| *pid > 0)
}

/// The file that the command line of a process names.
fn started_with(pid: i32) -> Option<PathBuf> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let line = String::from_utf8(line).ok()?;
    let file = PathBuf::from(named(line.split('\0'))?);
    match file.is_absolute() {
        true => Some(file),
        false => Some(fs::read_link(format!("/proc/{pid}/cwd")).ok()?.join(file)),
    }
}

fn named<'a>(mut args: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    while let Some(arg) = args.next() {
        let name = arg.trim_start_matches('-');
        match (arg.starts_with('-'), name.split_once('=')) {
            (true, Some(("c" | "config", file))) => return Some(file),
            (true, None) if matches!(name, "c" | "config") => return args.next(),
            _ => {}
        }
    }
    None
}

fn of_file(loaded: &Loaded, sight: VisibleFiles) -> ContainerdConfig {
    let table = &loaded.table;
    let plugin = |name: &str| table.get("plugins").and_then(|plugins| plugins.get(name));
    let (images, old) = (plugin("io.containerd.cri.v1.images"), plugin("io.containerd.grpc.v1.cri"));
    let registry = |key: &str| [images, old].into_iter().flatten().find_map(|cri| cri.get("registry")?.get(key));
    // Settings of the old form are overlooked by containerd 2 where no runtimes stand beside them.
    let inside = old.and_then(|cri| cri.get("containerd")).filter(|inside| inside.get("runtimes").is_some());
    let discards = [images, inside].into_iter().flatten().find_map(|all| all.get("discard_unpacked_layers")?.as_bool());
    let told = registry("config_path").and_then(Value::as_str).map(paths).filter(|paths| !paths.is_empty());
    let mirrors = registry("mirrors").and_then(Value::as_table).is_some_and(|mirrors| !mirrors.is_empty());
    let usual = || if mirrors { Vec::new() } else { HOSTS.map(PathBuf::from).into() };
    // The usual place and every place that a file names: which of the files counts differs between versions.
    let verifiers = std::iter::once(VERIFIERS.into()).chain(loaded.verifiers.iter().cloned()).collect();
    ContainerdConfig {
        // CRI tells where the images of its snapshotter are, which is surer than a file that may have changed since.
        snapshotter: None,
        discards: discards.unwrap_or(false),
        hosts: told.unwrap_or_else(usual),
        verifiers: loaded.complete.then_some(verifiers),
        sight,
    }
}

#[cfg(test)]
mod tests;
