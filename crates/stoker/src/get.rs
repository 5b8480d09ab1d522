//! `stoker get`: jobs, one job node by node, or nodes.

use std::process::ExitCode;

use anyhow::bail;
use futures::StreamExt as _;
use futures::stream::SelectAll;
use jiff::Timestamp;
use kube::api::{Api, DynamicObject, ListParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use stoker_api::{AnyObject, JobKind, PlainNode, job_kinds, native};
use stoker_controller::snapshot;
use stoker_core::model::{NO_GROUP, Origin};
use stoker_core::world::NodeState;
use stoker_core::{Phase, Reason, human, text};

use crate::cli::{ClusterArgs, GetArgs, Output, WrongInput};
use crate::connect::{Connection, connect};
use crate::jobs::{self, JobObject};
use crate::out::{errln, out, outln};
use crate::{clock, table, why};

/// Prints what the user asked for.
pub(crate) async fn run(cluster: &ClusterArgs, args: GetArgs) -> anyhow::Result<ExitCode> {
    let of_nodes = matches!(args.name.as_deref(), Some("nodes" | "node"));
    if of_nodes && args.watch {
        bail!(WrongInput("nodes cannot be watched here; use `kubectl get nodepreheats -w`".into()));
    }
    let connection = connect(cluster).await?;
    match args.name.as_deref() {
        _ if of_nodes => nodes(&connection.client, args.output).await?,
        name if args.watch => return watch(&connection, name, &args).await,
        None => {
            let namespace = (!args.all_namespaces).then_some(connection.namespace.as_str());
            let jobs = jobs::list(&connection.client, namespace).await?;
            jobs::tell_left_alone(&connection.client, &jobs).await;
            match args.output {
                Output::Json | Output::Yaml => print_objects(jobs.into_iter().map(|job| job.object), args.output)?,
                _ if jobs.is_empty() => errln!("no jobs{}; make one with `stoker pull IMAGE`", place(namespace)),
                _ => out!("{}", job_table(&jobs, &args)),
            }
        }
        Some(name) => {
            let job = jobs::find(&connection, name).await?;
            match args.output {
                Output::Json | Output::Yaml => print_value(&serde_json::to_value(&job.object)?, args.output)?,
                _ => one_job(&connection.client, &job, &args).await?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn place(namespace: Option<&str>) -> String {
    namespace.map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default()
}

fn print_objects(objects: impl Iterator<Item = DynamicObject>, output: Output) -> anyhow::Result<()> {
    let items: Vec<Value> = objects.map(|object| serde_json::to_value(&object)).collect::<Result<_, _>>()?;
    print_value(&json!({ "apiVersion": "v1", "kind": "List", "items": items }), output)
}

fn print_value(value: &Value, output: Output) -> anyhow::Result<()> {
    match output {
        Output::Yaml => out!("{}", serde_saphyr::to_string(value)?),
        _ => outln!("{value:#}"),
    }
    Ok(())
}

fn header(args: &GetArgs) -> Vec<&'static str> {
    let mut header = vec!["NAME", "PHASE", "NODES", "DONE", "PULLING", "FAILED", "AGE"];
    if args.all_namespaces {
        header.insert(0, "NAMESPACE");
    }
    if with_message(args) {
        header.push("MESSAGE");
    }
    header
}

/// Whether jobs are listed with what they say of themselves: whoever watches wants to know why nodes wait.
fn with_message(args: &GetArgs) -> bool {
    args.output == Output::Wide || args.watch
}

fn job_row(kind: &JobKind, object: &DynamicObject, args: &GetArgs, now: Timestamp) -> Vec<String> {
    let summary = (kind.summary)(object);
    let phase = if summary.phase.is_empty() { "-".into() } else { summary.phase };
    let age = table::age(object.metadata.creation_timestamp.as_ref().map(|time| time.0), now);
    let mut row = vec![jobs::spoken(kind, &object.name_any()), phase];
    // A list counts images, each of which has a job of its own.
    row.push(match (kind.made_of, summary.desired) {
        (None, nodes) => nodes.to_string(),
        (Some(_), 1) => "1 image".into(),
        (Some(_), images) => format!("{images} images"),
    });
    row.extend([summary.succeeded, summary.pulling, summary.failed].map(|count| count.to_string()));
    row.push(age);
    if args.all_namespaces {
        row.insert(0, object.namespace().unwrap_or_default());
    }
    if with_message(args) {
        row.push(summary.message);
    }
    row
}

fn job_table(jobs: &[JobObject], args: &GetArgs) -> String {
    let now = clock::system()();
    let rows: Vec<Vec<String>> = jobs.iter().map(|job| job_row(job.kind, &job.object, args, now)).collect();
    table::render(&header(args), &rows)
}

/// One job: what it says of itself, then node by node.
async fn one_job(client: &Client, job: &JobObject, args: &GetArgs) -> anyhow::Result<()> {
    let summary = (job.kind.summary)(&job.object);
    outln!("{} {}: {}", job.kind.kind.name, job.object.name_any(), summary.message);
    summary.warnings.iter().for_each(|warning| outln!("warning: {warning}"));
    if let Some(parts) = jobs::parts(client, job).await? {
        jobs::tell_left_alone(client, std::slice::from_ref(job)).await;
        if !parts.is_empty() {
            out!("{}", job_table(&parts, args));
        }
        return Ok(());
    }
    let namespace = job.object.namespace().unwrap_or_default();
    let snapshot = match snapshot::take(client, &namespace).await {
        // Somebody who may see this namespace only still sees what the job says of itself.
        Err(kube::Error::Api(status)) if status.code == 403 => {
            errln!("its nodes cannot be shown: {}", jobs::forbidden(&status));
            return Ok(());
        }
        snapshot => snapshot.map_err(jobs::explain)?,
    };
    jobs::tell_unheard(&snapshot.unheard);
    if let Some(why) = jobs::left_alone(job.kind, &snapshot.left_alone) {
        outln!("{why}");
        return Ok(());
    }
    if let Some(problem) = snapshot.unreadable.get(&job.id()) {
        outln!("{}: {problem}", Reason::SpecUnreadable);
        return Ok(());
    }
    let mut world = snapshot.world;
    let now = clock::system()();
    let rows = why::all_rows(&mut world, job, &summary, now);
    if summary.ended && rows.len() < usize::try_from(summary.desired).unwrap_or(usize::MAX) {
        outln!(
            "It has ended. Something is still known of {} of its {} nodes: agents keep their last reports, one for each image.",
            rows.len(),
            summary.desired
        );
    }
    if rows.is_empty() {
        return Ok(());
    }
    let mut header = vec!["NODE", "STATE", "IMAGE", "DIGEST", "DONE", "SIZE", "WHY"];
    if args.output == Output::Wide {
        header.splice(6..6, ["REGISTRY", "MIRRORS", "PEERS", "FROM", "ATTEMPT"]);
    }
    let mut lines = Vec::new();
    for row in &rows {
        if row.images.is_empty() {
            let mut line = vec![row.node.clone(), why::word(&row.state).into()];
            line.resize(header.len() - 1, "-".into());
            line.push(why::sentence(row, now));
            lines.push(line);
        }
        // The sentence about the node stands beside the image that failed.
        let failed = |image: &why::ImageRow| image.report.as_ref().is_some_and(|report| report.phase == Phase::Failed);
        let told = row.images.iter().position(failed).unwrap_or_default();
        for (number, image) in row.images.iter().enumerate() {
            let first = number == 0;
            let bytes = image.report.as_ref().map(|report| report.bytes).unwrap_or_default();
            let digest = image.report.as_ref().and_then(|report| report.digest.as_deref());
            let mut line = vec![
                if first { row.node.clone() } else { String::new() },
                if first { why::word(&row.state).into() } else { String::new() },
                image.image.clone(),
                digest.map(table::short_digest).unwrap_or_else(|| "-".into()),
                human::bytes(bytes.done),
                human::bytes(bytes.total),
            ];
            if args.output == Output::Wide {
                let attempt = image.report.as_ref().map_or(0, |report| report.attempt);
                let from = match image.report.as_ref().and_then(|report| report.from.as_ref()) {
                    Some(Origin::Peer(node)) => node.to_string(),
                    _ => "-".into(),
                };
                let registry = bytes.upstream.saturating_sub(bytes.mirrors);
                line.extend([registry, bytes.mirrors, bytes.peers].map(human::bytes));
                line.extend([from, attempt.to_string()]);
            }
            let sentence = match &image.report {
                _ if number == told && row.state != NodeState::Succeeded => why::sentence(row, now),
                // What a person should know although all is well.
                Some(report) if report.phase == Phase::Succeeded => report.message.clone(),
                _ => String::new(),
            };
            line.push(sentence);
            lines.push(line);
        }
    }
    out!("{}", table::render(&header, &lines));
    Ok(())
}

async fn nodes(client: &Client, output: Output) -> anyhow::Result<()> {
    let resource = kube::core::ApiResource::erase::<native::NodePreheat>(&());
    let preheats: Api<AnyObject> = Api::all_with(client.clone(), &resource);
    let preheats = preheats.list(&ListParams::default()).await.map_err(jobs::explain)?.items;
    let preheats: Vec<DynamicObject> = preheats.into_iter().map(|AnyObject(object)| object).collect();
    if matches!(output, Output::Json | Output::Yaml) {
        return print_objects(preheats.into_iter(), output);
    }
    let nodes = Api::<PlainNode>::all(client.clone()).list(&ListParams::default()).await.map_err(jobs::explain)?.items;
    if nodes.is_empty() {
        errln!("this cluster has no nodes");
        return Ok(());
    }
    let rows: Vec<Vec<String>> = nodes
        .into_iter()
        .map(|node| {
            let name = node.name_any();
            let preheat = preheats.iter().find(|preheat| preheat.name_any() == name);
            let status = preheat.and_then(|preheat| preheat.data.get("status"));
            let text = |pointer: &str| {
                let text = status.and_then(|status| status.pointer(pointer)).and_then(Value::as_str);
                text.unwrap_or("-").to_string()
            };
            let free = status.and_then(|status| status.pointer("/disk/free")).and_then(Value::as_u64);
            let ready = if node.ready { "Ready" } else { "NotReady" };
            let agent = if preheat.is_some() { text("/agent/version") } else { "none".into() };
            let free = free.map(human::bytes).unwrap_or_else(|| "-".into());
            let mut row = vec![name, ready.into(), text("/agent/runtime"), text("/agent/platform"), free, agent];
            if output == Output::Wide {
                row.extend([peer_group(node), text("/agent/chosen")]);
            }
            row
        })
        .collect();
    let mut header = vec!["NODE", "STATUS", "RUNTIME", "PLATFORM", "FREE DISK", "AGENT"];
    if output == Output::Wide {
        header.extend(["PEER GROUP", "WHY"]);
    }
    out!("{}", table::render(&header, &rows));
    Ok(())
}

/// The nodes that this one reads images from, by the value of the label; a dash for those that no label puts into a group.
fn peer_group(node: PlainNode) -> String {
    match node.into_core().peer_group() {
        None => NO_GROUP,
        Some("") => "-",
        Some(group) => group,
    }
    .into()
}

/// Prints a line for every change, until Ctrl-C.
async fn watch(connection: &Connection, name: Option<&str>, args: &GetArgs) -> anyhow::Result<ExitCode> {
    let namespace = (!args.all_namespaces).then_some(connection.namespace.as_str());
    let mut all = SelectAll::new();
    let (kinds, config): (Vec<&'static JobKind>, _) = match name {
        None => (job_kinds().collect(), watcher::Config::default()),
        Some(name) => {
            let job = jobs::find(connection, name).await?;
            let config = watcher::Config::default().fields(&format!("metadata.name={}", job.object.name_any()));
            (vec![job.kind], config)
        }
    };
    for kind in kinds {
        let api = jobs::api(&connection.client, kind, namespace).await;
        let stream = watcher(api, config.clone()).default_backoff();
        all.push(stream.map(move |event| (kind, event)).boxed());
    }
    if matches!(args.output, Output::Table | Output::Wide) {
        outln!("{}", aligned(header(args)));
    }
    let mut stop = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let (kind, event) = tokio::select! {
            _ = &mut stop => return Ok(ExitCode::from(130)),
            Some(next) = all.next() => next,
        };
        let (object, gone) = match event {
            Ok(Event::Apply(AnyObject(object)) | Event::InitApply(AnyObject(object))) => (object, false),
            Ok(Event::Delete(AnyObject(object))) => (object, true),
            Ok(Event::Init | Event::InitDone) => continue,
            // It is looked for again: somebody may install it.
            Err(watcher::Error::InitialListFailed(problem))
                if name.is_none() && snapshot::has_no_jobs(kind, &problem) =>
            {
                continue;
            }
            Err(problem) => {
                tracing::warn!("watch interrupted, trying again: {problem}");
                continue;
            }
        };
        // Of all jobs those are not shown that show on a node what another one wants.
        if name.is_none() && kind.part_of(&object).is_some() {
            continue;
        }
        match args.output {
            Output::Json | Output::Yaml => print_value(&serde_json::to_value(&object)?, args.output)?,
            _ => {
                let mut row = job_row(kind, &object, args, clock::system()());
                if gone && let Some(phase) = row.get_mut(usize::from(args.all_namespaces) + 1) {
                    *phase = "Deleted".into();
                }
                outln!("{}", aligned(row));
            }
        }
    }
}

/// Rows that come one by one cannot know the widest: room for usual names.
fn aligned(row: Vec<impl AsRef<str>>) -> String {
    let cells: Vec<String> = row
        .iter()
        .enumerate()
        .map(|(column, cell)| format!("{:<width$}", cell.as_ref(), width = if column == 0 { 28 } else { 10 }))
        .collect();
    text::escape(cells.join(" ").trim_end()).into_owned()
}
