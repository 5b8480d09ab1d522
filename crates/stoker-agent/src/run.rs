//! The agent's one loop: orders and ends of attempts in, core's step, attempts and reports out. It connects three parts that know
//! nothing of each other: [`Attempts`], [`Reporting`] and [`Bookkeeping`].

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, OptionFuture};
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use stoker_api::native::{NodeObject, PeerInfo};
use stoker_core::model::PEERS;
use stoker_core::step::{self, Able};
use stoker_runtime::room::Room;
use stoker_transfer::NodeKey;
use tokio_util::sync::CancellationToken;

use crate::guard::DiskGuard;
use crate::key;
use crate::ledger::{Ledger, Unreadable};
use crate::leftovers::Leftovers;
use crate::logins::LoginOpener;
use crate::metrics::{self, AgentCounts};
use crate::node::{self, OwnNode};
use crate::pull::{PullTools, Uses};
use crate::pulls::PullNotes;
use crate::register::register;
use crate::report::until;
use crate::serving::{Lingering, Serving};
use crate::settings::Settings;
use crate::watch;
use attempts::{Attempts, EarlierLife};
use bookkeeping::Bookkeeping;
use reporting::Reporting;
use status::StatusWriter;

mod attempts;
mod bookkeeping;
mod reporting;
mod status;

/// No answer after this long is as good as a broken connection.
const PATIENCE: Duration = Duration::from_secs(30);

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

/// Runs until it is cancelled.
pub async fn run(settings: Settings, cancel: CancellationToken) -> Result<(), Error> {
    let own = settings.node_labels.clone().map(|labels| OwnNode {
        name: settings.node.clone(),
        labels,
        address: settings.node_ip,
    });
    let node = own.map(|own| node::keep(settings.client.clone(), settings.clock.clone(), own));
    tokio::select! {
        Some(()) = OptionFuture::from(node) => Ok(()),
        result = start(settings, cancel) => result,
    }
}

async fn start(settings: Settings, cancel: CancellationToken) -> Result<(), Error> {
    let path = settings.ledger.clone();
    let spool = settings.spool.dir().to_owned();
    let read = move || {
        let recovered = Recovered {
            ledger: Ledger::load(&path)?,
            pulls: PullNotes::open(path.with_file_name("pulls")),
            key: key::load(&path.with_file_name("node.key")),
            spooled: size_of_files(&spool),
        };
        Ok::<_, Unreadable>(recovered)
    };
    let read = tokio::task::spawn_blocking(read).await;
    let recovered =
        read.map_err(|problem| Error::Ledger(problem.into()))?.map_err(|problem| Error::Ledger(problem.into()))?;
    let serving = Serving::start(&settings).await;
    AgentLoop::new(settings, recovered, serving).run(cancel).await
}

/// What an earlier run of the agent left on the disk.
struct Recovered {
    ledger: Ledger,
    pulls: PullNotes,
    key: NodeKey,
    /// The bytes in the spool.
    spooled: u64,
}

/// The sizes of all files in a directory, as far as they can be seen.
fn size_of_files(dir: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|meta| meta.len()).fold(0, u64::saturating_add)
}

/// What attempts share.
fn tools(settings: &Settings, pulls: PullNotes, logins: LoginOpener, serving: Option<&Serving>) -> PullTools {
    let uses: Arc<Uses> = Arc::default();
    let leftovers = Leftovers {
        clock: settings.clock.clone(),
        spool: settings.spool.clone(),
        runtime: settings.runtime.clone(),
        uses: uses.clone(),
        pulls: Arc::new(pulls),
        lingering: serving.map_or_else(Lingering::default, |serving| serving.lingering.clone()),
        age: settings.limits.keep_fetched,
        turn: Arc::default(),
    };
    PullTools {
        registry: settings.registry.clone(),
        spool: settings.spool.clone(),
        clock: settings.clock.clone(),
        guard: DiskGuard {
            runtime: settings.runtime.clone(),
            spool: settings.spool.dir().to_owned(),
            room: Room::new(settings.limits.disk),
            leftovers,
        },
        runtime: settings.runtime.clone(),
        platform: settings.platform.clone(),
        logins,
        providers: settings.providers.clone(),
        layers: settings.limits.layers.max(1),
        uses,
        peers: serving.map(Serving::side),
    }
}

struct AgentLoop {
    settings: Settings,
    counts: Arc<AgentCounts>,
    attempts: Attempts,
    reporting: Reporting,
    books: Bookkeeping,
    status: StatusWriter,
    /// None where other nodes read nothing here.
    serving: Option<Serving>,
}

impl AgentLoop {
    fn new(
        settings: Settings,
        Recovered { ledger, pulls, key, spooled }: Recovered,
        mut serving: Option<Serving>,
    ) -> Self {
        let now = (settings.clock)();
        let counts = Arc::new(settings.metrics.join());
        let known = ledger.reports.iter().filter(|(key, _)| ledger.orders.contains_key(key));
        let tasks = known.map(|(key, report)| (*key, step::adopt(report.clone(), now))).collect();
        let earlier = EarlierLife { tasks, starts: ledger.starts.clone(), spooled };
        let (books, sealed) = Bookkeeping::recover(settings.ledger.clone(), ledger);
        let mut features = Able::default().features;
        features.extend(serving.is_some().then(|| PEERS.to_owned()));
        let status = StatusWriter::new(&settings, features, key.public().to_string());
        let tools = tools(&settings, pulls, LoginOpener::new(key, sealed), serving.as_ref());
        if let Some(serving) = &mut serving {
            serving.tend(tools.guard.leftovers.clone());
        }
        let mut attempts = Attempts::new(settings.node.clone(), &settings.limits, tools, counts.clone(), earlier);
        attempts.follow(books.orders(), books.tickets());
        Self {
            attempts,
            reporting: Reporting::new(settings.node.clone(), counts.clone()),
            books,
            status,
            serving,
            counts,
            settings,
        }
    }

