//! Reading a journal at start. In: an open file, to which anything may have happened. Out: where each object stands and where
//! the last whole write ends; or an error that names the file. It changes nothing, and no content makes it panic.

use super::JournalError;
use super::frame::{self, FrameHead, HEAD, HEADER, Header, KNOWN_FORMAT, MARKER};
use super::index::Index;
use crate::object::{Object, text};
use crate::store::Place;
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Read at one time while looking for a record.
const PIECE: usize = 1 << 20;

/// Everything that a journal holds.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) revision: u64,
    pub(crate) objects: Vec<(Place, Object)>,
    /// Bytes at the end of the file that were no whole write.
    pub(crate) dropped: u64,
}

/// What the records of a file amount to.
#[derive(Debug, Default)]
pub(super) struct Replayed {
    pub(super) index: Index,
    pub(super) revision: u64,
    /// Where the last whole record ends; 0 where not even the header is whole.
    pub(super) end: u64,
    /// The length of the file.
    pub(super) len: u64,
}

/// Goes through all records.
pub(super) fn read(path: &Path, file: &File) -> Result<Replayed, JournalError> {
    let io = |source| JournalError::Io { path: path.to_owned(), source };
    let damaged = |why: String| JournalError::Damaged { path: path.to_owned(), why };
    let len = file.metadata().map_err(io)?.len();
    let mut header = vec![0; HEADER.min(usize::try_from(len).unwrap_or(HEADER))];
    file.read_exact_at(&mut header, 0).map_err(io)?;
    let snapshot = match frame::read_header(&header) {
        Header::Known { snapshot } => snapshot,
        Header::Cut => return Ok(Replayed { len, ..Replayed::default() }),
        Header::Newer(found) => {
            return Err(JournalError::Newer { path: path.to_owned(), found, known: KNOWN_FORMAT });
        }
        Header::Redb => return Err(JournalError::Earlier { path: path.to_owned() }),
        Header::Damaged => return Err(damaged("its header is damaged".to_owned())),
        Header::Foreign => return Err(damaged("it is no journal".to_owned())),
    };
    let replayed = records(path, file, len)?;
    if replayed.end == len && replayed.end >= snapshot {
        return Ok(replayed);
    }
    // A snapshot was durable before the file got its name: no crash cuts it, and half of it is no state that ever was.
    if replayed.end < snapshot {
        return Err(damaged(format!(
            "its snapshot, bytes {HEADER} to {snapshot}, is damaged at byte {}",
            replayed.end
        )));
    }
    match whole_after(file, replayed.end + 1, len).map_err(io)? {
        Some((next, newest)) => Err(JournalError::Hole {
            path: path.to_owned(),
            at: replayed.end,
            next,
            revision: replayed.revision,
            newest,
        }),
        None => Ok(replayed),
    }
}

/// All records up to the first that is not whole.
fn records(path: &Path, file: &File, len: u64) -> Result<Replayed, JournalError> {
    let io = |source| JournalError::Io { path: path.to_owned(), source };
    let mut reader = BufReader::with_capacity(PIECE, file);
    reader.seek(SeekFrom::Start(HEADER as u64)).map_err(io)?;
    let mut replayed = Replayed { end: HEADER as u64, len, ..Replayed::default() };
    while let Some(body) = record(&mut reader, len - replayed.end).map_err(io)? {
        let (revision, changes) = frame::read_body(&body).map_err(|why| JournalError::Damaged {
            path: path.to_owned(),
            why: format!("the record at byte {} is not understood: {why}", replayed.end),
        })?;
        replayed.index.apply(replayed.end, changes);
        replayed.revision = revision;
        replayed.end += (HEAD + body.len()) as u64;
    }
    Ok(replayed)
}

/// The body of the record that begins here, if it is whole. `left` is what the file still has: a length beyond that is not
/// believed, so no damage makes this reserve more than the file is long.
fn record(reader: &mut impl Read, left: u64) -> io::Result<Option<Vec<u8>>> {
    if left < HEAD as u64 {
        return Ok(None);
    }
    let mut head = [0; HEAD];
    reader.read_exact(&mut head)?;
    let Some(head) = FrameHead::read(&head).filter(|head| u64::from(head.len) <= left - HEAD as u64) else {
        return Ok(None);
    };
    let mut body = vec![0; head.len as usize];
    reader.read_exact(&mut body)?;
    Ok(head.fits(&body).then_some(body))
}

/// The first whole record at or after `from`, and the revision of the last one that follows it without a gap.
fn whole_after(file: &File, from: u64, len: u64) -> io::Result<Option<(u64, u64)>> {
    let mut at = from;
    while let Some(found) = marker(file, at, len)? {
        let mut reader = BufReader::with_capacity(PIECE, file);
        reader.seek(SeekFrom::Start(found))?;
        let (mut end, mut newest) = (found, None);
        while let Some(body) = record(&mut reader, len - end)? {
            end += (HEAD + body.len()) as u64;
            newest = frame::read_body(&body).ok().map(|(revision, _)| revision).or(newest);
        }
        if let Some(newest) = newest {
            return Ok(Some((found, newest)));
        }
        at = found + 1;
    }
    Ok(None)
}

/// Where the next marker stands.
fn marker(file: &File, from: u64, len: u64) -> io::Result<Option<u64>> {
    let mut at = from;
    let mut piece = vec![0; PIECE];
    while at + (MARKER.len() as u64) <= len {
        let some = usize::try_from(len - at).unwrap_or(PIECE).min(PIECE);
        file.read_exact_at(&mut piece[..some], at)?;
        if let Some(found) = piece[..some].windows(MARKER.len()).position(|bytes| bytes == MARKER) {
            return Ok(Some(at + found as u64));
        }
        // A marker may stand across the border of two pieces.
        at += (some - (MARKER.len() - 1)) as u64;
    }
    Ok(None)
}

/// Reads the objects themselves.
pub(super) fn objects(path: &Path, file: &File, replayed: &Replayed) -> Result<Vec<(Place, Object)>, JournalError> {
    let mut objects = Vec::new();
    for (place, span) in replayed.index.in_file_order() {
        let mut json = vec![0; usize::try_from(span.end - span.start).unwrap_or_default()];
        file.read_exact_at(&mut json, span.start)
            .map_err(|source| JournalError::Io { path: path.to_owned(), source })?;
        let object = object(&place, &json, replayed.revision).map_err(|why| {
            let Place { table, key } = &place;
            let why = format!("{table} {}/{} at byte {}: {why}", key.namespace, key.name, span.start);
            JournalError::Damaged { path: path.to_owned(), why }
        })?;
        objects.push((place, object));
    }
    Ok(objects)
}

fn object(place: &Place, json: &[u8], newest: u64) -> Result<Object, String> {
    let value: Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let revision: u64 = text(&value, "resourceVersion").parse().map_err(|_| "it has no resourceVersion".to_owned())?;
    if revision > newest {
        return Err(format!("its resourceVersion {revision} is later than the journal's {newest}"));
    }
    let object = Object::seal(value, revision);
    if object.key() != place.key {
        return Err("it is stored under another name".to_owned());
    }
    Ok(object)
}
