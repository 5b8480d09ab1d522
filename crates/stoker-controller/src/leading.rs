//! What is done: plans become orders that are owed to nodes and roots that are due, both become writes, and what comes of a
//! write is heard like everything else.

mod key;
mod logins;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt as _;
use stoker_api::native::NodeObject;
use stoker_api::view::Query;
use stoker_api::{Write, job_kinds};
use stoker_core::{SecretId, model};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use self::key::AgentKey;
use crate::due::Due;
use crate::facts;
use crate::hearing::Hearing;
use crate::moment::Source;
use crate::owed::Owed;
use crate::secrets::{Present, Secrets};
use crate::writer::{Answer, Done, Numbered};

/// Roots that are looked at in one turn, at most.
const ROOTS_A_TURN: usize = 64;

/// What is under way.
pub(crate) struct Leading {
    /// Of the NodePreheats, besides what the World holds.
    nodes: BTreeMap<String, Agent>,
    secrets: Secrets,
    /// Of the Secrets that jobs named when all objects were known: those that were not read yet. Until then nothing is planned, or
    /// what is known to be missing would be unknown for a moment.
    unread: Option<BTreeSet<SecretId>>,
    /// Nodes whose orders name logins that are not there, or not for the key that the node has now.
    lacking: BTreeSet<String>,
    /// Nodes whose agents said another key that is not followed yet.
    rekeyed: BTreeSet<String>,
    /// To be told once, when no order names a copy of a Secret, as earlier versions made them.
    no_copies: Option<Arc<Notify>>,
    /// Orders that are planned and not handed to the writer.
    owed: Owed,
    /// Writes of roots.
    due: Due,
    writes: mpsc::UnboundedSender<Numbered>,
    /// Of the last write.
    number: u64,
}

/// The object of an agent.
#[derive(Default)]
struct Agent {
    uid: String,
    /// To which its logins are sealed.
    key: AgentKey,
    /// Its logins, as they will be when all writes under way have arrived.
    logins: Present,
    names_copies: bool,
    /// The newest write of orders that was handed out and has not ended; 0 for none.
    pending: u64,
    /// The version of its object that was known then.
    before: u64,
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
            rekeyed: BTreeSet::new(),
            no_copies: Some(no_copies),
            owed,
            due: Due::default(),
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
        let (key, names_copies) = (facts::key(&object), object.names_copies);
        let logins = object.logins.iter();
        let logins: Present = logins.map(|(id, login)| (id.clone(), (login.key.clone(), login.sealed.len()))).collect();
        if !hearing.see_node(object, source, assumed) {
            return;
        }
        let agent = self.nodes.entry(name.clone()).or_default();
        (agent.uid, agent.names_copies) = (uid, names_copies);
        agent.key.see(key, Instant::now());
        if agent.key.wake().is_some() {
            self.rekeyed.insert(name.clone());
        }
        if !assumed || anew {
            agent.logins = logins;
        }
        if !assumed {
            self.look_for_logins(hearing, &name);
        }
    }

    /// A write has ended. That an object is gone its watch says too.
    pub(crate) fn acknowledge(&mut self, hearing: &mut Hearing, Done { target, number, answer, at }: Done) {
        if let Some(root) = self.due.end(number) {
            let kind = job_kinds().find(|kind| kind.kind.name == target.resource.kind);
            match (answer, kind) {
                (Answer::Object(object), Some(kind)) => {
                    hearing.see_row(&Query::all(&kind.kind), *object, Source::Answer(at));
                }
                (Answer::Failed, _) => hearing.view.touch_root(root),
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
            Answer::Node(object) => self.see_node(hearing, *object, Source::Answer(at)),
            Answer::Gone => self.lost_node(hearing, &target.name),
            Answer::Object(_) | Answer::Failed => {}
        }
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
        self.owed.forget(name);
        hearing.forget_node(name);
    }

    /// Plans. Returns when to plan again even if nothing happens.
    pub(crate) fn plan(&mut self, hearing: &mut Hearing) -> Option<Timestamp> {
        let now = (hearing.clock)();
        let begun = Instant::now();
        let rekeys = self.follow_keys(hearing, begun);
        let plan = hearing.world.plan(now);
        hearing.metrics.planned(&plan, begun);
        for write in &plan.orders {
            self.owed.add(&write.node, write.changes.keys().copied());
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
        plan.wake.into_iter().chain(rekeys.map(|at| model::after(now, at - begun))).min()
    }

    /// Hands out the writes of roots that are due; not of all, if there are many. Returns whether there are more.
    pub(crate) fn project(&mut self, hearing: &mut Hearing) -> bool {
        let now = (hearing.clock)();
        let free = hearing.view.due(now).filter(|root| !self.due.is_busy(root));
        let roots: Vec<_> = free.take(ROOTS_A_TURN).cloned().collect();
        for root in &roots {
            for write in hearing.view.project(root, &hearing.world, now) {
                self.number += 1;
                self.due.hand_out(root, self.number);
                self.write(write);
            }
        }
        roots.len() == ROOTS_A_TURN
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
