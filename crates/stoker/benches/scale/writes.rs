//! B4: writes a second of one job on all nodes, orders and reports, from its creation to its end as a watcher sees it; against
//! the PATCHes of the same objects that 64 tasks send as fast as the same API server answers them.
//!
//! The raw ones go by the same accounts, half of them as the controller and half as agents, with patches of the same size, and
//! everybody watches as before. A round is raw, ours, raw: ours is compared with the mean of its neighbours, and these with
//! each other (A/A).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use http::Request;
use kube::Client;
use serde_json::json;
use stoker_core::Key;
use stoker_testbed::fleet::speak_for_agent;
use tokio::task::JoinSet;

use crate::Outcome;
use crate::cluster::{Cluster, Counts, Form};
use crate::figures::{median, spread};

const ROUNDS: usize = 5;
const TASKS: usize = 64;
/// How long the raw ones go on.
const RAW: Duration = Duration::from_secs(6);
const PATH: &str = "/apis/stoker.dev/v1alpha1/nodepreheats";

pub(crate) async fn measure(cluster: &Cluster) -> Outcome<()> {
    let _controller = cluster.controller(false)?;
    // Connections, caches and the lease are there before anything counts.
    ours(cluster, Form::Preheat, "warm").await?;
    let number = AtomicUsize::new(1);
    raw(cluster, &number).await?;
    let (mut rates, mut raws, mut ratios, mut same, mut waits) = (vec![], vec![], vec![], vec![], vec![]);
    let mut all = vec![];
    for round in 0..ROUNDS {
        let before = raw(cluster, &number).await?;
        println!("round {round}: raw {before:.0} writes a second");
        let own = ours(cluster, Form::Preheat, &format!("round{round}")).await?;
        let Counts { orders, reports, outcomes, refused, .. } = own.counts;
        println!(
            "round {round}: ours {:.0} writes a second, {:.2} s: {orders} orders, {reports} reports, {outcomes} of the job's \
             status, {refused} refused",
            own.rate, own.took
        );
        let after = raw(cluster, &number).await?;
        println!("round {round}: raw {after:.0} writes a second");
        ratios.push(own.rate / ((before + after) / 2.0));
        same.push(after / before);
        raws.extend([before, after]);
        rates.push(own.rate);
        waits.push(own.last_seen * 1000.0);
        all.push(own.counts);
    }
    let count = cluster.nodes.len();
    println!("{count} nodes: writes a second, ours {:.0}, raw {:.0}", median(&rates), median(&raws));
    println!("{count} nodes: ours / raw {}", spread(&ratios));
    println!("{count} nodes: A/A raw / raw {}", spread(&same));
    // The worst round: what others cost less makes none of it good.
    let most = |writes: fn(&Counts) -> f64| all.iter().map(writes).fold(0.0, f64::max);
    println!(
        "{count} nodes: in the worst round, writes a node {:.4} (orders {:.4}, reports {:.4}); of the job's status {}; refused {}",
        most(|counts| counts.orders + counts.reports) / count as f64,
        most(|counts| counts.orders) / count as f64,
        most(|counts| counts.reports) / count as f64,
        most(|counts| counts.outcomes),
        most(|counts| counts.refused)
    );
    println!("{count} nodes: from the last pull's end to the job's end seen, ms {}", spread(&waits));
    Ok(())
}

/// One ImagePullJob on all nodes against one Preheat, in turns: what another project's words cost.
pub(crate) async fn compare(cluster: &Cluster, node_images: bool) -> Outcome<()> {
    let _controller = cluster.controller(false)?;
    if node_images {
        cluster.node_images().await?;
    }
    for form in [Form::Preheat, Form::ImagePullJob] {
        ours(cluster, form, &format!("warm-{node_images}-{}", format!("{form:?}").to_lowercase())).await?;
    }
    let (mut ratios, mut same, mut writes) = (vec![], vec![], vec![]);
    for round in 0..ROUNDS {
        let before = ours(cluster, Form::Preheat, &format!("before{round}-{node_images}")).await?;
        let other = ours(cluster, Form::ImagePullJob, &format!("pull{round}-{node_images}")).await?;
        let after = ours(cluster, Form::Preheat, &format!("after{round}-{node_images}")).await?;
        let times = [&before, &other, &after].map(|run| format!("{:.2}", run.took)).join(", ");
        println!("round {round}: seconds of a Preheat, an ImagePullJob, a Preheat: {times}");
        ratios.push(2.0 * other.took / (before.took + after.took));
        same.push(after.took / before.took);
        let Counts { orders, reports, node_images, .. } = other.counts;
        println!("round {round}: {orders} orders, {reports} reports, {node_images} writes of NodeImages");
        writes.push((orders + reports + node_images) / cluster.nodes.len() as f64);
    }
    let (count, with) = (cluster.nodes.len(), if node_images { "with NodeImages" } else { "without NodeImages" });
    println!("{count} nodes, {with}: time of an ImagePullJob / time of a Preheat {}", spread(&ratios));
    println!("{count} nodes, {with}: A/A Preheat / Preheat {}", spread(&same));
    println!("{count} nodes, {with}: writes a node of an ImagePullJob {}", spread(&writes));
    Ok(())
}

