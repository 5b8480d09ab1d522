//! An agent's settings from the command line: which runtime this machine has, and its own rules for registries.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use anyhow::Context as _;
use kube::Client;
use stoker_agent::Limits;
use stoker_api::Span;
use stoker_core::Clock;
use stoker_runtime::choose::Error;
use stoker_runtime::{Choice, Containerd, Otherwise, Runtime, RuntimeWish, choose, containerd};
use stoker_transfer::credentials::Providers;
use stoker_transfer::{Platform, Proxy, Registry, Settings, Spool, SpoolSettings};

use crate::cli::{NodeArgs, WrongInput};

impl NodeArgs {
    /// The runtime that was asked for.
    pub(crate) fn wish(&self) -> RuntimeWish {
        self.runtime.unwrap_or_default()
    }

    /// Everything as it is without arguments, into a layout.
    pub(crate) fn layout() -> Self {
        Self {
            runtime: Some(RuntimeWish::Layout),
            otherwise: Otherwise::Layout,
            runtime_endpoint: None,
            max_pulls: 3,
            max_layers: 4,
            max_disk: 100,
            bandwidth: None,
            upload: None,
            keep_fetched: Span(Limits::default().keep_fetched),
            turn: Span(Limits::default().turn),
            registry_hosts: None,
            credential_provider_config: None,
            credential_provider_bin_dir: None,
        }
    }
}

/// All addresses of this machine. A socket for IPv6 takes IPv4 as well; some machines have none.
pub(crate) fn any_address() -> IpAddr {
    let six = IpAddr::from(Ipv6Addr::UNSPECIFIED);
    if std::net::TcpListener::bind((six, 0)).is_ok() { six } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// The settings of an agent whose spool and ledger, and layout if it has one, are below `home`.
pub(crate) async fn agent(
    node: &str,
    home: &Path,
    args: &NodeArgs,
    client: &Client,
    platform: &Platform,
    clock: &Clock,
) -> anyhow::Result<stoker_agent::Settings> {
    std::fs::create_dir_all(home).with_context(|| format!("cannot make {}", home.display()))?;
    let (endpoint, images) = (args.runtime_endpoint.as_deref(), home.join("images"));
    let chosen = choose(args.wish(), args.otherwise, endpoint, &images).await;
    let Choice { runtime, why } = chosen.map_err(|problem| match problem {
        Error::Endpoint(_) | Error::LayoutWithEndpoint => WrongInput(problem.to_string()).into(),
        problem => anyhow::Error::new(problem),
    })?;
    tracing::info!(node, "images go to {}: {why}", runtime.describe());
    let told = match &runtime {
        Runtime::Containerd(containerd, _) => containerd.node().hosts.clone(),
        // The digest of a tag is asked for by us, and must be that of the mirror that the runtime asks.
        Runtime::Cri(cri) if cri.name() == "containerd" => {
            let containerd = Containerd::connect(containerd::Settings::new(cri.socket())).await?;
            containerd.node().hosts.clone()
        }
        Runtime::Cri(_) | Runtime::Layout(_) => Vec::new(),
    };
    let hosts = args.registry_hosts.clone().map_or(told, |dir| vec![dir]);
    let proxy = Proxy::from_env_like(|name| std::env::var(name).ok());
    let registry = Registry::new(Settings { hosts, proxy, ..Settings::default() })?;
    let providers = match (&args.credential_provider_config, &args.credential_provider_bin_dir) {
        (Some(config), Some(programs)) => {
            Providers::load(config, programs).map_err(|problem| WrongInput(problem.to_string()))?
        }
        _ => Providers::default(),
    };
    let layers = usize::from(args.max_layers);
    let settings = SpoolSettings { concurrency: layers, ..SpoolSettings::default() };
    let spool = Spool::open(home.join("spool"), registry.clone(), settings)?;
    Ok(stoker_agent::Settings {
        client: client.clone(),
        clock: clock.clone(),
        node: node.into(),
        platform: platform.clone(),
        registry,
        providers,
        spool,
        runtime,
        why_runtime: why,
        limits: Limits {
            pulls: usize::from(args.max_pulls),
            layers,
            disk: args.max_disk,
            bandwidth: args.bandwidth.map(|amount| amount.0),
            upload: args.upload.map(|amount| amount.0),
            keep_fetched: args.keep_fetched.0,
            turn: args.turn.0,
        },
        ledger: home.join("ledger.json"),
        node_labels: None,
        node_ip: None,
        peers: None,
        metrics: stoker_agent::Metrics::new(),
    })
}
