//! Who may read from this node: whoever shows a ticket that a controller signed, for its own key.
//!
//! Public keys of controllers come from a ConfigMap, and are kept in a file for when the API server is away. Which time it is follows from
//! the orders.

use std::collections::BTreeSet;
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
use stoker_transfer::peer::{Gate, PeerId, SignerId, Ticket, TicketError, TicketKeys};
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
/// No more unknown signers than these are remembered: anybody may make up others.
const MOST_UNKNOWN: usize = 1024;

pub(crate) struct TicketGate {
    maps: Api<AnyObject>,
    /// Where the keys are kept.
    file: PathBuf,
    keys: Mutex<SignerKeys>,
    unknown: Mutex<UnknownSigners>,
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
            unknown: Mutex::default(),
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

    fn unknown(&self) -> MutexGuard<'_, UnknownSigners> {
        self.unknown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn time(&self) -> MutexGuard<'_, OrderTime> {
        self.time.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These are the orders and tickets in hand.
    pub(crate) fn set_orders(&self, asked: impl Iterator<Item = Timestamp>, tickets: &Tickets) {
        if self.time().see(asked, Instant::now()) {
            self.aged.notify_one();
        }
        let own: BTreeSet<SignerId> = {
            let (keys, own) = (self.keys(), tickets.values().filter_map(|ticket| TicketKeys::signer(ticket)));
            own.filter(|signer| !keys.knows(*signer)).collect()
        };
        // Others show tickets of the same controller soon.
        if self.unknown().set_own(own) {
            self.early.notify_one();
        }
    }

    /// Learns the keys of new controllers before others show their tickets. It never ends.
    pub(super) async fn learn_early(&self) {
        loop {
            self.early.notified().await;
            loop {
                let asking = self.learn().await;
                if !self.unknown().lacks_own() || asking.is_long_away() {
                    break;
                }
                sleep_until(asking.again.unwrap_or_else(Instant::now)).await;
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

    /// Asks the API server for the keys, unless that was just done. Says how that went, or how it went last.
    async fn learn(&self) -> Asking {
        let mut asking = self.asking.lock().await;
        if !asking.is_due() {
            return *asking;
        }
        let sought = self.unknown().all();
        // A caller that goes away meanwhile ends this, too.
        asking.fails();
        let map = match timeout(PATIENCE, self.maps.get_opt(NAME)).await {
            Ok(Ok(map)) => map,
            Ok(Err(problem)) => {
                tracing::warn!("cannot read the ConfigMap {NAME}: {problem}");
                return *asking;
            }
            Err(_) => {
                tracing::warn!("cannot read the ConfigMap {NAME}: no answer");
                return *asking;
            }
        };
        asking.succeeds();
        let Some(map) = map else {
            tracing::debug!("there is no ConfigMap {NAME}");
            self.unknown().were_sought(sought);
            return *asking;
        };
        let new = SignerKeys::of(peer_keys::entries(&map));
        let changed = std::mem::replace(&mut *self.keys(), new.clone()) != new;
        self.unknown().were_sought(sought);
        if changed {
            let file = self.file.clone();
            let saved = tokio::task::spawn_blocking(move || keys::save(&new, &file)).await;
            if let Err(problem) = saved.unwrap_or_else(|problem| Err(std::io::Error::other(problem))) {
                tracing::warn!("cannot write {}: {problem}", self.file.display());
            }
        }
        *asking
    }

    /// Whether a ticket of an unknown signer may be good after the next read of the keys.
    async fn may_be_known_soon(&self, signer: SignerId) -> bool {
        self.unknown().show(signer);
        let asking = self.learn().await;
        !asking.is_long_away() && !self.unknown().missing.contains(&signer)
    }
}

/// Signers of tickets whose keys are not known here. Only what was read after a ticket was shown says that nobody has published its signer's
/// key: strangers may have the keys read a moment before a new controller publishes its own.
#[derive(Debug, Default)]
struct UnknownSigners {
    /// Shown since the last read began.
    shown: BTreeSet<SignerId>,
    /// Shown before the last read began. Those of them that are still not known had no key there.
    missing: BTreeSet<SignerId>,
    /// Those of this node's own tickets.
    own: BTreeSet<SignerId>,
}

impl UnknownSigners {
    fn show(&mut self, signer: SignerId) {
        if self.shown.len() < MOST_UNKNOWN {
            self.shown.insert(signer);
        }
    }

    /// These are the unknown signers of this node's own tickets; says whether the keys are to be read for one of them.
    fn set_own(&mut self, own: BTreeSet<SignerId>) -> bool {
        self.own = own;
        self.lacks_own()
    }

    /// Whether the keys were not read yet since a ticket of this node itself had one of these signers.
    fn lacks_own(&self) -> bool {
        self.own.iter().any(|signer| !self.missing.contains(signer))
    }

    /// Those whose keys the next read may bring.
    fn all(&self) -> BTreeSet<SignerId> {
        self.shown.union(&self.own).copied().collect()
    }

    /// The keys were read after these were shown.
    fn were_sought(&mut self, sought: BTreeSet<SignerId>) {
        self.shown.retain(|signer| !sought.contains(signer));
        self.missing = sought;
    }
}

/// When the API server may be asked for keys again.
#[derive(Clone, Copy, Debug, Default)]
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

    /// Whether it could not answer for so long that nobody waits for it.
    fn is_long_away(&self) -> bool {
        self.pause.is_some_and(|pause| pause >= ASK_EVERY)
    }
}

impl Gate for TicketGate {
    fn check<'a>(&'a self, ticket: &'a str, caller: PeerId) -> BoxFuture<'a, Result<Ticket, TicketError>> {
        async move {
            match self.judge(ticket, caller) {
                Err(TicketError::UnknownSigner(signer)) => {
                    let soon = self.may_be_known_soon(signer).await;
                    match self.judge(ticket, caller) {
                        Err(TicketError::UnknownSigner(signer)) if soon => Err(TicketError::SignerUnread(signer)),
                        judged => judged,
                    }
                }
                judged => judged,
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
