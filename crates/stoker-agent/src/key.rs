//! The private keys of this node, in files beside the ledger that only their owner can read. Logins for the node are sealed to one of them;
//! by the other the node proves to other nodes who it is.

use std::convert::Infallible;
use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use stoker_transfer::NodeKey;
use stoker_transfer::peer::{NoPeerKey, PeerIdentity};

/// The key to which logins are sealed. Where it is a new one, the agent publishes it, and the controller seals logins to it again.
pub(crate) fn load(path: &Path) -> NodeKey {
    let make = || Ok::<_, Infallible>(NodeKey::generate());
    match kept(path, NodeKey::from_bytes, make, |key| key.to_bytes().to_vec()) {
        Ok(key) => key,
        Err(never) => match never {},
    }
}

/// The key by which other nodes know this one. Where it is a new one, the agent publishes it, and gets new tickets.
pub(crate) fn load_peer(path: &Path) -> Result<PeerIdentity, NoPeerKey> {
    kept(path, PeerIdentity::from_bytes, PeerIdentity::generate, |key| key.to_bytes().to_vec())
}

/// The key in this file. Where there is none, or one that cannot be used, a new one is made and kept.
fn kept<K, P: Display, E>(
    path: &Path,
    read: impl FnOnce(&[u8]) -> Result<K, P>,
    make: impl FnOnce() -> Result<K, E>,
    bytes: impl FnOnce(&K) -> Vec<u8>,
) -> Result<K, E> {
    match fs::read(path) {
        Ok(bytes) => match read(&bytes) {
            Ok(key) => return Ok(key),
            Err(problem) => tracing::warn!("the key in {} cannot be used: {problem}; making a new one", path.display()),
        },
        Err(problem) if problem.kind() == io::ErrorKind::NotFound => {
            tracing::debug!("making the key of this node, {}", path.display());
        }
        Err(problem) => tracing::warn!("the key {} cannot be read: {problem}; making a new one", path.display()),
    }
    let key = make()?;
    if let Err(problem) = save(&bytes(&key), path) {
        tracing::warn!("cannot keep the key {}: {problem}; the next start makes another one", path.display());
    }
    Ok(key)
}

/// Writes the file as a whole; nobody else can read it at any time.
fn save(key: &[u8], path: &Path) -> io::Result<()> {
    let part = path.with_extension("key.part");
    match fs::remove_file(&part) {
        Err(problem) if problem.kind() != io::ErrorKind::NotFound => return Err(problem),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
    file.write_all(key)?;
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
        let path = dir.path().join("peer.key");
        let made = load_peer(&path).unwrap().id();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(load_peer(&path).unwrap().id(), made);
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
