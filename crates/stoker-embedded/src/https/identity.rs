//! Who the server is and who may come in: a certificate authority, a server certificate and a token, made at start and kept in
//! memory only. In: the listen address. Out: a TLS configuration and a kubeconfig. None of it is ever logged.

use super::ServerError;
use crate::random;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use subtle::ConstantTimeEq as _;

/// The bearer token; it shows itself to nobody.
#[derive(Clone)]
pub(super) struct Token(Arc<str>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// Whether an `Authorization` header shows this token, in a time that does not depend on how wrong it is.
    pub(super) fn is(&self, header: Option<&[u8]>) -> bool {
        const SCHEME: &[u8] = b"bearer ";
        let shown = header
            .and_then(|header| header.split_at_checked(SCHEME.len()))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME))
            .map(|(_, shown)| shown);
        shown.is_some_and(|shown| bool::from(shown.ct_eq(self.0.as_bytes())))
    }
}

/// Certificates and token of one server.
pub(super) struct Identity {
    authority: String,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    token: Token,
}

impl Identity {
    pub(super) fn new(listen: IpAddr) -> Result<Self, ServerError> {
        let failed = |error: rcgen::Error| ServerError::Certificate(error.to_string());
        let token = random::bytes::<32>().map_err(|e| ServerError::Certificate(format!("{e:?}")))?;
        let authority = authority().map_err(failed)?;
        let key = KeyPair::generate().map_err(failed)?;
        let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
        let own = listen.to_string();
        if !listen.is_unspecified() && !names.contains(&own) {
            names.push(own);
        }
        let mut params = CertificateParams::new(names).map_err(failed)?;
        params.distinguished_name.push(DnType::CommonName, "stoker");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &authority).map_err(failed)?;
        Ok(Self {
            authority: authority.pem(),
            chain: vec![certificate.der().clone()],
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            token: Token(random::hex(&token).into()),
        })
    }

    pub(super) fn token(&self) -> Token {
        self.token.clone()
    }

    pub(super) fn tls(&self) -> Result<rustls::ServerConfig, ServerError> {
        super::tls(self.chain.clone(), self.key.clone_key())
    }

    pub(super) fn kubeconfig(&self, addr: SocketAddr) -> String {
        let host = match addr.ip() {
            // One cannot connect to "every address".
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
            ip => ip,
        };
        let server = SocketAddr::new(host, addr.port());
        let authority = STANDARD.encode(&self.authority);
        let token = &self.token.0;
        format!(
            "apiVersion: v1
kind: Config
current-context: stoker
clusters:
- name: stoker
  cluster:
    server: https://{server}
    certificate-authority-data: {authority}
users:
- name: stoker
  user:
    token: {token}
contexts:
- name: stoker
  context:
    cluster: stoker
    user: stoker
    namespace: default
"
        )
    }
}

/// The certificates never leave this process's life, so their dates carry no meaning and are rcgen's widest.
fn authority() -> Result<CertifiedIssuer<'static, KeyPair>, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, "stoker-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_opens() {
        let token = Token("abc".into());
        for (header, wanted) in [
            (Some("Bearer abc"), true),
            (Some("bearer abc"), true),
            (Some("Bearer abd"), false),
            (Some("Bearer abcd"), false),
            (Some("Bearer "), false),
            (Some("Basic abc"), false),
            (Some("abc"), false),
            (None, false),
        ] {
            assert_eq!(token.is(header.map(str::as_bytes)), wanted, "{header:?}");
        }
        assert_eq!(format!("{token:?}"), "Token(…)");
    }
}
