//! Brings a cluster up, step by step, each noted in the journal before it is done. What is half there from before is taken
//! down first.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::journal::{Journal, Record};
use super::lock::{self, Lock};
use super::place::{self, CONTROL, Fleet, Node, Nodes, Place};
use super::site::Site;
use super::{can_unshare, cgroup, control, down, fleet, images, keys, kubernetes, network, node};
use crate::{containerd, packages};

/// How many nodes there are when nobody says: one of each containerd.
pub(crate) const NODES: usize = 2;
/// For a process to end, or to listen.
pub(crate) const WAIT: Duration = Duration::from_secs(300);

/// Programs of Debian, each with its package.
const PACKAGES: &[(&str, &str)] = &[
    ("/bin/busybox", "busybox-static"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("containerd", "containerd"),
    ("docker-registry", "docker-registry"),
    ("etcd", "etcd-server"),
    ("hostname", "hostname"),
    ("ip", "iproute2"),
    ("kill", "procps"),
    ("mount", "mount"),
    ("nsenter", "util-linux"),
    ("openssl", "openssl"),
    ("runc", "runc"),
    ("skopeo", "skopeo"),
];

/// Of these, what a cluster of simulated nodes needs.
const WITH_FAKE_NODES: [&str; 7] = ["etcd", "hostname", "ip", "kill", "mount", "nsenter", "openssl"];

/// What becomes of a cluster that did not come up as a whole, and of a whole one after its loan.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Half {
    /// Somebody will look at it, and at its logs.
    Stays,
    /// It came for something that runs, and nobody would look at it.
    Goes,
}

impl Half {
    /// For what comes in place of what is left of another: one that was to stay is not replaced by one that goes.
    fn in_place_of(self, old: &Journal) -> Self {
        if old.goes() { self } else { Self::Stays }
    }
}

/// A cluster that is up, and nobody else changes that while this is held.
pub(crate) struct Up {
    /// Whether it came in a place where nothing was, or nothing that was to stay.
    pub(crate) new: bool,
    _lock: Lock,
}

/// Brings it up; gives what this machine lacks for it, if it does. Where something was before that was to stay, what comes
/// in its place is not the caller's to remove: all and half of it stays, whatever `half` says.
pub(crate) fn run(place: Place, nodes: Option<Nodes>, half: Half) -> anyhow::Result<Result<Up, String>> {
    let lock = lock::change(&place)?;
    if let Some(mut journal) = Journal::open(&place.journal())? {
        let has = journal.nodes().filter(|_| journal.parts().iter().all(|part| part.process.lives()));
        match (has, &nodes) {
            (Some(has), Some(wants)) if has != wants => {
                let (has, wants, down) = (has.describe(), wants.describe(), place.order("down"));
                bail!("a cluster with {has} is up; `{down}` first, for one with {wants}")
            }
            (Some(has), _) => {
                println!("the cluster is up already, with {}", has.describe());
                if half == Half::Stays && journal.goes() {
                    println!("it came for something that runs, and will not go with it");
                    journal.add(Record::Goes(false))?;
                }
                return Ok(Ok(Up { new: false, _lock: lock }));
            }
            _ if journal.on_loan()? => {
                let down = place.order("down");
                bail!("parts of the cluster do not live, and somebody works with it: wait for that, or `{down}`")
            }
            _ => println!("what is left of a cluster is taken down first"),
        }
        down::run(&place)?;
        // The lock went with the folder.
        drop(lock);
        let (half, goes) = (half.in_place_of(&journal), journal.goes());
        return Ok(run(place, nodes, half)?.map(|up| Up { new: up.new && goes, ..up }));
    }
    let strange = fs::read_dir(place.dir())?.flatten().find(|entry| entry.file_name() != "lock");
    if let Some(entry) = strange {
        bail!("{} is not ours to use: {} is in it", place.dir().display(), entry.path().display());
    }
    let begun = Instant::now();
    let nodes = nodes.unwrap_or(Nodes::Real(NODES));
    let fake = matches!(nodes, Nodes::Fake(_));
    if let Some(lack) = lack(fake)? {
        down::run(&place)?;
        return Ok(Err(lack));
    }
    let kubernetes = kubernetes::find_or_build()?;
    let mut built = begun.elapsed();
    let journal = begin(&place, half)?;
    let mut site = Site { place, journal };
    let brought = match &nodes {
        Nodes::Real(count) => containerd::find_or_build().and_then(|two| {
            built = begun.elapsed();
            bring_up(&mut site, *count, &Tools { kubernetes, containerd_2: two })
        }),
        Nodes::Fake(fleet) => {
            fleet::build(fleet).and_then(|program| bring_up_fake(&mut site, fleet, &kubernetes, &program))
        }
    };
    settle(brought, &site.place, half)?;
    let (programs, all) = (built.as_secs(), begun.elapsed().as_secs());
    println!("the cluster is up with {}, after {all} s (of which its programs took {programs} s)", nodes.describe());
    println!("try: {} -- kubectl get nodes", site.place.order("exec"));
    Ok(Ok(Up { new: true, _lock: lock }))
}

