//! What stays of orders that were taken back: files of the spool, and in containerd what their leases hold. It stays for a
//! while, because jobs are deleted and made anew, and goes first where the disk is needed.
//!
//! The decision is a function of what is there; [`Leftovers`] performs it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use stoker_core::Clock;
use stoker_core::model::after;
use stoker_runtime::{Runtime, space};
use stoker_transfer::{Digest, Spool};

use crate::pull::Uses;
use crate::pulls::{LeftBehind, PullNote, PullNotes};
use crate::serving::Lingering;
use crate::sweep::Keep;

/// The most that leftovers take, whatever the disk has.
const MOST_BYTES: u64 = 10 << 30;
/// The most that they take of a disk: one part in this many.
const SHARE: u64 = 10;

/// How much may stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    age: Duration,
    bytes: u64,
}

/// A file of the spool.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LeftFile {
    digest: String,
    bytes: u64,
    written: Timestamp,
}

/// What to do.
#[derive(Debug, Default, PartialEq, Eq)]
struct SweepPlan {
    /// Pulls that keep what they have, wanted or left.
    keep: BTreeSet<String>,
    /// Pulls that nobody wants, seen for the first time.
    leave: BTreeMap<String, LeftBehind>,
    /// Pulls of which nothing is kept.
    forget: BTreeSet<String>,
    /// Files that go, by digest.
    release: BTreeSet<String>,
    /// When the oldest leftover is too old.
    next: Option<Timestamp>,
}

fn plan(
    orders: &Keep,
    pulls: &BTreeMap<String, PullNote>,
    files: &[LeftFile],
    bounds: Bounds,
    now: Timestamp,
) -> SweepPlan {
    let mut plan = SweepPlan { keep: orders.open.clone(), ..SweepPlan::default() };
    // Pulls and files that nobody wants, with since when and how many bytes.
    let mut left: Vec<(Timestamp, u64, Result<&String, &LeftFile>)> = Vec::new();
    for (name, pull) in pulls.iter().filter(|(name, _)| !orders.open.contains(*name)) {
        // Those are in the image store, or gave way to others.
        if orders.done.contains(name) {
            plan.forget.insert(name.clone());
            continue;
        }
        let spooled = files.iter().filter(|file| pull.blobs.contains(&file.digest)).map(|file| file.bytes).sum();
        let seen = pull.left.unwrap_or(LeftBehind { since: now, bytes: spooled });
        plan.leave.extend(pull.left.is_none().then(|| (name.clone(), seen)));
        // A clock that was set back makes nothing last longer.
        left.push((seen.since.min(now), seen.bytes.max(spooled), Ok(name)));
    }
    let of = |names: &BTreeSet<String>| -> BTreeSet<&String> {
        pulls.iter().filter(|(name, _)| names.contains(*name)).flat_map(|(_, pull)| &pull.blobs).collect()
    };
    // Attempts note their blobs before they fetch them, so no order needs a file that no pull names: its note was lost.
    let known: BTreeSet<&String> = pulls.values().flat_map(|pull| &pull.blobs).collect();
    let orphans = files.iter().filter(|file| !known.contains(&file.digest));
    left.extend(orphans.map(|file| (file.written.min(now), file.bytes, Err(file))));
    left.sort_by_key(|(since, ..)| std::cmp::Reverse(*since));
    let (mut sum, mut stays) = (0u64, BTreeSet::new());
    for (since, bytes, what) in left {
        let old = after(since, bounds.age) <= now;
        let fits = sum.saturating_add(bytes) <= bounds.bytes;
        if old || !fits {
            plan.forget.extend(what.ok().cloned());
            continue;
        }
        sum += bytes;
        plan.next = Some(plan.next.map_or(after(since, bounds.age), |next| next.min(after(since, bounds.age))));
        match what {
            Ok(name) => drop(plan.keep.insert(name.clone())),
            Err(file) => drop(stays.insert(&file.digest)),
        }
    }
    plan.leave.retain(|name, _| plan.keep.contains(name));
    let wanted = of(&plan.keep);
    let goes = |file: &&LeftFile| !wanted.contains(&file.digest) && !stays.contains(&file.digest);
    plan.release = files.iter().filter(goes).map(|file| file.digest.clone()).collect();
    plan
}

