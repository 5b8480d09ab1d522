//! A disk that is soon full.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A filesystem in memory; unmounted when dropped.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one of this size, as mount(8) reads it ("2m"), on a directory that is made where there is none. `None` for those who may not
    /// mount.
    pub fn mount(path: PathBuf, size: &str) -> Option<Self> {
        std::fs::create_dir_all(&path).ok()?;
        let size = format!("size={size}");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "stoker-test"]).arg(&path).output();
        mount.is_ok_and(|output| output.status.success()).then_some(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
