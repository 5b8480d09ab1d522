//! Files that appear whole or not at all.
//!
//! Bytes or a file come in; a file under its final name goes out, after a sync and a rename. It hashes nothing. All of it
//! blocks; [`beside`] runs it beside the executor.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Error;

/// What one step of a copy moves.
const STEP: u64 = 4 * 1024 * 1024;
const TEMPORARY: &str = ".tmp-";
/// Of a file's mode: everybody who may read; and what its owner always may.
const READERS: u32 = 0o444;
const OWNER: u32 = 0o600;
/// What a crash left is swept after this; until then it may be another process' work.
const STALE: Duration = Duration::from_secs(3600);

/// Does a short piece of work beside the executor.
pub(super) async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Stopped)?
}

/// Writes a small file, whole or not at all.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let temporary = temporary(path);
    let written = create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(|e| Error::disk("write", path, &e)).and_then(|()| land(&temporary, path)).inspect_err(|_| {
        // The error says what happened; what is left is swept later if this fails too.
        let _ = fs::remove_file(&temporary);
    })
}

/// Gives a file its final name; `false` where that is on another filesystem. Who may read the directory may read the file there,
/// whoever could read it where it came from.
pub(super) fn rename(from: &Path, to: &Path) -> Result<bool, Error> {
    match fs::rename(from, to) {
        Ok(()) => {
            let dir = fs::metadata(to.parent().unwrap_or(Path::new(".")));
            let readable = dir.map(|dir| Permissions::from_mode((dir.permissions().mode() & READERS) | OWNER));
            let opened = readable.and_then(|mode| fs::set_permissions(to, mode));
            opened.map_err(|e| Error::disk("set the mode of", to, &e))?;
            sync_dir(to).map(|()| true)
        }
        Err(e) if e.kind() == io::ErrorKind::CrossesDevices => Ok(false),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(Error::Gone { path: from.to_owned() }),
        Err(e) => Err(Error::disk("move here", from, &e)),
    }
}

/// Removes a file that may be gone already.
pub(super) fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::disk("remove", path, &e)),
        _ => Ok(()),
    }
}

/// A file on its way from another filesystem, under a name that goes with this unless it got its final one.
pub(super) struct Copy {
    from: PathBuf,
    temporary: PathBuf,
    files: Option<(File, File)>,
}

impl Copy {
    pub(super) fn start(from: PathBuf, to: &Path) -> Self {
        Self { from, temporary: temporary(to), files: None }
    }

    /// Where the copy is until it gets its final name.
    pub(super) fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Moves one piece more; `false` when all of it is copied and synced.
    pub(super) fn step(mut self) -> Result<(Self, bool), Error> {
        let failed = |e: io::Error, path: &Path| Error::disk("copy", path, &e);
        let (mut source, mut target) = match self.files.take() {
            Some(files) => files,
            None => match File::open(&self.from) {
                Ok(source) => (source, create(&self.temporary).map_err(|e| failed(e, &self.temporary))?),
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Error::Gone { path: self.from.clone() }),
                Err(e) => return Err(failed(e, &self.from)),
            },
        };
        let copied = io::copy(&mut (&mut source).take(STEP), &mut target).map_err(|e| failed(e, &self.temporary))?;
        if copied == STEP {
            self.files = Some((source, target));
            return Ok((self, true));
        }
        target.sync_all().map_err(|e| failed(e, &self.temporary))?;
        Ok((self, false))
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // Gone where it got its final name. Else it was given up, and is of no use to anybody.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Removes what a crash left half-written.
pub(super) fn sweep(dir: &Path) -> Result<(), Error> {
    let failed = |e: io::Error| Error::disk("list", dir, &e);
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let ours = entry.file_name().to_string_lossy().starts_with(TEMPORARY);
        let age = entry.metadata().and_then(|meta| meta.modified()).ok().and_then(|time| time.elapsed().ok());
        if ours && age.is_some_and(|age| age > STALE) {
            // Another process may sweep at the same time.
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

fn land(temporary: &Path, path: &Path) -> Result<(), Error> {
    fs::rename(temporary, path).map_err(|e| Error::disk("write", path, &e))?;
    sync_dir(path)
}

/// Makes a rename last.
fn sync_dir(path: &Path) -> Result<(), Error> {
    let dir = path.parent().unwrap_or(Path::new("."));
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| Error::disk("sync", dir, &e))
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// A name that nobody else uses, in the directory of the final one.
fn temporary(path: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let unique = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), NEXT.fetch_add(1, Ordering::Relaxed));
    path.with_file_name(format!("{TEMPORARY}{}-{unique:016x}", std::process::id()))
}
