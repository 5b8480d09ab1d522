//! What an image consists of, and whether it is all there.
//!
//! A root comes in; the blobs of its images go out. An index is there if one of its platforms is: a node has only its
//! own. Documents are hashed whenever they are read.

use std::collections::BTreeMap;
use std::path::PathBuf;

use oci_spec::image::{Descriptor, Digest};
use serde::Deserialize;

use super::{Layout, Stored};

/// An index in an index, and no deeper.
const MOST_INDEXES: usize = 2;

/// Just enough of a manifest or an index.
#[derive(Deserialize)]
struct ImageDocument {
    manifests: Option<Vec<Descriptor>>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
}

/// The image of one platform whose documents are right and whose blobs have their lengths.
pub(super) struct StoredCandidate {
    /// Configuration and layers, each once.
    pub(super) blobs: BTreeMap<String, (Digest, u64)>,
}

impl StoredCandidate {
    /// The bytes of its blobs.
    pub(super) fn size(&self) -> u64 {
        self.blobs.values().fold(0, |sum, (_, size)| sum.saturating_add(*size))
    }
}

/// What looks like an image below this root, and a damaged document that hides what else there may be.
pub(super) fn candidates(layout: &Layout, root: &Descriptor) -> (Vec<StoredCandidate>, Option<PathBuf>) {
    let (mut all, mut damaged) = (Vec::new(), None);
    collect(layout, root, MOST_INDEXES, &mut all, &mut damaged);
    (all, damaged)
}

fn collect(
    layout: &Layout,
    descriptor: &Descriptor,
    indexes: usize,
    all: &mut Vec<StoredCandidate>,
    damaged: &mut Option<PathBuf>,
) {
    match read(layout, descriptor) {
        Stored::Whole(ImageDocument { manifests: Some(entries), .. }) if indexes > 0 => {
            entries.iter().for_each(|entry| collect(layout, entry, indexes - 1, all, damaged));
        }
        Stored::Whole(ImageDocument { config: Some(config), layers: Some(layers), .. }) => {
            let here = |blob: &Descriptor| {
                let entry = || (blob.digest().to_string(), (blob.digest().clone(), blob.size()));
                layout.holds(blob.digest(), blob.size()).then(entry)
            };
            let blobs = std::iter::once(&config).chain(&layers).map(here).collect::<Option<_>>();
            all.extend(blobs.map(|blobs| StoredCandidate { blobs }));
        }
        Stored::Damaged(path) => *damaged = Some(path),
        Stored::Whole(_) | Stored::Missing => {}
    }
}

/// One thing that an image needs.
pub(super) enum NeededPart<'a> {
    /// This document or blob.
    Blob(&'a Descriptor),
    /// A manifest of some platform, of which there is none.
    Platform,
}

/// Tells everything that is needed for this root and the platforms that are there.
pub(super) fn needs(layout: &Layout, root: &Descriptor, tell: &mut impl FnMut(NeededPart<'_>)) {
    descend(layout, root, MOST_INDEXES, tell);
}

fn descend(layout: &Layout, descriptor: &Descriptor, indexes: usize, tell: &mut impl FnMut(NeededPart<'_>)) {
    tell(NeededPart::Blob(descriptor));
    match read(layout, descriptor) {
        Stored::Whole(ImageDocument { manifests: Some(entries), .. }) if indexes > 0 => {
            let mut here = entries.iter().filter(|entry| layout.holds(entry.digest(), entry.size())).peekable();
            if here.peek().is_none() {
                tell(NeededPart::Platform);
            }
            here.for_each(|entry| descend(layout, entry, indexes - 1, tell));
        }
        Stored::Whole(ImageDocument { config, layers, .. }) => {
            config.iter().chain(layers.iter().flatten()).for_each(|blob| tell(NeededPart::Blob(blob)));
        }
        Stored::Damaged(_) | Stored::Missing => {}
    }
}

/// A document. One that makes no sense, and is what its digest says, is as good as missing.
fn read(layout: &Layout, descriptor: &Descriptor) -> Stored<ImageDocument> {
    match layout.document(descriptor.digest(), descriptor.size()) {
        Stored::Whole(bytes) => serde_json::from_slice(&bytes).map_or(Stored::Missing, Stored::Whole),
        Stored::Damaged(path) => Stored::Damaged(path),
        Stored::Missing => Stored::Missing,
    }
}
