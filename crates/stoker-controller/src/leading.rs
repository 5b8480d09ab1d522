//! What is done: plans become orders that are owed to nodes and roots that are due, both become writes, and what comes of a
//! write is heard like everything else.

mod key;
mod logins;
mod refused;
#[cfg(test)]
mod tests;
mod tickets;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt as _;
use stoker_api::Write;
use stoker_api::native::NodeObject;
use stoker_api::view::Root;
use stoker_core::world::NodeTroubles;
use stoker_core::{SecretId, model};
use stoker_transfer::PublicKey;
use stoker_transfer::peer::PeerId;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use self::key::AgentKey;
use self::refused::RefusedOrders;
use self::tickets::{HeldTickets, TicketOffice};
use crate::due::{Due, Ended, Next};
use crate::facts;
use crate::hearing::Hearing;
use crate::moment::Source;
use crate::owed::Owed;
use crate::peers;
use crate::secrets::{Present, Secrets};
use crate::writer::{Answer, Done, Numbered};

/// Roots that are looked at in one turn, at most.
const ROOTS_A_TURN: usize = 64;

/// Nodes whose objects of other projects are written at one time, at most.
const NODES_AT_ONCE: usize = 32;

/// How often nodes whose orders wait for their turn are excused for their silence; far more often than [`stoker_core::pace::SILENCE`].
const EXCUSE_EVERY: Duration = Duration::from_secs(60);

/// Whether a root is one of those of which there may be thousands, as of nodes.
pub(crate) fn is_node(root: &Root) -> bool {
    root.kind.is_of_nodes()
}

/// What is under way.
pub(crate) struct Leading {
    /// Of the NodePreheats, besides what the World holds.
    nodes: BTreeMap<String, Agent>,
    secrets: Secrets,
    /// Of the Secrets that jobs named when all objects were known: those that were not read yet, and until when they are waited for.
    /// Until then nothing is planned, or what is known to be missing would be unknown for a moment.
    unread: Option<(BTreeSet<SecretId>, Instant)>,
    /// Nodes whose orders name logins that are not there, or not for the key that the node has now.
    lacking: BTreeSet<String>,
    tickets: TicketOffice,
    /// Nodes whose agents said another key that is not followed yet.
    rekeyed: BTreeSet<String>,
    /// Nodes with orders that the API server refuses.
    refusing: BTreeSet<String>,
    /// To be told once, when no order names a copy of a Secret, as earlier versions made them.
    no_copies: Option<Arc<Notify>>,
    /// Orders that are planned and not handed to the writer.
    owed: Owed,
    /// When nodes that wait for their orders were last excused.
    excused: Option<Instant>,
    /// Writes of roots.
    due: Due,
    /// The node, or the object about one, that was last looked at for what it asks for.
    last_node: Option<Root>,
    writes: mpsc::UnboundedSender<Numbered>,
    /// Of the last write.
    number: u64,
}

/// The object of an agent.
#[derive(Default)]
struct Agent {
    uid: String,
    /// To which its logins are sealed.
    key: AgentKey<PublicKey>,
    /// By which it proves to other nodes who it is: its tickets are for this key.
    reader: AgentKey<PeerId>,
    /// Its logins, as they will be when all writes under way have arrived.
    logins: Present,
    /// The same of its tickets; only those that it can use.
    tickets: HeldTickets,
    /// When orders were last written because they lacked tickets.
    retold: Option<Instant>,
    names_copies: bool,
    /// Orders that the API server does not take.
    refused: RefusedOrders,
    /// The newest write of orders that was handed out and has not ended; 0 for none.
    pending: u64,
    /// The version of its object that was known then.
    before: u64,
}

impl Agent {
    /// It proves to others who it is by another key: what was made for the old one is worthless.
    fn lose_tickets(&mut self) {
        self.tickets.clear();
        self.retold = None;
    }
}

impl Leading {
    pub(crate) fn new(
        secrets: Secrets,
        no_copies: Arc<Notify>,
        owed: Owed,
        writes: mpsc::UnboundedSender<Numbered>,
    ) -> Self {
        Self {
            nodes: BTreeMap::new(),
            secrets,
            unread: None,
            lacking: BTreeSet::new(),
            tickets: TicketOffice::default(),
            rekeyed: BTreeSet::new(),
            refusing: BTreeSet::new(),
            no_copies: Some(no_copies),
            owed,
            excused: None,
            due: Due::default(),
            last_node: None,
            writes,
            number: 0,
        }
    }

