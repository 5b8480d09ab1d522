//! The plain bytes of a layer, decompressed and hashed on a thread of their own while the caller writes files.
//!
//! A source comes in, a buffered stream of the archive goes out, and at its end the digest of all of it. Memory is a
//! few chunks, whatever is in the layer.

use std::io::{self, BufRead, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use sha2::{Digest as _, Sha256};

use super::compression::{Compression, SourceFailed};
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
    compression: Compression,
    full: SyncSender<Vec<u8>>,
    empty: Receiver<Vec<u8>>,
}

/// The reading end. When it is dropped the decoder stops.
pub(super) struct Stream {
    full: Receiver<Vec<u8>>,
    empty: SyncSender<Vec<u8>>,
    chunk: Vec<u8>,
    at: usize,
}

/// Both ends.
pub(super) fn pair<R: Read>(source: R, compression: Compression) -> (Decoder<R>, Stream) {
    let (full, filled) = sync_channel(CHUNKS);
    // Room for all, so that giving back never waits.
    let (used, empty) = sync_channel(CHUNKS + 2);
    let stream = Stream { full: filled, empty: used, chunk: Vec::new(), at: 0 };
    (Decoder { source, compression, full, empty }, stream)
}

impl<R: Read> Decoder<R> {
    /// Decodes to the end. Nothing comes out where the reader left before.
    pub(super) fn run(self) -> Result<Option<Sum>, Error> {
        let Self { source, compression, full, empty } = self;
        let mut plain = compression.plain(source).map_err(told)?;
        let (mut hash, mut size) = (Sha256::new(), 0);
        loop {
            let mut chunk = empty.try_recv().unwrap_or_else(|_| vec![0; CHUNK]);
            chunk.resize(CHUNK, 0);
            let filled = fill(&mut plain, &mut chunk).map_err(told)?;
            if filled == 0 {
                return Ok(Some(Sum { sha256: hash.finalize().into(), size }));
            }
            chunk.truncate(filled);
            hash.update(&chunk);
            size += filled as u64;
            if full.send(chunk).is_err() {
                return Ok(None);
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
        Err(damage) => Error::Compressed(damage),
    }
}

impl Stream {
    /// Reads what is left, so that the decoder comes to its end.
    pub(super) fn drain(mut self) {
        self.chunk.clear();
        while let Ok(chunk) = self.full.recv() {
            // The decoder takes it again, or is gone: both are fine.
            let _ = self.empty.try_send(chunk);
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut from = self.fill_buf()?;
        let read = from.read(buf)?;
        self.consume(read);
        Ok(read)
    }
}

impl BufRead for Stream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.chunk.len() {
            // A decoder that failed ends the stream as well; its own error is looked at first.
            let next = self.full.recv().unwrap_or_default();
            let used = std::mem::replace(&mut self.chunk, next);
            self.at = 0;
            if used.capacity() > 0 {
                let _ = self.empty.try_send(used);
            }
        }
        Ok(&self.chunk[self.at..])
    }

    fn consume(&mut self, amount: usize) {
        self.at = self.chunk.len().min(self.at + amount);
    }
}
