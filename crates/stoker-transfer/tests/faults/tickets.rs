//! What a node says to a ticket that it cannot check yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use stoker_transfer::Platform;
use stoker_transfer::peer::{
    Gate, Peer, PeerId, PeerIdentity, PeerLimits, PeerList, PeerReader, PeerServer, PeerState, PeerWays, ServedPart,
    Shelf, Ticket, TicketError, TicketSigner,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::*;

/// It has one document.
struct OneDocument(Bytes);

impl Shelf for OneDocument {
    fn find<'a>(&'a self, _: &'a Digest, _: &'a Digest) -> BoxFuture<'a, ServedPart> {
        std::future::ready(ServedPart::Bytes(self.0.clone())).boxed()
    }

    fn state<'a>(&'a self, _: &'a Digest) -> BoxFuture<'a, Option<PeerState>> {
        std::future::ready(None).boxed()
    }
}

/// It does not know the signer the first times, and believes every ticket after that.
struct LateGate(AtomicUsize, TicketSigner);

impl Gate for LateGate {
    fn check<'a>(&'a self, _: &'a str, _: PeerId) -> BoxFuture<'a, Result<Ticket, TicketError>> {
        let known = self.0.fetch_add(1, Ordering::Relaxed) >= 3;
        let ticket = Ticket { root: digest_of(&format!("sha256:{}", "a".repeat(64))), expires: 1 };
        let checked = if known { Ok(ticket) } else { Err(TicketError::SignerUnread(self.1.public().id())) };
        std::future::ready(checked).boxed()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_about_to_learn_who_signed_a_ticket_is_waited_for() {
    let bench = Bench::new().await;
    let (key, gate) =
        (PeerIdentity::generate().unwrap(), LateGate(AtomicUsize::new(0), TicketSigner::generate().unwrap()));
    let (shelf, gate) = (Arc::new(OneDocument(bench.pushed.bytes.clone())), Arc::new(gate));
    let server = PeerServer::bind(([127, 0, 0, 1], 0).into(), &key, shelf, gate.clone(), PeerLimits::default()).await;
    let server = server.unwrap();
    let peer = Peer { node: "node".into(), addr: server.addr(), id: key.id(), far: false };
    let _running = AbortOnDropHandle::new(tokio::spawn(server.run(CancellationToken::new())));
    let list = PeerList { upstream: false, ticket: "ticket".into(), peers: vec![peer] };
    let news = Arc::new(Notify::new());
    let ways = PeerWays::new(PeerReader::new(PeerIdentity::generate().unwrap()), list).telling(news.clone());
    let root = digest_of(&bench.pushed.manifest);
    let image = ways.image(&bench.image(), &root, &Platform::host()).await.unwrap().unwrap();
    assert_eq!((image.root.digest(), gate.0.load(Ordering::Relaxed)), (&root, 4));
    assert!(news.notified().now_or_never().is_none(), "no other source was asked for");
}
