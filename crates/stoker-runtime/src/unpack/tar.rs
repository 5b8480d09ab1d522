//! Reads a tar archive as Go's reader does, which is what containerd sees: a file that one of the two would read
//! differently could be one thing where it was scanned and another where it runs.
//!
//! A stream comes in, entries and their data go out. PAX, GNU long names, ustar, star and old V7 headers are known, and
//! sparse files of the PAX kind. Nothing is written here, and memory stays below a few MiB.

use std::io::{self, BufRead};

use self::header::Block;
use self::pax::Records;
use super::error::Error;

mod header;
mod pax;
mod sparse;

pub(super) use self::header::Time;

const BLOCK: usize = 512;
/// The most that a PAX header, a long name or a sparse map may take.
const SPECIAL: u64 = 1 << 20;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryKind {
    File,
    Link,
    Symlink,
    Char,
    Block,
    Directory,
    Fifo,
    /// PAX records meant for all that follows. Go gives it as an entry and applies it to nothing.
    Global,
    /// Anything else, which containerd refuses once it comes to make it.
    Other(u8),
}

/// One entry, with what extended headers say about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TarEntry {
    pub(super) kind: EntryKind,
    pub(super) name: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) modified: Time,
    pub(super) accessed: Option<Time>,
    pub(super) device: (u32, u32),
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    size: i64,
}

/// A part of a file.
pub(super) enum FilePart<'a> {
    Bytes(&'a [u8]),
    /// As many zeros.
    Hole(u64),
}

/// An archive, at some entry.
pub(super) struct Archive<R> {
    stream: R,
    /// What is left of the current entry's data in the stream, and its padding.
    left: u64,
    padding: u64,
    /// The data's places in the current file, where it is sparse, and the file's whole size.
    places: Option<(Vec<sparse::StoredRun>, u64)>,
}

impl<R: BufRead> Archive<R> {
    pub(super) fn new(stream: R) -> Self {
        Self { stream, left: 0, padding: 0, places: None }
    }

    /// Gives the stream back, somewhere behind the end of the archive.
    pub(super) fn into_stream(self) -> R {
        self.stream
    }

    /// The bytes that the current file takes, without its holes.
    pub(super) fn stored(&self) -> u64 {
        self.left
    }

    /// The next entry; what is left of the one before is skipped.
    pub(super) fn next(&mut self) -> Result<Option<TarEntry>, Error> {
        let (mut records, mut long_name, mut long_link) = (Records::default(), Vec::new(), Vec::new());
        loop {
            self.skip_data()?;
            // An archive may end within its padding.
            if !self.skip_padding()? {
                return Ok(None);
            }
            let Some(block) = self.header()? else { return Ok(None) };
            let mut entry = block.entry()?;
            self.expect_data(&entry)?;
            match entry.kind {
                EntryKind::Other(b'x') => records = pax::parse(&self.special(&entry)?, &entry.name)?,
                EntryKind::Other(b'L') => long_name = header::text(&self.special(&entry)?).to_vec(),
                EntryKind::Other(b'K') => long_link = header::text(&self.special(&entry)?).to_vec(),
                EntryKind::Global => {
                    let global = pax::parse(&self.special(&entry)?, &entry.name)?;
                    // Go takes a name in it for the entry's own, and uses nothing else.
                    let name = global.get(b"path");
                    if !name.is_empty() {
                        entry.name = name.to_vec();
                    }
                    return Ok(Some(entry));
                }
                _ => {
                    pax::merge(&mut entry, &records)?;
                    if !long_name.is_empty() {
                        entry.name = long_name;
                    }
                    if !long_link.is_empty() {
                        entry.link = long_link;
                    }
                    // Old archives have no type for directories.
                    if entry.kind == EntryKind::Other(0) {
                        let directory = entry.name.ends_with(b"/");
                        entry.kind = if directory { EntryKind::Directory } else { EntryKind::File };
                    }
                    self.expect_data(&entry)?;
                    self.find_holes(&mut entry, &records)?;
                    return Ok(Some(entry));
                }
            }
        }
    }

