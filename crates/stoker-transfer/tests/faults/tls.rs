//! TLS. A registry on loopback is spoken to without it, so the way there is a redirect to a server that has it.

use std::sync::Arc;

use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use stoker_testbed::registry::{Auth, Fault, On};
use stoker_transfer::TransferErrorKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::task::AbortOnDropHandle;

use super::*;

/// A server with this certificate, and whose clients it wants, that gives these bytes to everybody.
pub(super) async fn serve(
    body: Bytes,
    chain: Vec<CertificateDer<'static>>,
    key: &KeyPair,
    clients: Option<&Certificate>,
) -> (String, AbortOnDropHandle<()>) {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider.clone());
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = match clients {
        None => config.with_no_client_auth(),
        Some(ca) => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(ca.der().clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            config.with_client_cert_verifier(verifier)
        }
    };
    let acceptor = TlsAcceptor::from(Arc::new(config.with_single_cert(chain, key).unwrap()));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that does not trust us, or that we do not, ends the handshake: that is its test.
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let _ = answer(stream, &body).await;
        }
    });
    (address, AbortOnDropHandle::new(task))
}

async fn answer(mut stream: TlsStream<TcpStream>, body: &[u8]) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    assert!(!String::from_utf8_lossy(&head).to_lowercase().contains("authorization"));
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(answer.as_bytes()).await?;
    stream.write_all(body).await?;
    stream.shutdown().await
}

/// One with a certificate of its own; its address, and its certificate as PEM.
async fn server(body: Bytes) -> (String, String, AbortOnDropHandle<()>) {
    let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (address, task) = serve(body, vec![own.cert.der().clone()], &own.signing_key, None).await;
    (address, own.cert.pem(), task)
}

/// A CA, and what it signed.
pub(super) struct Authority {
    pub(super) certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(super) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    pub(super) fn sign(&self, name: &str) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }
}

/// A bench whose client looks into a directory of hosts, and the directory of a registry in it with these files.
fn sited(bench: &mut Bench, address: &str, more: &str, files: &[(&str, String)]) -> TempDir {
    let certs = TempDir::new().unwrap();
    let dir = certs.path().join("reg.test");
    std::fs::create_dir(&dir).unwrap();
    for (name, text) in files {
        std::fs::write(dir.join(name), text).unwrap();
    }
    std::fs::write(dir.join("hosts.toml"), format!("server = '{address}'\n{more}")).unwrap();
    bench.set(Settings { hosts: vec![certs.path().to_owned()], ..settings() });
    certs
}

async fn fetch(bench: &Bench) -> Result<Vec<u8>, Error> {
    let source = BlobSource::new("reg.test/team/app:v1".parse().unwrap(), Some(login("hunter2")));
    let file = bench.spool.blob(source, bench.descriptor()).complete().await?;
    let bytes = std::fs::read(file).unwrap();
    bench.spool.release(bench.descriptor().digest()).await?;
    Ok(bytes)
}

#[tokio::test]
async fn a_host_has_its_own_ca_and_an_error_says_so() {
    let mut bench = Bench::new().await;
    let authority = Authority::new();
    let (certificate, key) = authority.sign("localhost");
    let (address, _server) = serve(bench.layer.clone(), vec![certificate.der().clone()], &key, None).await;
    let _certs = sited(&mut bench, &address, "", &[]);
    let error = fetch(&bench).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    let _certs = sited(&mut bench, &address, "ca = 'ca.pem'", &[("ca.pem", authority.certificate.pem())]);
    assert_eq!(fetch(&bench).await.unwrap(), bench.layer);
    for (text, says) in [(String::new(), "no certificate"), ("hunter2".into(), "no certificate")] {
        let _certs = sited(&mut bench, &address, "ca = 'ca.pem'", &[("ca.pem", text)]);
        let error = fetch(&bench).await.unwrap_err();
        assert!(error.to_string().contains(says) && error.to_string().contains("ca.pem"), "{error}");
        assert_clean(&error);
    }
}

