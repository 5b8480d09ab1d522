//! The key by which a node proves to other nodes who it is.
//!
//! An ed25519 key goes in; settings for TLS 1.3 with raw public keys (RFC 7250) go out. There are no certificates, names or dates in it: a
//! reader knows the key of whom it calls, and a server learns the key of its caller and decides by it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error as TlsError, ServerConfig,
    SignatureScheme,
};

/// What stands before the 32 bytes of an ed25519 key in a SubjectPublicKeyInfo (RFC 8410).
const SPKI: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// The public key of a node, by which others know it. Its text is base64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId([u8; 32]);

impl PeerId {
    /// From the bytes of an ed25519 public key.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes of the public key.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn spki(&self) -> Vec<u8> {
        [SPKI.as_slice(), &self.0].concat()
    }

    /// The key that a TLS connection has shown.
    pub(crate) fn of_spki(spki: &[u8]) -> Option<Self> {
        spki.strip_prefix(SPKI.as_slice())?.try_into().ok().map(Self)
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerId({self})")
    }
}

/// The text is no key of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not an ed25519 key in base64")]
pub struct NotAPeerId;

impl FromStr for PeerId {
    type Err = NotAPeerId;

    fn from_str(text: &str) -> Result<Self, NotAPeerId> {
        let bytes = STANDARD.decode(text).map_err(|_| NotAPeerId)?;
        bytes.try_into().map(Self).map_err(|_| NotAPeerId)
    }
}

/// Why there is no key of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPeerKey {
    /// The system gives no random numbers.
    #[error("the system gives no random numbers")]
    Random,
    /// The bytes are no key.
    #[error("it is not an ed25519 key in PKCS #8")]
    Malformed,
}

/// The private key of this node. Nothing shows it, `Debug` neither.
#[derive(Clone)]
pub struct PeerIdentity {
    pkcs8: Arc<[u8]>,
    id: PeerId,
}

impl fmt::Debug for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PeerIdentity").field(&self.id).finish()
    }
}

impl PeerIdentity {
    /// A new one.
    pub fn generate() -> Result<Self, NoPeerKey> {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| NoPeerKey::Random)?;
        Self::from_bytes(pkcs8.as_ref())
    }

    /// The one that [`to_bytes`](Self::to_bytes) gave.
    pub fn from_bytes(pkcs8: &[u8]) -> Result<Self, NoPeerKey> {
        let pair = Ed25519KeyPair::from_pkcs8(pkcs8).map_err(|_| NoPeerKey::Malformed)?;
        let id = pair.public_key().as_ref().try_into().map_err(|_| NoPeerKey::Malformed)?;
        Ok(Self { pkcs8: pkcs8.into(), id: PeerId(id) })
    }

    /// All of it, to be kept where nobody else can read it.
    pub fn to_bytes(&self) -> &[u8] {
        &self.pkcs8
    }

    /// The public key.
    pub fn id(&self) -> PeerId {
        self.id
    }

    fn certified(&self, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, TlsError> {
        let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.pkcs8.to_vec()));
        let signing = provider.key_provider.load_private_key(private)?;
        Ok(Arc::new(CertifiedKey::new(vec![CertificateDer::from(self.id.spki())], signing)))
    }

    /// For a server that lets in whoever shows a key; [`caller`] says which.
    pub(crate) fn server(&self) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let (own, algorithms) = (self.certified(&provider)?, provider.signature_verification_algorithms);
        let builder =
            ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13])?;
        let builder = builder.with_client_cert_verifier(Arc::new(AnyKey(algorithms)));
        let mut config = builder.with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(own)));
        // Every connection shows its key: nothing is resumed.
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// For a caller that speaks to this key and no other.
    pub(crate) fn client(&self, to: PeerId) -> Result<ClientConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let (own, algorithms) = (self.certified(&provider)?, provider.signature_verification_algorithms);
        let builder =
            ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13])?;
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(OneKey(to, algorithms)));
        let mut config = builder.with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(own)));
        config.resumption = rustls::client::Resumption::disabled();
        config.enable_sni = false;
        Ok(config)
    }
}

/// The key that the other side of a connection has proven to have.
pub(crate) fn caller(connection: &rustls::ServerConnection) -> Option<PeerId> {
    connection.peer_certificates()?.first().and_then(|shown| PeerId::of_spki(shown))
}

