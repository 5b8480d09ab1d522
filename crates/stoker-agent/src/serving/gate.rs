//! Who may read from this node: whoever shows a ticket that a controller signed, for its own key.
//!
//! Public keys of controllers come from a ConfigMap, and are kept in a file for when the API server is away. Which time it is follows from
//! the orders: nodes whose clocks are wrong serve as others do.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::api::Api;
use stoker_api::native::from_core::Tickets;
use stoker_api::peer_keys::NAME;
use stoker_api::{AnyObject, peer_keys};
use stoker_transfer::peer::{Gate, PeerId, Ticket, TicketError, TicketKeys};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::keys::{self, SignerKeys};
use crate::settings::Settings;

/// Whoever shows tickets of unknown signers makes this node ask the API server no more often.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// A reader waits meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct TicketGate {
    maps: Api<AnyObject>,
    /// Where the keys are kept.
    file: PathBuf,
    keys: Mutex<SignerKeys>,
    time: Mutex<OrderTime>,
    /// When the API server was last asked; held by the one who asks.
    asked: tokio::sync::Mutex<Option<Instant>>,
    /// Rung where a ticket of this node itself has an unknown signer.
    early: Notify,
}

impl TicketGate {
    /// With the keys that an earlier life has kept. It blocks, shortly.
    pub(super) fn load(settings: &Settings, namespace: &str) -> Self {
        let file = settings.ledger.with_file_name("peer-keys.json");
        Self {
            maps: Api::namespaced_with(settings.client.clone(), namespace, &peer_keys::resource()),
            keys: Mutex::new(keys::load(&file)),
            file,
            time: Mutex::default(),
            asked: tokio::sync::Mutex::default(),
            early: Notify::new(),
        }
    }

    fn keys(&self) -> MutexGuard<'_, SignerKeys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn time(&self) -> MutexGuard<'_, OrderTime> {
        self.time.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These are the orders and tickets in hand.
    pub(crate) fn set_orders(&self, asked: impl Iterator<Item = Timestamp>, tickets: &Tickets) {
        self.time().see(asked, Instant::now());
        let keys = self.keys();
        let signers = tickets.values().filter_map(|ticket| TicketKeys::signer(ticket));
        // Others show tickets of the same controller soon.
        if signers.into_iter().any(|signer| !keys.knows(signer)) {
            self.early.notify_one();
        }
    }

    /// Learns the keys of new controllers before others show their tickets. It never ends.
    pub(super) async fn learn_early(&self) {
        loop {
            self.early.notified().await;
            self.learn().await;
        }
    }

    fn judge(&self, ticket: &str, caller: PeerId) -> Result<Ticket, TicketError> {
        let now = self.time().now(Instant::now());
        self.keys().at(now).check(ticket, caller, u64::try_from(now.as_second()).unwrap_or(0))
    }

    /// Asks the API server for the keys, unless that was just done.
    async fn learn(&self) {
        let mut asked = self.asked.lock().await;
        if asked.is_some_and(|at| at.elapsed() < ASK_EVERY) {
            return;
        }
        *asked = Some(Instant::now());
        let map = match timeout(PATIENCE, self.maps.get_opt(NAME)).await {
            Ok(Ok(Some(map))) => map,
            Ok(Ok(None)) => return tracing::debug!("there is no ConfigMap {NAME}"),
            Ok(Err(problem)) => return tracing::warn!("cannot read the ConfigMap {NAME}: {problem}"),
            Err(_) => return tracing::warn!("cannot read the ConfigMap {NAME}: no answer"),
        };
        let new = SignerKeys::of(peer_keys::entries(&map));
        let changed = std::mem::replace(&mut *self.keys(), new.clone()) != new;
        if changed {
            let file = self.file.clone();
            let saved = tokio::task::spawn_blocking(move || keys::save(&new, &file)).await;
            if let Err(problem) = saved.unwrap_or_else(|problem| Err(std::io::Error::other(problem))) {
                tracing::warn!("cannot write {}: {problem}", self.file.display());
            }
        }
    }
}

impl Gate for TicketGate {
    fn check<'a>(&'a self, ticket: &'a str, caller: PeerId) -> BoxFuture<'a, Result<Ticket, TicketError>> {
        async move {
            match self.judge(ticket, caller) {
                Err(TicketError::UnknownSigner(_)) => {
                    self.learn().await;
                    self.judge(ticket, caller)
                }
                judged => judged,
            }
        }
        .boxed()
    }
}

/// The time as the controller has it, at least: when it last asked something of this node, and how long ago this node saw that.
#[derive(Debug, Default)]
struct OrderTime(BTreeMap<Timestamp, Instant>);

impl OrderTime {
    /// These are the times of the orders in hand. Without any, the last ones stay.
    fn see(&mut self, asked: impl Iterator<Item = Timestamp>, now: Instant) {
        let asked: BTreeMap<Timestamp, Instant> =
            asked.map(|asked| (asked, self.0.get(&asked).copied().unwrap_or(now))).collect();
        if !asked.is_empty() {
            self.0 = asked;
        }
    }

    fn now(&self, now: Instant) -> Timestamp {
        let all = self.0.iter().map(|(asked, seen)| stoker_core::model::after(*asked, now.duration_since(*seen)));
        all.max().unwrap_or(Timestamp::UNIX_EPOCH)
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
        time.see([at(1000), at(500)].into_iter(), now());
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(time.now(now()), at(1060));
        time.see([at(1000), at(1010)].into_iter(), now());
        assert_eq!(time.now(now()), at(1060), "a later order that was seen late sets nothing back");
        time.see([at(9000)].into_iter(), now());
        assert_eq!(time.now(now()), at(9000));
        time.see([].into_iter(), now());
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(time.now(now()), at(9005), "no order says nothing");
        time.see([at(1000)].into_iter(), now());
        assert_eq!(time.now(now()), at(1000), "a wrong clock of a controller does not count for ever");
    }
}
