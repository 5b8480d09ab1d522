//! What has to be remembered of an archive while it is applied and until it is settled: the directories that it named,
//! with their times, and those that it only implied. Bounded, whatever an archive says.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;

use rustix::fs::Timestamps;

use super::error::Error;

/// Bytes of names that are remembered for one layer: more than a million directories.
const MOST: usize = 64 << 20;
/// What a name takes beside its bytes.
const OVERHEAD: usize = 64;

/// The memory of one layer.
#[derive(Default)]
pub(super) struct Notes {
    /// Directories that were made for what lies in them, and whether an entry named them later.
    implied: BTreeMap<Vec<u8>, bool>,
    /// Times of directories by the name in the archive, and when the name came last.
    directories: HashMap<Vec<u8>, (usize, Timestamps)>,
    /// Implied directories that something else replaced later in the same archive.
    replaced: BTreeSet<Vec<u8>>,
    opaque: BTreeSet<Vec<u8>>,
    taken: usize,
    turn: usize,
}

impl Notes {
    fn take(&mut self, name: &[u8]) -> Result<(), Error> {
        self.taken += name.len() + OVERHEAD;
        if self.taken > MOST {
            return Err(Error::unsupported(name, "the layer has too many directories"));
        }
        Ok(())
    }

    /// A directory was made that no entry named so far.
    pub(super) fn implied(&mut self, path: &[u8]) -> Result<(), Error> {
        self.take(path)?;
        self.implied.insert(path.to_vec(), false);
        Ok(())
    }

    /// An entry named this directory.
    pub(super) fn named(&mut self, path: &[u8]) {
        if let Some(named) = self.implied.get_mut(path) {
            *named = true;
        }
    }

    /// This path was removed, with what is below it.
    pub(super) fn forget(&mut self, path: &[u8]) {
        let own = self.implied.contains_key(path).then(|| path.to_vec());
        let mut next = own.or_else(|| self.first_below(path, |_| true));
        while let Some(gone) = next {
            self.implied.remove(&gone);
            self.replaced.insert(gone);
            next = self.first_below(path, |_| true);
        }
    }

    /// The first directory below a path that was only implied.
    pub(super) fn unnamed_below(&self, path: &[u8]) -> Option<Vec<u8>> {
        self.first_below(path, |named| !named)
    }

    fn first_below(&self, path: &[u8], wanted: impl Fn(bool) -> bool) -> Option<Vec<u8>> {
        let below = if path.is_empty() { Vec::new() } else { [path, b"/"].concat() };
        let range = self.implied.range(below.clone()..).take_while(|(inner, _)| inner.starts_with(&below));
        range.into_iter().find(|(_, named)| wanted(**named)).map(|(inner, _)| inner.clone())
    }

    /// An entry named a directory, with these times. Of two the later counts.
    pub(super) fn directory(&mut self, name: Vec<u8>, times: Timestamps) -> Result<(), Error> {
        if !self.directories.contains_key(&name) {
            self.take(&name)?;
        }
        self.turn += 1;
        self.directories.insert(name, (self.turn, times));
        Ok(())
    }

    /// The named directories, in the order in which the archive named them last. They are handed out once.
    pub(super) fn directories(&mut self) -> Vec<(Vec<u8>, Timestamps)> {
        let mut all: Vec<_> = mem::take(&mut self.directories).into_iter().collect();
        all.sort_unstable_by_key(|(_, (turn, _))| *turn);
        all.into_iter().map(|(name, (_, times))| (name, times)).collect()
    }

    /// Whether this is the first time that a directory of the lowest layer is called opaque.
    pub(super) fn first_opaque(&mut self, path: &[u8]) -> Result<bool, Error> {
        if self.opaque.contains(path) {
            return Ok(false);
        }
        self.take(path)?;
        Ok(self.opaque.insert(path.to_vec()))
    }

    /// The implied directories, parents first, and whether an entry named them later; and those that are gone again.
    pub(super) fn into_implied(self) -> (BTreeMap<Vec<u8>, bool>, BTreeSet<Vec<u8>>) {
        (self.implied, self.replaced)
    }
}
