//! What an image consists of.
//!
//! The bytes of manifests and indexes come in; the blobs to fetch go out, or which bound or rule they break. Pure: it
//! asks nobody, and takes any bytes without panic.

use std::collections::HashSet;
use std::fmt;

use bytes::Bytes;
use oci_spec::image::{Descriptor, Digest, DigestAlgorithm, ImageIndex, ImageManifest, MediaType};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::hash::hex;
use crate::platform::Platform;

/// No honest manifest or index is larger.
pub(crate) const MOST_MANIFEST_BYTES: usize = 4 * 1024 * 1024;
/// An index may name an index, which must then name manifests.
const MOST_INDEXES: usize = 2;
const MOST_LAYERS: usize = 500;
const MOST_ENTRIES: usize = 1000;
/// The largest blob. Sums of sizes below these two bounds, over all images of all nodes of a job, stay far below what the
/// API server takes for an integer.
const MOST_BLOB_BYTES: u64 = 1 << 40;
/// The largest image, with each layer counted as often as it is unpacked.
const MOST_IMAGE_BYTES: u64 = 4 << 40;
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// One document of an image, as the registry holds it, byte for byte.
#[derive(Debug, Clone)]
pub struct Document {
    /// Its type, digest and length.
    pub descriptor: Descriptor,
    /// Its text, already checked against the digest.
    pub bytes: Bytes,
}

/// An image for one platform: its documents, and the blobs they name.
#[derive(Debug, Clone)]
pub struct PlatformImage {
    /// What the digest that was asked for points to: an index or a manifest.
    pub root: Descriptor,
    /// The indexes on the way, if any, and the manifest as the last.
    pub documents: Vec<Document>,
    /// The image's configuration.
    pub config: Descriptor,
    /// Its layers, the base first. One digest may be there more than once.
    pub layers: Vec<Descriptor>,
}

impl PlatformImage {
    pub(crate) fn new(documents: Vec<Document>, manifest: ImageManifest) -> Result<Self, Bad> {
        let root = documents.first().ok_or_else(|| Bad::Content("it has no documents".into()))?.descriptor.clone();
        let (config, layers) = (manifest.config().clone(), manifest.layers().clone());
        if layers.len() > MOST_LAYERS {
            return Err(Bad::Bound(Bound::Layers(layers.len())));
        }
        let image = Self { root, documents, config, layers };
        let mut sizes = std::collections::HashMap::new();
        let mut total: u64 = 0;
        for blob in std::iter::once(&image.config).chain(&image.layers) {
            if blob.size() > MOST_BLOB_BYTES {
                return Err(Bad::Bound(Bound::Blob { digest: blob.digest().clone(), bytes: blob.size() }));
            }
            // At most 501 blobs of at most 2^40 bytes: this sum does not overflow.
            total = total.saturating_add(blob.size());
            if *blob.digest().algorithm() != DigestAlgorithm::Sha256 {
                return Err(Bad::Algorithm(blob.digest().clone()));
            }
            if *sizes.entry(blob.digest()).or_insert(blob.size()) != blob.size() {
                return Err(Bad::Content(format!("{} is there with two lengths", blob.digest())));
            }
        }
        if total > MOST_IMAGE_BYTES {
            return Err(Bad::Bound(Bound::Image(total)));
        }
        Ok(image)
    }

    /// The image behind this digest for this platform, from documents that somebody has. `None` where one is missing, has another digest,
    /// or where they make no image.
    pub async fn assemble<F: Future<Output = Option<Bytes>>>(
        root: &Digest,
        platform: &Platform,
        read: impl Fn(Digest) -> F,
    ) -> Option<Self> {
        let mut descent = Descent::new(platform);
        let mut digest = root.clone();
        loop {
            let bytes = read(digest.clone()).await.filter(|bytes| bytes.len() <= MOST_MANIFEST_BYTES)?;
            if hex(Sha256::new_with_prefix(&bytes)) != digest.digest() {
                return None;
            }
            let (media_type, parsed) = parse(&bytes, None).ok()?;
            let descriptor = Descriptor::new(media_type, bytes.len() as u64, digest);
            match descent.take(Document { descriptor, bytes }, parsed).ok()? {
                Descended::Image(image) => return Some(*image),
                Descended::To(below) => digest = below,
            }
        }
    }

    /// The blobs to fetch, each once: the configuration, then the layers from the base up.
    pub fn blobs(&self) -> impl Iterator<Item = &Descriptor> {
        let mut seen = HashSet::new();
        std::iter::once(&self.config).chain(&self.layers).filter(move |blob| seen.insert(blob.digest()))
    }

