//! The agent's one loop: orders and ends of attempts in, core's step, attempts and reports out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, OptionFuture};
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt as _};
use stoker_api::native::NodeObject;
use stoker_core::Clock;
use stoker_core::model::{Bytes, Key, Order, Phase, Report, after};
use stoker_core::step::{self, Able, Failure, Task};
use stoker_runtime::room::Room;
use stoker_runtime::{Runtime, Stored};
use stoker_transfer::credentials::Providers;
use stoker_transfer::limit::Pace;
use stoker_transfer::{NodeKey, Platform, PublicKey, Registry, Spool};
use tokio::sync::Notify;
use tokio::sync::watch::{self as channel, Sender};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::guard::Guard;
use crate::key;
use crate::ledger::{Ledger, Unreadable};
use crate::leftovers::Leftovers;
use crate::logins::{Logins, Sealed};
use crate::meter::Meter;
use crate::metrics::{self, Metrics, Share};
use crate::node;
use crate::pull::{Done, Tools, Uses};
use crate::pulls::Pulls;
use crate::refused::Told;
use crate::register::register;
use crate::report::{Kept, Said, until};
use crate::starts::Starts;
use crate::sweep::{Broom, Keep};
use crate::truth::{self, Seen};
use crate::watch;

mod attempts;
mod writing;

/// No answer after this long is as good as a broken connection.
const PATIENCE: Duration = Duration::from_secs(30);

/// What an agent needs.
#[derive(Clone)]
pub struct Settings {
    /// The API server, embedded or real.
    pub client: Client,
    /// The time.
    pub clock: Clock,
    /// The name of its Node.
    pub node: String,
    /// For whom it pulls.
    pub platform: Platform,
    /// Where bytes come from.
    pub registry: Registry,
    /// Programs of the node that know logins.
    pub providers: Providers,
    /// Where they are while they come.
    pub spool: Spool,
    /// Where they go.
    pub runtime: Runtime,
    /// Why they go there, for people.
    pub why_runtime: String,
    /// How much at one time.
    pub limits: Limits,
    /// The file in which it remembers its orders; the key of the node is beside it.
    pub ledger: PathBuf,
    /// On a machine without a kubelet: the labels of the Node that the agent makes and keeps alive itself.
    pub node_labels: Option<BTreeMap<String, String>>,
    /// What it counts, together with all agents that have the same ones.
    pub metrics: Metrics,
}

/// How much of a node an agent may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Images that are pulled at one time.
    pub pulls: usize,
    /// Layers of one image that are worked on at one time.
    pub layers: usize,
    /// How full the disks of images and spool may become, in percent.
    pub disk: u8,
    /// Bytes a second for all pulls together, unless the NodePreheat says another number.
    pub bandwidth: Option<u64>,
    /// How long what was fetched for an order that was taken back stays.
    pub keep_fetched: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { pulls: 3, layers: 4, disk: 80, bandwidth: None, keep_fetched: Duration::from_secs(3600) }
    }
}

/// Why an agent ended unasked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The stream of its orders did.
    #[error("the agent's watch of NodePreheat {0} ended unasked; this is a bug, restart it and report the log")]
    WatchEnded(String),
    /// Its memory cannot be read.
    #[error(transparent)]
    Ledger(#[from] Box<dyn std::error::Error + Send + Sync>),
}

/// An attempt under way.
struct Running {
    meter: Meter,
    /// Its limit, which an edit of its jobs may change.
    pace: Arc<Pace>,
    /// What earlier attempts at the same order had received.
    earlier: Bytes,
    /// The order as it began with it.
    began: Order,
    abort: AbortHandle,
}

