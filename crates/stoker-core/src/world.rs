//! The facts that the controller knows, and the plan that follows from them.
//!
//! [`World::apply`] takes one fact and marks what it touches. [`World::plan`] looks at the touched jobs and at
//! those whose time has come, and returns every effect as a value. What it orders it also assumes, so that it may
//! plan again while writes are under way; whoever performs them sees to it that they arrive. Its memory is the API
//! objects alone: a World made anew from them plans the same.

mod allowed;
mod asking;
mod choice;
mod demand;
mod frozen;
mod held;
mod jobs;
mod orders;
mod plan;
mod refresh;
mod relay;
mod room;
mod seat;
mod seats;
mod secrets;
mod told;
mod troubles;
mod view;
mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::model::{Found, Job, JobId, Key, KindName, Node, NodeName, Order, PeerFacts, Report, SecretId, after};
use crate::pace;
use crate::policy::{Bounds, Restriction};
use crate::rollup::Outcome;
use crate::select::selects;

use allowed::Policies;
use choice::Choice;
use demand::Demand;
use held::{HeldOrder, PeerRefs};
pub use plan::{OrderWrite, Plan};
use refresh::Digests;
use relay::Chains;
pub use room::{
    Full, JOBS_OF_A_NAMESPACE, LOGIN_WEIGHT, REPORT_WEIGHT, ROOM, ROOM_OF_A_NAMESPACE, ROOM_OF_ENDED, ROOM_OF_LOGINS,
    ROOM_OF_LOGINS_OF_A_NAMESPACE, ROOM_OF_MESSAGES, weight,
};
use seats::JobSeats;
use secrets::KnownSecrets;
pub use secrets::MOST_LOGINS;
use told::Standings;
pub use troubles::NodeTroubles;
pub use view::{NodeState, NodeView};
pub use wanted::{WantedSecret, WantedSecrets};

/// One fact, as seen by a watch or acknowledged by a write.
#[derive(Clone, Debug)]
pub enum Event {
    /// A job is there, or has changed.
    Job(Box<Job>),
    /// A job is gone.
    JobGone(JobId),
    /// A node is there, or has changed.
    Node(Node),
    /// A node is gone.
    NodeGone(NodeName),
    /// What a node is ordered to do; that this is known means that it has an agent.
    Orders(NodeName, BTreeMap<Key, Order>),
    /// What a node reports; that too means that it has an agent.
    Reports(NodeName, BTreeMap<Key, Report>),
    /// A node has no agent any more; its orders and reports are gone.
    AgentGone(NodeName),
    /// The features of a node's agent, as it publishes them.
    Features(NodeName, BTreeSet<String>),
    /// Where a node's agent serves images to others, and how fast it is; none where it does not.
    Peer(NodeName, Option<PeerFacts>),
    /// A Secret of [`World::wanted_secrets`] was read: what was found for each image that it is named for, and when it was asked for.
    Secret(SecretId, BTreeMap<Key, Found>, Timestamp),
    /// The objects of this kind cannot be listed or watched. What is known of its jobs may be out of date, or nothing is known:
    /// nothing is decided about them until [`Event::Thaw`].
    Freeze(KindName),
    /// All objects of this kind are known again.
    Thaw(KindName),
    /// These are all policies.
    Policies(Vec<Restriction>),
    /// Objects of this kind cannot be listed, and without them nobody knows what policies allow: nothing is decided about any job until
    /// [`Event::Policies`].
    PoliciesUnseen(&'static str),
    /// The labels of a namespace; none where it is gone.
    Namespace(String, Option<BTreeMap<String, String>>),
}

/// All facts about one node. It stays in its place as long as there is any.
#[derive(Clone, Debug, Default)]
struct NodeSlot {
    name: NodeName,
    node: Option<Node>,
    agent: bool,
    /// Of its agent; none for one that publishes none.
    features: BTreeSet<String>,
    /// Where its agent serves images to others.
    peer: Option<Box<PeerFacts>>,
    orders: BTreeMap<Key, HeldOrder>,
    /// Boxed, because a map reserves room for entries that it does not have.
    reports: BTreeMap<Key, Box<Report>>,
    /// When anything was last heard of its agent, by our own clock.
    heard: Option<Timestamp>,
}

impl NodeSlot {
    /// Whether it is a [foreign](Node::foreign) node.
    fn is_foreign(&self) -> bool {
        self.node.as_ref().is_some_and(|node| node.foreign)
    }