    /// The bytes of all blobs. (The documents are here already.)
    pub fn total_size(&self) -> u64 {
        self.blobs().fold(0, |sum, blob| sum.saturating_add(blob.size()))
    }
}

/// The way from the root of an image down to its manifest for one platform.
#[derive(Debug)]
pub(crate) struct Descent<'a> {
    platform: &'a Platform,
    documents: Vec<Document>,
    /// The length that the index above says of the next document.
    size: Option<u64>,
}

/// Where a document leads.
#[derive(Debug)]
pub(crate) enum Descended {
    /// To another document.
    To(Digest),
    /// Nowhere: all are there.
    Image(Box<PlatformImage>),
}

impl<'a> Descent<'a> {
    pub(crate) fn new(platform: &'a Platform) -> Self {
        Self { platform, documents: Vec::new(), size: None }
    }

    /// Takes the next document, which is known to have the digest that was asked for.
    pub(crate) fn take(&mut self, document: Document, parsed: ParsedDocument) -> Result<Descended, Bad> {
        if self.size.is_some_and(|size| size != document.bytes.len() as u64) {
            return Err(Bad::Content("its length is not the one that the index says".to_owned()));
        }
        self.documents.push(document);
        let index = match parsed {
            ParsedDocument::Manifest(manifest) => {
                let image = PlatformImage::new(std::mem::take(&mut self.documents), *manifest)?;
                return Ok(Descended::Image(Box::new(image)));
            }
            ParsedDocument::Index(_) if self.documents.len() > MOST_INDEXES => return Err(Bad::Bound(Bound::Depth)),
            ParsedDocument::Index(index) => index,
        };
        let chosen = choose(&index, self.platform)?;
        if chosen.size() > MOST_MANIFEST_BYTES as u64 {
            return Err(too_large(chosen.size()));
        }
        if *chosen.digest().algorithm() != DigestAlgorithm::Sha256 {
            return Err(Bad::Algorithm(chosen.digest().clone()));
        }
        self.size = Some(chosen.size());
        Ok(Descended::To(chosen.digest().clone()))
    }
}

pub(crate) fn too_large(size: u64) -> Bad {
    Bad::Bound(Bound::Manifest(Some(size)))
}

/// A bound that an image is over, with what it has where that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bound {
    /// The bytes of a manifest or index.
    Manifest(Option<u64>),
    /// The bytes of a token.
    Token,
    /// The layers of a manifest.
    Layers(usize),
    /// The entries of an index.
    Entries(usize),
    /// Indexes inside one another.
    Depth,
    /// The bytes of one blob.
    Blob {
        /// The layer or configuration.
        digest: Digest,
        /// What the manifest says that it has.
        bytes: u64,
    },
    /// The bytes of the configuration and of all layers.
    Image(u64),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manifest(Some(bytes)) => write!(f, "it has {bytes} bytes, and the limit for a manifest is 4 MiB"),
            Self::Manifest(None) => f.write_str("it has more than 4 MiB, which is the limit for a manifest"),
            Self::Token => f.write_str("it has more than 64 KiB, which is the limit"),
            Self::Layers(count) => write!(f, "it has {count} layers, and the limit is 500"),
            Self::Entries(count) => write!(f, "it has {count} entries, and the limit for an index is 1000"),
            Self::Depth => f.write_str("it has more than 2 indexes inside one another"),
            Self::Blob { digest, bytes } => {
                write!(f, "its manifest says that {digest} has {bytes} bytes, and the limit for a layer is 1 TiB")
            }
            Self::Image(bytes) => write!(f, "its layers have {bytes} bytes together, and the limit is 4 TiB"),
        }?;
        f.write_str(match self {
            Self::Manifest(_) => "; push the image with a smaller manifest: fewer layers, platforms or annotations",
            Self::Token => "; look at the token server",
            Self::Layers(_) => "; build the image with fewer layers",
            Self::Entries(_) => "; push an index for fewer platforms",
            Self::Depth => "; push an index that names manifests",
            Self::Blob { .. } | Self::Image(_) => {
                "; push the image again if its manifest is wrong, or build it with less data in it"
            }
        })
    }
}

/// Why a document is not taken.
#[derive(Debug)]
pub(crate) enum Bad {
    Bound(Bound),
    Content(String),
    Schema1,
    Algorithm(Digest),
    Platform { platform: Platform, offered: String },
}