struct Agent {
    settings: Settings,
    share: Share,
    tools: Tools,
    salt: u64,
    orders: BTreeMap<Key, Order>,
    /// The logins that the orders name, for those who open them.
    sealed: Sender<Sealed>,
    /// What is published: the key to which logins are sealed, and what orders may need.
    key: PublicKey,
    features: BTreeSet<String>,
    tasks: BTreeMap<Key, Task>,
    /// Uid and generation of the object that the orders are from.
    source: (String, i64),
    /// What is on the disk.
    ledger: Ledger,
    /// What was begun and has not ended.
    starts: Starts,
    /// What the spool had when this agent began.
    spooled: u64,
    running: BTreeMap<Key, Running>,
    /// How long attempts that gave their places to others had been at work.
    worked: BTreeMap<Key, Duration>,
    attempts: JoinSet<Result<Done, Failure>>,
    news: Arc<Notify>,
    said: Said,
    /// Reports that stay although their orders are gone.
    kept: Kept,
    /// Whether its object was read, with what an earlier life of this agent had said there.
    adopted: bool,
    /// The first write says what agent this is.
    introduced: bool,
    /// For what orders that were taken back leave behind.
    broom: Broom,
    /// After a failed write, not before this time.
    quiet_until: Option<Timestamp>,
    pause: Duration,
}

/// Runs until it is cancelled.
pub async fn run(settings: Settings, cancel: CancellationToken) -> Result<(), Error> {
    let node = settings.node_labels.clone();
    let node =
        node.map(|labels| node::keep(settings.client.clone(), settings.clock.clone(), settings.node.clone(), labels));
    tokio::select! {
        Some(()) = OptionFuture::from(node) => Ok(()),
        result = start(settings, cancel) => result,
    }
}

async fn start(settings: Settings, cancel: CancellationToken) -> Result<(), Error> {
    let path = settings.ledger.clone();
    let spool = settings.spool.dir().to_owned();
    let read = move || {
        let found = Found {
            ledger: Ledger::load(&path)?,
            pulls: Pulls::open(path.with_file_name("pulls")),
            key: key::load(&path.with_file_name("node.key")),
            spooled: size_of_files(&spool),
        };
        Ok::<_, Unreadable>(found)
    };
    let found = tokio::task::spawn_blocking(read).await;
    let found =
        found.map_err(|problem| Error::Ledger(problem.into()))?.map_err(|problem| Error::Ledger(problem.into()))?;
    Agent::new(settings, found).run(cancel).await
}

/// What an earlier run of the agent left on the disk.
struct Found {
    ledger: Ledger,
    pulls: Pulls,
    key: NodeKey,
    /// The bytes in the spool.
    spooled: u64,
}

/// The sizes of all files in a directory, as far as they can be seen.
fn size_of_files(dir: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|meta| meta.len()).fold(0, u64::saturating_add)
}

impl Agent {
    fn new(settings: Settings, Found { ledger, pulls, key, spooled }: Found) -> Self {
        let uses: Arc<Uses> = Arc::default();
        let (sealed, receiver) = channel::channel(Arc::new(ledger.logins.clone()));
        let public = key.public();
        let leftovers = Leftovers {
            clock: settings.clock.clone(),
            spool: settings.spool.clone(),
            runtime: settings.runtime.clone(),
            uses: uses.clone(),
            pulls: Arc::new(pulls),
            age: settings.limits.keep_fetched,
            turn: Arc::default(),
        };
        let tools = Tools {
            registry: settings.registry.clone(),
            spool: settings.spool.clone(),
            clock: settings.clock.clone(),
            guard: Guard {
                runtime: settings.runtime.clone(),
                spool: settings.spool.dir().to_owned(),
                room: Room::new(settings.limits.disk),
                leftovers,
            },
            runtime: settings.runtime.clone(),
            platform: settings.platform.clone(),
            logins: Logins::new(key, receiver),
            providers: settings.providers.clone(),
            layers: settings.limits.layers.max(1),
            uses,
        };
        let now = (settings.clock)();
        let adopt = |(key, report): (&Key, &Report)| (*key, step::adopt(report.clone(), now));
        let tasks = ledger.reports.iter().filter(|(key, _)| ledger.orders.contains_key(key)).map(adopt).collect();
        let salt = settings.node.bytes().fold(7u64, |salt, byte| salt.wrapping_mul(31).wrapping_add(byte.into()));
        Self {
            spooled,
            share: settings.metrics.join(),
            settings,
            tools,
            salt,
            orders: ledger.orders.clone(),
            sealed,
            key: public,
            features: Able::default().features,
            tasks,
            source: (ledger.uid.clone(), ledger.generation),
            starts: ledger.starts.clone(),
            ledger,
            running: BTreeMap::new(),
            worked: BTreeMap::new(),
            attempts: JoinSet::new(),
            news: Arc::default(),
            said: Said::default(),
            kept: Kept::default(),
            adopted: false,
            introduced: false,
            broom: Broom::default(),
            quiet_until: None,
            pause: Duration::ZERO,
        }
    }

