//! An OCI image layout directory as a node's image store.
//!
//! Files and documents come in, and are hashed on the way; whether an image is all there, and undamaged, goes out. Blobs
//! appear by a rename, `index.json` is written under a lock that also holds between processes: a reader never sees half
//! of anything. It never fetches, and removes no blob.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oci_spec::image::{Descriptor, Digest, DigestAlgorithm};

use crate::name_locks::NameLocks;

mod adopt;
mod disk;
mod error;
mod hash;
mod index;
mod present;
mod proof;
mod verify;

pub use self::error::Error;
pub use self::proof::{Care, Stored};
pub use self::verify::{Damaged, MissingPart, Verified};

/// The file that every layout has.
const MARKER: &str = "oci-layout";
/// The annotation that names an image in a layout.
pub const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// The same for containerd's importer, which wants the full reference.
pub const CONTAINERD_NAME: &str = "io.containerd.image.name";

/// An image store in a directory. Clones are the same store.
#[derive(Debug, Clone)]
pub struct Layout {
    inner: Arc<LayoutInner>,
}

#[derive(Debug)]
struct LayoutInner {
    dir: PathBuf,
    known: proof::HashedBlobs,
    /// One for each blob that is hashed or comes in.
    locks: NameLocks,
}

/// An image that is all there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredImage {
    /// What its name stands for: a manifest or an index.
    pub root: Descriptor,
    /// The bytes of its configuration and layers.
    pub size: u64,
}

impl Layout {
    /// Opens the directory, and makes it an empty layout where it is none. It blocks: call it when starting.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, Error> {
        let layout = Self::at(dir.into());
        let blobs = layout.blobs();
        fs::create_dir_all(&blobs).map_err(|e| Error::disk("create", &blobs, &e))?;
        let marker = layout.dir().join(MARKER);
        if !marker.exists() {
            disk::replace(&marker, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        }
        index::open(layout.dir())?;
        disk::sweep(&blobs)?;
        disk::sweep(layout.dir())?;
        Ok(layout)
    }

    /// The layout that is in this directory, to be read: nothing is made or swept. It blocks, shortly.
    pub fn existing(dir: impl Into<PathBuf>) -> Result<Self, Error> {
        let layout = Self::at(dir.into());
        match layout.dir().join(MARKER).is_file() {
            true => Ok(layout),
            false => Err(Error::NotALayout { path: layout.dir().to_owned() }),
        }
    }

