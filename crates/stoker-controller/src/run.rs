//! The one loop: facts in, plan, writes out. Everything it knows it can learn again from the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::DynamicObject;
use kube::{Client, ResourceExt as _};
use stoker_api::native::NodeObject;
use stoker_api::{DIALECTS, Dialect, Write};
use stoker_core::{Clock, Event, JobId, SecretId, World};
use stoker_transfer::PublicKey;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::facts;
use crate::inputs::{Input, every_kind, watch_all};
use crate::lease::{Candidate, Held};
use crate::metrics::{BEAT_EVERY, Leading, Metrics};
use crate::mirror::{Mirror, Progress, Sight};
use crate::moment::{Moments, Source};
use crate::owed::Owed;
use crate::reading;
use crate::secrets::{Present, Secrets};
use crate::watch::Fact;
use crate::writer::{self, Answer, Done, Limits, Numbered};

mod logins;

/// What was heard and waits for the loop, at most; thousands of objects are larger than what is kept of them.
const INPUTS_AT_ONCE: usize = 128;

/// What one plan takes into account besides what it was made for, at most.
const INPUTS_A_PLAN: usize = 1024;

/// Orders that are on their way to the writer, at most.
const ORDERS_AT_ONCE: usize = 32;

/// What the controller needs.
#[derive(Clone)]
pub struct Settings {
    /// The API server, embedded or real.
    pub client: Client,
    /// The time.
    pub clock: Clock,
    /// The namespace of its Lease.
    pub namespace: String,
    /// How much to ask of the API server.
    pub limits: Limits,
    /// Who this is among controllers of one cluster. One that comes back under the same name need not wait.
    pub identity: String,
    /// Whether what one node says a tag means is enough for all, instead of two that agree.
    pub trust_one_witness: bool,
    /// What it counts; the same ones may be registered with a server.
    pub metrics: Metrics,
}

/// Why the controller ended unasked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One of its tasks did.
    #[error("the controller's {0} ended unasked; this is a bug, restart it and report the log")]
    Ended(&'static str),
}

/// Runs until it is cancelled: waits until it leads, leads until it does not, and waits again.
pub async fn run(settings: Settings, cancel: CancellationToken) -> Result<(), Error> {
    let candidate = Candidate::new(&settings);
    loop {
        let Some(held) = cancel.run_until_cancelled(candidate.acquire()).await else { return Ok(()) };
        tracing::info!(identity = settings.identity, "this controller leads");
        // Whatever ends this ends the writer with it: who does not lead does not write.
        tokio::select! {
            result = lead(&settings, &held, &cancel) => {
                result?;
                if cancel.is_cancelled() {
                    candidate.release().await;
                    return Ok(());
                }
            }
            () = candidate.keep(&held) => {}
        }
    }
}

