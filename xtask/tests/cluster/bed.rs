//! A folder for a cluster, commands on it, and a picture of all that the cluster made on this machine. Of what carries no
//! mark of the cluster, only what nobody else can have made is in the picture: commands may run apart from the machine, in a
//! network of their own and with layers over folders that machines share, which catch every file.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The program.
pub(crate) const XTASK: &str = env!("CARGO_BIN_EXE_xtask");
/// The variable that every process of a cluster carries.
const MARK: &str = "STOKER_CLUSTER_MARK";
/// Folders that a cluster's machines share with this one, in whole or in part.
const SHARED: [&str; 4] = ["etc", "opt", "usr", "var"];
const PAUSE: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(60);
/// The first process apart: $1 is its folder, the rest are names of shared ones.
const APART: &str = r#"
set -e
own=$1
shift
for shared in "$@"; do
  mkdir -p "$own/$shared" "$own/$shared.work"
  mount -t overlay -o "lowerdir=/$shared,upperdir=$own/$shared,workdir=$own/$shared.work" overlay "/$shared"
done
# Machines have layers over /etc, too, and a kernel stacks few: what cannot be here would fail there.
mkdir "$own/more" "$own/more.work" "$own/more.on"
mount -t overlay -o "lowerdir=/etc,upperdir=$own/more,workdir=$own/more.work" overlay "$own/more.on"
umount "$own/more.on"
rm -rf "$own/more" "$own/more.work" "$own/more.on"
# In the layers only: what another's containerd or kubelet made long ago would hide that ours makes it again.
rm -rf /opt/containerd /usr/libexec/kubernetes /var/lib/containers
echo ready
exec sleep infinity
"#;

/// Two at once would be slow on a small machine.
pub(crate) fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder with a cluster in it; with all that is in it gone at the end, also of a test that failed.
pub(crate) struct Bed {
    folder: PathBuf,
    /// Of every cluster that was in it.
    marks: BTreeSet<String>,
    apart: Option<Child>,
}

/// What came of a command.
pub(crate) struct Ran(Output);

impl Bed {
    /// One whose commands run in this machine.
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("stoker-cluster-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("home")).unwrap();
        Self { folder, marks: BTreeSet::new(), apart: None }
    }