    async fn run(mut self, cancel: CancellationToken) -> Result<(), Error> {
        let (client, node) = (self.settings.client.clone(), self.settings.node.clone());
        let api: Api<NodeObject> = Api::all(client);
        let config = watcher::Config::default().fields(&format!("metadata.name={node}"));
        let mut watch = watch::relisting(api.clone(), config).default_backoff().boxed();
        let mut registering: Option<BoxFuture<'static, ()>> = Some(self.register().boxed());
        // One at most. A task, so that it goes on while the loop waits for the disk.
        let mut writing: JoinSet<Told> = JoinSet::new();
        let mut listed = false;
        let (orders_at_once, features) = (self.settings.limits.pulls.max(1), self.features.clone());
        let mut able = Able { orders_at_once, features, ..Able::default() };
        self.settings.spool.pace().set(self.settings.limits.bandwidth);
        let mut changes = self.settings.runtime.changes();
        let mut looking: Option<BoxFuture<'static, Seen>> = None;
        let mut look_again = false;
        let mut sweeping: Option<BoxFuture<'static, Result<Option<Timestamp>, String>>> = None;
        let mut sweep_again = false;
        let mut pulse = metrics::pulse(self.settings.runtime.clone()).boxed();
        loop {
            self.share.turn(self.adopted, &self.orders, &self.tasks);
            // Before anything is noted: a digest that was learned is on the disk before all nodes hear of it.
            self.read_meters((self.settings.clock)());
            // What came of an order is told while it is noted: should the note be lost, the image is found there again.
            if self.has_noted_orders() {
                self.write(&api, &mut writing);
            }
            let now = (self.settings.clock)();
            able.turn = if self.tools.pulls_by_itself() { step::LONG_TURN } else { step::TURN };
            let step = step::step(&self.orders, &self.tasks, &able, now);
            // Orders are on the disk before anything is done about them, and how often they were begun.
            self.count_starts(&step.actions);
            self.remember().await;
            self.leftovers().pulls.set_orders(self.keep());
            step.actions.into_iter().for_each(|action| self.act(action, now));
            step.queued.into_iter().for_each(|(key, behind)| self.queue(key, behind, now));
            if looking.is_none() && std::mem::take(&mut look_again) {
                let questions = truth::questions(&self.orders, &self.tasks);
                looking = Some(truth::look(self.settings.runtime.clone(), questions).boxed());
            }
            if sweeping.is_none() && self.broom.take(self.attempts.len() == self.running.len(), now) {
                let leftovers = self.leftovers().clone();
                sweeping = Some(async move { leftovers.sweep().await }.boxed());
            }
            self.write(&api, &mut writing);
            let due = self.write_due(now).filter(|_| writing.is_empty());
            let nap = until([due, step.wake, self.next_look(now), self.broom.wake()].into_iter().flatten().min(), now);
            tokio::select! {
                () = cancel.cancelled() => {
                    self.starts.stop();
                    self.remember().await;
                    return Ok(());
                }
                event = watch.try_next() => match event {
                    Ok(None) => return Err(Error::WatchEnded(node)),
                    Ok(Some(Event::Apply(object))) => {
                        listed = true;
                        self.take_orders(object);
                    }
                    Ok(Some(Event::InitApply(object))) => {
                        listed = true;
                        self.take_listed(object);
                    }
                    Ok(Some(Event::Init)) => listed = false,
                    Ok(Some(Event::InitDone)) if listed => {}
                    // Gone: with it all orders. It is made anew, as at the start.
                    Ok(Some(Event::InitDone | Event::Delete(_))) => {
                        self.forget_all();
                        writing = JoinSet::new();
                        registering.get_or_insert_with(|| self.register().boxed());
                    }
                    Err(problem) => tracing::warn!(node, "watch interrupted, trying again: {problem}"),
                },
                Some(()) = OptionFuture::from(registering.as_mut()) => registering = None,
                Some(ended) = self.attempts.join_next_with_id(), if !self.attempts.is_empty() => {
                    self.join(ended);
                    // All that ended is noted and told at once.
                    while let Some(ended) = self.attempts.try_join_next_with_id() {
                        self.join(ended);
                    }
                }
                Some(ended) = writing.join_next(), if !writing.is_empty() => {
                    self.written(ended.unwrap_or_else(Told::broke_off));
                }
                () = self.news.notified() => {}
                Some(()) = changes.next() => {
                    look_again = true;
                    if std::mem::take(&mut sweep_again) {
                        self.broom.call();
                    }
                }
                Some(swept) = OptionFuture::from(sweeping.as_mut()) => {
                    sweeping = None;
                    match swept {
                        Ok(next) => self.broom.call_at(next),
                        Err(problem) => {
                            // A runtime that comes back says so.
                            tracing::warn!(node, "cannot clear away what is no longer wanted, trying again: {problem}");
                            sweep_again = true;
                        }
                    }
                }
                Some(seen) = OptionFuture::from(looking.as_mut()) => {
                    looking = None;
                    self.judge(seen);
                }
                Some(free) = pulse.next() => self.share.disk(free),
                () = tokio::time::sleep(nap.unwrap_or_default().max(Duration::from_millis(1))), if nap.is_some() => {}
            }
        }
    }

