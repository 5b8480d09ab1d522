//! A temporary directory and all that lives off it: processes that name it in their arguments, containers that those
//! started, mounts below it.
//!
//! A name comes in, a directory goes out; when it is dropped everything is ended, unmounted and removed, also after a panic. What
//! a killed test process left behind is cleared by the next one: its lock is gone then. It never touches a process or a
//! mount that has nothing to do with such a directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;
use std::time::Duration;

const PREFIX: &str = "stoker-bed-";
const LOCK: &str = "lock";
/// Killed processes are gone within milliseconds; past this many looks one hangs in the kernel.
const LOOKS: u32 = 500;
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// A directory of a test. It is cleared when dropped.
#[derive(Debug)]
pub(crate) struct Plot {
    path: PathBuf,
    /// Held as long as this process lives.
    _lock: File,
}

impl Plot {
    pub(crate) fn new() -> io::Result<Self> {
        static SWEPT: Once = Once::new();
        SWEPT.call_once(sweep);
        let path = tempfile::Builder::new().prefix(PREFIX).tempdir()?.keep();
        // Locked before it has its name: nobody may take it for one that was left behind.
        let early = path.join("lock.new");
        let lock = File::create(&early)?;
        lock.try_lock()?;
        fs::rename(early, path.join(LOCK))?;
        Ok(Self { path, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A new directory below.
    pub(crate) fn dir(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Writes a file below.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        fs::write(&path, content)?;
        Ok(path)
    }
}

impl Drop for Plot {
    fn drop(&mut self) {
        clear(&self.path);
    }
}

/// Clears what dead test processes of this user left.
fn sweep() {
    let own = fs::metadata("/proc/self").map(|own| own.uid()).ok();
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let ours = entry.file_name().as_bytes().starts_with(PREFIX.as_bytes())
            && entry.metadata().is_ok_and(|data| data.is_dir() && Some(data.uid()) == own);
        if ours && File::open(entry.path().join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok()) {
            clear(&entry.path());
        }
    }
}

/// Ends, unmounts and removes.
fn clear(path: &Path) {
    let mut containers = BTreeSet::new();
    for _ in 0..LOOKS {
        let found = processes(path, &mut containers);
        if found.is_empty() {
            break;
        }
        run(Command::new("kill").arg("-9").args(found.iter().map(u32::to_string)));
        std::thread::sleep(BETWEEN_LOOKS);
    }
    for (namespace, id) in containers {
        // A killed shim leaves the container's cgroup and its state in /run.
        let root = format!("/run/containerd/runc/{namespace}");
        run(Command::new("runc").args(["--root", &root, "delete", "--force", &id]));
    }
    for mount in mounts(path).into_iter().rev() {
        run(Command::new("umount").arg("-l").arg(mount));
    }
    let _ = fs::remove_dir_all(path);
}

/// It has done its work or there was none: either way one goes on.
fn run(command: &mut Command) {
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// Processes that name this directory in their arguments, with all their descendants; containers of shims are noted.
fn processes(path: &Path, containers: &mut BTreeSet<(String, String)>) -> BTreeSet<u32> {
    let mut parents = BTreeMap::new();
    let mut found = BTreeSet::new();
    let below = [path.as_os_str().as_bytes(), b"/"].concat();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if arguments.windows(below.len()).any(|window| window == below) {
            found.insert(id);
            containers.extend(container(&arguments));
        }
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // `1 (name) S 0 …`; a dead one that nobody has fetched yet needs no killing.
        let mut rest = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ')).into_iter().flatten();
        if let (Some(state), Some(Ok(parent))) = (rest.next(), rest.next().map(str::parse::<u32>))
            && state != "Z"
        {
            parents.insert(id, parent);
        }
    }
    loop {
        let more: Vec<u32> = parents
            .iter()
            .filter(|(id, parent)| found.contains(parent) && !found.contains(id))
            .map(|(id, _)| *id)
            .collect();
        if more.is_empty() {
            break;
        }
        found.extend(more);
    }
    found.remove(&std::process::id());
    found
}

/// The namespace and id in the arguments of a shim: `… -namespace N -id I -address SOCKET`.
fn container(arguments: &[u8]) -> Option<(String, String)> {
    let words: Vec<&str> = arguments.split(|byte| *byte == 0).filter_map(|word| str::from_utf8(word).ok()).collect();
    let value = |name: &str| words.iter().position(|word| *word == name).and_then(|at| words.get(at + 1));
    Some(((*value("-namespace")?).to_owned(), (*value("-id")?).to_owned()))
}

/// Mount points below, in the order in which they were mounted.
fn mounts(path: &Path) -> Vec<PathBuf> {
    let all = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = all.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    points.filter(|point| point.starts_with(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_plot_takes_its_processes_and_their_children_along() {
        let plot = Plot::new().unwrap();
        let path = plot.path().to_owned();
        let script = plot.write("script", "sleep 1000 & echo; wait").unwrap();
        let mut parent = Command::new("sh").arg(script).stdout(Stdio::piped()).spawn().unwrap();
        // The first line says that the child is there.
        io::Read::read_exact(&mut parent.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        assert_eq!(processes(&path, &mut BTreeSet::new()).len(), 2);
        drop(plot);
        assert!(!parent.wait().unwrap().success());
        assert!(!path.exists());
        assert!(processes(&path, &mut BTreeSet::new()).is_empty());
    }

    #[test]
    fn only_what_nobody_holds_is_swept() {
        let held = Plot::new().unwrap();
        let left = tempfile::Builder::new().prefix(PREFIX).tempdir().unwrap().keep();
        sweep();
        assert!(left.exists(), "it may just be in the making");
        File::create(left.join(LOCK)).unwrap();
        sweep();
        assert!(held.path().exists() && !left.exists());
    }

    #[test]
    fn a_shim_says_which_container_it_has() {
        let arguments = b"/usr/bin/containerd-shim-runc-v2\0-namespace\0k8s.io\0-id\0web\0-address\0/x\0";
        assert_eq!(container(arguments), Some(("k8s.io".into(), "web".into())));
        assert_eq!(container(b"containerd\0--config\0/x\0"), None);
    }
}
