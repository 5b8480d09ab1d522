//! The registry client: one per process, with its connections and tokens.
//!
//! An image's name, a digest and a login come in; descriptors, verified manifests and streams of blobs go out. It
//! writes nothing to disk. Every length, count and depth that a registry controls has a bound that the error names.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::http::{Method, Response, StatusCode, Uri};
use hyper::body::Incoming;

use crate::hosts::{Host, Hosts};
use crate::login::Login;
use crate::proxy::Proxy;
use crate::pulse::Pulse;
use crate::reference::Reference;

mod blob;
mod challenge;
mod connect;
mod error;
mod http;
mod location;
mod manifest;
mod retry;
mod silence;
mod tls;
mod token;
mod walk;

pub(crate) use self::blob::BlobBody;
pub use self::error::Error;
pub(crate) use self::http::chain;
use self::http::{Ask, Failure, Http};
pub(crate) use self::retry::Backoff;
pub use self::retry::Retry;
pub(crate) use self::silence::passed;
pub(crate) use self::token::encode;
use self::token::{Asker, Denied, Key, Tokens};
pub(crate) use self::walk::Walk;

const REFUSED: &str = "it refuses the login (401)";

/// How to speak to registries.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What we call ourselves.
    pub user_agent: String,
    /// How long a TCP connection may take to come about.
    pub connect_timeout: Duration,
    /// How long nothing may come, neither an answer nor a byte of it.
    pub stall_timeout: Duration,
    /// How often and how patiently to try again.
    pub retry: Retry,
    /// Certificates (PEM, any number) to trust besides the public ones.
    pub extra_ca: Vec<u8>,
    /// Directories like containerd's `certs.d`, with the mirrors and certificates of registries; read anew at each pull. The
    /// first that knows a registry counts; one that none knows is asked directly.
    pub hosts: Vec<PathBuf>,
    /// The proxies to go through.
    pub proxy: Proxy,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            user_agent: concat!("stoker/", env!("CARGO_PKG_VERSION")).to_owned(),
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
            retry: Retry::default(),
            extra_ca: Vec::new(),
            hosts: Vec::new(),
            proxy: Proxy::none(),
        }
    }
}

/// A client of any number of registries. Clones share connections and tokens.
#[derive(Debug, Clone)]
pub struct Registry {
    inner: Arc<Inner>,
    /// Where requests record their trouble.
    pulse: Pulse,
}

#[derive(Debug)]
struct Inner {
    http: Http,
    tokens: Tokens,
    hosts: Hosts,
    settings: Settings,
}

/// One thing to ask of an image's registry.
#[derive(Debug)]
struct Question<'a> {
    image: &'a Reference,
    login: Option<&'a Login>,
    method: Method,
    /// `manifests/…` or `blobs/…`.
    path: String,
    accept: Option<&'static str>,
    from: u64,
    /// Whether a limit counts the bytes of the answer.
    small: bool,
    /// The thing in words, for errors.
    what: String,
}

impl Registry {
    /// A client with these settings. Fails only where the settings cannot be used.
    pub fn new(settings: Settings) -> Result<Self, crate::Error> {
        let http = Http::new(&settings)?;
        let hosts = Hosts::new(settings.hosts.clone());
        let inner = Inner { http, tokens: Tokens::default(), hosts, settings };
        Ok(Self { inner: Arc::new(inner), pulse: Pulse::default() })
    }

    /// The same client; its requests for tags and manifests record their trouble in this pulse.
    pub fn watched(&self, pulse: &Pulse) -> Self {
        Self { inner: self.inner.clone(), pulse: pulse.clone() }
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// Asks a host once, and again where it wants another proof of who we are.
    async fn ask(&self, question: &Question<'_>, host: &Host) -> Result<Response<Incoming>, Error> {
        let repository = question.image.repository();
        let address = host.address(repository, &question.path);
        let uri: Uri = address.parse().map_err(|_| question.invalid("its name is no address"))?;
        let slot = self.inner.tokens.slot(Key {
            place: host.place(),
            repository: repository.to_owned(),
            login: question.login.map(Login::fingerprint),
        });
        let mut ask = Ask {
            accept: question.accept,
            from: question.from,
            authorization: slot.current().await,
            headers: host.headers.clone(),
            small: question.small,
            ..Ask::new(question.method.clone(), uri.clone(), host.trust.clone())
        };
        let http = &self.inner.http;
        let mut response = http.send(ask.clone()).await.map_err(|e| self.failed(question, e))?;
        let mut renewed = 0;
        while response.status() == StatusCode::UNAUTHORIZED && renewed < slot.renewals() {
            renewed += 1;
            let challenges = challenge::challenges(response.headers());
            http.discard(response).await;
            let asker = Asker { http, registry: &uri, trust: &host.trust, repository, login: question.login };
            let header = slot
                .renew(ask.authorization.as_ref(), &challenges, &asker)
                .await
                .map_err(|denied| self.denied(question, denied))?;
            // A password that was good and is no longer: to say it once more does not help.
            if ask.authorization.replace(header.clone()) == Some(header) {
                return Err(self.denied(question, Denied::Why(REFUSED)));
            }
            response = http.send(ask.clone()).await.map_err(|e| self.failed(question, e))?;
        }
        if response.status() != StatusCode::UNAUTHORIZED {
            slot.good();
        }
        self.check(question, response)
    }

    fn check(&self, question: &Question<'_>, response: Response<Incoming>) -> Result<Response<Incoming>, Error> {
        let (registry, what) = question.names();
        let status = response.status();
        let retry_after = || retry::retry_after(response.headers());
        match status.as_u16() {
            200 | 206 => Ok(response),
            401 => Err(Error::Unauthorized { registry, what, why: REFUSED }),
            403 => Err(Error::Unauthorized { registry, what, why: "the login may not pull it (403)" }),
            404 => Err(Error::NotFound { registry, what }),
            429 => Err(Error::RateLimited { registry, what, retry_after: retry_after() }),
            status => Err(Error::Server { registry, what, status, retry_after: retry_after() }),
        }
    }

    fn failed(&self, question: &Question<'_>, failure: Failure) -> Error {
        let (registry, what) = question.names();
        match failure {
            Failure::Unreachable(cause) => Error::Unreachable { registry, what, cause },
            Failure::Stalled => Error::Stalled { registry, what, after: self.inner.settings.stall_timeout },
            Failure::Refused(why) => Error::InvalidContent { registry, what, why },
            Failure::TooLarge => Error::TooLarge { registry, what, bound: "4 MiB for a manifest" },
            Failure::Settings(error) => error,
        }
    }

    fn denied(&self, question: &Question<'_>, denied: Denied) -> Error {
        let (registry, what) = question.names();
        match denied {
            Denied::Why(why) => Error::Unauthorized { registry, what, why },
            Denied::Failure(Failure::TooLarge) => Error::TooLarge { registry, what, bound: "64 KiB for a token" },
            Denied::Failure(failure) => self.failed(question, failure),
            Denied::Status(StatusCode::TOO_MANY_REQUESTS, retry_after) => {
                Error::RateLimited { registry, what, retry_after }
            }
            Denied::Status(status, retry_after) => {
                Error::Server { registry, what, status: status.as_u16(), retry_after }
            }
        }
    }
}

impl Question<'_> {
    fn names(&self) -> (String, String) {
        (self.image.registry().to_owned(), self.what.clone())
    }

    fn invalid(&self, why: impl Into<String>) -> Error {
        let (registry, what) = self.names();
        Error::InvalidContent { registry, what, why: why.into() }
    }
}
