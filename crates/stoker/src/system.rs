//! The whole system in this process: embedded API over HTTPS, controller, nodes. What `up` and `demo` share.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::json;
use stoker_agent::PeerSettings;
use stoker_api::PlainNode;
use stoker_api::native::NodeObject;
use stoker_core::Clock;
use stoker_core::pace::LINGER;
use stoker_embedded as embedded;
use stoker_runtime::Runtime;
use stoker_transfer::Platform;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cli::NodeArgs;
use crate::metrics::{self, Numbers};
use crate::node;

/// What to run.
pub(crate) struct SystemOptions {
    pub(crate) data: PathBuf,
    pub(crate) nodes: u16,
    pub(crate) listen: SocketAddr,
    /// Whether nodes read images from each other.
    pub(crate) peers: bool,
    /// Where metrics are served, if they are.
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) platform: Platform,
    pub(crate) clock: Clock,
    /// Where images go on the nodes.
    pub(crate) node: NodeArgs,
}

/// The running system.
pub(crate) struct RunningSystem {
    /// In process, without a socket.
    pub(crate) client: Client,
    pub(crate) addr: SocketAddr,
    /// Where metrics are served, with the port that was really taken.
    pub(crate) metrics: Option<SocketAddr>,
    /// Whole at any time. The first start writes it when everything is ready, a later one when the API has its port.
    pub(crate) kubeconfig: PathBuf,
    /// Names and image stores of the nodes.
    pub(crate) nodes: Vec<(String, Runtime)>,
    cancel: CancellationToken,
    tasks: JoinSet<anyhow::Result<()>>,
    /// Held as long as the data directory is in use.
    _lock: File,
}

impl RunningSystem {
    /// Starts everything; ready when it returns.
    pub(crate) async fn start(options: SystemOptions) -> anyhow::Result<Self> {
        let SystemOptions { data, nodes, listen, peers, metrics, platform, clock, node } = options;
        std::fs::create_dir_all(&data).with_context(|| unwritable(&data))?;
        let data = std::path::absolute(&data)?;
        let lock = lock(&data)?;
        let crds: Result<_, _> = stoker_api::crds().iter().map(|(_, crd)| serde_json::to_value(crd)).collect();
        let journal = Some(data.join("journal"));
        let settings = embedded::Settings { journal, ..embedded::Settings::new(crds?, clock.clone()) };
        let api = tokio::task::spawn_blocking(move || embedded::Api::new(settings)).await??;
        let (counts, agent_counts) = (stoker_controller::Metrics::new(), stoker_agent::Metrics::new());
        let numbers = Numbers { controller: Some(counts.clone()), agents: Some(agent_counts.clone()) };
        let metrics = metrics::MetricsServer::bind(metrics::For::Metrics, metrics, &numbers).await?;
        let server = embedded::Server::bind_kept(api.clone(), listen, &data.join("identity")).await?;
        let client = api.client("default");
        let mut system = RunningSystem {
            client: client.clone(),
            addr: server.addr(),
            metrics: metrics.as_ref().map(metrics::MetricsServer::addr),
            kubeconfig: data.join("kubeconfig"),
            nodes: Vec::new(),
            cancel: CancellationToken::new(),
            tasks: JoinSet::new(),
            _lock: lock,
        };
        let kubeconfig = server.kubeconfig();
        // The one of an earlier run may name another port, where nobody answers any more. The first one comes at the end.
        if system.kubeconfig.exists() {
            replace_private(&system.kubeconfig, &kubeconfig)?;
        }
        let cancel = system.cancel.clone();
        system.tasks.spawn(async move { Ok(server.run(cancel).await?) });
        if let Some(metrics) = metrics {
            let cancel = system.cancel.clone();
            system.tasks.spawn(async move {
                metrics.run(cancel).await;
                Ok(())
            });
        }
        let settings = stoker_controller::Settings {
            client: client.clone(),
            namespace: stoker_api::NAMESPACE.into(),
            clock: clock.clone(),
            limits: stoker_controller::Limits::default(),
            // The data directory is locked: whoever held the lease before is gone.
            identity: "up".into(),
            trust_one_witness: false,
            peers,
            handed_over: Default::default(),
            serve: Default::default(),
            metrics: counts,
        };
        let cancel = system.cancel.clone();
        system.tasks.spawn(async move { Ok(stoker_controller::run(settings, cancel).await?) });
        make_namespace(&client, stoker_agent::LEASE_NAMESPACE).await?;
        let (cancel, watched, its_clock) = (system.cancel.clone(), client.clone(), clock.clone());
        let (leases, patience) = (stoker_agent::LEASE_NAMESPACE, stoker_agent::LEASE_DURATION);
        system.tasks.spawn(async move {
            Ok(stoker_controller::watch_over_nodes(watched, its_clock, leases, patience, cancel).await?)
        });
        for number in 1..=nodes {
            let name = format!("node-{number}");
            let home = data.join("nodes").join(&name);
            let mut agent = node::agent(&name, &home, &node, &client, &platform, &clock).await?;
            agent.node_labels = Some(node_labels(&name, &platform));
            // All nodes are this machine: each agent has a port of its own.
            let here = IpAddr::from(Ipv4Addr::LOCALHOST);
            agent.node_ip = Some(here);
            // Nobody listens where nobody is told to read.
            agent.peers = peers.then(|| PeerSettings {
                listen: SocketAddr::new(here, 0),
                namespace: stoker_api::NAMESPACE.into(),
                linger: LINGER,
            });
            agent.metrics = agent_counts.clone();
            system.nodes.push((name, agent.runtime.clone()));
            let cancel = system.cancel.clone();
            system.tasks.spawn(async move { Ok(stoker_agent::run(agent, cancel).await?) });
        }
        let names: Vec<String> = system.nodes.iter().map(|(name, _)| name.clone()).collect();
        system.run_until(ready(&client, &names)).await??;
        replace_private(&system.kubeconfig, &kubeconfig)?;
        Ok(system)
    }

