//! The bytes of the journal. In: changes. Out: a header or a record, and back. Pure: it never touches a file.
//!
//! A file is a header and then records, one after the other. A record is one commit: a marker, the length of its body, a
//! digest of length and body, and the body. Bodies are text alone, so the marker's first byte never stands inside one:
//! whoever looks for the next record behind a damaged one finds only real ones.

use crate::object::Key;
use crate::store::Place;
use sha2::{Digest as _, Sha256};
use std::ops::Range;

/// The first bytes of every journal.
pub(super) const MAGIC: [u8; 8] = *b"stokerj\n";
/// The format this server writes; it refuses to read a later one.
pub(super) const KNOWN_FORMAT: u32 = 2;
/// Magic, format, end of the snapshot, digest.
pub(super) const HEADER: usize = 32;
/// What a record begins with; 0xff is in no UTF-8 text.
pub(super) const MARKER: [u8; 4] = *b"\xffrec";
/// Marker, length, digest.
pub(super) const HEAD: usize = 24;
const DIGEST: Range<usize> = 8..HEAD;
/// With the body's first 16 bytes of SHA-256 nobody meets a wrong record that looks right.
const DIGEST_LEN: usize = HEAD - 8;

/// What the first bytes of a file say.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// Records begin behind it. Those before `snapshot` were made durable together, before the file got its name.
    Known { snapshot: u64 },
    /// The beginning of a header, and then nothing.
    Cut,
    /// Of a later version.
    Newer(u32),
    /// A redb database, which is what builds before format 2 wrote.
    Redb,
    /// It has our magic, and its digest does not fit.
    Damaged,
    /// No journal at all.
    Foreign,
}

/// The header of a file whose snapshot ends there.
pub(super) fn header(snapshot: u64) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&KNOWN_FORMAT.to_le_bytes());
    bytes[12..20].copy_from_slice(&snapshot.to_le_bytes());
    let digest = Sha256::digest(&bytes[..20]);
    bytes[20..].copy_from_slice(&digest[..HEADER - 20]);
    bytes
}

/// Reads the first bytes of a file, at most [`HEADER`] of them.
pub(super) fn read_header(bytes: &[u8]) -> Header {
    let known = bytes.len().min(MAGIC.len());
    if bytes[..known] != MAGIC[..known] {
        return if bytes.starts_with(b"redb") { Header::Redb } else { Header::Foreign };
    }
    let (Some(format), Some(snapshot)) = (number(bytes, 8..12), number(bytes, 12..20)) else { return Header::Cut };
    let format = format as u32;
    if format > KNOWN_FORMAT {
        return Header::Newer(format);
    }
    match bytes.len() < HEADER {
        true => Header::Cut,
        false if bytes[..HEADER] != header(snapshot) => Header::Damaged,
        false => Header::Known { snapshot },
    }
}