    /// A NodePreheat as a watch saw it or as it answered a write; orders that are under way are not taken back.
    pub(crate) fn see_node(&mut self, hearing: &mut Hearing, object: NodeObject, source: Source) {
        let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
        let agent = self.nodes.get(&name);
        let assumed = agent.is_some_and(|agent| agent.pending != 0) || self.owed.holds(&name);
        let anew = agent.is_none_or(|agent| agent.uid != uid);
        let (key, reader, names_copies) = (facts::key(&object), peers::reader(&object), object.names_copies);
        let tickets = tickets::present(&object);
        let logins = object.logins.iter();
        let logins: Present = logins.map(|(id, login)| (id.clone(), (login.key.clone(), login.sealed.len()))).collect();
        if !hearing.see_node(object, source, assumed) {
            return;
        }
        let agent = self.nodes.entry(name.clone()).or_default();
        (agent.uid, agent.names_copies) = (uid, names_copies);
        agent.key.see(key, Instant::now());
        if agent.reader.see(reader, Instant::now()) {
            agent.lose_tickets();
        }
        if agent.key.wake().is_some() || agent.reader.wake().is_some() {
            self.rekeyed.insert(name.clone());
        }
        if !assumed || anew {
            agent.logins = logins;
            agent.tickets = tickets::usable(tickets, agent.reader.get());
        }
        if !assumed {
            self.look_for_logins(hearing, &name);
            self.look_for_tickets(hearing, &name);
        }
    }

    /// A write has ended. That an object is gone its watch says too.
    pub(crate) fn acknowledge(&mut self, hearing: &mut Hearing, Done { target, number, answer, at }: Done) {
        let ended = match &answer {
            Answer::Node(_) | Answer::Object(_) => Ended::There,
            Answer::Gone => Ended::Gone,
            Answer::Failed(_) | Answer::Refused { .. } => Ended::Failed,
        };
        let root = match self.due.end(number, ended) {
            Some(Next::Again(event, tries)) => return self.tell(event, Some(tries)),
            Some(Next::Told) => return,
            Some(Next::Of(root, events)) => {
                events.into_iter().for_each(|event| self.tell(event, None));
                Some(root)
            }
            None => None,
        };
        if let Some(root) = root {
            match answer {
                Answer::Object(Some((query, row))) => hearing.see_row(&query, row, Source::Answer(at)),
                Answer::Failed(why) => hearing.view.failed(root, &target, &why),
                _ => {}
            }
            return;
        }
        if let Some(agent) = self.nodes.get_mut(&target.name)
            && number >= agent.pending
        {
            agent.pending = 0;
        }
        match answer {
            Answer::Node(object) => {
                if let Some(agent) = self.nodes.get_mut(&target.name).filter(|_| self.refusing.contains(&target.name)) {
                    agent.refused.see(&object.orders);
                    let troubles = hearing.world.troubles(&target.name);
                    let troubles = NodeTroubles { refused: agent.refused.words(), ..troubles };
                    hearing.world.set_troubles(&target.name, troubles);
                }
                self.see_node(hearing, *object, Source::Answer(at));
            }
            Answer::Gone => self.lost_node(hearing, &target.name),
            Answer::Refused { order, why } => self.refuse(hearing, &target.name, &order, why),
            Answer::Object(_) | Answer::Failed(_) => {}
        }
    }

    /// The API server does not take an order of a node. Its jobs are told, and it is tried again later.
    fn refuse(&mut self, hearing: &mut Hearing, name: &str, order: &str, why: String) {
        let Some(agent) = self.nodes.get_mut(name) else { return };
        let Ok(key) = order.parse::<model::Key>() else { return };
        let Some(order) = hearing.world.orders(name).and_then(|mut orders| orders.remove(&key)) else { return };
        tracing::warn!(node = name, image = order.image, "the API server refuses an order: {why}");
        agent.refused.add(key, order, why, Instant::now());
        let troubles = NodeTroubles { refused: agent.refused.words(), ..hearing.world.troubles(name) };
        hearing.world.set_troubles(name, troubles);
        self.refusing.insert(name.into());
    }

    /// Has refused orders tried again whose time has come. Returns when there are more.
    fn retry_refused(&mut self, now: Instant) -> Option<Instant> {
        let mut next = None;
        for name in std::mem::take(&mut self.refusing) {
            let Some((agent, due)) = self.nodes.get(&name).and_then(|agent| Some((agent, agent.refused.due()?))) else {
                continue;
            };
            match due <= now {
                true => self.owed.add(&name, agent.refused.keys()),
                false => next = Some(next.map_or(due, |next: Instant| next.min(due))),
            }
            self.refusing.insert(name);
        }
        next
    }

    /// The orders of a node could not be written because its object was not there.
    fn lost_node(&mut self, hearing: &mut Hearing, name: &str) {
        let Some(agent) = self.nodes.get(name) else { return };
        if hearing.node_version(name) <= agent.before {
            self.forget_node(hearing, name);
            return;
        }
        // It was made anew in the meantime: what was meant for the old one is meant for the new one.
        let orders = hearing.world.orders(name).unwrap_or_default();
        self.owed.add(name, orders.into_keys());
    }

