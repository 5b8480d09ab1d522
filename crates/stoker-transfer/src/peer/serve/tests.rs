//! A caller that speaks TLS and shows no ticket, on a real socket.

use futures::FutureExt as _;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use super::*;

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
