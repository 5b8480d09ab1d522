//! The text of a hash. A hasher or bytes come in, lowercase hexadecimal goes out; and the way back.

use bytes::Bytes;
use oci_spec::image::{Digest, DigestAlgorithm};
use sha2::{Digest as _, Sha256};

pub(crate) fn hex(hash: Sha256) -> String {
    hex_of(&hash.finalize())
}

pub(crate) fn hex_of(bytes: &[u8]) -> String {
    format!("{:x}", Bytes::copy_from_slice(bytes))
}

/// The bytes of a sha256 digest.
pub(crate) fn sha256_of(digest: &Digest) -> Option<[u8; 32]> {
    let text = Some(digest.digest()).filter(|_| *digest.algorithm() == DigestAlgorithm::Sha256)?;
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}
