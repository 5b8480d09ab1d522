//! What agents count for Prometheus, and whether they are alive and ready. A process with several agents has one
//! [`Metrics`]: their numbers are summed. Label values are words of this program, never names of nodes or images.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::Stream;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use stoker_core::Reason;
use stoker_core::model::{Key, Order, Phase};
use stoker_core::step::{Failure, Task};
use stoker_runtime::Runtime;
use tokio::time::Instant;

use crate::meter::Received;
use crate::pull::Success;

/// How often the loop turns even if nothing happens.
const BEAT_EVERY: Duration = Duration::from_secs(30);

/// A loop that has not made a turn for this long hangs.
const HEALTHY_FOR: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByPhase {
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByResultAndReason {
    result: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BySource {
    source: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByWriteResult {
    result: &'static str,
}

/// Where bytes came from: the registry that the image names, another host that stands in for it, or another node.
const REGISTRY: BySource = BySource { source: "registry" };
const MIRROR: BySource = BySource { source: "mirror" };
const PEER: BySource = BySource { source: "peer" };

/// The numbers of all agents of a process; clones are the same numbers.
#[derive(Clone, Debug)]
pub struct Metrics {
    attempts: Family<ByResultAndReason, Counter>,
    received: Family<BySource, Counter>,
    writes: Family<ByWriteResult, Counter>,
    sent: Counter,
    lies: Counter,
    /// By a number that each agent gets when it joins.
    agents: Arc<Agents>,
}

#[derive(Debug, Default)]
struct Agents(Mutex<(u64, BTreeMap<u64, AgentState>)>);

/// What one agent last said of itself.
#[derive(Debug)]
struct AgentState {
    beat: Instant,
    ready: bool,
    phases: [u32; 4],
    free: Option<u64>,
}

/// Phases of orders, in the order of [`AgentState::phases`].
const PHASES: [&str; 4] = ["waiting", "pulling", "succeeded", "failed"];

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Everything at zero, without an agent.
    pub fn new() -> Self {
        let attempts = Family::<ByResultAndReason, Counter>::default();
        // A zero can be seen and alerted on, a series that is not there cannot.
        attempts.get_or_create(&ByResultAndReason { result: "succeeded", reason: "" }).inc_by(0);
        let (received, writes) = (Family::<BySource, Counter>::default(), Family::<ByWriteResult, Counter>::default());
        for source in [REGISTRY, MIRROR, PEER] {
            received.get_or_create(&source).inc_by(0);
        }
        for result in ["succeeded", "failed"] {
            writes.get_or_create(&ByWriteResult { result }).inc_by(0);
        }
        let (sent, lies) = (Counter::default(), Counter::default());
        Self { attempts, received, writes, sent, lies, agents: Arc::default() }
    }

    /// Adds all of them to what a server exports.
    pub fn register(&self, registry: &mut Registry) {
        let Self { attempts, received, writes, sent, lies, agents } = self;
        registry.register(
            "stoker_agent_attempts",
            "Attempts to bring an image that ended by themselves, by result and reason",
            attempts.clone(),
        );
        registry.register(
            "stoker_agent_received_bytes",
            "Bytes of layers and configurations, by where they came from",
            received.clone(),
        );
        registry.register(
            "stoker_agent_sent_bytes",
            "Bytes of layers and configurations that other nodes read here",
            sent.clone(),
        );
        registry.register(
            "stoker_agent_peer_lies",
            "Nodes that sent this one bytes that are not those of the digest, once for each image",
            lies.clone(),
        );
        registry.register(
            "stoker_agent_status_writes",
            "Reports to the API server by how they ended; one that failed is tried again",
            writes.clone(),
        );
        registry.register_collector(Box::new(agents.clone()));
    }

    /// Whether every agent's loop still turns; a sentence where one does not.
    pub fn healthy(&self) -> Result<(), String> {
        let silent = self.agents.lock().1.values().map(|state| state.beat.elapsed()).max();
        match silent.filter(|silent| *silent > HEALTHY_FOR) {
            None => Ok(()),
            Some(silent) => Err(format!("an agent's loop made no turn for {} s", silent.as_secs())),
        }
    }

    /// Whether every agent is registered and has seen its object; a sentence where one has not.
    pub fn ready(&self) -> Result<(), String> {
        let agents = self.agents.lock();
        let (all, ready) = (agents.1.len(), agents.1.values().filter(|state| state.ready).count());
        match all {
            0 => Err("no agent has started yet".into()),
            all if ready < all => {
                Err(format!("{ready} of {all} agents are registered and have seen their NodePreheat"))
            }
            _ => Ok(()),
        }
    }

    /// How many agents have started.
    pub fn agents(&self) -> usize {
        self.agents.lock().1.len()
    }

    /// Counts the bytes that other nodes read.
    pub(crate) fn sent(&self) -> Counter {
        self.sent.clone()
    }

    /// An agent starts.
    pub(crate) fn join(&self) -> AgentCounts {
        let mut agents = self.agents.lock();
        let (next, states) = &mut *agents;
        *next += 1;
        states.insert(*next, AgentState { beat: Instant::now(), ready: false, phases: [0; 4], free: None });
        AgentCounts { metrics: self.clone(), number: *next }
    }
}

impl Agents {
    /// Nothing is ever half-written under this lock, so a poisoned one is as good as any.
    fn lock(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, AgentState>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for Agents {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (mut phases, mut free) = ([0u64; 4], None::<u64>);
        for state in self.lock().1.values() {
            phases.iter_mut().zip(state.phases).for_each(|(sum, count)| *sum += u64::from(count));
            free = free.into_iter().chain(state.free).min();
        }
        let help = "Orders of the controller, by phase";
        let mut orders = encoder.encode_descriptor("stoker_agent_orders", help, None, MetricType::Gauge)?;
        for (phase, count) in PHASES.into_iter().zip(phases) {
            ConstGauge::new(count).encode(orders.encode_family(&ByPhase { phase })?)?;
        }
        let help = "Free bytes of the filesystem of the image store; of several agents, of the fullest";
        let disk = encoder.encode_descriptor("stoker_agent_disk_free_bytes", help, None, MetricType::Gauge)?;
        if let Some(free) = free {
            ConstGauge::new(free).encode(disk)?;
        }
        Ok(())
    }
}

/// Wakes the loop, with the free bytes of the store's filesystem. A disk that does not answer stops it.
pub(crate) fn pulse(store: Runtime) -> impl Stream<Item = Option<u64>> {
    futures::stream::unfold((tokio::time::interval(BEAT_EVERY), store), async |(mut interval, store)| {
        interval.tick().await;
        let free = store.space().await.ok().flatten().map(|space| space.free);
        Some((free, (interval, store)))
    })
}

/// The part of one agent; what it said of itself goes with it, what it counted stays.
pub(crate) struct AgentCounts {
    metrics: Metrics,
    number: u64,
}

impl AgentCounts {
    fn state(&self, change: impl FnOnce(&mut AgentState)) {
        if let Some(state) = self.metrics.agents.lock().1.get_mut(&self.number) {
            change(state);
        }
    }

    /// The loop made a turn; it is ready once it has seen its object, which it makes where it is missing.
    pub(crate) fn turn(&self, ready: bool, orders: &BTreeMap<Key, Order>, tasks: &BTreeMap<Key, Task>) {
        let phases = phases(orders, tasks);
        self.state(|state| (state.beat, state.ready, state.phases) = (Instant::now(), ready, phases));
    }

    /// The disk was looked at; none where it did not say.
    pub(crate) fn disk(&self, free: Option<u64>) {
        self.state(|state| state.free = free);
    }

    /// An attempt ended by itself. One that only looked and found nothing was none to bring the image.
    pub(crate) fn attempt(&self, result: &Result<Success, Failure>) {
        let (result, reason) = match result {
            Ok(_) => ("succeeded", ""),
            Err(failure) if failure.reason == Reason::Unresolved => return,
            Err(failure) => ("failed", failure.reason.as_str()),
        };
        self.metrics.attempts.get_or_create(&ByResultAndReason { result, reason }).inc();
    }

    /// So many bytes of an order came.
    pub(crate) fn received(&self, bytes: Received) {
        self.metrics.received.get_or_create(&REGISTRY).inc_by(bytes.registry);
        self.metrics.received.get_or_create(&MIRROR).inc_by(bytes.mirror);
        self.metrics.received.get_or_create(&PEER).inc_by(bytes.peer);
    }

    /// So many other nodes turned out to have sent wrong bytes.
    pub(crate) fn lied(&self, nodes: u64) {
        self.metrics.lies.inc_by(nodes);
    }

    #[cfg(test)]
    pub(crate) fn lies(&self) -> u64 {
        self.metrics.lies.get()
    }

    /// A report was written, or was not taken.
    pub(crate) fn wrote(&self, succeeded: bool) {
        let result = if succeeded { "succeeded" } else { "failed" };
        self.metrics.writes.get_or_create(&ByWriteResult { result }).inc();
    }
}

impl Drop for AgentCounts {
    fn drop(&mut self) {
        self.metrics.agents.lock().1.remove(&self.number);
    }
}

fn phases(orders: &BTreeMap<Key, Order>, tasks: &BTreeMap<Key, Task>) -> [u32; 4] {
    let mut phases = [0; 4];
    for (key, order) in orders.iter().filter(|(_, order)| !order.ask.is_question()) {
        let report =
            tasks.get(key).map(|task| &task.report).filter(|report| !report.ended() || report.asked == order.asked);
        let phase = match report.map(|report| report.phase) {
            None => 0,
            Some(Phase::Pulling) => 1,
            Some(Phase::Succeeded | Phase::Resolved) => 2,
            Some(Phase::Failed) => 3,
        };
        phases[phase] += 1;
    }
    phases
}

#[cfg(test)]
mod tests;
