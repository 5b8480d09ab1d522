//! The cgroup of a cluster's containers: one name, in every hierarchy this machine has (version 2 is one, version 1 has one
//! a controller). Made before the kubelets start, which want it to be there; emptied and removed when all is taken down.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::process::{self, Process};

const MOUNTED: &str = "/sys/fs/cgroup";
/// The numbers of the processes in a cgroup; what has no such file is none.
const PROCESSES: &str = "cgroup.procs";
/// What kubelets and containers use of version 2, if it is there.
const CONTROLLERS: [&str; 6] = ["cpu", "cpuset", "hugetlb", "io", "memory", "pids"];
const PAUSE: Duration = Duration::from_millis(50);

/// The root of every hierarchy.
fn roots() -> anyhow::Result<Vec<PathBuf>> {
    let mounted = PathBuf::from(MOUNTED);
    if mounted.join(PROCESSES).is_file() {
        return Ok(vec![mounted]);
    }
    // Links are second names of one hierarchy.
    let roots: Vec<PathBuf> = below(&mounted).into_iter().filter(|root| root.join(PROCESSES).is_file()).collect();
    match roots.is_empty() {
        true => bail!("no cgroups are mounted on {MOUNTED}"),
        false => Ok(roots),
    }
}

/// Makes `name/inner` in every hierarchy.
pub(crate) fn make(name: &str, inner: &str) -> anyhow::Result<()> {
    for root in roots()? {
        let (outer, cgroup) = (root.join(name), root.join(name).join(inner));
        fs::create_dir_all(&cgroup).with_context(|| format!("cannot make {}", cgroup.display()))?;
        // In version 2 a controller works below only where it was switched on; version 1 has no such file.
        for parent in
            [&outer, &cgroup].map(|parent| parent.join("cgroup.subtree_control")).iter().filter(|f| f.exists())
        {
            for controller in CONTROLLERS {
                // One that this machine lacks is refused; kubelet names those it cannot do without.
                let _ = fs::write(parent, format!("+{controller}"));
            }
        }
    }
    Ok(())
}

/// The processes in `name` and below it.
pub(crate) fn inhabitants(name: &str) -> Vec<Process> {
    let cgroups = roots().unwrap_or_default().into_iter().map(|root| root.join(name));
    cgroups.flat_map(|cgroup| all_in(&cgroup)).collect()
}

/// Removes `name` and all below it, which must be empty.
pub(crate) fn remove(name: &str, deadline: Instant) -> anyhow::Result<()> {
    roots()?.iter().try_for_each(|root| remove_tree(&root.join(name), deadline))
}

fn below(cgroup: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cgroup).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

fn all_in(cgroup: &Path) -> Vec<Process> {
    let own = process::listed(&fs::read_to_string(cgroup.join(PROCESSES)).unwrap_or_default());
    own.into_iter().chain(below(cgroup).iter().flat_map(|inner| all_in(inner))).collect()
}

fn remove_tree(cgroup: &Path, deadline: Instant) -> anyhow::Result<()> {
    for inner in below(cgroup) {
        remove_tree(&inner, deadline)?;
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
