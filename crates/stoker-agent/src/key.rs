//! The private key of this node: a file beside the ledger that only its owner can read. Logins for the node are sealed to it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use stoker_transfer::NodeKey;

/// The key in this file. Where there is none, or one that cannot be used, a new one is made and kept: the agent publishes it, and
/// the controller seals logins to it again.
pub(crate) fn load(path: &Path) -> NodeKey {
    match fs::read(path) {
        Ok(bytes) => match NodeKey::from_bytes(&bytes) {
            Ok(key) => return key,
            Err(problem) => tracing::warn!("the key in {} cannot be used: {problem}; making a new one", path.display()),
        },
        Err(problem) if problem.kind() == io::ErrorKind::NotFound => {
            tracing::debug!("making the key of this node, {}", path.display());
        }
        Err(problem) => tracing::warn!("the key {} cannot be read: {problem}; making a new one", path.display()),
    }
    let key = NodeKey::generate();
    if let Err(problem) = save(&key, path) {
        tracing::warn!("cannot keep the key {}: {problem}; the next start makes another one", path.display());
    }
    key
}

/// Writes the file as a whole; nobody else can read it at any time.
fn save(key: &NodeKey, path: &Path) -> io::Result<()> {
    let part = path.with_extension("key.part");
    match fs::remove_file(&part) {
        Err(problem) if problem.kind() != io::ErrorKind::NotFound => return Err(problem),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
    file.write_all(&key.to_bytes())?;
    file.sync_all()?;
    fs::rename(&part, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_key_is_kept_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.key");
        let made = load(&path).public();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(load(&path).public(), made);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn a_key_that_cannot_be_used_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.key");
        let lost = load(&path).public();
        for broken in [&b""[..], b"short", &[7; 33]] {
            fs::write(&path, broken).unwrap();
            let new = load(&path).public();
            assert_ne!(new, lost);
            assert_eq!(load(&path).public(), new);
        }
        // Somebody's file under the name that is written first.
        fs::remove_file(&path).unwrap();
        fs::write(path.with_extension("key.part"), "x").unwrap();
        let new = load(&path).public();
        assert_eq!(load(&path).public(), new);
        let nowhere = dir.path().join("missing/node.key");
        assert_ne!(load(&nowhere).public(), load(&nowhere).public(), "without a disk each start makes one");
    }
}
