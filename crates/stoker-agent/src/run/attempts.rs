//! Attempts at orders: which run, what is known of each order, how an attempt begins, is stopped and ends, and what that leaves on the
//! disk. Orders come in as they are; this part writes neither the ledger nor the API server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use stoker_api::native::from_core::Tickets;
use stoker_core::model::{Bytes, Key, Order, PEERS, Report, after};
use stoker_core::step::{self, Able, Action, Failure, Step, Task, TaskState};
use stoker_transfer::peer::PeerWays;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

use crate::leftovers::Leftovers;
use crate::meter::Meter;
use crate::metrics::AgentCounts;
use crate::pull::{PullTools, Success, Supply};
use crate::pulls::LeftBehind;
use crate::settings::Limits;
use crate::starts::Starts;
use crate::sweep::Keep;
use crate::truth::{self, Sightings};
use upkeep::Upkeep;

mod begin;
mod end;
mod follow;
mod upkeep;

/// An attempt under way.
struct RunningAttempt {
    meter: Meter,
    /// How its bytes come, which an edit of its order may change.
    supply: Supply,
    /// What earlier attempts at the same order had received.
    earlier: Bytes,
    /// The order as it began with it.
    began: Order,
    abort: AbortHandle,
}

pub(super) struct Attempts {
    node: String,
    tools: PullTools,
    able: Able,
    /// How long a turn is where the runtime does not pull by itself.
    turn: Duration,
    counts: Arc<AgentCounts>,
    /// So that a fleet does not try again all at once.
    salt: u64,
    tasks: BTreeMap<Key, Task>,
    running: BTreeMap<Key, RunningAttempt>,
    /// Where orders read from: one for all attempts at an order, because a fetch that others follow outlives an attempt.
    ways: BTreeMap<Key, PeerWays>,
    /// What this node shows to the nodes that the orders name.
    tickets: Tickets,
    /// Those that run, and those that were stopped and are still ending.
    spawned: JoinSet<Result<Success, Failure>>,
    /// How long attempts that gave their places to others had been at work.
    worked: BTreeMap<Key, Duration>,
    /// What was begun and has not ended.
    starts: Starts,
    /// What the spool had when this agent began.
    spooled: u64,
    /// Rung by attempts that have something to say before they end.
    news: Arc<Notify>,
    upkeep: Upkeep,
}

/// The end of a task that was spawned for an attempt.
type AttemptEnd = Result<(Id, Result<Success, Failure>), JoinError>;

/// What the loop has to tell this part, once it can show it the orders.
pub(super) enum Happened {
    Ended(AttemptEnd),
    Seen(Sightings),
    /// Nothing but that the loop should turn.
    News,
}

/// What an earlier life of this agent left.
pub(super) struct EarlierLife {
    pub(super) tasks: BTreeMap<Key, Task>,
    pub(super) starts: Starts,
    /// The bytes in the spool.
    pub(super) spooled: u64,
}

impl Attempts {
    pub(super) fn new(
        node: String,
        limits: &Limits,
        tools: PullTools,
        counts: Arc<AgentCounts>,
        EarlierLife { tasks, starts, spooled }: EarlierLife,
    ) -> Self {
        Self {
            able: Able { orders_at_once: limits.pulls.max(1), ..Able::default() },
            turn: limits.turn,
            salt: node.bytes().fold(7u64, |salt, byte| salt.wrapping_mul(31).wrapping_add(byte.into())),
            upkeep: Upkeep::new(node.clone(), tools.runtime.clone()),
            node,
            tools,
            counts,
            tasks,
            running: BTreeMap::new(),
            ways: BTreeMap::new(),
            tickets: Tickets::new(),
            spawned: JoinSet::new(),
            worked: BTreeMap::new(),
            starts,
            spooled,
            news: Arc::default(),
        }
    }

    pub(super) fn tasks(&self) -> &BTreeMap<Key, Task> {
        &self.tasks
    }

    pub(super) fn starts(&self) -> &Starts {
        &self.starts
    }

    fn leftovers(&self) -> &Leftovers {
        &self.tools.guard.leftovers
    }

    /// What an earlier life of this agent finished need not be done again.
    pub(super) fn adopt(&mut self, reports: &BTreeMap<Key, Report>, orders: &BTreeMap<Key, Order>, now: Timestamp) {
        for (key, report) in reports.iter().filter(|(key, _)| orders.contains_key(key)) {
            self.tasks.entry(*key).or_insert_with(|| step::adopt(report.clone(), now));
        }
        self.upkeep.broom.call();
    }

    /// Brings all reports up to date.
    pub(super) fn read_meters(&mut self, now: Timestamp) {
        for (key, task) in self.tasks.iter_mut().filter(|(_, task)| task.state != TaskState::Ended) {
            if let Some(running) = self.running.get(key) {
                let waited = step::waits_for_room(&task.report);
                running.meter.read(&mut task.report, running.earlier, now);
                // Its turn begins with its space, and its wait with the want of it.
                if let TaskState::Running { since } = &mut task.state
                    && step::waits_for_room(&task.report) != waited
                {
                    *self.worked.entry(*key).or_default() += now.duration_since(*since).unsigned_abs();
                    *since = now;
                }
                self.starts.progress(*key, task.report.bytes);
                self.counts.received(running.meter.received());
            }
            task.report.updated = now;
        }
        self.ways.values().for_each(|ways| self.counts.lied(ways.count_liars()));
    }

    /// While something runs its counters move without a sound: when to look at them again, and when to sweep.
    pub(super) fn wake(&self, orders: &BTreeMap<Key, Order>, now: Timestamp) -> Option<Timestamp> {
        let running = self.running.keys().filter_map(|key| orders.get(key));
        let look = running.map(|order| order.terms.progress).min().map(|progress| after(now, progress));
        [look, self.upkeep.broom.wake()].into_iter().flatten().min()
    }