    /// Whether the cluster believes that it is alive; of foreign nodes the cluster believes nothing.
    fn is_ready(&self) -> bool {
        self.node.as_ref().is_some_and(|node| node.ready || node.foreign)
    }

    /// Whether it can be asked a question: it is ready and has an agent, which is one of ours.
    fn may_be_asked(&self) -> bool {
        self.agent && self.is_ready() && !self.is_foreign()
    }

    /// Whether an order for this image, or a question about it, names the job.
    fn is_ordered(&self, job: &JobId, image: Key) -> bool {
        let orders = [image, image.question()].into_iter().filter_map(|key| self.orders.get(&key));
        orders.into_iter().any(|order| order.jobs.contains(job))
    }

    /// What the agent says of the order under this key; where no order is left, what it said last.
    fn report(&self, key: Key) -> Option<&Report> {
        self.report_to(self.orders.get(&key), key)
    }

    /// The same where the order is at hand. An agent repeats the ask of its order, or an earlier one until it has an answer to the new one.
    /// A report of a later ask is about another order, and says nothing about this one: the clock was set back since, the API server
    /// lost orders, or the agent lies.
    fn report_to(&self, order: Option<&HeldOrder>, key: Key) -> Option<&Report> {
        let report = self.reports.get(&key).map(|report| &**report);
        report.filter(|report| order.is_none_or(|order| report.asked <= order.asked))
    }
}

/// Which seats of a job must be looked at again.
#[derive(Clone, Debug)]
enum Stale {
    All,
    Some(BTreeSet<usize>),
}

/// A job with what the last plan made of it.
#[derive(Clone, Debug)]
struct JobState {
    job: Job,
    /// For a job that wants only some of its nodes.
    choice: Choice,
    /// What follows from policies for the job by itself, as far as it is known.
    verdict: Option<Bounds>,
    seats: JobSeats,
    /// The seats of the last plan, while a plan is being made that says which of them are others.
    before: Option<Standings>,
    stale: Stale,
    /// For each image whether its digest was known when the seats were last looked at.
    digests: Digests,
    /// When the plan first saw that every node was done, until the object itself says so.
    closing: Option<Timestamp>,
    /// The outcome that was last handed out, and when.
    said: Option<(Outcome, Timestamp)>,
    /// When it may be done, as it was then.
    eta: Option<Timestamp>,
    /// More bytes are known than were said; they are said when the time for it has come.
    holds_back: bool,
    /// More nodes have failed than it tolerates and none is at work: it has failed on all others, too.
    given_up: bool,
    /// Its deletion was handed out.
    expired: bool,
    /// When time alone changes something.
    wake: Option<Timestamp>,
}

impl JobState {
    fn new(job: Job) -> Self {
        let (seats, stale, digests) = (JobSeats::default(), Stale::All, Digests::default());
        Self {
            job,
            choice: Choice::default(),
            verdict: None,
            seats,
            before: None,
            stale,
            digests,
            closing: None,
            said: None,
            eta: None,
            holds_back: false,
            given_up: false,
            expired: false,
            wake: None,
        }
    }

    /// Whether the job wants the node in this slot, or wanted it at the last plan, or names it. What changed between that plan and
    /// now is known to be stale.
    fn is_about(&self, slots: &[NodeSlot], at: usize) -> bool {
        let Some(slot) = slots.get(at) else { return false };
        match &self.job.names {
            Some(names) => names.contains_key(&slot.name),
            None => slot.node.as_ref().is_some_and(|node| selects(&self.job, node)) || self.seats.contains(slots, at),
        }
    }