    async fn run(mut self, cancel: CancellationToken) -> Result<(), Error> {
        let node = self.settings.node.clone();
        let api: Api<NodeObject> = Api::all(self.settings.client.clone());
        let config = watcher::Config::default().fields(&format!("metadata.name={node}"));
        let mut watch = watch::relisting(api, config).default_backoff().boxed();
        let mut registering: Option<BoxFuture<'static, ()>> = Some(self.register().boxed());
        let mut listed = false;
        self.settings.spool.pace().set(self.settings.limits.bandwidth);
        let mut pulse = metrics::pulse(self.settings.runtime.clone()).boxed();
        loop {
            let nap = self.turn().await;
            tokio::select! {
                () = cancel.cancelled() => {
                    self.attempts.stop_counting();
                    self.books.note(self.attempts.tasks(), self.attempts.starts()).await;
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
                        self.books.forget();
                        self.reporting.forget();
                        registering.get_or_insert_with(|| self.register().boxed());
                    }
                    Err(problem) => tracing::warn!(node, "watch interrupted, trying again: {problem}"),
                },
                Some(()) = OptionFuture::from(registering.as_mut()) => registering = None,
                happened = self.attempts.happens() => self.attempts.take(happened, self.books.orders()),
                Some(told) = self.reporting.ended() => self.reporting.written(told, (self.settings.clock)()),
                Some(free) = pulse.next() => self.counts.disk(free),
                () = tokio::time::sleep(nap.unwrap_or_default().max(Duration::from_millis(1))), if nap.is_some() => {}
            }
        }
    }

    /// One turn: tells, notes and begins what there is to tell, note and begin. Returns how long the loop may sleep.
    async fn turn(&mut self) -> Option<Duration> {
        self.counts.turn(self.reporting.has_adopted(), self.books.orders(), self.attempts.tasks());
        // Before anything is noted: a digest that was learned is on the disk before all nodes hear of it.
        self.attempts.read_meters((self.settings.clock)());
        // What came of an order is told while it is noted: should the note be lost, the image is found there again.
        if self.books.is_noted(self.attempts.tasks()) {
            self.report();
        }
        let now = (self.settings.clock)();
        let step = self.attempts.step(self.books.orders(), now);
        let wake = step.wake;
        // Orders are on the disk before anything is done about them, and how often they were begun.
        self.books.note(self.attempts.tasks(), self.attempts.starts()).await;
        if let Some(serving) = &mut self.serving {
            serving.set_orders(self.books.orders(), self.attempts.tasks(), self.books.tickets());
        }
        for (key, report) in self.attempts.perform(step, self.books.orders(), now) {
            self.reporting.keep(key, &report);
        }
        self.report();
        let (tasks, orders) = (self.attempts.tasks(), self.books.orders());
        let wakes = [self.reporting.due(tasks, orders, now), wake, self.attempts.wake(orders, now)];
        until(wakes.into_iter().flatten().min(), now)
    }

    /// Begins the write that is due now, if one is and none is under way.
    fn report(&mut self) {
        let now = (self.settings.clock)();
        let Some(mut saying) = self.reporting.next(self.attempts.tasks(), self.books.orders(), now) else { return };
        let peer = self.serving.as_ref().map(Serving::info);
        saying.agent = self.reporting.must_introduce(peer.as_ref()).then(|| self.status.introduction(peer));
        self.reporting.begin(self.status.clone().write(saying));
    }

    fn register(&self) -> impl Future<Output = ()> + use<> {
        let Settings { client, node, node_labels, .. } = &self.settings;
        register(client.clone(), node.clone(), node_labels.is_some())
    }

    /// Takes the object as a new list has it, whatever was known before: an API server that was restored from a backup has
    /// older orders, and has lost what was said to it since. That is said again.
    fn take_listed(&mut self, object: NodeObject) {
        self.books.relist(&object);
        let place = |peer: &PeerInfo| (peer.port, peer.key.clone(), peer.keeps);
        let own = self.serving.as_ref().map(|serving| place(&serving.info()));
        let same = object.key.as_deref() == Some(&self.status.key) && object.peer.as_ref().map(place) == own;
        self.reporting.relist(object.introduced && same);
        self.take_orders(object);
    }

    fn take_orders(&mut self, object: NodeObject) {
        if !self.books.accept(&object) {
            return;
        }
        let NodeObject { orders, tickets, logins, reports, bandwidth, upload, broken, .. } = object;
        for problem in broken {
            tracing::warn!("an entry cannot be read and is left out: {problem}");
        }
        if !self.reporting.has_adopted() {
            self.attempts.adopt(&reports, &orders, (self.settings.clock)());
            self.reporting.adopt(reports, &orders);
        }
        self.reporting.release(orders.keys());
        self.attempts.follow(&orders, &tickets);
        self.books.set(orders, tickets, logins);
        match bandwidth {
            Ok(bandwidth) => self.settings.spool.pace().set(bandwidth.or(self.settings.limits.bandwidth)),
            Err(problem) => tracing::warn!("the limit of this node stays as it is: {problem}"),
        }
        match (&self.serving, upload) {
            (Some(serving), Ok(upload)) => serving.limit(upload.or(self.settings.limits.upload)),
            (Some(_), Err(problem)) => tracing::warn!("the limit for other nodes stays as it is: {problem}"),
            (None, _) => {}
        }
    }
}
