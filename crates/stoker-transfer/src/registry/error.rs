//! What a registry did or did not do.
//!
//! Each error is a sentence for somebody on call: the image, the host that failed, the cause and the next step. Only names of
//! hosts, images and digests go in, and what a server says of itself: never an address with its query (it may be signed),
//! never a header.

use std::time::Duration;

use super::party::Party;
use super::refusal::LoginRefusal;
use crate::error::TransferErrorKind;
use crate::hosts;
use crate::image::Bound;

/// Why a registry gave nothing that we can use.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A request failed.
    #[error("{}", sentence(who, what, problem))]
    Failed {
        /// The host that failed.
        who: Box<Party>,
        /// The image, or the part of it, that was asked for.
        what: String,
        /// How it failed.
        problem: RequestProblem,
    },
    /// The node's settings for this registry are wrong.
    #[error("cannot get {what}: {problem}")]
    Hosts {
        /// The image that was asked for.
        what: String,
        /// What is wrong.
        problem: hosts::Error,
    },
    /// Our own settings are wrong.
    #[error("cannot set up the registry client: {why}; correct the settings of this process")]
    Setup {
        /// What is wrong.
        why: String,
    },
}

/// How a request failed. `said` is the explanation in the server's answer.
#[derive(Debug, Clone)]
#[allow(missing_docs)] // The fields are words of the sentences below.
pub enum RequestProblem {
    /// No connection, or it broke.
    Unreachable { cause: String },
    /// Connected, but silent.
    Stalled { after: Duration },
    /// The registry does not know it.
    NotFound { said: Option<String> },
    /// The registry does not let us.
    Unauthorized { why: LoginRefusal, said: Option<String> },
    /// The registry wants us to slow down.
    RateLimited { retry_after: Option<Duration>, said: Option<String> },
    /// Any other status that is an error.
    Server { status: u16, retry_after: Option<Duration>, said: Option<String> },
    /// Over one of our bounds.
    TooLarge(Bound),
    /// An answer that makes no sense or is refused.
    InvalidContent { why: String },
    /// A manifest in the first format of all.
    Schema1,
    /// A digest that we cannot verify.
    Algorithm { digest: String },
    /// Bytes that are not what their digest says.
    DigestMismatch { actual: String },
    /// Nothing for this machine.
    PlatformMissing { platform: String, offered: String },
}

fn sentence(who: &Party, what: &str, problem: &RequestProblem) -> String {
    let host = who.host();
    match problem {
        RequestProblem::Unreachable { cause } => {
            format!("cannot get {what} from {who}: {cause}; {}", reach(host, cause))
        }
        RequestProblem::Stalled { after } => format!(
            "{who} sent nothing of {what} for {} s; check {host}, and the network or proxy between this node and it",
            after.as_secs()
        ),
        RequestProblem::NotFound { said } => {
            let step = match what.split(' ').next() {
                Some("image") => "check the name, or push it",
                Some("manifest") => "push the image again, or start the job again if its tag has moved since",
                _ => "a part of the image is missing there: push the image again",
            };
            format!("{who} has no {what}{}; {step}", quoted(said))
        }
        RequestProblem::Unauthorized { why, said } => {
            format!("{who} does not give us {what}: {why}{}; {}", quoted(said), why.next_step(who.registry()))
        }
        RequestProblem::RateLimited { retry_after, said } => format!(
            "{who} limits its rate for {what}{}{}; wait, or pull with an account that has a higher limit",
            quoted(said),
            after(retry_after)
        ),
        RequestProblem::Server { status, retry_after, said } => {
            format!("{who} answered {status} for {what}{}{}; {}", quoted(said), after(retry_after), look(who, *status))
        }
        RequestProblem::TooLarge(Bound::Token) => {
            format!("{who} sent a token for {what} that is too large: {}", Bound::Token)
        }
        RequestProblem::TooLarge(bound) => format!("{who} has {what}, which is too large: {bound}"),
        RequestProblem::InvalidContent { why } => {
            format!("{who} gave a wrong answer for {what}: {why}; look at {host}, or at a proxy in between")
        }
        RequestProblem::Schema1 => format!(
            "{who} has {what} only in the deprecated format of schema 1, which Stoker does not pull; push the image again \
             with a current tool"
        ),
        RequestProblem::Algorithm { digest } => format!(
            "{what} from {who} names {digest}, and Stoker verifies sha256 digests only; push the image again with sha256 \
             digests"
        ),
        RequestProblem::DigestMismatch { actual } => format!(
            "{what} from {who} has the digest {actual}, which is not the one that was asked for, twice in a row; push the \
             image again if the copy there is corrupt, or look at a proxy in between"
        ),
        RequestProblem::PlatformMissing { platform, offered } => format!(
            "{who} has {what} for {offered} only, not for {platform}; build it for this platform, or leave these nodes out"
        ),
    }
}

/// What to check where a host cannot be reached. The causes are texts of our own connector and of rustls.
fn reach(host: &str, cause: &str) -> String {
    if cause.contains("proxy") {
        return "check the proxy, and HTTPS_PROXY, HTTP_PROXY and NO_PROXY of the agent".to_owned();
    }
    if cause.contains("certificate") {
        return format!("check the certificate of {host}, or give the node its CA in hosts.toml");
    }
    format!("check that {host} is up, and the network or proxy between this node and it")
}

fn quoted(said: &Option<String>) -> String {
    said.as_ref().map(|said| format!(" (it says: {said})")).unwrap_or_default()
}