/// A job for a tag where two nodes must hear the same digest, against one where one is enough, in turns.
pub(crate) async fn witnesses(cluster: &Cluster) -> Outcome<()> {
    let one = async |round: &str| {
        let _controller = cluster.controller_with(false, &["--digest-witnesses", "1"])?;
        // The lease and all objects are there before anything counts.
        ours(cluster, Form::Preheat, &format!("warm-one-{round}")).await?;
        ours(cluster, Form::Preheat, &format!("one-{round}")).await
    };
    let two = async |round: &str| {
        let _controller = cluster.controller(false)?;
        ours(cluster, Form::Preheat, &format!("warm-two-{round}")).await?;
        ours(cluster, Form::Preheat, &format!("two-{round}")).await
    };
    let (mut times, mut writes, mut same) = (vec![], vec![], vec![]);
    for round in 0..ROUNDS {
        let before = one(&format!("{round}a")).await?;
        let both = two(&round.to_string()).await?;
        let after = one(&format!("{round}b")).await?;
        println!("round {round}: seconds with one, two, one: {:.2}, {:.2}, {:.2}", before.took, both.took, after.took);
        times.push(2.0 * both.took / (before.took + after.took));
        same.push(after.took / before.took);
        let all = |run: &Run| run.counts.orders + run.counts.reports;
        writes.push(all(&both) - (all(&before) + all(&after)) / 2.0);
    }
    let count = cluster.nodes.len();
    println!("{count} nodes: time with two witnesses / time with one {}", spread(&times));
    println!("{count} nodes: A/A one / one {}", spread(&same));
    println!("{count} nodes: writes more with two {}", spread(&writes));
    Ok(())
}

struct Run {
    rate: f64,
    took: f64,
    counts: Counts,
    /// Seconds from the end of the last pull until the job was seen to be over.
    last_seen: f64,
}

async fn ours(cluster: &Cluster, form: Form, tag: &str) -> Outcome<Run> {
    let image = cluster.image("app", tag);
    let before = cluster.counts().await?;
    let start = Instant::now();
    cluster.order(form, tag, &image, None).await?;
    cluster.settle(form, 1).await?;
    let (took, seen) = (start.elapsed().as_secs_f64(), SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?);
    if form == Form::ImagePullJob {
        cluster.quiet().await?;
    }
    let counts = cluster.counts().await?.since(before);
    cluster.clear(form).await?;
    if form == Form::ImagePullJob {
        cluster.quiet().await?;
    }
    let last_seen = seen.as_secs_f64() - cluster.pulled(&image, None)?;
    Ok(Run { rate: (counts.orders + counts.reports) / took, took, counts, last_seen })
}

/// An order, as far as its size goes: an annotation, so that agents and controller see it and have nothing to do. Each has
/// another number: a patch that changes nothing is not written.
fn order(number: usize) -> Vec<u8> {
    json!({ "metadata": { "annotations": { "stoker.dev/bench": format!("{number:0>450}") } } }).to_string().into_bytes()
}

/// A report of an image that nobody ordered: the controller notes it, and no job counts it.
fn report(number: usize) -> Vec<u8> {
    let key = Key::of("127.0.0.1:1/scale/raw:v1").to_string();
    let (time, digest) = ("2026-01-01T00:00:00Z", format!("sha256:{number:0>64}"));
    let report = json!({
        "asked": time, "phase": "Succeeded", "digest": digest, "pin": null,
        "bytes": { "total": 104857600, "done": 104857600, "upstream": 0, "peers": 0 },
        "attempt": 1, "reason": null, "message": null, "started": time, "finished": time, "updated": time,
    });
    let disk = json!({ "total": 12000000000_u64, "free": 11000000000_u64 });
    json!({ "status": { "disk": disk, "reports": { key: report } } }).to_string().into_bytes()
}

/// One PATCH, for an agent where one is named; what comes back is read and thrown away.
async fn patch(client: &Client, path: &str, agent: Option<&str>, patch: Vec<u8>) -> Result<(), String> {
    let request = Request::patch(path).header("Content-Type", "application/merge-patch+json");
    let mut request = request.body(patch).map_err(|problem| problem.to_string())?;
    if let Some(node) = agent {
        speak_for_agent(request.headers_mut(), node);
    }
    client.request_text(request).await.map(drop).map_err(|problem| problem.to_string())
}

/// Writes a second; they are numbered on from `number`.
async fn raw(cluster: &Cluster, number: &AtomicUsize) -> Outcome<f64> {
    let nodes: Arc<Vec<String>> = Arc::new(cluster.nodes.clone());
    let first = number.fetch_add(1_000_000, Ordering::Relaxed);
    let mut tasks = JoinSet::new();
    let start = Instant::now();
    for task in 0..TASKS {
        let nodes = nodes.clone();
        let (controller, admin) = (cluster.controllers.clone(), cluster.client.clone());
        tasks.spawn(async move {
            let mut written = 0;
            // The report is another node's: a write that follows at once on another of the same object finds the API
            // server's cache behind and is done twice, and ours never do.
            let reporting = nodes.iter().cycle().skip(task + nodes.len() / 2).step_by(TASKS);
            for (node, reporting) in nodes.iter().cycle().skip(task).step_by(TASKS).zip(reporting) {
                if start.elapsed() > RAW {
                    break;
                }
                patch(&controller, &format!("{PATH}/{node}"), None, order(first + written)).await?;
                let status = format!("{PATH}/{reporting}/status");
                patch(&admin, &status, Some(reporting), report(first + written)).await?;
                written += 2;
            }
            Ok::<usize, String>(written)
        });
    }
    let mut written = 0;
    while let Some(ended) = tasks.join_next().await {
        written += ended??;
    }
    Ok(written as f64 / start.elapsed().as_secs_f64())
}
