//! The node's HTTP proxies: names that only the proxy can resolve, without TLS and through a tunnel.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use stoker_testbed::containerd::Version;
use stoker_testbed::docker_registry::Options;
use stoker_testbed::registry;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::bed::{Registry, on_both};
use crate::wishes::{node, noise};

/// A proxy that tunnels to one address, whatever it is asked for, and keeps what it was asked.
struct Tunnel {
    addr: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl Tunnel {
    async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (addr, asked) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<String>>>::default());
        let seen = asked.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                clients.spawn(tunnel(client, target, seen.clone()));
            }
        });
        Self { addr, asked, _tasks: tasks }
    }
}

async fn tunnel(client: TcpStream, target: SocketAddr, asked: Arc<Mutex<Vec<String>>>) {
    let mut client = BufReader::new(client);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if client.read_line(&mut line).await.is_ok_and(|read| read > 2) {
            head.push(line);
        } else {
            break;
        }
    }
    asked.lock().unwrap().push(head.concat());
    let mut server = TcpStream::connect(target).await.unwrap();
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    // Either side may go whenever it likes.
    let _ = copy_bidirectional(&mut client, &mut server).await;
}

async fn images_come_through_proxies(version: Version) {
    let plain = registry::Registry::start().await.unwrap();
    let Some(tls) = Registry::start(Options { tls: true, ..Default::default() }).await else { return };
    let tunnel = Tunnel::start(tls.link.addr()).await;
    let env = [
        ("HTTP_PROXY", format!("http://{}", plain.host())),
        ("https_proxy", format!("http://ada:hunter2@{}", tunnel.addr)),
        ("NO_PROXY", "127.0.0.0/8".to_owned()),
    ];
    let Some((node, log)) = node(version, Default::default(), &["--runtime", "containerd"], &env).await else { return };
    let image = noise(1, 100_000, 1);
    image.put(&plain, "shop/web", "v1");
    node.containerd.set_hosts("plain.example", "[host.\"http://plain.example\"]").unwrap();
    node.pull("plain.example/shop/web:v1").await.exits(0);
    let seen = plain.requests("/v2/");
    assert!(seen.iter().all(|seen| seen.in_place_of.as_deref() == Some("plain.example")), "{seen:#?}");

    // The certificate is for another name: what matters here is who is asked for it.
    let skip = "server = \"https://tls.example\"\n[host.\"https://tls.example\"]\n  skip_verify = true";
    node.containerd.set_hosts("tls.example", skip).unwrap();
    tls.push("shop/other", "v1", &noise(1, 100_000, 2)).await;
    node.pull("tls.example/shop/other:v1").await.exits(0);
    let asked = tunnel.asked.lock().unwrap().clone();
    assert!(!asked.is_empty());
    for head in &asked {
        assert!(head.starts_with("CONNECT tls.example:443 HTTP/1.1\r\n"), "{head}");
        assert!(head.to_ascii_lowercase().contains("proxy-authorization: basic "), "{head}");
    }
    assert!(tls.link.received() > 100_000);

    // This machine is let through, and the proxy's password is nobody's business.
    let own = registry::Registry::start().await.unwrap();
    let name = noise(1, 1_000, 3).put(&own, "shop/own", "v1");
    node.pull(&name).await.exits(0);
    assert!(own.requests("/v2/").iter().all(|seen| seen.in_place_of.is_none()));
    let log = std::fs::read_to_string(log.path()).unwrap();
    assert!(!log.contains("hunter2") && !log.contains("YWRhOmh1bnRlcjI="), "{log}");
}
on_both!(images_come_through_proxies);
