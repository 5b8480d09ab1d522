//! The parts of the system as processes of their own, against any cluster.

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::bail;
use stoker_agent::PeerSettings;
use stoker_core::pace::LINGER;
use stoker_transfer::Platform;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cli::{AgentArgs, ClusterArgs, ControllerArgs, Switch};
use crate::connect::connect;
use crate::metrics::{MetricsServer, Numbers};
use crate::{clock, node, up};

/// `stoker controller`.
pub(crate) async fn controller(cluster: &ClusterArgs, args: ControllerArgs) -> anyhow::Result<ExitCode> {
    let client = connect(cluster).await?.client;
    let limits = stoker_controller::Limits { writes_per_second: args.max_writes_per_second, ..Default::default() };
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let identity = format!("{}-{}", host.trim(), std::process::id());
    let metrics = stoker_controller::Metrics::new();
    let numbers = Numbers { controller: Some(metrics.clone()), agents: None };
    let servers = MetricsServer::bind_both(args.metrics, args.probes, &numbers).await?;
    let (namespace, clock) = (home(cluster), clock::system());
    let trust_one_witness = args.digest_witnesses == 1;
    let handed_over = args.handed_over.iter().map(|dialect| (dialect.name, dialect.hand_over)).collect();
    let settings = stoker_controller::Settings {
        client,
        namespace,
        clock,
        limits,
        identity,
        trust_one_witness,
        peers: args.peers == Switch::On,
        handed_over,
        serve: args.serve.iter().copied().collect(),
        metrics,
    };
    let cancel = CancellationToken::new();
    until_stopped(stoker_controller::run(settings, cancel.clone()), servers, cancel.clone()).await
}

/// `stoker agent`.
pub(crate) async fn agent(cluster: &ClusterArgs, args: AgentArgs) -> anyhow::Result<ExitCode> {
    let client = connect(cluster).await?.client;
    let (platform, clock) = (Platform::host(), clock::system());
    let mut settings = node::agent(&args.node, &args.data, &args.settings, &client, &platform, &clock).await?;
    settings.peers = (args.peer_port > 0).then(|| PeerSettings {
        listen: SocketAddr::new(node::any_address(), args.peer_port),
        namespace: home(cluster),
        linger: LINGER,
    });
    let numbers = Numbers { controller: None, agents: Some(settings.metrics.clone()) };
    let servers = MetricsServer::bind_both(args.metrics, args.probes, &numbers).await?;
    let cancel = CancellationToken::new();
    until_stopped(stoker_agent::run(settings, cancel.clone()), servers, cancel.clone()).await
}

/// Where Stoker's own objects are; not that of the context, which is for jobs.
fn home(cluster: &ClusterArgs) -> String {
    cluster.namespace.clone().unwrap_or_else(|| stoker_api::NAMESPACE.into())
}

async fn until_stopped<E>(
    role: impl Future<Output = Result<(), E>>,
    servers: Vec<MetricsServer>,
    cancel: CancellationToken,
) -> anyhow::Result<ExitCode>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let mut serving = JoinSet::new();
    for server in servers {
        tracing::info!("{}", server.describe());
        serving.spawn(server.run(cancel.clone()));
    }
    let mut role = std::pin::pin!(role);
    tokio::select! {
        result = &mut role => result?,
        Some(ended) = serving.join_next() => {
            ended?;
            bail!("the server for metrics or probes ended unasked; this is a bug, restart it and report the log");
        }
        stop = up::stopped() => {
            stop?;
            cancel.cancel();
            role.await?;
        }
    }
    cancel.cancel();
    while let Some(ended) = serving.join_next().await {
        ended?;
    }
    Ok(ExitCode::SUCCESS)
}
