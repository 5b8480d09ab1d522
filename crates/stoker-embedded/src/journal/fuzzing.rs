//! What holds for any bytes in the file of a journal.

use super::frame::{self, HEADER, MARKER, Record};
use super::{JournalError, replay};
use crate::object::Object;
use crate::store::Place;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// A file whose content is the input, as it is or (where it begins with `+`) as bodies of records with digests that fit: a journal
/// is read or refused with an error, every object stands under its own name, and a file that lost its end is not taken for one that
/// lost its middle.
pub fn journal(bytes: &[u8], file: &File) -> io::Result<()> {
    let content = match bytes.split_first() {
        Some((b'+', bodies)) => framed(bodies),
        _ => bytes.to_vec(),
    };
    file.set_len(0)?;
    file.write_all_at(&content, 0)?;
    let Ok((end, revision, objects)) = read(file) else { return Ok(()) };
    for (place, object) in &objects {
        assert_eq!(object.key(), place.key, "an object stands under its name");
        assert!(object.revision <= revision, "an object is no later than the journal");
    }
    // Somewhere that the input chooses.
    let cut = content.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    file.set_len(cut % (end + 1))?;
    let again = read(file);
    assert!(!matches!(again, Err(JournalError::Hole { .. })), "the end of a journal is cut off: {:?}", again.err());
    Ok(())
}

type Found = (u64, u64, Vec<(Place, Object)>);

fn read(file: &File) -> Result<Found, JournalError> {
    let path = Path::new("journal");
    let replayed = replay::read(path, file)?;
    let objects = replay::objects(path, file, &replayed)?;
    Ok((replayed.end, replayed.revision, objects))
}

/// A header, and a record for each body; the first byte of a marker ends a body.
fn framed(bodies: &[u8]) -> Vec<u8> {
    let mut content = frame::header(HEADER as u64).to_vec();
    for body in bodies.split(|byte| *byte == MARKER[0]) {
        content.extend(Record::of_body(body).finish().map(|(record, _)| record).unwrap_or_default());
    }
    content
}
