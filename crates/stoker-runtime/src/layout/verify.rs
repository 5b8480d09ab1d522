//! The proof: every blob hashed again.
//!
//! A directory of blobs comes in; how many there are and which are wrong goes out. A megabyte at a time, beside the
//! executor.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use oci_spec::image::Digest;
use sha2::{Digest as _, Sha256};

use super::{Error, disk};

const PIECE: usize = 1024 * 1024;

/// What a look at all blobs found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verified {
    /// Blobs that were hashed.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that are not what their names say.
    pub bad: Vec<Digest>,
}

pub(super) async fn verify(dir: PathBuf) -> Result<Verified, Error> {
    let mut verified = Verified::default();
    for digest in disk::beside({
        let dir = dir.clone();
        move || list(&dir)
    })
    .await?
    {
        let path = dir.join(digest.digest());
        let (length, actual) = hash(path).await?;
        verified.blobs += 1;
        verified.bytes += length;
        if actual != digest.digest() {
            verified.bad.push(digest);
        }
    }
    Ok(verified)
}

/// The sha256 of bytes in hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    hex(Sha256::new_with_prefix(bytes))
}

async fn hash(path: PathBuf) -> Result<(u64, String), Error> {
    let mut state = (None::<File>, Sha256::new(), 0u64, vec![0; PIECE]);
    loop {
        let path = path.clone();
        let (back, read) = disk::beside(move || {
            let (file, mut hash, mut length, mut piece) = state;
            let failed = |e: io::Error| Error::disk("read", &path, &e);
            let mut file = match file {
                Some(file) => file,
                None => File::open(&path).map_err(failed)?,
            };
            let read = file.read(&mut piece).map_err(failed)?;
            hash.update(&piece[..read]);
            length += read as u64;
            Ok(((Some(file), hash, length, piece), read))
        })
        .await?;
        state = back;
        if read == 0 {
            return Ok((state.2, hex(state.1)));
        }
    }
}

/// The blobs of a directory; what is not named by a sha256 is none.
fn list(dir: &Path) -> Result<Vec<Digest>, Error> {
    let failed = |e: io::Error| Error::disk("list", dir, &e);
    let mut digests = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        digests.extend(Digest::try_from(format!("sha256:{}", name.to_string_lossy())).ok());
    }
    digests.sort_by(|a, b| a.digest().cmp(b.digest()));
    Ok(digests)
}

fn hex(hash: Sha256) -> String {
    use std::fmt::Write as _;
    hash.finalize().iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
