//! Whether an image is all there.
//!
//! A root comes in; yes or no goes out. An index is there if one of its platforms is: a node has only its own.

use oci_spec::image::Descriptor;
use serde::Deserialize;

use super::Layout;

/// An index in an index, and no deeper.
const MOST_INDEXES: usize = 2;

/// Just enough of a manifest or an index.
#[derive(Deserialize)]
struct Document {
    manifests: Option<Vec<Descriptor>>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
}

pub(super) fn is_whole(layout: &Layout, root: &Descriptor) -> bool {
    within(layout, root, MOST_INDEXES)
}

fn within(layout: &Layout, descriptor: &Descriptor, indexes: usize) -> bool {
    let Some(bytes) = layout.document(descriptor) else { return false };
    let Ok(document) = serde_json::from_slice::<Document>(&bytes) else { return false };
    match document {
        Document { manifests: Some(entries), .. } => {
            indexes > 0 && entries.iter().any(|entry| within(layout, entry, indexes - 1))
        }
        Document { config: Some(config), layers: Some(layers), .. } => {
            std::iter::once(&config).chain(&layers).all(|blob| layout.holds(blob.digest(), blob.size()))
        }
        _ => false,
    }
}