    /// One whose commands run apart from it; `None`, and a line that says so, where that cannot be.
    pub(crate) fn apart(name: &str) -> Option<Self> {
        let mut bed = Self::new(name);
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "sh", "-c", APART, "sh"]).arg(bed.folder.join("apart")).args(SHARED);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        bed.apart = Some(child);
        if line != "ready\n" {
            println!(
                "SKIPPED: a cluster apart needs root, namespaces, and overlays over overlays of this machine's folders"
            );
            return None;
        }
        Some(bed)
    }

    fn dir(&self) -> PathBuf {
        self.folder.join("cluster")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(XTASK);
        if let Some(apart) = &self.apart {
            command = Command::new("nsenter");
            command.arg(format!("--target={}", apart.id())).args(["--net", "--mount", "--", XTASK]);
            // Whatever is kept in a home is seen; but what was built is used.
            let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
            let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|cache| cache.is_absolute());
            command.env("HOME", self.folder.join("home"));
            command.env("XDG_CACHE_HOME", cache.unwrap_or_else(|| home.join(".cache")));
        }
        let (order, rest) = args.split_first().unwrap();
        command.args(["cluster", order, "--dir"]).arg(self.dir()).args(rest).stdin(Stdio::null());
        command
    }

    /// Runs `cargo xtask cluster` to its end, on this cluster.
    pub(crate) fn run(&mut self, args: &[&str]) -> Ran {
        let ran = Ran(self.command(args).output().unwrap());
        self.learn();
        ran
    }

    /// Kills an `up` as soon as it has noted this part, or anything. Says whether this machine can have a cluster.
    pub(crate) fn kill_up(&mut self, args: &[&str], part: Option<&str>) -> bool {
        let mut command = self.command(&[&["up"], args].concat());
        let mut up = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        loop {
            let records = self.learn();
            if records.iter().any(|record| part.is_none_or(|part| record["part"] == part)) {
                break;
            }
            if up.try_wait().unwrap().is_some() {
                let ran = Ran(up.wait_with_output().unwrap());
                assert!(ran.skipped(), "it ended before it noted {part:?}: {}", ran.said());
                return false;
            }
            thread::sleep(PAUSE);
        }
        up.kill().unwrap();
        let ran = Ran(up.wait_with_output().unwrap());
        assert_eq!(ran.0.status.code(), None, "it ended before it was killed: {}", ran.said());
        true
    }

    /// Reads the journal, and remembers the mark in it. A line that is not whole is none.
    fn learn(&mut self) -> Vec<Value> {
        let text = fs::read_to_string(self.dir().join("journal")).unwrap_or_default();
        let records: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        self.marks.extend(records.iter().filter_map(|record| record["mark"].as_str()).map(str::to_string));
        records
    }

    /// All that there is of the cluster, one thing a line.
    pub(crate) fn picture(&self) -> BTreeSet<String> {
        let dir = self.dir().display().to_string();
        let mut lines = BTreeSet::new();
        if self.dir().exists() {
            lines.insert(format!("folder {dir}"));
        }
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let read = |file: &str| fs::read(entry.path().join(file)).unwrap_or_default();
            if !entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
                continue;
            }
            let mounts = String::from_utf8_lossy(&read("mountinfo")).into_owned();
            lines.extend(mounts.lines().filter(|line| line.contains(&dir)).map(|line| format!("mount {line}")));
            let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
            let cgroups = String::from_utf8_lossy(&read("cgroup")).into_owned();
            let environment = read("environ");
            let mut variables = environment.split(|byte| *byte == 0).filter_map(|text| str::from_utf8(text).ok());
            let carries = variables.any(|variable| {
                variable.split_once('=').is_some_and(|(name, value)| name == MARK && self.marks.contains(value))
            });
            if carries || command.contains(&dir) || self.names().any(|name| cgroups.contains(&name)) {
                lines.insert(format!("process {} {command}", entry.file_name().display()));
                for kind in ["mnt", "net", "pid", "uts"] {
                    let link = fs::read_link(entry.path().join("ns").join(kind)).unwrap_or_default();
                    lines.insert(format!("namespace {}", link.display()));
                }
            }
        }
        let names: Vec<String> = self.names().collect();
        let cgroups = below(Path::new("/sys/fs/cgroup"));
        let ours = cgroups.iter().filter(|path| names.iter().any(|name| path.display().to_string().contains(name)));
        lines.extend(ours.map(|path| format!("cgroup {}", path.display())));
        if let Some(apart) = &self.apart {
            let folders = SHARED.map(|shared| self.folder.join("apart").join(shared));
            for path in folders.iter().chain([&self.folder.join("home")]).flat_map(|folder| below(folder)) {
                lines.insert(format!("file {}", path.display()));
            }
            let devices = fs::read_to_string(format!("/proc/{}/net/dev", apart.id())).unwrap();
            let names = devices.lines().filter_map(|line| line.split_once(':'));
            lines.extend(names.map(|(name, _)| format!("interface {}", name.trim())));
        }
        lines
    }

    /// Waits until the picture is this one again: the kernel takes its time with what nobody holds any more.
    pub(crate) fn becomes(&self, wanted: &BTreeSet<String>, when: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.picture() != *wanted && Instant::now() < deadline {
            thread::sleep(PAUSE);
        }
        assert_eq!(self.picture(), *wanted, "{when}");
    }

    /// How cgroups are called that hold its containers.
    fn names(&self) -> impl Iterator<Item = String> {
        self.marks.iter().map(|mark| format!("stoker-cluster-{}", &mark[..8]))
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if self.dir().exists() {
            let _ = self.command(&["down"]).output();
        }
        if let Some(apart) = &mut self.apart {
            let _ = apart.kill().and_then(|()| apart.wait().map(drop));
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Ran {
    /// Whether this machine cannot have a cluster, and says so.
    pub(crate) fn skipped(&self) -> bool {
        let line = self.said().lines().find(|line| line.starts_with("SKIPPED: ")).map(str::to_string);
        if let Some(line) = &line {
            println!("{line}");
        }
        line.is_some() && self.0.status.code() == Some(3)
    }

    /// What it said, where it must have done what was asked.
    pub(crate) fn succeeds(&self) -> String {
        assert!(self.0.status.success(), "{}", self.said());
        self.said()
    }

    /// What it said, where it must not.
    pub(crate) fn fails(&self) -> String {
        assert_eq!(self.0.status.code(), Some(1), "{}", self.said());
        self.said()
    }

    fn said(&self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        text(&self.0.stdout) + &text(&self.0.stderr)
    }
}

/// Everything in a folder, links not followed.
fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => [vec![entry.path()], below(&entry.path())].concat(),
            false => vec![entry.path()],
        })
        .collect()
}
