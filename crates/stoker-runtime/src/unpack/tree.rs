//! A directory that nothing leads out of. Names from a stranger's archive come in; files below the directory are found,
//! made and removed.
//!
//! Every step opens one component below a descriptor and follows no link by itself. Links are read and walked here,
//! with the directory as their root, as in a chroot: neither `..` nor an absolute link leads outside.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::error::Error;

/// Links that one name may lead through.
const LINKS: usize = 255;
/// Directories that are opened on the way of one name.
const STEPS: usize = 20_000;
/// Directories within each other that are removed at once.
const DEPTH: usize = 512;
/// The longest path that the kernel takes.
const PATH_MAX: usize = 4096;

/// The directory.
pub(super) struct Tree {
    root: Rc<OwnedFd>,
    /// What the root's own path takes from the longest allowed one.
    prefix: usize,
    /// The parent that was opened last, by its name in the archive: neighbours follow each other.
    recent: Option<(Vec<u8>, OpenDirectory)>,
}

/// A directory within the tree, open.
#[derive(Clone)]
pub(super) struct OpenDirectory {
    fd: Rc<OwnedFd>,
    /// Its path below the root, without links. Empty for the root.
    pub(super) path: Vec<u8>,
}

impl OpenDirectory {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The path of something within.
    pub(super) fn join(&self, name: &[u8]) -> Vec<u8> {
        if self.path.is_empty() { name.to_vec() } else { [&self.path, b"/".as_slice(), name].concat() }
    }
}

/// The components of a name, cleaned by its text alone: `a/../b` is `b`, and what would lead above the root is the
/// root.
pub(super) fn clean(name: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts
}

/// A path of bytes for people and for the system.
pub(super) fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

impl Tree {
    /// Opens the directory.
    pub(super) fn open(dir: &Path) -> Result<Self, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(dir, flags, Mode::empty()).map_err(Error::disk("open", dir))?;
        Ok(Self { root: Rc::new(root), prefix: dir.as_os_str().len() + 2, recent: None })
    }

    pub(super) fn root(&self) -> OpenDirectory {
        OpenDirectory { fd: self.root.clone(), path: Vec::new() }
    }

    /// The path without links that a name stands for, below the root. What does not exist yet counts as no link.
    pub(super) fn resolve(&self, parts: &[&[u8]]) -> Result<Vec<Vec<u8>>, Error> {
        let mut ahead: Vec<Vec<u8>> = parts.iter().rev().map(|part| part.to_vec()).collect();
        let mut walked: Vec<Vec<u8>> = Vec::new();
        // The directory that `walked` is, as long as it exists.
        let mut here = Some(self.root());
        let (mut links, mut steps) = (0, 0);
        while let Some(part) = ahead.pop() {
            // A way back is walked from the root: many of them in a deep place would take forever.
            steps += if part == b".." { walked.len() } else { 1 };
            if steps > STEPS {
                return Err(Error::unsupported(&walked.join(&b'/'), "its links lead up and down too often"));
            }
            match part.as_slice() {
                b"" | b"." => continue,
                b".." => {
                    walked.pop();
                    here = self.existing(&walked)?;
                    continue;
                }
                _ => {}
            }
            let Some(dir) = &here else {
                walked.push(part);
                continue;
            };
            match step(dir, &part)? {
                NameInTree::Directory(next) => here = Some(next),
                NameInTree::Missing => here = None,
                // The last one may be anything; below a file there is nothing.
                NameInTree::Other if ahead.is_empty() => here = None,
                NameInTree::Other => return Err(Error::disk("look into", as_path(&dir.join(&part)))(Errno::NOTDIR)),
                NameInTree::Link(target) => {
                    links += 1;
                    if links > LINKS {
                        return Err(Error::archive(&dir.join(&part), "it leads through too many links"));
                    }
                    if target.starts_with(b"/") {
                        walked.clear();
                        here = Some(self.root());
                    }
                    ahead.extend(target.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec));
                    continue;
                }
            }
            walked.push(part);
        }
        let length: usize = walked.iter().map(|part| part.len() + 1).sum();
        if length + self.prefix > PATH_MAX {
            return Err(Error::archive(&walked.join(&b'/'), "its path is too long"));
        }
        Ok(walked)
    }

    /// Opens a path without links, where it is a directory.
    fn existing(&self, parts: &[Vec<u8>]) -> Result<Option<OpenDirectory>, Error> {
        let mut here = self.root();
        for part in parts {
            match step(&here, part)? {
                NameInTree::Directory(next) => here = next,
                _ => return Ok(None),
            }
        }
        Ok(Some(here))
    }

    /// Opens the directory that a name stands for, and makes what is missing of it. `made` is told of each new
    /// directory.
    pub(super) fn parent(
        &mut self,
        parts: &[&[u8]],
        mut made: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<OpenDirectory, Error> {
        let key = parts.join(&b'/');
        if let Some((recent, place)) = &self.recent
            && *recent == key
        {
            return Ok(place.clone());
        }
        let mut here = self.root();
        for part in self.resolve(parts)? {
            here = match step(&here, &part)? {
                NameInTree::Directory(next) => next,
                NameInTree::Missing => {
                    let next = make(&here, &part)?;
                    made(&next.path)?;
                    next
                }
                _ => return Err(Error::archive(&here.join(&part), "something lies below it that is no directory")),
            };
        }
        self.recent = Some((key, here.clone()));
        Ok(here)
    }

    /// Opens the directory that a name stands for, if there is one. It makes nothing.
    pub(super) fn find(&self, parts: &[&[u8]]) -> Result<Option<OpenDirectory>, Error> {
        self.existing(&self.resolve(parts)?)
    }

    /// Removes a file, or a directory with all that is in it. That nothing is there is fine.
    pub(super) fn remove(&mut self, dir: &OpenDirectory, name: &[u8]) -> Result<(), Error> {
        // What was resolved before may stand for something else now.
        self.recent = None;
        remove(dir.fd(), name, &dir.join(name), 0)
    }
}

