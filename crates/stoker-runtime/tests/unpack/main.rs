//! The applier of layers: against hand-made archives, against a real containerd, and against strangers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod archive;
mod cases;
mod containerd;
mod hostile;
mod limits;
mod listing;
mod rules;

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use stoker_runtime::unpack::{Error, LayerCompression, LayerToUnpack, Unpacked, settle, unpack};

/// Whether this is root; says so loudly where not, since only root can make devices and give files away.
pub(crate) fn root() -> bool {
    let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if !root {
        println!("SKIPPED: unpacking layers needs root");
    }
    root
}

/// Where layers are unpacked: on a disk if there is one, since some tmpfs hold no extended attributes.
pub(crate) fn scratch() -> tempfile::TempDir {
    let dir = if Path::new("/var/tmp").is_dir() { PathBuf::from("/var/tmp") } else { std::env::temp_dir() };
    tempfile::tempdir_in(dir).unwrap()
}

/// Unpacks plain tar into a new directory.
pub(crate) fn plain(tar: &[u8], lowest: bool, into: &Path) -> Result<Unpacked, Error> {
    std::fs::create_dir_all(into).unwrap();
    unpack(tar, LayerToUnpack { compression: LayerCompression::None, lowest, most: 1 << 30 }, into)
}

/// Unpacks and settles layers, lowest first; gives the directories in the same order.
pub(crate) fn stack(layers: &[cases::Layer], dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut unpacked = Vec::new();
    for (i, layer) in layers.iter().enumerate() {
        let stage = dir.join(format!("stage-{i}"));
        std::fs::create_dir(&stage).unwrap();
        let compression = LayerCompression::of(layer.media_type).unwrap();
        let done =
            unpack(layer.stored.as_slice(), LayerToUnpack { compression, lowest: i == 0, most: 1 << 30 }, &stage)?;
        assert_eq!(done.size(), layer.plain.len() as u64);
        assert_eq!(done.diff_id(), containerd::digest(&layer.plain));
        unpacked.push((stage, done));
    }
    let mut uppers: Vec<PathBuf> = Vec::new();
    for (i, (stage, done)) in unpacked.iter().enumerate() {
        let upper = dir.join(format!("upper-{i}"));
        std::fs::create_dir(&upper).unwrap();
        let lowers: Vec<PathBuf> = uppers.iter().rev().cloned().collect();
        settle(stage, &upper, &lowers, done)?;
        uppers.push(upper);
    }
    Ok(uppers)
}
