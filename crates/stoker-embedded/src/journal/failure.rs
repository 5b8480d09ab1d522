//! What can go wrong with the journal: at its opening ([`JournalError`], for whoever starts the server) and at a write
//! ([`Failure`], for whoever wrote). Each names the file and what to do.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// Why a journal could not be opened.
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
        found: u64,
        /// The latest format that can be read here.
        known: u64,
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
    /// What the start itself had to write could not be written.
    #[error("{0}")]
    Write(String),
}

impl JournalError {
    pub(super) fn opening(path: &Path, error: redb::DatabaseError) -> Self {
        let path = path.to_owned();
        match error {
            redb::DatabaseError::DatabaseAlreadyOpen => Self::InUse { path },
            // Only a later redb, hence a later version of this server, knows formats that this one does not.
            redb::DatabaseError::UpgradeRequired(found) => {
                Self::Damaged { path, why: format!("its file format {found} is not known here") }
            }
            redb::DatabaseError::Storage(redb::StorageError::Io(source)) if !is_damage(&source) => {
                Self::Io { path, source }
            }
            other => Self::Damaged { path, why: other.to_string() },
        }
    }
}

/// Errors that speak of the contents and not of the system: redb reports a file without its magic number so.
fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

/// Why a write was not made durable. Nothing of it is seen by anyone.
#[derive(Debug, Clone, Error)]
#[error("{message}")]
pub(crate) struct Failure {
    /// Whether the disk (or a quota on it) is full, which passes when somebody makes room.
    pub(crate) full: bool,
    message: Arc<str>,
}

impl Failure {
    pub(super) fn of(path: &Path, error: &redb::Error) -> Self {
        match error {
            redb::Error::Io(error) if is_full(error) => Self::full(path, error),
            other => {
                let path = path.display();
                let message =
                    format!("the journal {path} could not be written: {other}; look at that disk, then try again");
                Self { full: false, message: message.into() }
            }
        }
    }

    /// The file could not be opened anew after an earlier failure.
    pub(super) fn reopening(path: &Path, error: &JournalError) -> Self {
        match error {
            JournalError::Io { source, .. } if is_full(source) => Self::full(path, source),
            other => Self { full: false, message: other.to_string().into() },
        }
    }

    fn full(path: &Path, error: &io::Error) -> Self {
        let path = path.display();
        let message = format!("the journal {path} could not be written: {error}; make room on that disk and try again");
        Self { full: true, message: message.into() }
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
