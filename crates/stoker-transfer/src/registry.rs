//! The registry client: one per process, with its connections and tokens.
//!
//! An image's name, a digest and a login come in; descriptors, verified manifests and streams of blobs go out. It
//! writes nothing to disk. Every length, count and depth that a registry controls has a bound that the error names.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::http::{HeaderValue, Method, Uri};

use crate::hosts::{Host, Hosts};
use crate::image::Bound;
use crate::login::{self, Login};
use crate::proxy::Proxy;
use crate::pulse::Pulse;
use crate::reference::Reference;

mod blob;
mod body;
pub(crate) mod challenge;
mod connect;
mod error;
mod http;
pub(crate) mod location;
mod manifest;
mod party;
mod permission;
mod refusal;
mod retry;
pub(crate) mod said;
mod silence;
mod tls;
mod token;
mod walk;

pub(crate) use self::blob::{BlobBody, ByteOrigin};
pub(crate) use self::body::{BodyPiece, Broken};
pub use self::error::{Error, RequestProblem};
pub(crate) use self::http::may_lead_to;
use self::http::{Http, HttpAnswer, HttpFailure, HttpProblem, HttpRequest};
pub use self::party::Party;
pub use self::refusal::LoginRefusal;
pub(crate) use self::retry::Backoff;
pub use self::retry::Retry;
pub(crate) use self::silence::passed;
pub(crate) use self::token::encode;
use self::token::{Asker, Denied, ProofKey, Tokens};
pub(crate) use self::walk::Walk;

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
    inner: Arc<RegistryInner>,
    /// Where requests record their trouble.
    pulse: Pulse,
    /// Whether mirrors alone are asked.
    mirrors_only: bool,
}

#[derive(Debug)]
struct RegistryInner {
    http: Http,
    tokens: Tokens,
    hosts: Hosts,
    settings: Settings,
}

