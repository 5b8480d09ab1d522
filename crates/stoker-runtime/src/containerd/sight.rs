//! Which files this process sees as containerd sees them. In: the process of containerd, and a path. Out: whether what is at the
//! path here is what containerd finds there, also where nothing is there.
//!
//! An agent in a pod has a root directory of its own and sees of the node what is mounted into the pod, at the node's
//! paths. A file that is missing in the pod may be there for containerd. This file reads no file's content.

use std::collections::VecDeque;
use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

/// The most symbolic links that are followed in one path, as in the kernel.
const LINKS: usize = 40;
/// Every container has these mounts of its own.
const OWN: [&str; 3] = ["/proc", "/sys", "/dev"];

/// What this process sees of containerd's files. The default sees nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct VisibleFiles {
    /// Both processes have the same mounts, so every path means the same.
    shared: bool,
    /// Where something is mounted in this process's own mounts, except the root directory.
    mounts: Vec<PathBuf>,
}

impl VisibleFiles {
    /// What this process sees of the files of another one. It blocks, shortly.
    pub(super) fn of(pid: Option<i32>) -> Self {
        let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
        let theirs = pid.and_then(|pid| namespace(&pid.to_string()));
        let shared = theirs.is_some() && theirs == namespace("self");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self { shared, mounts: mounted(&mounts) }
    }

    /// Whether containerd finds at this path what is here, links followed.
    pub(super) fn covers(&self, path: &Path) -> bool {
        if !path.is_absolute() {
            return false;
        }
        if self.shared {
            return true;
        }
        let mut done = PathBuf::from("/");
        let mut todo: VecDeque<PathBuf> = parts(path).collect();
        let mut links = 0;
        while let Some(part) = todo.pop_front() {
            if part.as_os_str() == ".." {
                done.pop();
                continue;
            }
            let next = done.join(&part);
            match fs::symlink_metadata(&next) {
                Ok(meta) if meta.is_symlink() => {
                    let Ok(target) = fs::read_link(&next) else { return false };
                    links += 1;
                    if links > LINKS || !self.below_a_mount(&next) {
                        return false;
                    }
                    if target.is_absolute() {
                        done = PathBuf::from("/");
                    }
                    for part in parts(&target).rev() {
                        todo.push_front(part);
                    }
                }
                Ok(_) => done = next,
                Err(problem) if matches!(problem.kind(), ErrorKind::NotFound) => done = next,
                Err(_) => return false,
            }
        }
        self.below_a_mount(&done)
    }

    fn below_a_mount(&self, path: &Path) -> bool {
        !OWN.iter().any(|own| path.starts_with(own)) && self.mounts.iter().any(|mount| path.starts_with(mount))
    }

    /// One that has the same mounts.
    #[cfg(test)]
    pub(super) fn whole() -> Self {
        Self { shared: true, mounts: Vec::new() }
    }

    /// One that sees what is mounted here.
    #[cfg(test)]
    pub(super) fn through(mounts: &[&Path]) -> Self {
        Self { shared: false, mounts: mounts.iter().map(|path| path.to_path_buf()).collect() }
    }
}

/// The names in a path, and the steps up.
fn parts(path: &Path) -> impl DoubleEndedIterator<Item = PathBuf> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(PathBuf::from(name)),
        Component::ParentDir => Some(PathBuf::from("..")),
        _ => None,
    })
}

/// The places of a `mountinfo` file: the fifth word of each line, with blanks and the like in octal.
fn mounted(mountinfo: &str) -> Vec<PathBuf> {
    let places = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    let unescape = |place: &str| {
        let written = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
        written.iter().fold(place.to_owned(), |place, (octal, letter)| place.replace(octal, letter))
    };
    places.map(unescape).filter(|place| place != "/").map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_pod_sees_what_is_mounted_and_links_only_where_they_lead_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let (mount, other) = (dir.join("mount"), dir.join("other"));
        for made in [mount.join("a"), other.clone()] {
            fs::create_dir_all(made).unwrap();
        }
        symlink("a", mount.join("inside")).unwrap();
        symlink("../mount/./a", mount.join("around")).unwrap();
        symlink("../other", mount.join("outside")).unwrap();
        symlink("/nowhere/at/all", mount.join("dangling")).unwrap();
        symlink("loop", mount.join("loop")).unwrap();
        symlink(&mount, other.join("back")).unwrap();
        fs::write(mount.join("file"), "").unwrap();
        let sight = VisibleFiles::through(&[&mount]);
        for (path, seen) in [
            ("mount", true),
            ("mount/a", true),
            ("mount/missing/bin", true),
            ("mount/inside", true),
            ("mount/around/missing", true),
            ("mount/a/../../other", false),
            ("mount/outside/bin", false),
            ("mount/dangling", false),
            ("mount/loop", false),
            ("mount/file/bin", false),
            ("other", false),
            ("other/back/a", false),
            ("mounts", false),
        ] {
            assert_eq!(sight.covers(&dir.join(path)), seen, "{path}");
        }
        assert!(VisibleFiles::whole().covers(&dir.join("other")));
        assert!(!VisibleFiles::whole().covers(Path::new("relative")), "it is meant from containerd's own directory");
        assert!(!VisibleFiles::default().covers(&mount));
        assert!(
            !VisibleFiles::through(&[Path::new("/proc")]).covers(Path::new("/proc/judges")),
            "it is this container's own"
        );
    }

    #[test]
    fn mounts_are_read_and_the_root_directory_is_none() {
        let text = "22 1 0:20 / / rw - overlay overlay rw\n\
                    23 22 8:1 /opt/containerd /opt/containerd ro,relatime master:1 - ext4 /dev/sda1 rw\n\
                    24 22 8:1 /x /a\\040b rw - ext4 /dev/sda1 rw\nshort line\n";
        assert_eq!(mounted(text), [PathBuf::from("/opt/containerd"), "/a b".into()]);
    }

    #[test]
    fn the_same_process_has_the_same_mounts_and_one_that_is_gone_has_none() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(VisibleFiles::of(Some(own)).shared);
        assert!(!VisibleFiles::of(None).shared);
        assert!(!VisibleFiles::of(Some(i32::MAX)).shared);
    }
}