    /// When what it holds back may be said. Not kept: how often that may be changes with every job that comes or goes.
    fn says(&self, interval: Duration) -> Option<Timestamp> {
        self.said.as_ref().filter(|_| self.holds_back).map(|(_, at)| after(*at, interval))
    }
}

/// Every fact, indexed by what it touches.
#[derive(Clone, Debug, Default)]
pub struct World {
    jobs: BTreeMap<JobId, JobState>,
    slots: Vec<NodeSlot>,
    /// Slots without any fact, to be used again.
    vacant: Vec<usize>,
    /// Slots by name: plans go through nodes in this order, whatever the order of events was.
    by_name: BTreeMap<NodeName, usize>,
    demand: BTreeMap<Key, Demand>,
    dirty_jobs: BTreeSet<JobId>,
    /// Slots whose orders may be unwanted or out of date.
    dirty_slots: BTreeSet<usize>,
    /// When the orders were asked that this plan has taken back: a new one in their place is a newer ask.
    taken_back: BTreeMap<(usize, Key), Timestamp>,
    /// Slots with orders that are held; few, if any.
    holding: BTreeSet<usize>,
    /// By slot: the jobs of pulls that were taken back or held, until the node's object says so. Until then they hold their
    /// places.
    leaving: BTreeMap<usize, BTreeSet<JobId>>,
    secrets: KnownSecrets,
    /// What could not be written, by node; few, if any.
    troubles: BTreeMap<NodeName, NodeTroubles>,
    /// Kinds whose jobs stand still.
    frozen: BTreeSet<KindName>,
    policies: Policies,
    /// Whether nodes are told to read from each other.
    relay: bool,
    /// Images of which a node finds nobody to read from, or is too slow for those who read from it.
    complaining: BTreeSet<Key>,
    /// Images of which a node goes upstream and does not get on.
    failing: BTreeSet<Key>,
    /// Who reads from whom, while a plan is made.
    chains: Chains,
    /// The peers that orders name.
    peer_refs: PeerRefs,
    /// Slots of nodes that serve at another address, or with another key, since the last plan.
    moved: BTreeSet<usize>,
    /// Whether the word of one node is enough for all.
    one_witness: bool,
    /// The nodes that the next plan tells of, where that is asked for.
    told_nodes: Option<BTreeSet<NodeName>>,
}

impl World {
    /// A world without facts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether one node that asks the registry what a tag means is enough, instead of [`pace::WITNESSES`] that agree.
    pub fn trust_one_witness(&mut self, trust: bool) {
        self.one_witness = trust;
    }

