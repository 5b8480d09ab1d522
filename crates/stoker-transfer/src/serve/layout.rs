//! Looking things up in a layout.
//!
//! Names, tags and digests from strangers come in; open files and descriptors go out. A path is made only from a
//! parsed digest, so no name can lead out of the directory.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use oci_spec::image::{Descriptor, Digest, DigestAlgorithm, ImageIndex, MediaType};

use super::Error;
use crate::image;
use crate::spool::on_disk;

/// Larger documents are not served as manifests.
const MOST_MANIFEST_BYTES: u64 = 4 * 1024 * 1024;
const MOST_INDEX_BYTES: u64 = 16 * 1024 * 1024;
const NAME: &str = "org.opencontainers.image.ref.name";

#[derive(Debug)]
pub(super) struct ServedLayout {
    dir: PathBuf,
}

/// A file to serve.
#[derive(Debug)]
pub(super) struct ServedBlob {
    pub(super) file: File,
    pub(super) size: u64,
}

/// A manifest to serve; they are small.
#[derive(Debug)]
pub(super) struct Manifest {
    pub(super) digest: Digest,
    pub(super) media_type: MediaType,
    pub(super) bytes: Vec<u8>,
}

impl ServedLayout {
    pub(super) async fn open(dir: PathBuf) -> Result<Self, Error> {
        let place = dir.clone();
        let index = on_disk(move || read_index(&place)).await;
        match index.map_err(|e| e.to_string()).and_then(|index| index) {
            Ok(_) => Ok(Self { dir }),
            Err(why) => Err(Error::NotALayout { dir, why }),
        }
    }

    /// The manifest that a tag of a repository names, or a digest.
    pub(super) async fn manifest(&self, repository: &str, name: &str) -> Option<Manifest> {
        let digest = match sha256(name) {
            Some(digest) => digest,
            None => self.tagged(format!("{repository}:{name}")).await?.digest().clone(),
        };
        let blob = self.blob(&digest).await.filter(|blob| blob.size <= MOST_MANIFEST_BYTES)?;
        let bytes = on_disk(move || read_all(blob.file, MOST_MANIFEST_BYTES)).await.ok()?.ok()?;
        // Only what is a manifest is served as one: a layer that looks like JSON is not.
        let (media_type, _) = image::parse(&bytes, None).ok()?;
        Some(Manifest { digest, media_type, bytes })
    }

    async fn tagged(&self, name: String) -> Option<Descriptor> {
        let dir = self.dir.clone();
        let index = on_disk(move || read_index(&dir)).await.ok()?.ok()?;
        let named = |entry: &&Descriptor| entry.annotations().as_ref().and_then(|all| all.get(NAME)) == Some(&name);
        index.manifests().iter().find(named).cloned()
    }

    /// A blob's open file, whatever is in it.
    pub(super) async fn blob(&self, digest: &Digest) -> Option<ServedBlob> {
        let path = self.dir.join("blobs/sha256").join(digest.digest());
        on_disk(move || {
            let file = File::open(path).ok()?;
            let meta = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
            Some(ServedBlob { file, size: meta.len() })
        })
        .await
        .ok()?
    }
}

/// A sha256 digest; its text is then 64 hexadecimal characters and safe in a path.
pub(super) fn sha256(text: &str) -> Option<Digest> {
    Digest::try_from(text).ok().filter(|digest| *digest.algorithm() == DigestAlgorithm::Sha256)
}

fn read_index(dir: &Path) -> Result<ImageIndex, String> {
    let file = File::open(dir.join("index.json")).map_err(|e| format!("index.json: {e}"))?;
    let bytes = read_all(file, MOST_INDEX_BYTES).map_err(|e| format!("index.json: {e}"))?;
    serde_json::from_slice(&bytes).map_err(|e| format!("index.json: {e}"))
}

fn read_all(file: File, most: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}
