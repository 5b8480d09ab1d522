//! Which blobs each pull of this node wants, and since when nobody wants the pull: one small JSON file a pull, beside the
//! ledger. So what an order has left behind is told from what others need, also after a restart of the agent.
//!
//! A file that is lost or cannot be read costs nothing but bytes that are fetched again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stoker_transfer::Digest;

use crate::sweep::Keep;

/// What is known of a pull that is not done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PullNote {
    /// The blobs that its last attempt lacked.
    pub(crate) blobs: BTreeSet<String>,
    /// Where its order was taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) left: Option<LeftBehind>,
}

/// What an order that was taken back has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeftBehind {
    /// When it was taken back.
    pub(crate) since: Timestamp,
    /// What was received for it.
    pub(crate) bytes: u64,
}

/// All pulls, and which of them orders want.
#[derive(Debug)]
pub(crate) struct PullNotes {
    dir: PathBuf,
    pulls: Mutex<BTreeMap<String, PullNote>>,
    /// Those whose files say something else.
    unsaved: Mutex<BTreeSet<String>>,
    orders: Mutex<Keep>,
}

impl PullNotes {
    /// Reads what an earlier life of the agent wrote. It blocks, shortly.
    pub(crate) fn open(dir: PathBuf) -> Self {
        let pulls = load(&dir).unwrap_or_else(|problem| {
            tracing::warn!("{} cannot be read, what it says is not used: {problem}", dir.display());
            BTreeMap::new()
        });
        Self { dir, pulls: Mutex::new(pulls), unsaved: Mutex::default(), orders: Mutex::default() }
    }

    fn pulls(&self) -> MutexGuard<'_, BTreeMap<String, PullNote>> {
        self.pulls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that are known.
    pub(crate) fn all(&self) -> BTreeMap<String, PullNote> {
        self.pulls().clone()
    }

    /// What the orders in hand need.
    pub(crate) fn orders(&self) -> Keep {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says what the orders in hand need.
    pub(crate) fn set_orders(&self, orders: Keep) {
        *self.orders.lock().unwrap_or_else(PoisonError::into_inner) = orders;
    }

    /// An attempt lacks these blobs, and fetches them.
    pub(crate) async fn begin<'a>(&self, pull: &str, blobs: impl Iterator<Item = &'a Digest>) {
        let now = PullNote { blobs: blobs.map(Digest::to_string).collect(), left: None };
        let before = self.pulls().insert(pull.into(), now.clone());
        if before.as_ref() != Some(&now) {
            self.save(pull).await;
        }
    }

    /// The image is there.
    pub(crate) async fn done(&self, pull: &str) {
        if self.pulls().remove(pull).is_some() {
            self.save(pull).await;
        }
    }

    /// The order was taken back. What is said here is on the disk after the next sweep.
    pub(crate) fn leave(&self, pull: &str, left: LeftBehind) {
        if let Some(known) = self.pulls().get_mut(pull) {
            known.left.get_or_insert(left);
            self.unsaved.lock().unwrap_or_else(PoisonError::into_inner).insert(pull.into());
        }
    }

    /// Notes what a sweep has decided, unless an attempt has begun meanwhile.
    pub(crate) async fn settle(&self, leave: &BTreeMap<String, LeftBehind>, forget: &BTreeSet<String>) {
        let mut changed = std::mem::take(&mut *self.unsaved.lock().unwrap_or_else(PoisonError::into_inner));
        {
            let mut pulls = self.pulls();
            for (pull, left) in leave {
                if let Some(known) = pulls.get_mut(pull) {
                    known.left.get_or_insert(*left);
                    changed.insert(pull.clone());
                }
            }
            for pull in forget.iter().filter(|pull| !self.orders().open.contains(*pull)) {
                if pulls.remove(pull).is_some() {
                    changed.insert(pull.clone());
                }
            }
        }
        for pull in changed {
            self.save(&pull).await;
        }
    }

    async fn save(&self, pull: &str) {
        let (file, known) = (self.dir.join(format!("{pull}.json")), self.pulls().get(pull).cloned());
        let path = file.clone();
        let saved = tokio::task::spawn_blocking(move || store(&path, known.as_ref())).await;
        if let Err(problem) = saved.unwrap_or_else(|problem| Err(io::Error::other(problem))) {
            tracing::warn!("cannot write {}: {problem}", file.display());
        }
    }
}

fn load(dir: &Path) -> io::Result<BTreeMap<String, PullNote>> {
    let entries = match fs::read_dir(dir) {
        Err(problem) if problem.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        entries => entries?,
    };
    let mut pulls = BTreeMap::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".json"));
        if let Some(name) = name
            && let Some(pull) = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok())
        {
            pulls.insert(name.to_owned(), pull);
        }
    }
    Ok(pulls)
}

/// Replaces the file of a pull, or removes it.
fn store(file: &Path, pull: Option<&PullNote>) -> io::Result<()> {
    let Some(pull) = pull else {
        return match fs::remove_file(file) {
            Err(problem) if problem.kind() != io::ErrorKind::NotFound => Err(problem),
            _ => Ok(()),
        };
    };
    fs::create_dir_all(file.parent().unwrap_or(Path::new(".")))?;
    let part = file.with_extension("part");
    fs::write(&part, serde_json::to_vec(pull)?)?;
    fs::rename(part, file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[tokio::test]
    async fn what_was_left_is_known_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("pulls");
        let digest: Digest = format!("sha256:{}", "a".repeat(64)).parse().unwrap();
        let pulls = PullNotes::open(dir.clone());
        for pull in ["begun", "taken-back", "done"] {
            pulls.begin(pull, [&digest].into_iter()).await;
        }
        pulls.done("done").await;
        let left = LeftBehind { since: at(5), bytes: 7 };
        pulls.leave("taken-back", left);
        pulls.leave("unknown", left);
        pulls.settle(&BTreeMap::new(), &BTreeSet::new()).await;
        assert_eq!(PullNotes::open(dir.clone()).all(), pulls.all());
        pulls
            .settle(&BTreeMap::from([("taken-back".into(), LeftBehind { since: at(9), bytes: 0 })]), &BTreeSet::new())
            .await;
        let again = PullNotes::open(dir.clone()).all();
        assert_eq!(again, pulls.all());
        let known: Vec<_> = again.iter().map(|(name, pull)| (name.as_str(), pull.left)).collect();
        assert_eq!(known, [("begun", None), ("taken-back", Some(left))]);
        // Its order comes back.
        pulls.begin("taken-back", [&digest].into_iter()).await;
        assert_eq!(PullNotes::open(dir.clone()).all()["taken-back"].left, None);
        std::fs::write(dir.join("begun.json"), "{").unwrap();
        assert_eq!(PullNotes::open(dir).all().len(), 1, "what makes no sense is left out");
    }

    #[tokio::test]
    async fn a_pull_that_is_wanted_again_is_not_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let pulls = PullNotes::open(dir.path().into());
        pulls.begin("a", std::iter::empty()).await;
        pulls.set_orders(Keep { open: BTreeSet::from(["a".into()]), done: BTreeSet::new() });
        pulls.settle(&BTreeMap::new(), &BTreeSet::from(["a".into()])).await;
        assert_eq!(pulls.all().len(), 1);
    }
}
