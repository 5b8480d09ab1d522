//! Whether a stored blob is what its name says.
//!
//! Disks and people change files. A blob that somebody relies on is hashed; what came of it is remembered with the
//! file's inode, length and times, so that a process hashes a file that does not change once. It never changes a file.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use oci_spec::image::Digest;

use super::hash::{self, HashResult};
use super::{Error, Layout, disk};

/// The most blobs that are remembered, at about 200 bytes each; of more than that some are hashed again.
const MOST_REMEMBERED: usize = 16_384;

/// How often a file that changes while it is hashed is begun again.
const TRIES: u32 = 3;

/// What a store has of something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored<T> {
    /// All of it.
    Whole(T),
    /// This file is there, and its bytes are not those that its name says.
    Damaged(PathBuf),
    /// It is not there, or not all of it.
    Missing,
}

impl<T> Stored<T> {
    /// The thing, where all of it is there.
    pub fn whole(self) -> Option<T> {
        match self {
            Self::Whole(thing) => Some(thing),
            Self::Damaged(_) | Self::Missing => None,
        }
    }

    /// The same about something else.
    pub fn map<U>(self, other: impl FnOnce(T) -> U) -> Stored<U> {
        match self {
            Self::Whole(thing) => Stored::Whole(other(thing)),
            Self::Damaged(path) => Stored::Damaged(path),
            Self::Missing => Stored::Missing,
        }
    }
}

/// How far stored blobs are trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Care {
    /// Not without a hash: each blob that changed since this process hashed it, or that it never did, is hashed. For
    /// whoever says that an image is there.
    Hashed,
    /// As long as they do not change: a blob that this process never hashed is taken by its length. For whoever looks
    /// often whether an image is still there.
    Unchanged,
}

/// By what a file is recognised that has the same bytes as before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: u64,
    pub(super) size: u64,
    modified: (i64, i64),
    /// Not even the owner of a file can set this one back.
    changed: (i64, i64),
}

impl Stamp {
    pub(super) fn of(meta: &Metadata) -> Self {
        Self {
            inode: meta.ino(),
            size: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// The same file after it got another name, which counts as a change.
    pub(super) fn is_renamed(&self, other: &Self) -> bool {
        Self { changed: other.changed, ..*self } == *other
    }
}

/// The blobs that were hashed, with whether each was right.
#[derive(Debug, Default)]
pub(super) struct HashedBlobs(Mutex<BTreeMap<String, (Stamp, bool)>>);

impl HashedBlobs {
    fn get(&self, digest: &Digest) -> Option<(Stamp, bool)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(digest.digest()).copied()
    }

    pub(super) fn put(&self, digest: &Digest, stamp: Stamp, right: bool) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(digest.digest().to_owned(), (stamp, right));
        if known.len() > MOST_REMEMBERED {
            known.pop_first();
        }
    }
}

impl Layout {
    /// Whether a blob is there with this length, and is what its digest says.
    pub async fn blob(&self, digest: &Digest, size: u64, care: Care) -> Result<Stored<()>, Error> {
        let path = self.path(digest)?;
        if let Some(known) = self.known(digest, &path, Some(size), care).await? {
            return Ok(known);
        }
        // Two images with one layer need one hash.
        let _lock = self.inner.locks.take(digest.digest()).await;
        self.proven(digest, &path, Some(size), care).await
    }

    /// The same for the one who has the lock of the digest.
    pub(super) async fn proven(
        &self,
        digest: &Digest,
        path: &Path,
        size: Option<u64>,
        care: Care,
    ) -> Result<Stored<()>, Error> {
        match self.known(digest, path, size, care).await? {
            Some(known) => Ok(known),
            None => self.prove(digest, path).await,
        }
    }

    /// What can be said without a hash.
    async fn known(
        &self,
        digest: &Digest,
        path: &Path,
        size: Option<u64>,
        care: Care,
    ) -> Result<Option<Stored<()>>, Error> {
        let (layout, digest, path) = (self.clone(), digest.clone(), path.to_owned());
        disk::beside(move || {
            let fits = |meta: &Metadata| meta.is_file() && size.is_none_or(|size| size == meta.len());
            let stamp = fs::symlink_metadata(&path).ok().filter(fits).map(|meta| Stamp::of(&meta));
            let Some(stamp) = stamp else { return Ok(Some(Stored::Missing)) };
            Ok(match (layout.inner.known.get(&digest), care) {
                (Some((then, right)), _) if then == stamp => Some(verdict(right, path)),
                (None, Care::Unchanged) => Some(Stored::Whole(())),
                _ => None,
            })
        })
        .await
    }

    /// Hashes a blob and remembers what came of it.
    async fn prove(&self, digest: &Digest, path: &Path) -> Result<Stored<()>, Error> {
        for _ in 0..TRIES {
            match hash::file(path.to_owned()).await? {
                HashResult::Hashed { stamp, sha256, steady: true } => {
                    let right = sha256 == digest.digest();
                    self.inner.known.put(digest, stamp, right);
                    if !right {
                        tracing::warn!("{} is damaged: its bytes have the sha256 {sha256}", path.display());
                    }
                    return Ok(verdict(right, path.to_owned()));
                }
                HashResult::Hashed { .. } => {}
                HashResult::Gone => return Ok(Stored::Missing),
                HashResult::Unreadable(problem) => {
                    tracing::warn!("{} is damaged: it cannot be read ({problem})", path.display());
                    return Ok(Stored::Damaged(path.to_owned()));
                }
            }
        }
        tracing::warn!("{} is damaged: somebody writes to it", path.display());
        Ok(Stored::Damaged(path.to_owned()))
    }
}

fn verdict(right: bool, path: PathBuf) -> Stored<()> {
    if right { Stored::Whole(()) } else { Stored::Damaged(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_remembered_than_the_bound() {
        let dir = tempfile::tempdir().unwrap();
        let stamp = Stamp::of(&fs::metadata(dir.path()).unwrap());
        let known = HashedBlobs::default();
        for n in 0..MOST_REMEMBERED + 10 {
            known.put(&format!("sha256:{n:064x}").parse().unwrap(), stamp, true);
        }
        assert_eq!(known.0.lock().unwrap().len(), MOST_REMEMBERED);
    }
}