/// Leads until it is cancelled, or a controller with a higher epoch has written. Or until a list shows that the API server went
/// back to an older state: all that is known here, assumed and under way belongs to another history then, and a World made
/// anew from the objects plans rightly.
async fn lead(settings: &Settings, held: &Held, cancel: &CancellationToken) -> Result<(), Error> {
    let (input, mut inputs) = mpsc::channel(INPUTS_AT_ONCE);
    let (writes, writes_out) = mpsc::unbounded_channel();
    // Orders wait here and not with the writer, see `owed`.
    let (orders, orders_out) = mpsc::channel(ORDERS_AT_ONCE);
    let owed = Owed::default();
    let (done, mut dones) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    let moments = Moments::default();
    watch_all(settings, &moments, &input, &mut tasks);
    let (all, now) = (watch::Sender::new(BTreeSet::new()), mpsc::unbounded_channel());
    tasks.spawn({
        let (client, clock, all) = (settings.client.clone(), settings.clock.clone(), all.subscribe());
        async move {
            reading::run(client, clock, all, now.1, input).await;
            "reader of Secrets"
        }
    });
    let no_copies = Arc::new(Notify::new());
    tasks.spawn({
        let (client, namespace, no_copies) = (settings.client.clone(), settings.namespace.clone(), no_copies.clone());
        async move {
            loop {
                no_copies.notified().await;
                reading::delete_copies(&client, &namespace).await;
            }
        }
    });
    tasks.spawn({
        let (settings, term, moments) = (settings.clone(), held.term(), moments.clone());
        let inbox = writer::Inbox { orders: orders_out, others: writes_out, owed: owed.count() };
        async move {
            writer::run(settings, term, moments, inbox, done).await;
            "writer"
        }
    });
    let mut world = World::new();
    world.trust_one_witness(settings.trust_one_witness);
    let mut shell = Shell {
        clock: settings.clock.clone(),
        world,
        mirror: Mirror::default(),
        unreadable: BTreeSet::new(),
        nodes: BTreeMap::new(),
        secrets: Secrets::new(all, now.0),
        unread: None,
        lacking: BTreeSet::new(),
        no_copies: Some(no_copies),
        unheard: every_kind().collect(),
        owed,
        writes,
        number: 0,
        epoch: None,
        highest: held.transitions,
        rolled_back: false,
        leading: Leading::new(&settings.metrics),
    };
    let mut wake = None;
    let mut pulse = tokio::time::interval(BEAT_EVERY);
    loop {
        tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            Some(ended) = tasks.join_next() => return Err(Error::Ended(ended.unwrap_or("task"))),
            Some(input) = inputs.recv() => shell.hear(input),
            Some(done) = dones.recv() => shell.acknowledge(done),
            Ok(permit) = orders.reserve(), if shell.owes() => {
                if let Some(write) = shell.next_owed() {
                    permit.send(write);
                }
                // Nothing new is known; a plan that is due is made all the same.
                if wake.is_none_or(|wake| (settings.clock)() < wake) {
                    continue;
                }
            }
            () = sleep_until(wake, &settings.clock), if wake.is_some() => {}
            _ = pulse.tick() => {
                settings.metrics.beat();
                continue;
            }
        }
        // Everything that is known by now goes into one plan; but where news never stop, plans are made all the same.
        for _ in 0..INPUTS_A_PLAN {
            let Ok(input) = inputs.try_recv() else { break };
            shell.hear(input);
        }
        while let Ok(done) = dones.try_recv() {
            shell.acknowledge(done);
        }
        if shell.rolled_back {
            tracing::warn!("the API server has an older state than it had; forgetting everything and reading it anew");
            return Ok(());
        }
        if shell.epoch.is_some_and(|epoch| epoch < shell.highest) {
            tracing::warn!(highest = shell.highest, "a controller with a higher epoch writes orders; stepping down");
            return Ok(());
        }
        if shell.may_plan() {
            wake = shell.plan();
        }
    }
}

async fn sleep_until(wake: Option<Timestamp>, clock: &Clock) {
    let left = wake.map(|wake| wake.duration_since(clock())).unwrap_or_default();
    // At least a moment, so that a clock that lags behind the timer does not spin.
    tokio::time::sleep(Duration::try_from(left).unwrap_or_default().max(Duration::from_millis(1))).await;
}

/// The World with what stands between it and the API server.
struct Shell {
    clock: Clock,
    world: World,
    mirror: Mirror,
    /// Jobs whose status cannot be read, and of which an event said so.
    unreadable: BTreeSet<JobId>,
    /// Of the NodePreheats, besides what the World holds.
    nodes: BTreeMap<String, Agent>,
    secrets: Secrets,
    /// Of the Secrets that jobs named when all objects were known: those that were not read yet. Until then nothing is planned, or
    /// what is known to be missing would be unknown for a moment.
    unread: Option<BTreeSet<SecretId>>,
    /// Nodes whose orders name logins that are not there, or not for the key that the node has now.
    lacking: BTreeSet<String>,
    /// To be told once, when no order names a copy of a Secret, as earlier versions made them.
    no_copies: Option<Arc<Notify>>,
    /// Kinds of which not everything is known: the first list is not complete, or the watch is interrupted. Until then nothing
    /// is planned.
    unheard: BTreeSet<&'static str>,
    /// Orders that are planned and not handed to the writer.
    owed: Owed,
    writes: mpsc::UnboundedSender<Numbered>,
    /// Of the last write.
    number: u64,
    /// Ours, once every object was seen: higher than any before.
    epoch: Option<i64>,
    /// The highest that was seen.
    highest: i64,
    /// The API server has lost something that is known here.
    rolled_back: bool,
    leading: Leading,
}

