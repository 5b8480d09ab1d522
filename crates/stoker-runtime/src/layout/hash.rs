//! The sha256 of files, a megabyte at a time beside the executor, whatever their size.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;

use sha2::{Digest as _, Sha256};

use super::proof::Stamp;
use super::{Error, disk};

const PIECE: usize = 1024 * 1024;

/// What came of reading a file to its end.
pub(super) enum HashResult {
    /// Its hash in hexadecimal.
    Hashed {
        /// Of the file when it was opened.
        stamp: Stamp,
        sha256: String,
        /// Whether it was the same file at the end.
        steady: bool,
    },
    /// It is not there.
    Gone,
    /// The disk cannot give all of it.
    Unreadable(String),
}

/// Hashes a file.
pub(super) async fn file(path: PathBuf) -> Result<HashResult, Error> {
    file_with(path, |_| {}).await
}

/// Hashes a file, and tells on the way how many bytes more were hashed.
pub(super) async fn file_with(path: PathBuf, mut progress: impl FnMut(u64)) -> Result<HashResult, Error> {
    let mut reading: Option<FileHash> = None;
    loop {
        let from = path.clone();
        let step = disk::beside(move || {
            let step = || -> io::Result<(FileHash, usize)> {
                let mut reading = match reading {
                    Some(reading) => reading,
                    None => FileHash::open(&from)?,
                };
                let read = reading.step()?;
                Ok((reading, read))
            };
            Ok(step())
        });
        reading = match step.await? {
            Ok((reading, read)) if read > 0 => {
                progress(read as u64);
                Some(reading)
            }
            Ok((reading, _)) => return Ok(reading.end()),
            Err(problem) => return told(problem, &path),
        };
    }
}

/// The sha256 of bytes in hexadecimal.
pub(super) fn bytes(bytes: &[u8]) -> String {
    hex(Sha256::new_with_prefix(bytes))
}

struct FileHash {
    file: File,
    stamp: Stamp,
    hash: Sha256,
    piece: Vec<u8>,
}

impl FileHash {
    fn open(path: &std::path::Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let stamp = Stamp::of(&file.metadata()?);
        Ok(Self { file, stamp, hash: Sha256::new(), piece: vec![0; PIECE] })
    }

    fn step(&mut self) -> io::Result<usize> {
        let read = self.file.read(&mut self.piece)?;
        self.hash.update(&self.piece[..read]);
        Ok(read)
    }

    fn end(self) -> HashResult {
        let steady = self.file.metadata().is_ok_and(|meta| Stamp::of(&meta) == self.stamp);
        HashResult::Hashed { stamp: self.stamp, sha256: hex(self.hash), steady }
    }
}

/// What an error of the disk says about the file, if it does.
fn told(problem: io::Error, path: &std::path::Path) -> Result<HashResult, Error> {
    const EIO: i32 = 5;
    match problem.kind() {
        io::ErrorKind::NotFound => Ok(HashResult::Gone),
        _ if problem.raw_os_error() == Some(EIO) => Ok(HashResult::Unreadable(problem.to_string())),
        _ => Err(Error::disk("read", path, &problem)),
    }
}

fn hex(hash: Sha256) -> String {
    use std::fmt::Write as _;
    hash.finalize().iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