/// Begins the journal. That the cluster is to go is noted before there is any of it: whoever comes after a crash must know.
pub(crate) fn begin(place: &Place, half: Half) -> anyhow::Result<Journal> {
    let mut journal = Journal::begin(&place.journal())?;
    if half == Half::Goes {
        journal.add(Record::Goes(true))?;
    }
    Ok(journal)
}

/// Says that it did not come up, where it did not, and takes it down where it is to go. Whoever calls holds the lock.
fn settle(brought: anyhow::Result<()>, place: &Place, half: Half) -> anyhow::Result<()> {
    let Err(problem) = brought else { return Ok(()) };
    let logs = place.dir().join("logs");
    let (logs, down) = (logs.display(), place.order("down"));
    match half {
        Half::Stays => {
            Err(problem.context(format!("the cluster did not come up (logs: {logs}; `{down}` removes all)")))
        }
        Half::Goes => {
            let gone = format!("the cluster did not come up, and was taken down with its logs, which were in {logs}");
            match down::run(place) {
                Ok(()) => Err(problem.context(gone)),
                failed => down::after(Err(problem.context("the cluster did not come up")), failed, place),
            }
        }
    }
}

struct Tools {
    kubernetes: PathBuf,
    containerd_2: PathBuf,
}

/// What this machine lacks and we cannot bring, if there is something. A build that fails is no lack, but an error.
fn lack(fake: bool) -> anyhow::Result<Option<String>> {
    let needed = PACKAGES.iter().filter(|(program, _)| !fake || WITH_FAKE_NODES.contains(program));
    let missing = packages::install(&needed.copied().collect::<Vec<_>>());
    if !missing.is_empty() {
        return Ok(Some(format!("a cluster needs the Debian packages {}", missing.join(", "))));
    }
    if !can_unshare() {
        return Ok(Some("a cluster needs namespaces of its own, and this machine does not allow them".to_string()));
    }
    let containerd = if fake { None } else { containerd::lack()? };
    let lack = containerd.map_or_else(kubernetes::lack, |lack| Ok(Some(lack)))?;
    Ok(lack.map(|lack| format!("a cluster is built from source: {lack}")))
}

fn bring_up(site: &mut Site, nodes: usize, tools: &Tools) -> anyhow::Result<()> {
    let mark = site.journal.mark().context("the journal has no mark")?;
    let containers = format!("stoker-cluster-{}", mark.get(..8).unwrap_or(mark));
    site.journal.add(Record::Cgroup(containers.clone()))?;
    for (path, _) in down::CHANGED {
        if let Some(was) = down::setting(path) {
            site.journal.add(Record::Setting { path: path.to_string(), was })?;
        }
    }
    keys::make(site, nodes)?;

    println!("starting the control plane");
    site.start_machine(CONTROL)?;
    network::control(site)?;
    control::start(site, &tools.kubernetes, false)?;
    images::push(site)?;
    control::wait(site, &tools.kubernetes)?;

    println!("starting {nodes} nodes");
    for number in Node::all(nodes) {
        cgroup::make(&containers, &number.name())?;
        node::configure(&site.place, number, &containers)?;
        site.start_machine(&number.name())?;
        network::node(site, number)?;
        node::start(site, number, &tools.kubernetes, &tools.containerd_2)?;
    }
    control::wait_for_nodes(site, &tools.kubernetes, nodes)?;
    site.journal.add(Record::Up(Nodes::Real(nodes)))
}