/// The object of an agent.
#[derive(Default)]
struct Agent {
    uid: String,
    progress: Progress,
    /// To which its logins are sealed.
    key: Option<PublicKey>,
    /// Its logins, as they will be when all writes under way have arrived.
    logins: Present,
    names_copies: bool,
}

impl Shell {
    fn hear(&mut self, input: Input) {
        match input {
            Input::Node(Fact::There(node, _)) => self.world.apply(Event::Node(node)),
            Input::Node(Fact::Gone((_, name))) => self.world.apply(Event::NodeGone(name.into())),
            Input::Node(Fact::Listed | Fact::Resumed) => self.hears("Node"),
            Input::Node(Fact::Deaf) => self.deaf("Node"),
            Input::NodePreheat(Fact::There(seen, source)) => self.see_node(*seen, source),
            Input::NodePreheat(Fact::Gone((_, name))) => {
                self.forget_node(&name);
            }
            Input::NodePreheat(Fact::Listed | Fact::Resumed) => self.hears("NodePreheat"),
            Input::NodePreheat(Fact::Deaf) => self.deaf("NodePreheat"),
            Input::Job(dialect, Fact::There(object, source)) => self.see_job(dialect, *object, source),
            Input::Job(dialect, Fact::Gone((namespace, name))) => {
                let id = dialect.job_id(&namespace, &name);
                self.mirror.forget(&id);
                self.forget_job(id);
            }
            Input::Secret(id, read, asked) => self.see_secret(id, read, asked),
            Input::Job(dialect, Fact::Listed | Fact::Resumed) => self.hears(dialect.kind),
            Input::Job(dialect, Fact::Deaf) => self.deaf(dialect.kind),
        }
    }

    fn hears(&mut self, kind: &'static str) {
        if self.unheard.remove(kind) && self.unheard.is_empty() {
            let epoch = *self.epoch.get_or_insert(self.highest + 1);
            self.highest = self.highest.max(epoch);
            tracing::info!(epoch, "all objects are known, planning begins");
            self.world.listening((self.clock)());
            self.leading.hears();
        }
    }

    /// Nothing is planned while something cannot be heard: silence, deadlines and ends would be guesses.
    fn deaf(&mut self, kind: &'static str) {
        self.unheard.insert(kind);
        self.leading.deaf(kind);
    }

    /// A NodePreheat as a watch saw it or as it answered a write; orders that are under way are not taken back.
    fn see_node(&mut self, object: NodeObject, source: Source) {
        let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
        if matches!(source, Source::Answer(_)) && self.nodes.get(&name).is_none_or(|agent| agent.uid != uid) {
            return;
        }
        let agent = self.nodes.entry(name.clone()).or_default();
        match agent.progress.see(facts::version(&object), source) {
            Sight::New => {}
            other => return self.unseen(other),
        }
        agent.key = facts::key(&object);
        agent.names_copies = object.names_copies;
        let sees_spec = !agent.progress.assumed() && !self.owed.holds(&name);
        if sees_spec || agent.uid != uid {
            let logins = object.logins.iter();
            agent.logins = logins.map(|(id, login)| (id.clone(), (login.key.clone(), login.sealed.len()))).collect();
        }
        agent.uid = uid;
        self.highest = self.highest.max(object.epoch);
        let mut object = object;
        // A report that outlived its order is for people: what the plan counts has an order.
        object.reports.retain(|key, _| object.orders.contains_key(key));
        // The order says whose it is; thousands of reports need not say it once more.
        object.reports.values_mut().for_each(|report| report.jobs.clear());
        let (orders, said) = facts::node(object);
        if sees_spec {
            self.world.apply(orders);
        }
        said.into_iter().for_each(|event| self.world.apply(event));
        self.world.heard(&name, (self.clock)());
        if sees_spec {
            self.look_for_logins(&name);
        }
    }

