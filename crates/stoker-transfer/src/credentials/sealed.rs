//! Logins sealed to the key of one node.
//!
//! One entry of a pull secret and a node's public key come in; a text that only the holder of the private key can open goes
//! out, and the other way round. The sealed boxes are those of libsodium (X25519, XSalsa20-Poly1305): whoever seals needs no
//! key of its own. Nothing here shows a login: not in `Debug`, not in an error, and not by the length of a box.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crypto_box::aead::OsRng;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::config::{self, Malformed, SecretKind};
use super::pattern::Pattern;
use crate::login::Login;
use crate::reference::Reference;

/// The longest text of a login that is sealed. Tokens of registries have up to 4 KiB.
pub(super) const MOST_BYTES: usize = 8 * 1024;

/// Texts are filled up to a multiple of this, so that the length of a box does not tell that of a password.
const STEP: usize = 256;

/// One login of a pull secret, and where it may be sent.
#[derive(Clone, PartialEq, Eq)]
pub struct LoginEntry {
    pub(super) pattern: Pattern,
    pub(super) login: Login,
}

/// The text inside a box.
#[derive(Serialize, Deserialize)]
struct BoxedText {
    host: String,
    port: String,
    path: String,
    username: String,
    password: String,
}

/// The text of a login is longer than what is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a login of it is longer than 8 KiB")]
pub struct TooLong;

/// Why a box gives no login.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOpened {
    /// It was sealed to another key, or somebody changed it.
    #[error("it was not sealed to the key of this node")]
    OtherKey,
    /// It holds something else than a login.
    #[error("what is sealed in it is not a login")]
    NoLogin,
}

impl LoginEntry {
    /// The entries of a pull secret, in its order.
    pub fn read(kind: SecretKind, bytes: &[u8]) -> Result<Vec<Self>, Malformed> {
        let logins = config::read(kind, bytes)?;
        Ok(logins.into_iter().map(|(pattern, login)| Self { pattern, login }).collect())
    }

    /// Whether the login may be sent to this image's registry, by the kubelet's rules.
    pub fn fits(&self, image: &Reference) -> bool {
        self.pattern.matches(image)
    }

    /// The registry that the login is for, as images name it; none where it is for all registries of some shape.
    pub fn registry(&self) -> Option<String> {
        self.pattern.registry()
    }

    /// How closely the entry says where the login belongs: of those that fit one image, the closer one is tried first.
    pub fn closeness(&self) -> u32 {
        self.pattern.closeness()
    }

    /// A name for the login: another one as soon as anything in it is another. Names are read by more people than logins, so the
    /// salt must be something that those people do not know; else weak passwords could be guessed from names.
    pub fn name(&self, salt: &str) -> String {
        let mut hash = Sha256::new();
        for part in [salt, self.pattern.text(), &self.login.username, self.login.password.expose()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finalize().iter().take(20).map(|byte| format!("{byte:02x}")).collect()
    }

    /// The login in a box for this key. Boxes of one login differ from each other.
    pub fn seal(&self, to: &PublicKey) -> Result<String, TooLong> {
        let text = self.text().ok_or(TooLong)?;
        let sealed = to.0.seal(&mut OsRng, text.as_bytes()).map_err(|_| TooLong)?;
        Ok(STANDARD.encode(sealed))
    }

    /// Whether it is short enough to be sealed.
    pub fn check(&self) -> Result<(), TooLong> {
        self.text().map(|_| ()).ok_or(TooLong)
    }

    /// How long its box is.
    pub fn sealed_len(&self) -> usize {
        // The key of the box and its tag, 48 bytes, and base64's four for three.
        (self.text().map_or(0, |text| text.len()) + 48).div_ceil(3) * 4
    }

    fn text(&self) -> Option<String> {
        let (host, port, path) = self.pattern.parts();
        let Login { username, password } = &self.login;
        let text = BoxedText {
            host: host.into(),
            port: port.into(),
            path: path.into(),
            username: username.clone(),
            password: password.expose().into(),
        };
        let mut text = serde_json::to_string(&text).ok()?;
        if text.len() > MOST_BYTES {
            return None;
        }
        let len = text.len().next_multiple_of(STEP);
        text.extend(std::iter::repeat_n(' ', len - text.len()));
        Some(text)
    }
}

impl fmt::Debug for LoginEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entry(***)")
    }
}

