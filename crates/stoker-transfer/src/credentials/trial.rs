//! Logins tried in order, and which one worked.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, Kind};
use crate::login::Login;

/// The logins of one pull, in the order in which they are tried; nobody (anonymous) is always the last. What worked is
/// remembered, so that a pull finds it once.
#[derive(Debug, Default)]
pub struct Logins {
    logins: Vec<Login>,
    /// The one that worked last; `logins.len()` is nobody.
    working: AtomicUsize,
}

impl Logins {
    /// These, then nobody.
    pub fn new(logins: Vec<Login>) -> Self {
        Self { logins, working: AtomicUsize::new(0) }
    }

    /// Whom to be: each login, and nobody at the end.
    pub fn candidates(&self) -> impl Iterator<Item = Option<&Login>> {
        self.logins.iter().map(Some).chain([None])
    }

    /// The one that worked; before anything did, the first.
    pub fn current(&self) -> Option<&Login> {
        self.logins.get(self.working.load(Ordering::Relaxed))
    }

    /// Asks with each login until one is let in, beginning with the one that worked last. A registry may also say that
    /// there is nothing where it does not let us look, so that goes on to the next too. Where none works the first
    /// refusal is the answer: it is about the login that fits best.
    pub async fn find<T>(&self, ask: impl AsyncFn(Option<&Login>) -> Result<T, Error>) -> Result<T, Error> {
        let known = self.working.load(Ordering::Relaxed).min(self.logins.len());
        let mut first: Option<Error> = None;
        for at in [known].into_iter().chain((0..=self.logins.len()).filter(|at| *at != known)) {
            match ask(self.logins.get(at)).await {
                Ok(answer) => {
                    self.working.store(at, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(error) if matches!(error.kind(), Kind::Unauthorized | Kind::NotFound) => {
                    first.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(first.unwrap_or_else(|| crate::spool::Error::Stopped.into()))
    }
}
