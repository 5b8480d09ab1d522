//! Reading from another node.
//!
//! A node, a ticket and a blob come in; a body that begins at the wanted byte goes out, or why there is none. Each blob has a
//! connection of its own: nodes are near each other, and a reader that moves on leaves nothing behind. How far a node is gets asked
//! several times a second, on one connection: a handshake costs more than all else of such a question. It asks once; whoever writes
//! the bytes down decides whom to ask next.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, HOST, RANGE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use oci_spec::image::{Descriptor, Digest};
use rustls::pki_types::ServerName;
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::key::{PeerId, PeerIdentity};
use super::serve::{PeerState, STATE};
use crate::fetch::COMES_WITHIN;
use crate::sip::Sip;
use crate::socket::Socket;

/// A node must answer within this time.
const ANSWER: Duration = Duration::from_secs(1);
/// How much of a refusal is read.
const MOST_REFUSAL: usize = 1024;
const MOST_STATE: usize = 4096;
/// A read waits no longer for more: those who read from here wait as well, one after the other.
const PAUSE: Duration = Duration::from_millis(2);
/// What one read takes from the socket.
const READ_AHEAD: usize = 64 * 1024;

/// Another node, as the API server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name, for people.
    pub node: Arc<str>,
    /// Where it listens.
    pub addr: SocketAddr,
    /// The key that it must show.
    pub id: PeerId,
    /// Whether it is in another zone: one does not go there to be quicker.
    pub far: bool,
}

/// Why a node gives nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerProblem {
    /// It cannot be reached, is another than it should be, or breaks off.
    Unreachable(String),
    /// It will not have the blob.
    Gone,
    /// It will have the blob, and has nothing of it yet.
    Expected,
    /// It has readers enough.
    Later(String),
    /// It takes the ticket for bad.
    Refused(String),
    /// It says something else than what was agreed on.
    Nonsense(String),
}

impl PeerProblem {
    /// Whether a node says so that has not been told of the image yet, or has just begun.
    pub(crate) fn may_be_early(&self) -> bool {
        matches!(self, Self::Expected | Self::Gone)
    }

    /// Whether it is worth asking again soon, where nothing has come for so long.
    pub(crate) fn is_passing(&self, since: Duration) -> bool {
        match self {
            Self::Expected | Self::Later(_) => since < COMES_WITHIN,
            Self::Unreachable(_) | Self::Gone | Self::Refused(_) | Self::Nonsense(_) => false,
        }
    }
}

impl fmt::Display for PeerProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) => write!(f, "cannot be read from: {why}"),
            Self::Gone => f.write_str("does not have it"),
            Self::Expected => f.write_str("does not have it yet"),
            Self::Later(why) => write!(f, "says \"{why}\""),
            Self::Refused(why) => write!(f, "refuses the ticket: {why}"),
            Self::Nonsense(why) => write!(f, "says what makes no sense: {why}"),
        }
    }
}

/// Reads as one node.
#[derive(Clone, Debug)]
pub struct PeerReader {
    key: PeerIdentity,
}

impl PeerReader {
    /// One that shows this key.
    pub fn new(key: PeerIdentity) -> Self {
        Self { key }
    }