fn bring_up_fake(site: &mut Site, wish: &Fleet, kubernetes: &Path, program: &Path) -> anyhow::Result<()> {
    keys::make(site, 0)?;
    println!("starting the control plane");
    site.start_machine(CONTROL)?;
    network::control(site)?;
    control::start(site, kubernetes, true)?;
    control::wait_for_api(site, kubernetes)?;
    println!("starting {}", place::say(wish.nodes, true));
    fleet::start(site, wish, kubernetes, program)?;
    site.journal.add(Record::Up(Nodes::Fake(wish.clone())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_that_is_up_is_not_taken_for_one_that_is_asked_for_otherwise() {
        let dir = std::env::temp_dir().join(format!("stoker-other-{}", std::process::id()));
        let place = || Place::new(dir.clone()).unwrap();
        let nodes = |pull_time: Option<&str>| {
            let pull_time = pull_time.map(str::to_string);
            Nodes::Fake(Fleet { nodes: 20, pull_time, fail_every: None, binary: None })
        };
        let lock = lock::change(&place()).unwrap();
        Journal::begin(&place().journal()).unwrap().add(Record::Up(nodes(None))).unwrap();
        drop(lock);
        for same in [None, Some(nodes(None))] {
            assert!(!run(place(), same, Half::Stays).unwrap().ok().unwrap().new);
        }
        let told = run(place(), Some(nodes(Some("2s"))), Half::Stays).err().unwrap().to_string();
        let down = format!("`cargo xtask cluster down --dir {}` first", dir.display());
        assert!(told.contains(&down) && told.ends_with("for one with 20 simulated nodes --pull-time 2s"), "{told}");
        down::run(&place()).unwrap();
    }

    #[test]
    fn what_comes_after_a_crash_goes_only_where_the_one_before_it_was_to_go() {
        let place = Place::new(std::env::temp_dir().join(format!("stoker-anew-{}", std::process::id()))).unwrap();
        for (old, new, goes) in [
            (Half::Goes, Half::Goes, true),
            (Half::Goes, Half::Stays, false),
            (Half::Stays, Half::Goes, false),
            (Half::Stays, Half::Stays, false),
        ] {
            let _lock = lock::change(&place).unwrap();
            drop(begin(&place, old).unwrap());
            let left = Journal::open(&place.journal()).unwrap().unwrap();
            assert!(new.in_place_of(&left) == if goes { Half::Goes } else { Half::Stays });
            down::run(&place).unwrap();
        }
        assert!(!place.dir().exists());
    }

    #[test]
    fn half_a_cluster_stays_for_who_looks_at_it_and_goes_where_nobody_would() {
        let dir = std::env::temp_dir().join(format!("stoker-up-{}", std::process::id()));
        let place = Place::new(dir.clone()).unwrap();
        let settled = |half| {
            let brought = Err(anyhow::anyhow!("etcd ended"));
            format!("{:#}", settle(brought, &place, half).unwrap_err())
        };
        let _lock = lock::change(&place).unwrap();
        Journal::begin(&place.journal()).unwrap();
        settle(Ok(()), &place, Half::Goes).unwrap();
        let told = settled(Half::Stays);
        assert!(told.contains("/logs;") && told.ends_with(": etcd ended"), "{told}");
        assert!(place.journal().exists());
        let told = settled(Half::Goes);
        assert!(told.contains("/logs: etcd ended"), "{told}");
        assert!(!dir.exists());
        // What cannot be taken down is named, and does not hide why it did not come up.
        fs::create_dir_all(&dir).unwrap();
        fs::write(place.journal(), "a letter\n").unwrap();
        let told = settled(Half::Goes);
        assert!(
            told.starts_with("the cluster did not come up: etcd ended\nand") && told.contains("tries again"),
            "{told}"
        );
        fs::remove_dir_all(dir).unwrap();
    }
}