    /// Hands the current file's data out, piece by piece.
    pub(super) fn data(&mut self, mut sink: impl FnMut(FilePart<'_>) -> Result<(), Error>) -> Result<(), Error> {
        let Some((places, size)) = self.places.take() else {
            let all = self.left;
            return self.copy(all, &mut sink);
        };
        let mut at = 0;
        for place in places {
            if place.offset > at {
                sink(FilePart::Hole(place.offset - at))?;
            }
            self.copy(place.length, &mut sink)?;
            at = place.offset + place.length;
        }
        if size > at { sink(FilePart::Hole(size - at)) } else { Ok(()) }
    }

    fn copy(&mut self, length: u64, sink: &mut impl FnMut(FilePart<'_>) -> Result<(), Error>) -> Result<(), Error> {
        let mut left = length;
        while left > 0 {
            let bytes = self.stream.fill_buf().map_err(Error::Read)?;
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
            if most == 0 {
                return Err(ends_early());
            }
            sink(FilePart::Bytes(&bytes[..most]))?;
            self.stream.consume(most);
            left -= most as u64;
            self.left = self.left.saturating_sub(most as u64);
        }
        Ok(())
    }

    fn skip_data(&mut self) -> Result<(), Error> {
        self.places = None;
        let left = self.left;
        self.copy(left, &mut |_| Ok(()))
    }

    /// Whether the padding was there.
    fn skip_padding(&mut self) -> Result<bool, Error> {
        let mut block = [0; BLOCK];
        let padding = usize::try_from(self.padding).unwrap_or(0).min(BLOCK);
        self.padding = 0;
        Ok(self.fill(&mut block[..padding])? == padding)
    }

    /// Fewer bytes than asked for mean the end of the stream.
    fn fill(&mut self, buf: &mut [u8]) -> Result<usize, Error> {
        let mut filled = 0;
        while filled < buf.len() {
            match self.stream.read(&mut buf[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::Read(e)),
            }
        }
        Ok(filled)
    }

    /// The next header. The end is two blocks of zeros, or the end of the stream.
    fn header(&mut self) -> Result<Option<Block>, Error> {
        let mut block = [0; BLOCK];
        for zeros in [false, true] {
            match self.fill(&mut block)? {
                0 => return Ok(None),
                BLOCK => {}
                _ => return Err(ends_early()),
            }
            let empty = block == [0; BLOCK];
            match (zeros, empty) {
                (false, false) => return Block::new(block).map(Some),
                (true, false) => return Err(Error::archive(b"", "a block of zeros stands between entries")),
                _ => {}
            }
        }
        Ok(None)
    }

    fn expect_data(&mut self, entry: &TarEntry) -> Result<(), Error> {
        let bodyless = matches!(
            entry.kind,
            EntryKind::Link
                | EntryKind::Symlink
                | EntryKind::Char
                | EntryKind::Block
                | EntryKind::Directory
                | EntryKind::Fifo
        );
        let size = if bodyless { 0 } else { entry.size };
        self.left = u64::try_from(size).map_err(|_| Error::archive(&entry.name, "its size is negative"))?;
        self.padding = self.left.wrapping_neg() % BLOCK as u64;
        Ok(())
    }

    /// The whole data of a header that speaks about the next one.
    fn special(&mut self, entry: &TarEntry) -> Result<Vec<u8>, Error> {
        if self.left > SPECIAL {
            return Err(Error::archive(&entry.name, "an extended header has more than 1 MiB"));
        }
        let mut bytes = Vec::new();
        let all = self.left;
        self.copy(all, &mut |piece| {
            if let FilePart::Bytes(more) = piece {
                bytes.extend_from_slice(more);
            }
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Where the records speak of a sparse file, finds out where its data belongs.
    fn find_holes(&mut self, entry: &mut TarEntry, records: &Records) -> Result<(), Error> {
        if entry.kind == EntryKind::Other(b'S') {
            return Err(Error::unsupported(&entry.name, "a sparse file of the old GNU kind"));
        }
        let Some(map) = sparse::map(entry, records)? else { return Ok(()) };
        let places = match map {
            sparse::Map::Known(places) => places,
            sparse::Map::Ahead => self.map_ahead(&entry.name)?,
        };
        let size = sparse::check(entry, &places, self.left)?;
        self.places = Some((places, size));
        Ok(())
    }

    /// A sparse map that stands before the data, in blocks of its own.
    fn map_ahead(&mut self, name: &[u8]) -> Result<Vec<sparse::StoredRun>, Error> {
        let (mut text, mut lines, mut needed) = (Vec::new(), 0, 1);
        while lines < needed {
            if text.len() as u64 >= SPECIAL || self.left < BLOCK as u64 {
                return Err(Error::archive(name, "its sparse map does not end"));
            }
            self.copy(BLOCK as u64, &mut |piece| {
                if let FilePart::Bytes(more) = piece {
                    text.extend_from_slice(more);
                    lines += more.iter().filter(|byte| **byte == b'\n').count();
                }
                Ok(())
            })?;
            if lines > 0 && needed == 1 {
                needed = sparse::lines(&text, name)?;
            }
        }
        sparse::parse(&text, name)
    }
}

fn ends_early() -> Error {
    Error::archive(b"", "it ends in the middle of an entry")
}