#[tokio::test]
async fn a_certificate_that_signed_itself_is_good_for_its_own_name() {
    let mut bench = Bench::new().await;
    for (name, good) in [("localhost", true), ("other.test", false)] {
        // With the mark of a CA in it, as openssl makes them.
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let own = params.self_signed(&key).unwrap();
        let (address, _server) = serve(bench.layer.clone(), vec![own.der().clone()], &key, None).await;
        let _certs = sited(&mut bench, &address, "ca = 'ca.pem'", &[("ca.pem", own.pem())]);
        assert_eq!(fetch(&bench).await.is_ok(), good, "{name}");
        let stranger = Authority::new().certificate.pem();
        let _certs = sited(&mut bench, &address, "ca = 'ca.pem'", &[("ca.pem", stranger)]);
        assert!(fetch(&bench).await.is_err(), "only what we were given is trusted");
        let _certs = sited(&mut bench, &address, "skip_verify = true", &[]);
        assert_eq!(fetch(&bench).await.unwrap(), bench.layer, "unless nobody wants to know");
    }
}

#[tokio::test]
async fn we_come_with_a_certificate_where_a_host_wants_one() {
    let mut bench = Bench::new().await;
    let (servers, clients) = (Authority::new(), Authority::new());
    let (certificate, key) = servers.sign("localhost");
    let chain = vec![certificate.der().clone()];
    let (address, _server) = serve(bench.layer.clone(), chain, &key, Some(&clients.certificate)).await;
    let (own, own_key) = clients.sign("localhost");
    let files = [
        ("ca.pem", servers.certificate.pem()),
        ("own.pem", own.pem()),
        ("key.pem", own_key.serialize_pem()),
        ("both.pem", format!("{}{}", own.pem(), own_key.serialize_pem())),
        ("other.pem", KeyPair::generate().unwrap().serialize_pem()),
    ];
    let _certs = sited(&mut bench, &address, "ca = 'ca.pem'", &files);
    assert_eq!(fetch(&bench).await.unwrap_err().kind(), TransferErrorKind::Unreachable);
    for client in ["[['own.pem', 'key.pem']]", "'both.pem'", "['both.pem']"] {
        let _certs = sited(&mut bench, &address, &format!("ca = 'ca.pem'\nclient = {client}"), &files);
        assert_eq!(fetch(&bench).await.unwrap(), bench.layer, "{client}");
    }
    for (client, named) in [("[['own.pem', 'other.pem']]", "does not fit"), ("'own.pem'", "no private key")] {
        let _certs = sited(&mut bench, &address, &format!("ca = 'ca.pem'\nclient = {client}"), &files);
        let error = fetch(&bench).await.unwrap_err();
        assert!(error.to_string().contains(named) && error.to_string().contains("own.pem"), "{error}");
        assert!(!error.to_string().contains("PRIVATE"), "{error}");
    }
}

#[tokio::test]
async fn a_certificate_that_we_were_given_is_trusted_and_no_other() {
    let mut bench = Bench::new().await;
    let (address, certificate, _server) = server(bench.layer.clone()).await;
    bench.registry.protect(Auth::Basic { login: "ada:hunter2".into() });
    bench.registry.fault(On::Blobs, usize::MAX, Fault::Redirect(address));
    let error = bench.fetch_as(Some(login("hunter2"))).await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::Unreachable);
    assert!(error.to_string().contains("certificate"), "{error}");
    assert_clean(&error);

    bench.set(Settings { extra_ca: certificate.into_bytes(), ..settings() });
    assert_eq!(bench.fetch_as(Some(login("hunter2"))).await.unwrap(), bench.layer);
}

#[test]
fn a_ca_that_is_none_is_said_so() {
    let broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec();
    let error = Registry::new(Settings { extra_ca: broken, ..settings() }).unwrap_err();
    assert!(error.to_string().contains("extra CA"), "{error}");
}
