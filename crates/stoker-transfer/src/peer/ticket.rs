//! What a node may read from others.
//!
//! The controller signs one ticket for each reader and image; a node that serves checks it. A ticket is good for one image, for the
//! holder of one key, and until a time: whoever copies it from the API server can do nothing with it. Nobody but the controller can
//! make one. It never says from whom to read.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use oci_spec::image::Digest;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use sha2::{Digest as _, Sha256};

use super::key::{NoPeerKey, PeerId};
use crate::hash::{hex, hex_of, sha256_of};

/// The form of a ticket; another form has another number.
const FORM: u8 = 1;
/// Before everything that is signed, so that a signature of another meaning is none here.
const MEANS: &[u8] = b"stoker-ticket\0";
/// Form, signer, image, reader, time.
const SIGNED: usize = 1 + 4 + 32 + 32 + 4;
const LENGTH: usize = SIGNED + 64;

/// The short name of a signing key: the beginning of its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SignerId([u8; 4]);

impl SignerId {
    fn of(public: &[u8]) -> Self {
        let hash = Sha256::digest(public);
        Self([hash[0], hash[1], hash[2], hash[3]])
    }
}

impl fmt::Display for SignerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", u32::from_be_bytes(self.0))
    }
}

/// What a ticket is for: an image under the name by which it was ordered. The same digest under another name is something else, because
/// another registry decides who may have it there.
pub fn ticket_subject(image: &str, root: &Digest) -> Digest {
    let mut hash = Sha256::new();
    hash.update(image.as_bytes());
    hash.update([0]);
    hash.update(root.as_ref().as_bytes());
    let hash = hex(hash);
    Digest::try_from(format!("sha256:{hash}")).unwrap_or_else(|_| root.clone())
}

/// Signs tickets. Its key is in memory only: each leader makes its own.
pub struct TicketSigner {
    pair: Ed25519KeyPair,
    id: SignerId,
}

impl fmt::Debug for TicketSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TicketSigner").field(&self.id).finish()
    }
}

impl TicketSigner {
    /// With a new key.
    pub fn generate() -> Result<Self, NoPeerKey> {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| NoPeerKey::Random)?;
        let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).map_err(|_| NoPeerKey::Malformed)?;
        let id = SignerId::of(pair.public_key().as_ref());
        Ok(Self { pair, id })
    }

    /// The key by which its tickets are checked.
    pub fn public(&self) -> TicketKey {
        let mut key = [0; 32];
        key.copy_from_slice(self.pair.public_key().as_ref());
        TicketKey(PeerId::new(key))
    }

    /// A ticket for the image of this root, for the holder of this key, until this time in seconds since 1970. `None` where the
    /// root is no sha256 digest.
    pub fn sign(&self, root: &Digest, reader: PeerId, expires: u32) -> Option<String> {
        let mut bytes = Vec::with_capacity(LENGTH);
        bytes.push(FORM);
        bytes.extend_from_slice(&self.id.0);
        bytes.extend_from_slice(&sha256_of(root)?);
        bytes.extend_from_slice(reader.as_bytes());
        bytes.extend_from_slice(&expires.to_be_bytes());
        let signature = self.pair.sign(&[MEANS, &bytes].concat());
        bytes.extend_from_slice(signature.as_ref());
        Some(URL_SAFE_NO_PAD.encode(bytes))
    }
}

/// The public key of a [`TicketSigner`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicketKey(pub PeerId);

impl TicketKey {
    /// Its short name, which is in every ticket.
    pub fn id(&self) -> SignerId {
        SignerId::of(self.0.as_bytes())
    }
}

/// Why a ticket is not good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TicketError {
    /// It is no ticket.
    #[error("it is not a ticket")]
    Malformed,
    /// Nobody known has signed it; its signer's key may be learned.
    #[error("its signer {0} is not known here")]
    UnknownSigner(SignerId),
    /// Nobody known has signed it, and the keys were not read since it was shown: the same ticket may be good in a moment.
    #[error("its signer {0} is not known here yet")]
    SignerUnread(SignerId),
    /// Somebody changed it.
    #[error("its signature is wrong")]
    Forged,
    /// It is for another node.
    #[error("it was made for another node")]
    OtherReader,
    /// Its time is over.
    #[error("its time is over")]
    Expired,
}

/// The keys of signers that are believed, by their short names.
#[derive(Clone, Debug, Default)]
pub struct TicketKeys(BTreeMap<SignerId, TicketKey>);

impl FromIterator<TicketKey> for TicketKeys {
    fn from_iter<T: IntoIterator<Item = TicketKey>>(keys: T) -> Self {
        Self(keys.into_iter().map(|key| (key.id(), key)).collect())
    }
}

/// What a good ticket says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The digest of the image: all blobs that it names may be read.
    pub root: Digest,
    /// Until when, in seconds since 1970.
    pub expires: u32,
}

/// What a ticket says, whether it is good or not: for whoever wrote it, to know whether it must be written again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketClaims {
    /// Who says that they signed it.
    pub signer: SignerId,
    /// The digest of the image.
    pub root: Digest,
    /// Who may read.
    pub reader: PeerId,
    /// Until when, in seconds since 1970.
    pub expires: u32,
}

