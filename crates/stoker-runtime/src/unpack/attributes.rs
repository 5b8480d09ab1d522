//! Owner, extended attributes, mode and times, set in the order that containerd sets them: a change of owner takes
//! capabilities and setuid bits away, so both come after it.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::error::Error;
use super::tar::{TarEntry, Time};
use super::tree::{self, OpenDirectory, as_path};

/// Where something is: open, or by its name in a directory when opening it would do something (devices, links).
pub(super) enum At<'a> {
    Open(BorrowedFd<'a>),
    Named(&'a OpenDirectory, &'a [u8], FileType),
}

/// Gives a thing what its entry says. Times of directories come later, when nothing is put into them any more.
pub(super) fn set(at: &At<'_>, entry: &TarEntry, path: &[u8]) -> Result<(), Error> {
    let failed = |doing| Error::disk(doing, as_path(path));
    let (uid, gid) = owner(entry);
    match at {
        At::Open(fd) => rustix::fs::fchown(fd, uid, gid),
        At::Named(dir, name, _) => rustix::fs::chownat(dir.fd(), *name, uid, gid, AtFlags::SYMLINK_NOFOLLOW),
    }
    .map_err(failed("set the owner of"))?;
    for (key, value) in &entry.xattrs {
        set_xattr(at, key, value).map_err(failed("set an extended attribute of"))?;
    }
    let mode = Mode::from_raw_mode(entry.mode);
    match at {
        At::Open(fd) => rustix::fs::fchmod(fd, mode),
        At::Named(_, _, FileType::Symlink) => Ok(()),
        At::Named(dir, name, _) => rustix::fs::chmodat(dir.fd(), *name, mode, AtFlags::empty()),
    }
    .map_err(failed("set the mode of"))?;
    if entry.kind == super::tar::EntryKind::Directory {
        return Ok(());
    }
    let times = times(entry.accessed, entry.modified);
    match at {
        At::Open(fd) => rustix::fs::futimens(fd, &times),
        At::Named(dir, name, _) => rustix::fs::utimensat(dir.fd(), *name, &times, AtFlags::SYMLINK_NOFOLLOW),
    }
    .map_err(failed("set the times of"))
}

/// What the extended attributes of an entry take.
pub(super) fn stored(entry: &TarEntry) -> u64 {
    entry.xattrs.iter().fold(0, |sum, (key, value)| sum.saturating_add((key.len() + value.len()) as u64))
}

/// All bits set mean "leave it" to the kernel, for owners.
pub(super) fn owner(entry: &TarEntry) -> (Option<Uid>, Option<Gid>) {
    let told = |id: u32| (id != u32::MAX).then_some(id);
    (told(entry.uid).map(Uid::from_raw), told(entry.gid).map(Gid::from_raw))
}

/// An access before the modification is taken for the modification.
pub(super) fn times(accessed: Option<Time>, modified: Time) -> Timestamps {
    let timespec = |time: Time| {
        let (tv_sec, tv_nsec) = time.bounded();
        Timespec { tv_sec, tv_nsec }
    };
    let accessed = accessed.map_or(modified, |accessed| accessed.max(modified));
    Timestamps { last_access: timespec(accessed), last_modification: timespec(modified) }
}

/// Sets one attribute. What the filesystem cannot hold is left out, and an archive may not speak for the administrator:
/// `trusted.*` would let it make overlay directories of its own.
fn set_xattr(at: &At<'_>, key: &[u8], value: &[u8]) -> Result<(), Errno> {
    if key.starts_with(b"trusted.") {
        return Ok(());
    }
    let (done, plain) = match at {
        At::Open(fd) => (rustix::fs::fsetxattr(fd, key, value, XattrFlags::empty()), true),
        At::Named(dir, name, kind) => {
            // There is no call that takes a directory and a name. This path goes through the descriptor, and `l…` does
            // not follow the last part.
            let path = [format!("/proc/self/fd/{}/", dir.fd().as_raw_fd()).as_bytes(), name].concat();
            (rustix::fs::lsetxattr(path, key, value, XattrFlags::empty()), *kind == FileType::RegularFile)
        }
    };
    match done {
        Err(Errno::NOTSUP) => Ok(()),
        // Links and devices have no attributes of users.
        Err(Errno::PERM) if key.starts_with(b"user.") && !plain => Ok(()),
        other => other,
    }
}

