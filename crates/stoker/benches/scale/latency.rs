//! B5: from the end of a pull to the moment in which a watcher of the job sees it counted; against one PATCH of a status until
//! a watcher of that object sees it. In turns, on a fleet that has nothing else to do.
//!
//! Jobs of one node: of a large job's results many are counted by one write, and of all but the last it would not be known which.
//! The image is named by digest: by tag the one node would also have to answer what the tag means, which is a write more.

use std::time::{Duration, Instant, SystemTime};

use futures::StreamExt as _;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use serde_json::json;
use stoker_api::native::{NodePreheat, Preheat};
use stoker_testbed::fleet::as_agent;
use stoker_testbed::scripted;

use crate::Outcome;
use crate::cluster::{Cluster, Form, next};
use crate::figures::{median, spread};

const SAMPLES: usize = 100;
/// Before a raw write.
const QUIET: Duration = Duration::from_millis(50);
/// The ratio's spread is that of the medians of so many parts.
const PARTS: usize = 5;

pub(crate) async fn measure(cluster: &Cluster) -> Outcome<()> {
    let _controller = cluster.controller(false)?;
    let count = cluster.nodes.len();
    let (first, rest) = cluster.nodes.split_first().ok_or("there are no nodes")?;
    let mut raw = Raw::start(cluster, first).await?;
    let jobs: Api<Preheat> = Api::namespaced(cluster.client.clone(), "default");
    let mut seen = watcher(jobs, watcher::Config::default()).default_backoff().applied_objects().boxed();
    let (mut writes, mut again, mut results) = (vec![], vec![], vec![]);
    for (sample, node) in (0..=SAMPLES).zip(rest.iter().cycle()) {
        let before = raw.sample(2 * sample).await?;
        let (name, tag) = (format!("one{sample}"), cluster.image("one", &format!("v{sample}")));
        let (repository, _) = tag.rsplit_once(':').ok_or("an image has a tag")?;
        let image = format!("{repository}@{}", scripted::digest(&tag));
        cluster.order(Form::Preheat, &name, &image, Some(node)).await?;
        loop {
            let job = next(&mut seen, "a result is not in the job's status").await?;
            let counted = job.status.as_ref().is_some_and(|status| status.succeeded == 1);
            if job.metadata.name.as_deref() == Some(&name) && counted {
                break;
            }
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
        let result = now - cluster.pulled(&image, Some(node))?;
        let after = raw.sample(2 * sample + 1).await?;
        // The first has a lease to wait for and connections to make.
        if sample > 0 {
            writes.push(before * 1000.0);
            again.push(after * 1000.0);
            results.push(result * 1000.0);
        }
    }
    cluster.clear(Form::Preheat).await?;
    let parts = |above: &[f64], below: &[f64]| -> Vec<f64> {
        let chunks = above.chunks(SAMPLES / PARTS).zip(below.chunks(SAMPLES / PARTS));
        chunks.map(|(above, below)| median(above) / median(below)).collect()
    };
    println!(
        "{count} nodes: p50 in ms, pull's end to seen in the job's status {:.2}, raw write to seen {:.2}",
        median(&results),
        median(&writes)
    );
    println!("{count} nodes: result seen / raw {}", spread(&parts(&results, &writes)));
    println!("{count} nodes: A/A raw / raw {}", spread(&parts(&again, &writes)));
    Ok(())
}

/// Writes of one object's status by its agent's account, and a watch of it.
struct Raw {
    api: Api<DynamicObject>,
    name: String,
    seen: futures::stream::BoxStream<'static, Result<DynamicObject, watcher::Error>>,
}

impl Raw {
    async fn start(cluster: &Cluster, name: &str) -> Outcome<Self> {
        let resource = ApiResource::erase::<NodePreheat>(&());
        let api: Api<DynamicObject> = Api::all_with(as_agent(&cluster.client, name), &resource);
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut seen = watcher(api.clone(), config).default_backoff().applied_objects().boxed();
        next(&mut seen, "a NodePreheat is not seen").await?;
        Ok(Self { api, name: name.into(), seen })
    }

    /// Seconds from the start of a write until it is seen.
    async fn sample(&mut self, number: usize) -> Outcome<f64> {
        // What a job leaves to do, acknowledgements above all, is over by then.
        tokio::time::sleep(QUIET).await;
        let patch = Patch::Merge(json!({ "status": { "disk": { "total": 1_000_000, "free": number } } }));
        let params = PatchParams::default();
        let start = Instant::now();
        let write = self.api.patch_status(&self.name, &params, &patch);
        let seen = async {
            loop {
                let object = next(&mut self.seen, "a write is not seen").await?;
                if object.data["status"]["disk"]["free"] == number {
                    return Ok::<f64, Box<dyn std::error::Error>>(start.elapsed().as_secs_f64());
                }
            }
        };
        let (written, seen) = futures::join!(write, seen);
        written?;
        seen
    }
}
