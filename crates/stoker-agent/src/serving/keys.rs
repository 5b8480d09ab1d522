//! The keys of controllers, by which tickets are checked. Entries of the ConfigMap come in; keys that are good at a time go out. The form of
//! an entry is [`PeerKeyEntry`]'s.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use jiff::Timestamp;
use stoker_api::peer_keys::PeerKeyEntry;
use stoker_transfer::peer::ticket::SignerId;
use stoker_transfer::peer::{PeerId, TicketKey, TicketKeys};

/// More than controllers ever write.
const MOST: usize = 64;

/// Keys with the times until which their tickets may live.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SignerKeys(Vec<(TicketKey, Timestamp)>);

impl SignerKeys {
    /// From entries; those that make no sense are left out.
    pub(super) fn of(entries: BTreeMap<String, String>) -> Self {
        let read = |(signer, text): (String, String)| {
            let entry = entry(&signer, &text);
            if entry.is_none() {
                tracing::warn!("the key of signer {signer:?} cannot be read and is left out");
            }
            entry
        };
        Self(entries.into_iter().take(MOST).filter_map(read).collect())
    }

    /// Whether the key of this signer is known.
    pub(super) fn knows(&self, signer: SignerId) -> bool {
        self.0.iter().any(|(key, _)| key.id() == signer)
    }

    /// The keys that are good at this time.
    pub(super) fn at(&self, now: Timestamp) -> TicketKeys {
        self.0.iter().filter(|(_, until)| *until > now).map(|(key, _)| *key).collect()
    }

    fn entries(&self) -> BTreeMap<String, String> {
        let entry = |(key, until): &(TicketKey, Timestamp)| {
            (key.id().to_string(), PeerKeyEntry { key: key.0.to_string(), until: *until }.to_string())
        };
        self.0.iter().map(entry).collect()
    }
}

fn entry(signer: &str, text: &str) -> Option<(TicketKey, Timestamp)> {
    let PeerKeyEntry { key, until } = text.parse().ok()?;
    let key = TicketKey(key.parse::<PeerId>().ok()?);
    (key.id().to_string() == signer).then_some((key, until))
}

/// The keys that [`save`] wrote. Without a file that can be read there are none: the API server has them.
pub(super) fn load(file: &Path) -> SignerKeys {
    let text = match fs::read(file) {
        Ok(text) => text,
        Err(problem) => {
            if problem.kind() != io::ErrorKind::NotFound {
                tracing::warn!("{} cannot be read, what it says is not used: {problem}", file.display());
            }
            return SignerKeys::default();
        }
    };
    serde_json::from_slice(&text).map(SignerKeys::of).unwrap_or_default()
}

/// Writes the file as a whole.
pub(super) fn save(keys: &SignerKeys, file: &Path) -> io::Result<()> {
    let part = file.with_extension("json.part");
    let mut out = File::create(&part)?;
    out.write_all(&serde_json::to_vec_pretty(&keys.entries())?)?;
    out.sync_all()?;
    fs::rename(part, file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;
    use stoker_transfer::peer::{PeerIdentity, TicketError, TicketSigner};

    #[test]
    fn keys_are_good_until_their_time_and_read_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("peer-keys.json");
        assert_eq!(load(&file), SignerKeys::default());
        let [signer, other] = [0; 2].map(|_| TicketSigner::generate().unwrap());
        let text = |signer: &TicketSigner| format!("{} {}", signer.public().0, at(1000));
        let keys = SignerKeys::of(BTreeMap::from([
            (signer.public().id().to_string(), text(&signer)),
            ("00000000".into(), text(&other)),
            ("x".into(), String::new()),
        ]));
        assert!(keys.knows(signer.public().id()) && !keys.knows(other.public().id()), "its name is another one");
        save(&keys, &file).unwrap();
        assert_eq!(load(&file), keys);
        let reader = PeerIdentity::generate().unwrap().id();
        let root = format!("sha256:{}", "a".repeat(64)).parse().unwrap();
        let ticket = signer.sign(&root, reader, 5000).unwrap();
        assert!(keys.at(at(999)).check(&ticket, reader, 999).is_ok());
        let unknown = TicketError::UnknownSigner(signer.public().id());
        assert_eq!(keys.at(at(1000)).check(&ticket, reader, 1000), Err(unknown));
        fs::write(&file, "{").unwrap();
        assert_eq!(load(&file), SignerKeys::default());
    }
}