    fn register(&self) -> impl Future<Output = ()> + use<> {
        let Settings { client, node, node_labels, .. } = &self.settings;
        register(client.clone(), node.clone(), node_labels.is_some())
    }

    /// While something runs its counters move without a sound: when to look at them again.
    fn next_look(&self, now: Timestamp) -> Option<Timestamp> {
        let running = self.running.keys().filter_map(|key| self.orders.get(key));
        running.map(|order| order.terms.progress).min().map(|progress| after(now, progress))
    }

    /// Whether the ledger has the orders in hand, and every digest that all nodes will take from this one.
    fn has_noted_orders(&self) -> bool {
        let noted = |key: &Key| self.ledger.reports.get(key).and_then(|report| report.pin.as_ref());
        let told_to_all = |phase: Phase| matches!(phase, Phase::Pulling | Phase::Resolved);
        let mut open = self.tasks.iter().filter(|(_, task)| told_to_all(task.report.phase));
        (&self.ledger.uid, self.ledger.generation) == (&self.source.0, self.source.1)
            && self.ledger.orders == self.orders
            && open.all(|(key, task)| task.report.pin.is_none() || task.report.pin.as_ref() == noted(key))
    }

    /// Writes the ledger where it is out of date. A disk that refuses is said; the work goes on.
    async fn remember(&mut self) {
        let ended = self.tasks.iter().filter(|(_, task)| task.report.ended() || task.report.pin.is_some());
        let reports = ended.map(|(key, task)| {
            let mut report = task.report.clone();
            // Progress is not worth a write.
            if !report.ended() {
                (report.bytes, report.updated) = (Bytes::default(), report.started);
            }
            (*key, report)
        });
        let (uid, generation) = self.source.clone();
        let (orders, logins) = (self.orders.clone(), self.sealed.borrow().as_ref().clone());
        let starts = self.starts.clone();
        let ledger = Ledger { uid, generation, orders, logins, reports: reports.collect(), starts };
        if ledger == self.ledger {
            return;
        }
        let (path, copy) = (self.settings.ledger.clone(), ledger.clone());
        let saved = tokio::task::spawn_blocking(move || copy.save(&path)).await;
        match saved.unwrap_or_else(|problem| Err(std::io::Error::other(problem))) {
            Ok(()) => self.ledger = ledger,
            Err(problem) => {
                tracing::warn!("cannot write the ledger {}, trying again: {problem}", self.settings.ledger.display());
            }
        }
    }

