//! The journal's name and lock. In: a path. Out: the file that has this name, held against every other process; or who is in
//! the way. It never looks inside.

use super::JournalError;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// A snapshot may take the name between opening and locking; nobody is that unlucky this often.
const ATTEMPTS: usize = 8;

/// Opens or makes the file, for its owner only: it holds every Secret. Out: also whether it was made.
pub(super) fn open(path: &Path) -> Result<(File, bool), JournalError> {
    let failed = |source| JournalError::Io { path: path.to_owned(), source };
    for _ in 0..ATTEMPTS {
        let made = !path.try_exists().map_err(failed)?;
        let earlier = path.with_extension("redb");
        if made && earlier.exists() {
            return Err(JournalError::Earlier { path: earlier });
        }
        let file = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let file = file.map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(JournalError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        // The lock is on the file, not on its name.
        if same(&file, path).map_err(failed)? {
            return Ok((file, made));
        }
    }
    Err(JournalError::InUse { path: path.to_owned() })
}

fn same(file: &File, path: &Path) -> io::Result<bool> {
    let held = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(named) => Ok((held.dev(), held.ino()) == (named.dev(), named.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Where the name stands.
pub(super) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
