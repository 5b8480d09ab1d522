//! Who has not shown the token keeps no connection, and takes none of the owner's.

use super::*;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

async fn start(crowd: &Crowd) -> (SocketAddr, Kubeconfig, CancellationToken) {
    let api = Api::new(crate::Settings::new(vec![], Arc::new(jiff::Timestamp::now))).unwrap();
    let server = Server::bind(api, ([127, 0, 0, 1], 0).into()).await.unwrap();
    let (addr, kubeconfig) = (server.addr(), Kubeconfig::from_yaml(&server.kubeconfig()).unwrap());
    let cancel = CancellationToken::new();
    tokio::spawn(Server { crowd: crowd.clone(), ..server }.run(cancel.clone()));
    (addr, kubeconfig, cancel)
}

async fn namespaces(kubeconfig: Kubeconfig) -> kube::Api<Namespace> {
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    kube::Api::all(kube::Client::try_from(config).unwrap())
}

/// Waits until the other side has closed.
async fn closed(mut stream: TcpStream) {
    assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0, "nothing is said to it");
}

#[tokio::test]
async fn a_connection_that_does_not_show_the_token_is_closed_and_the_others_stay() {
    let crowd = Crowd::new(100, Duration::from_secs(3));
    let (addr, kubeconfig, _cancel) = start(&crowd).await;
    let owner = namespaces(kubeconfig.clone()).await;
    owner.list(&ListParams::default()).await.unwrap();
    assert_eq!(crowd.len(), 0, "it is known");
    // It asks and asks, with a wrong token.
    let mut wrong = kubeconfig;
    wrong.auth_infos[0].auth_info.as_mut().unwrap().token = Some("0".repeat(64).into());
    let stranger = namespaces(wrong).await;
    assert!(stranger.list(&ListParams::default()).await.is_err());
    let silent = TcpStream::connect(addr).await.unwrap();
    closed(silent).await;
    while crowd.len() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    owner.list(&ListParams::default()).await.unwrap();
}

#[tokio::test]
async fn strangers_do_not_lock_the_owner_out() {
    let crowd = Crowd::new(4, Duration::from_secs(3600));
    let (addr, kubeconfig, _cancel) = start(&crowd).await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(addr).await.unwrap());
    }
    let owner = namespaces(kubeconfig).await;
    owner.list(&ListParams::default()).await.unwrap();
    let last = silent.split_off(36);
    for stream in silent {
        closed(stream).await;
    }
    drop(last);
}
