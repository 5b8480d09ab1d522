//! Why a layer could not be put on disk, in words that say whose fault it is.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::room::Short;

/// What went wrong. Nothing of a failed layer may be used: remove the directory it was unpacked into.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The source of the compressed bytes failed.
    #[error("cannot read the layer: {0}; fetch it again")]
    Read(#[source] io::Error),
    /// The bytes are not what their compression promises, or end early.
    #[error("the layer's compressed data is damaged: {0}; fetch it again")]
    Compressed(#[source] io::Error),
    /// The archive breaks the rules of tar, or asks for what containerd refuses too.
    #[error("the layer's archive is wrong at {entry:?}: {what}; the image has to be built again")]
    Archive {
        /// The name in the archive, as it is there.
        entry: String,
        /// What is wrong with it.
        what: String,
    },
    /// The layer is legal, but only containerd itself does this.
    #[error("the layer needs containerd's own unpacking at {entry:?}: {what}")]
    Unsupported {
        /// The name in the archive, or in a layer below.
        entry: String,
        /// What it would take.
        what: String,
    },
    /// The layer is bigger than the caller allows.
    #[error("the layer unpacks to more than the {most} bytes that are allowed; free disk space or raise the limit")]
    TooBig {
        /// What was allowed.
        most: u64,
    },
    /// The caller gives no more room for it.
    #[error("there is no room for the layer: {0}; free disk space or raise the limit")]
    NoRoom(Short),
    /// The filesystem refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    Disk {
        /// What was tried.
        doing: &'static str,
        /// On what, below the directory where the layer goes.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A directory that has to be empty at the start is not.
    #[error("{} has files already; layers are unpacked into new snapshots only", .0.display())]
    NotEmpty(PathBuf),
}

impl Error {
    /// Whether the filesystem has no space left, or no quota.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Disk { source, .. } => {
                let full = [Errno::NOSPC, Errno::DQUOT].map(|errno| Some(errno.raw_os_error()));
                full.contains(&source.raw_os_error())
            }
            _ => false,
        }
    }

    /// Whether more was in the layer than the caller allowed.
    pub fn is_too_big(&self) -> bool {
        matches!(self, Self::TooBig { .. })
    }

    /// Whether other bytes of the same layer could do better: the source failed or sent damage.
    pub fn is_transfer(&self) -> bool {
        matches!(self, Self::Read(_) | Self::Compressed(_))
    }

    pub(super) fn archive(entry: &[u8], what: impl Into<String>) -> Self {
        Self::Archive { entry: shown(entry), what: what.into() }
    }

    pub(super) fn unsupported(entry: &[u8], what: impl Into<String>) -> Self {
        Self::Unsupported { entry: shown(entry), what: what.into() }
    }

    pub(super) fn disk(doing: &'static str, path: impl AsRef<Path>) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Disk { doing, path: path.as_ref().to_owned(), source: errno.into() }
    }
}

/// A name from a stranger's archive, short enough for a log.
fn shown(name: &[u8]) -> String {
    const MOST: usize = 200;
    let cut = name.get(..MOST).unwrap_or(name);
    let text = String::from_utf8_lossy(cut).into_owned();
    if cut.len() < name.len() { format!("{text}…") } else { text }
}
