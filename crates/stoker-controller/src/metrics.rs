//! What the controller counts for Prometheus, and whether it is alive and ready. The loop moves the numbers; whoever
//! serves them registers them. Label values are words of this program, never names of objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use stoker_api::{DIALECTS, served_kinds, workload_kinds};
use stoker_core::{JobId, Outcome, Plan, Reason, Stage, Waiting};
use tokio::time::Instant;

/// How often the loop beats even if nothing happens.
pub(crate) const BEAT_EVERY: Duration = Duration::from_secs(30);

/// A loop that has not made a turn for this long hangs.
const HEALTHY_FOR: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByStage {
    stage: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByState {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByReason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByResult {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByKind {
    kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByDialect {
    dialect: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByKindAndResult {
    kind: String,
    result: &'static str,
}

/// The numbers of one controller; clones are the same numbers.
#[derive(Clone, Debug)]
pub struct Metrics {
    leader: Gauge,
    plans: Histogram,
    writes: Family<ByKindAndResult, Counter>,
    writes_waiting: Gauge,
    jobs: Family<ByStage, Gauge>,
    jobs_ended: Family<ByResult, Counter>,
    nodes: Family<ByState, Gauge>,
    nodes_waiting: Family<ByReason, Gauge>,
    interruptions: Family<ByKind, Counter>,
    unheard: Family<ByKind, Gauge>,
    left_alone: Family<ByDialect, Gauge>,
    pulse: Arc<Mutex<Pulse>>,
}

#[derive(Debug)]
struct Pulse {
    beat: Instant,
    /// None when it is ready.
    wants: Option<&'static str>,
}

const NO_LEASE: &str = "it has not seen yet who leads";
const NOT_HEARD: &str = "it leads, and some kind is not listed yet or its watch is interrupted";

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Everything at zero.
    pub fn new() -> Self {
        let metrics = Self {
            leader: Gauge::default(),
            // From 0.1 ms to 6.5 s: a plan of a hundred thousand nodes is in the middle.
            plans: Histogram::new(exponential_buckets(0.0001, 4.0, 9)),
            writes: Family::default(),
            writes_waiting: Gauge::default(),
            jobs: Family::default(),
            jobs_ended: Family::default(),
            nodes: Family::default(),
            nodes_waiting: Family::default(),
            interruptions: Family::default(),
            unheard: Family::default(),
            left_alone: Family::default(),
            pulse: Arc::new(Mutex::new(Pulse { beat: Instant::now(), wants: Some(NO_LEASE) })),
        };
        // A zero can be seen and alerted on, a series that is not there cannot.
        for stage in ["Suspended", "Running", "Synced"] {
            metrics.jobs.get_or_create(&ByStage { stage }).set(0);
        }
        for result in ["Succeeded", "Failed"] {
            metrics.jobs_ended.get_or_create(&ByResult { result }).inc_by(0);
        }
        for kind in served_kinds().map(|kind| kind.kind.name).chain(["NodePreheat"]) {
            for result in ["succeeded", "failed"] {
                metrics.writes.get_or_create(&ByKindAndResult { kind: kind.into(), result }).inc_by(0);
            }
            metrics.interruptions.get_or_create(&ByKind { kind: kind.into() }).inc_by(0);
        }
        for kind in kinds() {
            metrics.unheard.get_or_create(&ByKind { kind: kind.into() }).set(0);
        }
        metrics.interruptions.get_or_create(&ByKind { kind: "Node".into() }).inc_by(0);
        for dialect in may_be_left_alone() {
            metrics.left_alone.get_or_create(&ByDialect { dialect }).set(0);
        }
        for state in STATES {
            metrics.nodes.get_or_create(&ByState { state }).set(0);
        }
        for reason in Waiting::REASONS.map(Reason::as_str) {
            metrics.nodes_waiting.get_or_create(&ByReason { reason }).set(0);
        }
        metrics
    }

    /// Adds all of them to what a server exports.
    pub fn register(&self, registry: &mut Registry) {
        let Self { leader, plans, writes, writes_waiting, jobs, jobs_ended, .. } = self;
        let Self { nodes, nodes_waiting, interruptions, unheard, left_alone, pulse: _, .. } = self;
        registry.register("stoker_controller_leader", "1 while this controller leads", leader.clone());
        registry.register("stoker_controller_plan_seconds", "How long plans took", plans.clone());
        registry.register(
            "stoker_controller_writes",
            "Writes to the API server by the kind of the object and how they ended; one that failed is tried again",
            writes.clone(),
        );
        registry.register(
            "stoker_controller_writes_waiting",
            "Objects whose next write waits for its turn, or for another try",
            writes_waiting.clone(),
        );
        registry.register("stoker_controller_jobs", "Jobs that have not ended, by stage", jobs.clone());
        registry.register("stoker_controller_jobs_ended", "Jobs that ended, by result", jobs_ended.clone());
        registry.register(
            "stoker_controller_nodes",
            "Nodes of jobs that have not ended, by state; a node counts once in each job",
            nodes.clone(),
        );
        registry.register(
            "stoker_controller_nodes_waiting",
            "Nodes of jobs that have not ended and that wait, by what they wait for",
            nodes_waiting.clone(),
        );
        registry.register(
            "stoker_controller_watch_interruptions",
            "Watches that broke off, by kind",
            interruptions.clone(),
        );
        registry.register(
            "stoker_controller_kinds_unheard",
            "1 while objects of a kind cannot be listed or watched; what depends on them stays as it is",
            unheard.clone(),
        );
        registry.register(
            "stoker_controller_dialects_left_alone",
            "1 while the original controller of a dialect is at work, so that nothing is done for the dialect's objects",
            left_alone.clone(),
        );
    }

    /// Whether the loop still turns; a sentence where it does not.
    pub fn healthy(&self) -> Result<(), String> {
        let silent = self.pulse().beat.elapsed();
        match silent <= HEALTHY_FOR {
            true => Ok(()),
            false => Err(format!("the controller's loop made no turn for {} s", silent.as_secs())),
        }
    }

    /// Whether it leads and knows every object, or stands by and knows who leads; a sentence where neither is true.
    pub fn ready(&self) -> Result<(), String> {
        match self.pulse().wants {
            None => Ok(()),
            Some(wants) => Err(format!("the controller is not ready: {wants}")),
        }
    }

    /// Nothing is ever half-written under this lock, so a poisoned one is as good as any.
    fn pulse(&self) -> MutexGuard<'_, Pulse> {
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop made a turn.
    pub(crate) fn beat(&self) {
        self.pulse().beat = Instant::now();
    }

    /// Somebody else leads, and that was seen.
    pub(crate) fn standing_by(&self) {
        self.pulse().wants = None;
    }

    /// A write ended, or a try of it.
    pub(crate) fn wrote(&self, kind: &str, succeeded: bool) {
        let result = if succeeded { "succeeded" } else { "failed" };
        self.writes.get_or_create(&ByKindAndResult { kind: kind.into(), result }).inc();
    }

    /// So many objects have a write that is not begun.
    pub(crate) fn writes_waiting(&self, count: usize) {
        self.writes_waiting.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

/// States of nodes, in the order of [`Standing::nodes`].
const STATES: [&str; 4] = ["waiting", "pulling", "succeeded", "failed"];

/// How a job was when it was last said.
struct Standing {
    stage: Stage,
    generation: i64,
    nodes: [u32; 4],
    waiting_for: BTreeMap<Reason, u32>,
}

impl Standing {
    fn of(outcome: &Outcome) -> Self {
        let Outcome { stage, generation, waiting, pulling, succeeded, failed, .. } = *outcome;
        let nodes = [waiting, pulling, succeeded, failed];
        Self { stage, generation, nodes, waiting_for: outcome.waiting_for.clone() }
    }

    fn ended(&self) -> bool {
        matches!(self.stage, Stage::Succeeded | Stage::Failed)
    }
}

/// The kinds that are watched always or at times.
fn kinds() -> BTreeSet<&'static str> {
    let asked = DIALECTS.iter().flat_map(|dialect| dialect.asks).map(|kind| kind.name);
    let signs = DIALECTS.iter().flat_map(|dialect| dialect.signs).map(|sign| sign.kind().name);
    let jobs = served_kinds().chain(workload_kinds()).map(|kind| kind.kind.name);
    jobs.chain(asked).chain(signs).chain(["Node", "NodePreheat"]).collect()
}

/// The dialects whose original controller may be seen.
fn may_be_left_alone() -> impl Iterator<Item = &'static str> {
    DIALECTS.iter().filter(|dialect| !dialect.signs.is_empty()).map(|dialect| dialect.name)
}

/// What only the leader knows; gone with its lead.
pub(crate) struct LeaderMetrics {
    metrics: Metrics,
    jobs: BTreeMap<JobId, Standing>,
}

impl LeaderMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        metrics.leader.set(1);
        metrics.pulse().wants = Some(NOT_HEARD);
        Self { metrics: metrics.clone(), jobs: BTreeMap::new() }
    }

    /// Every object is known.
    pub(crate) fn hears(&self) {
        self.metrics.pulse().wants = None;
    }

    /// A watch broke off. Where every plan depends on it, nothing is planned until it is resumed, or its kind is listed again.
    pub(crate) fn deaf(&self, kind: &str, all: bool) {
        if all {
            self.metrics.pulse().wants = Some(NOT_HEARD);
        }
        let kind = ByKind { kind: kind.into() };
        self.metrics.interruptions.get_or_create(&kind).inc();
        self.metrics.unheard.get_or_create(&kind).set(1);
    }

    /// A kind of which not everything was heard can be heard.
    pub(crate) fn hears_of(&self, kind: &str) {
        self.metrics.unheard.get_or_create(&ByKind { kind: kind.into() }).set(0);
    }

    /// A dialect is left to its original controller, or is not.
    pub(crate) fn leaves_alone(&self, dialect: &'static str, is_left: bool) {
        self.metrics.left_alone.get_or_create(&ByDialect { dialect }).set(i64::from(is_left));
    }

    /// A plan was made; it was begun then.
    pub(crate) fn planned(&mut self, plan: &Plan, begun: Instant) {
        self.metrics.plans.observe(begun.elapsed().as_secs_f64());
        for outcome in &plan.outcomes {
            let (id, new) = (&outcome.job, Standing::of(outcome));
            let old = self.jobs.get(id).filter(|old| old.ended() && old.generation == new.generation);
            if new.ended() && old.is_none() {
                let result = if new.stage == Stage::Succeeded { "Succeeded" } else { "Failed" };
                self.metrics.jobs_ended.get_or_create(&ByResult { result }).inc();
            }
            self.forget(id);
            self.count(&new, 1);
            self.jobs.insert(id.clone(), new);
        }
    }

    /// A job is gone.
    pub(crate) fn forget(&mut self, id: &JobId) {
        if let Some(old) = self.jobs.remove(id) {
            self.count(&old, -1);
        }
    }

    fn count(&self, standing: &Standing, sign: i64) {
        let stage = match standing.stage {
            Stage::Suspended => "Suspended",
            Stage::Running => "Running",
            Stage::Synced => "Synced",
            // Counted when they ended. A controller that starts later is not told how they ended.
            Stage::Succeeded | Stage::Failed => return,
        };
        self.metrics.jobs.get_or_create(&ByStage { stage }).inc_by(sign);
        for (state, count) in STATES.into_iter().zip(standing.nodes) {
            self.metrics.nodes.get_or_create(&ByState { state }).inc_by(sign * i64::from(count));
        }
        for (reason, count) in &standing.waiting_for {
            let reason = ByReason { reason: reason.as_str() };
            self.metrics.nodes_waiting.get_or_create(&reason).inc_by(sign * i64::from(*count));
        }
    }
}

impl Drop for LeaderMetrics {
    fn drop(&mut self) {
        for standing in std::mem::take(&mut self.jobs).values() {
            self.count(standing, -1);
        }
        self.metrics.leader.set(0);
        kinds().into_iter().for_each(|kind| self.hears_of(kind));
        may_be_left_alone().for_each(|dialect| self.leaves_alone(dialect, false));
        self.metrics.pulse().wants = Some(NO_LEASE);
    }
}

#[cfg(test)]
mod tests;
