//! Our own small registry, read by our own client and by hand.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering;

use stoker_testbed::registry::{digest, noise};
use stoker_transfer::{Platform, RegistryServer, ServeSettings, TransferErrorKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::*;

/// A layout with one image, team/app:v1.
fn layout(dir: &Path) -> Bytes {
    let blobs = dir.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    let put = |bytes: &[u8]| {
        let digest = digest(bytes);
        std::fs::write(blobs.join(digest.trim_start_matches("sha256:")), bytes).unwrap();
        serde_json::json!({"mediaType": "application/octet-stream", "digest": digest, "size": bytes.len()})
    };
    let layer = noise(SIZE, 3);
    let manifest = serde_json::json!({"schemaVersion": 2, "config": put(b"{}"), "layers": [put(&layer)]});
    let mut entry = put(manifest.to_string().as_bytes());
    entry["mediaType"] = "application/vnd.oci.image.manifest.v1+json".into();
    entry["annotations"] = serde_json::json!({"org.opencontainers.image.ref.name": "team/app:v1"});
    let index = serde_json::json!({"schemaVersion": 2, "manifests": [entry]});
    std::fs::write(dir.join("index.json"), index.to_string()).unwrap();
    std::fs::write(dir.join("secret"), "secret").unwrap();
    layer
}

async fn raw(addr: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(format!("{request}\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn a_layout_is_served_and_pulled() {
    let dir = TempDir::new().unwrap();
    let layer = layout(dir.path());
    let server =
        RegistryServer::bind(([127, 0, 0, 1], 0).into(), dir.path().into(), ServeSettings::default()).await.unwrap();
    let (addr, sent, stop) = (server.addr(), server.sent(), CancellationToken::new());
    let running = tokio::spawn(server.run(stop.clone()));

    let reference: Reference = format!("{addr}/team/app:v1").parse().unwrap();
    let client = Registry::new(settings()).unwrap();
    let root = client.resolve(&reference, None).await.unwrap();
    assert_eq!(sent.load(Ordering::Relaxed), 0, "a HEAD costs nothing");
    let image = client.image(&reference, root.digest(), &Platform::host(), None).await.unwrap();
    let spool = open(&dir.path().join("spool"), &client);
    // A part that is there already: the server is asked for the rest alone.
    let name = image.layers[0].digest().digest();
    std::fs::write(dir.path().join(format!("spool/{name}.{SIZE}")), &layer[..1_000_000]).unwrap();
    let blob = spool.blob(BlobSource::new(reference.clone(), None), image.layers[0].clone());
    assert_eq!(std::fs::read(blob.complete().await.unwrap()).unwrap(), layer);
    assert_eq!(sent.load(Ordering::Relaxed), root.size() + SIZE as u64 - 1_000_000);

    let missing: Reference = format!("{addr}/team/other:v1").parse().unwrap();
    assert_eq!(client.resolve(&missing, None).await.unwrap_err().kind(), TransferErrorKind::NotFound);
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_protocol_is_kept() {
    let dir = TempDir::new().unwrap();
    let layer = layout(dir.path());
    let server =
        RegistryServer::bind(([127, 0, 0, 1], 0).into(), dir.path().into(), ServeSettings::default()).await.unwrap();
    let (addr, stop) = (server.addr(), CancellationToken::new());
    let running = tokio::spawn(server.run(stop.clone()));
    let blob = digest(&layer);
    for (request, status, text) in [
        ("GET /v2/ HTTP/1.1".to_owned(), "200", "registry/2.0"),
        ("GET / HTTP/1.1".to_owned(), "404", "NOT_FOUND"),
        ("PUT /v2/team/app/manifests/v1 HTTP/1.1".to_owned(), "405", "UNSUPPORTED"),
        ("GET /v2/team/app/manifests/v2 HTTP/1.1".to_owned(), "404", "MANIFEST_UNKNOWN"),
        (format!("GET /v2/team/app/manifests/{blob} HTTP/1.1"), "404", "MANIFEST_UNKNOWN"),
        ("GET /v2/team/app/manifests/v1 HTTP/1.1".to_owned(), "200", "docker-content-digest: sha256:"),
        (format!("GET /v2/a/blobs/{} HTTP/1.1", digest(b"none")), "404", "BLOB_UNKNOWN"),
        ("GET /v2/a/blobs/../../secret HTTP/1.1".to_owned(), "404", "NAME_UNKNOWN"),
        ("GET /v2/a/blobs/..%2f..%2fsecret HTTP/1.1".to_owned(), "400", "DIGEST_INVALID"),
        ("GET /v2/a/blobs/sha256:../../secret HTTP/1.1".to_owned(), "404", "NAME_UNKNOWN"),
        (format!("HEAD /v2/a/blobs/{blob} HTTP/1.1"), "200", &*format!("content-length: {SIZE}")),
        (format!("GET /v2/a/blobs/{blob} HTTP/1.1\r\nRange: bytes={SIZE}-"), "416", &*format!("bytes */{SIZE}")),
        (format!("HEAD /v2/a/blobs/{blob} HTTP/1.1\r\nRange: bytes=5-9"), "206", &*format!("bytes 5-9/{SIZE}")),
    ] {
        let answer = raw(addr, &request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {answer:.300}");
        assert!(answer.contains(text), "{request}: {answer:.300}");
        assert!(!answer.ends_with("secret"), "{request}");
    }
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_slow_reader_does_not_hold_up_the_stop() {
    let dir = TempDir::new().unwrap();
    let layer = layout(dir.path());
    let settings = ServeSettings { bytes_per_second: Some(10_000) };
    let server = RegistryServer::bind(([127, 0, 0, 1], 0).into(), dir.path().into(), settings).await.unwrap();
    let (addr, stop) = (server.addr(), CancellationToken::new());
    let running = tokio::spawn(server.run(stop.clone()));
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = format!("GET /v2/a/blobs/{} HTTP/1.1\r\nHost: x\r\n\r\n", digest(&layer));
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.read_u8().await.unwrap();
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_is_no_layout_is_said_so() {
    let dir = TempDir::new().unwrap();
    let error = RegistryServer::bind(([127, 0, 0, 1], 0).into(), dir.path().into(), ServeSettings::default())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("not an OCI layout"), "{error}");
}
