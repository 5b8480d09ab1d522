//! TLS with one host.
//!
//! Certificates as files come in; what rustls wants goes out. The public roots are always trusted, a host's own CAs
//! besides them. It connects to nobody.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::Error;
use crate::hosts::{self, Pem, Trust};

/// Settings that cannot be used.
#[derive(Debug)]
pub(super) enum Unusable {
    /// Those of the whole client.
    Setup(String),
    /// Those of one registry.
    Host(hosts::Error),
}

impl Unusable {
    /// The error for a request for this image.
    pub(super) fn for_image(self, what: &str) -> Error {
        match self {
            Self::Setup(why) => Error::Setup { why },
            Self::Host(problem) => Error::Hosts { what: what.to_owned(), problem },
        }
    }
}

/// The settings of TLS for a host with this trust; `extra_ca` is trusted with every host.
pub(super) fn config(trust: &Trust, extra_ca: &[u8]) -> Result<ClientConfig, Unusable> {
    let setup = Unusable::Setup;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    let mut known = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(extra_ca) {
        let certificate = certificate.map_err(|e| setup(format!("the extra CA is not PEM: {e}")))?;
        roots.add(certificate.clone()).map_err(|e| setup(format!("the extra CA is not usable: {e}")))?;
        known.push(certificate);
    }
    for pem in &trust.ca {
        for certificate in certificates(pem, "a CA")? {
            roots.add(certificate.clone()).map_err(|e| unusable(pem, "a CA", e.to_string()))?;
            known.push(certificate);
        }
    }
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| setup(e.to_string()))?;
    let verifier: Arc<dyn ServerCertVerifier> = if trust.skip_verify {
        Arc::new(Anyone { provider: provider.clone() })
    } else {
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        Arc::new(CaOrSelfSigned { inner: inner.build().map_err(|e| setup(e.to_string()))?, known })
    };
    // Named "dangerous" for what `Anyone` does; `Checked` is rustls' own verifier with one case more.
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let clients = trust.clients.iter().map(|(certificate, key)| client(certificate, key, &provider));
    let clients = clients.collect::<Result<Vec<_>, _>>()?;
    Ok(match clients.is_empty() {
        true => builder.with_no_client_auth(),
        false => builder.with_client_cert_resolver(Arc::new(Clients(clients))),
    })
}

fn unusable(pem: &Pem, role: &'static str, why: String) -> Unusable {
    Unusable::Host(hosts::Error::Certificate { file: pem.file.clone(), role, why })
}

fn certificates(pem: &Pem, role: &'static str) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    let found = CertificateDer::pem_slice_iter(&pem.bytes).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|e| unusable(pem, role, format!("it is not PEM ({e})")))?;
    if found.is_empty() {
        return Err(unusable(pem, role, "there is no certificate in it".to_owned()));
    }
    Ok(found)
}

fn client(certificate: &Pem, key: &Pem, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, Unusable> {
    const ROLE: &str = "a client certificate";
    let chain = certificates(certificate, ROLE)?;
    // What is wrong is said without a word of the key itself.
    let no_key = |_| unusable(key, "the key of a client", "there is no private key in it".to_owned());
    let private = PrivateKeyDer::from_pem_slice(&key.bytes).map_err(no_key)?;
    let pair = CertifiedKey::from_der(chain, private, provider);
    Ok(Arc::new(pair.map_err(|_| unusable(certificate, ROLE, format!("its key {} does not fit", key.file.display())))?))
}

/// Certificates to come with, the first that the server can read.
#[derive(Debug)]
struct Clients(Vec<Arc<CertifiedKey>>);

impl ResolvesClientCert for Clients {
    fn resolve(&self, _issuers: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.iter().find(|pair| pair.key.choose_scheme(schemes).is_some()).cloned()
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The usual checks, and servers whose certificate is itself one of the CAs we were given: many a registry has
/// just one certificate that signed itself, which Go takes and webpki refuses for the mark of a CA in it. Its name is
/// checked; its dates are not, for the file on this node is the same to the byte.
#[derive(Debug)]
struct CaOrSelfSigned {
    inner: Arc<WebPkiServerVerifier>,
    known: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for CaOrSelfSigned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let usual = self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match usual {
            Err(rustls::Error::InvalidCertificate(rustls::CertificateError::Other(_)))
                if self.known.iter().any(|known| known == end_entity) =>
            {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            usual => usual,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// `skip_verify`: whoever answers is the right one.
#[derive(Debug)]
struct Anyone {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
