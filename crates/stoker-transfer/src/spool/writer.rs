//! The one writer of a spool file.
//!
//! Bytes come in, in order; a file and the hash of all of it go out. All of this blocks: it is called in short pieces,
//! beside the executor unless a piece is small and no sync is due. While a writer exists nobody else can have the same file, in this process (the lock) or in
//! another (the file's lock); so a piece that is still at work after its fetch was dropped does no harm.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use sha2::{Digest as _, Sha256};
use tokio::sync::OwnedMutexGuard;

use super::private;
use crate::hash::hex;

/// What is read in one piece when an earlier part is hashed again.
const PIECE: usize = 1024 * 1024;

#[derive(Debug)]
pub(crate) struct SpoolWriter {
    file: File,
    path: PathBuf,
    hash: Box<Sha256>,
    length: u64,
    unsynced: u64,
    checkpoint: u64,
    /// Makes what was written before the last checkpoint last, beside the writes: who follows the file does not wait for the disk.
    syncing: Option<JoinHandle<io::Result<()>>>,
    _lock: OwnedMutexGuard<()>,
}

impl SpoolWriter {
    /// Opens or makes the file and locks it; gives its own lock back where another process has that of the file.
    pub(crate) fn open(
        path: &Path,
        checkpoint: u64,
        lock: OwnedMutexGuard<()>,
    ) -> io::Result<Result<Self, OwnedMutexGuard<()>>> {
        let file = private::options().open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Err(lock)),
            Err(TryLockError::Error(e)) => return Err(e),
        }
        let (path, hash) = (path.to_owned(), Box::new(Sha256::new()));
        Ok(Ok(Self { file, path, hash, length: 0, unsynced: 0, checkpoint, syncing: None, _lock: lock }))
    }

    /// Bytes that are written and hashed.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Takes over one piece more of what was in the file; `false` when there is no more.
    pub(crate) fn take_over(&mut self, most: u64) -> io::Result<bool> {
        if self.length == 0 && self.file.metadata()?.len() > most {
            // Longer than the blob can be: not ours, whatever it is.
            self.file.set_len(0)?;
        }
        // Never past the blob's end, whatever the file is.
        let most = usize::try_from(most.saturating_sub(self.length)).unwrap_or(PIECE);
        let mut piece = vec![0; most.min(PIECE)];
        let read = self.file.read_at(&mut piece, self.length)?;
        self.hash.update(&piece[..read]);
        self.length += read as u64;
        Ok(read > 0)
    }

    /// Whether a sync begins when these bytes are written, which may have to wait for an earlier one.
    pub(crate) fn would_sync(&self, bytes: &[u8]) -> bool {
        self.unsynced + bytes.len() as u64 >= self.checkpoint
    }

    /// Writes and hashes the next bytes.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let sync = self.would_sync(bytes);
        self.file.write_all_at(bytes, self.length)?;
        self.hash.update(bytes);
        self.length += bytes.len() as u64;
        self.unsynced += bytes.len() as u64;
        if sync { self.begin_sync() } else { Ok(()) }
    }

    /// One sync at a time: on a disk that is slower than the wire the writes wait here.
    fn begin_sync(&mut self) -> io::Result<()> {
        self.end_sync()?;
        // Opened anew: a clone would keep the lock after the writer is gone.
        let file = File::open(&self.path)?;
        self.syncing = Some(thread::Builder::new().name("sync".into()).spawn(move || file.sync_data())?);
        self.unsynced = 0;
        Ok(())
    }

    fn end_sync(&mut self) -> io::Result<()> {
        let ended = self.syncing.take().map(JoinHandle::join);
        ended.unwrap_or(Ok(Ok(()))).unwrap_or_else(|_| Err(io::Error::other("the thread that syncs it broke off")))
    }

    /// Forgets everything.
    pub(crate) fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        (*self.hash, self.length, self.unsynced) = (Sha256::new(), 0, 0);
        Ok(())
    }

    /// Makes what was written last.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.end_sync()?;
        self.unsynced = 0;
        self.file.sync_data()
    }

    /// The digest of all of it, in hexadecimal.
    pub(crate) fn sha256(&self) -> String {
        hex((*self.hash).clone())
    }
}