    /// What to do next. What begins is counted: the ledger has the count before [`Self::perform`] begins it.
    pub(super) fn step(&mut self, orders: &BTreeMap<Key, Order>, now: Timestamp) -> Step {
        let by_itself = self.tools.pulls_by_itself();
        self.able.turn = if by_itself { step::LONG_TURN } else { self.turn };
        // A runtime that pulls by itself cannot be kept from the registry: that is said better by the attempt.
        match by_itself || self.tools.peers.is_some() {
            true => self.able.features.insert(PEERS.into()),
            false => self.able.features.remove(PEERS),
        };
        let step = step::step(orders, &self.tasks, &self.able, now);
        for action in &step.actions {
            if let Action::Start { key, .. } = action
                && let Some(order) = orders.get(key)
            {
                self.starts.begin(*key, order.asked, self.spooled);
            }
        }
        step
    }

    /// Does it. The ends of orders that were taken back are returned: people may want to read them.
    pub(super) fn perform(&mut self, step: Step, orders: &BTreeMap<Key, Order>, now: Timestamp) -> Vec<(Key, Report)> {
        let pulls = orders.iter().filter(|(_, order)| !order.ask.is_question());
        let keep = Keep::of(pulls.map(|(key, _)| (key, self.tasks.get(key))));
        self.leftovers().pulls.set_orders(keep);
        let gone = step.actions.into_iter().filter_map(|action| self.act(action, orders, now)).collect();
        step.queued.into_iter().for_each(|(key, behind)| self.queue(key, behind, orders, now));
        self.upkeep.look(|| truth::questions(orders, &self.tasks));
        self.upkeep.sweep(&self.tools.guard.leftovers, self.spawned.len() == self.running.len(), now);
        gone
    }

    fn act(&mut self, action: Action, orders: &BTreeMap<Key, Order>, now: Timestamp) -> Option<(Key, Report)> {
        match action {
            Action::Start { key, attempt } => {
                if let Some(order) = orders.get(&key) {
                    self.start(key, order.clone(), attempt, now);
                }
            }
            Action::Refuse { key, missing } => {
                if let Some(order) = orders.get(&key) {
                    self.tasks.insert(key, step::refuse(order, &missing, now));
                }
            }
            Action::Yield { key } => {
                if let Some(running) = self.stop(key) {
                    tracing::info!(node = self.node, image = running.began.image, "gives its place to others");
                }
                if let Some(task) = self.tasks.get(&key) {
                    if let TaskState::Running { since } = task.state {
                        *self.worked.entry(key).or_default() += now.duration_since(since).unsigned_abs();
                    }
                    self.tasks.insert(key, step::give_way(task, now));
                }
            }
            Action::Hold { key } => {
                self.worked.remove(&key);
                if self.stop(key).is_some() {
                    tracing::info!(node = self.node, order = %key, "held; what was fetched is kept");
                }
                if let Some(task) = self.tasks.get(&key) {
                    self.tasks.insert(key, step::hold(task, now));
                }
            }
            Action::Forget { key } => {
                self.worked.remove(&key);
                self.upkeep.broom.call();
                if self.stop(key).is_some() {
                    self.upkeep.broom.call_twice(now);
                    tracing::info!(node = self.node, order = %key, "the order was taken back, its pull stops");
                }
                let task = self.tasks.remove(&key)?;
                if let Some(ways) = self.ways.remove(&key) {
                    self.counts.lied(ways.count_liars());
                }
                let Bytes { upstream, peers, .. } = task.report.bytes;
                let left = LeftBehind { since: now, bytes: upstream.saturating_add(peers) };
                self.leftovers().pulls.leave(&key.to_string(), left);
                return (task.state == TaskState::Ended).then_some((key, task.report));
            }
        }
        None
    }

    /// Stops the attempt of this order, if one runs.
    fn stop(&mut self, key: Key) -> Option<RunningAttempt> {
        self.starts.ended(key);
        let running = self.running.remove(&key)?;
        running.abort.abort();
        running.supply.close();
        Some(running)
    }

    /// An order waits for its turn.
    fn queue(&mut self, key: Key, behind: usize, orders: &BTreeMap<Key, Order>, now: Timestamp) {
        let Some(order) = orders.get(&key) else { return };
        let queued = step::queue(order, behind, now);
        let same = |task: &Task| (task.state, &task.report.message) == (queued.state, &queued.report.message);
        if !self.tasks.get(&key).is_some_and(same) {
            self.tasks.insert(key, queued);
        }
    }

    /// Waits until something happens. Nothing is lost where it is dropped.
    pub(super) async fn happens(&mut self) -> Happened {
        tokio::select! {
            Some(ended) = self.spawned.join_next_with_id() => Happened::Ended(ended),
            () = self.news.notified() => Happened::News,
            seen = self.upkeep.next() => seen.map_or(Happened::News, Happened::Seen),
        }
    }

    /// Takes what happened. All attempts that have ended are taken at once, so that they are noted and told at once.
    pub(super) fn take(&mut self, happened: Happened, orders: &BTreeMap<Key, Order>) {
        match happened {
            Happened::News => {}
            Happened::Seen(seen) => self.judge(seen, orders),
            Happened::Ended(ended) => {
                self.join(ended, orders);
                while let Some(ended) = self.spawned.try_join_next_with_id() {
                    self.join(ended, orders);
                }
            }
        }
    }

    /// The agent is asked to stop: attempts that it ends itself did not break off.
    pub(super) fn stop_counting(&mut self) {
        self.starts.stop();
    }
}

#[cfg(test)]
mod tests;