/// A document, read.
#[derive(Debug)]
pub(crate) enum ParsedDocument {
    Index(Box<ImageIndex>),
    Manifest(Box<ImageManifest>),
}

/// The two sorts of documents that make an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DocumentShape {
    Index,
    Manifest,
}

/// What a media type says that a document is; `None` where it is no part of an image.
pub(crate) fn shape(media_type: &MediaType) -> Option<DocumentShape> {
    match media_type {
        MediaType::ImageIndex => Some(DocumentShape::Index),
        MediaType::ImageManifest => Some(DocumentShape::Manifest),
        MediaType::Other(other) if other == DOCKER_LIST => Some(DocumentShape::Index),
        MediaType::Other(other) if other == DOCKER_MANIFEST => Some(DocumentShape::Manifest),
        _ => None,
    }
}

/// Just enough of a document to see what it is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Outline {
    schema_version: Option<u32>,
    media_type: Option<MediaType>,
    manifests: Option<serde::de::IgnoredAny>,
    layers: Option<serde::de::IgnoredAny>,
    config: Option<serde::de::IgnoredAny>,
}

/// Reads a document. What it says of itself comes before what the server says of it: only the former is under the digest.
pub(crate) fn parse(bytes: &[u8], served_as: Option<&MediaType>) -> Result<(MediaType, ParsedDocument), Bad> {
    let broken = |error: serde_json::Error| Bad::Content(format!("its manifest cannot be read ({error})"));
    let outline: Outline = serde_json::from_slice(bytes).map_err(broken)?;
    let index = outline.manifests.is_some();
    let manifest = outline.layers.is_some() || outline.config.is_some();
    if index && manifest {
        // Two readers could take it for two different images under one digest.
        return Err(Bad::Content("its manifest is an index and an image at the same time".into()));
    }
    if outline.schema_version == Some(1) {
        return Err(Bad::Schema1);
    }
    if outline.schema_version != Some(2) {
        return Err(Bad::Content("its manifest is not of schema version 2".into()));
    }
    let by_content = if index { MediaType::ImageIndex } else { MediaType::ImageManifest };
    let media_type = match (&outline.media_type, served_as) {
        (Some(own), _) => own.clone(),
        (None, Some(served)) if shape(served) == shape(&by_content) => served.clone(),
        (None, _) => by_content,
    };
    match (shape(&media_type), index) {
        (Some(DocumentShape::Index), true) => {
            let index: Box<ImageIndex> = serde_json::from_slice(bytes).map_err(broken)?;
            if index.manifests().len() > MOST_ENTRIES {
                return Err(Bad::Bound(Bound::Entries(index.manifests().len())));
            }
            Ok((media_type, ParsedDocument::Index(index)))
        }
        (Some(DocumentShape::Manifest), false) => {
            let manifest = serde_json::from_slice(bytes).map_err(broken)?;
            Ok((media_type, ParsedDocument::Manifest(Box::new(manifest))))
        }
        _ => Err(Bad::Content("its manifest's type is not one of an image".into())),
    }
}

/// The entry of an index to go on with.
pub(crate) fn choose<'a>(index: &'a ImageIndex, platform: &Platform) -> Result<&'a Descriptor, Bad> {
    let entries = || index.manifests().iter().filter(|entry| shape(entry.media_type()).is_some());
    let rank = |entry: &&Descriptor| entry.platform().as_ref().and_then(|p| platform.rank(&Platform::from(p)));
    let best = entries().filter_map(|entry| Some((rank(&entry)?, entry))).min_by_key(|(rank, _)| *rank);
    if let Some((_, entry)) = best {
        return Ok(entry);
    }
    // An entry without a platform may be for any; where it is alone there is no other choice to make.
    let mut unnamed = entries().filter(|entry| entry.platform().is_none());
    if let (Some(entry), None) = (unnamed.next(), unnamed.next()) {
        return Ok(entry);
    }
    let mut offered: Vec<String> =
        entries().filter_map(|entry| entry.platform().as_ref()).map(|p| Platform::from(p).to_string()).collect();
    offered.sort();
    offered.dedup();
    offered.truncate(10);
    let offered = if offered.is_empty() { "none that it names".to_owned() } else { offered.join(", ") };
    // A registry's words: they must not break out of the line.
    let offered = offered.chars().filter(|c| !c.is_control()).take(300).collect();
    Err(Bad::Platform { platform: platform.clone(), offered })
}

#[cfg(test)]
mod tests;
