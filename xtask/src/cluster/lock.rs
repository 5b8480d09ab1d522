//! Who may change a cluster, and whose tests run on it: one at a time each. A cluster's place comes in; what goes out is held
//! until it is dropped, by the kernel also for one that is killed. Who waits says for whom, and does not wait for ever.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::place::Place;

/// Removing a folder takes less.
const MOMENT: Duration = Duration::from_secs(5);
/// For somebody else's `up`, which may have to build Kubernetes first, or for all of his tests.
const PATIENCE: Duration = Duration::from_secs(60 * 60);
const PAUSE: Duration = Duration::from_millis(200);

/// Held by the one who changes a cluster, or whose tests run on it.
pub(crate) struct Lock {
    _file: File,
}

/// Waits for whoever changes this cluster now, and says for whom.
pub(crate) fn change(place: &Place) -> anyhow::Result<Lock> {
    change_within(place, PATIENCE)
}

fn change_within(place: &Place, patience: Duration) -> anyhow::Result<Lock> {
    hold(&place.dir().join("lock"), ("changes", "has changed"), place, patience)
}

/// Waits for whoever runs tests on this cluster now, and says for whom: they install, break and mend what is there once.
pub(crate) fn turn(place: &Place) -> anyhow::Result<Lock> {
    turn_within(place, PATIENCE)
}

fn turn_within(place: &Place, patience: Duration) -> anyhow::Result<Lock> {
    hold(&place.turn(), ("runs tests on", "has run tests on"), place, patience)
}

/// Holds a lock; `does` is what its holder does to the cluster, and what he did when it was too long.
fn hold(path: &Path, does: (&str, &str), place: &Place, patience: Duration) -> anyhow::Result<Lock> {
    let (begun, mut told) = (Instant::now(), false);
    loop {
        let file = open_lock(path);
        let mut file = file.with_context(|| format!("cannot make {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::Error(problem)) => {
                return Err(problem).with_context(|| format!("cannot lock {}", path.display()));
            }
            Err(TryLockError::WouldBlock) => {
                let (holder, dir) = (holder(path), place.dir().display());
                if begun.elapsed() >= patience {
                    let minutes = patience.as_secs() / 60;
                    bail!("{holder} {} the cluster in {dir} for {minutes} minutes: end it, and try again", does.1);
                }
                if !told {
                    println!("waiting for {holder}, which {} the cluster in {dir}", does.0);
                    told = true;
                }
                thread::sleep(PAUSE);
                continue;
            }
        }
        // A `down` may have removed the folder while we waited: then what we hold is no one's lock.
        let (held, named) = (file.metadata()?, fs::metadata(path));
        if named.is_ok_and(|named| named.ino() == held.ino() && named.dev() == held.dev()) {
            let words: Vec<String> = std::env::args().skip(1).collect();
            let us = format!("process {} (xtask {})", std::process::id(), words.join(" "));
            let noted = file.set_len(0).and_then(|()| file.write_all(us.as_bytes()));
            noted.with_context(|| format!("cannot write {}", path.display()))?;
            return Ok(Lock { _file: file });
        }
    }
}

/// Opens a lock in a folder that a `down` may remove at any moment: while we make it, or before the lock is in it.
fn open_lock(path: &Path) -> std::io::Result<File> {
    let deadline = Instant::now() + MOMENT;
    loop {
        let made = path.parent().map_or(Ok(()), fs::create_dir_all);
        let file = made.and_then(|()| OpenOptions::new().create(true).truncate(false).write(true).open(path));
        match file {
            Err(problem)
                if matches!(problem.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists)
                    && Instant::now() < deadline => {}
            file => return file,
        }
        thread::yield_now();
    }
}

/// Who holds the lock, as it says itself.
fn holder(lock: &Path) -> String {
    let said = fs::read_to_string(lock).unwrap_or_default();
    if said.is_empty() { "another process".to_string() } else { said }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::down;

    #[test]
    fn who_waits_too_long_for_a_lock_hears_of_its_holder() {
        let place = Place::new(std::env::temp_dir().join(format!("stoker-lock-{}", std::process::id()))).unwrap();
        let held = change(&place).unwrap();
        let told = change_within(&place, Duration::ZERO).err().unwrap().to_string();
        assert!(told.starts_with(&format!("process {} (xtask", std::process::id())), "{told}");
        assert!(told.contains("end it, and try again"), "{told}");
        drop(held);
        // Not at once: children that other tests start have a copy until they are programs of their own.
        let held = change(&place).unwrap();
        down::run(&place).unwrap();
        drop(held);
        // So does who waits for his turn, which needs no cluster.
        let held = turn(&place).unwrap();
        let told = turn_within(&place, Duration::ZERO).err().unwrap().to_string();
        assert!(told.contains("(xtask") && told.contains("has run tests on the cluster in"), "{told}");
        drop(held);
        turn(&place).unwrap();
        assert!(!place.dir().exists());
        fs::remove_file(place.turn()).unwrap();
    }
}
