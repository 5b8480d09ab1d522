//! What this node gives to others: a server for the images that it was ordered to have, who may read from it, and what the API server is
//! told about it. Orders and what came of them come in; it changes neither, and fetches nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use stoker_api::native::PeerInfo;
use stoker_api::native::from_core::Tickets;
use stoker_core::model::{Key, Order};
use stoker_core::step::Task;
use stoker_runtime::Runtime;
use stoker_transfer::peer::{PeerIdentity, PeerLimits, PeerReader, PeerServer};
use stoker_transfer::{Digest, Pace, Spool};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::key;
use crate::leftovers::Leftovers;
use crate::settings::{PeerSettings, Settings};
use crate::ways::PeerSide;
use gate::TicketGate;
use rates::Rates;

mod gate;
mod keys;
mod linger;
mod rates;
mod roots;
mod shelf;
#[cfg(test)]
mod tests;
mod time;

pub(crate) use linger::Lingering;
pub(crate) use shelf::ServedImages;

/// How often bytes are counted while none move.
const IDLE: Duration = Duration::from_secs(2);
/// How often blobs are looked for that lingered long enough.
const TEND_EVERY: Duration = Duration::from_secs(15);

/// This node's side towards others. What it runs ends with it.
pub(crate) struct Serving {
    /// The key by which other nodes know this one.
    identity: PeerIdentity,
    served: ServedImages,
    /// How many nodes read an image here.
    readers: Arc<dyn Fn(&Digest) -> u32 + Send + Sync>,
    pub(crate) lingering: Lingering,
    gate: Arc<TicketGate>,
    rates: Arc<Rates>,
    pace: Arc<Pace>,
    port: u16,
    keeps: bool,
    /// The orders that were done, to see which are new.
    done: Option<BTreeMap<Key, Timestamp>>,
    /// The server, and what goes on beside it.
    tasks: JoinSet<()>,
}

impl Serving {
    /// Serves where the settings want it and the runtime lets it; why not is said in the log.
    pub(crate) async fn start(settings: &Settings) -> Option<Self> {
        let peers = settings.peers.as_ref()?;
        if let Some(why) = unfit(&settings.runtime) {
            tracing::info!(node = settings.node, "images are not read from other nodes and not served to them: {why}");
            return None;
        }
        let started = Self::try_start(settings, peers).await;
        started.inspect_err(|problem| tracing::warn!(node = settings.node, "images are not served: {problem}")).ok()
    }

    async fn try_start(
        settings: &Settings,
        peers: &PeerSettings,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let its = settings.clone();
        let namespace = peers.namespace.clone();
        let read = move || {
            let identity = key::load_peer(&its.ledger.with_file_name("peer.key"))?;
            Ok::<_, stoker_transfer::peer::NoPeerKey>((identity, TicketGate::load(its.client, &namespace, &its.ledger)))
        };
        let (identity, gate) = tokio::task::spawn_blocking(read).await??;
        let keeps = shelf::keeps(&settings.runtime);
        let lingering = if keeps { Lingering::default() } else { Lingering::new(peers.linger) };
        let served = ServedImages::new(settings, lingering.clone(), peers.linger);
        let gate = Arc::new(gate);
        let (shelf, limits) = (Arc::new(served.clone()), PeerLimits::default());
        let server = PeerServer::bind(peers.listen, &identity, shelf, gate.clone(), limits).await?;
        let (pace, sent, port) = (server.pace(), server.sent(), server.addr().port());
        let readers = Arc::new(server.readers());
        pace.set(settings.limits.upload);
        tracing::info!(node = settings.node, "other nodes read images on {}", server.addr());
        let (rates, mut tasks) = (Arc::<Rates>::default(), JoinSet::new());
        // It ends with the set.
        tasks.spawn(server.run(CancellationToken::new()));
        tasks.spawn(count(settings.spool.clone(), sent, rates.clone(), settings.metrics.sent()));
        let learner = gate.clone();
        tasks.spawn(async move { learner.learn_early().await });
        let keeper = gate.clone();
        tasks.spawn(async move { keeper.keep_time().await });
        Ok(Self { identity, served, readers, lingering, gate, rates, pace, port, keeps, done: None, tasks })
    }

    /// What pulls have to do with other nodes.
    pub(crate) fn side(&self) -> PeerSide {
        let served = self.served.clone();
        PeerSide {
            reader: PeerReader::new(self.identity.clone()),
            seen: Arc::new(move |name, image| served.documents(name, image)),
            readers: self.readers.clone(),
        }
    }

    /// Removes blobs that lingered long enough.
    pub(crate) fn tend(&mut self, leftovers: Leftovers) {
        if !self.keeps {
            self.tasks.spawn(async move {
                loop {
                    tokio::time::sleep(TEND_EVERY).await;
                    leftovers.let_go().await;
                }
            });
        }
    }

    /// The orders in hand, what came of each, and what this node shows to others.
    pub(crate) fn set_orders(&mut self, orders: &BTreeMap<Key, Order>, tasks: &BTreeMap<Key, Task>, tickets: &Tickets) {
        self.served.set_orders(orders, tasks);
        self.gate.set_orders(orders.values().map(|order| order.asked), tickets);
        let done = tasks.iter().filter(|(_, task)| task.report.ended());
        let done: BTreeMap<Key, Timestamp> = done.map(|(key, task)| (*key, task.report.asked)).collect();
        // Those of an earlier life say nothing about this one.
        let before = self.done.replace(done.clone()).unwrap_or_else(|| done.clone());
        if done.iter().any(|(key, asked)| before.get(key) != Some(asked)) {
            self.rates.pull_ended();
        }
    }

    /// How fast others may read, where something else is said than at the start.
    pub(crate) fn limit(&self, upload: Option<u64>) {
        self.pace.set(upload);
    }

    /// What the API server is told.
    pub(crate) fn info(&self) -> PeerInfo {
        let (rate, sent) = self.rates.best();
        let limit = self.pace.limit().and_then(u64::checked_ilog2).map(|power| 1 << power);
        let sent = match (sent, limit) {
            (Some(sent), Some(limit)) => Some(sent.min(limit)),
            (sent, limit) => sent.or(limit),
        };
        PeerInfo { port: self.port, key: self.identity.id().to_string(), keeps: self.keeps, rate, sent }
    }
}

/// Why images of this runtime can neither be read from other nodes nor be served.
fn unfit(runtime: &Runtime) -> Option<String> {
    match runtime {
        Runtime::Layout(_) => None,
        Runtime::Containerd(containerd, _) => containerd.node().ineligible(),
        Runtime::Cri(_) => Some("a CRI runtime pulls by itself".into()),
    }
}

/// Counts what comes and goes. It never ends.
async fn count(spool: Spool, sent: Arc<AtomicU64>, rates: Arc<Rates>, counter: Counter) {
    loop {
        let (went, moves) = rates.sample(spool.received(), sent.load(Ordering::Relaxed));
        counter.inc_by(went);
        tokio::time::sleep(if moves { rates::SAMPLE } else { IDLE }).await;
    }
}