    /// A blob from this offset on, as it comes.
    pub(crate) async fn open(
        &self,
        peer: &Peer,
        ticket: &str,
        blob: &Descriptor,
        from: u64,
    ) -> Result<Incoming, PeerProblem> {
        let path = format!("/v1/blobs/{}", blob.digest());
        let response = self.ask(peer, ticket, &path, Some(from)).await?;
        let (head, body) = response.into_parts();
        if head.status != StatusCode::PARTIAL_CONTENT {
            return Err(refused(head.status, &head.headers, body).await);
        }
        let size = blob.size();
        let range = head.headers.get(CONTENT_RANGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let length = head.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        let expected = format!("bytes {from}-{}/{size}", size.saturating_sub(1));
        if range != expected || length != Some(size.saturating_sub(from)) {
            return Err(PeerProblem::Nonsense(format!("it gives {range:?} instead of {expected:?}")));
        }
        Ok(body)
    }

    /// All of a small blob; not yet checked.
    pub(crate) async fn small(
        &self,
        peer: &Peer,
        ticket: &str,
        blob: &Digest,
        most: usize,
    ) -> Result<Bytes, PeerProblem> {
        let response = self.ask(peer, ticket, &format!("/v1/blobs/{blob}"), None).await?;
        let (head, body) = response.into_parts();
        match head.status {
            StatusCode::OK => all(body, most).await,
            status => Err(refused(status, &head.headers, body).await),
        }
    }

    /// How far the image of the ticket is there, asked on a connection that is kept for the next time.
    pub(crate) async fn state(&self, line: &mut PeerLine, peer: &Peer, ticket: &str) -> Result<PeerState, PeerProblem> {
        // A node closes a connection that was idle for long, or where others need its place.
        let kept = line.0.take().filter(|sender| !sender.is_closed());
        let asked = async {
            let mut sender = match kept {
                Some(sender) => sender,
                None => self.connect(peer).await?,
            };
            let (head, body) = request(&mut sender, peer, ticket, "/v1/state", None).await?.into_parts();
            if head.status != StatusCode::OK {
                return Err(refused(head.status, &head.headers, body).await);
            }
            let text = all(body, MOST_STATE).await?;
            let state =
                serde_json::from_slice(&text).map_err(|_| PeerProblem::Nonsense("its state cannot be read".into()))?;
            Ok((state, sender))
        };
        let (state, sender) = in_time(asked).await?;
        line.0 = Some(sender);
        Ok(state)
    }

    /// Asks on a connection of its own; the answer's head has come when this ends.
    async fn ask(
        &self,
        peer: &Peer,
        ticket: &str,
        path: &str,
        from: Option<u64>,
    ) -> Result<Response<Incoming>, PeerProblem> {
        // The connection ends with the body, or when the body is dropped.
        let asked = async { request(&mut self.connect(peer).await?, peer, ticket, path, from).await };
        in_time(asked).await
    }

    async fn connect(&self, peer: &Peer) -> Result<PeerSender, PeerProblem> {
        let config = self.key.client(peer.id).map_err(unreachable)?;
        let stream = TcpStream::connect(peer.addr).await.map_err(unreachable)?;
        let _ = stream.set_nodelay(true);
        let name = ServerName::IpAddress(peer.addr.ip().into());
        // TLS reads 4 KiB at a time, the buffer all that has come.
        let stream = BufReader::with_capacity(READ_AHEAD, Sip::new(Socket::new(stream), PAUSE));
        let tls = TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(unreachable)?;
        let mut client = http1::Builder::new();
        let handshake = client.max_buf_size(512 * 1024).handshake(TokioIo::new(tls)).await;
        let (sender, connection) = handshake.map_err(unreachable)?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// A connection to a node on which one question after the other is asked.
#[derive(Debug, Default)]
pub(crate) struct PeerLine(Option<PeerSender>);

type PeerSender = http1::SendRequest<Empty<Bytes>>;

fn unreachable(problem: impl fmt::Display) -> PeerProblem {
    PeerProblem::Unreachable(problem.to_string())
}

async fn in_time<T>(asked: impl Future<Output = Result<T, PeerProblem>>) -> Result<T, PeerProblem> {
    let late = |_| unreachable(format!("no answer in {} s", ANSWER.as_secs()));
    timeout(ANSWER, asked).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
}

async fn request(
    sender: &mut PeerSender,
    peer: &Peer,
    ticket: &str,
    path: &str,
    from: Option<u64>,
) -> Result<Response<Incoming>, PeerProblem> {
    let mut request =
        Request::get(path).header(HOST, peer.addr.to_string()).header(AUTHORIZATION, format!("Bearer {ticket}"));
    if let Some(from) = from {
        request = request.header(RANGE, format!("bytes={from}-"));
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(unreachable)?;
    sender.ready().await.map_err(unreachable)?;
    sender.send_request(request).await.map_err(unreachable)
}

/// What an answer means that is no body.
async fn refused(status: StatusCode, headers: &HeaderMap, body: Incoming) -> PeerProblem {
    let said = all(body, MOST_REFUSAL).await.unwrap_or_default();
    let said: String = String::from_utf8_lossy(&said).chars().filter(|c| !c.is_control()).take(200).collect();
    match status {
        StatusCode::NOT_FOUND => PeerProblem::Gone,
        StatusCode::SERVICE_UNAVAILABLE => match headers.get(STATE).map(HeaderValue::as_bytes) {
            Some(b"expected") => PeerProblem::Expected,
            Some(_) => PeerProblem::Later(said),
            None => PeerProblem::Nonsense(format!("{status}: {said}")),
        },
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => PeerProblem::Refused(said),
        status => PeerProblem::Nonsense(format!("{status}: {said}")),
    }
}

/// All of a body that is no longer than this.
async fn all(mut body: Incoming, most: usize) -> Result<Bytes, PeerProblem> {
    let read = async {
        let mut bytes = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|problem| PeerProblem::Unreachable(problem.to_string()))?;
            let data = frame.into_data().unwrap_or_default();
            if bytes.len() + data.len() > most {
                return Err(PeerProblem::Nonsense(format!("it says more than {most} bytes")));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes.freeze())
    };
    timeout(10 * ANSWER, read).await.unwrap_or_else(|_| Err(PeerProblem::Unreachable("it broke off".into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A seed whose order waits behind others says "soon" for as long as that takes.
    #[test]
    fn a_node_that_has_nothing_for_long_is_no_source() {
        let second = Duration::from_secs(1);
        assert!(PeerProblem::Expected.is_passing(COMES_WITHIN - second));
        assert!(!PeerProblem::Expected.is_passing(COMES_WITHIN), "the controller is to name another one");
        let busy = PeerProblem::Later("busy".into());
        assert!(busy.is_passing(COMES_WITHIN - second), "another node is being served");
        assert!(!busy.is_passing(COMES_WITHIN), "somebody may hold all of its places");
        assert!(!PeerProblem::Gone.is_passing(Duration::ZERO));
    }
}
