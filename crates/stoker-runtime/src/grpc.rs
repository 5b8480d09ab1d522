//! A connection to a runtime's socket, and what its errors mean.
//!
//! An address comes in; a channel that connects when it is used, and again after the runtime was restarted, goes out.
//! gRPC's codes and the words that runtimes use instead of them become a [`RuntimeErrorKind`], once, here.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// How long a runtime may take to accept a connection on its socket.
const CONNECT: Duration = Duration::from_secs(5);

/// How long a runtime may be starting, and how often to look whether it still is.
const STARTING: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(100);

/// How long a question that needs no work may take. One that does has a limit of its own.
pub(crate) const ANSWER: Duration = Duration::from_secs(30);

/// A runtime that did not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{runtime} could not {action}: {why}")]
pub struct Error {
    /// Which one: its kind and socket.
    pub runtime: String,
    /// What was asked of it.
    pub action: String,
    /// What it said.
    pub why: String,
    /// What that means.
    pub kind: RuntimeErrorKind,
}

/// What a runtime's error means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeErrorKind {
    /// What was asked for is not there.
    NotFound,
    /// It is there already.
    Exists,
    /// Somebody else holds it now.
    Held,
    /// The registry refused the login.
    Unauthorized,
    /// The disk is full.
    NoSpace,
    /// The disk would be fuller than it may be.
    NoRoom,
    /// The runtime is not there, or is going down: it may come back.
    Unavailable,
    /// The runtime is there and will answer in a moment.
    Starting,
    /// It took too long.
    Timeout,
    /// The registry asked for patience.
    RateLimited,
    /// The registry cannot be reached from the runtime.
    Unreachable,
    /// The registry failed.
    Registry,
    /// The bytes are not those that the digest names.
    Corrupt,
    /// The image does not exist for this platform.
    PlatformMissing,
    /// It does not know the question.
    Unsupported,
    /// Anything else.
    Other,
}

/// The path of a `unix://` address, or of a bare path.
pub fn socket(endpoint: &str) -> Option<PathBuf> {
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    path.starts_with('/').then(|| PathBuf::from(path))
}

/// A channel to a socket. Nothing is asked of it yet.
pub(crate) fn channel(socket: &Path) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
    Ok(endpoint.connect_timeout(CONNECT).initial_stream_window_size(1 << 20).connect_lazy())
}

/// Asks, and asks again while the runtime is starting.
pub(crate) async fn once_started<T, F>(ask: impl Fn() -> F) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    let mut waited = Duration::ZERO;
    loop {
        match ask().await {
            Err(status) if RuntimeErrorKind::of(&status) == RuntimeErrorKind::Starting && waited < STARTING => {
                tokio::time::sleep(SOON).await;
                waited += SOON;
            }
            answer => return answer,
        }
    }
}

/// A deadline for a question.
pub(crate) fn within<T>(message: T, limit: Duration) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(limit);
    request
}

impl RuntimeErrorKind {
    /// Runtimes put most of what happened into words; these are the ones of containerd 1.6 to 2.2 and CRI-O.
    pub(crate) fn of(status: &Status) -> Self {
        // With a space behind it, so that a number at the end is one too.
        let text = format!("{} ", status.message().to_ascii_lowercase());
        let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
        match status.code() {
            _ if says(&["no space left on device", "disk quota exceeded"]) => Self::NoSpace,
            _ if says(&[": 401 ", ": 403 ", "insufficient_scope", "authorization failed"]) => Self::Unauthorized,
            _ if says(&[": 429 ", "toomanyrequests"]) => Self::RateLimited,
            _ if says(&[": 500 ", ": 502 ", ": 503 ", ": 504 "]) => Self::Registry,
            _ if says(&["no match for platform"]) => Self::PlatformMissing,
            _ if says(&["unexpected commit digest", "failed size validation", "unexpected digest"]) => Self::Corrupt,
            // containerd's CRI, for a moment after the start of containerd.
            _ if says(&["server is not initialized yet"]) => Self::Starting,
            Code::NotFound => Self::NotFound,
            Code::AlreadyExists => Self::Exists,
            Code::Unimplemented => Self::Unsupported,
            // containerd says "ref layer-sha256:… locked for 5s (since …): unavailable".
            _ if says(&["locked for"]) => Self::Held,
            Code::DeadlineExceeded | Code::Cancelled => Self::Timeout,
            Code::Unavailable => Self::Unavailable,
            _ if says(&[
                "transport error",
                "broken pipe",
                "error reading server preface",
                "error reading a body from connection",
            ]) =>
            {
                Self::Unavailable
            }
            _ if says(&[": not found"]) => Self::NotFound,
            _ if says(&[
                "connection refused",
                "no such host",
                "i/o timeout",
                "failed to do request",
                "unexpected eof",
            ]) =>
            {
                Self::Unreachable
            }
            _ => Self::Other,
        }
    }
}

