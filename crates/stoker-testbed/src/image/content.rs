//! What files of test images hold: given bytes, noise that nothing compresses, or text that compresses as text does.

use std::io::{Cursor, Read};

use bytes::Bytes;

#[derive(Debug, Clone)]
pub(super) enum Content {
    Bytes(Bytes),
    Noise { length: u64, seed: u64 },
    Text { length: u64, seed: u64 },
}

impl Content {
    pub(super) fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Noise { length, .. } | Self::Text { length, .. } => *length,
        }
    }

    /// A stream, so that a large file is never in memory as a whole.
    pub(super) fn read(&self) -> Box<dyn Read> {
        match self {
            Self::Bytes(bytes) => Box::new(Cursor::new(bytes.clone())),
            Self::Noise { length, seed } => Box::new(Endless::new(*seed, noise).take(*length)),
            Self::Text { length, seed } => Box::new(Endless::new(*seed, sentence).take(*length)),
        }
    }
}

/// Bytes without end, a piece at a time.
struct Endless {
    state: u64,
    more: fn(&mut u64, &mut Vec<u8>),
    piece: Vec<u8>,
    read: usize,
}

impl Endless {
    fn new(seed: u64, more: fn(&mut u64, &mut Vec<u8>)) -> Self {
        Self { state: seed, more, piece: Vec::new(), read: 0 }
    }
}

impl Read for Endless {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.read == self.piece.len() {
            self.piece.clear();
            self.read = 0;
            (self.more)(&mut self.state, &mut self.piece);
        }
        let left = self.piece.get(self.read..).unwrap_or_default();
        let length = left.len().min(into.len());
        into[..length].copy_from_slice(&left[..length]);
        self.read += length;
        Ok(length)
    }
}

/// The next number of a sequence that looks random (splitmix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn noise(state: &mut u64, into: &mut Vec<u8>) {
    for _ in 0..1024 {
        into.extend_from_slice(&next(state).to_le_bytes());
    }
}

/// Words as programs and their logs have them: about a third of it is left after gzip.
const WORDS: [&str; 32] = [
    "image", "layer", "node", "pull", "fn", "return", "config", "error", "warning", "while", "the", "of", "is", "not",
    "ready", "manifest", "digest", "sha256", "=", "{", "}", "0x", "import", "const", "struct", "status", "request",
    "time", "level", "info", "msg", "value",
];

fn sentence(state: &mut u64, into: &mut Vec<u8>) {
    for _ in 0..200 {
        let random = next(state);
        into.extend_from_slice(WORDS[(random % 32) as usize].as_bytes());
        // A number now and then, as in logs and symbol tables.
        if random >> 61 == 0 {
            into.extend_from_slice(format!("_{:x}", (random >> 8) & 0xff_ffff).as_bytes());
        }
        into.push(if random >> 60 == 15 { b'\n' } else { b' ' });
    }
}
