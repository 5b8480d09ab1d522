//! Whether a finished file still is its blob.
//!
//! The sha256 that a fetch checks is that of the bytes which it wrote. A disk, memory or another process can change the
//! file afterwards, so whoever takes a file over hashes what it read, and asks here when that was something else. A
//! megabyte at a time, beside the executor.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use bytes::Bytes;
use oci_spec::image::Descriptor;
use sha2::{Digest as _, Sha256};

use super::{Error, on_disk};
use crate::hash::hex;

/// What one step reads.
const PIECE: usize = 1024 * 1024;

/// Hashes the file again. One that is gone or that the disk cannot read is not the blob.
pub(super) async fn is_whole(path: &Path, blob: &Descriptor) -> Result<bool, Error> {
    let mut state = (None::<File>, Sha256::new(), vec![0; PIECE]);
    loop {
        let from = path.to_owned();
        let step = on_disk(move || {
            let (file, mut hash, mut piece) = state;
            let mut file = match file {
                Some(file) => file,
                None => File::open(from)?,
            };
            let read = file.read(&mut piece)?;
            hash.update(&piece[..read]);
            Ok(((Some(file), hash, piece), read))
        })
        .await?;
        state = match step {
            Ok((state, read)) if read > 0 => state,
            Ok(((_, hash, _), _)) => return Ok(hex(hash) == blob.digest().digest()),
            Err(problem) if is_lost(&problem) => return Ok(false),
            Err(problem) => return Err(Error::disk(path, "read", &problem)),
        };
    }
}

/// Reads a small file whole; `None` where it is not the blob.
pub(super) async fn read(path: &Path, blob: &Descriptor) -> Result<Option<Bytes>, Error> {
    let (from, expected) = (path.to_owned(), blob.digest().digest().to_owned());
    let read = on_disk(move || {
        let bytes = std::fs::read(from)?;
        let right = hex(Sha256::new_with_prefix(&bytes)) == expected;
        Ok(right.then(|| Bytes::from(bytes)))
    });
    match read.await? {
        Err(problem) if is_lost(&problem) => Ok(None),
        read => read.map_err(|problem: io::Error| Error::disk(path, "read", &problem)),
    }
}

/// Whether the file is gone, or a part of it cannot be read from the disk: another fetch helps against both.
fn is_lost(problem: &io::Error) -> bool {
    const EIO: i32 = 5;
    problem.kind() == io::ErrorKind::NotFound || problem.raw_os_error() == Some(EIO)
}
