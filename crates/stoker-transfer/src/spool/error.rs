//! What the spool's disk did or did not do.

use std::io;
use std::path::{Path, PathBuf};

use crate::error::TransferErrorKind;

/// A failure on this side of the wire.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The fields are the words of the messages above them.
pub enum Error {
    /// The filesystem, or our share of it, is full.
    #[error("no space left to write {}; free some, or give Stoker a larger disk", .path.display())]
    NoSpace { path: PathBuf },
    /// Anything else that a filesystem can do.
    #[error("cannot {action} {}: {cause}; check the disk and who owns the directory", .path.display())]
    Disk { path: PathBuf, action: &'static str, cause: String },
    /// Somebody else writes this file.
    #[error("another process writes {}; give each process a spool directory of its own", .path.display())]
    Busy { path: PathBuf },
    /// Bytes that a follower already has were wrong.
    #[error("the bytes of {blob} that came so far turned out corrupt; it is fetched again from the start")]
    Restarted { blob: String },
    /// One of the others, with the blob and the image that it kept from coming.
    #[error("cannot fetch {what}: {problem}")]
    Fetch { what: String, problem: Box<Error> },
    /// The process is going down, or a part of it broke.
    #[error("the fetch was stopped before it was done; what is there is kept, start it again")]
    Stopped,
}

impl Error {
    pub(crate) fn disk(path: &Path, action: &'static str, cause: &io::Error) -> Self {
        let path = path.to_owned();
        match cause.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace { path },
            _ => Self::Disk { path, action, cause: cause.to_string() },
        }
    }

    /// What sort of trouble this is.
    pub fn kind(&self) -> TransferErrorKind {
        match self {
            Self::NoSpace { .. } => TransferErrorKind::NoSpace,
            Self::Disk { .. } | Self::Busy { .. } | Self::Stopped => TransferErrorKind::Disk,
            Self::Restarted { .. } => TransferErrorKind::DigestMismatch,
            Self::Fetch { problem, .. } => problem.kind(),
        }
    }

    /// Whether the same may work later with nobody changing anything.
    pub fn is_retryable(&self) -> bool {
        // A disk that our own half of an image fills is not kept full for the sake of another try.
        self.kind() != TransferErrorKind::NoSpace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_has_its_own_kind() {
        const ENOSPC: i32 = 28;
        let full = Error::disk(Path::new("/spool/x"), "write", &io::Error::from_raw_os_error(ENOSPC));
        assert_eq!((full.kind(), full.is_retryable()), (TransferErrorKind::NoSpace, false));
        assert!(full.to_string().contains("/spool/x"), "{full}");
        let other = Error::disk(Path::new("/spool/x"), "write", &io::Error::from(io::ErrorKind::PermissionDenied));
        assert_eq!((other.kind(), other.is_retryable()), (TransferErrorKind::Disk, true));
    }
}
