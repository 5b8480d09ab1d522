//! Callers that show no ticket, and callers that ask again and again, on real sockets.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt as _;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio_rustls::TlsConnector;

use super::*;
use crate::peer::read::{Peer, PeerLine, PeerReader};

struct Nothing;

impl Shelf for Nothing {
    fn find<'a>(&'a self, _: &'a Digest, _: &'a Digest) -> BoxFuture<'a, ServedPart> {
        std::future::ready(ServedPart::Nothing).boxed()
    }

    fn state<'a>(&'a self, _: &'a Digest) -> BoxFuture<'a, Option<PeerState>> {
        std::future::ready(None).boxed()
    }
}

impl Gate for Nothing {
    fn check<'a>(&'a self, _: &'a str, _: PeerId) -> BoxFuture<'a, Result<Ticket, TicketError>> {
        std::future::ready(Err(TicketError::Expired)).boxed()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_again_and_again_with_a_bad_ticket_is_cut() {
    let [key, stranger] = [0; 2].map(|_| PeerIdentity::generate().unwrap());
    // Longer than one question takes, and shorter than all of them.
    let limits = PeerLimits { hello: Duration::from_millis(500), ..PeerLimits::default() };
    let bound = PeerServer::bind(([127, 0, 0, 1], 0).into(), &key, Arc::new(Nothing), Arc::new(Nothing), limits);
    let server = bound.await.unwrap();
    let addr = server.addr();
    let _running = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(server.run(CancellationToken::new())));
    let stream = TcpStream::connect(addr).await.unwrap();
    let config = Arc::new(stranger.client(key.id()).unwrap());
    let name = ServerName::IpAddress(addr.ip().into());
    let mut tls = TlsConnector::from(config).connect(name, stream).await.unwrap();
    let request = b"GET /v1/state HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\n\r\n";
    let mut answer = [0; 1024];
    let cut = async {
        loop {
            let asked = tls.write_all(request).await;
            let read = if asked.is_ok() { tls.read(&mut answer).await.unwrap_or_default() } else { 0 };
            if read == 0 {
                return;
            }
            assert!(answer.starts_with(b"HTTP/1.1 403 "));
            sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), cut).await.expect("it is never cut");
}

/// A node that tells everybody how far an image is.
struct Open;

impl Shelf for Open {
    fn find<'a>(&'a self, _: &'a Digest, _: &'a Digest) -> BoxFuture<'a, ServedPart> {
        std::future::ready(ServedPart::Nothing).boxed()
    }

    fn state<'a>(&'a self, _: &'a Digest) -> BoxFuture<'a, Option<PeerState>> {
        std::future::ready(Some(PeerState { have: 7, ..PeerState::default() })).boxed()
    }
}

impl Gate for Open {
    fn check<'a>(&'a self, _: &'a str, _: PeerId) -> BoxFuture<'a, Result<Ticket, TicketError>> {
        let root = format!("sha256:{:064x}", 1).parse().unwrap();
        std::future::ready(Ok(Ticket { root, expires: u32::MAX })).boxed()
    }
}

/// How many connections three questions take, where the server has so many places.
async fn connections_of_three_questions(places: usize) -> usize {
    let [key, own] = [0; 2].map(|_| PeerIdentity::generate().unwrap());
    let limits = PeerLimits { connections: places, ..PeerLimits::default() };
    let bound = PeerServer::bind(([127, 0, 0, 1], 0).into(), &key, Arc::new(Open), Arc::new(Open), limits);
    let server = bound.await.unwrap();
    let behind = server.addr();
    let mut tasks = JoinSet::new();
    tasks.spawn(server.run(CancellationToken::new()));
    let counter = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let (addr, counted) = (counter.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = counted.clone();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (mut near, _) = counter.accept().await.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
            connections.spawn(async move {
                let mut far = TcpStream::connect(behind).await.unwrap();
                let _ = copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    let (reader, mut line) = (PeerReader::new(own), PeerLine::default());
    let peer = Peer { node: "node".into(), addr, id: key.id(), far: false };
    for _ in 0..3 {
        // The place of a connection that was closed is not free at the same moment.
        let state = loop {
            match reader.state(&mut line, &peer, "ticket").await {
                Ok(state) => break state,
                Err(_) => sleep(Duration::from_millis(5)).await,
            }
        };
        assert_eq!(state.have, 7);
    }
    counted.load(Ordering::SeqCst)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_looks_again_and_again_keeps_its_connection_unless_places_are_scarce() {
    assert_eq!(connections_of_three_questions(64).await, 1);
    assert!(connections_of_three_questions(1).await >= 3);
}
