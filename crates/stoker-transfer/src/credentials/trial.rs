//! Logins tried in order, and which one worked.
//!
//! A registry is asked with each until one is let in. A registry may also say that there is nothing where it does not
//! let us look, so that goes on to the next too. Anything else is an answer.

use std::sync::atomic::{AtomicUsize, Ordering};

use oci_spec::image::{Descriptor, Digest};

use crate::error::{Error, TransferErrorKind};
use crate::image::PlatformImage;
use crate::login::Login;
use crate::platform::Platform;
use crate::reference::Reference;
use crate::registry::Registry;

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
        self.at(self.known())
    }

    /// The place of the one that worked last; before anything did, of the first.
    pub(super) fn known(&self) -> usize {
        self.working.load(Ordering::Relaxed).min(self.logins.len())
    }

    /// The place of nobody, behind all logins.
    pub(super) fn nobody(&self) -> usize {
        self.logins.len()
    }

    /// Who is at this place.
    pub(super) fn at(&self, place: usize) -> Option<&Login> {
        self.logins.get(place)
    }

    /// The one at this place was let in.
    pub(super) fn works(&self, place: usize) {
        self.working.store(place, Ordering::Relaxed);
    }

    /// Those to try now, beginning with the one that worked last.
    fn trial(&self) -> Trial<'_> {
        let known = self.known();
        let others = (0..=self.logins.len()).filter(|at| *at != known);
        Trial { logins: self, left: [known].into_iter().chain(others).rev().collect(), refusal: None }
    }
}

/// One question on its way through the logins.
struct Trial<'a> {
    logins: &'a Logins,
    /// The next one is the last.
    left: Vec<usize>,
    /// The first: it is about the login that fits best.
    refusal: Option<Error>,
}

impl<'a> Trial<'a> {
    fn login(&self) -> Option<&'a Login> {
        self.logins.at(*self.left.last()?)
    }

    /// The answer, where this is one; none where the next login is to be tried.
    fn judge<T>(&mut self, result: Result<T, Error>) -> Option<Result<T, Error>> {
        let tried = self.left.pop();
        match result {
            Err(error) if matches!(error.kind(), TransferErrorKind::Unauthorized | TransferErrorKind::NotFound) => {
                let refusal = self.refusal.get_or_insert(error);
                self.left.is_empty().then(|| Err(refusal.clone()))
            }
            Ok(answer) => {
                self.logins.works(tried.unwrap_or_default());
                Some(Ok(answer))
            }
            Err(error) => Some(Err(error)),
        }
    }
}

impl Registry {
    /// [`resolve`](Self::resolve) with whichever of these logins is let in.
    pub async fn resolve_with(&self, image: &Reference, logins: &Logins) -> Result<Descriptor, Error> {
        let mut trial = logins.trial();
        loop {
            let result = self.resolve(image, trial.login()).await;
            if let Some(answer) = trial.judge(result) {
                return answer;
            }
        }
    }

    /// [`image`](Self::image) with whichever of these logins is let in.
    pub async fn image_with(
        &self,
        image: &Reference,
        digest: &Digest,
        platform: &Platform,
        logins: &Logins,
    ) -> Result<PlatformImage, Error> {
        let mut trial = logins.trial();
        loop {
            let result = self.image(image, digest, platform, trial.login()).await;
            if let Some(answer) = trial.judge(result) {
                return answer;
            }
        }
    }
}
