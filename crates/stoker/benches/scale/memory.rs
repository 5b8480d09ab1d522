//! B6: the controller's anonymous memory while 20 jobs with an image each go to all nodes at once, and when they are over. With
//! the usual cap on its writes: so it has the most to remember.

use std::time::{Duration, Instant};

use crate::Outcome;
use crate::cluster::{Cluster, Form};

const JOBS: usize = 20;
const LOOK: Duration = Duration::from_millis(50);
/// What is given back is given back by then.
const REST: Duration = Duration::from_secs(10);

pub(crate) async fn measure(cluster: &Cluster, form: Form, node_images: bool) -> Outcome<()> {
    let controller = cluster.controller(true)?;
    if node_images {
        cluster.node_images().await?;
    }
    cluster
        .order(
            form,
            "warm",
            &cluster.image("memory", &format!("warm-{form:?}-{node_images}")),
            cluster.nodes.first().map(String::as_str),
        )
        .await?;
    cluster.settle(form, 1).await?;
    cluster.clear(form).await?;
    let idle = controller.memory()?;
    let (before, start) = (cluster.counts().await?, Instant::now());
    let jobs = async {
        for job in 0..JOBS {
            cluster
                .order(
                    form,
                    &format!("job{job}"),
                    &cluster.image("memory", &format!("v{job}-{form:?}-{node_images}")),
                    None,
                )
                .await?;
        }
        cluster.settle(form, JOBS).await
    };
    let mut jobs = std::pin::pin!(jobs);
    let mut peak = idle;
    loop {
        tokio::select! {
            ended = &mut jobs => break ended?,
            () = tokio::time::sleep(LOOK) => peak = peak.max(controller.memory()?),
        }
    }
    let (took, counts) = (start.elapsed().as_secs_f64(), cluster.counts().await?.since(before));
    tokio::time::sleep(REST).await;
    let after = controller.memory()?;
    cluster.clear(form).await?;
    let (count, with) = (cluster.nodes.len(), if node_images { " with NodeImages" } else { "" });
    println!(
        "{count} nodes, {JOBS} {form:?}s{with}: the controller's RssAnon in MiB, idle {idle:.1}, peak {peak:.1}, when they are over {after:.1}"
    );
    println!(
        "{count} nodes, {JOBS} {form:?}s{with}: {took:.1} s; {} orders, {} reports, {} statuses of jobs and {} NodeImages written",
        counts.orders, counts.reports, counts.outcomes, counts.node_images
    );
    Ok(())
}
