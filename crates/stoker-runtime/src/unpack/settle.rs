//! Moves an unpacked layer to its place on the layers below, and gives directories that it only implied what those
//! layers say about them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::Unpacked;
use super::apply::OPAQUE_XATTR;
use super::attributes::{self, Inherited};
use super::error::Error;
use super::tree::{self, Tree, as_path};

/// Moves all of `stage` to `upper`, an empty directory on the same filesystem. `lowers` are the directories of the
/// layers below, the nearest first, as overlay lists them.
///
/// When it fails, neither directory may be used; `upper` is still empty unless a rename failed.
pub fn settle(stage: &Path, upper: &Path, lowers: &[PathBuf], unpacked: &Unpacked) -> Result<(), Error> {
    let (from, to) = (Tree::open(stage)?, Tree::open(upper)?);
    let lowers = lowers.iter().map(|lower| Tree::open(lower)).collect::<Result<Vec<_>, _>>()?;
    let (from, to) = (from.root(), to.root());
    if !tree::names(to.fd(), upper)?.is_empty() {
        return Err(Error::NotEmpty(upper.to_owned()));
    }
    inherit(stage, &lowers, unpacked)?;
    let root = rustix::fs::fstat(from.fd()).map_err(Error::disk("look at", stage))?;
    for name in tree::names(from.fd(), stage)? {
        rustix::fs::renameat(from.fd(), name.as_slice(), to.fd(), name.as_slice())
            .map_err(Error::disk("move into the snapshot", as_path(&name)))?;
    }
    match attributes::read(from.fd(), OPAQUE_XATTR) {
        Ok(value) => rustix::fs::fsetxattr(to.fd(), OPAQUE_XATTR, &value, XattrFlags::empty())
            .map_err(Error::disk("make opaque", upper))?,
        Err(Errno::NODATA | Errno::NOTSUP) => {}
        Err(errno) => return Err(Error::disk("read the attributes of", stage)(errno)),
    }
    let times = Timestamps {
        last_access: Timespec { tv_sec: root.st_atime, tv_nsec: root.st_atime_nsec.cast_signed() },
        last_modification: Timespec { tv_sec: root.st_mtime, tv_nsec: root.st_mtime_nsec.cast_signed() },
    };
    rustix::fs::futimens(to.fd(), &times).map_err(Error::disk("set the times of", upper))
}

/// Directories that no entry named look as they do below.
fn inherit(stage: &Path, lowers: &[Tree], unpacked: &Unpacked) -> Result<(), Error> {
    let tree = Tree::open(stage)?;
    // containerd looks below when it makes a directory, and fails there if that cannot be; even if it replaces it
    // later.
    for path in &unpacked.replaced {
        lookup(lowers, &path.split(|byte| *byte == b'/').collect::<Vec<_>>())?;
    }
    // Groups that directories of the layers below hand on to what is made in them.
    let mut groups: BTreeMap<&[u8], u32> = BTreeMap::new();
    for (path, named) in &unpacked.implied {
        let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let Some(dir) = tree.find(&parts)? else {
            return Err(Error::disk("find", as_path(path))(Errno::NOENT));
        };
        let handed = parent(path).and_then(|parent| groups.get(parent).copied());
        match lookup(lowers, &parts)? {
            Some(inherited) => {
                if inherited.spreads() {
                    return Err(Error::unsupported(path, "a layer below has default access rules for new files there"));
                }
                if inherited.stat.st_mode & Mode::SGID.as_raw_mode() != 0 {
                    groups.insert(path, inherited.stat.st_gid);
                }
                if !named {
                    inherited.give(dir.fd(), path)?;
                }
                inherited.give_xattrs(dir.fd(), path)?;
            }
            None => {
                if let Some(group) = handed.filter(|_| !named) {
                    rustix::fs::fchown(dir.fd(), None, Some(Gid::from_raw(group)))
                        .map_err(Error::disk("set the owner of", as_path(path)))?;
                }
            }
        }
    }
    Ok(())
}

fn parent(path: &[u8]) -> Option<&[u8]> {
    path.iter().rposition(|byte| *byte == b'/').map(|slash| &path[..slash])
}

/// The directory of that path in the nearest layer that has something there. Something else than a directory hides what
/// is below it.
fn lookup(lowers: &[Tree], parts: &[&[u8]]) -> Result<Option<Inherited>, Error> {
    for lower in lowers {
        let path = lower.resolve(parts)?;
        let path: Vec<&[u8]> = path.iter().map(Vec::as_slice).collect();
        let Some((name, parents)) = path.split_last() else {
            return Inherited::of(&lower.root()).map(Some);
        };
        let Some(dir) = lower.find(parents)? else { continue };
        if tree::kind(&dir, name)?.is_none() {
            continue;
        }
        return match lower.find(&path)? {
            Some(found) => Inherited::of(&found).map(Some),
            None => Ok(None),
        };
    }
    Ok(None)
}
