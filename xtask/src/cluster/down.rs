//! Takes a cluster down: everything in the journal, and nothing else, however far `up` came. A journal comes in; afterwards
//! the folder is gone, too.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::cgroup;
use super::journal::{Journal, Record};
use super::place::Place;
use super::process::{self, Process};

const SETTINGS: &str = "/proc/sys";
/// Killed processes are gone in milliseconds, on a loaded machine in seconds.
const WAIT: Duration = Duration::from_secs(300);
/// For parents that are slow to look after their dead children.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);
/// Who is about to become another program carries no mark for a moment: nobody is there when so many looks see nobody.
const LOOKS: u32 = 3;

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
    let cgroups: Vec<&str> = journal
        .records
        .iter()
        .filter_map(|record| match record {
            Record::Cgroup(name) => Some(name.as_str()),
            _ => None,
        })
        .collect();
    kill(journal.mark(), &cgroups)?;
    for name in cgroups {
        cgroup::remove(name, Instant::now() + WAIT)?;
    }
    for record in &journal.records {
        if let Record::Setting { path, was } = record {
            restore(path, was)?;
        }
    }
    remove(place)
}

/// What came of the work, and of taking down after it: neither error hides the other.
pub(crate) fn after<T>(ran: anyhow::Result<T>, down: anyhow::Result<()>, place: &Place) -> anyhow::Result<T> {
    let again = || format!("`{}` tries again", place.order("down"));
    match (ran, down) {
        (ran, Ok(())) => ran,
        (Ok(_), Err(down)) => Err(down.context(format!("the cluster could not be taken down ({})", again()))),
        (Err(ran), Err(down)) => bail!("{ran:#}\nand the cluster could not be taken down ({}): {down:#}", again()),
    }
}

