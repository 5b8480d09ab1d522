//! The proof: every blob hashed again, and every image looked through.
//!
//! A store comes in; what is damaged or missing goes out, with the images that suffer. It changes nothing and trusts
//! nothing that was hashed before. Its memory depends on the number of blobs, not on their size.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use oci_spec::image::Digest;

use super::hash::{self, HashResult};
use super::{Error, Layout, disk, index, present};

/// What a look at everything found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verified {
    /// Blobs that were hashed.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Recorded images.
    pub images: u64,
    /// Blobs that are not what their names say.
    pub damaged: Vec<Damaged>,
    /// What recorded images lack.
    pub missing: Vec<MissingPart>,
}

/// A blob that is not what its name says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damaged {
    /// What it should be.
    pub digest: Digest,
    /// Its file.
    pub path: PathBuf,
    /// The length of the file.
    pub size: u64,
    /// What it is instead.
    pub why: String,
    /// The images that need it.
    pub images: Vec<String>,
}

/// What an image lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingPart {
    /// The name of the image.
    pub image: String,
    /// The digest of the blob, or in words what there is none of.
    pub what: String,
}

impl Verified {
    /// Whether everything is right.
    pub fn is_good(&self) -> bool {
        self.damaged.is_empty() && self.missing.is_empty()
    }
}

/// A blob's file.
struct BlobFile {
    digest: Digest,
    size: u64,
}

impl Layout {
    /// Hashes every blob again, and looks whether recorded images have all of theirs. `progress` is told the bytes that
    /// were hashed and those that there are.
    pub async fn verify(&self, mut progress: impl FnMut(u64, u64)) -> Result<Verified, Error> {
        let blobs = self.blobs();
        let files = disk::beside(move || list(&blobs)).await?;
        let total = files.iter().map(|file| file.size).sum();
        let mut verified = Verified::default();
        let mut done = 0;
        for BlobFile { digest, size } in files {
            let path = self.path(&digest)?;
            let read = hash::file_with(path.clone(), |more| {
                done += more;
                progress(done, total);
            });
            let why = match read.await? {
                // Somebody removed it meanwhile: then an image lacks it, or nobody needed it.
                HashResult::Gone => continue,
                HashResult::Hashed { sha256, .. } if sha256 == digest.digest() => None,
                HashResult::Hashed { sha256, .. } => Some(format!("its bytes have the sha256 {sha256}")),
                HashResult::Unreadable(problem) => Some(format!("the disk cannot read it: {problem}")),
            };
            verified.blobs += 1;
            verified.bytes += size;
            verified.damaged.extend(why.map(|why| Damaged { digest, path, size, why, images: Vec::new() }));
        }
        let layout = self.clone();
        disk::beside(move || layout.look_through(verified)).await
    }

    /// Looks what each recorded image needs.
    fn look_through(&self, mut verified: Verified) -> Result<Verified, Error> {
        let damaged = verified.damaged.iter().enumerate().map(|(at, blob)| (blob.digest.to_string(), at));
        let damaged: BTreeMap<String, usize> = damaged.collect();
        for root in index::read(self.dir())? {
            let image = index::name(&root).cloned().unwrap_or_else(|| root.digest().to_string());
            verified.images += 1;
            present::needs(self, &root, &mut |need| match need {
                present::NeededPart::Blob(blob) => match damaged.get(blob.digest().as_ref()) {
                    Some(at) => {
                        let images = &mut verified.damaged[*at].images;
                        if images.last() != Some(&image) {
                            images.push(image.clone());
                        }
                    }
                    None if self.holds(blob.digest(), blob.size()) => {}
                    None => {
                        verified.missing.push(MissingPart { image: image.clone(), what: blob.digest().to_string() })
                    }
                },
                present::NeededPart::Platform => {
                    let what = "the manifest of any platform".to_owned();
                    verified.missing.push(MissingPart { image: image.clone(), what });
                }
            });
        }
        Ok(verified)
    }
}

/// The blobs of a directory; what is not named by a sha256 is none.
fn list(dir: &Path) -> Result<Vec<BlobFile>, Error> {
    let failed = |e: io::Error| Error::disk("list", dir, &e);
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let digest = Digest::try_from(format!("sha256:{}", entry.file_name().to_string_lossy()));
        if let (Ok(digest), Ok(meta)) = (digest, entry.metadata()) {
            files.push(BlobFile { digest, size: meta.len() });
        }
    }
    files.sort_by(|a, b| a.digest.digest().cmp(b.digest.digest()));
    Ok(files)
}
