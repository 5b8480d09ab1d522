//! The agent's memory on disk: what it was ordered and what came of it, so that it goes on across its own restart and
//! with the API server away. One JSON file, readable on call; written whole, synced, then renamed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stoker_api::native::from_core::{self, Tickets};
use stoker_api::native::{NodeObject, SealedLogin};
use stoker_core::model::{Key, LoginId, Order, Report};

use crate::starts::Starts;

/// The format of the file; a newer one is not touched.
const VERSION: u64 = 1;

/// What is remembered.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Ledger {
    /// Of the NodePreheat that the orders are from.
    pub(crate) uid: String,
    /// Its generation: an older one of the same object is refused.
    pub(crate) generation: i64,
    pub(crate) orders: BTreeMap<Key, Order>,
    /// What this node shows to the nodes that they let it read from.
    pub(crate) tickets: Tickets,
    /// The logins that they name, sealed: the key is in a file of its own.
    pub(crate) logins: BTreeMap<LoginId, SealedLogin>,
    pub(crate) reports: BTreeMap<Key, Report>,
    /// What was begun and has not ended.
    pub(crate) starts: Starts,
}

/// Why a ledger cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("the ledger {} cannot be read: {source}; check the disk and who owns it", .path.display())]
    Disk { path: PathBuf, source: io::Error },
    #[error("the ledger {} is of version {version}, this agent knows {VERSION}; update the agent, or move the file away", .path.display())]
    Newer { path: PathBuf, version: u64 },
}

impl Ledger {
    /// Reads the file. One that makes no sense is set aside and said: the API server knows the orders too.
    pub(crate) fn load(path: &Path) -> Result<Self, Unreadable> {
        let text = match fs::read(path) {
            Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(Unreadable::Disk { path: path.into(), source }),
            Ok(text) => text,
        };
        let Ok(value) = serde_json::from_slice::<Value>(&text) else {
            let aside = path.with_extension("broken");
            tracing::warn!("the ledger {} makes no sense; it is now {}", path.display(), aside.display());
            fs::rename(path, &aside).map_err(|source| Unreadable::Disk { path: path.into(), source })?;
            return Ok(Self::default());
        };
        match value.get("version").and_then(Value::as_u64) {
            Some(version) if version > VERSION => Err(Unreadable::Newer { path: path.into(), version }),
            _ => Ok(Self::from_value(&value)),
        }
    }

    fn from_value(value: &Value) -> Self {
        let nodes = value.get("nodePreheat").cloned().unwrap_or_default();
        let object: NodeObject = serde_json::from_value(nodes).unwrap_or_else(|problem| {
            tracing::warn!("the orders in the ledger cannot be read and are left out: {problem}");
            NodeObject::default()
        });
        for problem in &object.broken {
            tracing::warn!("an entry of the ledger cannot be read and is left out: {problem}");
        }
        let NodeObject { orders, tickets, logins, reports, .. } = object;
        let starts = value.get("starts").cloned().and_then(|starts| serde_json::from_value(starts).ok());
        Self {
            uid: value.get("uid").and_then(Value::as_str).unwrap_or_default().into(),
            generation: value.get("generation").and_then(Value::as_i64).unwrap_or_default(),
            orders,
            tickets,
            logins,
            reports,
            starts: starts.unwrap_or_default(),
        }
    }

    /// Writes the file; what was there before stays until all of the new one is on the disk.
    pub(crate) fn save(&self, path: &Path) -> io::Result<()> {
        let value = json!({
            "version": VERSION,
            "uid": self.uid,
            "generation": self.generation,
            "starts": self.starts,
            "nodePreheat": from_core::node_preheat(&self.orders, &self.tickets, &self.logins, &self.reports),
        });
        let part = path.with_extension("part");
        let mut file = File::create(&part)?;
        file.write_all(format!("{value:#}\n").as_bytes())?;
        file.sync_all()?;
        fs::rename(&part, path)?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::order;
    use stoker_core::model::Policy;
    use stoker_core::step::begin;

    fn ledger() -> Ledger {
        let asked = "2026-01-02T03:04:05.678Z".parse().unwrap();
        let mut order = Order { asked, hold: true, ..order() };
        (order.terms.pull.policy, order.terms.pull.bandwidth) = (Policy::Always, Some(1 << 20));
        let report = begin(&order, 1, None, order.asked).report;
        let key = Key::of("r/i:1");
        let mut starts = Starts::default();
        starts.begin(key, order.asked, 0);
        Ledger {
            uid: "u".into(),
            generation: 7,
            orders: BTreeMap::from([(key, order)]),
            tickets: BTreeMap::from([(key, "ticket".into())]),
            logins: BTreeMap::from([(LoginId::new("0a"), SealedLogin { key: "k".into(), sealed: "box".into() })]),
            reports: BTreeMap::from([(key, report)]),
            starts,
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.json");
        assert_eq!(Ledger::load(&path).unwrap(), Ledger::default(), "none is an empty one");
        ledger().save(&path).unwrap();
        assert_eq!(Ledger::load(&path).unwrap(), ledger());
    }

    #[test]
    fn a_cut_off_ledger_is_set_aside_and_a_newer_one_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.json");
        ledger().save(&path).unwrap();
        let whole = fs::read(&path).unwrap();
        for cut in [0, 1, whole.len() / 2] {
            fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(Ledger::load(&path).unwrap(), Ledger::default(), "cut at {cut}");
            assert!(!path.exists() && path.with_extension("broken").exists());
        }
        fs::write(&path, r#"{"version": 2}"#).unwrap();
        assert!(matches!(Ledger::load(&path), Err(Unreadable::Newer { version: 2, .. })));
        assert!(path.exists());
    }
}
