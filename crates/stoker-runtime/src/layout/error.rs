//! What can go wrong with a store on disk.

use std::io;
use std::path::{Path, PathBuf};

/// A failure of an image store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The fields are the words of the messages above them.
pub enum Error {
    /// The filesystem, or our share of it, is full.
    #[error("no space left to write {}; free some, or give the image store a larger disk", .path.display())]
    NoSpace { path: PathBuf },
    /// Anything else that a filesystem can do.
    #[error("cannot {action} {}: {cause}; check the disk and who owns the directory", .path.display())]
    Disk { action: &'static str, path: PathBuf, cause: String },
    /// The list of images cannot be read.
    #[error("{} is not the index of an OCI layout ({cause}); restore it, or move the directory away", .path.display())]
    BadIndex { path: PathBuf, cause: String },
    /// Bytes that are not what they are called.
    #[error("{what} was given bytes that are not its own: {why}; fetch it again")]
    Corrupt { what: String, why: String },
    /// A file that should have been taken in.
    #[error("{} is gone and was to be taken into the image store; fetch it again", .path.display())]
    Gone { path: PathBuf },
    /// A directory that is no layout.
    #[error("{} is not an OCI image layout: it has no file oci-layout", .path.display())]
    NotALayout { path: PathBuf },
    /// A digest of a kind we do not keep.
    #[error("{digest} is not a sha256 digest; the image store keeps no others")]
    NotSha256 { digest: String },
    /// The process is going down.
    #[error("the image store was stopped in the middle; do it again")]
    Stopped,
}

impl Error {
    /// Whether the disk is full.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::NoSpace { .. })
    }

    /// Whether the file that was to be taken in was wrong or gone, so that another one helps.
    pub fn wants_another_file(&self) -> bool {
        matches!(self, Self::Corrupt { .. } | Self::Gone { .. })
    }

    pub(crate) fn disk(action: &'static str, path: &Path, cause: &io::Error) -> Self {
        let path = path.to_owned();
        match cause.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace { path },
            _ => Self::Disk { action, path, cause: cause.to_string() },
        }
    }
}
