//! What the spool has of a blob, for whoever serves it to other nodes. Nothing is begun, changed or kept by looking.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use oci_spec::image::Descriptor;

use super::{BlobKey, Growing, Progress, Spool, on_disk};

/// What a spool counts and remembers of all its blobs.
#[derive(Debug, Default)]
pub(crate) struct SpoolTally {
    /// Bytes that came, also those that were thrown away.
    received: AtomicU64,
    /// Files that are whole and were hashed by this process. Some of them were moved away since.
    checked: Mutex<HashSet<PathBuf>>,
}

/// More than a node has in its spool; of more than that some are not served.
const MOST_CHECKED: usize = 4096;

impl SpoolTally {
    fn files(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn checked(&self, file: &Path) {
        let mut files = self.files();
        if files.len() >= MOST_CHECKED {
            files.clear();
        }
        files.insert(file.to_owned());
    }

    pub(crate) fn doubt(&self, file: &Path) {
        self.files().remove(file);
    }
}

/// A blob that the spool has, or will have.
#[derive(Debug)]
pub enum SpooledPart {
    /// It is being fetched.
    Growing(Growing),
    /// It is whole and was checked.
    Whole(File),
}

impl Spool {
    /// Bytes that came into this spool since it was opened, from whomever.
    pub fn received(&self) -> u64 {
        self.inner.tally.received.load(Ordering::Relaxed)
    }

    /// The blob, where somebody fetches it, or has fetched it and left it here.
    pub async fn part(&self, blob: &Descriptor) -> Option<SpooledPart> {
        match self.running(blob).filter(|growing| growing.core().is_running()) {
            Some(growing) => Some(SpooledPart::Growing(growing)),
            None => self.whole(blob).await.map(SpooledPart::Whole),
        }
    }

    /// How far the blob is, where somebody fetches it or has just fetched it.
    pub fn progress(&self, blob: &Descriptor) -> Option<Progress> {
        self.running(blob).map(|growing| growing.progress())
    }

    /// The file of a blob that this process has fetched and checked; nothing where it was moved away.
    pub async fn whole(&self, blob: &Descriptor) -> Option<File> {
        let key = BlobKey { digest: blob.digest().clone(), size: blob.size(), beside: None };
        let (path, size) = (self.inner.dir.join(key.file()), blob.size());
        if !self.inner.tally.files().contains(&path) {
            return None;
        }
        let opened = on_disk(move || {
            let file = File::open(path).ok()?;
            file.metadata().is_ok_and(|meta| meta.len() == size).then_some(file)
        });
        opened.await.ok().flatten()
    }

    /// A handle of the fetch that is the furthest.
    fn running(&self, blob: &Descriptor) -> Option<Growing> {
        let blobs = self.inner.blobs.lock().unwrap_or_else(PoisonError::into_inner);
        let same = blobs.iter().filter(|(key, _)| key.digest == *blob.digest() && key.size == blob.size());
        let handles = same.filter_map(|(_, entry)| entry.handle.upgrade()).map(|handle| Growing::new(handle, None));
        handles.max_by_key(|growing| growing.progress().have())
    }
}
