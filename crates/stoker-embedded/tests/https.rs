//! The API over HTTPS, on a real socket: the written kubeconfig works, nothing else does, and shutdown is graceful.
// Functions that tests share fail as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use stoker_embedded::{Server, Settings};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

struct Running {
    kubeconfig: Kubeconfig,
    addr: SocketAddr,
    cancel: CancellationToken,
    task: JoinHandle<Result<(), stoker_embedded::Error>>,
}

fn api() -> stoker_embedded::Api {
    let clock = Arc::new(jiff::Timestamp::now);
    stoker_embedded::Api::new(Settings::new(vec![], clock)).unwrap()
}

async fn start(listen: &str) -> Running {
    let server = Server::bind(api(), listen.parse().unwrap()).await.unwrap();
    let kubeconfig = Kubeconfig::from_yaml(&server.kubeconfig()).unwrap();
    let (addr, cancel) = (server.addr(), CancellationToken::new());
    let task = tokio::spawn(server.run(cancel.clone()));
    Running { kubeconfig, addr, cancel, task }
}

async fn client(kubeconfig: Kubeconfig) -> Client {
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

#[tokio::test]
async fn the_kubeconfig_opens_the_door() {
    for listen in ["127.0.0.1:0", "0.0.0.0:0"] {
        let running = start(listen).await;
        let client = client(running.kubeconfig).await;
        assert_eq!(client.default_namespace(), "default");
        let namespaces: Api<Namespace> = Api::all(client);
        assert_eq!(namespaces.list(&ListParams::default()).await.unwrap().items.len(), 2, "{listen}");
        running.cancel.cancel();
        running.task.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_kubeconfig_outlives_the_server() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let identity = dir.path().join("identity.json");
    let mut listen: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let mut first = None;
    for _ in 0..2 {
        let server = Server::bind_kept(api(), listen, &identity).await.unwrap();
        listen = server.addr();
        let kubeconfig = first.get_or_insert(server.kubeconfig()).clone();
        assert_eq!(server.kubeconfig(), kubeconfig);
        let cancel = CancellationToken::new();
        let task = tokio::spawn(server.run(cancel.clone()));
        let namespaces: Api<Namespace> = Api::all(client(Kubeconfig::from_yaml(&kubeconfig).unwrap()).await);
        assert_eq!(namespaces.list(&ListParams::default()).await.unwrap().items.len(), 2);
        cancel.cancel();
        task.await.unwrap().unwrap();
    }
    assert_eq!(std::fs::metadata(&identity).unwrap().permissions().mode() & 0o777, 0o600);

    // Another address: a new server certificate, by the same authority and with the same token.
    let server = Server::bind_kept(api(), "127.0.0.2:0".parse().unwrap(), &identity).await.unwrap();
    let mut kubeconfig = Kubeconfig::from_yaml(first.as_deref().unwrap()).unwrap();
    kubeconfig.clusters[0].cluster.as_mut().unwrap().server = Some(format!("https://{}", server.addr()));
    let cancel = CancellationToken::new();
    let task = tokio::spawn(server.run(cancel.clone()));
    let namespaces: Api<Namespace> = Api::all(client(kubeconfig).await);
    assert_eq!(namespaces.list(&ListParams::default()).await.unwrap().items.len(), 2);
    cancel.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_wrong_token_and_none_are_401() {
    let running = start("127.0.0.1:0").await;
    let wrong = Some("0".repeat(64).into());
    for token in [wrong, None] {
        let mut kubeconfig = running.kubeconfig.clone();
        kubeconfig.auth_infos[0].auth_info.as_mut().unwrap().token = token;
        let namespaces: Api<Namespace> = Api::all(client(kubeconfig).await);
        match namespaces.list(&ListParams::default()).await.unwrap_err() {
            kube::Error::Api(status) => assert_eq!((status.code, status.reason.as_str()), (401, "Unauthorized")),
            other => panic!("{other:?}"),
        }
    }
    running.cancel.cancel();
    running.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn another_authority_is_not_trusted() {
    let (running, other) = (start("127.0.0.1:0").await, start("127.0.0.1:0").await);
    let mut kubeconfig = running.kubeconfig.clone();
    kubeconfig.clusters[0].cluster.as_mut().unwrap().server = Some(format!("https://{}", other.addr));
    let namespaces: Api<Namespace> = Api::all(client(kubeconfig).await);
    assert!(!matches!(namespaces.list(&ListParams::default()).await, Ok(_) | Err(kube::Error::Api(_))));
    for running in [running, other] {
        running.cancel.cancel();
        running.task.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_watch_ends_with_the_server() {
    let running = start("127.0.0.1:0").await;
    let namespaces: Api<Namespace> = Api::all(client(running.kubeconfig).await);
    let mut stream = pin!(namespaces.watch(&WatchParams::default(), "0").await.unwrap());
    for _ in 0..2 {
        assert!(matches!(stream.next().await, Some(Ok(WatchEvent::Added(_)))));
    }
    assert!(matches!(stream.next().await, Some(Ok(WatchEvent::Bookmark(_)))), "the end of what is there");
    running.cancel.cancel();
    assert!(stream.try_next().await.unwrap().is_none());
    running.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn garbage_instead_of_tls_harms_nobody() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let running = start("127.0.0.1:0").await;
    let mut stranger = tokio::net::TcpStream::connect(running.addr).await.unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = stranger.read_to_end(&mut answer).await;
    let silent = tokio::net::TcpStream::connect(running.addr).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(client(running.kubeconfig).await);
    assert!(namespaces.list(&ListParams::default()).await.is_ok());
    running.cancel.cancel();
    running.task.await.unwrap().unwrap();
    drop(silent);
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let running = start("127.0.0.1:0").await;
    let error = Server::bind(api(), running.addr).await.unwrap_err().to_string();
    assert!(error.contains(&running.addr.to_string()) && error.contains("already in use"), "{error}");
    running.cancel.cancel();
    running.task.await.unwrap().unwrap();
}
