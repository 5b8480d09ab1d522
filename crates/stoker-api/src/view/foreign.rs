//! Whether the original controller of a dialect is at work. Rows of signs and the time come in; dialects that are left alone, and by
//! whom, go out. Nothing here has a clock: time is how long somebody has been looking.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use stoker_core::text;

use super::{Heard, ObjectName, Query, Row, Rows};
use crate::dialect::{DIALECTS, Dialect};
use crate::sign::{HandOver, LeaseRow, Sign};

/// A Lease that does not change for this long has no holder that is alive. Only our own clock is asked: clocks of two machines
/// cannot be compared.
const ALIVE_FOR: Duration = Duration::from_secs(60);

/// A Lease, and when it was last seen to change.
#[derive(Clone, Debug)]
struct Watched {
    row: LeaseRow,
    changed: Duration,
    alive: bool,
}

/// What is known of original controllers.
#[derive(Clone, Debug, Default)]
pub(super) struct Foreign {
    /// Signs are not looked at: somebody else has, and says what is left alone.
    is_told: bool,
    pub(super) handed_over: BTreeMap<&'static str, HandOver>,
    leases: BTreeMap<(&'static str, ObjectName), Watched>,
    /// Dialects of which no sign was listed yet, though their objects may have been.
    pub(super) unknown: BTreeSet<&'static str>,
}

impl Foreign {
    /// Looks at no signs.
    pub(super) fn told() -> Self {
        Self { is_told: true, ..Self::default() }
    }

    /// The signs of a dialect that count.
    fn signs(&self, dialect: &'static Dialect) -> impl Iterator<Item = &'static Sign> + use<> {
        let hand_over = self.handed_over.get(dialect.name).copied().unwrap_or_default();
        let looked_at = if self.is_told { &[] } else { dialect.signs };
        looked_at.iter().filter(move |sign| sign.counts(hand_over))
    }

    /// The queries of signs: of dialects whose kinds an API server has.
    pub(super) fn wanted(&self, rows: &Rows) -> impl Iterator<Item = Query> {
        DIALECTS
            .iter()
            .filter(|dialect| is_served(dialect, rows))
            .flat_map(|dialect| self.signs(dialect).map(|sign| Query::all(sign.kind())))
    }

    /// Looks at the signs of every dialect. Returns those dialects whose signs are looked at, each with what was seen of an original
    /// controller that is at work; none where nothing was.
    pub(super) fn look(&mut self, rows: &Rows, now: Duration) -> Vec<(&'static str, Option<String>)> {
        let mut all = Vec::new();
        let mut leases = BTreeMap::new();
        for dialect in DIALECTS {
            let signs: Vec<&Sign> = self.signs(dialect).collect();
            if signs.is_empty() {
                self.unknown.remove(dialect.name);
                continue;
            }
            let heard = |sign: &&Sign| rows.heard(&Query::all(sign.kind()));
            let unknown = |heard: Heard| matches!(heard, Heard::Unlisted | Heard::Deaf { listed: false });
            match signs.iter().map(heard).any(unknown) {
                true => self.unknown.insert(dialect.name),
                false => self.unknown.remove(dialect.name),
            };
            let mut seen = Vec::new();
            for sign in signs {
                let query = Query::all(sign.kind());
                let deaf = matches!(rows.heard(&query), Heard::Deaf { .. });
                for (name, row) in rows.of(&query).filter(|(name, _)| sign.is_in(&name.0)) {
                    match row {
                        Row::Lease(row) => {
                            let id = (sign.kind().name, name.clone());
                            let lease = watch(self.leases.get(&id), row, deaf, now);
                            seen.extend(said_of_lease(&lease, name));
                            leases.insert(id, lease);
                        }
                        Row::Webhook(kinds) => seen.extend(said_of_webhook(dialect, sign, kinds, name)),
                        _ => {}
                    }
                }
            }
            let seen = (!seen.is_empty()).then(|| text::message(&seen.join("; ")));
            all.push((dialect.name, seen));
        }
        self.leases = leases;
        all
    }

    /// When a Lease is dead if it does not change until then.
    pub(super) fn wake(&self) -> Option<Duration> {
        self.leases.values().filter(|lease| lease.alive).map(|lease| lease.changed + ALIVE_FOR).min()
    }
}

/// Whether an API server has objects of this dialect, as far as that is known.
fn is_served(dialect: &Dialect, rows: &Rows) -> bool {
    let mut heard = dialect.kinds.iter().chain(dialect.nodes).map(|kind| rows.heard(&Query::all(&kind.kind)));
    heard.any(|heard| matches!(heard, Heard::Listed | Heard::Deaf { .. }))
}

/// A Lease as it is now, after what was known of it. One that is seen for the first time counts from then on: nobody knows yet whether
/// it changes. While nothing can be heard, a Lease that was alive stays alive.
fn watch(before: Option<&Watched>, row: &LeaseRow, deaf: bool, now: Duration) -> Watched {
    let changed = match before {
        Some(before) if before.row == *row && !(deaf && before.alive) => before.changed,
        _ => now,
    };
    let alive = row.holder.is_some() && now < changed + ALIVE_FOR;
    Watched { row: row.clone(), changed, alive }
}

fn said_of_lease(lease: &Watched, (namespace, name): &ObjectName) -> Option<String> {
    let holder = lease.row.holder.as_ref().filter(|_| lease.alive)?;
    Some(format!("the Lease {namespace}/{name} is renewed by {holder}"))
}

fn said_of_webhook(
    dialect: &Dialect,
    sign: &Sign,
    kinds: &BTreeSet<&'static str>,
    (_, name): &ObjectName,
) -> Option<String> {
    let named = dialect.kinds.iter().chain(dialect.nodes).filter(|kind| kinds.contains(kind.kind.name));
    let named: Vec<String> = named.map(|kind| kind.kind.newest().plural).collect();
    (!named.is_empty()).then(|| format!("the {} {name} names {}", sign.kind().name, named.join(" and ")))
}

#[cfg(test)]
mod tests;
