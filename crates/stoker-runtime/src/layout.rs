//! An OCI image layout directory as a node's image store.
//!
//! Files that were checked against their digest and documents come in; whether an image is all there goes out. Blobs
//! appear by a rename, `index.json` is written under a lock that also holds between processes: a reader never sees half
//! of anything. It never fetches, and removes no blob.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oci_spec::image::{Descriptor, Digest, DigestAlgorithm};

mod disk;
mod error;
mod index;
mod present;
mod verify;

pub use self::error::Error;
pub use self::verify::Verified;

/// The annotation that names an image in a layout.
pub const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// The same for containerd's importer, which wants the full reference.
pub const CONTAINERD_NAME: &str = "io.containerd.image.name";

/// An image store in a directory. Clones are the same store.
#[derive(Debug, Clone)]
pub struct Layout {
    dir: Arc<PathBuf>,
}

/// An image that is all there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// What its name stands for: a manifest or an index.
    pub root: Descriptor,
    /// The bytes of its configuration and layers.
    pub size: u64,
}

impl Layout {
    /// Opens the directory, and makes it an empty layout where it is none. It blocks: call it when starting.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, Error> {
        let dir = dir.into();
        let layout = Self { dir: Arc::new(dir) };
        let blobs = layout.blobs();
        fs::create_dir_all(&blobs).map_err(|e| Error::disk("create", &blobs, &e))?;
        let marker = layout.dir.join("oci-layout");
        if !marker.exists() {
            disk::replace(&marker, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        }
        index::open(&layout.dir)?;
        disk::sweep(&blobs)?;
        disk::sweep(&layout.dir)?;
        Ok(layout)
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The image recorded under this full reference, if it is all there: each blob of at least one platform, with the right
    /// length. One whose blob somebody deleted is not there.
    pub async fn find(&self, name: &str) -> Result<Option<Found>, Error> {
        let (layout, name) = (self.clone(), name.to_owned());
        disk::beside(move || {
            let root = index::read(&layout.dir)?.into_iter().find(|entry| index::name(entry) == Some(&name));
            Ok(root.and_then(|root| present::whole_size(&layout, &root).map(|size| Found { root, size })))
        })
        .await
    }

    /// Whether a blob is there with this length.
    pub async fn has(&self, digest: &Digest, size: u64) -> bool {
        let (layout, digest) = (self.clone(), digest.clone());
        disk::beside(move || Ok(layout.holds(&digest, size))).await.unwrap_or(false)
    }

    /// Takes an already verified file in. The file is gone afterwards; one that is here already is kept as it is.
    pub async fn adopt(&self, digest: &Digest, file: &Path) -> Result<(), Error> {
        let (target, file) = (self.path(digest)?, file.to_owned());
        let (from, to) = (file.clone(), target.clone());
        let moved = disk::beside(move || disk::take(&from, &to)).await?;
        if moved {
            return Ok(());
        }
        // Another filesystem: the bytes have to move. In pieces, so that nothing waits for the whole.
        let mut copy = disk::Copy::start(file, target);
        loop {
            let (back, more) = disk::beside(move || copy.step()).await?;
            copy = back;
            if !more {
                return Ok(());
            }
        }
    }

    /// Writes a document (a manifest or an index), after checking it against its digest.
    pub async fn put(&self, digest: &Digest, bytes: impl AsRef<[u8]> + Send + 'static) -> Result<(), Error> {
        let (layout, digest) = (self.clone(), digest.clone());
        disk::beside(move || {
            let path = layout.path(&digest)?;
            let actual = verify::sha256(bytes.as_ref());
            if actual != digest.digest() {
                return Err(Error::Corrupt { what: digest.to_string(), actual });
            }
            if layout.holds(&digest, bytes.as_ref().len() as u64) {
                return Ok(());
            }
            disk::replace(&path, bytes.as_ref())
        })
        .await
    }

    /// Says that this full reference is this image. All its blobs must be here before.
    pub async fn record(&self, name: &str, root: Descriptor) -> Result<(), Error> {
        let (layout, name) = (self.clone(), name.to_owned());
        disk::beside(move || {
            index::change(&layout.dir, |entries| {
                entries.retain(|entry| index::name(entry) != Some(&name));
                entries.push(index::named(root, &name));
            })
        })
        .await
    }

    /// Takes a name away; blobs stay, because other names may need them.
    pub async fn remove(&self, name: &str) -> Result<(), Error> {
        let (layout, name) = (self.clone(), name.to_owned());
        disk::beside(move || {
            index::change(&layout.dir, |entries| entries.retain(|entry| index::name(entry) != Some(&name)))
        })
        .await
    }

    /// All recorded references, sorted, whether or not their blobs are still there.
    pub async fn names(&self) -> Result<Vec<String>, Error> {
        let layout = self.clone();
        disk::beside(move || {
            let mut names: Vec<String> =
                index::read(&layout.dir)?.iter().filter_map(|entry| index::name(entry).cloned()).collect();
            names.sort();
            Ok(names)
        })
        .await
    }

    /// Hashes every blob again and tells which are not what their names say.
    pub async fn verify(&self) -> Result<Verified, Error> {
        verify::verify(self.blobs()).await
    }

    fn blobs(&self) -> PathBuf {
        self.dir.join("blobs/sha256")
    }

    /// Where a blob is. Only a sha256 digest has a place: its text cannot lead anywhere else.
    fn path(&self, digest: &Digest) -> Result<PathBuf, Error> {
        match digest.algorithm() {
            DigestAlgorithm::Sha256 => Ok(self.blobs().join(digest.digest())),
            _ => Err(Error::NotSha256 { digest: digest.to_string() }),
        }
    }

    fn holds(&self, digest: &Digest, size: u64) -> bool {
        let meta = self.path(digest).ok().and_then(|path| fs::symlink_metadata(path).ok());
        meta.is_some_and(|meta| meta.is_file() && meta.len() == size)
    }

    /// A small document; `None` where it is not there or too large to be one.
    fn document(&self, descriptor: &Descriptor) -> Option<Vec<u8>> {
        const MOST: u64 = 4 * 1024 * 1024;
        if descriptor.size() > MOST || !self.holds(descriptor.digest(), descriptor.size()) {
            return None;
        }
        let file = File::open(self.path(descriptor.digest()).ok()?).ok()?;
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(file, MOST), &mut bytes).ok()?;
        Some(bytes)
    }
}