/// The key to which logins of one node are sealed; as text, base64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey(crypto_box::PublicKey);

impl PublicKey {
    /// A short name that tells keys apart.
    pub fn name(&self) -> String {
        Sha256::digest(self.0.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0.as_bytes()))
    }
}

/// A text that is no public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not the base64 of a 32 byte key that only one node can have")]
pub struct NotAPublicKey;

impl FromStr for PublicKey {
    type Err = NotAPublicKey;
    fn from_str(text: &str) -> Result<Self, NotAPublicKey> {
        let bytes = STANDARD.decode(text).map_err(|_| NotAPublicKey)?;
        let bytes: [u8; 32] = bytes.try_into().map_err(|_| NotAPublicKey)?;
        if is_of_low_order(bytes) {
            return Err(NotAPublicKey);
        }
        Ok(Self(crypto_box::PublicKey::from_bytes(bytes)))
    }
}

/// Points of X25519 with which all private keys agree on one of five secrets: what is sealed to one of them opens for everybody. These are
/// the five points of order 1 to 8, and two other ways to write the first two. All in the order of the bytes of a key.
const LOW_ORDER: [[u8; 32]; 7] = [
    [0; 32],
    small(1, 0, 0),
    [
        0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f, 0xc4, 0x6a, 0xda, 0x09,
        0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49, 0xb8, 0x00,
    ],
    [
        0x5f, 0x9c, 0x95, 0xbc, 0xa3, 0x50, 0x8c, 0x24, 0xb1, 0xd0, 0xb1, 0x55, 0x9c, 0x83, 0xef, 0x5b, 0x04, 0x44,
        0x5c, 0xc4, 0x58, 0x1c, 0x8e, 0x86, 0xd8, 0x22, 0x4e, 0xdd, 0xd0, 0x9f, 0x11, 0x57,
    ],
    small(0xec, 0xff, 0x7f),
    small(0xed, 0xff, 0x7f),
    small(0xee, 0xff, 0x7f),
];

/// A number of 32 bytes, by its first, its last and all others.
const fn small(first: u8, others: u8, last: u8) -> [u8; 32] {
    let mut bytes = [others; 32];
    (bytes[0], bytes[31]) = (first, last);
    bytes
}

fn is_of_low_order(mut key: [u8; 32]) -> bool {
    // The highest bit does not count.
    key[31] &= 0x7f;
    LOW_ORDER.contains(&key)
}

/// The private key of a node.
#[derive(Clone)]
pub struct NodeKey(crypto_box::SecretKey);

impl NodeKey {
    /// A new key, from the randomness of the operating system.
    pub fn generate() -> Self {
        Self(crypto_box::SecretKey::generate(&mut OsRng))
    }

