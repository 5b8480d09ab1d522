//! Memory of the real binary: an idle agent in a process of its own, and the peak of the whole `demo`.
//!
//! Prints `name value unit` lines; `cargo xtask bench memory` runs it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::PostParams;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use stoker_api::native::NodePreheat;
use stoker_testbed::memory;
use tokio_util::sync::CancellationToken;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let stoker = PathBuf::from(env!("CARGO_BIN_EXE_stoker"));
    let scratch = tempfile::tempdir()?;
    println!("idle-agent-rss-anon {:.1} MiB", idle_agent(&stoker, scratch.path()).await?);
    println!("demo-peak-rss {:.1} MiB", demo(&stoker, &scratch.path().join("demo")).await?);
    Ok(())
}

async fn idle_agent(stoker: &Path, scratch: &Path) -> Outcome<f64> {
    let crds: Result<_, _> = stoker_api::crds().iter().map(|(_, crd)| serde_json::to_value(crd)).collect();
    let clock: stoker_core::Clock = Arc::new(jiff::Timestamp::now);
    let api = stoker_embedded::Api::new(stoker_embedded::Settings::new(crds?, clock))?;
    let server = stoker_embedded::Server::bind(api.clone(), ([127, 0, 0, 1], 0).into()).await?;
    let kubeconfig: PathBuf = scratch.join("kubeconfig");
    std::fs::write(&kubeconfig, server.kubeconfig())?;
    let cancel = CancellationToken::new();
    let serving = tokio::spawn(server.run(cancel.clone()));
    let client = api.client("default");
    let node = serde_json::from_value(serde_json::json!({"metadata": {"name": "idle"}}))?;
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &node).await?;
    let mut agent = Command::new(stoker)
        .args(["agent", "--node", "idle", "--runtime", "layout", "--data"])
        .arg(scratch.join("idle"))
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .stderr(Stdio::null())
        .spawn()?;
    let mut objects = watcher(Api::<NodePreheat>::all(client), watcher::Config::default())
        .default_backoff()
        .applied_objects()
        .boxed();
    while let Some(object) = objects.next().await {
        if object?.status.is_some_and(|status| status.agent.is_some()) {
            break;
        }
    }
    // It has registered and watches; what it used to get there is given back, or not, within a moment.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let used = memory::of(agent.id(), "RssAnon").ok_or("the agent is gone")?;
    agent.kill()?;
    agent.wait()?;
    cancel.cancel();
    serving.await??;
    Ok(used)
}

async fn demo(stoker: &Path, data: &Path) -> Outcome<f64> {
    let mut child: Child =
        Command::new(stoker).args(["demo", "--data"]).arg(data).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let mut peak: f64 = 0.0;
    while child.try_wait()?.is_none() {
        peak = peak.max(memory::of(child.id(), "VmHWM").unwrap_or_default());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    match child.wait()?.success() {
        true => Ok(peak),
        false => Err("the demo failed".into()),
    }
}
