//! A cluster's folder with its journal and its machines. A machine is a process that is the first of namespaces of its own
//! (network, processes, mounts, host name), as a container is. Names and commands come in, running processes go out.
//!
//! Why so: the kernel takes a namespace's processes with their first one, and mounts and interfaces with the last process,
//! whatever crashed. So there is nothing in the namespaces of this machine that could be left behind, and nothing of it is
//! changed but cgroups and a few settings, which the journal lists.

use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::journal::{Journal, Part, Record};
use super::place::{OWN_FOLDERS, Place};
use super::process::{Process, VARIABLE};
use super::wait::{self, Look};

/// A PATH that has what the parts run, wherever xtask was called from.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const WAIT: Duration = Duration::from_secs(300);

/// The first process of a machine: mounts what the machine has as its own, says so, and then adopts orphans for ever.
/// $1: the machine's folder; $2: its name; the rest: pairs of a folder below it and what that covers.
const FIRST: &str = r#"
set -e
own=$1 name=$2
shift 2
mount --make-rshared /
mount -t overlay -o "lowerdir=/etc,upperdir=$own/etc,workdir=$own/etc.work" overlay /etc
while [ $# -gt 0 ]; do
  mount --bind "$own/$1" "$2"
  shift 2
done
hostname "$name"
: > "$own/ready"
while :; do sleep infinity & wait $!; done
"#;

/// The folder, the journal, and the right to change both.
pub(crate) struct Site {
    pub(crate) place: Place,
    pub(crate) journal: Journal,
}

impl Site {
    /// Starts a machine. It has its own /etc, /run, /var/lib and /var/log.
    pub(crate) fn start_machine(&mut self, name: &str) -> anyhow::Result<()> {
        let folder = self.place.machine(name);
        let mut words: Vec<String> = vec![folder.display().to_string(), name.to_string()];
        for below in ["etc", "etc.work"].into_iter().chain(OWN_FOLDERS.map(|(below, _)| below)) {
            fs::create_dir_all(folder.join(below)).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        words.extend(OWN_FOLDERS.iter().flat_map(|(below, covers)| [below.to_string(), covers.to_string()]));
        let mut command = Command::new("unshare");
        // `slave`: mounts of this machine come and go in ours too, so that nobody waits for us to let go of one.
        command.args(["--fork", "--kill-child", "--pid", "--mount-proc", "--mount", "--propagation", "slave"]);
        command.args(["--net", "--uts", "sh", "-c", FIRST, "sh"]).args(words);
        let process = self.spawn(name, command, PATH)?;
        self.journal.add(Record::Part(Part {
            name: name.to_string(),
            process,
            command: Vec::new(),
            path: PATH.to_string(),
        }))?;
        let (ready, log) = (folder.join("ready"), self.place.log(name));
        wait::until(&format!("machine {name} did not start"), WAIT, &log, || {
            Ok(match (ready.exists(), process.lives()) {
                (true, true) => Look::Ready,
                (_, false) => Look::Failed("its first process ended".to_string()),
                (false, true) => Look::NotYet("its mounts are not made".to_string()),
            })
        })
    }

    /// Starts a program in a machine, under the name `machine/program`.
    pub(crate) fn start(&mut self, machine: &str, program: &str, path: &str, command: &[String]) -> anyhow::Result<()> {
        let name = format!("{machine}/{program}");
        let mut inside = self.inside(machine)?;
        inside.args(command);
        let process = self.spawn(&name, inside, path)?;
        let (command, path) = (command.to_vec(), path.to_string());
        self.journal.add(Record::Part(Part { name, process, command, path }))
    }

    /// Starts a part again, as it was started before.
    pub(crate) fn restart(&mut self, name: &str) -> anyhow::Result<()> {
        let Part { command, path, process, .. } = self.journal.part(name)?.clone();
        if process.lives() {
            println!("{name} runs already");
            return Ok(());
        }
        match name.split_once('/') {
            Some((machine, program)) => self.start(machine, program, &path, &command),
            None => bail!("{name} is a machine, and lost everything when it stopped; make the cluster anew"),
        }
    }

    fn spawn(&self, name: &str, mut command: Command, path: &str) -> anyhow::Result<Process> {
        let log = self.place.log(name);
        fs::create_dir_all(self.place.dir().join("logs"))?;
        let log = OpenOptions::new().create(true).append(true).open(&log);
        let log = log.with_context(|| format!("cannot write the log of {name}"))?;
        self.mark(&mut command)?.env("PATH", path);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // Not of the caller's group: its Ctrl-C is not for them.
        let child = command.process_group(0).spawn().with_context(|| format!("cannot start {name}"))?;
        Process::of(child.id()).with_context(|| format!("{name} ended at once{}", wait::end_of(&self.place.log(name))))
    }

    /// Makes a command one of the cluster's: found by the mark, should it be left behind. It has nothing of the caller's
    /// environment, whose proxies and credentials are not the cluster's, and a home of its own for what programs keep there.
    pub(crate) fn mark<'a>(&self, command: &'a mut Command) -> anyhow::Result<&'a mut Command> {
        let mark = self.journal.mark().context("the journal has no mark")?;
        Ok(command.env_clear().env(VARIABLE, mark).env("PATH", PATH).env("HOME", self.place.home()))
    }

    /// A short command of the cluster's own: runs what is appended in this machine, but in the network of a machine of it.
    pub(crate) fn errand(&self, machine: &str) -> anyhow::Result<Command> {
        let mut command = self.in_network(machine)?;
        self.mark(&mut command)?;
        Ok(command)
    }

    /// Such a command that runs inside of the machine.
    pub(crate) fn errand_inside(&self, machine: &str) -> anyhow::Result<Command> {
        let mut command = self.inside(machine)?;
        self.mark(&mut command)?;
        Ok(command)
    }

    /// The first process of a machine.
    pub(crate) fn first(&self, machine: &str) -> anyhow::Result<Process> {
        let outer = self.journal.part(machine)?.process;
        outer.lives().then(|| outer.child()).flatten().with_context(|| format!("the machine {machine} does not run"))
    }

    /// A command that runs what is appended inside of a machine.
    pub(crate) fn inside(&self, machine: &str) -> anyhow::Result<Command> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.first(machine)?.pid));
        command.args(["--net", "--mount", "--pid", "--uts", "--"]);
        Ok(command)
    }

    /// A command of the caller's that runs what is appended in this machine, but in the network of a machine of the cluster.
    pub(crate) fn in_network(&self, machine: &str) -> anyhow::Result<Command> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.first(machine)?.pid)).args(["--net", "--"]);
        Ok(command)
    }
}

