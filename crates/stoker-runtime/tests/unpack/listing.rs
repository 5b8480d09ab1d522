//! Everything that can be said about a directory tree, as text to compare.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use crate::containerd::digest;

/// Times after this are those of the test, which differ from run to run.
const NOW: i64 = 1_700_000_000;

/// One line a path, `.` for the root: kind, mode, owner, size, content, device, time, link's target, the first path
/// that is the same file, extended attributes.
pub(crate) fn listing(root: &Path) -> BTreeMap<String, String> {
    let mut lines = BTreeMap::new();
    let mut first = BTreeMap::new();
    walk(root, Path::new("."), &mut lines, &mut first);
    lines
}

fn walk(root: &Path, path: &Path, lines: &mut BTreeMap<String, String>, first: &mut BTreeMap<u64, String>) {
    let full = root.join(path);
    let name = path.as_os_str().as_bytes().escape_ascii().to_string();
    let meta = fs::symlink_metadata(&full).unwrap();
    let kind = meta.file_type();
    let what = match () {
        () if kind.is_dir() => "dir".to_string(),
        () if kind.is_file() => format!("file {} {}", meta.len(), digest(&fs::read(&full).unwrap())),
        () if kind.is_symlink() => format!("link {:?}", fs::read_link(&full).unwrap()),
        () if kind.is_fifo() => "fifo".to_string(),
        () if kind.is_char_device() => format!("char {:#x}", meta.rdev()),
        () => format!("block {:#x}", meta.rdev()),
    };
    let time = match meta.mtime() {
        now if now > NOW => "now".to_string(),
        seconds => format!("{seconds}.{:09}", meta.mtime_nsec()),
    };
    let same = match kind.is_dir() {
        true => String::new(),
        false => format!(" {}x {}", meta.nlink(), first.entry(meta.ino()).or_insert_with(|| name.clone())),
    };
    let (mode, uid, gid) = (meta.mode() & 0o7777, meta.uid(), meta.gid());
    lines.insert(name, format!("{what} {mode:o} {uid}:{gid} {time}{same}{}", xattrs(&full)));
    if kind.is_dir() {
        let mut inner: Vec<_> = fs::read_dir(&full).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        inner.sort();
        for entry in inner {
            walk(root, &path.join(entry), lines, first);
        }
    }
}

fn xattrs(path: &Path) -> String {
    let mut names = vec![0; 65536];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let mut found = Vec::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 65536];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        found.push(format!(" {}={}", name.escape_ascii(), value[..length].escape_ascii()));
    }
    found.sort();
    found.concat()
}

/// Fails with the lines that differ.
pub(crate) fn assert_same(what: &str, ours: &Path, theirs: &Path) {
    let (ours, theirs) = (listing(ours), listing(theirs));
    let mut paths: Vec<_> = ours.keys().chain(theirs.keys()).collect();
    paths.sort();
    paths.dedup();
    let none = "nothing".to_string();
    let different: Vec<String> = paths
        .into_iter()
        .map(|path| (path, ours.get(path).unwrap_or(&none), theirs.get(path).unwrap_or(&none)))
        .filter(|(_, ours, theirs)| ours != theirs)
        .map(|(path, ours, theirs)| format!("{path}\n  ours       {ours}\n  containerd {theirs}"))
        .collect();
    assert!(different.is_empty(), "{what}:\n{}", different.join("\n"));
}
