//! Puts the entries of one archive into a directory, as containerd's applier does.
//!
//! A layer that will lie on others keeps whiteouts the way overlay wants them: a deleted file is a character device
//! 0/0, an opaque directory has an attribute. In the lowest layer there is nothing to hide, and a whiteout removes what
//! came before it in the same archive. Layers below are never looked at here: their part comes when the layer is
//! settled.

use std::fs::File;
use std::io::{self, BufRead, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsFd as _;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use super::Take;
use super::attributes::{self, At};
use super::error::Error;
use super::notes::Notes;
use super::tar::{Archive, EntryKind, FilePart, TarEntry};
use super::tree::{self, OpenDirectory, Tree, as_path};
use crate::room::DiskAmount;

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// What marks an opaque directory for overlay.
pub(super) const OPAQUE_XATTR: &[u8] = b"trusted.overlay.opaque";
/// What an entry counts beside its data: its inode and its name.
const ENTRY: u64 = 512;
/// What the data of a file, a directory, and the attributes of one are kept in.
const BLOCK: u64 = 4096;

/// One archive on its way to disk.
pub(super) struct Applier<'a> {
    tree: Tree,
    lowest: bool,
    most: u64,
    taken: u64,
    /// Where it takes what it writes from, in steps, and what is left of the last step.
    purse: &'a mut Take<'a>,
    step: DiskAmount,
    notes: Notes,
}

impl<'a> Applier<'a> {
    /// Applies to an empty directory; at most so many bytes, and what the purse gives.
    pub(super) fn new(tree: Tree, lowest: bool, most: u64, purse: &'a mut Take<'a>) -> Self {
        Self { tree, lowest, most, taken: 0, purse, step: DiskAmount::default(), notes: Notes::default() }
    }

    /// Takes the whole archive, and gives what has to be known when the layer is settled.
    pub(super) fn run<R: BufRead>(mut self, archive: &mut Archive<R>) -> Result<Notes, Error> {
        while let Some(entry) = archive.next()? {
            let parts: Vec<Vec<u8>> = tree::clean(&entry.name).into_iter().map(<[u8]>::to_vec).collect();
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            // Entries for the root itself are left out: its attributes are the snapshotter's.
            if let Some((name, parents)) = parts.split_last() {
                self.entry(archive, &entry, parents, name)?;
            }
        }
        self.set_times()?;
        Ok(self.notes)
    }

