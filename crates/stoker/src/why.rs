//! `stoker why`: what each node is waiting for. Computed from the cluster's objects with the controller's own rules.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::bail;
use jiff::Timestamp;
use stoker_api::Summary;
use stoker_controller::snapshot;
use stoker_core::human;
use stoker_core::world::NodeState;
use stoker_core::{JobId, Reason, Report, Waiting, World, step};

use crate::cli::{ClusterArgs, WhyArgs};
use crate::connect::connect;
use crate::jobs::JobObject;
use crate::out::{out, outln};
use crate::{clock, jobs, table};

/// One node of a job, for people.
pub(crate) struct NodeRow {
    pub(crate) node: String,
    pub(crate) state: NodeState,
    pub(crate) images: Vec<ImageRow>,
}

/// One image of a job on one node.
pub(crate) struct ImageRow {
    pub(crate) image: String,
    pub(crate) report: Option<stoker_core::Report>,
}

/// The nodes of a job as the next plan sees them. What that plan would hand out the controller has not done yet.
pub(crate) fn rows(world: &mut World, id: &JobId, now: Timestamp) -> Vec<NodeRow> {
    let plan = world.plan(now);
    let pending = |node: &str| {
        plan.orders.iter().any(|write| {
            let serves =
                |order: &Option<stoker_core::Order>| order.as_ref().is_some_and(|order| order.jobs.contains(id));
            &*write.node == node && write.changes.values().any(serves)
        })
    };
    let views = world.nodes(id, now).into_iter().map(|view| {
        let images = view.images.iter();
        let images =
            images.map(|(image, report)| ImageRow { image: image.to_string(), report: report.cloned() }).collect();
        let state = match view.state {
            NodeState::Pulling if pending(&view.node) => NodeState::Waiting(Waiting::Pending),
            state => state,
        };
        NodeRow { node: view.node.to_string(), state, images }
    });
    views.collect()
}

/// The same, and of an ended job also the failures that its own status describes, where reports of nodes are not kept.
pub(crate) fn all_rows(world: &mut World, job: &JobObject, summary: &Summary, now: Timestamp) -> Vec<NodeRow> {
    let mut rows = rows(world, &job.id(), now);
    if summary.ended {
        let known: BTreeSet<String> = rows.iter().map(|row| row.node.clone()).collect();
        let others = summary.failures.iter().filter(|failed| !known.contains(&*failed.node));
        rows.extend(others.map(|failed| NodeRow {
            node: failed.node.to_string(),
            state: NodeState::Failed(failed.reason, failed.message.clone()),
            images: Vec::new(),
        }));
        rows.sort_by(|a, b| a.node.cmp(&b.node));
    }
    rows
}

/// A state in a sentence.
pub(crate) fn sentence(row: &NodeRow, now: Timestamp) -> String {
    match &row.state {
        NodeState::Succeeded => "has every image".into(),
        NodeState::Waiting(waiting) => format!("{}: {waiting}", waiting.reason()),
        NodeState::Failed(reason, message) => format!("{reason}: {message}"),
        NodeState::Pulling => {
            let busy = row.images.iter().filter(|image| image.report.as_ref().is_none_or(|report| !report.ended()));
            let parts: Vec<String> = busy.map(|image| pulling(image, now)).collect();
            parts.join("; ")
        }
    }
}

fn pulling(image: &ImageRow, now: Timestamp) -> String {
    match &image.report {
        None => format!("{}: ordered, the agent has not reported yet", image.image),
        // It has not begun: it waits for its turn.
        Some(report) if report.attempt == 0 => format!("{}: {}", image.image, report.message),
        Some(Report { stalled: Some(since), bytes, message, .. }) => {
            let seconds = now.duration_since(*since).as_secs().max(0);
            let (done, total) = (human::bytes(bytes.done), human::bytes(bytes.total));
            let progress = if bytes.total == 0 { String::new() } else { format!("{done} of {total}, ") };
            format!("{}: {progress}stalled {seconds} s, retrying: {message}", image.image)
        }
        // No attempt has failed for it: the one that runs goes on.
        Some(report) if report.reason == Some(Reason::RuntimeUnavailable) => {
            format!("{}: waiting for the runtime, {}: {}", image.image, Reason::RuntimeUnavailable, report.message)
        }
        Some(report) if step::waits_for_room(report) => {
            format!("{}: {}: {}", image.image, Reason::Disk, report.message)
        }
        Some(report) if report.reason.is_some() => {
            let reason = report.reason.map(|reason| reason.as_str()).unwrap_or_default();
            format!("attempt {} failed with {reason}, trying again: {}", report.attempt, report.message)
        }
        Some(report) if report.digest.is_none() => format!("{}: asking the registry for its digest", image.image),
        Some(report) if report.bytes.total == 0 => format!("{}: asking the registry for its manifest", image.image),
        Some(report) => {
            let (done, total) = (human::bytes(report.bytes.done), human::bytes(report.bytes.total));
            format!("{}: {done} of {total}", image.image)
        }
    }
}

pub(crate) fn word(state: &NodeState) -> &'static str {
    match state {
        NodeState::Succeeded => "Done",
        NodeState::Pulling => "Pulling",
        NodeState::Waiting(_) => "Waiting",
        NodeState::Failed(..) => "Failed",
    }
}

/// Prints a sentence for each node that is not done, or for the one that was named.
pub(crate) async fn run(cluster: &ClusterArgs, args: WhyArgs) -> anyhow::Result<ExitCode> {
    let connection = connect(cluster).await?;
    let job = jobs::find(&connection, &args.name).await?;
    let summary = (job.kind.summary)(&job.object);
    let snapshot = snapshot::take(&connection.client, &connection.namespace).await.map_err(jobs::explain)?;
    jobs::tell_unheard(&snapshot.unheard);
    if let Some(why) = jobs::left_alone(job.kind, &snapshot.left_alone) {
        outln!("{}: {why}", job.name());
        return Ok(ExitCode::SUCCESS);
    }
    let mut world = snapshot.world;
    let now = clock::system()();
    let rows = all_rows(&mut world, &job, &summary, now);
    let asked: Vec<&NodeRow> =
        rows.iter().filter(|row| args.node.as_ref().is_none_or(|node| *node == row.node)).collect();
    if let Some(node) = &args.node
        && asked.is_empty()
    {
        let name = job.name();
        match summary.ended {
            _ if !world.has_node(node) => {
                bail!("there is no node {node}, and {name} does not name one; `stoker get nodes` lists them")
            }
            true => outln!(
                "{name} has ended: {}. Nothing is kept about node {node}: it was not one of the job's nodes, or its report \
                 was replaced by that of a later job. Nodes that failed would be named here.",
                summary.message
            ),
            false => bail!("{name} does not want its images on node {node}; `stoker get {name}` shows its nodes"),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let open: Vec<&NodeRow> =
        asked.into_iter().filter(|row| args.node.is_some() || row.state != NodeState::Succeeded).collect();
    if open.is_empty() {
        let message = if summary.message.is_empty() { "nothing is known yet".into() } else { summary.message };
        outln!("{}: no node is waiting; {message}", job.name());
        return Ok(ExitCode::SUCCESS);
    }
    let lines: Vec<Vec<String>> =
        open.iter().map(|row| vec![row.node.clone(), word(&row.state).into(), sentence(row, now)]).collect();
    out!("{}", table::render(&["NODE", "STATE", "WHY"], &lines));
    Ok(ExitCode::SUCCESS)
}
