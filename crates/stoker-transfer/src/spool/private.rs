//! Files that only the user of this process can read: blobs of private images are in the spool. Directories in; the same
//! directories, with the modes that they should have, out.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use super::Error;

const DIRECTORY: u32 = 0o700;
const FILE: u32 = 0o600;

/// Makes the spool's directory, or takes the rights of others away from one that is there, and from the files in it.
pub(super) fn directory(dir: &Path) -> Result<(), Error> {
    let failed = |e: io::Error| Error::disk(dir, "make the spool directory", &e);
    fs::create_dir_all(dir.parent().unwrap_or(Path::new("."))).map_err(failed)?;
    match DirBuilder::new().mode(DIRECTORY).create(dir) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.map_err(failed)?,
    }
    // The directory first: nobody can put a link into it afterwards.
    restrict(dir, DIRECTORY)?;
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_file() => restrict(&path, FILE)?,
            _ => {}
        }
    }
    Ok(())
}

/// How a file of the spool is opened.
pub(super) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(FILE);
    options
}

fn restrict(path: &Path, mode: u32) -> Result<(), Error> {
    let failed = |e: io::Error| Error::disk(path, "keep others from reading", &e);
    let now = match fs::metadata(path) {
        // Another process may be done with it.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        meta => meta.map_err(failed)?.permissions().mode() & 0o7777,
    };
    if now == mode {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_spool_that_others_could_read_is_closed_to_them() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().join("data/spool");
        directory(&dir).unwrap();
        assert_eq!(mode(&dir), DIRECTORY);
        let (blob, elsewhere) = (dir.join("abc.5"), temporary.path().join("elsewhere"));
        for file in [&blob, &elsewhere] {
            fs::write(file, "bytes").unwrap();
            fs::set_permissions(file, Permissions::from_mode(0o644)).unwrap();
        }
        std::os::unix::fs::symlink(&elsewhere, dir.join("link")).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
        directory(&dir).unwrap();
        assert_eq!((mode(&dir), mode(&blob)), (DIRECTORY, FILE));
        assert_eq!(mode(&elsewhere), 0o644, "it is not ours");
        options().open(dir.join("new.5")).unwrap();
        assert_eq!(mode(&dir.join("new.5")), FILE);
    }
}
