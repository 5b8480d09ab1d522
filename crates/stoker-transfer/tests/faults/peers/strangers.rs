//! Who holds connections to a node without a ticket keeps nobody from reading there.

use std::net::SocketAddr;

use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::*;

/// More than a node lets in.
const MANY: usize = 80;

async fn connect(from: [u8; 4], to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}

/// Holds many connections from another address than the readers', each of which comes again when it is cut.
async fn besiege(node: &Node) -> JoinSet<()> {
    let (to, came) = (node.peer.addr, Arc::new(Semaphore::new(0)));
    let mut strangers = JoinSet::new();
    for _ in 0..MANY {
        let came = came.clone();
        strangers.spawn(async move {
            loop {
                let Ok(mut stream) = connect([127, 0, 0, 2], to).await else { continue };
                came.add_permits(1);
                let _ = stream.read_to_end(&mut Vec::new()).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
    came.acquire_many(MANY as u32).await.unwrap().forget();
    strangers
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_connections_without_a_ticket_keeps_no_reader_out() {
    let fleet = Fleet::new().await;
    let node = fleet.node("node").await;
    node.serves(&fleet.root, &fleet.bench.pushed.layers[0], Given::Bytes(fleet.bench.layer.clone()));
    let _strangers = besiege(&node).await;
    for _ in 0..3 {
        let (reader, news) = (fleet.node("reader").await, Arc::new(Notify::new()));
        let ways = fleet.ways(&reader, &[&node]).telling(news.clone());
        let read = fleet.reads(&reader, Some(&ways));
        tokio::select! {
            () = fleet.has_it(&read) => {}
            () = news.notified() => panic!("it is kept out: {:?}", ways.exhausted()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_has_so_many_connections_of_readers_and_asks_the_others_to_come_again() {
    let fleet = Fleet::new().await;
    let node = fleet.limited_node("node", PeerLimits { connections: 1, ..PeerLimits::default() }).await;
    let [first, second] = [fleet.node("first").await, fleet.node("second").await];
    fleet.bench.registry.fault(On::Blobs, 1, Fault::StallAfter(HALF));
    let growing = fleet.reads(&node, None);
    let reads = fleet.reads(&first, Some(&fleet.ways(&first, &[&node])));
    has(&reads, HALF).await;
    let ways = fleet.ways(&second, &[&node, &first]);
    let late = fleet.reads(&second, Some(&ways));
    has(&late, HALF).await;
    assert_eq!(ways.from().as_deref(), Some("first"), "the only place is taken");
    fleet.bench.registry.let_go();
    for growing in [&growing, &reads, &late] {
        fleet.has_it(growing).await;
    }
}
