//! Sparse files of the PAX kind (versions 0.0, 0.1 and 1.0): where the stored bytes belong in the file.

use super::super::error::Error;
use super::pax::{self, Records};
use super::{EntryKind, TarEntry};

/// A run of stored bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredRun {
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// Where the map is.
pub(super) enum Map {
    Known(Vec<StoredRun>),
    /// In the stream, before the data.
    Ahead,
}

/// The map of a sparse file, nothing for any other. Its real name and size stand in the records, and are taken over.
pub(super) fn map(entry: &mut TarEntry, records: &Records) -> Result<Option<Map>, Error> {
    let ahead = match (records.get(b"GNU.sparse.major"), records.get(b"GNU.sparse.minor")) {
        (b"0", b"0" | b"1") => false,
        (b"1", b"0") => true,
        (b"", b"") if !records.get(pax::SPARSE_MAP).is_empty() => false,
        // Not sparse, or a version nobody knows: the stored bytes are the file.
        _ => return Ok(None),
    };
    let name = records.get(b"GNU.sparse.name");
    if !name.is_empty() {
        entry.name = name.to_vec();
    }
    let size = match records.get(b"GNU.sparse.size") {
        b"" => records.get(b"GNU.sparse.realsize"),
        size => size,
    };
    if !size.is_empty() {
        entry.size = pax::decimal(size).ok_or_else(|| wrong(&entry.name))?;
    }
    if ahead {
        return Ok(Some(Map::Ahead));
    }
    let count = pax::decimal(records.get(b"GNU.sparse.numblocks")).ok_or_else(|| wrong(&entry.name))?;
    let text = records.get(pax::SPARSE_MAP);
    let numbers: Vec<&[u8]> = if text.is_empty() { Vec::new() } else { text.split(|byte| *byte == b',').collect() };
    if count < 0 || count.checked_mul(2) != i64::try_from(numbers.len()).ok() {
        return Err(wrong(&entry.name));
    }
    places(&numbers).map(|places| Some(Map::Known(places))).ok_or_else(|| wrong(&entry.name))
}

/// How many lines the map in the stream has: the first says how many places follow, two lines each.
pub(super) fn lines(text: &[u8], name: &[u8]) -> Result<usize, Error> {
    let first = text.split(|byte| *byte == b'\n').next().and_then(pax::decimal);
    let places = first.and_then(|places| usize::try_from(places).ok());
    places.and_then(|places| places.checked_mul(2)?.checked_add(1)).ok_or_else(|| wrong(name))
}

/// The map in the stream, all of whose lines are there.
pub(super) fn parse(text: &[u8], name: &[u8]) -> Result<Vec<StoredRun>, Error> {
    let count = lines(text, name)? - 1;
    let numbers: Vec<&[u8]> = text.split(|byte| *byte == b'\n').skip(1).take(count).collect();
    places(&numbers).ok_or_else(|| wrong(name))
}

fn places(numbers: &[&[u8]]) -> Option<Vec<StoredRun>> {
    let number = |text: &[u8]| pax::decimal(text).and_then(|number| u64::try_from(number).ok());
    numbers.chunks_exact(2).map(|pair| Some(StoredRun { offset: number(pair[0])?, length: number(pair[1])? })).collect()
}

/// Whether the places are in order, within the file, and are all of the stored bytes. Gives the file's size.
pub(super) fn check(entry: &TarEntry, places: &[StoredRun], stored: u64) -> Result<u64, Error> {
    let size = u64::try_from(entry.size).map_err(|_| wrong(&entry.name))?;
    let mut end = 0;
    let mut sum: u64 = 0;
    for place in places {
        let next = place.offset.checked_add(place.length).filter(|next| *next <= size);
        if place.offset < end {
            return Err(wrong(&entry.name));
        }
        end = next.ok_or_else(|| wrong(&entry.name))?;
        sum += place.length;
    }
    let regular = matches!(entry.kind, EntryKind::File);
    if sum != stored || !regular { Err(wrong(&entry.name)) } else { Ok(size) }
}

fn wrong(name: &[u8]) -> Error {
    Error::archive(name, "its sparse map is wrong")
}