impl TicketClaims {
    /// From the text; nothing is checked.
    pub fn read(text: &str) -> Option<Self> {
        let bytes = decode(text).ok()?;
        let root = Digest::try_from(format!("sha256:{}", hex_of(bytes.get(5..37)?))).ok()?;
        Some(Self {
            signer: SignerId(bytes.get(1..5)?.try_into().ok()?),
            root,
            reader: PeerId::new(bytes.get(37..69)?.try_into().ok()?),
            expires: u32::from_be_bytes(bytes.get(69..73)?.try_into().ok()?),
        })
    }
}

impl TicketKeys {
    /// Whether this signer is known.
    pub fn knows(&self, signer: SignerId) -> bool {
        self.0.contains_key(&signer)
    }

    /// Who signed this text, if it is a ticket; nothing is checked.
    pub fn signer(text: &str) -> Option<SignerId> {
        Some(SignerId(decode(text).ok()?.get(1..5)?.try_into().ok()?))
    }

    /// What the ticket says, if it is good for the caller with this key at this time, in seconds since 1970.
    pub fn check(&self, text: &str, caller: PeerId, now: u64) -> Result<Ticket, TicketError> {
        let bytes = decode(text)?;
        let (signed, signature) = bytes.split_at(SIGNED);
        let part = |from: usize, length: usize| &signed[from..from + length];
        let mut signer = SignerId([0; 4]);
        signer.0.copy_from_slice(part(1, 4));
        let key = self.0.get(&signer).ok_or(TicketError::UnknownSigner(signer))?;
        let public = UnparsedPublicKey::new(&ED25519, key.0.as_bytes());
        public.verify(&[MEANS, signed].concat(), signature).map_err(|_| TicketError::Forged)?;
        if part(37, 32) != caller.as_bytes() {
            return Err(TicketError::OtherReader);
        }
        let mut expires = [0; 4];
        expires.copy_from_slice(part(69, 4));
        let expires = u32::from_be_bytes(expires);
        if u64::from(expires) <= now {
            return Err(TicketError::Expired);
        }
        let root = Digest::try_from(format!("sha256:{}", hex_of(part(5, 32)))).map_err(|_| TicketError::Malformed)?;
        Ok(Ticket { root, expires })
    }
}

fn decode(text: &str) -> Result<[u8; LENGTH], TicketError> {
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| TicketError::Malformed)?;
    let bytes: [u8; LENGTH] = bytes.try_into().map_err(|_| TicketError::Malformed)?;
    if bytes[0] == FORM { Ok(bytes) } else { Err(TicketError::Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::key::PeerIdentity;

    fn root() -> Digest {
        format!("sha256:{}", "0123456789abcdef".repeat(4)).parse().unwrap()
    }

    #[test]
    fn a_ticket_is_good_for_one_reader_and_until_its_time() {
        let signer = TicketSigner::generate().unwrap();
        let keys: TicketKeys = [signer.public()].into_iter().collect();
        let [reader, other] = [0; 2].map(|_| PeerIdentity::generate().unwrap().id());
        let ticket = signer.sign(&root(), reader, 1000).unwrap();
        assert_eq!(keys.check(&ticket, reader, 999), Ok(Ticket { root: root(), expires: 1000 }));
        assert_eq!(keys.check(&ticket, reader, 1000), Err(TicketError::Expired));
        assert_eq!(keys.check(&ticket, other, 999), Err(TicketError::OtherReader));
        assert_eq!(TicketKeys::signer(&ticket), Some(signer.public().id()));
        let claims = TicketClaims { signer: signer.public().id(), root: root(), reader, expires: 1000 };
        assert_eq!((TicketClaims::read(&ticket), TicketClaims::read("AAAA")), (Some(claims), None));
        let stranger = TicketSigner::generate().unwrap();
        let foreign = stranger.sign(&root(), reader, 1000).unwrap();
        assert_eq!(keys.check(&foreign, reader, 999), Err(TicketError::UnknownSigner(stranger.public().id())));
        let sha512 = format!("sha512:{}", "0".repeat(128)).parse().unwrap();
        assert_eq!(signer.sign(&sha512, reader, 1000), None);
    }

    #[test]
    fn every_byte_of_a_ticket_is_signed() {
        let signer = TicketSigner::generate().unwrap();
        let keys: TicketKeys = [signer.public()].into_iter().collect();
        let reader = PeerIdentity::generate().unwrap().id();
        let good = URL_SAFE_NO_PAD.decode(signer.sign(&root(), reader, 1000).unwrap()).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            let error = keys.check(&URL_SAFE_NO_PAD.encode(&bad), reader, 0).unwrap_err();
            match at {
                0 => assert_eq!(error, TicketError::Malformed),
                1..5 => assert!(matches!(error, TicketError::UnknownSigner(_))),
                _ => assert_eq!(error, TicketError::Forged, "{at}"),
            }
        }
        for text in ["", "x", "AAAA", "\u{e4}"] {
            assert_eq!(keys.check(text, reader, 0), Err(TicketError::Malformed), "{text}");
        }
    }
}