    fn see_job(&mut self, dialect: &'static Dialect, object: DynamicObject, source: Source) {
        let id = dialect.job_id_of(&object);
        let going = object.metadata.deletion_timestamp.is_some();
        let object = match self.mirror.see(&id, dialect, object, source) {
            Ok(object) => object,
            Err(other) => return self.unseen(other),
        };
        // One that is being deleted has no orders any more, whatever still holds its object.
        match facts::job(dialect, object).filter(|_| !going) {
            Some(job) => {
                let complaint = job.unreadable.as_ref().filter(|_| !self.unreadable.contains(&id));
                let complaint =
                    complaint.map(|problem| stoker_api::unreadable(dialect, object, problem, (self.clock)()));
                match job.unreadable.is_some() {
                    true => self.unreadable.insert(id),
                    false => self.unreadable.remove(&id),
                };
                self.world.apply(Event::Job(Box::new(job)));
                complaint.into_iter().for_each(|event| self.write(event));
            }
            None => self.forget_job(id),
        }
    }

    /// A job is gone, or about to be.
    fn forget_job(&mut self, id: JobId) {
        self.unreadable.remove(&id);
        self.leading.forget(&id);
        self.world.apply(Event::JobGone(id));
    }

    /// A state of an object is not the newest.
    fn unseen(&mut self, sight: Sight) {
        self.rolled_back |= sight == Sight::RolledBack;
    }

    /// A write has ended. That an object of a job is gone its watch says too.
    fn acknowledge(&mut self, Done { target, number, answer, at }: Done) {
        match DIALECTS.iter().find(|dialect| dialect.kind == target.resource.kind) {
            Some(dialect) => {
                let id = dialect.job_id(target.namespace.as_deref().unwrap_or_default(), &target.name);
                self.mirror.end(&id, number);
                if let Some(Answer::Object(object)) = answer {
                    self.see_job(dialect, *object, Source::Answer(at));
                }
            }
            None if target.resource.kind != "NodePreheat" => {}
            None => {
                if let Some(agent) = self.nodes.get_mut(&target.name) {
                    agent.progress.end(number);
                }
                match answer {
                    Some(Answer::Node(object)) => self.see_node(*object, Source::Answer(at)),
                    Some(Answer::Object(_)) => {}
                    None => self.lost_node(&target.name),
                }
            }
        }
    }

    /// The orders of a node could not be written because its object was not there.
    fn lost_node(&mut self, name: &str) {
        let Some(agent) = self.nodes.get(name) else { return };
        if !agent.progress.moved_on() {
            self.forget_node(name);
            return;
        }
        // It was made anew in the meantime: what was meant for the old one is meant for the new one.
        let orders = self.world.orders(name).unwrap_or_default();
        self.owed.add(name, orders.into_keys());
    }

    /// The object of a node is gone.
    fn forget_node(&mut self, name: &str) {
        self.nodes.remove(name);
        self.lacking.remove(name);
        self.owed.forget(name);
        self.world.apply(Event::AgentGone(name.into()));
    }

    /// Plans, and hands out the writes. Returns when to plan again even if nothing happens.
    fn plan(&mut self) -> Option<Timestamp> {
        let now = (self.clock)();
        let begun = tokio::time::Instant::now();
        let plan = self.world.plan(now);
        self.leading.planned(&plan, begun);
        for write in &plan.orders {
            self.owed.add(&write.node, write.changes.keys().copied());
        }
        self.secrets.want(self.world.wanted_secrets());
        if self.owed.is_done() {
            self.secrets.forget();
            if let Some(no_copies) = self.no_copies.take_if(|_| !self.nodes.values().any(|agent| agent.names_copies)) {
                no_copies.notify_one();
            }
        }
        for outcome in &plan.outcomes {
            for write in self.mirror.project(outcome, self.number, now) {
                self.write(write);
            }
        }
        for id in &plan.expired {
            tracing::info!(job = %id, "its time to live is over, deleting it");
            if let Some(write) = self.mirror.delete(id) {
                self.write(write);
            }
        }
        plan.wake
    }

    /// Whether there are orders that the writer has not got.
    fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    fn write(&mut self, write: Write) {
        self.number += 1;
        // The writer ends with the process only; the loop notices.
        let _ = self.writes.send((self.number, write));
    }
}
