//! `stoker demo`: the main job on embedded defaults, from a registry of its own to verified images on three nodes.

mod samples;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, bail};
use kube::api::{Api, PostParams};
use stoker_api::native::{CompletionSpec, ImageSpec, NodesSpec, PaceSpec, Preheat, PreheatSpec, PullSpec};
use stoker_core::human;
use stoker_runtime::{Layout, Runtime};
use stoker_transfer::{Platform, RegistryServer, ServeSettings};
use tokio_util::sync::CancellationToken;

use crate::cli::DemoArgs;
use crate::cli::NodeArgs;
use crate::follow::{JobEnd, follow};
use crate::out::{errln, outln};
use crate::screen::Screen;
use crate::system::{RunningSystem, SystemOptions};
use crate::{clock, table, up};

/// Slow enough to watch, fast enough to wait for.
const REGISTRY_BYTES_PER_SECOND: u64 = 40 << 20;

/// The exit code after Ctrl-C.
const INTERRUPTED: u8 = 130;

/// Runs the demo; exit code 0 only if every byte on every node was verified.
pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let data = data_directory(args.data.as_ref())?;
    outln!("Data directory: {}", data.display());
    outln!("Making three sample images …");
    let stop = CancellationToken::new();
    let act = act(&data, args.keep, stop.clone());
    let mut act = std::pin::pin!(act);
    tokio::select! {
        result = &mut act => result,
        signal = up::stopped() => {
            signal?;
            stop.cancel();
            let end = act.await;
            errln!("\nstopped; what it made is in {}", data.display());
            end
        }
    }
}

fn data_directory(given: Option<&PathBuf>) -> anyhow::Result<PathBuf> {
    match given {
        Some(data) => {
            std::fs::create_dir_all(data).with_context(|| format!("cannot make {}", data.display()))?;
            if std::fs::read_dir(data)?.next().is_some() {
                bail!("{} is not empty; the demo wants a directory of its own", data.display());
            }
            Ok(data.clone())
        }
        None => Ok(tempfile::Builder::new().prefix("stoker-demo-").tempdir()?.keep()),
    }
}

async fn act(data: &Path, keep: bool, stop: CancellationToken) -> anyhow::Result<ExitCode> {
    let library = Layout::open(data.join("registry"))?;
    let Some(names) = stop.run_until_cancelled(samples::make(&library, data)).await.transpose()? else {
        return Ok(INTERRUPTED.into());
    };
    let settings = ServeSettings { bytes_per_second: Some(REGISTRY_BYTES_PER_SECOND) };
    let server = RegistryServer::bind(([127, 0, 0, 1], 0).into(), data.join("registry"), settings).await?;
    let (registry, sent) = (server.addr(), server.sent());
    let serving = tokio::spawn(server.run(stop.child_token()));
    let listen = ([127, 0, 0, 1], 0).into();
    let options = SystemOptions {
        data: data.into(),
        nodes: 3,
        listen,
        peers: true,
        metrics: None,
        platform: platform(),
        clock: clock::system(),
        node: NodeArgs::layout(),
    };
    let mut system = RunningSystem::start(options).await?;
    outln!("Registry at {registry}, API at https://{}, nodes node-1 … node-3, two of them at one time:\n", system.addr);
    let images: Vec<String> = names.iter().map(|name| format!("{registry}/{name}")).collect();
    let client = system.client.clone();
    let preheat = preheat(&images);
    let followed = stop.run_until_cancelled(async {
        Api::<Preheat>::namespaced(client.clone(), "default").create(&PostParams::default(), &preheat).await?;
        let mut screen = Screen::new();
        let end = follow(&client, "default", "demo", &clock::system(), &mut screen).await;
        screen.close();
        end
    });
    let code = match system.run_until(followed).await?.transpose()? {
        None => INTERRUPTED.into(),
        Some(end) => {
            let shown = show(&end);
            let (proven, one_node) = prove(&system).await?;
            let good = shown && proven;
            let left = sent.load(Ordering::Relaxed);
            outln!(
                "\n{} left the registry, {:.2} times what one node has: nodes read from each other.",
                human::bytes(left),
                left as f64 / one_node.max(1) as f64
            );
            if keep {
                outln!("\nThe registry at {registry} has: {}\n{}", names.join(", "), up::greeting(&system));
                system.run_until(stop.cancelled()).await?;
            }
            if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
    };
    stop.cancel();
    system.stop().await?;
    serving.await??;
    Ok(code)
}

/// The samples exist for two platforms; a host that is neither pretends.
fn platform() -> Platform {
    let host = Platform::host();
    match samples::PLATFORMS.contains(&host.architecture.as_str()) {
        true => host,
        false => Platform::new("linux", "amd64", None),
    }
}

fn preheat(images: &[String]) -> Preheat {
    let images = images.iter().map(|image| ImageSpec { image: image.clone(), pull_secrets: Vec::new() }).collect();
    let spec = PreheatSpec {
        images,
        nodes: NodesSpec::default(),
        pace: PaceSpec { parallelism: 2, ..PaceSpec::default() },
        pull: PullSpec::default(),
        completion: CompletionSpec::default(),
        suspend: false,
    };
    Preheat::new("demo", spec)
}

/// The table of results; true if every node has every image.
fn show(end: &JobEnd) -> bool {
    let rows: Vec<Vec<String>> = end
        .rows
        .iter()
        .map(|row| {
            let report = &row.report;
            let took = report.finished.map(|finished| finished.duration_since(report.started));
            let took = took.and_then(|took| Duration::try_from(took).ok()).unwrap_or_default();
            let result = match report.reason {
                Some(reason) => format!("{reason}: {}", report.message),
                None => format!("{:?}", report.phase),
            };
            vec![
                row.node.clone(),
                row.image.clone(),
                report.digest.as_deref().map(table::short_digest).unwrap_or_default(),
                human::bytes(report.bytes.done),
                format!("{:.1} s", took.as_secs_f64()),
                result,
            ]
        })
        .collect();
    outln!("\n{}", table::render(&["NODE", "IMAGE", "DIGEST", "BYTES", "TIME", "RESULT"], &rows));
    end.summary.failed == 0 && end.summary.succeeded == end.summary.desired && end.summary.desired > 0
}

/// Re-hashes every blob on every node. Returns whether all are right, and how many bytes one node has.
async fn prove(system: &RunningSystem) -> anyhow::Result<(bool, u64)> {
    let (mut good, mut most) = (true, 0);
    for (name, runtime) in &system.nodes {
        let Runtime::Layout(store) = runtime else { continue };
        let proof = store.verify(|_, _| {}).await?;
        let bad = match proof.is_good() {
            true => "every sha256 is right".to_string(),
            false => format!("WRONG: {:?}, {:?}", proof.damaged, proof.missing),
        };
        outln!("{name}: {} blobs re-hashed, {}, {bad}", proof.blobs, human::bytes(proof.bytes));
        good &= proof.is_good() && proof.blobs > 0;
        most = most.max(proof.bytes);
    }
    Ok((good, most))
}
