//! What a node serves to others.
//!
//! Connections of nodes come in; blobs of the images that their tickets name go out, also while they are still growing here. Nothing is
//! said to a caller without a good ticket, and nothing of another image to one that has. What one caller can make this node do is
//! bounded: connections, requests, readers of an image, and the time in which it must show a ticket and take what it asked for.
//!
//! `GET /v1/blobs/DIGEST` (with `Range: bytes=N-`) gives a blob from an offset on, as it comes. `GET /v1/state` says how far the image is
//! here. 503 with the header `stoker-state` means "not yet" or "not now": the caller may ask again soon. 404 means that it
//! will not be here.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use http::HeaderName;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use oci_spec::image::Digest;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::key::{PeerId, PeerIdentity, caller};
use super::ticket::{Ticket, TicketError};
use crate::limit::Pace;
use crate::spool::Growing;
use call::Call;
use newcomers::{Newcomer, Newcomers};
use places::CallerPlaces;

mod call;
mod newcomers;
mod places;

/// Why a 503 was said.
pub(super) const STATE: HeaderName = HeaderName::from_static("stoker-state");

const MOST_HEAD: usize = 16 * 1024;
/// After a listener's error, such as too many open files.
const PAUSE: Duration = Duration::from_millis(200);

/// The image as this node has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerState {
    /// Bytes of it that are here.
    pub have: u64,
    /// Whether that is all of it.
    pub whole: bool,
    /// How many streams of it others read here.
    #[serde(default)]
    pub readers: u32,
}

/// Reads a blob from an offset on.
pub type OpenFrom = Box<dyn FnOnce(u64) -> BoxStream<'static, io::Result<Bytes>> + Send>;

/// A blob as this node has it.
pub enum ServedPart {
    /// All of it, in this file.
    File(File, u64),
    /// All of it, of this length, where only somebody else can read it.
    Stream(OpenFrom, u64),
    /// All of it.
    Bytes(Bytes),
    /// It is on its way.
    Growing(Growing),
    /// It is not here yet, and will come.
    Expected,
    /// It will not be here, or is no part of this image.
    Nothing,
}

impl std::fmt::Debug for ServedPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(_, size) => write!(f, "File({size})"),
            Self::Stream(_, size) => write!(f, "Stream({size})"),
            Self::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Self::Growing(growing) => write!(f, "Growing({})", growing.size()),
            Self::Expected => f.write_str("Expected"),
            Self::Nothing => f.write_str("Nothing"),
        }
    }
}

/// The images that a node serves.
pub trait Shelf: Send + Sync + 'static {
    /// A blob of the image with this root. [`ServedPart::Nothing`] unless the image is one of this node's and names the blob.
    fn find<'a>(&'a self, root: &'a Digest, blob: &'a Digest) -> BoxFuture<'a, ServedPart>;

    /// How far the image with this root is here, where it is one of this node's.
    fn state<'a>(&'a self, root: &'a Digest) -> BoxFuture<'a, Option<PeerState>>;
}

/// Who may read what.
pub trait Gate: Send + Sync + 'static {
    /// Checks a ticket that the holder of this key has shown.
    fn check<'a>(&'a self, ticket: &'a str, caller: PeerId) -> BoxFuture<'a, Result<Ticket, TicketError>>;
}

/// What a server allows.
#[derive(Clone, Debug)]
pub struct PeerLimits {
    /// Connections at one time that have shown a good ticket.
    pub connections: usize,
    /// Of these, connections of one caller. A reader has one for each blob that it reads, and one for its looks at the state.
    pub share: usize,
    /// Connections at one time that have shown none yet. One more pushes another one of these out.
    pub strangers: usize,
    /// A connection must have shown a good ticket within this time.
    pub hello: Duration,
    /// Blobs that are read at one time.
    pub streams: usize,
    /// Readers of one image at one time, by their keys.
    pub readers: usize,
}

impl Default for PeerLimits {
    fn default() -> Self {
        Self { connections: 64, share: 16, strangers: 64, hello: Duration::from_secs(5), streams: 32, readers: 4 }
    }
}

/// A server that is bound to its address; [`run`](Self::run) serves.
pub struct PeerServer {
    listener: TcpListener,
    addr: SocketAddr,
    acceptor: TlsAcceptor,
    shared: Arc<Shared>,
}

