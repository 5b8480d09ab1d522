//! What other crates call an error, in the public words of reports.

use stoker_core::Reason;
use stoker_core::step::Failure;
use stoker_runtime::grpc::RuntimeErrorKind;
use stoker_transfer::{Digest, TransferErrorKind};

/// An error of the image store.
pub(super) fn runtime_failure(problem: impl Into<stoker_runtime::Error>) -> Failure {
    let problem = problem.into();
    let (reason, retryable) = match problem.kind() {
        RuntimeErrorKind::NotFound => (Reason::NotFound, true),
        RuntimeErrorKind::Unauthorized => (Reason::Unauthorized, false),
        RuntimeErrorKind::NoSpace => (Reason::NoSpace, true),
        RuntimeErrorKind::NoRoom => (Reason::Disk, true),
        RuntimeErrorKind::Unavailable | RuntimeErrorKind::Starting => (Reason::RuntimeUnavailable, true),
        RuntimeErrorKind::Timeout => (Reason::Timeout, true),
        RuntimeErrorKind::RateLimited => (Reason::RateLimited, true),
        RuntimeErrorKind::Unreachable => (Reason::Unreachable, true),
        RuntimeErrorKind::Registry => (Reason::RegistryError, true),
        RuntimeErrorKind::Corrupt => (Reason::DigestMismatch, true),
        RuntimeErrorKind::PlatformMissing => (Reason::PlatformMissing, false),
        RuntimeErrorKind::Exists | RuntimeErrorKind::Held | RuntimeErrorKind::Other => (Reason::StoreError, true),
        RuntimeErrorKind::Unsupported => (Reason::StoreError, false),
    };
    Failure { reason, message: problem.to_string(), retryable, pause: None }
}

/// Whether the blob's bytes turned out wrong after they were there, and it must be begun again.
pub(super) fn restarts(problem: &stoker_transfer::Error) -> bool {
    matches!(problem, stoker_transfer::Error::Spool(stoker_transfer::spool::Error::Restarted { .. }))
}

/// A blob that is fetched right and is wrong when it is used, again and again.
pub(super) fn keeps_changing(image: &str, blob: &Digest, times: u32) -> Failure {
    Failure {
        reason: Reason::StoreError,
        message: format!(
            "{image}: {blob} was fetched and checked {times} times, and each time other bytes were read from the spool \
             afterwards; check this node's disk and memory"
        ),
        retryable: true,
        pause: None,
    }
}

/// The public word for trouble on the way from the registry.
pub(crate) fn transfer_reason(kind: TransferErrorKind) -> Reason {
    match kind {
        TransferErrorKind::InvalidReference => Reason::InvalidReference,
        TransferErrorKind::NotFound => Reason::NotFound,
        TransferErrorKind::Unauthorized => Reason::Unauthorized,
        TransferErrorKind::RateLimited => Reason::RateLimited,
        TransferErrorKind::Unreachable => Reason::Unreachable,
        TransferErrorKind::Stalled => Reason::Stalled,
        TransferErrorKind::DigestMismatch => Reason::DigestMismatch,
        TransferErrorKind::TooLarge => Reason::TooLarge,
        TransferErrorKind::InvalidContent => Reason::InvalidContent,
        TransferErrorKind::PlatformMissing => Reason::PlatformMissing,
        TransferErrorKind::Server => Reason::RegistryError,
        TransferErrorKind::NoSpace => Reason::NoSpace,
        TransferErrorKind::Disk => Reason::StoreError,
    }
}

/// An error on the way from the registry.
pub(super) fn transfer_failure(problem: stoker_transfer::Error) -> Failure {
    let reason = transfer_reason(problem.kind());
    let (retryable, pause) = (problem.is_retryable(), problem.retry_after());
    Failure { reason, message: problem.to_string(), retryable, pause }
}