    /// The key of these bytes, as [`NodeKey::to_bytes`] gave them.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NotAPublicKey> {
        crypto_box::SecretKey::from_slice(bytes).map(Self).map_err(|_| NotAPublicKey)
    }

    /// The bytes, for the file that keeps them.
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// What others seal to.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.public_key())
    }

    /// The login in a box.
    pub fn open(&self, sealed: &str) -> Result<LoginEntry, NotOpened> {
        let bytes = STANDARD.decode(sealed).map_err(|_| NotOpened::OtherKey)?;
        let text = self.0.unseal(&bytes).map_err(|_| NotOpened::OtherKey)?;
        let text: BoxedText = serde_json::from_slice(&text).map_err(|_| NotOpened::NoLogin)?;
        let pattern = Pattern::from_parts(text.host, text.port, text.path).ok_or(NotOpened::NoLogin)?;
        Ok(LoginEntry { pattern, login: Login { username: text.username, password: text.password.into() } })
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeKey(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &str) -> Vec<LoginEntry> {
        LoginEntry::read(SecretKind::DockerCfg, text.as_bytes()).unwrap()
    }

    fn entry(place: &str, password: &str) -> LoginEntry {
        entries(&format!(r#"{{"{place}": {{"username": "ada", "password": "{password}"}}}}"#)).remove(0)
    }

    #[test]
    fn only_the_node_that_a_login_is_sealed_to_opens_it() {
        let (ours, theirs) = (NodeKey::generate(), NodeKey::generate());
        // A path that would be read as another one if it were read once more.
        for place in ["reg.io", "*.example.com:5000/v2/v2/team", "[::1]:5000/app"] {
            let entry = entry(place, "hunter2");
            let sealed = entry.seal(&ours.public()).unwrap();
            assert_eq!(ours.open(&sealed).unwrap(), entry, "{place}");
            assert_eq!(theirs.open(&sealed), Err(NotOpened::OtherKey), "{place}");
            assert_eq!(sealed.len(), entry.sealed_len());
            assert_ne!(sealed, entry.seal(&ours.public()).unwrap(), "boxes of one login differ");
        }
    }

    #[test]
    fn a_box_that_was_changed_or_is_none_is_refused() {
        let key = NodeKey::generate();
        let mut bytes = STANDARD.decode(entry("reg.io", "p").seal(&key.public()).unwrap()).unwrap();
        bytes[60] ^= 1;
        for sealed in [STANDARD.encode(bytes), String::new(), "?".into(), STANDARD.encode([0; 200])] {
            assert_eq!(key.open(&sealed), Err(NotOpened::OtherKey), "{sealed}");
        }
        let other = key.public().0.seal(&mut OsRng, b"{}").unwrap();
        assert_eq!(key.open(&STANDARD.encode(other)), Err(NotOpened::NoLogin));
    }

    #[test]
    fn the_length_of_a_box_does_not_tell_that_of_the_password() {
        let key = NodeKey::generate().public();
        let len = |password: &str| entry("reg.io", password).seal(&key).unwrap().len();
        assert_eq!(len("p"), len(&"p".repeat(100)));
        assert!(len("p") < len(&"p".repeat(1000)));
        assert_eq!(entry("reg.io", &"p".repeat(MOST_BYTES)).seal(&key), Err(TooLong));
        assert_eq!(entry("reg.io", &"p".repeat(MOST_BYTES)).check(), Err(TooLong));
    }

    #[test]
    fn a_name_changes_with_everything_in_the_login_and_with_the_salt() {
        let one = entry("reg.io", "p");
        assert_eq!(one.name("salt"), entry("reg.io", "p").name("salt"));
        for (other, salt) in [(&one, "pepper"), (&entry("reg.io", "q"), "salt"), (&entry("reg.io/a", "p"), "salt")] {
            assert_ne!(one.name("salt"), other.name(salt));
        }
        assert_eq!(one.name("salt").len(), 40);
    }

    #[test]
    fn keys_are_read_as_they_were_written() {
        let key = NodeKey::generate();
        assert_eq!(NodeKey::from_bytes(&key.to_bytes()).unwrap().public(), key.public());
        let text = key.public().to_string();
        assert_eq!(text.parse::<PublicKey>().unwrap(), key.public());
        assert_eq!(key.public().name().len(), 16);
        for text in ["", "short", &STANDARD.encode([7; 31]), &STANDARD.encode([7; 33])] {
            assert_eq!(text.parse::<PublicKey>(), Err(NotAPublicKey), "{text}");
        }
        assert!(NodeKey::from_bytes(&[1; 31]).is_err());
    }

    /// How many secrets so many strangers agree on with this key.
    fn secrets(key: [u8; 32], strangers: usize) -> usize {
        use crypto_box::aead::Aead as _;
        let key = crypto_box::PublicKey::from_bytes(key);
        let boxed = (0..strangers).map(|_| {
            let stranger = crypto_box::SalsaBox::new(&key, &crypto_box::SecretKey::generate(&mut OsRng));
            stranger.encrypt(&[0; 24].into(), &b"hunter2"[..]).unwrap()
        });
        boxed.collect::<std::collections::BTreeSet<_>>().len()
    }

    #[test]
    fn keys_of_low_order_are_refused() {
        for point in LOW_ORDER {
            for highest in [0, 0x80] {
                let mut bytes = point;
                bytes[31] |= highest;
                assert_eq!(STANDARD.encode(bytes).parse::<PublicKey>(), Err(NotAPublicKey), "{bytes:02x?}");
                // There are five points of such an order, so whoever tries five secrets opens every box.
                assert!(secrets(bytes, 40) <= 5, "{bytes:02x?}");
            }
        }
        assert_eq!(secrets(NodeKey::generate().public().0.to_bytes(), 40), 40);
    }

    #[test]
    fn nothing_shows_a_login_or_a_private_key() {
        let (key, entry) = (NodeKey::generate(), entry("hunter2.io", "hunter2"));
        assert_eq!(format!("{entry:?} {key:?}"), "Entry(***) NodeKey(***)");
    }
}
