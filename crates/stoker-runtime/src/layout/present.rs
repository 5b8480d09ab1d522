//! Whether an image is all there.
//!
//! A root comes in; its size goes out, if all of it is there. An index is there if one of its platforms is: a node has only its own.

use std::collections::BTreeMap;

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

/// The bytes of its configuration and layers, each blob once; `None` where anything is missing.
pub(super) fn whole_size(layout: &Layout, root: &Descriptor) -> Option<u64> {
    within(layout, root, MOST_INDEXES)
}

fn within(layout: &Layout, descriptor: &Descriptor, indexes: usize) -> Option<u64> {
    match serde_json::from_slice(&layout.document(descriptor)?).ok()? {
        Document { manifests: Some(entries), .. } if indexes > 0 => {
            entries.iter().find_map(|entry| within(layout, entry, indexes - 1))
        }
        Document { config: Some(config), layers: Some(layers), .. } => {
            let blobs: BTreeMap<String, u64> = std::iter::once(&config)
                .chain(&layers)
                .map(|blob| layout.holds(blob.digest(), blob.size()).then(|| (blob.digest().to_string(), blob.size())))
                .collect::<Option<_>>()?;
            Some(blobs.values().sum())
        }
        _ => None,
    }
}