struct Shared {
    shelf: Arc<dyn Shelf>,
    gate: Arc<dyn Gate>,
    limits: PeerLimits,
    /// How fast blobs leave, over all connections together.
    pace: Arc<Pace>,
    sent: Arc<AtomicU64>,
    /// Places of those with a good ticket.
    places: Arc<CallerPlaces>,
    newcomers: Arc<Newcomers>,
    streams: Arc<Semaphore>,
    /// By image: the readers, each with its streams.
    readers: Mutex<HashMap<Digest, HashMap<PeerId, usize>>>,
}

impl std::fmt::Debug for PeerServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerServer").field("addr", &self.addr).finish_non_exhaustive()
    }
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum PeerServerError {
    /// The address is taken, or not ours.
    #[error(
        "cannot listen for other nodes on {addr}: {source}; choose another port with --peer-port, or stop what uses it"
    )]
    Listen {
        /// The address that was asked for.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The key cannot be used.
    #[error("the key of this node cannot be used for TLS: {0}")]
    Key(rustls::Error),
}

impl PeerServer {
    /// Takes the address (port 0: any). Nobody is answered before [`run`](Self::run).
    pub async fn bind(
        addr: SocketAddr,
        key: &PeerIdentity,
        shelf: Arc<dyn Shelf>,
        gate: Arc<dyn Gate>,
        limits: PeerLimits,
    ) -> Result<Self, PeerServerError> {
        let acceptor = TlsAcceptor::from(Arc::new(key.server().map_err(PeerServerError::Key)?));
        let failed = |source| PeerServerError::Listen { addr, source };
        let listener = TcpListener::bind(addr).await.map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        let shared = Shared {
            shelf,
            gate,
            pace: Arc::new(Pace::unlimited()),
            sent: Arc::default(),
            places: Arc::new(CallerPlaces::new(limits.connections, limits.share)),
            newcomers: Arc::new(Newcomers::new(limits.strangers, limits.hello)),
            streams: Arc::new(Semaphore::new(limits.streams)),
            readers: Mutex::default(),
            limits,
        };
        Ok(Self { listener, addr, acceptor, shared: Arc::new(shared) })
    }

    /// The address, with the port that was really taken.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// How fast blobs leave, over all connections together; without a limit until it is set.
    pub fn pace(&self) -> Arc<Pace> {
        self.shared.pace.clone()
    }

    /// Bytes of blobs that left so far.
    pub fn sent(&self) -> Arc<AtomicU64> {
        self.shared.sent.clone()
    }

    /// Says how many nodes read the image of this root here now.
    pub fn readers(&self) -> impl Fn(&Digest) -> u32 + Send + Sync + use<> {
        let shared = self.shared.clone();
        move |root| shared.readers_of(root)
    }

    /// Serves until told to stop. What is under way is cut then: readers go on from another node at the same byte.
    pub async fn run(self, stop: CancellationToken) {
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = self.listener.accept() => accepted,
            };
            let Ok((stream, from)) = accepted else {
                sleep(PAUSE).await;
                continue;
            };
            let newcomer = self.shared.newcomers.enter(from.ip());
            let (shared, acceptor) = (self.shared.clone(), self.acceptor.clone());
            connections.spawn(async move {
                if let Err(problem) = connection(shared, acceptor, stream, newcomer).await {
                    tracing::debug!(%from, problem, "a connection of another node ended early");
                }
            });
        }
        connections.shutdown().await;
    }
}

/// One connection: who calls, then its requests.
async fn connection(
    shared: Arc<Shared>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    newcomer: Newcomer,
) -> Result<(), String> {
    let newcomer = Arc::new(newcomer);
    tokio::select! {
        served = serve(shared, acceptor, stream, newcomer.clone()) => served,
        () = newcomer.must_go() => Err("it showed no good ticket".into()),
    }
}

async fn serve(
    shared: Arc<Shared>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    newcomer: Arc<Newcomer>,
) -> Result<(), String> {
    let _ = stream.set_nodelay(true);
    let tls = acceptor.accept(stream).await.map_err(|problem| problem.to_string())?;
    let Some(who) = caller(tls.get_ref().1) else { return Err("it showed no key".into()) };
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(shared.limits.hello).max_buf_size(MOST_HEAD).half_close(false);
    let call = Arc::new(Call::new(shared, who, newcomer));
    let service = {
        let call = call.clone();
        service_fn(move |request| {
            let call = call.clone();
            async move { Ok::<_, Infallible>(call.answer(request).await) }
        })
    };
    tokio::select! {
        served = http.serve_connection(TokioIo::new(tls), service) => served.map_err(|problem| problem.to_string()),
        () = call.is_too_slow() => Err("it does not take what it asked for".into()),
    }
}

#[cfg(test)]
mod tests;
