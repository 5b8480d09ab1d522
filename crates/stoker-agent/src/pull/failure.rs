//! What other crates call an error, in the public words of reports.

use stoker_core::Reason;
use stoker_core::step::Failure;
use stoker_runtime::grpc::Kind as RuntimeKind;
use stoker_transfer::{Digest, Kind};

/// An error of the image store.
pub(super) fn runtime_failure(problem: impl Into<stoker_runtime::Error>) -> Failure {
    let problem = problem.into();
    let (reason, retryable) = match problem.kind() {
        RuntimeKind::NotFound => (Reason::NotFound, true),
        RuntimeKind::Unauthorized => (Reason::Unauthorized, false),
        RuntimeKind::NoSpace => (Reason::NoSpace, true),
        RuntimeKind::NoRoom => (Reason::Disk, true),
        RuntimeKind::Unavailable | RuntimeKind::Starting => (Reason::RuntimeUnavailable, true),
        RuntimeKind::Timeout => (Reason::Timeout, true),
        RuntimeKind::RateLimited => (Reason::RateLimited, true),
        RuntimeKind::Unreachable => (Reason::Unreachable, true),
        RuntimeKind::Registry => (Reason::RegistryError, true),
        RuntimeKind::Corrupt => (Reason::DigestMismatch, true),
        RuntimeKind::PlatformMissing => (Reason::PlatformMissing, false),
        RuntimeKind::Exists | RuntimeKind::Held | RuntimeKind::Other => (Reason::StoreError, true),
        RuntimeKind::Unsupported => (Reason::StoreError, false),
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
pub(crate) fn transfer_reason(kind: Kind) -> Reason {
    match kind {
        Kind::InvalidReference => Reason::InvalidReference,
        Kind::NotFound => Reason::NotFound,
        Kind::Unauthorized => Reason::Unauthorized,
        Kind::RateLimited => Reason::RateLimited,
        Kind::Unreachable => Reason::Unreachable,
        Kind::Stalled => Reason::Stalled,
        Kind::DigestMismatch => Reason::DigestMismatch,
        Kind::TooLarge => Reason::TooLarge,
        Kind::InvalidContent => Reason::InvalidContent,
        Kind::PlatformMissing => Reason::PlatformMissing,
        Kind::Server => Reason::RegistryError,
        Kind::NoSpace => Reason::NoSpace,
        Kind::Disk => Reason::StoreError,
    }
}

/// An error on the way from the registry.
pub(super) fn transfer_failure(problem: stoker_transfer::Error) -> Failure {
    let reason = transfer_reason(problem.kind());
    let (retryable, pause) = (problem.is_retryable(), problem.retry_after());
    Failure { reason, message: problem.to_string(), retryable, pause }
}