/// Ends everyone: who carries the mark, and who is in a cgroup of containers.
fn kill(mark: Option<&str>, cgroups: &[&str]) -> anyhow::Result<()> {
    let deadline = Instant::now() + WAIT;
    let mut killed: Vec<Process> = Vec::new();
    let mut nobody = 0;
    while nobody < LOOKS {
        let marked = mark.map(process::marked).unwrap_or_default();
        let alive: Vec<Process> =
            marked.into_iter().chain(cgroups.iter().flat_map(|name| cgroup::inhabitants(name))).collect();
        nobody = if alive.is_empty() { nobody + 1 } else { 0 };
        process::signal("KILL", &alive)?;
        if nobody == 0 && Instant::now() > deadline {
            let numbers: Vec<String> = alive.iter().map(|process| process.pid.to_string()).collect();
            bail!("these processes could not be killed within {} s: {}", WAIT.as_secs(), numbers.join(", "));
        }
        killed.extend(alive);
        thread::sleep(PAUSE);
    }
    // The dead are listed until their parent, often this machine's first process, has looked at them: only politeness.
    let patience = Instant::now() + PATIENCE;
    while killed.iter().any(|process| process.is_listed()) && Instant::now() < patience {
        thread::sleep(PAUSE);
    }
    Ok(())
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

/// Removes the folder, the journal last, so that a `down` that is killed can be repeated.
fn remove(place: &Place) -> anyhow::Result<()> {
    unmount(place.dir())?;
    let journal = place.journal();
    for entry in fs::read_dir(place.dir()).with_context(|| format!("cannot read {}", place.dir().display()))? {
        let path = entry?.path();
        let removed = match path.is_dir() && !path.is_symlink() {
            true => remove_folder(&path),
            false if path == journal || path.ends_with("lock") => Ok(()),
            false => fs::remove_file(&path),
        };
        removed.with_context(|| format!("cannot remove {}", path.display()))?;
    }
    for last in [journal, place.dir().join("lock")] {
        let _ = fs::remove_file(last);
    }
    leave(place.dir()).with_context(|| format!("cannot remove {}", place.dir().display()))
}

/// Removes the folder without its lock. From then on it belongs to whoever waited: who made the lock anew has it, and may
/// have taken it down already.
fn leave(dir: &Path) -> std::io::Result<()> {
    match fs::remove_dir(dir) {
        Err(problem) if problem.kind() == ErrorKind::NotFound => Ok(()),
        Err(problem) if problem.kind() == ErrorKind::DirectoryNotEmpty && dir.join("lock").exists() => Ok(()),
        removed => removed,
    }
}

/// Who was killed in the middle of a write may still be in it, and a mount of a machine that went may still hold a folder.
fn remove_folder(path: &Path) -> std::io::Result<()> {
    let deadline = Instant::now() + WAIT;
    loop {
        match fs::remove_dir_all(path) {
            Err(problem) if problem.kind() == ErrorKind::NotFound => return Ok(()),
            Err(_) if Instant::now() < deadline => thread::sleep(PAUSE),
            removed => return removed,
        }
    }
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
    fn an_error_of_the_work_and_one_of_taking_down_are_both_told() {
        let place = Place::new("/x/cluster".into()).unwrap();
        let fails = |text: &'static str| Err::<(), _>(anyhow::anyhow!(text));
        let told = |ran, down| format!("{:#}", after(ran, down, &place).unwrap_err());
        after(Ok(()), Ok(()), &place).unwrap();
        assert_eq!(told(fails("tests failed"), Ok(())), "tests failed");
        let again =
            "the cluster could not be taken down (`cargo xtask cluster down --dir /x/cluster` tries again): busy";
        assert_eq!(told(Ok(()), fails("busy")), again);
        assert_eq!(told(fails("tests failed"), fails("busy")), format!("tests failed\nand {again}"));
    }

    #[test]
    fn who_waits_for_the_lock_may_have_the_folder_before_it_is_gone() {
        let dir = std::env::temp_dir().join(format!("stoker-leave-{}", std::process::id()));
        let place = || Place::new(dir.clone()).unwrap();
        let lock = super::super::lock::change(&place()).unwrap();
        leave(&dir).unwrap();
        assert!(dir.join("lock").exists());
        run(&place()).unwrap();
        drop(lock);
        leave(&dir).unwrap();
        super::super::site::write(&dir.join("letter"), "dear").unwrap();
        assert_eq!(leave(&dir).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
        fs::remove_dir_all(&dir).unwrap();
        // Each finds nothing or what is its own, however their turns fall.
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        let _lock = super::super::lock::change(&place()).unwrap();
                        Journal::begin(&place().journal()).unwrap();
                        run(&place()).unwrap();
                    }
                });
            }
        });
        assert!(!dir.exists());
    }

    #[test]
    fn a_cluster_that_died_at_any_point_goes_with_its_folder() {
        let place = Place::new(std::env::temp_dir().join(format!("stoker-down-{}", std::process::id()))).unwrap();
        // Before the journal.
        let lock = super::super::lock::change(&place).unwrap();
        run(&place).unwrap();
        assert!(!place.dir().exists());
        drop(lock);
        // In a folder of somebody else's.
        super::super::site::write(&place.dir().join("letter"), "dear").unwrap();
        let lock = super::super::lock::change(&place).unwrap();
        run(&place).unwrap();
        assert!(place.dir().join("letter").exists() && !place.dir().join("lock").exists());
        fs::remove_file(place.dir().join("letter")).unwrap();
        drop(lock);
        // With a process that was started and not yet noted.
        let _lock = super::super::lock::change(&place).unwrap();
        let journal = Journal::begin(&place.journal()).unwrap();
        fs::create_dir_all(place.machine("n1").join("etc")).unwrap();
        // An orphan, as the processes of a cluster are: its first parent is gone.
        let mark = journal.mark().unwrap();
        let parent = Command::new("sh").args(["-c", "sleep 600 &"]).env(process::VARIABLE, mark).status();
        assert!(parent.unwrap().success());
        assert_eq!(process::awaited(mark).len(), 1);
        run(&place).unwrap();
        assert_eq!(process::marked(mark), []);
        assert!(!place.dir().exists());
    }
}