    fn at(dir: PathBuf) -> Self {
        Self { inner: Arc::new(LayoutInner { dir, known: Default::default(), locks: Default::default() }) }
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// The image recorded under this full reference, if it is all there: each blob of at least one platform, with the right
    /// length and, as far as `care` says, the right bytes. One whose blob somebody deleted is not there.
    pub async fn find(&self, name: &str, care: Care) -> Result<Stored<StoredImage>, Error> {
        let (layout, name) = (self.clone(), name.to_owned());
        let recorded = disk::beside(move || {
            let root = index::read(layout.dir())?.into_iter().find(|entry| index::name(entry) == Some(&name));
            Ok(root.map(|root| (present::candidates(&layout, &root), root)))
        });
        let Some(((candidates, damaged), root)) = recorded.await? else { return Ok(Stored::Missing) };
        let mut outcome = damaged.map_or(Stored::Missing, Stored::Damaged);
        for candidate in candidates {
            match self.all_whole(&candidate, care).await? {
                Stored::Whole(()) => return Ok(Stored::Whole(StoredImage { root, size: candidate.size() })),
                Stored::Damaged(path) => outcome = Stored::Damaged(path),
                Stored::Missing => {}
            }
        }
        Ok(outcome)
    }

    async fn all_whole(&self, candidate: &present::StoredCandidate, care: Care) -> Result<Stored<()>, Error> {
        for (digest, size) in candidate.blobs.values() {
            match self.blob(digest, *size, care).await? {
                Stored::Whole(()) => {}
                wrong => return Ok(wrong),
            }
        }
        Ok(Stored::Whole(()))
    }

    /// Writes a document (a manifest or an index), after checking it against its digest.
    pub async fn put(&self, digest: &Digest, bytes: impl AsRef<[u8]> + Send + 'static) -> Result<(), Error> {
        let (layout, digest) = (self.clone(), digest.clone());
        disk::beside(move || {
            let path = layout.path(&digest)?;
            let actual = hash::bytes(bytes.as_ref());
            if actual != digest.digest() {
                let why = format!("their sha256 is {actual}");
                return Err(Error::Corrupt { what: digest.to_string(), why });
            }
            match layout.document(&digest, bytes.as_ref().len() as u64) {
                Stored::Whole(_) => return Ok(()),
                Stored::Damaged(_) => tracing::warn!("{} was damaged, and is replaced", path.display()),
                Stored::Missing => {}
            }
            disk::replace(&path, bytes.as_ref())
        })
        .await
    }

    /// A document (a manifest, an index or a configuration), hashed as it is read; `None` where it is not there, damaged, or too
    /// large to be one.
    pub async fn text(&self, digest: &Digest) -> Result<Option<Vec<u8>>, Error> {
        let (layout, digest) = (self.clone(), digest.clone());
        disk::beside(move || {
            let size =
                layout.path(&digest).ok().and_then(|path| fs::symlink_metadata(path).ok()).map(|meta| meta.len());
            Ok(size.and_then(|size| layout.document(&digest, size).whole()))
        })
        .await
    }

    /// The file of a blob that is there as far as `care` says. Whoever has it can read it to its end, also when the blob is replaced.
    pub async fn file(&self, digest: &Digest, size: u64, care: Care) -> Result<Option<File>, Error> {
        if self.blob(digest, size, care).await?.whole().is_none() {
            return Ok(None);
        }
        let path = self.path(digest)?;
        disk::beside(move || Ok(File::open(path).ok())).await
    }

    /// Says that this full reference is this image. All its blobs must be here before.
    pub async fn record(&self, name: &str, root: Descriptor) -> Result<(), Error> {
        let (layout, name) = (self.clone(), name.to_owned());
        disk::beside(move || {
            index::change(layout.dir(), |entries| {
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
            index::change(layout.dir(), |entries| entries.retain(|entry| index::name(entry) != Some(&name)))
        })
        .await
    }

    /// All recorded references, sorted, whether or not their blobs are still there.
    pub async fn names(&self) -> Result<Vec<String>, Error> {
        let layout = self.clone();
        disk::beside(move || {
            let mut names: Vec<String> =
                index::read(layout.dir())?.iter().filter_map(|entry| index::name(entry).cloned()).collect();
            names.sort();
            Ok(names)
        })
        .await
    }

    fn blobs(&self) -> PathBuf {
        self.dir().join("blobs/sha256")
    }

    /// Where a blob is. Only a sha256 digest has a place: its text cannot lead anywhere else.
    fn path(&self, digest: &Digest) -> Result<PathBuf, Error> {
        match digest.algorithm() {
            DigestAlgorithm::Sha256 => Ok(self.blobs().join(digest.digest())),
            _ => Err(Error::NotSha256 { digest: digest.to_string() }),
        }
    }

    /// Whether a file of this length is there, whatever is in it.
    fn holds(&self, digest: &Digest, size: u64) -> bool {
        let meta = self.path(digest).ok().and_then(|path| fs::symlink_metadata(path).ok());
        meta.is_some_and(|meta| meta.is_file() && meta.len() == size)
    }

    /// A small document, hashed as it is read; `Missing` also where it is too large to be one.
    fn document(&self, digest: &Digest, size: u64) -> Stored<Vec<u8>> {
        const MOST: u64 = 4 * 1024 * 1024;
        let Ok(path) = self.path(digest) else { return Stored::Missing };
        if size > MOST || !self.holds(digest, size) {
            return Stored::Missing;
        }
        let mut bytes = Vec::new();
        let read =
            File::open(&path).and_then(|file| io::Read::read_to_end(&mut io::Read::take(file, MOST), &mut bytes));
        match read {
            Ok(_) if hash::bytes(&bytes) == digest.digest() => Stored::Whole(bytes),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Stored::Missing,
            _ => Stored::Damaged(path),
        }
    }
}
