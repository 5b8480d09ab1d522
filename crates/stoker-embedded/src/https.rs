//! The API over HTTPS. In: connections from strangers. Out: the service's answers to those who hold the token, 401 to the rest.
//! A connection that has not shown the token after ten seconds is closed, and the oldest of these is closed where they are too many:
//! a stranger can neither keep connections nor take those of the owner.

mod identity;

use crate::accept::accept;
use crate::crowd::{Crowd, Stranger};
use crate::refusal::Refusal;
use crate::serve::{Body, Service, refused};
use crate::{Api, Error};
use http::header::AUTHORIZATION;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use identity::{Identity, Secrets};
use rustls::ServerConfig;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::Service as _;

/// Connections at one time of those who have shown the token; more wait in the listener's queue.
const MAX_CONNECTIONS: usize = 4096;
/// Connections at one time that have not; one more closes the oldest.
const MAX_STRANGERS: usize = 256;
/// The time for the handshake and the first request with the token.
const TOKEN_WITHIN: Duration = Duration::from_secs(10);
/// The wait for a whole head. It runs on an idle connection too, so it is longer than clients keep one.
const HEAD: Duration = Duration::from_secs(120);
const MAX_HEADERS: usize = 100;
const MAX_HEAD: usize = 64 * 1024;
/// How long open requests may take after the server was told to stop.
const DRAIN: Duration = Duration::from_secs(5);

/// Why the HTTPS server could not be started or has ended.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is taken.
    #[error("{listen} is already in use; stop what listens there or choose another address with --listen")]
    InUse {
        /// The address.
        listen: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {listen}: {source}; choose an address of this machine with --listen")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The kept identity cannot be used.
    #[error(
        "the server's identity {} cannot be used: {why}; remove it to get a new one (kubeconfigs written before stop working)",
        path.display()
    )]
    Identity {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The certificate could not be made.
    #[error("the server's certificate could not be made: {0}")]
    Certificate(String),
}

/// An HTTPS server on a port, with a certificate authority and a token of its own.
pub struct Server {
    api: Api,
    listener: TcpListener,
    addr: SocketAddr,
    identity: Identity,
    crowd: Crowd,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("addr", &self.addr).finish_non_exhaustive()
    }
}

impl Server {
    /// Takes the port and makes certificate and token; nobody is answered before [`Server::run`].
    pub async fn bind(api: Api, listen: SocketAddr) -> Result<Self, Error> {
        Self::bind_as(api, listen, None).await
    }

    /// The same with the authority and the token of `identity`, a file that is made where it is not there. A kubeconfig stays
    /// valid across restarts as long as that file and the address are the same.
    pub async fn bind_kept(api: Api, listen: SocketAddr, identity: &Path) -> Result<Self, Error> {
        Self::bind_as(api, listen, Some(identity.to_owned())).await
    }

    async fn bind_as(api: Api, listen: SocketAddr, kept: Option<PathBuf>) -> Result<Self, Error> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => ServerError::InUse { listen },
            _ => ServerError::Listen { listen, source },
        };
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        let today = (api.keeper.clock)().to_zoned(jiff::tz::TimeZone::UTC).date();
        let make = move || {
            let secrets = match kept {
                Some(file) => identity::kept::load(&file, today)?,
                None => Secrets::new(today)?,
            };
            Identity::new(secrets, addr.ip())
        };
        let made = tokio::task::spawn_blocking(make).await;
        let identity = made.map_err(|e| ServerError::Certificate(e.to_string()))??;
        Ok(Self { api, listener, addr, identity, crowd: Crowd::new(MAX_STRANGERS, TOKEN_WITHIN) })
    }

    /// The address, with the port that was really taken.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// A kubeconfig with the CA and the token inline. Whoever reads it may do everything: write it with mode 0600.
    pub fn kubeconfig(&self) -> String {
        self.identity.kubeconfig(self.addr)
    }

    /// Serves until cancelled; then watches end and open requests get a few seconds.
    pub async fn run(self, cancel: CancellationToken) -> Result<(), Error> {
        let watches = self.api.until.child_token();
        let (service, token) = (self.api.service_until(watches.clone()), self.identity.token());
        let acceptor = TlsAcceptor::from(Arc::new(self.identity.tls()?));
        let http = http();
        let graceful = GracefulShutdown::new();
        let serve = |stream| {
            let (acceptor, http, stranger) = (acceptor.clone(), http.clone(), Arc::new(self.crowd.enter()));
            let guard = Guard { service: service.clone(), token: token.clone(), stranger: stranger.clone() };
            let (watcher, cancel) = (graceful.watcher(), cancel.clone());
            let served = async move {
                let tls = tokio::select! {
                    () = cancel.cancelled() => return,
                    tls = acceptor.accept(stream) => tls,
                };
                let Ok(tls) = tls else {
                    tracing::debug!("a TLS handshake failed");
                    return;
                };
                if let Err(error) = watcher.watch(http.serve_connection(TokioIo::new(tls), guard)).await {
                    tracing::debug!(%error, "a connection ended early");
                }
            };
            async move {
                tokio::select! {
                    () = served => {}
                    () = stranger.must_go() => tracing::debug!("a connection that did not show the token was closed"),
                }
            }
        };
        let mut connections = accept(&self.listener, MAX_CONNECTIONS + MAX_STRANGERS, &cancel, serve).await;
        watches.cancel();
        if tokio::time::timeout(DRAIN, graceful.shutdown()).await.is_err() {
            tracing::info!("some connections did not end in time and were cut");
        }
        connections.shutdown().await;
        Ok(())
    }
}

fn http() -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_headers(MAX_HEADERS).max_buf_size(MAX_HEAD);
    http
}

/// Lets in who has the token.
#[derive(Clone)]
struct Guard {
    service: Service,
    token: identity::Token,
    stranger: Arc<Stranger>,
}

impl hyper::service::Service<Request<Incoming>> for Guard {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = <Service as tower::Service<Request<Incoming>>>::Future;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let shown = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
        if self.token.is(shown) {
            self.stranger.is_known();
            return self.service.clone().call(request);
        }
        Box::pin(std::future::ready(Ok(refused(&Refusal::unauthorized()))))
    }
}

/// TLS with the machine's own certificate; the provider is named, so that no global default is needed.
fn tls(
    chain: Vec<rustls::pki_types::CertificateDer<'static>>,
    key: rustls::pki_types::PrivateKeyDer<'static>,
) -> Result<ServerConfig, ServerError> {
    let failed = |error: rustls::Error| ServerError::Certificate(error.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(failed)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(failed)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests;
