//! B11: how long a job takes to fail when its registry is away: on 100 nodes against on one node, in turns.
//!
//! Every run is a new `stoker up` with an empty data directory, and a Preheat with all defaults. Prints every run and the
//! ratio; `cargo xtask bench away` runs it. With a number: that many pairs.

#[path = "scale/figures.rs"]
mod figures;

use std::process::Stdio;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{Api, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::await_condition;
use kube::{Client, Config};
use serde_json::json;
use stoker_api::native::{NodePreheat, Preheat};

use crate::figures::{median, spread};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const PAIRS: usize = 3;
const NODES: usize = 100;
const JOB: &str = "away";
/// Nobody listens there.
const IMAGE: &str = "127.0.0.1:1/bench/away:v1";
/// No run takes this long.
const PATIENCE: Duration = Duration::from_secs(900);

#[tokio::main]
async fn main() -> Outcome<()> {
    let pairs = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(PAIRS);
    let (mut one, mut many) = (vec![], vec![]);
    for _ in 0..pairs {
        one.push(run(1).await?);
        many.push(run(NODES).await?);
    }
    let ratios: Vec<f64> = many.iter().zip(&one).map(|(many, one)| many / one).collect();
    println!("seconds until the job has failed: 1 node {:.1}, {NODES} nodes {:.1}", median(&one), median(&many));
    println!("{NODES} nodes / 1 node {}", spread(&ratios));
    Ok(())
}

/// The seconds from the job's start to its end, in its own words.
async fn run(nodes: usize) -> Outcome<f64> {
    let data = tempfile::tempdir()?;
    let mut stoker = tokio::process::Command::new(env!("CARGO_BIN_EXE_stoker"))
        .args(["up", "--listen", "127.0.0.1:0", "--log", "error", "--nodes", &nodes.to_string(), "--data"])
        .arg(data.path())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let kubeconfig = data.path().join("kubeconfig");
    // It is written when everything is ready.
    while !kubeconfig.exists() {
        if let Some(status) = stoker.try_wait()? {
            return Err(format!("`stoker up` ended: {status}; see what it said above").into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let config = Kubeconfig::read_from(kubeconfig)?;
    let client = Client::try_from(Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?)?;
    let jobs: Api<Preheat> = Api::default_namespaced(client.clone());
    let job = json!({
        "apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": JOB},
        "spec": {"images": [{"image": IMAGE}]},
    });
    jobs.create(&PostParams::default(), &serde_json::from_value(job)?).await?;
    let over = |job: Option<&Preheat>| {
        job.and_then(|job| job.status.as_ref()).is_some_and(|status| status.completion_time.is_some())
    };
    let ended = tokio::time::timeout(PATIENCE, await_condition(jobs, JOB, over)).await??;
    let status = ended.and_then(|job| job.status).ok_or("the job is gone")?;
    if status.phase != "Failed" || status.failed as usize != nodes {
        return Err(format!("the job should fail on {nodes} nodes: {}, {}", status.phase, status.message).into());
    }
    let (Some(start), Some(end)) = (status.start_time, status.completion_time) else {
        return Err("the job does not say when it began and ended".into());
    };
    let took = end.duration_since(start).as_secs_f64();
    let objects = Api::<NodePreheat>::all(client).list(&ListParams::default()).await?.items;
    println!("nodes {nodes}, failed {}: {took:.1} s, asked in rounds of {:?}", status.failed, rounds(&objects));
    stoker.kill().await?;
    Ok(took)
}

/// How many nodes were asked in each round: one begins when the first node of the round before has given up.
fn rounds(objects: &[NodePreheat]) -> Vec<usize> {
    let reports = objects.iter().filter_map(|object| object.status.as_ref()).flat_map(|status| status.reports.values());
    let mut asked: Vec<(Timestamp, Timestamp)> =
        reports.filter_map(|report| Some((report.asked, report.finished?))).collect();
    asked.sort_unstable();
    let mut rounds: Vec<(usize, Timestamp)> = vec![];
    for (asked, ended) in asked {
        match rounds.last_mut() {
            Some((nodes, first)) if asked < *first => (*nodes, *first) = (*nodes + 1, ended.min(*first)),
            _ => rounds.push((1, ended)),
        }
    }
    rounds.into_iter().map(|(nodes, _)| nodes).collect()
}
