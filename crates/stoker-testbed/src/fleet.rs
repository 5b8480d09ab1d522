//! A fleet without machines: the Nodes, and for each of them the real agent on a runtime that does as a script says, all
//! in this process.
//!
//! A client and a number come in; registered agents that serve every job go out. What a node would have for itself and the
//! agents here have not: a registry (they find none at the address that images name, and leave everything to the runtime,
//! as on nodes where only the runtime knows a mirror), a disk (hand in a folder in memory, or all of them wait for one
//! disk), and a connection pool (they share one; each still has a connection for its watch).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::{TryStreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use stoker_agent::{Limits, Metrics};
use stoker_core::Clock;
use stoker_runtime::{Cri, Runtime};
use stoker_transfer::credentials::Providers;
use stoker_transfer::{Platform, Registry, Retry, Settings as Registries, Spool, SpoolSettings};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::scripted::{Ends, Script, Scripted};

mod identity;
mod node;

pub use self::identity::{as_agent, speak_for_agent};
pub use self::node::name;

/// Agents that start at one time: an API server turns away a thousand that come at once, as it should.
const AT_ONCE: usize = 100;
/// Open files that an agent has: its watch, and both ends of the connection to its runtime.
const FILES: u64 = 3;
/// Open files that all of them share: connections for everything else, ledgers that are being written.
const MORE_FILES: u64 = 2_000;
const LOOK: Duration = Duration::from_millis(20);

/// What the fleet is.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How many nodes.
    pub nodes: usize,
    /// Where ledgers, sockets and lists of images are.
    pub data: PathBuf,
    /// How long a pull takes.
    pub pull_time: Duration,
    /// Every node whose number this divides fails all its pulls.
    pub fail_every: Option<usize>,
    /// Where the ends of pulls are told.
    pub ends: Ends,
}

/// Why a fleet ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused something.
    #[error("node {0}: {1}")]
    Api(String, Box<kube::Error>),
    /// A disk or a socket did.
    #[error("node {0}: {1}; a fleet of this size needs many open files, see ulimit -n")]
    Disk(String, io::Error),
    /// The process may not open as many files as it needs.
    #[error("{nodes} agents need {needed} open files and this process may have {allowed}; see ulimit -Hn")]
    Files {
        /// How many agents were asked for.
        nodes: usize,
        /// What they need.
        needed: u64,
        /// What is allowed.
        allowed: u64,
    },
    /// A part could not be made or ended unasked.
    #[error("node {0}: {1}")]
    Part(String, Box<dyn std::error::Error + Send + Sync>),
}

/// Runs a fleet until it is cancelled or one of its parts ends; `ready` is called when every agent is registered. The client
/// makes the Nodes; `identify` gives each agent its own.
pub async fn run(
    client: Client,
    identify: impl Fn(&str) -> Client,
    settings: Settings,
    ready: impl FnOnce(),
    cancel: CancellationToken,
) -> Result<(), Error> {
    allow_files(settings.nodes)?;
    let mut tasks = JoinSet::new();
    let start = async {
        make_nodes(&client, settings.nodes).await?;
        // Nobody is there: what is asked of it is refused at once.
        let retry = Retry { attempts: 1, ..Retry::default() };
        let registry = Registry::new(Registries { retry, ..Registries::default() });
        let registry = registry.map_err(|problem| Error::Part("of all".into(), problem.into()))?;
        let numbers: Vec<usize> = (1..=settings.nodes).collect();
        for batch in numbers.chunks(AT_ONCE) {
            let metrics = Metrics::new();
            for number in batch {
                let name = node::name(*number);
                let runtime = runtime(&name, *number, &settings, &mut tasks).await?;
                let agent = agent(&name, &settings.data, identify(&name), runtime, &registry)?;
                let (agent, cancel) = (stoker_agent::Settings { metrics: metrics.clone(), ..agent }, cancel.clone());
                tasks.spawn(async move {
                    let ended = stoker_agent::run(agent, cancel).await;
                    ended.map_err(|problem| Error::Part(name, problem.into()))
                });
            }
            while metrics.agents() < batch.len() || metrics.ready().is_err() {
                if let Some(ended) = tasks.try_join_next() {
                    return unasked(ended);
                }
                tokio::time::sleep(LOOK).await;
            }
        }
        Ok(())
    };
    tokio::select! {
        () = cancel.cancelled() => return Ok(()),
        started = start => started?,
    }
    ready();
    tokio::select! {
        () = cancel.cancelled() => Ok(()),
        Some(ended) = tasks.join_next() => match cancel.is_cancelled() {
            // Agents hear of it, too.
            true => Ok(()),
            false => unasked(ended),
        }
    }
}