/// One thing to ask of an image's registry.
#[derive(Debug)]
struct RegistryQuestion<'a> {
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
        let inner = RegistryInner { http, tokens: Tokens::default(), hosts, settings };
        Ok(Self { inner: Arc::new(inner), pulse: Pulse::default(), mirrors_only: false })
    }

    /// The same client; its requests for tags and manifests record their trouble in this pulse.
    pub fn watched(&self, pulse: &Pulse) -> Self {
        Self { pulse: pulse.clone(), ..self.clone() }
    }

    /// The same client. If so, it asks nobody but the mirrors that the node's hosts.toml names, and hosts to which they redirect: not the registry
    /// itself, under whatever name. A mirror must be its own token server.
    pub fn mirrors_only(&self, only: bool) -> Self {
        Self { mirrors_only: only, ..self.clone() }
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// Asks a host. Asks again with new credentials after a 401, and once more for a fresh redirect if the redirect target
    /// refuses the signed address.
    async fn ask(&self, question: &RegistryQuestion<'_>, host: &Host) -> Result<HttpAnswer, Error> {
        let repository = question.image.repository();
        let address = host.address(repository, &question.path);
        let uri: Uri = address.parse().map_err(|_| question.invalid(host, "its name is no address"))?;
        let slot = self.inner.tokens.slot(ProofKey {
            place: host.place(),
            repository: repository.to_owned(),
            login: question.login.map(Login::fingerprint),
        });
        let mut ask = HttpRequest {
            accept: question.accept,
            from: question.from,
            authorization: slot.current().await,
            headers: host.headers.clone(),
            small: question.small,
            apart_from: host.apart_from.clone(),
            ..HttpRequest::new(question.method.clone(), uri.clone(), host.trust.clone())
        };
        let http = &self.inner.http;
        let send = async |ask: &HttpRequest| {
            http.send(ask.clone()).await.map_err(|failure| self.failed(question, host, failure))
        };
        let mut answer = send(&ask).await?;
        let (mut renewed, mut refreshed) = (0, false);
        loop {
            let stranger = answer.elsewhere.is_some();
            match answer.status.as_u16() {
                // The signed address may have expired: the registry signs another one.
                400 | 401 | 403 if stranger && !refreshed => {
                    refreshed = true;
                    http.discard(&mut answer).await;
                }
                // Only the registry itself may name the token server that gets our password.
                401 if !stranger && renewed < slot.renewals() => {
                    renewed += 1;
                    let challenges = challenge::challenges(&answer.headers);
                    http.discard(&mut answer).await;
                    let (trust, apart_from, login) = (&host.trust, host.apart_from.as_ref(), question.login);
                    let asker = Asker { http, registry: &uri, trust, apart_from, repository, login };
                    let header = slot
                        .renew(ask.authorization.as_ref(), &challenges, &asker)
                        .await
                        .map_err(|denied| self.denied(question, host, denied))?;
                    // A password that was good and is no longer: to say it once more does not help.
                    if ask.authorization.replace(header.clone()) == Some(header) {
                        let problem = RequestProblem::Unauthorized { why: LoginRefusal::Login, said: None };
                        return Err(question.error(question.who(host), problem));
                    }
                }
                status => {
                    if stranger || status != 401 {
                        slot.good();
                    }
                    return self.check(question, host, answer, ask.authorization.as_ref()).await;
                }
            }
            answer = send(&ask).await?;
        }
    }

    /// Turns a status that is an error into the error that it means.
    async fn check(
        &self,
        question: &RegistryQuestion<'_>,
        host: &Host,
        mut answer: HttpAnswer,
        authorization: Option<&HeaderValue>,
    ) -> Result<HttpAnswer, Error> {
        let status = answer.status.as_u16();
        if matches!(status, 200 | 206) {
            return Ok(answer);
        }
        let retry_after = retry::retry_after(&answer.headers);
        let who = question.who(host).redirected(answer.elsewhere.clone());
        let secrets = login::secrets(question.login, authorization);
        let said = self.inner.http.explanation(&mut answer, &secrets).await;
        let problem = match status {
            401 if !who.is_redirect_target() => RequestProblem::Unauthorized { why: LoginRefusal::Login, said },
            403 if !who.is_redirect_target() => RequestProblem::Unauthorized { why: LoginRefusal::Forbidden, said },
            404 => RequestProblem::NotFound { said },
            429 => RequestProblem::RateLimited { retry_after, said },
            status => RequestProblem::Server { status, retry_after, said },
        };
        Err(question.error(who, problem))
    }

    fn failed(&self, question: &RegistryQuestion<'_>, host: &Host, failure: HttpFailure) -> Error {
        let who = question.who(host).redirected(failure.elsewhere);
        self.explain(question, who, failure.why, Bound::Manifest)
    }

    fn denied(&self, question: &RegistryQuestion<'_>, host: &Host, denied: Denied) -> Error {
        let who = question.who(host);
        match denied {
            Denied::Registry(why) => question.error(who, RequestProblem::Unauthorized { why, said: None }),
            Denied::TokenServer { host, why, said } => {
                question.error(who.token_server(Some(host)), RequestProblem::Unauthorized { why, said })
            }
            Denied::Failure(host, failure) => {
                let who = who.token_server(failure.elsewhere.or(Some(host)));
                self.explain(question, who, failure.why, |_| Bound::Token)
            }
            Denied::Status { host, status: 429, retry_after, said } => {
                question.error(who.token_server(Some(host)), RequestProblem::RateLimited { retry_after, said })
            }
            Denied::Status { host, status, retry_after, said } => {
                question.error(who.token_server(Some(host)), RequestProblem::Server { status, retry_after, said })
            }
        }
    }

    fn explain(
        &self,
        question: &RegistryQuestion<'_>,
        who: Box<Party>,
        why: HttpProblem,
        bound: impl Fn(Option<u64>) -> Bound,
    ) -> Error {
        let problem = match why {
            HttpProblem::Unreachable(cause) => RequestProblem::Unreachable { cause },
            HttpProblem::Stalled => RequestProblem::Stalled { after: self.inner.settings.stall_timeout },
            HttpProblem::Refused(why) => RequestProblem::InvalidContent { why },
            HttpProblem::TooLarge(length) => RequestProblem::TooLarge(bound(length)),
            HttpProblem::Settings(unusable) => return unusable.for_image(&question.what),
        };
        question.error(who, problem)
    }
}

impl RegistryQuestion<'_> {
    /// The host that is asked, for error messages.
    fn who(&self, host: &Host) -> Box<Party> {
        Party::new(self.image.registry(), &host.authority)
    }

    fn error(&self, who: Box<Party>, problem: RequestProblem) -> Error {
        Error::Failed { who, what: self.what.clone(), problem }
    }

    fn invalid(&self, host: &Host, why: impl Into<String>) -> Error {
        self.error(self.who(host), RequestProblem::InvalidContent { why: why.into() })
    }
}
