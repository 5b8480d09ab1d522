//! Takes a cluster down: everything in the journal, and nothing else, however far `up` came. A journal comes in; afterwards
//! the folder is gone, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::journal::{Journal, Record};
use super::place::Place;
use super::process::{self, Process};

const CGROUPS: &str = "/sys/fs/cgroup";
const SETTINGS: &str = "/proc/sys";
/// Killed processes are gone in milliseconds, on a loaded machine in seconds.
const WAIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

/// Kernel settings that kubelets change for the whole machine, with the values they write.
pub(crate) const CHANGED: [(&str, &str); 6] = [
    ("kernel/keys/root_maxbytes", "25000000"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
];

/// The value of a kernel setting.
pub(crate) fn setting(path: &str) -> Option<String> {
    Some(fs::read_to_string(Path::new(SETTINGS).join(path)).ok()?.trim().to_string())
}

/// Takes it down. Whoever calls holds the lock.
pub(crate) fn run(place: &Place) -> anyhow::Result<()> {
    let Some(journal) = Journal::open(&place.journal())? else {
        // Before the journal nothing is made but the folder with its lock; what else is in there is not ours.
        let _ = fs::remove_file(place.dir().join("lock"));
        let _ = fs::remove_dir(place.dir());
        return Ok(());
    };
    let cgroups = || {
        journal.records.iter().filter_map(|record| match record {
            Record::Cgroup(name) => Some(hierarchies(name)),
            _ => None,
        })
    };
    let everyone = || -> Vec<Process> {
        let marked = journal.mark().map(process::marked).unwrap_or_default();
        marked.into_iter().chain(cgroups().flatten().flat_map(|cgroup| inhabitants(&cgroup))).collect()
    };
    let deadline = Instant::now() + WAIT;
    loop {
        let alive = everyone();
        if alive.is_empty() {
            break;
        }
        process::signal("KILL", &alive)?;
        if Instant::now() > deadline {
            let numbers: Vec<String> = alive.iter().map(|process| process.pid.to_string()).collect();
            bail!("these processes could not be killed within {} s: {}", WAIT.as_secs(), numbers.join(", "));
        }
        thread::sleep(PAUSE);
    }
    for cgroup in cgroups().flatten() {
        remove_cgroup(&cgroup, deadline)?;
    }
    for record in &journal.records {
        if let Record::Setting { path, was } = record {
            restore(path, was)?;
        }
    }
    remove(place)
}

/// Puts a setting back if it is what kubelets make of it; what somebody else wrote since stays.
fn restore(path: &str, was: &str) -> anyhow::Result<()> {
    let theirs = CHANGED.iter().find(|(changed, _)| *changed == path).map(|(_, value)| value.to_string());
    let now = setting(path);
    if now.as_deref() == Some(was) || now != theirs {
        return Ok(());
    }
    fs::write(Path::new(SETTINGS).join(path), was).with_context(|| format!("cannot set {path} to {was} again"))
}

/// A cgroup in every hierarchy that has it: version 2 is one, version 1 has one a controller.
fn hierarchies(name: &str) -> Vec<PathBuf> {
    let roots = fs::read_dir(CGROUPS).into_iter().flatten().flatten().map(|entry| entry.path());
    let all = roots.chain([PathBuf::from(CGROUPS)]).map(|root| root.join(name));
    all.filter(|cgroup| cgroup.is_dir() && !cgroup.is_symlink()).collect()
}

fn below(cgroup: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cgroup).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

fn inhabitants(cgroup: &Path) -> Vec<Process> {
    let own = process::listed(&fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default());
    own.into_iter().chain(below(cgroup).iter().flat_map(|cgroup| inhabitants(cgroup))).collect()
}

fn remove_cgroup(cgroup: &Path, deadline: Instant) -> anyhow::Result<()> {
    for inner in below(cgroup) {
        remove_cgroup(&inner, deadline)?;
    }
    // It is busy for a moment after its last process ended.
    loop {
        match fs::remove_dir(cgroup) {
            Ok(()) => return Ok(()),
            Err(problem) if problem.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(_) if Instant::now() < deadline => thread::sleep(PAUSE),
            Err(problem) => return Err(problem).with_context(|| format!("cannot remove {}", cgroup.display())),
        }
    }
}

/// Removes the folder, the journal last, so that a `down` that is killed can be repeated.
fn remove(place: &Place) -> anyhow::Result<()> {
    unmount(place.dir())?;
    let journal = place.journal();
    for entry in fs::read_dir(place.dir()).with_context(|| format!("cannot read {}", place.dir().display()))? {
        let path = entry?.path();
        let removed = match path.is_dir() && !path.is_symlink() {
            true => fs::remove_dir_all(&path),
            false if path == journal || path.ends_with("lock") => Ok(()),
            false => fs::remove_file(&path),
        };
        removed.with_context(|| format!("cannot remove {}", path.display()))?;
    }
    for last in [journal, place.dir().join("lock")] {
        let _ = fs::remove_file(last);
    }
    fs::remove_dir(place.dir()).with_context(|| format!("cannot remove {}", place.dir().display()))
}

/// Machines mount in their own namespaces only; but what is deleted must have no one's mount in it.
fn unmount(dir: &Path) -> anyhow::Result<()> {
    let mut mounts = mounts_below(dir, &fs::read_to_string("/proc/self/mountinfo")?);
    mounts.reverse();
    for mount in mounts {
        let status = Command::new("umount").arg(&mount).status().context("cannot run umount")?;
        if !status.success() {
            bail!("cannot unmount {mount}; unmount it, then run this again");
        }
    }
    Ok(())
}

fn mounts_below(dir: &Path, mountinfo: &str) -> Vec<String> {
    let targets = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    targets.filter(|target| Path::new(target).starts_with(dir)).map(str::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_below_the_folder_are_its_mounts() {
        let info =
            "1 0 8:1 / / rw - ext4 x rw\n2 1 0:5 / /tmp/c/a rw - tmpfs x rw\n3 1 0:6 / /tmp/cc rw - tmpfs x rw\n";
        assert_eq!(mounts_below(Path::new("/tmp/c"), info), ["/tmp/c/a"]);
    }

    #[test]
    fn a_cluster_that_died_at_any_point_goes_with_its_folder() {
        let place = Place::new(std::env::temp_dir().join(format!("stoker-down-{}", std::process::id()))).unwrap();
        // Before the journal.
        let lock = super::super::site::lock(&place).unwrap();
        run(&place).unwrap();
        assert!(!place.dir().exists());
        drop(lock);
        // In a folder of somebody else's.
        super::super::site::write(&place.dir().join("letter"), "dear").unwrap();
        let lock = super::super::site::lock(&place).unwrap();
        run(&place).unwrap();
        assert!(place.dir().join("letter").exists() && !place.dir().join("lock").exists());
        fs::remove_file(place.dir().join("letter")).unwrap();
        drop(lock);
        // With a process that was started and not yet noted.
        let _lock = super::super::site::lock(&place).unwrap();
        let journal = Journal::begin(&place.journal()).unwrap();
        fs::create_dir_all(place.machine("n1").join("etc")).unwrap();
        let mut command = Command::new("sleep");
        let mut child = command.arg("600").env(process::VARIABLE, journal.mark().unwrap()).spawn().unwrap();
        while process::marked(journal.mark().unwrap()).is_empty() {
            assert!(child.try_wait().unwrap().is_none());
            thread::yield_now();
        }
        run(&place).unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(!place.dir().exists());
    }
}