/// What orders that were taken back have left on this node.
#[derive(Clone)]
pub(crate) struct Leftovers {
    pub(crate) clock: Clock,
    pub(crate) spool: Spool,
    pub(crate) runtime: Runtime,
    pub(crate) uses: Arc<Uses>,
    pub(crate) pulls: Arc<PullNotes>,
    /// What stays in the spool for other nodes.
    pub(crate) lingering: Lingering,
    /// How long it stays.
    pub(crate) age: Duration,
    /// Held by the one who is at it.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
}

impl Leftovers {
    /// Removes what is too old or too much, and says when to come again.
    pub(crate) async fn sweep(&self) -> Result<Option<Timestamp>, String> {
        let disk = space::of(self.spool.dir().to_owned()).await;
        let bytes = disk.map_or(MOST_BYTES, |disk| MOST_BYTES.min(disk.total / SHARE));
        self.perform(Bounds { age: self.age, bytes }, false).await.map(|(next, _)| next)
    }

    /// Removes all of it, because the disk is needed; says whether there was anything.
    pub(crate) async fn clear(&self) -> bool {
        match self.perform(Bounds { age: Duration::ZERO, bytes: 0 }, true).await {
            Ok((_, freed)) => freed,
            Err(problem) => {
                tracing::warn!("cannot make room: {problem}");
                false
            }
        }
    }

    /// This node needs a blob no longer. It goes, unless it stays for other nodes.
    pub(crate) async fn release(&self, blob: &Digest) -> Result<(), stoker_transfer::Error> {
        if self.lingering.keep(blob) { Ok(()) } else { self.spool.release(blob).await }
    }

    /// Removes what stayed for other nodes and was not wanted for a time.
    pub(crate) async fn let_go(&self) {
        for blob in self.lingering.over() {
            let _turn = self.turn.lock().await;
            self.lingering.forget(&blob);
            if self.uses.has(&blob) {
                continue;
            }
            if let Err(problem) = self.spool.release(&blob).await {
                tracing::warn!("cannot remove {blob} from the spool: {problem}");
            }
        }
    }

    /// `wanted` is whether the disk is needed: then also what stayed for other nodes goes.
    async fn perform(&self, bounds: Bounds, wanted: bool) -> Result<(Option<Timestamp>, bool), String> {
        let _turn = self.turn.lock().await;
        let held = self.spool.held().await.map_err(|problem| problem.to_string())?;
        let files: Vec<LeftFile> = held
            .iter()
            .filter(|file| !self.uses.has(&file.digest) && (wanted || !self.lingering.has(&file.digest)))
            .map(|file| LeftFile {
                digest: file.digest.to_string(),
                bytes: file.bytes,
                written: Timestamp::try_from(file.modified).unwrap_or(Timestamp::UNIX_EPOCH),
            })
            .collect();
        let plan = plan(&self.pulls.orders(), &self.pulls.all(), &files, bounds, (self.clock)());
        self.pulls.settle(&plan.leave, &plan.forget).await;
        let release = held.iter().filter(|file| plan.release.contains(file.digest.as_ref()));
        for file in release.filter(|file| !self.uses.has(&file.digest)) {
            self.lingering.forget(&file.digest);
            self.spool.release(&file.digest).await.map_err(|problem| problem.to_string())?;
        }
        if let Runtime::Containerd(containerd, _) = &self.runtime {
            let wanted = |pull: &str| plan.keep.contains(pull);
            containerd.sweep(wanted).await.map_err(|problem| problem.to_string())?;
        }
        Ok((plan.next, !plan.release.is_empty() || !plan.forget.is_empty()))
    }
}

#[cfg(test)]
mod tests;
