//! How full a filesystem is.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A filesystem.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    /// The bytes that are used and those that are free; what is set aside for others is neither.
    pub total: u64,
    /// Those that are free.
    pub free: u64,
    /// The inodes that are used and those that are free; 0 where the filesystem makes them as it needs them.
    pub inodes: u64,
    /// Those that are free.
    pub free_inodes: u64,
    /// Which one it is.
    pub device: u64,
}

/// The filesystem that a path is on; `None` where it cannot be seen from here.
pub async fn of(path: PathBuf) -> Option<Space> {
    tokio::task::spawn_blocking(move || look(&path)).await.ok()?
}

/// The same, for those who may block.
pub fn look(path: &Path) -> Option<Space> {
    let stat = rustix::fs::statvfs(path).ok()?;
    let device = std::fs::metadata(path).ok()?.dev();
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    let used = stat.f_blocks.saturating_sub(stat.f_bfree);
    let used_inodes = stat.f_files.saturating_sub(stat.f_ffree);
    // Without a fixed number of inodes the filesystem says that it has none, or that none is free.
    let inodes = if stat.f_favail == 0 && stat.f_ffree == 0 { 0 } else { used_inodes.saturating_add(stat.f_favail) };
    Some(Space {
        total: bytes(used.saturating_add(stat.f_bavail)),
        free: bytes(stat.f_bavail),
        inodes,
        free_inodes: stat.f_favail,
        device,
    })
}
