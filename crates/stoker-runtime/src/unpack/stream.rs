//! The plain bytes of a layer, decompressed on a thread of their own while the caller hashes them and writes files:
//! inflating takes about as long as the other two together.
//!
//! A source comes in, a buffered stream of the archive goes out, and at its end the digest of all of it. Memory is a
//! few chunks, whatever is in the layer.

use std::io::{self, BufRead, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use sha2::{Digest as _, Sha256};

use super::compression::{LayerCompression, SourceFailed, is_too_much_memory};
use super::error::Error;

/// Bytes of one chunk, and how many there are at most (one more is with each side).
const CHUNK: usize = 128 * 1024;
const CHUNKS: usize = 4;

/// What the whole stream was.
pub(super) struct Sum {
    pub(super) sha256: [u8; 32],
    pub(super) size: u64,
}

/// The decoding end: run it on its own thread.
pub(super) struct Decoder<R> {
    source: R,
    compression: LayerCompression,
    full: SyncSender<Vec<u8>>,
    empty: Receiver<Vec<u8>>,
}

/// The reading end. When it is dropped the decoder stops.
pub(super) struct DecodedStream {
    full: Receiver<Vec<u8>>,
    empty: SyncSender<Vec<u8>>,
    chunk: Vec<u8>,
    at: usize,
    hash: Sha256,
    size: u64,
}

/// Both ends.
pub(super) fn pair<R: Read>(source: R, compression: LayerCompression) -> (Decoder<R>, DecodedStream) {
    let (full, filled) = sync_channel(CHUNKS);
    // Room for all, so that giving back never waits.
    let (used, empty) = sync_channel(CHUNKS + 2);
    let stream = DecodedStream { full: filled, empty: used, chunk: Vec::new(), at: 0, hash: Sha256::new(), size: 0 };
    (Decoder { source, compression, full, empty }, stream)
}

impl<R: Read> Decoder<R> {
    /// Decodes to the end, or until the reader has gone.
    pub(super) fn run(self) -> Result<(), Error> {
        let Self { source, compression, full, empty } = self;
        let mut plain = compression.plain(source).map_err(told)?;
        loop {
            let mut chunk = empty.try_recv().unwrap_or_else(|_| vec![0; CHUNK]);
            chunk.resize(CHUNK, 0);
            let filled = fill(&mut plain, &mut chunk).map_err(told)?;
            chunk.truncate(filled);
            if filled == 0 || full.send(chunk).is_err() {
                return Ok(());
            }
        }
    }
}

/// As much as there is: fewer bytes than asked for mean the end.
fn fill(plain: &mut impl Read, chunk: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < chunk.len() {
        match plain.read(&mut chunk[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

/// Whose fault an error is.
fn told(error: io::Error) -> Error {
    match error.downcast::<SourceFailed>() {
        Ok(SourceFailed(source)) => Error::Read(source),
        Err(large) if is_too_much_memory(&large) => {
            Error::unsupported(b"", "its zstd window is larger than the 8 MiB that are allowed here")
        }
        Err(damage) => Error::Compressed(damage),
    }
}

impl DecodedStream {
    /// Reads what is left, and says what all of it was. A decoder that failed ends the stream as well: look at its
    /// error first.
    pub(super) fn finish(mut self) -> Sum {
        while self.next() {}
        Sum { sha256: self.hash.finalize().into(), size: self.size }
    }

    /// Whether there is another chunk.
    fn next(&mut self) -> bool {
        let next = self.full.recv().unwrap_or_default();
        self.hash.update(&next);
        self.size += next.len() as u64;
        self.at = 0;
        let used = std::mem::replace(&mut self.chunk, next);
        if used.capacity() > 0 {
            // The decoder takes it again, or is gone: both are fine.
            let _ = self.empty.try_send(used);
        }
        !self.chunk.is_empty()
    }
}

impl Read for DecodedStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut from = self.fill_buf()?;
        let read = from.read(buf)?;
        self.consume(read);
        Ok(read)
    }
}

impl BufRead for DecodedStream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.chunk.len() {
            self.next();
        }
        Ok(&self.chunk[self.at..])
    }

    fn consume(&mut self, amount: usize) {
        self.at = self.chunk.len().min(self.at + amount);
    }
}
