//! How a file becomes a blob of the store.
//!
//! A file and the digest that it should have come in; a blob under its final name goes out. The bytes are hashed here,
//! from the file that gets that name, whoever checked them before: a file can change after a check. A wrong one is not
//! taken in and stays where it is.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use oci_spec::image::Digest;

use super::hash::{self, HashResult};
use super::proof::{Care, Stamp, Stored};
use super::{Error, Layout, disk};

impl Layout {
    /// Takes a file in, if its bytes have this digest. It is gone afterwards; a blob that is here already and whole stays
    /// as it is, a damaged one is replaced.
    pub async fn adopt(&self, digest: &Digest, file: &Path) -> Result<(), Error> {
        let target = self.path(digest)?;
        // Two images with one layer may bring it at the same time.
        let _lock = self.inner.locks.take(digest.digest()).await;
        if self.proven(digest, &target, None, Care::Hashed).await? == Stored::Whole(()) {
            let file = file.to_owned();
            return disk::beside(move || disk::remove(&file)).await;
        }
        if !crosses(file, &target).await? {
            let stamp = hashed(digest, file).await?;
            if self.land(digest, file.to_owned(), target.clone(), stamp).await? {
                return Ok(());
            }
        }
        // Another filesystem: the bytes have to move. In pieces, so that nothing waits for the whole.
        let mut copy = disk::Copy::start(file.to_owned(), &target);
        loop {
            let (back, more) = disk::beside(move || copy.step()).await?;
            copy = back;
            if !more {
                break;
            }
        }
        let stamp = hashed(digest, copy.temporary()).await?;
        self.land(digest, copy.temporary().to_owned(), target, stamp).await?;
        let file = file.to_owned();
        disk::beside(move || disk::remove(&file)).await
    }

    /// Gives a hashed file its final name; `false` where that is on another filesystem. A file that changed after its
    /// hash does not keep the name.
    async fn land(&self, digest: &Digest, from: PathBuf, to: PathBuf, stamp: Stamp) -> Result<bool, Error> {
        let (layout, digest) = (self.clone(), digest.clone());
        disk::beside(move || {
            if !disk::rename(&from, &to)? {
                return Ok(false);
            }
            let landed = fs::symlink_metadata(&to).map(|meta| Stamp::of(&meta));
            match landed {
                Ok(landed) if stamp.is_renamed(&landed) => {
                    layout.inner.known.put(&digest, landed, true);
                    Ok(true)
                }
                _ => {
                    disk::remove(&to)?;
                    Err(Error::Corrupt { what: digest.to_string(), why: "they changed after they were hashed".into() })
                }
            }
        })
        .await
    }
}

/// Hashes a file, which must have this digest.
async fn hashed(digest: &Digest, file: &Path) -> Result<Stamp, Error> {
    let wrong = |why: String| Error::Corrupt { what: digest.to_string(), why };
    match hash::file(file.to_owned()).await? {
        HashResult::Hashed { stamp, sha256, steady: true } if sha256 == digest.digest() => Ok(stamp),
        HashResult::Hashed { sha256, .. } => Err(wrong(format!("their sha256 is {sha256}"))),
        HashResult::Unreadable(problem) => Err(wrong(format!("the disk cannot read them: {problem}"))),
        HashResult::Gone => Err(Error::Gone { path: file.to_owned() }),
    }
}

/// Whether a file is on another filesystem than its place in the store.
async fn crosses(file: &Path, target: &Path) -> Result<bool, Error> {
    let (file, dir) = (file.to_owned(), target.parent().unwrap_or(Path::new(".")).to_owned());
    disk::beside(move || {
        let device = |path: &Path| fs::metadata(path).map(|meta| meta.dev());
        match (device(&file), device(&dir)) {
            (Ok(from), Ok(to)) => Ok(from != to),
            (Err(e), _) if e.kind() == std::io::ErrorKind::NotFound => Err(Error::Gone { path: file }),
            (Err(e), _) => Err(Error::disk("look at", &file, &e)),
            (_, Err(e)) => Err(Error::disk("look at", &dir, &e)),
        }
    })
    .await
}