/// Why a part ended that should not have.
fn unasked(ended: Result<Result<(), Error>, JoinError>) -> Result<(), Error> {
    ended.map_err(|problem| Error::Part("of a task".into(), problem.into()))??;
    Err(Error::Part("of a task".into(), "it ended unasked".into()))
}

/// Raises the limit of open files as far as this fleet needs and the machine allows.
fn allow_files(nodes: usize) -> Result<(), Error> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let needed = FILES * nodes as u64 + MORE_FILES;
    let limit = getrlimit(Resource::Nofile);
    let allowed = limit.maximum.unwrap_or(u64::MAX);
    if allowed < needed {
        return Err(Error::Files { nodes, needed, allowed });
    }
    if limit.current.is_some_and(|current| current < needed) {
        let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
        raised.map_err(|_| Error::Files { nodes, needed, allowed: limit.current.unwrap_or_default() })?;
    }
    Ok(())
}

/// Makes the Nodes that are missing.
async fn make_nodes(client: &Client, count: usize) -> Result<(), Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let made = stream::iter((1..=count).map(Ok)).try_for_each_concurrent(AT_ONCE, |number| {
        let nodes = nodes.clone();
        async move {
            let name = node::name(number);
            let refused = |problem| Error::Api(name.clone(), Box::new(problem));
            let object = node::object(number, Timestamp::now());
            let object = object.map_err(|problem| Error::Part(name.clone(), problem.into()))?;
            match nodes.create(&PostParams::default(), &object).await {
                Err(kube::Error::Api(status)) if status.code == 409 => return Ok(()),
                Err(problem) => return Err(refused(problem)),
                Ok(made) if made.status.as_ref().is_some_and(|status| status.conditions.is_some()) => return Ok(()),
                // An API server may take the status by itself only.
                Ok(_) => {}
            }
            let patch = Patch::Merge(serde_json::json!({ "status": object.status }));
            nodes.patch_status(&name, &PatchParams::default(), &patch).await.map(drop).map_err(refused)
        }
    });
    made.await
}

/// A node's runtime, running, and the connection to it.
async fn runtime(
    name: &str,
    number: usize,
    settings: &Settings,
    tasks: &mut JoinSet<Result<(), Error>>,
) -> Result<Runtime, Error> {
    let fails = settings.fail_every.is_some_and(|every| number.is_multiple_of(every));
    let script = Script { pull_time: settings.pull_time, fails };
    let runtime = Scripted::open(name, &settings.data.join(name), script, settings.ends.clone());
    let runtime = runtime.map_err(|problem| Error::Disk(name.into(), problem))?;
    let (socket, node) = (runtime.socket(), name.to_owned());
    tasks.spawn(async move { runtime.serve().await.map_err(|problem| Error::Disk(node, problem)) });
    let cri = Cri::connect(socket).await.map_err(|problem| Error::Part(name.into(), problem.into()))?;
    Ok(Runtime::Cri(cri))
}

fn agent(
    name: &str,
    data: &Path,
    client: Client,
    runtime: Runtime,
    registry: &Registry,
) -> Result<stoker_agent::Settings, Error> {
    let home = data.join(name);
    let spool = Spool::open(home.join("spool"), registry.clone(), SpoolSettings::default());
    Ok(stoker_agent::Settings {
        client,
        clock: clock(),
        node: name.into(),
        platform: Platform::host(),
        registry: registry.clone(),
        providers: Providers::default(),
        spool: spool.map_err(|problem| Error::Part(name.into(), problem.into()))?,
        runtime,
        why_runtime: "it is scripted".into(),
        // No image takes room here, and pulls of many jobs need not wait for each other.
        limits: Limits { disk: 100, pulls: 20, ..Limits::default() },
        ledger: home.join("ledger.json"),
        node_labels: None,
        node_ip: None,
        peers: None,
        metrics: Metrics::new(),
    })
}

/// The system's time in whole milliseconds, as every process of ours has it.
pub fn clock() -> Clock {
    Arc::new(|| {
        let now = Timestamp::now();
        Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
    })
}
