//! Follows one Preheat to its end: its own object, and where few enough nodes take part their reports too.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::future::OptionFuture;
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt as _};
use stoker_api::native::from_core::phase;
use stoker_api::native::{NodeObject, Preheat, to_core};
use stoker_api::{AnyObject, Summary};
use stoker_core::model::{Job, Key, Report};
use stoker_core::{Clock, Stage, text};

use crate::out::errln;
use crate::screen::{PAUSE, Screen};

/// With more nodes than this only the job's sums are shown: a watch of every node's reports is not free.
const NODES_IN_DETAIL: u32 = 20;

/// A Preheat that nobody has looked at for this long may have no controller.
const HINT: Duration = Duration::from_secs(10);

/// One image on one node.
#[derive(Clone)]
pub(crate) struct ReportRow {
    pub(crate) node: String,
    pub(crate) image: String,
    pub(crate) report: Report,
}

/// How it ended.
pub(crate) struct JobEnd {
    pub(crate) summary: Summary,
    pub(crate) object: DynamicObject,
    pub(crate) rows: Vec<ReportRow>,
}

/// Shows progress until the Preheat has ended.
pub(crate) async fn follow(
    client: &Client,
    namespace: &str,
    name: &str,
    clock: &Clock,
    screen: &mut Screen,
) -> anyhow::Result<JobEnd> {
    let preheats: Api<AnyObject> = Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<Preheat>(&()));
    let nodes: Api<NodeObject> = Api::all(client.clone());
    let mine = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut watch = watcher(preheats, mine).default_backoff().boxed();
    let mut watch_nodes: Option<BoxStream<'_, _>> = None;
    let mut reports: BTreeMap<String, BTreeMap<Key, Report>> = BTreeMap::new();
    let mut current: Option<(Job, Summary)> = None;
    let mut listed = false;
    let mut hint = std::pin::pin!(tokio::time::sleep(HINT));
    let mut hinted = false;
    // What was not shown because something else was shown a moment before: nothing may happen after it.
    let mut again = tokio::time::interval(PAUSE);
    loop {
        tokio::select! {
            event = watch.try_next() => match event.map_err(|problem| tracing::warn!("watch interrupted: {problem}")) {
                Ok(Some(Event::Apply(AnyObject(object)) | Event::InitApply(AnyObject(object)))) => {
                    listed = true;
                    let (job, summary) = (to_core::job(&object)?, to_core::summary(&object));
                    // Without any node there is nothing to follow.
                    let lacks_nodes = summary.phase == phase(Stage::Running) && summary.desired == 0;
                    if summary.ended || lacks_nodes {
                        // For the table only: that it cannot be read, or not by this user, changes nothing.
                        if summary.desired <= NODES_IN_DETAIL
                            && let Ok(all) = nodes.list(&ListParams::default()).await
                        {
                            all.items.into_iter().for_each(|node| take(node, &mut reports));
                        }
                        let rows = rows(&job, &reports, clock);
                        screen.show(&summary, &rows);
                        return Ok(JobEnd { summary, object, rows });
                    }
                    if watch_nodes.is_none() && (1..=NODES_IN_DETAIL).contains(&summary.desired) {
                        let all = watcher::Config::default();
                        watch_nodes = Some(watcher(nodes.clone(), all).default_backoff().boxed());
                    }
                    current = Some((job, summary));
                }
                Ok(Some(Event::Delete(_))) => bail!("Preheat {name} was deleted by somebody; its pulls stopped"),
                Ok(Some(Event::Init)) => listed = false,
                Ok(Some(Event::InitDone)) if !listed => bail!("Preheat {name} is gone; its time to live may be over"),
                Ok(Some(Event::InitDone)) | Err(()) => {}
                Ok(None) => bail!("the watch of Preheat {name} ended; `stoker get {name}` shows how it goes on"),
            },
            () = &mut hint, if !hinted => {
                hinted = true;
                if current.as_ref().is_none_or(|(_, summary)| summary.phase.is_empty()) {
                    errln!("nothing has acted on Preheat {name} yet; is the controller running? `stoker why {name}` says more");
                }
            }
            _ = again.tick() => {}
            Some(event) = OptionFuture::from(watch_nodes.as_mut().map(|watch| watch.try_next())) => {
                let event = event.unwrap_or_default();
                if let Some(Event::Apply(node) | Event::InitApply(node)) = event {
                    take(node, &mut reports);
                }
            }
        }
        if let Some((job, summary)) = &current {
            screen.show(summary, &rows(job, &reports, clock));
        }
    }
}

fn take(node: NodeObject, reports: &mut BTreeMap<String, BTreeMap<Key, Report>>) {
    // What was said stays known when the agent sweeps it.
    reports.entry(node.name_any()).or_default().extend(node.reports);
}

/// The reports that count for this job, by node and in the order of its images.
fn rows(job: &Job, reports: &BTreeMap<String, BTreeMap<Key, Report>>, clock: &Clock) -> Vec<ReportRow> {
    let now = clock();
    let mut rows = Vec::new();
    for (node, reports) in reports {
        let since = job.since(node, now);
        for image in &job.images {
            let Ok(key) = image.reference.as_ref().map(|reference| reference.key()) else { continue };
            let counts = |key: Key| reports.get(&key).filter(|report| report.asked >= since);
            if let Some(report) = counts(key).or_else(|| counts(key.question())) {
                rows.push(ReportRow { node: node.clone(), image: image.written.clone(), report: report.clone() });
            }
        }
    }
    rows
}

/// The failed nodes of a Preheat with their reasons, a line each.
pub(crate) fn failures(object: &DynamicObject) -> anyhow::Result<Vec<String>> {
    let status = object.data.get("status").cloned().unwrap_or_default();
    let status: stoker_api::native::PreheatStatus =
        serde_json::from_value(status).context("the Preheat's status cannot be read")?;
    let lines = status.failed_nodes.iter().map(|node| format!("{}: {}: {}", node.node, node.reason, node.message));
    Ok(lines.map(|line| text::escape(&line).into_owned()).collect())
}