    fn entry<R: BufRead>(
        &mut self,
        archive: &mut Archive<R>,
        entry: &TarEntry,
        parents: &[&[u8]],
        name: &[u8],
    ) -> Result<(), Error> {
        self.charge(archive.stored().saturating_add(ENTRY))?;
        self.take(ENTRY + attributes::stored(entry).next_multiple_of(BLOCK), 1)?;
        let mut made = 0;
        let notes = &mut self.notes;
        let dir = self.tree.parent(parents, |path| {
            made += 1;
            notes.implied(path)
        })?;
        self.take(made * BLOCK, made)?;
        if name == OPAQUE {
            return self.opaque(&dir);
        }
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            return self.whiteout(entry, &dir, hidden);
        }
        match entry.kind {
            EntryKind::Directory => self.directory(entry, &dir, parents, name)?,
            EntryKind::File => self.file(archive, entry, &dir, name)?,
            EntryKind::Global => {
                if tree::kind(&dir, name)?.is_some() {
                    self.remove(&dir, name)?;
                }
            }
            EntryKind::Other(flag) => {
                let what = format!("its type {:?} is unknown", char::from(flag));
                return Err(Error::archive(&entry.name, what));
            }
            _ => self.node(entry, &dir, name)?,
        }
        Ok(())
    }

    fn charge(&mut self, bytes: u64) -> Result<(), Error> {
        self.taken = self.taken.saturating_add(bytes);
        if self.taken > self.most { Err(Error::TooBig { most: self.most }) } else { Ok(()) }
    }

    /// Pays for what is written next, or was just written.
    fn take(&mut self, bytes: u64, inodes: u64) -> Result<(), Error> {
        if bytes > self.step.bytes || inodes > self.step.inodes {
            let bytes = bytes.saturating_sub(self.step.bytes);
            let inodes = inodes.saturating_sub(self.step.inodes);
            self.step = self.step.plus((self.purse)(DiskAmount { bytes, inodes }).map_err(Error::NoRoom)?);
        }
        self.step = self.step.minus(DiskAmount { bytes, inodes });
        Ok(())
    }

    fn remove(&mut self, dir: &OpenDirectory, name: &[u8]) -> Result<(), Error> {
        self.notes.forget(&dir.join(name));
        self.tree.remove(dir, name)
    }

    /// Hides all that the layers below have in this directory.
    fn opaque(&mut self, dir: &OpenDirectory) -> Result<(), Error> {
        if !self.lowest {
            return rustix::fs::fsetxattr(dir.fd(), OPAQUE_XATTR, b"y", XattrFlags::empty())
                .map_err(Error::disk("make opaque", as_path(&dir.path)));
        }
        if !self.notes.first_opaque(&dir.path)? {
            // containerd 1 clears the directory each time, containerd 2 only once.
            return match self.notes.unnamed_below(&dir.path) {
                Some(path) => Err(Error::unsupported(&path, "its parent is called opaque twice")),
                None => Ok(()),
            };
        }
        // All that no entry named goes, with whatever is in it.
        while let Some(path) = self.notes.unnamed_below(&dir.path) {
            let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
            let Some((name, parents)) = parts.split_last() else { break };
            match self.tree.find(parents)? {
                Some(parent) => self.remove(&parent, name)?,
                None => self.notes.forget(&path),
            }
        }
        Ok(())
    }

    /// Hides one name that the layers below have.
    fn whiteout(&mut self, entry: &TarEntry, dir: &OpenDirectory, hidden: &[u8]) -> Result<(), Error> {
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(Error::archive(&entry.name, "it is a whiteout of nothing"));
        }
        if self.lowest {
            return self.remove(dir, hidden);
        }
        let path = dir.join(hidden);
        match rustix::fs::mknodat(dir.fd(), hidden, FileType::CharacterDevice, Mode::empty(), 0) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(Error::archive(&entry.name, "it deletes what the same layer has")),
            Err(errno) => return Err(Error::disk("make the whiteout", as_path(&path))(errno)),
        }
        let (uid, gid) = attributes::owner(entry);
        rustix::fs::chownat(dir.fd(), hidden, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(Error::disk("set the owner of", as_path(&path)))
    }

    /// Makes a directory, or takes over the one that is there.
    fn directory(
        &mut self,
        entry: &TarEntry,
        dir: &OpenDirectory,
        parents: &[&[u8]],
        name: &[u8],
    ) -> Result<(), Error> {
        self.take(BLOCK, 0)?;
        let path = dir.join(name);
        let failed = |errno| Error::disk("make the directory", as_path(&path))(errno);
        let make = || rustix::fs::mkdirat(dir.fd(), name, Mode::RWXU);
        let fd = match make() {
            Ok(()) => tree::open(dir.fd(), name).map_err(failed)?,
            Err(Errno::EXIST) => match tree::open(dir.fd(), name) {
                Ok(fd) => fd,
                Err(_) => {
                    self.remove(dir, name)?;
                    make().and_then(|()| tree::open(dir.fd(), name)).map_err(failed)?
                }
            },
            Err(errno) => return Err(failed(errno)),
        };
        attributes::set(&At::Open(fd.as_fd()), entry, &path)?;
        self.notes.named(&path);
        let named = [parents, &[name]].concat().join(&b'/');
        self.notes.directory(named, attributes::times(entry.accessed, entry.modified))
    }

    fn file<R: BufRead>(
        &mut self,
        archive: &mut Archive<R>,
        entry: &TarEntry,
        dir: &OpenDirectory,
        name: &[u8],
    ) -> Result<(), Error> {
        let path = dir.join(name);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let make = || rustix::fs::openat(dir.fd(), name, flags, Mode::RUSR | Mode::WUSR);
        let fd = match make() {
            Err(Errno::EXIST) => {
                self.remove(dir, name)?;
                make()
            }
            other => other,
        };
        let mut file = File::from(fd.map_err(Error::disk("make the file", as_path(&path)))?);
        let failed = |source: io::Error| Error::Disk { doing: "write", path: as_path(&path).to_owned(), source };
        let mut size: u64 = 0;
        let mut holes = false;
        archive.data(|piece| match piece {
            FilePart::Bytes(bytes) => {
                size += bytes.len() as u64;
                self.take(bytes.len() as u64, 0)?;
                file.write_all(bytes).map_err(failed)
            }
            FilePart::Hole(length) => {
                size += length;
                holes = true;
                file.seek(SeekFrom::Start(size)).map(drop).map_err(failed)
            }
        })?;
        if holes {
            file.set_len(size).map_err(failed)?;
        }
        self.take(size.next_multiple_of(BLOCK) - size, 0)?;
        attributes::set(&At::Open(file.as_fd()), entry, &path)
    }

    /// Makes a link, a device or a fifo.
    fn node(&mut self, entry: &TarEntry, dir: &OpenDirectory, name: &[u8]) -> Result<(), Error> {
        let path = dir.join(name);
        let made = match self.try_node(entry, dir, name)? {
            Err(Errno::EXIST) => {
                self.remove(dir, name)?;
                self.try_node(entry, dir, name)?
            }
            other => other,
        };
        match made {
            Ok(()) => {}
            Err(Errno::NOENT) if entry.kind == EntryKind::Link => {
                return Err(Error::archive(&entry.name, "it is a hard link to a file that this layer does not have"));
            }
            Err(errno) => return Err(Error::disk("make", as_path(&path))(errno)),
        }
        let Some(kind) = tree::kind(dir, name)? else {
            return Err(Error::disk("look at", as_path(&path))(Errno::NOENT));
        };
        attributes::set(&At::Named(dir, name, kind), entry, &path)
    }

    fn try_node(&self, entry: &TarEntry, dir: &OpenDirectory, name: &[u8]) -> Result<Result<(), Errno>, Error> {
        let mode = Mode::from_raw_mode(entry.mode);
        let node = |kind| {
            let device = rustix::fs::makedev(entry.device.0, entry.device.1);
            rustix::fs::mknodat(dir.fd(), name, kind, mode, device)
        };
        Ok(match entry.kind {
            EntryKind::Char => node(FileType::CharacterDevice),
            EntryKind::Block => node(FileType::BlockDevice),
            EntryKind::Fifo => node(FileType::Fifo),
            EntryKind::Symlink => rustix::fs::symlinkat(entry.link.as_slice(), dir.fd(), name),
            _ => {
                let mut parents: Vec<&[u8]> = entry.link.split(|byte| *byte == b'/').collect();
                let last = parents.pop().unwrap_or_default();
                if matches!(last, b"" | b"." | b"..") {
                    return Err(Error::archive(&entry.name, "it is a hard link to a directory"));
                }
                match self.tree.find(&parents)? {
                    Some(target) => rustix::fs::linkat(target.fd(), last, dir.fd(), name, AtFlags::empty()),
                    None => Err(Errno::NOENT),
                }
            }
        })
    }

    /// Sets the times of all directories, now that nothing is put into them any more.
    fn set_times(&mut self) -> Result<(), Error> {
        for (name, times) in self.notes.directories() {
            let path = self.tree.resolve(&tree::clean(&name))?;
            let failed = |errno| Error::disk("set the times of", as_path(&name))(errno);
            let Some((last, parents)) = path.split_last() else {
                rustix::fs::futimens(self.tree.root().fd(), &times).map_err(failed)?;
                continue;
            };
            let parents: Vec<&[u8]> = parents.iter().map(Vec::as_slice).collect();
            let dir = self.tree.find(&parents)?.ok_or_else(|| failed(Errno::NOENT))?;
            rustix::fs::utimensat(dir.fd(), last.as_slice(), &times, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        }
        Ok(())
    }
}
