//! When to try again.
//!
//! Failures come in; how long to wait goes out, or that it is enough. It never sleeps itself.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::{DATE, RETRY_AFTER};

use super::Error;

/// How patient we are with a registry.
#[derive(Debug, Clone)]
pub struct Retry {
    /// Tries in a row that bring nothing new, before it is a failure.
    pub attempts: u32,
    /// The first wait between two tries; it doubles from there.
    pub first: Duration,
    /// No wait of our own is longer than this.
    pub longest: Duration,
    /// A `Retry-After` up to this is waited for; a longer one is an error that says so.
    pub longest_retry_after: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 5,
            first: Duration::from_millis(200),
            longest: Duration::from_secs(10),
            longest_retry_after: Duration::from_secs(60),
        }
    }
}

/// The tries of one request, or of one blob between two bytes.
#[derive(Debug)]
pub(crate) struct Backoff<'a> {
    retry: &'a Retry,
    failed: u32,
}

impl<'a> Backoff<'a> {
    pub(crate) fn new(retry: &'a Retry) -> Self {
        Self { retry, failed: 0 }
    }

    /// Something new came: patience starts over.
    pub(crate) fn reset(&mut self) {
        self.failed = 0;
    }

    /// How long to wait after this failure, or `None` if it is final.
    pub(crate) fn after(&mut self, error: &Error) -> Option<Duration> {
        self.failed = self.failed.saturating_add(1);
        if !error.is_retryable() || error.is_refused_redirect() || self.failed >= self.retry.attempts {
            return None;
        }
        match error.retry_after() {
            Some(wait) => (wait <= self.retry.longest_retry_after).then_some(wait),
            None => Some(jitter(self.step())),
        }
    }

    fn step(&self) -> Duration {
        let doublings = self.failed.saturating_sub(1).min(16);
        self.retry.first.saturating_mul(1 << doublings).min(self.retry.longest)
    }
}

/// Somewhere between half of it and all of it: a thousand nodes that failed together should not come back together.
fn jitter(wait: Duration) -> Duration {
    let random = RandomState::new().hash_one(wait) % 512;
    wait / 2 + wait / 1024 * random as u32
}

/// The wait that a server asks for, as seconds or as a date.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let until = httpdate::parse_http_date(text).ok()?;
    // The server's own clock, where it tells it: then a wrong clock on the node does no harm.
    let now = headers
        .get(DATE)
        .and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok())
        .unwrap_or_else(SystemTime::now);
    Some(until.duration_since(now).unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{Party, RequestProblem};

    fn broken(retry_after: Option<Duration>) -> Error {
        let problem = RequestProblem::Server { status: 503, retry_after, said: None };
        Error::Failed { who: Party::new("r", "r"), what: "w".into(), problem }
    }

    #[test]
    fn waits_grow_to_a_cap_and_end() {
        let retry = Retry { attempts: 100, ..Retry::default() };
        let mut backoff = Backoff::new(&retry);
        let waits: Vec<_> = std::iter::from_fn(|| backoff.after(&broken(None))).collect();
        assert_eq!(waits.len(), 99);
        assert!(waits[0] <= retry.first && waits[0] >= retry.first / 2);
        assert!(waits.iter().all(|wait| *wait <= retry.longest));
        assert!(waits[98] >= retry.longest / 2);
    }

    #[test]
    fn a_wish_of_the_server_is_kept_up_to_the_cap() {
        let retry = Retry::default();
        let mut backoff = Backoff::new(&retry);
        assert_eq!(backoff.after(&broken(Some(Duration::from_secs(60)))), Some(Duration::from_secs(60)));
        assert_eq!(backoff.after(&broken(Some(Duration::from_secs(61)))), None);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let headers = |pairs: &[(http::HeaderName, &str)]| {
            pairs.iter().map(|(k, v)| (k.clone(), v.parse().unwrap())).collect::<HeaderMap>()
        };
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        for (given, wait) in [
            (headers(&[(RETRY_AFTER, "7")]), Some(7)),
            (headers(&[(RETRY_AFTER, "Sun, 06 Nov 1994 08:49:47 GMT"), (DATE, date)]), Some(10)),
            (headers(&[(RETRY_AFTER, "Sun, 06 Nov 1994 08:49:00 GMT"), (DATE, date)]), Some(0)),
            (headers(&[(RETRY_AFTER, date)]), Some(0)),
            (headers(&[(RETRY_AFTER, "-1")]), None),
            (headers(&[(RETRY_AFTER, "soon")]), None),
            (headers(&[]), None),
        ] {
            assert_eq!(retry_after(&given), wait.map(Duration::from_secs), "{given:?}");
        }
    }
}
