//! A fleet of simulated nodes on a real cluster: `fleet --nodes N --data DIR`, with the administrator's KUBECONFIG. Says on
//! standard output when all of them are registered, and runs until it is ended. `cargo xtask cluster up --fake-nodes` starts it.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use stoker_api::Span;
use stoker_testbed::fleet::{self, Settings};
use stoker_testbed::scripted::Ends;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Simulated nodes: real agents on runtimes that do as they are told
#[derive(Parser)]
struct Options {
    /// How many
    #[arg(long, value_name = "N")]
    nodes: usize,
    /// Where ledgers, sockets and lists of images are; best in memory
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// How long a pull takes, such as 500ms
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = str::parse::<Span>)]
    pull_time: Span,
    /// Every Nth node fails its pulls, as if the registry did not know the image
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    fail_every: Option<u32>,
    /// Tell the end of each pull at the end of this file: nanoseconds since 1970, node, image, `pulled` or `failed`
    #[arg(long, value_name = "FILE")]
    ends: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse();
    let filter = EnvFilter::try_from_env("STOKER_LOG").unwrap_or_else(|_| EnvFilter::new("warn,kube_client=off"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    let settings = Settings {
        nodes: options.nodes,
        data: options.data,
        pull_time: options.pull_time.0.max(Duration::ZERO),
        fail_every: options.fail_every.and_then(|every| usize::try_from(every).ok()),
        ends: options.ends.map_or_else(|| Ok(Ends::untold()), |file| Ends::to(&file))?,
    };
    let nodes = settings.nodes;
    let administrator = kube::Client::try_default().await?;
    let identify = |node: &str| fleet::as_agent(&administrator, node);
    let ready = || {
        // Whoever waits for it sees that nothing comes.
        let _ = writeln!(std::io::stdout(), "{nodes} agents are registered");
    };
    fleet::run(administrator.clone(), identify, settings, ready, CancellationToken::new()).await?;
    Ok(())
}
