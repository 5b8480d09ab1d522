//! What a registry did or did not do, each a sentence for somebody on call.
//!
//! Only names of registries, images and digests go in: never an address with its query (it may be signed), never a header.

use std::time::Duration;

use crate::error::Kind;
use crate::hosts;

/// A failed conversation with a registry. `registry` is its name, `what` the image or blob it was about.
#[derive(Debug, Clone, thiserror::Error)]
#[allow(missing_docs)] // The fields are the words of the messages above them.
pub enum Error {
    /// No connection, or it broke.
    #[error("cannot get {what} from {registry}: {cause}; check the registry's name, the network and its certificate")]
    Unreachable { registry: String, what: String, cause: String },
    /// Connected, but silent.
    #[error("{registry} sent nothing of {what} for {after:?}; check the registry and the network between")]
    Stalled { registry: String, what: String, after: Duration },
    /// The registry does not know it.
    #[error("{registry} has no {what}; check the name, or push it")]
    NotFound { registry: String, what: String },
    /// The registry does not let us.
    #[error(
        "{registry} does not give us {what}: {why}; check that it exists and that the pull secret is for this registry"
    )]
    Unauthorized { registry: String, what: String, why: &'static str },
    /// The registry wants us to slow down.
    #[error("{registry} limits its rate for {what}{}; wait, or pull with an account that has a higher limit", after(.retry_after))]
    RateLimited { registry: String, what: String, retry_after: Option<Duration> },
    /// The registry failed.
    #[error("{registry} answered {status} for {what}{}; look at the registry", after(.retry_after))]
    Server { registry: String, what: String, status: u16, retry_after: Option<Duration> },
    /// Over one of our bounds.
    #[error("{what} from {registry} is over the bound of {bound}; this is not an image that Stoker takes")]
    TooLarge { registry: String, what: String, bound: &'static str },
    /// An answer that makes no sense or is refused.
    #[error("{registry} gave a wrong answer for {what}: {why}; look at the registry, or at a proxy in between")]
    InvalidContent { registry: String, what: String, why: String },
    /// Bytes that are not what their digest says.
    #[error(
        "{what} from {registry} has the digest {actual}, which is not what was asked for; the copy there is corrupt, push it again"
    )]
    DigestMismatch { registry: String, what: String, actual: String },
    /// Nothing for this machine.
    #[error(
        "{what} at {registry} is not there for {platform}, only for {offered}; build it for this platform, or leave these nodes out"
    )]
    PlatformMissing { registry: String, what: String, platform: String, offered: String },
    /// Our own settings are wrong.
    #[error("cannot set up the registry client: {why}")]
    Setup { why: String },
    /// The node's settings for this registry are wrong.
    #[error(transparent)]
    Hosts(#[from] hosts::Error),
}

impl Error {
    /// What sort of trouble this is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Unreachable { .. } => Kind::Unreachable,
            Self::Stalled { .. } => Kind::Stalled,
            Self::NotFound { .. } => Kind::NotFound,
            Self::Unauthorized { .. } => Kind::Unauthorized,
            Self::RateLimited { .. } => Kind::RateLimited,
            Self::Server { .. } => Kind::Server,
            Self::TooLarge { .. } => Kind::TooLarge,
            Self::InvalidContent { .. } | Self::Setup { .. } | Self::Hosts(_) => Kind::InvalidContent,
            Self::DigestMismatch { .. } => Kind::DigestMismatch,
            Self::PlatformMissing { .. } => Kind::PlatformMissing,
        }
    }

    /// How long the registry asked us to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::Server { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether the same request may work later with nobody changing anything.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Stalled { .. } | Self::RateLimited { .. } => true,
            Self::Server { status, .. } => *status >= 500 || *status == 408,
            _ => false,
        }
    }

    /// A short text that names the host and what it did, for progress reports.
    pub(crate) fn brief(&self) -> String {
        match self {
            Self::Unreachable { registry, cause, .. } => format!("{registry}: {cause}"),
            Self::Stalled { registry, .. } => format!("{registry} sends nothing"),
            Self::NotFound { registry, .. } => format!("{registry} answered 404"),
            Self::RateLimited { registry, .. } => format!("{registry} answered 429"),
            Self::Server { registry, status, .. } => format!("{registry} answered {status}"),
            other => other.to_string(),
        }
    }

    /// The same, said by another than the registry.
    pub(crate) fn told_by(mut self, who: String) -> Self {
        if let Some(registry) = self.registry_mut() {
            *registry = who;
        }
        self
    }

    /// The same, with what mirrors said before.
    pub(crate) fn besides(mut self, refused: &[String]) -> Self {
        if let Some(registry) = self.registry_mut()
            && !refused.is_empty()
        {
            registry.push_str(&format!(" (after {})", refused.join(", ")));
        }
        self
    }

    fn registry_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::Unreachable { registry, .. }
            | Self::Stalled { registry, .. }
            | Self::NotFound { registry, .. }
            | Self::Unauthorized { registry, .. }
            | Self::RateLimited { registry, .. }
            | Self::Server { registry, .. }
            | Self::TooLarge { registry, .. }
            | Self::InvalidContent { registry, .. }
            | Self::DigestMismatch { registry, .. }
            | Self::PlatformMissing { registry, .. } => Some(registry),
            Self::Setup { .. } | Self::Hosts(_) => None,
        }
    }
}

fn after(retry_after: &Option<Duration>) -> String {
    match retry_after {
        Some(wait) => format!(" and asks to come back in {} s", wait.as_secs()),
        None => String::new(),
    }
}
