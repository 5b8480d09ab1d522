//! What can go wrong with the journal: at its opening ([`JournalError`], for whoever starts the server) and at a write
//! ([`JournalFailure`], for whoever wrote). Each names the file and what to do.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// Why a journal could not be opened. The file is as it was.
#[derive(Debug, Error)]
pub enum JournalError {
    /// Another process has it open.
    #[error("the journal {} is in use by another process; stop that one, or use another data directory", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It was written by a later version.
    #[error(
        "the journal {} has format {found} and this version reads up to {known}; run the version that wrote it, or a later one",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The format it has.
        found: u32,
        /// The latest format that can be read here.
        known: u32,
    },
    /// It was written by a build of the time before the journal had a format of its own.
    #[error(
        "the journal {} was made by an earlier build, as a redb database, which this one does not read; move it away to begin \
         with nothing, or run the build that made it",
        path.display()
    )]
    Earlier {
        /// The file.
        path: PathBuf,
    },
    /// The system would not open it.
    #[error("the journal {} cannot be opened: {source}; check the path and its permissions", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is damaged beyond recovery, or no journal at all.
    #[error(
        "the journal {} cannot be read: {why}; restore it from a copy, or move it away to begin with nothing",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        why: String,
    },
    /// A record is damaged and whole ones follow it: this is no cut, and what follows was acknowledged.
    #[error(
        "the journal {} is damaged from byte {at} to byte {next}, and whole writes follow, up to revision {newest}; restore it \
         from a copy, or give up all writes after revision {revision}: keep a copy of the file, then run `truncate -s {at} '{}'`",
        path.display(), path.display()
    )]
    Hole {
        /// The file.
        path: PathBuf,
        /// Where the damaged record begins.
        at: u64,
        /// Where the next whole one begins.
        next: u64,
        /// The revision before the damage.
        revision: u64,
        /// The revision of the last whole record that follows at `next`.
        newest: u64,
    },
    /// What the start itself had to write could not be written.
    #[error("{0}")]
    Write(String),
}

/// Why a write was not made durable. Nothing of it is seen by anyone.
#[derive(Debug, Clone, Error)]
#[error("{message}")]
pub(crate) struct JournalFailure {
    /// Whether the disk (or a quota on it) is full, which passes when somebody makes room.
    pub(crate) full: bool,
    message: Arc<str>,
}

impl JournalFailure {
    pub(super) fn of(path: &Path, error: &io::Error) -> Self {
        let full = is_full(error);
        let advice = if full { "make room on that disk and try again" } else { "look at that disk, then try again" };
        let message = format!("the journal {} could not be written: {error}; {advice}", path.display());
        Self { full, message: message.into() }
    }

    /// The thread that writes is gone, which only a defect can cause.
    pub(crate) fn stopped() -> Self {
        Self { full: false, message: "the journal is no longer written; restart the server".into() }
    }
}

fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}
