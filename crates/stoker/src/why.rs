//! `stoker why`: what each node is waiting for. Computed from the cluster's objects with the controller's own rules.

use std::process::ExitCode;

use anyhow::bail;
use jiff::Timestamp;
use stoker_controller::snapshot;
use stoker_core::human;
use stoker_core::world::State;
use stoker_core::{JobId, Reason, Waiting, World};

use crate::cli::{Cluster, Why};
use crate::connect::connect;
use crate::out::{out, outln};
use crate::{clock, jobs, table};

/// One node of a job, for people.
pub(crate) struct Row {
    pub(crate) node: String,
    pub(crate) state: State,
    pub(crate) images: Vec<ImageRow>,
}

/// One image of a job on one node.
pub(crate) struct ImageRow {
    pub(crate) image: String,
    pub(crate) report: Option<stoker_core::Report>,
}

/// The nodes of a job as the next plan sees them. What that plan would hand out the controller has not done yet.
pub(crate) fn rows(world: &mut World, id: &JobId, now: Timestamp) -> Vec<Row> {
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
            State::Pulling if pending(&view.node) => State::Waiting(Waiting::Pending),
            state => state,
        };
        Row { node: view.node.to_string(), state, images }
    });
    views.collect()
}

/// A state in a sentence.
pub(crate) fn sentence(row: &Row) -> String {
    match &row.state {
        State::Succeeded => "has every image".into(),
        State::Waiting(waiting) => format!("{}: {waiting}", waiting.reason()),
        State::Failed(reason, message) => format!("{reason}: {message}"),
        State::Pulling => {
            let busy = row.images.iter().filter(|image| image.report.as_ref().is_none_or(|report| !report.ended()));
            let parts: Vec<String> = busy.map(pulling).collect();
            parts.join("; ")
        }
    }
}

fn pulling(image: &ImageRow) -> String {
    match &image.report {
        None => format!("{}: ordered, the agent has not reported yet", image.image),
        // No attempt has failed for it: the one that runs goes on.
        Some(report) if report.reason == Some(Reason::RuntimeUnavailable) => {
            format!("{}: waiting for the runtime, {}: {}", image.image, Reason::RuntimeUnavailable, report.message)
        }
        Some(report) if report.reason.is_some() => {
            let reason = report.reason.map(|reason| reason.as_str()).unwrap_or_default();
            format!("attempt {} failed with {reason}, trying again: {}", report.attempt, report.message)
        }
        Some(report) if report.digest.is_none() => format!("{}: asking the registry for its digest", image.image),
        Some(report) if report.bytes.total == 0 => format!("{}: the digest is known, beginning to fetch", image.image),
        Some(report) => {
            let (done, total) = (human::bytes(report.bytes.done), human::bytes(report.bytes.total));
            format!("{}: {done} of {total}", image.image)
        }
    }
}

pub(crate) fn word(state: &State) -> &'static str {
    match state {
        State::Succeeded => "Done",
        State::Pulling => "Pulling",
        State::Waiting(_) => "Waiting",
        State::Failed(..) => "Failed",
    }
}

/// Prints a sentence for each node that is not done, or for the one that was named.
pub(crate) async fn run(cluster: &Cluster, args: Why) -> anyhow::Result<ExitCode> {
    let connection = connect(cluster).await?;
    let job = jobs::find(&connection, &args.name).await?;
    let summary = (job.dialect.summary)(&job.object);
    let mut world = snapshot::take(&connection.client, &connection.namespace).await.map_err(jobs::explain)?;
    let rows = rows(&mut world, &job.id(), clock::system()());
    let asked: Vec<&Row> = rows.iter().filter(|row| args.node.as_ref().is_none_or(|node| *node == row.node)).collect();
    if let Some(node) = &args.node
        && asked.is_empty()
    {
        match summary.ended {
            true => outln!("{} has ended: {}. What node {node} did is no longer kept.", job.name(), summary.message),
            false => bail!(
                "{} does not want its images on node {node}; `stoker get {}` shows its nodes",
                job.name(),
                job.name()
            ),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let open: Vec<&Row> =
        asked.into_iter().filter(|row| args.node.is_some() || row.state != State::Succeeded).collect();
    if open.is_empty() {
        let message = if summary.message.is_empty() { "nothing is known yet".into() } else { summary.message };
        outln!("{}: no node is waiting; {message}", job.name());
        return Ok(ExitCode::SUCCESS);
    }
    let lines: Vec<Vec<String>> =
        open.iter().map(|row| vec![row.node.clone(), word(&row.state).into(), sentence(row)]).collect();
    out!("{}", table::render(&["NODE", "STATE", "WHY"], &lines));
    Ok(ExitCode::SUCCESS)
}