    /// Takes the object as a new list has it, whatever was known before: an API server that was restored from a backup has
    /// older orders, and has lost what was said to it since. That is said again.
    fn take_listed(&mut self, object: NodeObject) {
        let (uid, generation) = std::mem::take(&mut self.source);
        let listed = object.metadata.generation.unwrap_or_default();
        if object.uid().unwrap_or_default() == uid && listed < generation {
            tracing::warn!(
                "the API server went back from generation {generation} of the orders to {listed}; taking those"
            );
        }
        (self.adopted, self.kept) = (false, Kept::default());
        self.introduced &= object.introduced && object.key.as_deref() == Some(self.key.to_string().as_str());
        self.take_orders(object);
    }

    fn take_orders(&mut self, object: NodeObject) {
        let source = (object.uid().unwrap_or_default(), object.metadata.generation.unwrap_or_default());
        if source.0 == self.source.0 && source.1 < self.source.1 {
            tracing::warn!(
                "orders of generation {} are older than those of {} in hand, not taken",
                source.1,
                self.source.1
            );
            return;
        }
        self.source = source;
        let NodeObject { orders, logins, reports, bandwidth, broken, .. } = object;
        for problem in broken {
            tracing::warn!("an entry cannot be read and is left out: {problem}");
        }
        if !std::mem::replace(&mut self.adopted, true) {
            // What an earlier life of this agent finished need not be done again.
            let now = (self.settings.clock)();
            for (key, report) in reports.iter().filter(|(key, _)| orders.contains_key(key)) {
                self.tasks.entry(*key).or_insert_with(|| step::adopt(report.clone(), now));
            }
            for (key, report) in reports.iter().filter(|(key, report)| !orders.contains_key(key) && report.ended()) {
                self.kept.keep(*key, report);
            }
            self.said = Said { reports };
            self.broom.call();
        }
        self.orders = orders;
        self.sealed.send_if_modified(|sealed| {
            let changed = **sealed != logins;
            *sealed = Arc::new(logins);
            changed
        });
        self.orders.keys().for_each(|key| self.kept.release(*key));
        for (key, running) in &self.running {
            let Some(order) = self.orders.get(key) else { continue };
            running.pace.set(order.terms.pull.bandwidth);
            if let Some(task) = self.tasks.get(key).and_then(|task| step::rejoin(&running.began, order, task)) {
                self.tasks.insert(*key, task);
            }
        }
        match bandwidth {
            Ok(bandwidth) => self.settings.spool.pace().set(bandwidth.or(self.settings.limits.bandwidth)),
            Err(problem) => tracing::warn!("the limit of this node stays as it is: {problem}"),
        }
    }

    /// Compares what the reports say with what was seen on the node.
    fn judge(&mut self, seen: Seen) {
        let now = (self.settings.clock)();
        for (key, said, there) in seen {
            let (Some(order), Some(task)) = (self.orders.get(&key), self.tasks.get(&key)) else { continue };
            if let Some(task) = truth::judge(order, task, said, &there, now) {
                let what = match there {
                    Stored::Whole(_) => "somebody else has brought it",
                    Stored::Damaged(_) => "it was damaged",
                    Stored::Missing => "somebody has removed it",
                };
                tracing::info!(node = self.settings.node, image = order.image, "{what}");
                self.tasks.insert(key, task);
            }
        }
    }

    /// What orders in hand still need.
    fn keep(&self) -> Keep {
        let pulls = self.orders.iter().filter(|(_, order)| !order.ask.is_question());
        Keep::of(pulls.map(|(key, _)| (key, self.tasks.get(key))))
    }

    fn leftovers(&self) -> &Leftovers {
        &self.tools.guard.leftovers
    }

    fn forget_all(&mut self) {
        self.orders.clear();
        self.sealed.send_replace(Sealed::default());
        (self.said, self.kept) = (Said::default(), Kept::default());
        (self.adopted, self.introduced) = (false, false);
    }
}
