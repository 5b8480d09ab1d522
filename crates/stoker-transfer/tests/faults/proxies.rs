//! Registries behind a proxy. Their names mean nothing here: only the proxy knows the way.

use std::sync::{Arc, Mutex};

use stoker_testbed::registry::{Auth, Fault, On};
use stoker_transfer::{Platform, Proxy, TransferErrorKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use super::tls::{Authority, serve};
use super::*;

/// A proxy that makes tunnels, all to one place; what it was asked is noted.
struct Tunnels {
    host: String,
    heads: Arc<Mutex<Vec<String>>>,
    _task: AbortOnDropHandle<()>,
}

impl Tunnels {
    /// Where to, and the login that it wants.
    async fn new(to: String, login: Option<&'static str>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let noted = heads.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = tunnel(stream, &to, login, &noted).await;
            }
        });
        Self { host, heads, _task: AbortOnDropHandle::new(task) }
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

async fn tunnel(
    mut stream: TcpStream,
    to: &str,
    login: Option<&str>,
    noted: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    noted.lock().unwrap().push(head.clone());
    if login.is_some_and(|login| !head.contains(login)) {
        return stream.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n").await;
    }
    let mut beyond = TcpStream::connect(to).await?;
    stream.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await?;
    tokio::io::copy_bidirectional(&mut stream, &mut beyond).await.map(|_| ())
}

fn proxied(bench: &mut Bench, hosts: Option<&TempDir>, extra_ca: String, variables: &[(&str, String)]) {
    let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
    bench.set(Settings {
        proxy: Proxy::from_env_like(find),
        hosts: hosts.map(|dir| dir.path().to_owned()).into_iter().collect(),
        extra_ca: extra_ca.into_bytes(),
        ..settings()
    });
}

async fn fetch(bench: &Bench) -> Result<Vec<u8>, Error> {
    let source = BlobSource::new("reg.test/team/app:v1".parse().unwrap(), None);
    let file = bench.spool.blob(source, bench.descriptor()).complete().await?;
    Ok(std::fs::read(file).unwrap())
}

#[tokio::test]
async fn an_https_registry_is_reached_by_a_tunnel() {
    let mut bench = Bench::new().await;
    let authority = Authority::new();
    let (certificate, key) = authority.sign("reg.test");
    let (address, _server) = serve(bench.layer.clone(), vec![certificate.der().clone()], &key, None).await;
    let to = address.replace("https://localhost", "127.0.0.1");
    let tunnels = Tunnels::new(to, Some("Basic YWRhOmh1bnRlcjI=")).await;

    let ca = authority.certificate.pem();
    proxied(&mut bench, None, ca.clone(), &[("HTTPS_PROXY", format!("http://ada:hunter2@{}", tunnels.host))]);
    assert_eq!(fetch(&bench).await.unwrap(), bench.layer);
    assert_eq!(tunnels.heads().len(), 1);
    assert!(tunnels.heads()[0].starts_with("CONNECT reg.test:443 HTTP/1.1\r\n"), "{:?}", tunnels.heads());
    assert!(!format!("{:?}", bench.client).contains("hunter2"));

    bench.spool.release(bench.descriptor().digest()).await.unwrap();
    proxied(&mut bench, None, ca, &[("https_proxy", format!("http://eve:hunter2@{}", tunnels.host))]);
    let error = fetch(&bench).await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::Unreachable);
    assert!(error.to_string().contains("proxy"), "{error}");
    assert_clean(&error);
}

#[tokio::test]
async fn a_plain_registry_is_asked_through_the_proxy_in_its_place() {
    let mut bench = Bench::new().await;
    bench.registry.protect(Auth::Basic { login: "ada:hunter2".into() });
    let certs = TempDir::new().unwrap();
    std::fs::create_dir(certs.path().join("reg.test")).unwrap();
    std::fs::write(certs.path().join("reg.test/hosts.toml"), "server = 'http://reg.test:8080'").unwrap();
    let proxy = format!("http://eve:secret@{}", bench.registry.host());
    proxied(&mut bench, Some(&certs), String::new(), &[("HTTP_PROXY", proxy)]);
    let image: Reference = "reg.test/team/app:v1".parse().unwrap();
    let login = login("hunter2");
    let root = bench.client.resolve(&image, Some(&login)).await.unwrap();
    bench.client.image(&image, root.digest(), &Platform::host(), Some(&login)).await.unwrap();
    let seen = bench.registry.seen();
    assert!(seen.iter().all(|seen| seen.in_place_of.as_deref() == Some("reg.test:8080")), "{seen:?}");
    let header = ("proxy-authorization".to_owned(), "Basic ZXZlOnNlY3JldA==".to_owned());
    assert!(seen.iter().all(|seen| seen.headers.contains(&header)), "{seen:?}");
}

#[tokio::test]
async fn this_machine_is_never_proxied_and_a_proxy_that_is_none_is_said_so() {
    let mut bench = Bench::new().await;
    let nowhere = [("HTTP_PROXY", "ftp://hunter2".to_owned()), ("HTTPS_PROXY", "ftp://hunter2".to_owned())];
    proxied(&mut bench, None, String::new(), &nowhere);
    bench.client.resolve(&bench.image(), None).await.unwrap();
    let error = bench.client.resolve(&"reg.test/a".parse().unwrap(), None).await.unwrap_err();
    assert!(error.to_string().contains("HTTPS_PROXY is not the address"), "{error}");
    assert_clean(&error);
}

#[tokio::test]
async fn a_registry_behind_a_proxy_cannot_send_us_to_this_machine() {
    let mut bench = Bench::new().await;
    let certs = TempDir::new().unwrap();
    std::fs::create_dir(certs.path().join("reg.test")).unwrap();
    std::fs::write(certs.path().join("reg.test/hosts.toml"), "server = 'http://reg.test'").unwrap();
    let host = bench.registry.host();
    proxied(&mut bench, Some(&certs), String::new(), &[("HTTP_PROXY", host.clone())]);
    bench.registry.fault(On::Blobs, usize::MAX, Fault::Redirect(format!("http://{host}")));
    let error = fetch(&bench).await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::InvalidContent, "{error}");
    assert_eq!(bench.registry.requests("/blobs/").len(), 1);
}