    /// Runs until `stop` is done, or a part ends unasked; then everything stops.
    pub(crate) async fn run_until<T>(&mut self, stop: impl Future<Output = T>) -> anyhow::Result<T> {
        tokio::select! {
            result = stop => Ok(result),
            Some(ended) = self.tasks.join_next() => {
                ended??;
                bail!("a part of the system ended unasked; see the log above")
            }
        }
    }

    /// Stops every part and waits for it.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.cancel.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok(())
    }
}

/// Waits until every node is ready and its agent has introduced itself.
async fn ready(client: &Client, names: &[String]) -> anyhow::Result<()> {
    let (nodes, preheats): (Api<PlainNode>, Api<NodeObject>) = (Api::all(client.clone()), Api::all(client.clone()));
    for name in names {
        await_condition(nodes.clone(), name, |node: Option<&PlainNode>| node.is_some_and(|node| node.ready)).await?;
        await_condition(preheats.clone(), name, |preheat: Option<&NodeObject>| {
            preheat.is_some_and(|preheat| preheat.introduced)
        })
        .await?;
    }
    Ok(())
}

/// The labels that a kubelet would give.
fn node_labels(name: &str, platform: &Platform) -> BTreeMap<String, String> {
    let labels = [
        ("kubernetes.io/hostname", name),
        ("kubernetes.io/os", &platform.os),
        ("kubernetes.io/arch", &platform.architecture),
    ];
    labels.map(|(key, value)| (key.to_string(), value.to_string())).into()
}

/// A namespace that a cluster has from the start.
async fn make_namespace(client: &Client, name: &str) -> anyhow::Result<()> {
    let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
    match Api::all(client.clone()).create(&PostParams::default(), &namespace).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        made => Ok(made.map(|_| ())?),
    }
}

fn lock(data: &Path) -> anyhow::Result<File> {
    let file = data.join("lock");
    let lock = File::options().create(true).append(true).open(&file).with_context(|| unwritable(data))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(std::fs::TryLockError::WouldBlock) => {
            bail!("{} is in use by another stoker; stop that one, or give another --data directory", data.display())
        }
        Err(std::fs::TryLockError::Error(problem)) => Err(problem).with_context(|| unwritable(data)),
    }
}

fn unwritable(data: &Path) -> String {
    format!("the data directory {} cannot be written; check --data and its permissions", data.display())
}

/// Makes a file that its owner alone may read have this text. Readers find the whole of the old or of the new text at any time,
/// also after a power cut.
fn replace_private(file: &Path, text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let part = file.with_extension("part");
    let write = || {
        // What an earlier run left here may be readable by others.
        match std::fs::remove_file(&part) {
            Err(problem) if problem.kind() != std::io::ErrorKind::NotFound => return Err(problem),
            _ => {}
        }
        let mut out = File::options().create_new(true).write(true).mode(0o600).open(&part)?;
        out.write_all(text.as_bytes())?;
        out.sync_all()?;
        std::fs::rename(&part, file)?;
        File::open(file.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    write().with_context(|| format!("cannot write {}", file.display()))
}
