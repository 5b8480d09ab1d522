//! Randomness for uids, generated names and the bearer token, from the TLS provider. In: nothing. Out: bytes, or an error where
//! the machine has none: then nothing that must be unguessable is made.

use crate::refusal::Refusal;
use std::fmt::Write as _;

/// Fresh random bytes.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N], rustls::crypto::GetRandomFailed> {
    let mut bytes = [0; N];
    rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes)?;
    Ok(bytes)
}

fn for_object<const N: usize>() -> Result<[u8; N], Refusal> {
    bytes().map_err(|_| Refusal::internal("the machine gave no random bytes; try again"))
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A version 4 UUID.
pub(crate) fn uid() -> Result<String, Refusal> {
    let mut bytes = for_object::<16>()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = hex(&bytes);
    for at in [20, 16, 12, 8] {
        text.insert(at, '-');
    }
    Ok(text)
}

/// The five characters that end a generated name; no vowels, so no words.
pub(crate) fn suffix() -> Result<String, Refusal> {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let bytes = for_object::<5>()?;
    Ok(bytes.iter().map(|b| char::from(LETTERS[usize::from(*b) % LETTERS.len()])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_have_the_form_of_version_4() {
        let uid = uid().unwrap();
        let parts: Vec<usize> = uid.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert_eq!(uid.as_bytes()[14], b'4');
        assert_eq!(suffix().unwrap().len(), 5);
    }
}
