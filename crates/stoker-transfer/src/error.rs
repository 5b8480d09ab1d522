//! What can go wrong with bytes, in one place to ask what kind of trouble it is.
//!
//! Each module has its own errors; they all come together in [`Error`], which tells what sort of thing happened
//! ([`TransferErrorKind`]), whether another try makes sense, and when. It never holds a secret or a signed address.

use std::time::Duration;

use crate::{reference, registry, spool};

/// The sort of trouble, for code that has to decide; the text of an [`Error`] is for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransferErrorKind {
    /// The name of the image cannot be one.
    InvalidReference,
    /// The registry has no such image or blob.
    NotFound,
    /// The registry wants other credentials, or any.
    Unauthorized,
    /// The registry asks us to come back later.
    RateLimited,
    /// No connection, or it broke too often.
    Unreachable,
    /// Connected, but no bytes came.
    Stalled,
    /// The bytes are not the ones that their digest names.
    DigestMismatch,
    /// Something is over one of our bounds, which the message names.
    TooLarge,
    /// The answer is not what the protocol allows, or is one that we refuse.
    InvalidContent,
    /// The image is not there for this platform.
    PlatformMissing,
    /// The registry failed.
    Server,
    /// The disk is full.
    NoSpace,
    /// The disk failed, or a file is not ours to write.
    Disk,
}

/// Any failure of this crate. Cheap to clone: everyone who waits for one fetch gets the same.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A reference that cannot be parsed.
    #[error(transparent)]
    Reference(#[from] reference::InvalidReference),
    /// What a registry did or did not do.
    #[error(transparent)]
    Registry(#[from] registry::Error),
    /// What the spool's disk did or did not do.
    #[error(transparent)]
    Spool(#[from] spool::Error),
}

impl Error {
    /// What sort of trouble this is.
    pub fn kind(&self) -> TransferErrorKind {
        match self {
            Self::Reference(_) => TransferErrorKind::InvalidReference,
            Self::Registry(error) => error.kind(),
            Self::Spool(error) => error.kind(),
        }
    }

    /// How long the registry asked us to wait, where it did and we did not wait already.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Registry(error) => error.retry_after(),
            _ => None,
        }
    }

    /// Whether the same request may well work later, with nobody changing anything.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Reference(_) => false,
            Self::Registry(error) => error.is_retryable(),
            Self::Spool(error) => error.is_retryable(),
        }
    }
}
