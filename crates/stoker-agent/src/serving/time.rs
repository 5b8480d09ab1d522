//! Which time it is, as far as tickets are concerned. The times of orders come in; a time that is not later than the controller's goes out. It reads no
//! wall clock: nodes whose clocks are wrong serve as others do. How long each order has been known is kept in a file, so that a ticket whose time is over stays
//! over when the agent starts anew.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use stoker_core::model::after;
use tokio::time::Instant;

/// The time as the controller has it, at least: when it last asked something of this node, and how long ago this node saw that.
#[derive(Clone, Debug, Default)]
pub(super) struct OrderTime(BTreeMap<Timestamp, SeenOrder>);

/// Since when an order is known.
#[derive(Clone, Copy, Debug)]
struct SeenOrder {
    since: Instant,
    /// For how long earlier lives of this agent have known it.
    before: Duration,
}

impl SeenOrder {
    fn age(&self, now: Instant) -> Duration {
        self.before.saturating_add(now.saturating_duration_since(self.since))
    }
}

impl OrderTime {
    /// These are the times of the orders in hand. Without any, the last ones stay. Says whether there is a new one.
    pub(super) fn see(&mut self, asked: impl Iterator<Item = Timestamp>, now: Instant) -> bool {
        let new = SeenOrder { since: now, before: Duration::ZERO };
        let known = |asked: Timestamp| (asked, self.0.get(&asked).copied().unwrap_or(new));
        let seen: BTreeMap<Timestamp, SeenOrder> = asked.map(known).collect();
        let has_new = seen.keys().any(|asked| !self.0.contains_key(asked));
        if !seen.is_empty() {
            self.0 = seen;
        }
        has_new
    }

    pub(super) fn now(&self, now: Instant) -> Timestamp {
        let all = self.0.iter().map(|(asked, seen)| after(*asked, seen.age(now)));
        all.max().unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// What [`save`](Self::save) wrote. Without a file that can be read, the time is that of the orders in hand.
    pub(super) fn load(file: &Path, now: Instant) -> Self {
        let text = match fs::read(file) {
            Ok(text) => text,
            Err(problem) => {
                if problem.kind() != io::ErrorKind::NotFound {
                    tracing::warn!("{} cannot be read, what it says is not used: {problem}", file.display());
                }
                return Self::default();
            }
        };
        let ages: BTreeMap<String, u64> = serde_json::from_slice(&text).unwrap_or_else(|problem| {
            tracing::warn!("{} makes no sense and is not used: {problem}", file.display());
            BTreeMap::new()
        });
        let seen = |(asked, seconds): (String, u64)| {
            Some((asked.parse().ok()?, SeenOrder { since: now, before: Duration::from_secs(seconds) }))
        };
        Self(ages.into_iter().filter_map(seen).collect())
    }

    /// Writes the seconds for which each order has been known, as a whole file.
    pub(super) fn save(&self, file: &Path, now: Instant) -> io::Result<()> {
        let ages = self.0.iter().map(|(asked, seen)| (asked.to_string(), seen.age(now).as_secs()));
        let ages: BTreeMap<String, u64> = ages.collect();
        let part = file.with_extension("json.part");
        let mut out = File::create(&part)?;
        out.write_all(&serde_json::to_vec_pretty(&ages)?)?;
        out.sync_all()?;
        fs::rename(part, file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[tokio::test(start_paused = true)]
    async fn the_time_is_that_of_the_orders_and_runs_on() {
        let mut time = OrderTime::default();
        let now = || Instant::now();
        assert_eq!(time.now(now()), at(0));
        assert!(time.see([at(1000), at(500)].into_iter(), now()));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(time.now(now()), at(1060));
        assert!(time.see([at(1000), at(1010)].into_iter(), now()));
        assert_eq!(time.now(now()), at(1060), "a later order that was seen late sets nothing back");
        time.see([at(9000)].into_iter(), now());
        assert_eq!(time.now(now()), at(9000));
        assert!(!time.see([].into_iter(), now()));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(time.now(now()), at(9005), "no order says nothing");
        time.see([at(1000)].into_iter(), now());
        assert_eq!(time.now(now()), at(1000), "a wrong clock of a controller does not count for ever");
    }

    #[tokio::test(start_paused = true)]
    async fn a_restart_sets_nothing_back() {
        let dir = tempfile::tempdir().unwrap();
        let (file, now) = (dir.path().join("peer-time.json"), || Instant::now());
        let mut time = OrderTime::load(&file, now());
        assert_eq!(time.now(now()), at(0), "there is no file");
        time.see([at(1000), at(500)].into_iter(), now());
        tokio::time::sleep(Duration::from_secs(3600)).await;
        time.save(&file, now()).unwrap();
        let mut time = OrderTime::load(&file, now());
        assert_eq!(time.now(now()), at(4600), "before it knows its orders");
        assert!(!time.see([at(1000), at(500)].into_iter(), now()));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(time.now(now()), at(4660));
        time.see([at(500)].into_iter(), now());
        assert_eq!(time.now(now()), at(4160), "the older order was known for as long");
        for broken in ["", "{", "[1]", r#"{"x": 5}"#, r#"{"1970-01-01T00:00:00Z": -1}"#] {
            fs::write(&file, broken).unwrap();
            assert_eq!(OrderTime::load(&file, now()).now(now()), at(0), "{broken}");
        }
        fs::write(&file, format!(r#"{{"1970-01-01T00:00:00Z": {}}}"#, u64::MAX)).unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(OrderTime::load(&file, now()).now(now()) > at(4660), "it ends nothing");
    }
}