fn after(retry_after: &Option<Duration>) -> String {
    let wait = |wait: &Duration| format!(" and asks to come back in {} s", wait.as_secs());
    retry_after.as_ref().map(wait).unwrap_or_default()
}

/// Where to look after a status that is an error.
fn look(who: &Party, status: u16) -> String {
    let host = who.host();
    match status {
        _ if is_refusal(who, status) => format!(
            "it refuses the address that {} signed: check their clocks, and whether {} may read its storage",
            who.registry(),
            who.registry()
        ),
        500.. => format!("look at the logs of {host}"),
        _ => format!("look at {host}, or at a proxy in between"),
    }
}

/// Whether a redirect target refused the signed address. For an expired signature Google's storage answers 400, others 403.
fn is_refusal(who: &Party, status: u16) -> bool {
    who.is_redirect_target() && matches!(status, 400 | 401 | 403)
}

impl Error {
    /// What sort of trouble this is.
    pub fn kind(&self) -> TransferErrorKind {
        match self {
            Self::Failed { problem, .. } => problem.kind(),
            Self::Hosts { problem: crate::hosts::Error::NoMirror { .. }, .. } => TransferErrorKind::NotFound,
            Self::Setup { .. } | Self::Hosts { .. } => TransferErrorKind::InvalidContent,
        }
    }

    /// How long the registry asked us to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.problem()? {
            RequestProblem::RateLimited { retry_after, .. } | RequestProblem::Server { retry_after, .. } => {
                *retry_after
            }
            _ => None,
        }
    }

    /// Whether the same request may work later with nobody changing anything.
    pub fn is_retryable(&self) -> bool {
        match self.problem() {
            Some(
                RequestProblem::Unreachable { .. }
                | RequestProblem::Stalled { .. }
                | RequestProblem::RateLimited { .. },
            ) => true,
            Some(RequestProblem::Server { status, .. }) => {
                *status >= 500 || *status == 408 || self.is_refused_redirect()
            }
            _ => false,
        }
    }

    /// Whether a redirect target refused the signed address twice. Another request at once would not help.
    pub(crate) fn is_refused_redirect(&self) -> bool {
        matches!(self, Self::Failed { who, problem: RequestProblem::Server { status, .. }, .. } if is_refusal(who, *status))
    }

    pub(crate) fn problem(&self) -> Option<&RequestProblem> {
        match self {
            Self::Failed { problem, .. } => Some(problem),
            Self::Setup { .. } | Self::Hosts { .. } => None,
        }
    }

    /// The status of an answer that has no kind of its own.
    pub(crate) fn status(&self) -> Option<u16> {
        match self.problem()? {
            RequestProblem::Server { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether the host could not be reached, or is broken. That says nothing of the thing that was asked for.
    pub(crate) fn is_outage(&self) -> bool {
        match self.problem() {
            Some(RequestProblem::Unreachable { .. } | RequestProblem::Stalled { .. }) => true,
            // 501 is an answer of a host that works: it does not know the method.
            Some(RequestProblem::Server { status, .. }) => *status >= 500 && *status != 501,
            _ => false,
        }
    }

    /// Whether the host was only silent.
    pub(crate) fn is_stall(&self) -> bool {
        matches!(self.problem(), Some(RequestProblem::Stalled { .. }))
    }

    /// A short text that names the host and what it did, for progress reports.
    pub(crate) fn brief(&self) -> String {
        let Self::Failed { who, problem, .. } = self else { return self.to_string() };
        let host = who.host();
        match problem {
            RequestProblem::Unreachable { cause } => format!("{host}: {cause}"),
            RequestProblem::Stalled { .. } => format!("{host} sends nothing"),
            RequestProblem::NotFound { .. } => format!("{host} answered 404"),
            RequestProblem::Unauthorized { why, .. } => format!("{host}: {why}"),
            RequestProblem::RateLimited { .. } => format!("{host} answered 429"),
            RequestProblem::Server { status, .. } => format!("{host} answered {status}"),
            RequestProblem::InvalidContent { why } => format!("{host}: {why}"),
            RequestProblem::DigestMismatch { .. } => format!("{host} sent corrupt bytes"),
            _ => self.to_string(),
        }
    }

    /// The same error, with what other hosts of the registry did before.
    pub(crate) fn besides(mut self, earlier: &[String]) -> Self {
        if let Self::Failed { who, .. } = &mut self {
            who.after(earlier);
        }
        self
    }
}

impl RequestProblem {
    fn kind(&self) -> TransferErrorKind {
        match self {
            Self::Unreachable { .. } => TransferErrorKind::Unreachable,
            Self::Stalled { .. } => TransferErrorKind::Stalled,
            Self::NotFound { .. } => TransferErrorKind::NotFound,
            Self::Unauthorized { .. } => TransferErrorKind::Unauthorized,
            Self::RateLimited { .. } => TransferErrorKind::RateLimited,
            Self::Server { .. } => TransferErrorKind::Server,
            Self::TooLarge(_) => TransferErrorKind::TooLarge,
            Self::InvalidContent { .. } | Self::Schema1 | Self::Algorithm { .. } => TransferErrorKind::InvalidContent,
            Self::DigestMismatch { .. } => TransferErrorKind::DigestMismatch,
            Self::PlatformMissing { .. } => TransferErrorKind::PlatformMissing,
        }
    }
}
