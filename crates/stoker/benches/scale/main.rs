//! The controller and many agents on a real API server: writes a second, how soon a result is seen, and memory.
//!
//! Runs in the network of a cluster with simulated nodes (`cargo xtask bench scale` brings it up), as its administrator by
//! KUBECONFIG. Arguments: which of `writes`, `latency`, `memory`, `witnesses`, `pulljobs` and `pulljobs-memory` (ImagePullJobs without NodeImages), `nodeimages`
//! and `nodeimages-memory` (with them), and last the file in which the fleet tells the ends of pulls.
//! The controller is the real binary with the account of `stoker install` and without a cap on its writes.

mod cluster;
mod figures;
mod latency;
mod memory;
mod writes;

use std::path::PathBuf;

use crate::cluster::{Cluster, Form};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let Some((ends, parts)) = words.split_last() else { return Err("run it with `cargo xtask bench scale`".into()) };
    let cluster = Cluster::connect(PathBuf::from(ends)).await?;
    for part in parts {
        match part.as_str() {
            "writes" => writes::measure(&cluster).await?,
            "latency" => latency::measure(&cluster).await?,
            "memory" => memory::measure(&cluster, Form::Preheat, false).await?,
            "pulljobs" => {
                cluster.learn_kruise(false).await?;
                writes::compare(&cluster, false).await?;
            }
            "pulljobs-memory" => {
                cluster.learn_kruise(false).await?;
                memory::measure(&cluster, Form::ImagePullJob, false).await?;
            }
            "witnesses" => writes::witnesses(&cluster).await?,
            "nodeimages" => {
                cluster.learn_kruise(true).await?;
                writes::compare(&cluster, true).await?;
            }
            "nodeimages-memory" => {
                cluster.learn_kruise(true).await?;
                memory::measure(&cluster, Form::ImagePullJob, true).await?;
            }
            other => return Err(format!("there is no part {other}").into()),
        }
    }
    Ok(())
}
