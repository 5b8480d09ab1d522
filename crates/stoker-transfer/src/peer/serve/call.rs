//! The requests of one connection: a ticket and a path come in; a blob as this node has it goes out, or why not.

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt as _};
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_RANGE, RANGE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use oci_spec::image::Digest;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};

use super::newcomers::Newcomer;
use super::places::{CallerPlace, one_less};
use super::{PeerState, STATE, ServedPart, Shared};
use crate::peer::key::PeerId;
use crate::peer::ticket::TicketError;
use crate::spool::read_piece;

/// How long a request for what is not here yet is held; less than readers wait for an answer.
const HOLD: Duration = Duration::from_millis(500);
/// When it is looked for again. Nodes of a chain wait for each other in turn, so a longer pause would count for each of them.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// A reader must take something within this time.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_secs(5);
const PIECE: usize = 64 * 1024;

pub(super) type PeerAnswer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// A connection of a caller whose key is known.
pub(super) struct Call {
    shared: Arc<Shared>,
    who: PeerId,
    newcomer: Arc<Newcomer>,
    /// Its place among those that have shown a good ticket.
    place: Mutex<Option<CallerPlace>>,
    /// Since when the caller has something to take, where it has.
    reading: Arc<Mutex<Option<Instant>>>,
}

impl Call {
    pub(super) fn new(shared: Arc<Shared>, who: PeerId, newcomer: Arc<Newcomer>) -> Self {
        Self { shared, who, newcomer, place: Mutex::default(), reading: Arc::default() }
    }

    /// Ends when the caller has not taken anything for too long.
    pub(super) async fn is_too_slow(&self) {
        loop {
            sleep(LOOK).await;
            let since = *self.reading.lock().unwrap_or_else(PoisonError::into_inner);
            if since.is_some_and(|since| since.elapsed() > PATIENCE) {
                return;
            }
        }
    }

    pub(super) async fn answer(&self, request: Request<Incoming>) -> PeerAnswer {
        if request.method() != Method::GET {
            return refusal(StatusCode::METHOD_NOT_ALLOWED, "only GET");
        }
        let shown = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some(ticket) = shown.and_then(|shown| shown.strip_prefix("Bearer ")) else {
            return refusal(StatusCode::UNAUTHORIZED, "show a ticket");
        };
        let root = match self.shared.gate.check(ticket, self.who).await {
            Ok(ticket) => ticket.root,
            Err(TicketError::SignerUnread(_)) => return later("signer unknown"),
            Err(problem) => {
                tracing::debug!(caller = %self.who, %problem, "a ticket was refused");
                return refusal(StatusCode::FORBIDDEN, &problem.to_string());
            }
        };
        if !self.takes_place() {
            return later("busy");
        }
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

    /// Whether there is a place for this connection among those with a good ticket.
    fn takes_place(&self) -> bool {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        if place.is_none() {
            *place = self.shared.places.take(self.who);
        }
        if place.is_some() && !self.newcomer.is_known() {
            self.newcomer.becomes_known();
        }
        place.is_some()
    }

    async fn state(&self, root: &Digest) -> PeerAnswer {
        let Some(state) = self.shared.shelf.state(root).await else {
            return refusal(StatusCode::NOT_FOUND, "this image is not here");
        };
        let state = PeerState { readers: self.shared.readers_of(root), ..state };
        match serde_json::to_vec(&state) {
            Ok(text) => {
                let mut response = Response::new(whole(text.into()));
                // Readers look again and again, and keep the connection for that where there are enough.
                if self.shared.places.are_scarce() {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                response
            }
            Err(_) => refusal(StatusCode::INTERNAL_SERVER_ERROR, "it cannot be said"),
        }
    }

    /// A blob as this node has it. One that will come is waited for a little while: all nodes of a chain are told of an image at the same
    /// time, and whoever asks here must not go elsewhere because it was the quicker one.
    async fn find(&self, root: &Digest, blob: &Digest) -> ServedPart {
        let until = Instant::now() + HOLD;
        loop {
            match self.shared.shelf.find(root, blob).await {
                ServedPart::Expected if Instant::now() < until => {
                    sleep(LOOK_AGAIN).await;
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
    pub(super) fn readers_of(&self, root: &Digest) -> u32 {
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
        one_less(of_image, self.who);
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
