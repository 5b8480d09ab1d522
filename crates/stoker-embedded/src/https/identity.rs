//! Who the server is and who may come in: a certificate authority and a token, new or [`kept`], and a server certificate that is
//! made at each start, so that it always covers the address. In: the listen address. Out: a TLS configuration and a kubeconfig.
//! None of it is ever logged.

pub(super) mod kept;

use super::ServerError;
use crate::random;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::civil::Date;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
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

/// What makes a kubeconfig valid: as long as these stay the same, it does.
pub(super) struct Secrets {
    /// The authority's certificate.
    certificate: String,
    key: KeyPair,
    expires: Date,
    token: Token,
}

impl Secrets {
    pub(super) fn new(today: Date) -> Result<Self, ServerError> {
        let token = random::bytes::<32>().map_err(|e| ServerError::Certificate(format!("{e:?}")))?;
        let expires = today.saturating_add(jiff::Span::new().years(YEARS));
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = authority(expires).and_then(|params| params.self_signed(&key)).map_err(failed)?.pem();
        Ok(Self { certificate, key, expires, token: Token(random::hex(&token).into()) })
    }
}

/// How long an authority is good for. Its certificate does not reach back from today: clocks of small machines are often late.
const YEARS: i64 = 10;

fn failed(error: rcgen::Error) -> ServerError {
    ServerError::Certificate(error.to_string())
}

/// Certificates and token of one server.
pub(super) struct Identity {
    authority: String,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    token: Token,
}

impl Identity {
    /// A server certificate for this address.
    pub(super) fn new(secrets: Secrets, listen: IpAddr) -> Result<Self, ServerError> {
        let Secrets { certificate: authority_pem, key: authority_key, expires, token } = secrets;
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
        end(&mut params, expires);
        let issuer = Issuer::new(authority(expires).map_err(failed)?, authority_key);
        let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
        Ok(Self {
            authority: authority_pem,
            chain: vec![certificate.der().clone()],
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            token,
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

/// The authority, the same whenever it is made of the same key.
fn authority(expires: Date) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, "stoker-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    end(&mut params, expires);
    Ok(params)
}

/// A date of jiff is always one of the calendar, so the conversion cannot panic.
fn end(params: &mut CertificateParams, date: Date) {
    let (month, day) = (date.month().unsigned_abs(), date.day().unsigned_abs());
    params.not_after = date_time_ymd(date.year().into(), month, day);
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
