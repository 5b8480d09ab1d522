//! What containerd is told about images: its snapshotter, its hosts.toml files, its image verifiers.
//!
//! containerd 1 tells all of it over CRI. containerd 2 does not, nor by any other service: there the file that it was
//! started with is read, as it reads it itself, imports included. What cannot be read is as containerd has it without
//! being told. It never writes.

use std::collections::VecDeque;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::{Table, Value};

use super::Inner;
use crate::grpc::{self, Error, Kind};
use crate::wire::cri;

/// Where containerd's file is, unless it was told otherwise.
const FILE: &str = "/etc/containerd/config.toml";
/// Where containerd 2 looks for hosts.toml files, unless it was told otherwise.
const HOSTS: [&str; 2] = ["/etc/containerd/certs.d", "/etc/docker/certs.d"];
/// Where it looks for programs that judge images, unless it was told otherwise.
const VERIFIERS: &str = "/opt/containerd/image-verifier/bin";
/// More than this of a file is not read, and no more files than this.
const MOST_BYTES: u64 = 1 << 20;
const MOST_FILES: usize = 64;

/// What it is told, as far as it could be found out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) snapshotter: Option<String>,
    pub(super) discards: bool,
    /// Directories of hosts.toml files, the first one first.
    pub(super) hosts: Vec<PathBuf>,
    /// Where programs would be that judge images.
    pub(super) verifiers: PathBuf,
}

/// Asks containerd, and looks into its file for what it does not say.
pub(super) async fn look(inner: &Inner) -> Result<Told, Error> {
    if let Some(told) = by_cri(inner).await? {
        return Ok(told);
    }
    let pid = serving(&inner.settings.socket).await;
    let read = tokio::task::spawn_blocking(move || {
        let file = pid.and_then(started_with).unwrap_or_else(|| FILE.into());
        of_table(&load(&file))
    });
    Ok(read.await.unwrap_or_else(|_| of_table(&Table::new())))
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
async fn by_cri(inner: &Inner) -> Result<Option<Told>, Error> {
    let answer = grpc::once_started(|| {
        let mut client = cri::runtime_service_client::RuntimeServiceClient::new(inner.channel.clone());
        let request = inner.ask(cri::StatusRequest { verbose: true });
        async move { client.status(request).await }
    });
    match answer.await {
        Ok(answer) => Ok(answer.into_inner().info.get("config").and_then(|config| of_one(config))),
        Err(status) if Kind::of(&status) == Kind::Unavailable => Err(inner.failed("say its settings", &status)),
        // One without CRI.
        Err(_) => Ok(None),
    }
}

fn of_one(config: &str) -> Option<Told> {
    let One { registry, containerd } = serde_json::from_str(config).ok()?;
    Some(Told {
        snapshotter: Some(containerd.snapshotter).filter(|name| !name.is_empty()),
        discards: containerd.discard_unpacked_layers,
        hosts: paths(&registry.config_path),
        verifiers: VERIFIERS.into(),
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

/// A file with all that it imports; what comes later counts.
fn load(file: &Path) -> Table {
    let mut all = Table::new();
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut files = VecDeque::from([file.to_owned()]);
    while let Some(file) = files.pop_front() {
        if seen.len() >= MOST_FILES || seen.contains(&file) {
            continue;
        }
        let mut text = String::new();
        let read = fs::File::open(&file).and_then(|open| open.take(MOST_BYTES).read_to_string(&mut text));
        match read.map_err(|error| error.to_string()).and_then(|_| text.parse::<Table>().map_err(|e| e.to_string())) {
            Ok(table) => {
                let imports = table.get("imports").and_then(Value::as_array).cloned().unwrap_or_default();
                imports.iter().filter_map(Value::as_str).for_each(|import| files.extend(imported(&file, import)));
                merge(&mut all, table);
            }
            Err(problem) => {
                let file = file.display();
                tracing::warn!(
                    "cannot read containerd's settings in {file}: {problem}; taking the usual ones; --registry-hosts \
                     names the directory of hosts.toml files, where it is another"
                );
            }
        }
        seen.push(file);
    }
    all
}

fn merge(all: &mut Table, more: Table) {
    for (key, value) in more {
        match (all.get_mut(&key), value) {
            (Some(Value::Table(all)), Value::Table(more)) => merge(all, more),
            (_, value) => {
                all.insert(key, value);
            }
        }
    }
}

/// The files of an import: one, or those of a directory that match.
fn imported(from: &Path, import: &str) -> Vec<PathBuf> {
    let path = from.parent().unwrap_or(Path::new("/")).join(import);
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let (Some((head, tail)), Some(dir)) = (name.split_once('*'), path.parent()) else { return vec![path] };
    let matches = |name: &str| name.len() >= head.len() + tail.len() && name.starts_with(head) && name.ends_with(tail);
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> =
        entries.filter(|entry| entry.file_name().to_str().is_some_and(matches)).map(|entry| entry.path()).collect();
    files.sort();
    files
}

fn of_table(table: &Table) -> Told {
    let plugin = |name: &str| table.get("plugins").and_then(|plugins| plugins.get(name));
    let (images, old) = (plugin("io.containerd.cri.v1.images"), plugin("io.containerd.grpc.v1.cri"));
    let registry = |key: &str| [images, old].into_iter().flatten().find_map(|cri| cri.get("registry")?.get(key));
    // Settings of the old form are overlooked by containerd 2 where no runtimes stand beside them.
    let inside = old.and_then(|cri| cri.get("containerd")).filter(|inside| inside.get("runtimes").is_some());
    let discards = [images, inside].into_iter().flatten().find_map(|all| all.get("discard_unpacked_layers")?.as_bool());
    let told = registry("config_path").and_then(Value::as_str).map(paths).filter(|paths| !paths.is_empty());
    let mirrors = registry("mirrors").and_then(Value::as_table).is_some_and(|mirrors| !mirrors.is_empty());
    let usual = || if mirrors { Vec::new() } else { HOSTS.map(PathBuf::from).into() };
    let verifiers = plugin("io.containerd.image-verifier.v1.bindir").and_then(|all| all.get("bin_dir")?.as_str());
    Told {
        // CRI tells where the images of its snapshotter are, which is surer than a file that may have changed since.
        snapshotter: None,
        discards: discards.unwrap_or(false),
        hosts: told.unwrap_or_else(usual),
        verifiers: verifiers.unwrap_or(VERIFIERS).into(),
    }
}

#[cfg(test)]
mod tests;
