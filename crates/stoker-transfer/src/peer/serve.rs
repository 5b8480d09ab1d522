//! What a node serves to others.
//!
//! Connections of nodes come in; blobs of the images that their tickets name go out, also while they are still growing here. Nothing is
//! said to a caller without a good ticket, and nothing of another image to one that has. What one caller can make this node do is
//! bounded: connections, requests, readers of an image, and the time in which it must take what it asked for.
//!
//! `GET /v1/blobs/DIGEST` (with `Range: bytes=N-`) gives a blob from an offset on, as it comes. `GET /v1/state` says how far the image is
//! here. 503 with the header `stoker-state` means "not yet" or "not now": the caller may ask again soon. 404 means that it
//! will not be here.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt as _};
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, RANGE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use oci_spec::image::Digest;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::key::{PeerId, PeerIdentity, caller};
use super::ticket::{Ticket, TicketError};
use crate::limit::Pace;
use crate::spool::{Growing, read_piece};

/// Why a 503 was said.
pub(super) const STATE: HeaderName = HeaderName::from_static("stoker-state");

/// A connection must have shown its key and asked within this time.
const HELLO: Duration = Duration::from_secs(5);
/// How long a request for what is not here yet is held; less than readers wait for an answer.
const HOLD: Duration = Duration::from_millis(500);
/// When it is first looked for again; then after twice as long each time.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// A reader must take something within this time.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_secs(5);
const PIECE: usize = 64 * 1024;
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
    /// Connections at one time.
    pub connections: usize,
    /// Of these, such that have shown no good ticket yet.
    pub strangers: usize,
    /// Blobs that are read at one time.
    pub streams: usize,
    /// Readers of one image at one time, by their keys.
    pub readers: usize,
}

