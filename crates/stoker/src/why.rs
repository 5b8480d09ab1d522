//! `stoker why`: what each node is waiting for. Computed from the cluster's objects with the controller's own rules.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::bail;
use jiff::Timestamp;
use stoker_api::Summary;
use stoker_api::dialect::kruise::{NODE_IMAGES, failed_tags};
use stoker_controller::snapshot;
use stoker_core::human;
use stoker_core::world::NodeState;
use stoker_core::{JobId, Key, Order, Origin, Reason, Report, Waiting, World, step};

use crate::cli::{ClusterArgs, WhyArgs};
use crate::connect::{Connection, connect};
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
    pub(crate) report: Option<Report>,
    pub(crate) order: Option<Order>,
}

/// The nodes of a job as the next plan sees them. What that plan would hand out the controller has not done yet.
pub(crate) fn rows(world: &mut World, id: &JobId, now: Timestamp) -> Vec<NodeRow> {
    let plan = world.plan(now);
    let pending = |node: &str| {
        // What a foreign node is ordered to do is known from its own object, without all terms: one that was asked before is written again here.
        let is_foreign = world.node(node).is_some_and(|node| node.foreign);
        let is_new = |order: &Order| !is_foreign || order.asked.as_millisecond() >= now.as_millisecond();
        plan.orders.iter().filter(|write| &*write.node == node).any(|write| {
            let mut orders = write.keys.iter().filter_map(|key| world.order(node, *key));
            orders.any(|order| order.jobs.contains(id) && is_new(&order))
        })
    };
    let images = world.job(id).map(|job| job.images.as_slice()).unwrap_or_default();
    let keys: Vec<Option<Key>> =
        images.iter().map(|image| image.reference.as_ref().ok().map(|reference| reference.key())).collect();
    let views = world.nodes(id, now).into_iter().map(|view| {
        let images = view.images.iter().zip(&keys).map(|((image, report), key)| ImageRow {
            image: image.to_string(),
            report: report.cloned(),
            order: key.and_then(|key| world.order(&view.node, key)),
        });
        let images = images.collect();
        let state = match view.state {
            NodeState::Pulling if pending(&view.node) => NodeState::Waiting(Waiting::Pending),
            state => state,
        };
        NodeRow { node: view.node.to_string(), state, images }
    });
    views.collect()
}

/// The same for all jobs that an object means; of one that shows a job of another object on a node, that node.
fn own_rows(world: &mut World, job: &JobObject, now: Timestamp) -> Vec<NodeRow> {
    if let Some((whole, node)) = job.kind.part_of(&job.object) {
        return rows(world, &whole, now).into_iter().filter(|row| row.node == node).collect();
    }
    let id = job.id();
    let is_own = |other: &&JobId| other.part().is_some() && other.with_part("") == id.with_part("");
    let parts: Vec<JobId> = world.jobs().filter(is_own).cloned().collect();
    let mut all = rows(world, &id, now);
    parts.iter().for_each(|part| all.extend(rows(world, part, now)));
    all
}

/// The same, and of an ended job also the failures that its own status describes, where reports of nodes are not kept.
pub(crate) fn all_rows(world: &mut World, job: &JobObject, summary: &Summary, now: Timestamp) -> Vec<NodeRow> {
    let mut rows = own_rows(world, job, now);
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
        None => {
            let from = source(image).map(|source| format!(" from {source}")).unwrap_or_default();
            format!("{}: ordered{from}, the agent has not reported yet", image.image)
        }
        // It has not begun: it waits for its turn.
        Some(report) if report.attempt == 0 => format!("{}: {}", image.image, report.message),
        Some(report @ Report { stalled: Some(since), message, .. }) => {
            let seconds = now.duration_since(*since).as_secs().max(0);
            let progress = progress(image, report).map(|progress| format!("{progress}, ")).unwrap_or_default();
            format!("{}: {progress}stalled {seconds} s, retrying: {message}", image.image)
        }
        // No attempt has failed for it: the one that runs goes on.
        Some(report) if report.reason == Some(Reason::RuntimeUnavailable) => {
            format!("{}: waiting for the runtime, {}: {}", image.image, Reason::RuntimeUnavailable, report.message)
        }
        Some(report) if step::waits_for_room(report) => {
            format!("{}: {}: {}", image.image, Reason::Disk, report.message)
        }
        // Nor here: the attempt goes on as soon as it has another node to read from.
        Some(report) if is_about_peers(report) => {
            let reason = report.reason.map(|reason| reason.as_str()).unwrap_or_default();
            let progress = progress(image, report).map(|progress| format!("{progress}; ")).unwrap_or_default();
            format!("{}: {progress}{reason}: {}", image.image, report.message)
        }
        Some(report) if report.reason.is_some() => {
            let reason = report.reason.map(|reason| reason.as_str()).unwrap_or_default();
            format!("attempt {} failed with {reason}, trying again: {}", report.attempt, report.message)
        }
        Some(report) if report.digest.is_none() => format!("{}: asking the registry for its digest", image.image),
        Some(report) => match progress(image, report) {
            Some(progress) => format!("{}: {progress}", image.image),
            None => {
                let source = source(image).unwrap_or_else(|| "the registry".into());
                format!("{}: asking {source} for its manifest", image.image)
            }
        },
    }
}