/// Takes one key.
#[derive(Debug)]
struct OneKey(PeerId, WebPkiSupportedAlgorithms);

/// Takes every key: what its owner may read, a ticket says.
#[derive(Debug)]
struct AnyKey(WebPkiSupportedAlgorithms);

fn verify(
    message: &[u8],
    key: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, TlsError> {
    verify_tls13_signature_with_raw_key(message, &SubjectPublicKeyInfoDer::from(key.as_ref()), signature, algorithms)
}

fn never<T>() -> Result<T, TlsError> {
    Err(TlsError::General("TLS 1.2 is not spoken between nodes".into()))
}

impl ServerCertVerifier for OneKey {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        match PeerId::of_spki(shown) {
            Some(id) if id == self.0 => Ok(ServerCertVerified::assertion()),
            _ => Err(TlsError::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        never()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify(message, key, signature, &self.1)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        match PeerId::of_spki(shown) {
            Some(_) => Ok(ClientCertVerified::assertion()),
            None => Err(TlsError::InvalidCertificate(CertificateError::BadEncoding)),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        never()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify(message, key, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written_and_never_shown() {
        let key = PeerIdentity::generate().unwrap();
        let again = PeerIdentity::from_bytes(key.to_bytes()).unwrap();
        assert_eq!(again.id(), key.id());
        assert_eq!(key.id().to_string().parse::<PeerId>().unwrap(), key.id());
        assert_eq!(format!("{key:?}"), format!("PeerIdentity(PeerId({}))", key.id()));
        for broken in [&b""[..], b"short", &[7; 85]] {
            assert_eq!(PeerIdentity::from_bytes(broken).unwrap_err(), NoPeerKey::Malformed);
        }
        for text in ["", "x", "AAAA", &STANDARD.encode([7; 33])] {
            assert_eq!(text.parse::<PeerId>().unwrap_err(), NotAPeerId, "{text}");
        }
    }

    /// What the server learns of its caller, and the caller of its server.
    async fn meet(server: ServerConfig, client: ClientConfig) -> (io::Result<Option<PeerId>>, io::Result<u8>) {
        let (near, far) = duplex(64 << 10);
        let serve = async move {
            let mut stream = TlsAcceptor::from(Arc::new(server)).accept(near).await?;
            let who = caller(stream.get_ref().1);
            stream.write_all(&[42]).await?;
            stream.shutdown().await?;
            Ok(who)
        };
        let name = ServerName::try_from("peer").unwrap();
        let call = async move {
            let mut stream = TlsConnector::from(Arc::new(client)).connect(name, far).await?;
            let mut byte = [0];
            stream.read_exact(&mut byte).await?;
            Ok(byte[0])
        };
        tokio::join!(serve, call)
    }

    #[tokio::test]
    async fn both_sides_know_each_other_by_their_keys() {
        let [server, client, other] = [0; 3].map(|_| PeerIdentity::generate().unwrap());
        let (who, byte) = meet(server.server().unwrap(), client.client(server.id()).unwrap()).await;
        assert_eq!((who.unwrap(), byte.unwrap()), (Some(client.id()), 42));
        let (who, byte) = meet(other.server().unwrap(), client.client(server.id()).unwrap()).await;
        assert!(who.is_err() && byte.is_err(), "another server has the address");
    }

    #[tokio::test]
    async fn nobody_comes_in_without_a_key() {
        let server = PeerIdentity::generate().unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let verifier = Arc::new(OneKey(server.id(), algorithms));
        let nobody = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        let (who, byte) = meet(server.server().unwrap(), nobody).await;
        assert!(who.is_err() && byte.is_err());
    }

    #[tokio::test]
    async fn a_key_that_is_shown_must_be_had() {
        let [server, client, stolen] = [0; 3].map(|_| PeerIdentity::generate().unwrap());
        // It shows the public key of another, and signs with its own.
        let liar = PeerIdentity { pkcs8: client.pkcs8.clone(), id: stolen.id() };
        let (who, byte) = meet(server.server().unwrap(), liar.client(server.id()).unwrap()).await;
        assert!(who.is_err() && byte.is_err());
        let liar = PeerIdentity { pkcs8: client.pkcs8.clone(), id: server.id() };
        let (_, byte) = meet(liar.server().unwrap(), client.client(server.id()).unwrap()).await;
        assert!(byte.is_err());
    }
}
