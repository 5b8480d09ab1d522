//! What the journal asks of a disk, and the real one. Every change of a file or a name goes through here, so that a test can
//! count them, hold them back and let them fail one by one. Reading does not.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Changes of files. One that failed may have happened in part.
pub(crate) trait Disk: Send + Sync {
    fn write(&self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes the file that long.
    fn cut(&self, file: &File, len: u64) -> io::Result<()>;
    /// Returns when the file's bytes and its length survive a power cut.
    fn sync(&self, file: &File) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// The same for the names in a directory.
    fn sync_names(&self, directory: &Path) -> io::Result<()>;
}

/// The system's own.
pub(crate) struct System;

impl Disk for System {
    fn write(&self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        file.write_all_at(bytes, at)
    }

    fn cut(&self, file: &File, len: u64) -> io::Result<()> {
        file.set_len(len)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn sync_names(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }
}