impl Error {
    /// Whether the disk is full.
    pub fn is_full(&self) -> bool {
        self.kind == RuntimeErrorKind::NoSpace
    }
}

/// One line of a runtime's words, and not too much of them.
pub(crate) fn words(status: &Status) -> String {
    let text = status.message();
    let text = if text.is_empty() { status.code().description() } else { text };
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(600).collect();
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_path() {
        assert_eq!(socket("unix:///run/x.sock"), Some("/run/x.sock".into()));
        assert_eq!(socket("/run/x.sock"), Some("/run/x.sock".into()));
        assert_eq!(socket("tcp://1.2.3.4:5"), None);
        assert_eq!(socket("x.sock"), None);
    }

    #[test]
    fn words_have_meanings() {
        let not_found = r#"failed to resolve reference "h/r:t": h/r:t: not found"#;
        let refused = r#"failed to resolve reference "h/r:t": failed to do request: Head "http://h/v2": dial tcp 127.0.0.1:1: connect: connection refused"#;
        for (code, text, kind) in [
            (Code::NotFound, "image \"x\": not found", RuntimeErrorKind::NotFound),
            (Code::Unknown, not_found, RuntimeErrorKind::NotFound),
            (
                Code::Unknown,
                "unexpected status from HEAD request to http://x: 401 Unauthorized",
                RuntimeErrorKind::Unauthorized,
            ),
            (Code::Unknown, "failed with status code [manifests v1]: 429", RuntimeErrorKind::RateLimited),
            (
                Code::Unknown,
                "unexpected status from HEAD request to http://x/v2/a/manifests/v1: 503 Service Unavailable",
                RuntimeErrorKind::Registry,
            ),
            (Code::Unknown, "write /x: no space left on device", RuntimeErrorKind::NoSpace),
            (Code::Unknown, refused, RuntimeErrorKind::Unreachable),
            (Code::Unknown, "transport error", RuntimeErrorKind::Unavailable),
            (Code::Unknown, "server is not initialized yet", RuntimeErrorKind::Starting),
            (Code::Internal, "h2 protocol error: error reading a body from connection", RuntimeErrorKind::Unavailable),
            (Code::Unavailable, "ref layer-sha256:0 locked for 2s (since x): unavailable", RuntimeErrorKind::Held),
            (Code::Unavailable, "connection refused", RuntimeErrorKind::Unavailable),
            (Code::Unimplemented, "unknown service runtime.v1.RuntimeService", RuntimeErrorKind::Unsupported),
            (Code::AlreadyExists, "content sha256:0: already exists", RuntimeErrorKind::Exists),
            (
                Code::FailedPrecondition,
                "unexpected commit digest sha256:1, expected sha256:0",
                RuntimeErrorKind::Corrupt,
            ),
        ] {
            assert_eq!(RuntimeErrorKind::of(&Status::new(code, text)), kind, "{code:?} {text}");
        }
    }
}