/// The attributes of a directory in a layer below, for one above that no entry named.
pub(super) struct Inherited {
    /// Mode, owner and times.
    pub(super) stat: rustix::fs::Stat,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Inherited {
    /// Reads them from an open directory.
    pub(super) fn of(dir: &OpenDirectory) -> Result<Self, Error> {
        let failed = |errno| Error::disk("read the attributes of", as_path(&dir.path))(errno);
        let stat = rustix::fs::fstat(dir.fd()).map_err(failed)?;
        let mut xattrs = Vec::new();
        for key in list(dir.fd()).map_err(failed)? {
            // What overlay itself keeps there says something about that layer only.
            if key.starts_with(b"trusted.") {
                continue;
            }
            match read(dir.fd(), &key) {
                Ok(value) => xattrs.push((key, value)),
                Err(Errno::NOTSUP | Errno::NODATA) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(Self { stat, xattrs })
    }

    /// Whether files made in such a directory take more from it than a rename into it gives them.
    pub(super) fn spreads(&self) -> bool {
        self.xattrs.iter().any(|(key, _)| key == b"system.posix_acl_default")
    }

    /// Gives owner and mode, and the times where nothing was ever put into the directory.
    pub(super) fn give(&self, dir: BorrowedFd<'_>, path: &[u8]) -> Result<(), Error> {
        let failed = |doing| Error::disk(doing, as_path(path));
        let (uid, gid) = (Uid::from_raw(self.stat.st_uid), Gid::from_raw(self.stat.st_gid));
        rustix::fs::fchown(dir, Some(uid), Some(gid)).map_err(failed("set the owner of"))?;
        let mode = Mode::from_raw_mode(self.stat.st_mode & 0o7777);
        rustix::fs::fchmod(dir, mode).map_err(failed("set the mode of"))?;
        if !tree::names(dir, as_path(path))?.is_empty() {
            return Ok(());
        }
        let times = Timestamps {
            last_access: Timespec { tv_sec: self.stat.st_atime, tv_nsec: self.stat.st_atime_nsec.cast_signed() },
            last_modification: Timespec { tv_sec: self.stat.st_mtime, tv_nsec: self.stat.st_mtime_nsec.cast_signed() },
        };
        rustix::fs::futimens(dir, &times).map_err(failed("set the times of"))
    }

    /// Gives the extended attributes that the directory has not got already.
    pub(super) fn give_xattrs(&self, dir: BorrowedFd<'_>, path: &[u8]) -> Result<(), Error> {
        for (key, value) in &self.xattrs {
            match rustix::fs::fsetxattr(dir, key.as_slice(), value, XattrFlags::CREATE) {
                Ok(()) | Err(Errno::EXIST | Errno::NOTSUP | Errno::NODATA) => {}
                Err(errno) => return Err(Error::disk("set an extended attribute of", as_path(path))(errno)),
            }
        }
        Ok(())
    }
}

/// The greatest value and list of names that the kernel has.
const XATTR_MAX: usize = 64 * 1024;

fn list(fd: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = vec![0; XATTR_MAX];
    let length = match rustix::fs::flistxattr(fd.as_fd(), &mut names[..]) {
        Err(Errno::NOTSUP) => 0,
        other => other?,
    };
    names.truncate(length);
    Ok(names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
}

/// One attribute's value.
pub(super) fn read(fd: BorrowedFd<'_>, key: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; XATTR_MAX];
    let length = rustix::fs::fgetxattr(fd, key, &mut value[..])?;
    value.truncate(length);
    Ok(value)
}