/// What a name in a directory is.
enum NameInTree {
    Directory(OpenDirectory),
    Link(Vec<u8>),
    Other,
    Missing,
}

fn step(dir: &OpenDirectory, name: &[u8]) -> Result<NameInTree, Error> {
    match open(dir.fd(), name) {
        Ok(fd) => Ok(NameInTree::Directory(OpenDirectory { fd: Rc::new(fd), path: dir.join(name) })),
        Err(Errno::NOENT) => Ok(NameInTree::Missing),
        // Linux says the one, others the other, of a link that it may not follow.
        Err(Errno::NOTDIR | Errno::LOOP) => match rustix::fs::readlinkat(dir.fd(), name, Vec::new()) {
            Ok(target) => Ok(NameInTree::Link(target.into_bytes())),
            Err(Errno::INVAL) => Ok(NameInTree::Other),
            Err(errno) => Err(Error::disk("read the link", as_path(&dir.join(name)))(errno)),
        },
        Err(errno) => Err(Error::disk("open", as_path(&dir.join(name)))(errno)),
    }
}

/// Opens a directory by its name, never through a link.
pub(super) fn open(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// A directory that no entry named: 0755, whatever the umask is.
fn make(dir: &OpenDirectory, name: &[u8]) -> Result<OpenDirectory, Error> {
    let path = dir.join(name);
    let mode = Mode::from_raw_mode(0o755);
    let made = rustix::fs::mkdirat(dir.fd(), name, mode).and_then(|()| open(dir.fd(), name));
    let fd = made.map_err(Error::disk("make the directory", as_path(&path)))?;
    rustix::fs::fchmod(&fd, mode).map_err(Error::disk("set the mode of", as_path(&path)))?;
    Ok(OpenDirectory { fd: Rc::new(fd), path })
}

fn remove(dir: BorrowedFd<'_>, name: &[u8], path: &[u8], depth: usize) -> Result<(), Error> {
    let failed = |errno| Error::disk("remove", as_path(path))(errno);
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(failed(errno)),
    }
    if depth == DEPTH {
        return Err(Error::unsupported(path, "directories are nested too deep to be replaced"));
    }
    let fd = open(dir, name).map_err(failed)?;
    for entry in Dir::read_from(&fd).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let inner = entry.file_name().to_bytes();
        if !matches!(inner, b"." | b"..") {
            remove(fd.as_fd(), inner, &[path, b"/", inner].concat(), depth + 1)?;
        }
    }
    rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR).map_err(failed)
}

/// The names in a directory.
pub(super) fn names(fd: BorrowedFd<'_>, path: &Path) -> Result<Vec<Vec<u8>>, Error> {
    let mut names = Vec::new();
    for entry in Dir::read_from(fd).map_err(Error::disk("list", path))? {
        let entry = entry.map_err(Error::disk("list", path))?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_bytes().to_vec());
        }
    }
    Ok(names)
}

/// The kind of a thing, links not followed; nothing where it is not there.
pub(super) fn kind(dir: &OpenDirectory, name: &[u8]) -> Result<Option<FileType>, Error> {
    match rustix::fs::statat(dir.fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(Error::disk("look at", as_path(&dir.join(name)))(errno)),
    }
}
