use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use super::Proxy;

const LENGTH: usize = 300_000;

/// Sends the same bytes to everybody who sends one.
async fn target() -> (SocketAddr, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            if stream.read_u8().await.is_ok() {
                // Who is cut off does not get all.
                let _ = stream.write_all(&vec![7; LENGTH]).await;
            }
        }
    });
    (addr, AbortOnDropHandle::new(task))
}

async fn fetch(proxy: &Proxy) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(proxy.addr()).await?;
    stream.write_u8(1).await?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await?;
    Ok(all)
}

#[tokio::test]
async fn bytes_are_passed_and_counted_both_ways() {
    let (addr, _target) = target().await;
    let proxy = Proxy::start(addr).await.unwrap();
    assert_eq!(fetch(&proxy).await.unwrap(), vec![7; LENGTH]);
    assert_eq!((proxy.received(), proxy.sent(), proxy.connections()), (LENGTH as u64, 1, 1));
    proxy.wait_for_bytes(LENGTH as u64).await.unwrap();
}

#[tokio::test]
async fn every_connection_is_cut_until_told_otherwise() {
    let (addr, _target) = target().await;
    let proxy = Proxy::start(addr).await.unwrap();
    proxy.cut_every(Some(1000));
    for _ in 0..2 {
        // The rest of what the target sent may turn the end into a reset.
        if let Ok(got) = fetch(&proxy).await {
            assert_eq!(got.len(), 1000);
        }
    }
    assert_eq!(proxy.received(), 2000);
    proxy.cut_every(None);
    assert_eq!(fetch(&proxy).await.unwrap().len(), LENGTH);
}

#[tokio::test]
async fn a_stall_lasts_until_it_is_let_go() {
    let (addr, _target) = target().await;
    let proxy = Proxy::start(addr).await.unwrap();
    assert_eq!(fetch(&proxy).await.unwrap().len(), LENGTH);
    proxy.stall_after(1234);
    let (got, ()) = tokio::join!(fetch(&proxy), async {
        proxy.wait_for_bytes(LENGTH as u64 + 1234).await.unwrap();
        assert_eq!(proxy.received(), LENGTH as u64 + 1234);
        proxy.let_go();
    });
    assert_eq!(got.unwrap().len(), LENGTH);
}

#[tokio::test]
async fn every_connection_stalls_by_itself_until_it_is_let_go() {
    let (addr, _target) = target().await;
    let proxy = Proxy::start(addr).await.unwrap();
    proxy.stall_each_after(1000);
    let (one, two, ()) = tokio::join!(fetch(&proxy), fetch(&proxy), async {
        proxy.wait_for_bytes(2000).await.unwrap();
        assert_eq!(proxy.received(), 2000);
        proxy.let_go();
    });
    assert_eq!((one.unwrap().len(), two.unwrap().len()), (LENGTH, LENGTH));
}

#[tokio::test]
async fn one_byte_is_flipped_once() {
    let (addr, _target) = target().await;
    let proxy = Proxy::start(addr).await.unwrap();
    proxy.flip_after(200_000);
    let got = fetch(&proxy).await.unwrap();
    assert_eq!(got.iter().position(|byte| *byte != 7), Some(200_000));
    assert_eq!(got.iter().filter(|byte| **byte != 7).count(), 1);
    assert_eq!(fetch(&proxy).await.unwrap(), vec![7; LENGTH]);
}

#[tokio::test]
async fn a_pace_is_kept_and_can_be_lifted() {
    let (addr, _target) = target().await;
    let proxy = Proxy::start(addr).await.unwrap();
    proxy.pace(Some(20_000));
    let (got, ()) = tokio::join!(fetch(&proxy), async {
        proxy.wait_for_bytes(2000).await.unwrap();
        assert!(proxy.received() < LENGTH as u64, "it takes 15 s");
        proxy.pace(None);
    });
    assert_eq!(got.unwrap().len(), LENGTH);
}

#[tokio::test]
async fn down_refuses_and_up_accepts_on_the_same_port() {
    let (addr, _target) = target().await;
    let proxy = Proxy::start(addr).await.unwrap();
    proxy.stall_after(10);
    let (cut, ()) = tokio::join!(fetch(&proxy), async {
        proxy.wait_for_bytes(10).await.unwrap();
        proxy.down().await;
    });
    assert!(cut.map_or(true, |got| got.len() == 10), "a connection from before is ended");
    assert_eq!(fetch(&proxy).await.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    proxy.let_go();
    proxy.up().await;
    assert_eq!(fetch(&proxy).await.unwrap().len(), LENGTH);
}
