//! What holds for any bytes of a layer. Each function takes the input of one fuzz target of `fuzz/` and panics where a property is
//! broken. They stand here because what they call is private. Nothing of Stoker calls them.

use std::io::{BufReader, Read};

use super::compression::LayerCompression;
use super::tar::{Archive, FilePart, TarEntry};

/// More plain bytes than this are not asked from a decoder: a bomb takes the time of many inputs.
const MOST: u64 = 4 << 20;

/// A tar archive: it is read the same however the stream cuts it, gives out no more bytes than came in, and the parts of a
/// sparse file follow each other.
pub fn archive(bytes: &[u8]) {
    let whole = entries(bytes, 64 * 1024);
    assert_eq!(whole, entries(bytes, 7), "an archive is read the same in small pieces");
    let stored: usize = whole.0.iter().map(|(_, data, _)| data.len()).sum();
    assert!(stored <= bytes.len(), "an archive of {} bytes gave {stored}", bytes.len());
}

/// Entries with their bytes and the sum of their holes, and the error at the end.
type ReadEntries = (Vec<(TarEntry, Vec<u8>, u64)>, Option<String>);

fn entries(bytes: &[u8], piece: usize) -> ReadEntries {
    let mut archive = Archive::new(BufReader::with_capacity(piece, bytes));
    let mut entries = Vec::new();
    loop {
        let entry = match archive.next() {
            Ok(Some(entry)) => entry,
            Ok(None) => return (entries, None),
            Err(problem) => return (entries, Some(problem.to_string())),
        };
        let (mut data, mut holes) = (Vec::new(), 0_u64);
        let read = archive.data(|piece| {
            match piece {
                FilePart::Bytes(more) => data.extend_from_slice(more),
                FilePart::Hole(length) => {
                    let sum = holes.checked_add(length);
                    assert!(sum.is_some(), "the holes of a file are longer than a file can be");
                    holes = sum.unwrap_or_default();
                }
            }
            Ok(())
        });
        entries.push((entry, data, holes));
        if let Err(problem) = read {
            return (entries, Some(problem.to_string()));
        }
    }
}

/// A compressed stream: it is decoded the same however the source cuts it, and a stream that is not compressed is not changed.
pub fn compression(bytes: &[u8]) {
    let whole = plain(LayerCompression::Detect, bytes);
    let cut = plain(LayerCompression::Detect, ThreeBytesAtATime(bytes));
    assert_eq!(whole.is_ok(), cut.is_ok(), "a stream is decoded the same in small pieces");
    if let (Ok(whole), Ok(cut)) = (&whole, &cut) {
        assert!(whole == cut, "a stream is decoded the same in small pieces");
    }
    let untouched = plain(LayerCompression::None, bytes);
    assert!(untouched.is_ok_and(|untouched| untouched == bytes[..bytes.len().min(MOST as usize)]));
}

fn plain(compression: LayerCompression, source: impl Read) -> std::io::Result<Vec<u8>> {
    let mut plain = Vec::new();
    compression.plain(source)?.take(MOST).read_to_end(&mut plain)?;
    Ok(plain)
}

/// A source that gives three bytes at a time.
struct ThreeBytesAtATime<'a>(&'a [u8]);

impl Read for ThreeBytesAtATime<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let most = buf.len().min(3);
        self.0.read(&mut buf[..most])
    }
}