/// Writes a file and the folders above it.
pub(crate) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{can_unshare, down, lock};
    use crate::shell;

    /// A test that fails leaves no machine behind either.
    struct Gone(Place);

    impl Drop for Gone {
        fn drop(&mut self) {
            let _ = down::run(&self.0);
        }
    }

    #[test]
    fn a_machine_has_folders_of_its_own_and_goes_without_a_trace() {
        if !shell::is_root() || !can_unshare() {
            println!("SKIPPED: machines of a cluster need root and namespaces");
            return;
        }
        let dir = std::env::temp_dir().join(format!("stoker-site-{}", std::process::id()));
        let place = Place::new(dir.clone()).unwrap();
        let _lock = lock::change(&place).unwrap();
        let _gone = Gone(Place::new(dir.clone()).unwrap());
        let journal = Journal::begin(&place.journal()).unwrap();
        let mut site = Site { place, journal };
        site.start_machine("m").unwrap();
        let first = site.first("m").unwrap();
        let script = "hostname; echo x > /etc/only-inside; echo x > /run/only-inside; grep -c stoker-site /proc/mounts";
        let said = shell::output(site.inside("m").unwrap().args(["sh", "-c", script])).unwrap();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[0], "m");
        assert_ne!(lines[1], "0", "its /etc is an overlay");
        assert!(dir.join("machines/m/run/only-inside").exists());
        assert!(!Path::new("/etc/only-inside").exists() && !Path::new("/run/only-inside").exists());
        assert!(!fs::read_to_string("/proc/self/mounts").unwrap().contains("stoker-site"));

        // A program that ended is started again as it was, and one that leaves its parent goes with the machine.
        let count = ["sh".to_string(), "-c".to_string(), "echo again; setsid sleep 600 & exit 0".to_string()];
        site.start("m", "count", PATH, &count).unwrap();
        let (log, part) = (site.place.log("m/count"), site.journal.part("m/count").unwrap().process);
        let ended = || Ok(if part.lives() { Look::NotYet("it runs".to_string()) } else { Look::Ready });
        wait::until("count did not end", WAIT, &log, ended).unwrap();
        site.restart("m/count").unwrap();
        let twice = || match fs::read_to_string(&log)?.lines().count() {
            2 => Ok(Look::Ready),
            lines => Ok(Look::NotYet(format!("{lines} lines"))),
        };
        wait::until("count did not start again", WAIT, &log, twice).unwrap();
        down::run(&site.place).unwrap();
        assert!(!first.lives() && !dir.exists());
    }
}