    /// The object of a node is gone.
    pub(crate) fn forget_node(&mut self, hearing: &mut Hearing, name: &str) {
        self.nodes.remove(name);
        self.lacking.remove(name);
        self.rekeyed.remove(name);
        self.refusing.remove(name);
        self.owed.forget(name);
        hearing.forget_node(name);
    }

    /// Plans. Returns when to plan again even if nothing happens.
    pub(crate) fn plan(&mut self, hearing: &mut Hearing) -> Option<Timestamp> {
        let now = (hearing.clock)();
        let begun = Instant::now();
        let rekeys = self.follow_keys(hearing, begun);
        let retries = self.retry_refused(begun);
        self.excuse_waiting(hearing, now, begun);
        let plan = hearing.world.plan(now);
        hearing.metrics.planned(&plan, begun);
        // What a node of somebody else is ordered is shown in its own object.
        let own = |node: &str| !hearing.world.node(node).is_some_and(|node| node.foreign);
        for write in plan.orders.iter().filter(|write| own(&write.node)) {
            self.owed.add(&write.node, write.keys.iter().copied());
        }
        self.secrets.want(hearing.world.wanted_secrets());
        if self.owed.is_done() {
            self.secrets.forget();
            if let Some(no_copies) = self.no_copies.take_if(|_| !self.nodes.values().any(|agent| agent.names_copies)) {
                no_copies.notify_one();
            }
        }
        for id in &plan.expired {
            tracing::info!(job = %id, "its time to live is over, deleting it");
            hearing.view.touch(id);
        }
        plan.outcomes.iter().for_each(|outcome| hearing.view.touch(&outcome.job));
        plan.nodes.iter().for_each(|node| hearing.touch_node(node));
        let own = rekeys.into_iter().chain(retries).map(|at| model::after(now, at - begun));
        plan.wake.into_iter().chain(own).min()
    }

    /// The World counts the silence of a node from the time at which an order was planned. A node whose order still waits for its turn among thousands of
    /// writes cannot have answered it, so that time does not count.
    fn excuse_waiting(&mut self, hearing: &mut Hearing, now: Timestamp, instant: Instant) {
        if self.excused.is_some_and(|last| instant < last + EXCUSE_EVERY) {
            return;
        }
        self.excused = Some(instant);
        for node in self.owed.turns().filter(|node| !self.refusing.contains(*node)) {
            hearing.world.heard(node, now);
        }
    }

    /// Hands out the writes of roots that are due; not of all, if there are many. Returns whether there are more.
    pub(crate) fn project(&mut self, hearing: &mut Hearing) -> bool {
        let now = (hearing.clock)();
        // There may be thousands of nodes: what they ask for waits as roots, and not as writes.
        let of_nodes = NODES_AT_ONCE.saturating_sub(self.due.nodes());
        let free = hearing.view.due(now).filter(|root| !self.due.is_busy(root));
        let (nodes, others): (Vec<&Root>, Vec<&Root>) = free.partition(|root| is_node(root));
        let left_out = nodes.len() > of_nodes;
        // By turns: nodes whose writes fail again and again keep no other from being written.
        let (before, after) = nodes.split_at(nodes.partition_point(|root| Some(*root) <= self.last_node.as_ref()));
        let nodes: Vec<&Root> = after.iter().chain(before).take(of_nodes).copied().collect();
        let last_node = nodes.last().copied().cloned();
        let roots: Vec<Root> = nodes.into_iter().chain(others).take(ROOTS_A_TURN).cloned().collect();
        self.last_node = last_node.or_else(|| self.last_node.take());
        for root in &roots {
            let writes = hearing.view.project(root, &hearing.world, now);
            let writes = self.due.begin(root, writes);
            self.hand_out(root, writes);
        }
        // Nodes without anything to write have made room for others.
        roots.len() == ROOTS_A_TURN || left_out && self.due.nodes() < NODES_AT_ONCE
    }

    /// Sends an event about writes that have ended.
    fn tell(&mut self, event: Write, tries: Option<u8>) {
        self.number += 1;
        self.due.tell(self.number, event.clone(), tries);
        self.write(event);
    }

    fn hand_out(&mut self, root: &Root, writes: Vec<Write>) {
        for write in writes {
            self.number += 1;
            self.due.hand_out(root, self.number, &write);
            self.write(write);
        }
    }

    /// Whether there are orders that the writer has not got.
    pub(crate) fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    fn write(&mut self, write: Write) {
        // The writer ends with the process only; the loop notices.
        let _ = self.writes.send((self.number, write));
    }
}