impl Default for PeerLimits {
    fn default() -> Self {
        Self { connections: 64, strangers: 16, streams: 32, readers: 4 }
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
    connections: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    /// By image: the readers, each with its streams.
    readers: Mutex<HashMap<Digest, HashMap<PeerId, u32>>>,
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
            connections: Arc::new(Semaphore::new(limits.connections)),
            strangers: Arc::new(Semaphore::new(limits.strangers)),
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
            // Who comes when all places are taken is cut at once, and asks another node.
            let (Ok(place), Ok(stranger)) = (
                self.shared.connections.clone().try_acquire_owned(),
                self.shared.strangers.clone().try_acquire_owned(),
            ) else {
                tracing::debug!(%from, "all connections for other nodes are taken");
                continue;
            };
            let (shared, acceptor) = (self.shared.clone(), self.acceptor.clone());
            connections.spawn(async move {
                let _place = place;
                if let Err(problem) = connection(shared, acceptor, stream, stranger).await {
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
    stranger: OwnedSemaphorePermit,
) -> Result<(), String> {
    let _ = stream.set_nodelay(true);
    let tls = timeout(HELLO, acceptor.accept(stream)).await.map_err(|_| "no handshake in time".to_owned())?;
    let tls = tls.map_err(|problem| problem.to_string())?;
    let Some(who) = caller(tls.get_ref().1) else { return Err("it showed no key".into()) };
    let call = Arc::new(Call { shared, who, stranger: Mutex::new(Some(stranger)), reading: Arc::default() });
    let service = {
        let call = call.clone();
        service_fn(move |request| {
            let call = call.clone();
            async move { Ok::<_, Infallible>(call.answer(request).await) }
        })
    };
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HELLO).max_buf_size(MOST_HEAD).half_close(false);
    tokio::select! {
        served = http.serve_connection(TokioIo::new(tls), service) => served.map_err(|problem| problem.to_string()),
        () = call.is_too_slow() => Err("it does not take what it asked for".into()),
    }
}

type PeerAnswer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// A connection of a known caller.
struct Call {
    shared: Arc<Shared>,
    who: PeerId,
    /// Its place among those without a ticket, until it has shown a good one.
    stranger: Mutex<Option<OwnedSemaphorePermit>>,
    /// Since when the caller has something to take, where it has.
    reading: Arc<Mutex<Option<Instant>>>,
}

impl Call {
    /// Ends when the caller has not taken anything for too long.
    async fn is_too_slow(&self) {
        loop {
            sleep(LOOK).await;
            let since = *self.reading.lock().unwrap_or_else(PoisonError::into_inner);
            if since.is_some_and(|since| since.elapsed() > PATIENCE) {
                return;
            }
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> PeerAnswer {
        if request.method() != Method::GET {
            return refusal(StatusCode::METHOD_NOT_ALLOWED, "only GET");
        }
        let shown = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some(ticket) = shown.and_then(|shown| shown.strip_prefix("Bearer ")) else {
            return refusal(StatusCode::UNAUTHORIZED, "show a ticket");
        };
        let root = match self.shared.gate.check(ticket, self.who).await {
            Ok(ticket) => ticket.root,
            Err(problem) => {
                tracing::debug!(caller = %self.who, %problem, "a ticket was refused");
                return refusal(StatusCode::FORBIDDEN, &problem.to_string());
            }
        };
        self.stranger.lock().unwrap_or_else(PoisonError::into_inner).take();
        let path = request.uri().path();
        match path.strip_prefix("/v1/blobs/").map(str::parse::<Digest>) {
            Some(Ok(blob)) => {
                let range = request.headers().get(RANGE).and_then(|value| value.to_str().ok());
                self.blob(&root, &blob, range).await
            }
            None if path == "/v1/state" => self.state(&root).await,
            _ => refusal(StatusCode::NOT_FOUND, "there is no such path"),
        }
    }

    async fn state(&self, root: &Digest) -> PeerAnswer {
        let Some(state) = self.shared.shelf.state(root).await else {
            return refusal(StatusCode::NOT_FOUND, "this image is not here");
        };
        let state = PeerState { readers: self.shared.readers_of(root), ..state };
        match serde_json::to_vec(&state) {
            Ok(text) => Response::new(whole(text.into())),
            Err(_) => refusal(StatusCode::INTERNAL_SERVER_ERROR, "it cannot be said"),
        }
    }

    /// A blob as this node has it. One that will come is waited for a little while: all nodes of a chain are told of an image at the same
    /// time, and whoever asks here must not go elsewhere because it was the quicker one.
    async fn find(&self, root: &Digest, blob: &Digest) -> ServedPart {
        let (until, mut pause) = (Instant::now() + HOLD, LOOK_AGAIN);
        loop {
            match self.shared.shelf.find(root, blob).await {
                ServedPart::Expected if Instant::now() < until => {
                    sleep(pause).await;
                    pause *= 2;
                }
                found => return found,
            }
        }
    }

    async fn blob(&self, root: &Digest, blob: &Digest, range: Option<&str>) -> PeerAnswer {
        let Some(from) = range.map_or(Some(0), offset) else {
            return refusal(StatusCode::RANGE_NOT_SATISFIABLE, "only bytes=N- is served");
        };
        let found = self.find(root, blob).await;
        let size = match &found {
            ServedPart::File(_, size) | ServedPart::Stream(_, size) => *size,
            ServedPart::Bytes(bytes) => bytes.len() as u64,
            ServedPart::Growing(growing) => growing.size(),
            ServedPart::Expected => return later("expected"),
            ServedPart::Nothing => return refusal(StatusCode::NOT_FOUND, "this blob is not here"),
        };
        if from > size {
            return refusal(StatusCode::RANGE_NOT_SATISFIABLE, "the blob is shorter than that");
        }
        let Some(reading) = self.shared.admit(root, self.who) else { return later("busy") };
        let pieces: BoxStream<'static, io::Result<Bytes>> = match found {
            ServedPart::File(file, size) => of_file(file, from, size),
            ServedPart::Stream(open, _) => open(from),
            ServedPart::Bytes(bytes) => {
                let rest =
                    usize::try_from(from).ok().and_then(|from| bytes.get(from..).map(|rest| bytes.slice_ref(rest)));
                futures::stream::iter(rest.map(Ok)).boxed()
            }
            ServedPart::Growing(growing) => growing.watch(from).map(|piece| piece.map_err(io::Error::other)).boxed(),
            ServedPart::Expected | ServedPart::Nothing => futures::stream::empty().boxed(),
        };
        let mut response = Response::new(self.streamed(pieces, reading));
        if range.is_some() {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        }
        set(&mut response, CONTENT_LENGTH, &(size - from).to_string());
        if range.is_some() {
            set(&mut response, CONTENT_RANGE, &format!("bytes {from}-{}/{size}", size.saturating_sub(1)));
        }
        response
    }

    /// Pieces as the limit lets them go; while one is with the caller, the time runs.
    fn streamed(
        &self,
        pieces: BoxStream<'static, io::Result<Bytes>>,
        reading: Reading,
    ) -> UnsyncBoxBody<Bytes, io::Error> {
        let (shared, since) = (self.shared.clone(), self.reading.clone());
        let state = (pieces, Bytes::new(), reading);
        let frames = futures::stream::unfold(state, move |(mut pieces, mut rest, reading)| {
            let (shared, since) = (shared.clone(), since.clone());
            async move {
                *since.lock().unwrap_or_else(PoisonError::into_inner) = None;
                if rest.is_empty() {
                    rest = match pieces.next().await? {
                        Ok(piece) => piece,
                        Err(problem) => return Some((Err(problem), (pieces, rest, reading))),
                    };
                }
                // Under a low limit in small parts: a reader that hears nothing for seconds goes elsewhere.
                let piece = rest.split_to(rest.len().min(shared.pace.piece()));
                shared.pace.wait(piece.len()).await;
                shared.sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
                *since.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                Some((Ok(Frame::data(piece)), (pieces, rest, reading)))
            }
        });
        StreamBody::new(frames).boxed_unsync()
    }
}

impl Shared {
    fn readers_of(&self, root: &Digest) -> u32 {
        let readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.get(root).map_or(0, |readers| u32::try_from(readers.len()).unwrap_or(u32::MAX))
    }

    /// A place for one more stream; none where all are taken, or the image has its readers.
    fn admit(self: &Arc<Self>, root: &Digest, who: PeerId) -> Option<Reading> {
        let place = self.streams.clone().try_acquire_owned().ok()?;
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let of_image = readers.entry(root.clone()).or_default();
        if !of_image.contains_key(&who) && of_image.len() >= self.limits.readers {
            return None;
        }
        *of_image.entry(who).or_default() += 1;
        Some(Reading { shared: self.clone(), root: root.clone(), who, _place: place })
    }
}

/// A stream of a reader; it ends with this.
struct Reading {
    shared: Arc<Shared>,
    root: Digest,
    who: PeerId,
    _place: OwnedSemaphorePermit,
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut readers = self.shared.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(of_image) = readers.get_mut(&self.root) else { return };
        if let Some(streams) = of_image.get_mut(&self.who) {
            *streams -= 1;
            if *streams == 0 {
                of_image.remove(&self.who);
            }
        }
        if of_image.is_empty() {
            readers.remove(&self.root);
        }
    }
}

/// The N of `bytes=N-`.
fn offset(range: &str) -> Option<u64> {
    let digits = range.trim().strip_prefix("bytes=")?.strip_suffix('-')?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// A file from an offset on, piece by piece.
fn of_file(file: File, from: u64, size: u64) -> BoxStream<'static, io::Result<Bytes>> {
    let file = Arc::new(file);
    futures::stream::try_unfold(from, move |at| {
        let file = file.clone();
        async move {
            let most = usize::try_from(size.saturating_sub(at)).unwrap_or(PIECE).min(PIECE);
            if most == 0 {
                return Ok(None);
            }
            let piece = read_piece(file, at, most).await?;
            match piece.len() {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                read => Ok(Some((piece, at + read as u64))),
            }
        }
    })
    .boxed()
}

fn whole(bytes: Bytes) -> UnsyncBoxBody<Bytes, io::Error> {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

fn refusal(status: StatusCode, why: &str) -> PeerAnswer {
    let mut response = Response::new(whole(Bytes::copy_from_slice(why.as_bytes())));
    *response.status_mut() = status;
    response
}

/// Not yet, or not now.
fn later(state: &'static str) -> PeerAnswer {
    let mut response = refusal(StatusCode::SERVICE_UNAVAILABLE, state);
    set(&mut response, RETRY_AFTER, "1");
    set(&mut response, STATE, state);
    response
}

fn set(response: &mut PeerAnswer, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}
