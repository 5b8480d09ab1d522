//! Who may read from this node: whoever shows a ticket that a controller signed, for its own key.
//!
//! Public keys of controllers come from a ConfigMap, and are kept in a file for when the API server is away. Which time it is follows from
//! the orders.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::Client;
use kube::api::Api;
use stoker_api::native::from_core::Tickets;
use stoker_api::peer_keys::NAME;
use stoker_api::{AnyObject, peer_keys};
use stoker_transfer::peer::{Gate, PeerId, Ticket, TicketError, TicketKeys};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::keys::{self, SignerKeys};
use super::time::OrderTime;

/// Whoever shows tickets of unknown signers makes this node ask the API server no more often.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// Where the API server could not answer it is asked again after this time; then after twice as long each time, up to [`ASK_EVERY`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// How often the time is kept while there is no new order.
const KEEP_EVERY: Duration = Duration::from_secs(600);
/// A reader waits meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct TicketGate {
    maps: Api<AnyObject>,
    /// Where the keys are kept.
    file: PathBuf,
    keys: Mutex<SignerKeys>,
    /// Where the time is kept.
    time_file: PathBuf,
    time: Mutex<OrderTime>,
    /// Rung where the time is to be kept.
    aged: Notify,
    /// Held by the one who asks.
    asking: tokio::sync::Mutex<Asking>,
    /// Rung where a ticket of this node itself has an unknown signer.
    early: Notify,
}

impl TicketGate {
    /// With the keys and the time that an earlier life has kept beside its ledger. It blocks, shortly.
    pub(super) fn load(client: Client, namespace: &str, ledger: &Path) -> Self {
        let (file, time_file) = (ledger.with_file_name("peer-keys.json"), ledger.with_file_name("peer-time.json"));
        Self {
            maps: Api::namespaced_with(client, namespace, &peer_keys::resource()),
            keys: Mutex::new(keys::load(&file)),
            file,
            time: Mutex::new(OrderTime::load(&time_file, Instant::now())),
            time_file,
            aged: Notify::new(),
            asking: tokio::sync::Mutex::default(),
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
        if self.time().see(asked, Instant::now()) {
            self.aged.notify_one();
        }
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
            while let Some(again) = self.learn().await {
                sleep_until(again).await;
            }
        }
    }

    /// Keeps the time for the next life of this agent. It never ends.
    pub(super) async fn keep_time(&self) {
        loop {
            tokio::select! {
                () = self.aged.notified() => {}
                () = sleep(KEEP_EVERY) => {}
            }
            let (time, file, now) = (self.time().clone(), self.time_file.clone(), Instant::now());
            let saved = tokio::task::spawn_blocking(move || time.save(&file, now)).await;
            if let Err(problem) = saved.unwrap_or_else(|problem| Err(std::io::Error::other(problem))) {
                tracing::warn!("cannot write {}: {problem}", self.time_file.display());
            }
        }
    }

    fn judge(&self, ticket: &str, caller: PeerId) -> Result<Ticket, TicketError> {
        let now = self.time().now(Instant::now());
        self.keys().at(now).check(ticket, caller, u64::try_from(now.as_second()).unwrap_or(0))
    }

    /// Asks the API server for the keys, unless that was just done. Says when to ask again, if the API server could not answer and may do so soon.
    async fn learn(&self) -> Option<Instant> {
        let mut asking = self.asking.lock().await;
        if !asking.is_due() {
            return asking.again_soon();
        }
        // A caller that goes away meanwhile ends this, too.
        asking.fails();
        let map = match timeout(PATIENCE, self.maps.get_opt(NAME)).await {
            Ok(Ok(map)) => map,
            Ok(Err(problem)) => {
                tracing::warn!("cannot read the ConfigMap {NAME}: {problem}");
                return asking.again_soon();
            }
            Err(_) => {
                tracing::warn!("cannot read the ConfigMap {NAME}: no answer");
                return asking.again_soon();
            }
        };
        asking.succeeds();
        let Some(map) = map else {
            tracing::debug!("there is no ConfigMap {NAME}");
            return None;
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
        None
    }
}

/// When the API server may be asked for keys again.
#[derive(Debug, Default)]
struct Asking {
    again: Option<Instant>,
    /// How long to wait after the last failure, if it failed last.
    pause: Option<Duration>,
}

impl Asking {
    fn is_due(&self) -> bool {
        self.again.is_none_or(|again| again <= Instant::now())
    }

    fn fails(&mut self) {
        let pause = self.pause.map_or(FIRST_PAUSE, |pause| (pause * 2).min(ASK_EVERY));
        *self = Self { again: Some(Instant::now() + pause), pause: Some(pause) };
    }

    fn succeeds(&mut self) {
        *self = Self { again: Some(Instant::now() + ASK_EVERY), pause: None };
    }

    fn again_soon(&self) -> Option<Instant> {
        self.again.filter(|_| self.pause.is_some_and(|pause| pause < ASK_EVERY))
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

#[cfg(test)]
mod tests;
