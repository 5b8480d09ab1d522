//! TLS. A registry on loopback is spoken to without it, so the way there is a redirect to a server that has it.

use std::sync::Arc;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use stoker_testbed::registry::{Auth, Fault, On};
use stoker_transfer::Kind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;

/// A server with a certificate of its own that gives these bytes to everybody; its address, and its certificate as PEM.
async fn server(body: Bytes) -> (String, String, tokio_util::task::AbortOnDropHandle<()>) {
    let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that does not trust us ends the handshake: that is its test.
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            assert!(!String::from_utf8_lossy(&head).to_lowercase().contains("authorization"));
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.write_all(&body).await.unwrap();
            let _ = stream.shutdown().await;
        }
    });
    (address, own.cert.pem(), tokio_util::task::AbortOnDropHandle::new(task))
}

#[tokio::test]
async fn a_certificate_that_we_were_given_is_trusted_and_no_other() {
    let mut bench = Bench::new().await;
    let (address, certificate, _server) = server(bench.layer.clone()).await;
    bench.registry.protect(Auth::Basic { login: "ada:hunter2".into() });
    bench.registry.fault(On::Blobs, usize::MAX, Fault::Redirect(address));
    let error = bench.fetch_as(Some(login("hunter2"))).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable);
    assert!(error.to_string().contains("certificate"), "{error}");
    assert_clean(&error);

    bench.client = Registry::new(Settings { extra_ca: certificate.into_bytes(), ..settings() }).unwrap();
    bench.spool = open(bench.dir.path(), &bench.client);
    assert_eq!(bench.fetch_as(Some(login("hunter2"))).await.unwrap(), bench.layer);
}

#[test]
fn a_ca_that_is_none_is_said_so() {
    let broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec();
    let error = Registry::new(Settings { extra_ca: broken, ..settings() }).unwrap_err();
    assert!(error.to_string().contains("extra CA"), "{error}");
}
