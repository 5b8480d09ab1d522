//! The current trouble of a transfer that is still running.
//!
//! The transfer records which host it waits for, when bytes arrived and which error it retries after. A reader of the
//! [`Pulse`] gets the current [`TransferTrouble`], or none while bytes flow. Retries and time-outs do not depend on it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::TransferErrorKind;
use crate::registry;

/// A shorter silence than this is not reported.
const QUIET: Duration = Duration::from_secs(5);

/// The state of one transfer. Clones share it: the transfer writes it, others read it.
#[derive(Debug, Clone, Default)]
pub struct Pulse {
    state: Arc<Mutex<PulseState>>,
}

#[derive(Debug, Default)]
struct PulseState {
    /// The host that the transfer waits for, and when that host sent its last byte.
    awaited: Option<(String, Instant)>,
    /// The last error, until new bytes arrive.
    failed: Option<Failed>,
}

#[derive(Debug)]
struct Failed {
    /// When the last new byte arrived; before the first one, when the first request was sent.
    since: Instant,
    kind: TransferErrorKind,
    text: String,
}

/// Why a running transfer makes no progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferTrouble {
    /// The time since the last new byte.
    pub lasts: Duration,
    /// The kind of trouble; [`TransferErrorKind::Stalled`] for a host that is silent.
    pub kind: TransferErrorKind,
    /// A short text that names the host and what it did.
    pub text: String,
}

impl fmt::Display for TransferTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.kind == TransferErrorKind::Stalled { "stalled" } else { "retrying for" };
        write!(f, "{what} {} s: {}", self.lasts.as_secs(), self.text)
    }
}

impl Pulse {
    /// The current trouble, if any.
    pub fn trouble(&self) -> Option<TransferTrouble> {
        let state = self.state();
        let silent = state.awaited.as_ref().filter(|(_, since)| since.elapsed() >= QUIET);
        let since = state.failed.as_ref().map(|failed| failed.since);
        match (silent, &state.failed) {
            (Some((host, silent)), _) => Some(TransferTrouble {
                lasts: since.unwrap_or(*silent).elapsed(),
                kind: TransferErrorKind::Stalled,
                text: format!("{host} sends nothing"),
            }),
            (None, Some(failed)) => {
                Some(TransferTrouble { lasts: failed.since.elapsed(), kind: failed.kind, text: failed.text.clone() })
            }
            (None, None) => None,
        }
    }

    /// Whether the transfer waits for a host, or has got nothing since the last one failed.
    pub(crate) fn waits(&self) -> bool {
        let state = self.state();
        state.awaited.is_some() || state.failed.is_some()
    }

    /// The transfer starts to wait for this host.
    pub(crate) fn awaits(&self, host: &str) {
        self.state().awaited = Some((host.to_owned(), Instant::now()));
    }

    /// The transfer waits for no host: it writes to disk, or a bandwidth limit holds it back.
    pub(crate) fn rests(&self) {
        self.state().awaited = None;
    }

    /// Bytes arrived; `new` is false if the spool has them already.
    pub(crate) fn came(&self, new: bool) {
        let mut state = self.state();
        if let Some((_, since)) = &mut state.awaited {
            *since = Instant::now();
        }
        if new {
            state.failed = None;
        }
    }

    /// The transfer failed with this error and will be retried.
    pub(crate) fn failed(&self, error: &registry::Error) {
        let mut state = self.state();
        let awaited = state.awaited.take().map(|(_, since)| since);
        let before = state.failed.as_ref().map(|failed| failed.since);
        let since = before.or(awaited).unwrap_or_else(Instant::now);
        state.failed = Some(Failed { since, kind: error.kind(), text: error.brief() });
    }

    /// The transfer has ended.
    pub(crate) fn ended(&self) {
        *self.state() = PulseState::default();
    }

    /// No writer leaves the state half-written, so a poisoned lock can be used.
    fn state(&self) -> MutexGuard<'_, PulseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(status: u16) -> registry::Error {
        let problem = registry::RequestProblem::Server { status, retry_after: None, said: None };
        registry::Error::Failed { who: registry::Party::new("cdn.test", "cdn.test"), what: "w".into(), problem }
    }

    async fn passes(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    fn told(pulse: &Pulse) -> String {
        pulse.trouble().map(|trouble| trouble.to_string()).unwrap_or_default()
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_reported_after_five_seconds_while_a_host_is_awaited() {
        let pulse = Pulse::default();
        pulse.awaits("cdn.test");
        passes(4).await;
        assert_eq!(told(&pulse), "");
        passes(36).await;
        assert_eq!(told(&pulse), "stalled 40 s: cdn.test sends nothing");
        pulse.came(true);
        assert_eq!(told(&pulse), "");
        pulse.rests();
        passes(40).await;
        assert_eq!(told(&pulse), "", "the transfer waits for no host");
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_is_reported_until_new_bytes_arrive() {
        let pulse = Pulse::default();
        pulse.awaits("cdn.test");
        passes(3).await;
        pulse.failed(&broken(503));
        passes(4).await;
        assert_eq!(told(&pulse), "retrying for 7 s: cdn.test answered 503");
        pulse.awaits("cdn.test");
        passes(1).await;
        pulse.failed(&broken(502));
        assert_eq!(told(&pulse), "retrying for 8 s: cdn.test answered 502");
        pulse.awaits("cdn.test");
        pulse.came(false);
        assert_eq!(told(&pulse), "retrying for 8 s: cdn.test answered 502", "these bytes are not new");
        passes(6).await;
        assert_eq!(told(&pulse), "stalled 14 s: cdn.test sends nothing");
        pulse.came(true);
        assert_eq!(told(&pulse), "");
        pulse.failed(&broken(500));
        pulse.ended();
        assert_eq!(told(&pulse), "");
    }
}