/// Whether a report of a pull that goes on says what is wrong with the nodes that it reads from.
fn is_about_peers(report: &Report) -> bool {
    matches!(report.reason, Some(Reason::NoSource | Reason::Lagging | Reason::PeerLied))
}

/// How much has come, and where the rest comes from. None while it is not known how much there is.
fn progress(image: &ImageRow, report: &Report) -> Option<String> {
    let (done, total) = (human::bytes(report.bytes.done), human::bytes(report.bytes.total));
    let source = source(image).filter(|_| report.reason != Some(Reason::NoSource));
    let from = source.map(|source| format!(", from {source}")).unwrap_or_default();
    (report.bytes.total > 0).then(|| format!("{done} of {total}{from}"))
}

/// Where a node reads an image from now: what its agent says, else what it is told. None where no node is named.
fn source(image: &ImageRow) -> Option<String> {
    let report = image.report.as_ref();
    if let Some(Origin::Peer(node)) = report.and_then(|report| report.from.as_ref()) {
        return Some(format!("node {node}"));
    }
    let order = image.order.as_ref()?;
    let peers: Vec<&str> = order.peers.iter().map(|peer| &*peer.node).collect();
    match (order.upstream, peers.as_slice()) {
        (true, _) if report.is_some_and(|report| report.bytes.mirrors > 0) => {
            Some("the registry and its mirrors".into())
        }
        (true, _) => Some("the registry".into()),
        (false, []) => None,
        (false, peers) => Some(format!("node {}", peers.join(" or "))),
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
    if let Some(node) = jobs::node_image(&args.name) {
        return of_node_image(&connection, node).await;
    }
    let job = jobs::find(&connection, &args.name).await?;
    let summary = (job.kind.summary)(&job.object);
    let snapshot = snapshot::take(&connection.client, &connection.namespace).await.map_err(jobs::explain)?;
    jobs::tell_unheard(&snapshot.unheard);
    if let Some(why) = jobs::left_alone(job.kind, &snapshot.left_alone) {
        outln!("{}: {why}", job.name());
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(problem) = snapshot.unreadable.get(&job.id()) {
        outln!("{}: {}: {problem}", job.name(), Reason::SpecUnreadable);
        return Ok(ExitCode::SUCCESS);
    }
    let mut world = snapshot.world;
    if let Some(kind) = world.policies_unseen() {
        outln!(
            "{}: {}: {kind} objects cannot be listed, so nobody knows here what policies allow; {}",
            job.name(),
            Reason::CannotSee,
            summary.message
        );
        return Ok(ExitCode::SUCCESS);
    }
    let now = clock::system()();
    if let Some(parts) = jobs::parts(&connection.client, &job).await? {
        return of_parts((&mut world, &snapshot.unreadable), &job, &parts, args.node.as_deref(), now);
    }
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
    let known = world.job(&job.id()).filter(|job| args.node.is_none() && job.ended.is_none());
    let lacking = known.and_then(|job| too_few(job.lacking()));
    if open.is_empty() && lacking.is_none() {
        nobody_waits(&job, summary);
        return Ok(ExitCode::SUCCESS);
    }
    let lines = open.iter().map(|row| vec![row.node.clone(), word(&row.state).into(), sentence(row, now)]);
    let lines: Vec<Vec<String>> = lines.chain(lacking).collect();
    out!("{}", table::render(&["NODE", "STATE", "WHY"], &lines));
    Ok(ExitCode::SUCCESS)
}

/// The line for the nodes that a job wants and does not have: they have no names.
fn too_few(nodes: usize) -> Option<Vec<String>> {
    let nodes = u32::try_from(nodes).ok().filter(|nodes| *nodes > 0)?;
    let why = format!(
        "{}: the job wants {} more; no other node matches, is Ready and not cordoned, has an agent and is allowed by the PreheatPolicies",
        Reason::TooFewNodes,
        human::count(nodes, "node")
    );
    Some(vec!["-".into(), "Waiting".into(), why])
}

/// Prints a sentence for each tag in the NodeImage of a node that has failed, and for each that somebody wrote there and that is not done.
async fn of_node_image(connection: &Connection, node: &str) -> anyhow::Result<ExitCode> {
    let snapshot = snapshot::take(&connection.client, &connection.namespace).await.map_err(jobs::explain)?;
    jobs::tell_unheard(&snapshot.unheard);
    if let Some(why) = jobs::left_alone(&NODE_IMAGES, &snapshot.left_alone) {
        outln!("nodeimage/{node}: {why}");
        return Ok(ExitCode::SUCCESS);
    }
    let (mut world, now) = (snapshot.world, clock::system()());
    if !world.has_node(node) {
        bail!("there is no node {node}; `stoker get nodes` lists them");
    }
    let standing = |id: &&JobId| world.job(id).is_some_and(|job| job.is_standing());
    let ids: Vec<JobId> = world.jobs().filter(standing).cloned().collect();
    let mut lines = Vec::new();
    for id in ids {
        for row in rows(&mut world, &id, now).into_iter().filter(|row| row.node == node) {
            let image = row.images.first().map(|image| image.image.clone()).unwrap_or_default();
            lines.push(vec![image, word(&row.state).into(), sentence(&row, now)]);
        }
    }
    let object = jobs::api(&connection.client, &NODE_IMAGES, None).await.get_opt(node).await.map_err(jobs::explain)?;
    for (image, message) in object.iter().flat_map(|object| failed_tags(&object.0)) {
        if !lines.iter().any(|line| line.first() == Some(&image)) {
            lines.push(vec![image, "Failed".into(), message]);
        }
    }
    match lines.is_empty() {
        true => outln!(
            "nodeimage/{node}: no tag has failed, and no tag that was written by hand waits. For tags of jobs, use `stoker why \
             imagepulljob/NAME`"
        ),
        false => out!("{}", table::render(&["IMAGE", "STATE", "WHY"], &lines)),
    }
    Ok(ExitCode::SUCCESS)
}

fn nobody_waits(job: &JobObject, summary: Summary) {
    let message = if summary.message.is_empty() { "nothing is known yet".into() } else { summary.message };
    // What a list counts are its images.
    let what = if job.kind.made_of.is_some() { "image" } else { "node" };
    outln!("{}: no {what} is waiting; {message}", job.name());
}

/// The same for a job that is made of others, with the one that each node is waiting in. The World does not know those that cannot be read.
fn of_parts(
    (world, unreadable): (&mut World, &BTreeMap<JobId, String>),
    job: &JobObject,
    parts: &[JobObject],
    node: Option<&str>,
    now: Timestamp,
) -> anyhow::Result<ExitCode> {
    let missing = jobs::missing(job, parts).into_iter().filter(|_| node.is_none());
    let mut lines: Vec<Vec<String>> =
        missing.map(|(part, why)| vec![part, "-".into(), "Missing".into(), why]).collect();
    for part in parts {
        if let Some(problem) = unreadable.get(&part.id()) {
            lines.push(vec![part.name(), "-".into(), "Held".into(), format!("{}: {problem}", Reason::SpecUnreadable)]);
            continue;
        }
        let summary = (part.kind.summary)(&part.object);
        let rows = all_rows(world, part, &summary, now).into_iter();
        let asked = rows.filter(|row| match node {
            Some(node) => row.node == node,
            None => row.state != NodeState::Succeeded,
        });
        lines
            .extend(asked.map(|row| vec![part.name(), row.node.clone(), word(&row.state).into(), sentence(&row, now)]));
    }
    if let Some(node) = node.filter(|_| lines.is_empty()) {
        bail!("nothing is known of {} on node {node}; `stoker get nodes` lists the nodes", job.name());
    }
    match lines.is_empty() {
        true => nobody_waits(job, (job.kind.summary)(&job.object)),
        false => out!("{}", table::render(&["JOB", "NODE", "STATE", "WHY"], &lines)),
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoker_core::model::{Ask, Pull};
    use stoker_core::{Bytes, PeerKey, PeerRef, Phase, Terms};

    fn order(peers: &[&str]) -> Order {
        let pull = Pull {
            policy: Default::default(),
            timeout: std::time::Duration::from_secs(600),
            retries: 3,
            bandwidth: None,
            priority: 0,
            sandbox: Default::default(),
            source: Default::default(),
            upstream_copies: None,
        };
        let terms = Terms { pull, logins: Vec::new(), progress: std::time::Duration::from_secs(1) };
        let mut order = Order::new("web:v1", Default::default(), Timestamp::UNIX_EPOCH, Ask::Fetch(None), terms);
        let peer = |node: &&str| PeerRef {
            node: (*node).into(),
            address: ([10, 0, 0, 1], 7447).into(),
            key: PeerKey::new("key"),
            far: false,
        };
        (order.peers, order.upstream) = (peers.iter().map(peer).collect(), peers.is_empty());
        order
    }

    fn report(bytes: Bytes, from: Option<&str>) -> Report {
        Report {
            asked: Timestamp::UNIX_EPOCH,
            jobs: Default::default(),
            phase: Phase::Pulling,
            digest: Some("sha256:a".into()),
            pin: None,
            present: false,
            bytes,
            from: from.map(|node| Origin::Peer(node.into())),
            bad: Vec::new(),
            attempt: 1,
            reason: None,
            message: String::new(),
            stalled: None,
            started: Timestamp::UNIX_EPOCH,
            finished: None,
            updated: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn nodes_that_a_job_lacks_are_named_by_their_number() {
        assert_eq!(too_few(0), None);
        let why = "TooFewNodes: the job wants 2 nodes more; no other node matches, is Ready and not cordoned, has an agent and is \
                   allowed by the PreheatPolicies";
        assert_eq!(too_few(2), Some(vec!["-".into(), "Waiting".into(), why.into()]));
    }

    #[test]
    fn a_node_that_pulls_says_from_whom() {
        let some = Bytes { total: 10 << 20, done: 3 << 20, ..Bytes::default() };
        let mirrored = Bytes { upstream: 3 << 20, mirrors: 1 << 20, ..some };
        let unsized_ = Bytes::default();
        let troubled = |reason| Report { reason: Some(reason), message: "so it is".into(), ..report(some, Some("n1")) };
        let rows = [
            (&[][..], None),
            (&["n1", "n2"], None),
            (&[], Some(report(unsized_, None))),
            (&["n1"], Some(report(unsized_, None))),
            (&[], Some(report(some, None))),
            (&[], Some(report(mirrored, None))),
            (&["n1", "n2"], Some(report(some, None))),
            (&["n1", "n2"], Some(report(some, Some("n2")))),
            (&["n1"], Some(Report { stalled: Some(Timestamp::UNIX_EPOCH), ..report(some, Some("n1")) })),
            (&["n1"], Some(troubled(Reason::NoSource))),
            (&["n1"], Some(troubled(Reason::Lagging))),
            (&["n1"], Some(Report { bytes: unsized_, ..troubled(Reason::PeerLied) })),
            (&[], Some(troubled(Reason::Unreachable))),
        ];
        let said = rows.map(|(peers, report)| {
            let row = ImageRow { image: "web:v1".into(), report, order: Some(order(peers)) };
            pulling(&row, Timestamp::from_second(7).unwrap())
        });
        insta::assert_snapshot!(said.join("\n"));
    }
}