/// A little-endian number of at most eight bytes.
fn number(bytes: &[u8], range: Range<usize>) -> Option<u64> {
    let found = bytes.get(range)?;
    Some(found.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// What the head of a record claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHead {
    /// Bytes of the body.
    pub(super) len: u32,
    digest: [u8; DIGEST_LEN],
}

impl FrameHead {
    /// `None` where no record begins.
    pub(super) fn read(bytes: &[u8; HEAD]) -> Option<Self> {
        let digest = bytes[DIGEST].try_into().ok()?;
        let len = u32::try_from(number(bytes, 4..8)?).ok()?;
        bytes.starts_with(&MARKER).then_some(Self { len, digest })
    }

    /// Whether this is the body.
    pub(super) fn fits(&self, body: &[u8]) -> bool {
        self.len as usize == body.len() && self.digest == digest(self.len, body)
    }
}

fn digest(len: u32, body: &[u8]) -> [u8; DIGEST_LEN] {
    let digest = Sha256::new().chain_update(len.to_le_bytes()).chain_update(body).finalize();
    let mut short = [0; DIGEST_LEN];
    short.copy_from_slice(&digest[..DIGEST_LEN]);
    short
}

/// One change: where, and where its JSON stands (`None`: the object goes). Positions count from the record's first byte.
pub(super) type IndexChange = (Place, Option<Range<u64>>);

/// A record in the making.
#[derive(Debug)]
pub(super) struct Record {
    bytes: Vec<u8>,
    changes: Vec<IndexChange>,
}

impl Record {
    /// A commit that brings the journal to this revision.
    pub(super) fn new(revision: u64) -> Self {
        let mut bytes = vec![0; HEAD];
        bytes.extend(format!("{revision}\n").as_bytes());
        Self { bytes, changes: Vec::new() }
    }

    /// A record of any body, for fuzzing.
    pub(super) fn of_body(body: &[u8]) -> Self {
        Self { bytes: [&[0; HEAD], body].concat(), changes: Vec::new() }
    }

    pub(super) fn put(&mut self, place: &Place, json: &[u8]) {
        self.line(place, Some(json.len()));
        let from = self.bytes.len() as u64;
        self.bytes.extend_from_slice(json);
        self.bytes.push(b'\n');
        self.changes.push((place.clone(), Some(from..from + json.len() as u64)));
    }

    pub(super) fn remove(&mut self, place: &Place) {
        self.line(place, None);
        self.changes.push((place.clone(), None));
    }

    fn line(&mut self, place: &Place, len: Option<usize>) {
        // As JSON, so that no name can look like the end of its line.
        let line = serde_json::json!([place.table, place.key.namespace, place.key.name, len]);
        self.bytes.extend_from_slice(line.to_string().as_bytes());
        self.bytes.push(b'\n');
    }

    /// Bytes so far.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The whole record; `None` where it is longer than a record may be.
    pub(super) fn finish(mut self) -> Option<(Vec<u8>, Vec<IndexChange>)> {
        let len = u32::try_from(self.bytes.len() - HEAD).ok()?;
        let digest = digest(len, &self.bytes[HEAD..]);
        self.bytes[..4].copy_from_slice(&MARKER);
        self.bytes[4..8].copy_from_slice(&len.to_le_bytes());
        self.bytes[DIGEST].copy_from_slice(&digest);
        Some((self.bytes, self.changes))
    }
}

/// The revision and the changes of a body. A body whose digest fits and that is not understood was written by a defect.
pub(super) fn read_body(body: &[u8]) -> Result<(u64, Vec<IndexChange>), String> {
    let mut at = 0;
    let revision = std::str::from_utf8(line(body, &mut at)?).ok().and_then(|text| text.parse().ok());
    let revision = revision.ok_or("it has no revision")?;
    let mut changes = Vec::new();
    while at < body.len() {
        let found: (String, String, String, Option<usize>) =
            serde_json::from_slice(line(body, &mut at)?).map_err(|error| error.to_string())?;
        let (table, namespace, name, len) = found;
        let span = match len {
            None => None,
            Some(len) => {
                let end = at.checked_add(len).filter(|end| body.get(*end) == Some(&b'\n'));
                let end = end.ok_or("an object ends elsewhere than it says")?;
                let span = (HEAD + at) as u64..(HEAD + end) as u64;
                at = end + 1;
                Some(span)
            }
        };
        changes.push((Place { table, key: Key { namespace, name } }, span));
    }
    Ok((revision, changes))
}

/// The line that begins there, without its end.
fn line<'a>(body: &'a [u8], at: &mut usize) -> Result<&'a [u8], String> {
    let rest = body.get(*at..).unwrap_or_default();
    let end = rest.iter().position(|byte| *byte == b'\n').ok_or("a line has no end")?;
    *at += end + 1;
    Ok(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(name: &str) -> Place {
        Place { table: "v1/things".to_owned(), key: Key::new("default", name) }
    }

    #[test]
    fn a_header_says_what_it_is() {
        let whole = header(77);
        assert_eq!(read_header(&whole), Header::Known { snapshot: 77 });
        for len in 0..HEADER {
            assert_eq!(read_header(&whole[..len]), Header::Cut, "{len}");
        }
        for at in 0..HEADER {
            let mut wrong = whole;
            wrong[at] ^= 0x40;
            let read = read_header(&wrong);
            assert!(matches!(read, Header::Foreign | Header::Newer(_) | Header::Damaged), "{at}: {read:?}");
        }
        assert_eq!(read_header(b"redb\x1a\x0a\xa9\x0d\x0a"), Header::Redb);
        let mut later = whole;
        later[8..12].copy_from_slice(&7u32.to_le_bytes());
        assert_eq!(read_header(&later), Header::Newer(7));
    }

    proptest! {
        #[test]
        fn a_record_reads_back(names in prop::collection::vec(("\\PC{0,12}", prop::option::of("\\PC{0,40}")), 0..6)) {
            let mut record = Record::new(9);
            for (name, value) in &names {
                match value {
                    Some(value) => record.put(&place(name), value.as_bytes()),
                    None => record.remove(&place(name)),
                }
            }
            let (bytes, changes) = record.finish().unwrap();
            prop_assert!(!bytes[HEAD..].contains(&MARKER[0]), "a marker inside a body");
            let head = FrameHead::read(bytes[..HEAD].try_into().unwrap()).unwrap();
            prop_assert!(head.fits(&bytes[HEAD..]));
            prop_assert_eq!(read_body(&bytes[HEAD..]).unwrap(), (9, changes.clone()));
            for ((name, value), (at, span)) in names.iter().zip(&changes) {
                prop_assert_eq!(&place(name), at);
                let read = span.as_ref().map(|span| bytes[span.start as usize..span.end as usize].to_vec());
                prop_assert_eq!(value.as_ref().map(|value| value.as_bytes().to_vec()), read);
            }
        }

        #[test]
        fn no_body_makes_it_panic(body in prop::collection::vec(any::<u8>(), 0..80), text in "[0-9\\[\\]\",\n a-z]{0,80}") {
            let _ = read_body(&body);
            let _ = read_body(text.as_bytes());
            let _ = read_header(&body);
        }
    }
}