    /// Takes one fact.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Job(job) => self.set_job(*job),
            Event::JobGone(id) => self.drop_job(&id),
            Event::Node(node) => {
                let at = self.slot(&node.name);
                if self.slots.get(at).is_some_and(|slot| slot.node.as_ref() != Some(&node)) {
                    self.set_node(at, Some(node));
                }
            }
            Event::NodeGone(name) => {
                if let Some(&at) = self.by_name.get(&name) {
                    self.set_node(at, None);
                    let Self { jobs, slots, .. } = self;
                    jobs.values_mut().for_each(|state| state.seats.put(slots, at, None));
                    self.vacate(at);
                }
            }
            Event::Orders(name, orders) => {
                let at = self.agent_slot(&name);
                self.set_orders(at, orders);
                self.has_left(at);
                self.dirty_slots.insert(at);
            }
            Event::Reports(name, reports) => {
                let at = self.agent_slot(&name);
                self.set_reports(at, reports);
                self.dirty_slots.insert(at);
            }
            Event::AgentGone(name) => {
                if let Some(&at) = self.by_name.get(&name) {
                    self.set_orders(at, BTreeMap::new());
                    self.has_left(at);
                    self.set_reports(at, BTreeMap::new());
                    self.change_node(at, |slot| {
                        (slot.agent, slot.features, slot.peer) = (false, BTreeSet::new(), None);
                    });
                    self.tell_node(at);
                    self.vacate(at);
                }
            }
            Event::Features(name, features) => {
                let at = self.agent_slot(&name);
                if self.slots.get(at).is_some_and(|slot| slot.features != features) {
                    self.change_node(at, |slot| slot.features = features);
                }
            }
            Event::Peer(name, facts) => {
                let facts = facts.map(Box::new);
                // That an agent serves nobody does not mean that there is one.
                let at = if facts.is_some() { Some(self.agent_slot(&name)) } else { self.by_name.get(&name).copied() };
                if let Some(at) = at.filter(|at| self.slots.get(*at).is_some_and(|slot| slot.peer != facts)) {
                    self.change_node(at, |slot| slot.peer = facts);
                }
            }
            Event::Secret(id, found, asked) => self.set_secret(id, found, asked),
            Event::Freeze(kind) => {
                self.frozen.insert(kind);
            }
            Event::Thaw(kind) => self.thaw(&kind),
            Event::Policies(restrictions) => self.set_policies(restrictions),
            Event::PoliciesUnseen(kind) => self.policies.unseen = Some(kind),
            Event::Namespace(name, labels) => self.set_namespace(name, labels),
        }
    }

    /// Something was heard of a node's agent: a sign of life for all that it was ordered, also for what it has not
    /// begun.
    pub fn heard(&mut self, node: &str, now: Timestamp) {
        let Some(&at) = self.by_name.get(node) else { return };
        let Some(slot) = self.slots.get_mut(at) else { return };
        let was_silent = slot.heard.replace(now).is_none_or(|last| after(last, pace::SILENCE) <= now);
        if was_silent {
            self.touch_node(at);
        }
    }

    /// Everything was listed anew, and from now on nodes can be heard. The silence before, when nobody could have been, does
    /// not count; and what was said of jobs may not be what their objects say now.
    pub fn listening(&mut self, now: Timestamp) {
        for slot in &mut self.slots {
            slot.heard = Some(now);
        }
        for state in self.jobs.values_mut() {
            state.said = None;
        }
        self.touch_everything();
    }

    /// The job as it is known.
    pub fn job(&self, id: &JobId) -> Option<&Job> {
        self.jobs.get(id).map(|state| &state.job)
    }

    /// The outcome of a job that was last handed out.
    pub fn outcome(&self, id: &JobId) -> Option<Outcome> {
        let state = self.jobs.get(id)?;
        let (outcome, _) = state.said.as_ref()?;
        Some(Outcome { eta: state.eta, ..outcome.clone() })
    }

    /// Whether the time to live of a job is over.
    pub fn is_expired(&self, id: &JobId) -> bool {
        self.jobs.get(id).is_some_and(|state| state.expired)
    }

    /// The ids of all jobs.
    pub fn jobs(&self) -> impl Iterator<Item = &JobId> {
        self.jobs.keys()
    }

    /// What a node is ordered to do, as far as this world assumes.
    pub fn orders(&self, node: &str) -> Option<BTreeMap<Key, Order>> {
        let slot = self.by_name.get(node).and_then(|&at| self.slots.get(at))?;
        Some(slot.orders.iter().map(|(key, held)| (*key, held.order())).collect())
    }

    /// One of these orders.
    pub fn order(&self, node: &str, key: Key) -> Option<Order> {
        let slot = self.by_name.get(node).and_then(|&at| self.slots.get(at))?;
        slot.orders.get(&key).map(HeldOrder::order)
    }

    /// Marks everything, so that the next plan is the naive one: the oracle of the incremental plan.
    pub fn touch_everything(&mut self) {
        for (id, state) in &mut self.jobs {
            state.stale = Stale::All;
            state.verdict = None;
            state.choice.due |= state.job.pick.is_some();
            self.dirty_jobs.insert(id.clone());
        }
        self.dirty_slots.extend(self.by_name.values());
        for state in self.jobs.values() {
            self.secrets.touch(&state.job);
            self.policies.touch(state.job.id.namespace());
        }
    }

    /// What was taken back from a node, or is held there, is not at work any more.
    fn has_left(&mut self, at: usize) {
        self.dirty_jobs.extend(self.leaving.remove(&at).unwrap_or_default());
    }

    /// The orders of these images are looked at again wherever they stand.
    fn recheck_orders(&mut self, keys: &BTreeSet<Key>) {
        let slots = self.slots.iter().enumerate();
        let held =
            |slot: &NodeSlot, key: &Key| slot.orders.contains_key(key) || slot.orders.contains_key(&key.question());
        let holding = slots.filter(|(_, slot)| keys.iter().any(|key| held(slot, key)));
        let holding: Vec<usize> = holding.map(|(at, _)| at).collect();
        // Orders that nobody wants any more make room for others.
        let crowded: Vec<usize> = holding.iter().copied().filter(|at| self.is_crowded(*at)).collect();
        crowded.into_iter().for_each(|at| self.touch_node(at));
        self.dirty_slots.extend(holding);
    }

    /// The place of this name; a new one if there is none.
    fn slot(&mut self, name: &NodeName) -> usize {
        if let Some(&at) = self.by_name.get(name) {
            return at;
        }
        let slot = NodeSlot { name: name.clone(), ..NodeSlot::default() };
        let at = match self.vacant.pop() {
            Some(at) => at,
            None => {
                self.slots.push(NodeSlot::default());
                self.slots.len() - 1
            }
        };
        if let Some(place) = self.slots.get_mut(at) {
            *place = slot;
        }
        self.by_name.insert(name.clone(), at);
        self.tell_node(at);
        self.touch_node(at);
        at
    }

    /// The place of a node that is known to have an agent.
    fn agent_slot(&mut self, name: &NodeName) -> usize {
        let at = self.slot(name);
        if self.slots.get(at).is_some_and(|slot| !slot.agent) {
            self.change_node(at, |slot| slot.agent = true);
            self.tell_node(at);
        }
        at
    }

    /// What is known of the node itself in this slot.
    fn set_node(&mut self, at: usize, node: Option<Node>) {
        let Some(slot) = self.slots.get(at) else { return };
        let foreign = node.as_ref().is_some_and(|node| node.foreign);
        if slot.node.is_some() != node.is_some() {
            self.tell_node(at);
        }
        let Some(slot) = self.slots.get(at).filter(|slot| slot.is_foreign() != foreign) else {
            return self.change_node(at, |slot| slot.node = node);
        };
        // What a foreign node says counts for nobody else: all of it is counted again.
        let orders = slot.orders.iter().map(|(key, held)| (*key, held.order())).collect();
        let reports = slot.reports.iter().map(|(key, report)| (*key, (**report).clone())).collect();
        self.set_reports(at, BTreeMap::new());
        self.set_orders(at, BTreeMap::new());
        self.change_node(at, |slot| slot.node = node);
        self.set_orders(at, orders);
        self.set_reports(at, reports);
    }

    fn vacate(&mut self, at: usize) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        if slot.node.is_none() && !slot.agent {
            self.by_name.remove(&slot.name);
            self.peer_refs.forget(&slot.name);
            self.troubles.remove(&slot.name);
            *slot = NodeSlot::default();
            self.vacant.push(at);
            self.dirty_slots.remove(&at);
            self.moved.remove(&at);
        }
    }

    fn change_node(&mut self, at: usize, change: impl FnOnce(&mut NodeSlot)) {
        if let Some(slot) = self.slots.get_mut(at) {
            let before = slot.peer().map(|facts| (facts.socket(), facts.key.clone()));
            change(slot);
            if slot.peer().is_some_and(|facts| before != Some((facts.socket(), facts.key.clone()))) {
                self.moved.insert(at);
            }
            self.touch_node(at);
        }
    }

    /// Every job that wants this node, or wanted it, looks at it again, and so does whoever tidies its orders. So does every job
    /// that waits until this node has asked a registry or may read from it, also one that wants other nodes.
    fn touch_node(&mut self, at: usize) {
        self.dirty_slots.insert(at);
        let Some(slot) = self.slots.get(at) else { return };
        // Others may read from this node, or wait until somebody can serve them.
        let mut others_wait = self.relay;
        for (id, state) in &mut self.jobs {
            others_wait |= state.job.pull.copies().1;
            state.choice.due |= state.job.pick.is_some();
            if !state.is_about(&self.slots, at) {
                continue;
            }
            if let Stale::Some(seats) = &mut state.stale {
                seats.insert(at);
            }
            self.dirty_jobs.insert(id.clone());
        }
        for (key, order) in &slot.orders {
            let demand = self.demand.get(&orders::image_key(*key, order));
            let waiting = demand.filter(|demand| others_wait || demand.is_asking(at)).map(|demand| &demand.jobs);
            self.dirty_jobs.extend(waiting.into_iter().flatten().cloned());
        }
    }
}
