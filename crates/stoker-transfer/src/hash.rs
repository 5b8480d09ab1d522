//! The text of a hash. A hasher comes in, lowercase hexadecimal goes out.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

pub(crate) fn hex(hash: Sha256) -> String {
    format!("{:x}", Bytes::copy_from_slice(&hash.finalize()))
}
