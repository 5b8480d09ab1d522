//! How full a filesystem is.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

/// A filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// The bytes that are used and those that are free; what is set aside for others is neither.
    pub total: u64,
    /// Those that are free.
    pub free: u64,
    /// Which one it is.
    pub device: u64,
}

/// The filesystem that a path is on; `None` where it cannot be seen from here.
pub async fn of(path: PathBuf) -> Option<Space> {
    let look = move || {
        let stat = rustix::fs::statvfs(path.as_path()).ok()?;
        let device = std::fs::metadata(&path).ok()?.dev();
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        let used = stat.f_blocks.saturating_sub(stat.f_bfree);
        Some(Space { total: bytes(used.saturating_add(stat.f_bavail)), free: bytes(stat.f_bavail), device })
    };
    tokio::task::spawn_blocking(look).await.ok()?
}
