//! What a directory holds, in a form that two of them can be compared in: the root file system of an image in one runtime and in
//! another. It follows no links and crosses no mounts knowingly; it never writes.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::registry::digest;

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Type and permission bits.
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// When it was changed; of directories nothing, for whoever unpacks changes it.
    pub mtime: Option<i64>,
    /// A file's digest, a link's target, of others nothing.
    pub content: String,
    /// The first path of the same file, where it has several names.
    pub same_as: Option<PathBuf>,
    /// Extended attributes.
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

/// Everything below, by its path from there.
pub fn tree(root: &Path) -> io::Result<BTreeMap<PathBuf, Node>> {
    let mut nodes = BTreeMap::new();
    let mut inodes: BTreeMap<(u64, u64), Vec<PathBuf>> = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            let data = fs::symlink_metadata(&path)?;
            let content = match data.file_type() {
                kind if kind.is_file() => digest(&fs::read(&path)?),
                kind if kind.is_symlink() => fs::read_link(&path)?.to_string_lossy().into_owned(),
                _ => String::new(),
            };
            let name = path.strip_prefix(root).unwrap_or(&path).to_owned();
            if data.is_dir() {
                open.push(path.clone());
            } else if data.nlink() > 1 {
                inodes.entry((data.dev(), data.ino())).or_default().push(name.clone());
            }
            let mtime = (!data.is_dir()).then_some(data.mtime());
            let node = Node {
                mode: data.mode(),
                owner: (data.uid(), data.gid()),
                mtime,
                content,
                same_as: None,
                xattrs: xattrs(&path)?,
            };
            nodes.insert(name, node);
        }
    }
    for mut names in inodes.into_values() {
        names.sort();
        let first = names.first().cloned();
        for name in names.iter().skip(1) {
            if let Some(node) = nodes.get_mut(name) {
                node.same_as = first.clone();
            }
        }
    }
    Ok(nodes)
}

fn xattrs(path: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut names = vec![0; 64 << 10];
    let length = rustix::fs::llistxattr(path, names.as_mut_slice())?;
    let mut all = BTreeMap::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 64 << 10];
        let length = rustix::fs::lgetxattr(path, name, value.as_mut_slice())?;
        value.truncate(length);
        all.insert(String::from_utf8_lossy(name).into_owned(), value);
    }
    Ok(all)
}
