//! Unpacks the layers of an image into the directories of overlay snapshots, with the result that containerd's own
//! applier would leave, but without waiting for it: layers in any order, several at once, each while it is still being
//! fetched.
//!
//! Compressed bytes come in; files and the digest of the archive go out. It is done in two steps. [`unpack`] fills a
//! directory from a stream, and knows nothing of other layers. [`settle`] moves it onto the layers below once they are
//! there. Nothing here speaks to containerd, and nothing an archive says is written outside its directory.
//!
//! Both calls block, need root, and hold a few MiB.
//!
//! ```no_run
//! use std::fs::File;
//! use std::path::Path;
//! use stoker_runtime::unpack::{LayerCompression, LayerToUnpack, settle, unpack};
//!
//! let compression = LayerCompression::of("application/vnd.oci.image.layer.v1.tar+gzip").ok_or("no layer")?;
//! let layer = LayerToUnpack { compression, lowest: false, most: 10 << 30 };
//! let stage = Path::new("/snapshots/7/fs");
//! let unpacked = unpack(File::open("layer.tar.gz")?, layer, stage)?;
//! println!("{} bytes with the digest {}", unpacked.size(), unpacked.diff_id());
//! settle(stage, Path::new("/snapshots/8/fs"), &["/snapshots/6/fs".into()], &unpacked)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread;

use crate::room::{DiskAmount, Short};

mod apply;
mod attributes;
mod compression;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod notes;
mod settle;
mod stream;
mod tar;
mod tree;

pub use self::compression::LayerCompression;
pub use self::error::Error;
pub use self::settle::settle;

/// What is known of a layer before it is unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerToUnpack {
    /// How its media type says it is compressed.
    pub compression: LayerCompression,
    /// Whether it is the first layer of its image: its whiteouts hide nothing and leave nothing.
    pub lowest: bool,
    /// The bytes of files that it may take on any disk, and 512 for each entry. Past it unpacking stops with
    /// [`Error::TooBig`].
    pub most: u64,
}

/// A layer that is on disk, and not yet in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    sha256: [u8; 32],
    size: u64,
    /// Directories that no entry named before something lay in them, and whether one did later. Parents come first.
    implied: Vec<(Vec<u8>, bool)>,
    /// Directories that were implied and then replaced by something else of the same layer.
    replaced: Vec<Vec<u8>>,
}

impl Unpacked {
    /// The digest of the whole uncompressed stream, as the image's configuration lists it: `sha256:` and 64 digits.
    /// Compare it before the layer is used.
    pub fn diff_id(&self) -> String {
        let mut text = String::from("sha256:");
        for byte in self.sha256 {
            // Writing to a String does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// The bytes of the uncompressed stream.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The directories whose attributes come from the layers below.
    pub fn implied(&self) -> impl Iterator<Item = PathBuf> {
        self.implied.iter().map(|(path, _)| tree::as_path(path).to_owned())
    }
}

/// Where unpacking takes what it writes from: at least as much as it asks for, or the reason why there is no more.
pub type Take<'a> = dyn FnMut(DiskAmount) -> Result<DiskAmount, Short> + 'a;

/// Fills an empty directory with a layer, on a disk that is as large as it needs.
pub fn unpack(stream: impl Read + Send, layer: LayerToUnpack, into: &Path) -> Result<Unpacked, Error> {
    unpack_within(stream, layer, into, &mut |_| Ok(DiskAmount { bytes: u64::MAX, inodes: u64::MAX }))
}

/// Fills an empty directory with a layer, reading its stream to the end. It takes what it writes in advance: bytes in whole
/// blocks, those of extended attributes too, and inodes.
///
/// It returns when the stream has ended, or has been dropped after a failure; a stream that waits for the network keeps
/// it waiting, so give it an end of its own. When it fails, the directory holds a part of the layer and has to go.
pub fn unpack_within<'a>(
    stream: impl Read + Send,
    layer: LayerToUnpack,
    into: &Path,
    purse: &'a mut Take<'a>,
) -> Result<Unpacked, Error> {
    let tree = tree::Tree::open(into)?;
    if !tree::names(tree.root().fd(), into)?.is_empty() {
        return Err(Error::NotEmpty(into.to_owned()));
    }
    let applier = apply::Applier::new(tree, layer.lowest, layer.most, purse);
    let (decoder, plain) = stream::pair(stream, layer.compression);
    thread::scope(|scope| {
        let failed = |source| Error::Disk { doing: "start a thread for", path: into.to_owned(), source };
        let decoding = thread::Builder::new().name("inflate".into()).spawn_scoped(scope, || decoder.run());
        let decoding = decoding.map_err(failed)?;
        let mut archive = tar::Archive::new(plain);
        let applied = applier.run(&mut archive);
        let applied = match applied {
            // The digest is of all bytes, those behind the archive's end too.
            Ok(notes) => Ok((notes, archive.into_stream().finish())),
            Err(error) => {
                drop(archive);
                Err(error)
            }
        };
        // Where both failed, the archive ended early because the stream did.
        decoding.join().unwrap_or_else(|_| Err(Error::Compressed(std::io::Error::other("it panicked"))))?;
        let (notes, sum) = applied?;
        let (implied, replaced) = notes.into_implied();
        let (implied, replaced) = (implied.into_iter().collect(), replaced.into_iter().collect());
        Ok(Unpacked { sha256: sum.sha256, size: sum.size, implied, replaced })
    })
}
