//! B6: the controller's anonymous memory while 20 jobs with an image each go to all nodes at once, and when they are over. With
//! the usual cap on its writes: so it has the most to remember.

use std::time::{Duration, Instant};

use crate::Outcome;
use crate::cluster::{Cluster, Form};

const JOBS: usize = 20;
const LOOK: Duration = Duration::from_millis(50);
/// What is given back is given back by then.
const REST: Duration = Duration::from_secs(10);

pub(crate) async fn measure(cluster: &Cluster, form: Form) -> Outcome<()> {
    let controller = cluster.controller(true)?;
    cluster
        .order(
            form,
            "warm",
            &cluster.image("memory", &format!("warm-{form:?}")),
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
                .order(form, &format!("job{job}"), &cluster.image("memory", &format!("v{job}-{form:?}")), None)
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
    let count = cluster.nodes.len();
    println!(
        "{count} nodes, {JOBS} {form:?}s: the controller's RssAnon in MiB, idle {idle:.1}, peak {peak:.1}, when they are over {after:.1}"
    );
    println!(
        "{count} nodes, {JOBS} {form:?}s: {took:.1} s; {} orders, {} reports and {} statuses of jobs written",
        counts.orders, counts.reports, counts.outcomes
    );
    Ok(())
}
