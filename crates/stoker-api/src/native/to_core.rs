//! From Stoker's own objects to the core model.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube_core::dynamic::DynamicObject;
use stoker_core::model::{
    self, Ask, Completion, Empty, Job, JobId, LoginId, Order, PeerKey, PeerPast, PeerRef, Pull, Report, Sandbox,
    SecretId, Terms, Unreachable, Words,
};
use stoker_core::reason::Reason;
use stoker_core::rollup::{FailedNode, SecretTrouble};
use stoker_core::text;

use super::{
    CompletionMode, GROUP, PreheatSpec, PreheatStatus, PullPolicy, SandboxSpec, SourceSpec, WireAsk, WireBytes,
    WireOrder, WirePast, WirePeer, WirePhase, WirePin, WireReport, WireSource,
};
use crate::dialect::{NotReadable, Summary, created, job_kinds, part, status_or_why};
use crate::share::Share;
use crate::view::{Answer, Derived, Reader, Root, Unready};
use crate::{image, labels, pods};

const ROUND: Duration = Duration::from_secs(24 * 3600);

/// How users of a Preheat call things.
const WORDS: Words = Words { resume: "set spec.suspend to false", secrets: "pullSecrets", orders: "NodePreheat" };

/// The job of a Preheat; one that is being deleted has none, whatever still holds its object.
pub(super) fn derive(root: &Root, reader: &mut Reader<'_>) -> Derived {
    let Some(object) = reader.own(root).filter(|object| object.metadata.deletion_timestamp.is_none()) else {
        return Ok(Vec::new());
    };
    let mut job = job(object)?;
    let nodes = part::<PreheatSpec>(object, "spec")?.nodes;
    if let Some(selector) = nodes.pod_selector.filter(|_| job.ended.is_none()) {
        if let Some(problem) = labels::problem(&selector) {
            return Err(NotReadable::new(object, "spec.nodes.podSelector", &problem).into());
        }
        match pods::nodes(reader, &root.namespace, &selector) {
            Answer::Known(nodes) => {
                let among = job.among();
                let both = |node: &String| among.as_ref().is_none_or(|names| names.contains_key(node.as_str()));
                *among = Some(Job::named(nodes.into_iter().filter(both)));
            }
            Answer::Unlisted => return Err(Unready::Unlisted),
            Answer::Unseen => {
                (job.names, job.pick, job.unseen) = (Some(Default::default()), None, Some(pods::PODS.name));
            }
        }
    }
    Ok(vec![job])
}

/// The job that a Preheat describes.
pub fn job(object: &DynamicObject) -> Result<Job, NotReadable> {
    let spec: PreheatSpec = part(object, "spec")?;
    let (status, unreadable) = status_or_why(object);
    let status: PreheatStatus = status;
    let generation = object.metadata.generation.unwrap_or_default();
    // An edited Preheat that had ended begins again: its status speaks of an older generation.
    let current = status.observed_generation == generation;
    if let Some(problem) = spec.nodes.selector.as_ref().and_then(labels::problem) {
        return Err(NotReadable::new(object, "spec.nodes.selector", &problem));
    }
    let completion = &spec.completion;
    let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    let job = Job {
        id: JobId::new((GROUP, "Preheat"), namespace, object.metadata.name.as_deref().unwrap_or_default()),
        uid: object.metadata.uid.clone().unwrap_or_default(),
        generation,
        created: created(object),
        images: image::images(spec.images.iter().map(|image| {
            let secrets = image.pull_secrets.iter().map(|secret| SecretId::new(namespace, &secret.name));
            (image.image.as_str(), secrets.collect())
        })),
        names: spec.nodes.names.map(Job::named),
        pick: None,
        selector: spec.nodes.selector.as_ref().map(labels::to_core).unwrap_or_default(),
        foreign_nodes: false,
        parallelism: u32::try_from(spec.pace.parallelism).unwrap_or(0),
        percent: false,
        tolerance: spec.pace.failure_tolerance.map(Share::tolerance),
        unseen: None,
        pull: Pull {
            policy: policy(spec.pull.policy),
            timeout: spec.pull.timeout.0,
            retries: u32::try_from(spec.pull.retries).unwrap_or(0),
            bandwidth: spec.pace.bandwidth.map(|bandwidth| bandwidth.0),
            priority: spec.pace.priority,
            sandbox: sandbox(object, "spec.pull.sandbox", spec.pull.sandbox)?,
            source: source(spec.pull.source),
            upstream_copies: spec.pull.upstream_copies.map(|copies| u32::try_from(copies).unwrap_or(0)),
        },
        completion: match completion.mode {
            CompletionMode::Once => Completion::Once {
                deadline: completion.deadline.map(|deadline| deadline.0),
                ttl: completion.ttl.map(|ttl| ttl.0),
            },
            CompletionMode::Continuous => {
                Completion::Continuous { resync: completion.resync.map_or(ROUND, |resync| resync.0) }
            }
        },
        suspend: spec.suspend,
        words: &WORDS,
        unreachable: Unreachable::Wait,
        bounds: Default::default(),
        empty: Empty::Waits,
        started: status.start_time.filter(|_| current || status.completion_time.is_none()),
        ended: status.completion_time.filter(|_| current),
        unreadable,
    };
    Ok(match spec.nodes.replicas {
        Some(replicas) => job.picking(
            u32::try_from(replicas).unwrap_or(0),
            status.selected_nodes.map(|nodes| nodes.into_iter().map(Into::into).collect()),
        ),
        None => job,
    })
}

/// What a Preheat's status says.
pub fn summary(object: &DynamicObject) -> Summary {
    let status: PreheatStatus = part(object, "status").unwrap_or_default();
    let current = status.observed_generation == object.metadata.generation.unwrap_or_default();
    Summary {
        phase: status.phase,
        desired: status.desired,
        succeeded: status.succeeded,
        pulling: status.pulling,
        failed: status.failed,
        ended: current && status.completion_time.is_some(),
        failures: status.failed_nodes.iter().map(failed_node).collect(),
        secrets: status.secrets.iter().map(|problem| secret_trouble(object, problem)).collect(),
        message: text::message(&status.message),
        warnings: status.warnings.iter().map(|warning| text::message(warning)).collect(),
    }
}

fn failed_node(failed: &super::NodeFailure) -> FailedNode {
    let reason = failed.reason.parse().unwrap_or(Reason::Unknown);
    FailedNode { node: failed.node.as_str().into(), reason, message: text::message(&failed.message) }
}

fn secret_trouble(object: &DynamicObject, problem: &super::SecretProblem) -> SecretTrouble {
    let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    SecretTrouble {
        secret: SecretId::new(namespace, &problem.name),
        reason: problem.reason.parse().unwrap_or(Reason::Unknown),
        message: problem.message.clone(),
    }
}

pub(crate) fn policy(policy: PullPolicy) -> model::Policy {
    match policy {
        PullPolicy::IfNotPresent => model::Policy::IfNotPresent,
        PullPolicy::Always => model::Policy::Always,
    }
}

/// An order of a NodePreheat.
pub(super) fn order(wire: WireOrder) -> Result<Order, String> {
    let pull = Pull {
        policy: policy(wire.policy),
        timeout: wire.timeout.0,
        retries: wire.retries,
        bandwidth: wire.bandwidth.map(|bandwidth| bandwidth.0),
        priority: wire.priority.unwrap_or_default(),
        sandbox: Sandbox { labels: pairs(&wire.sandbox.labels), annotations: pairs(&wire.sandbox.annotations) },
        source: match wire.source {
            None => model::PullSource::Any,
            Some(WireSource::PeersOnly) => model::PullSource::PeersOnly,
            Some(WireSource::MirrorsOnly) => model::PullSource::MirrorsOnly,
            Some(WireSource::PeersOrMirrors) => model::PullSource::PeersOrMirrors,
            Some(WireSource::AnyOrMirrors) => model::PullSource::AnyOrMirrors,
        },
        upstream_copies: wire.upstream_copies,
    };
    let upstream = wire.upstream != Some(false);
    let peers = wire.peers.into_iter().map(peer).collect::<Result<Vec<_>, String>>()?;
    let logins: Vec<LoginId> = wire.logins.iter().map(|name| LoginId::new(name)).collect();
    let mut needs: BTreeSet<String> = wire.needs.into_iter().collect();
    let ask = match wire.ask {
        Some(WireAsk::Resolve) => Ask::Resolve,
        Some(WireAsk::Look) => Ask::Look,
        None if wire.pin.is_none() && needs.contains(model::LOOK) => Ask::Look,
        Some(WireAsk::Fetch) | None => Ask::Fetch(wire.pin.map(pin)),
    };
    if let Some(feature) = ask.feature() {
        needs.remove(feature);
    }
    if !logins.is_empty() {
        needs.remove(model::SEALED);
    }
    if !upstream || !peers.is_empty() {
        needs.remove(model::PEERS);
    }
    if let Some(feature) = pull.source.feature() {
        needs.remove(feature);
    }
    let terms = Terms { pull, logins, progress: wire.progress.0 };
    let order = Order::new(&wire.image, job_ids(&wire.jobs)?, wire.asked, ask, terms);
    let WirePast { lists, seed, out, moved, mended } = wire.past.unwrap_or_default();
    let past = PeerPast { lists, seed, out, moved, mended };
    Ok(Order { hold: wire.hold, needs, upstream, peers, expect: wire.expect, past, ..order })
}

fn source(source: SourceSpec) -> model::PullSource {
    match source {
        SourceSpec::Any => model::PullSource::Any,
        SourceSpec::PeersOnly => model::PullSource::PeersOnly,
    }
}

/// A node that an order may read from.
fn peer(wire: WirePeer) -> Result<PeerRef, String> {
    let WirePeer { node, address, key, far } = wire;
    let address = address.parse().map_err(|_| format!("the address {address:?} of peer {node} is not address:port"))?;
    Ok(PeerRef { node: node.into(), address, key: PeerKey::new(&key), far })
}

/// Jobs as they are written today, and as they were before they had groups.
fn job_ids(texts: &[String]) -> Result<BTreeSet<JobId>, String> {
    let ids = texts.iter().map(|text| {
        let id: JobId = text.parse().map_err(|problem: model::NotAJobId| problem.to_string())?;
        let kind = job_kinds().find(|kind| id.group().is_empty() && kind.kind.name == id.kind());
        Ok(kind.map_or_else(|| id.clone(), |kind| kind.job_id(id.namespace(), id.name())))
    });
    ids.collect()
}

/// What a runtime is told, as this field of an object says. It goes to every node that pulls, once for each image, so it is bounded here:
/// other projects' schemas do not bound it.
pub(crate) fn sandbox(object: &DynamicObject, field: &str, spec: SandboxSpec) -> Result<Sandbox, NotReadable> {
    let most = Sandbox::MOST_OF_A_JOB;
    for (part, count) in [("labels", spec.labels.len()), ("annotations", spec.annotations.len())] {
        if count > most {
            let problem = format!("{field}.{part} has {count} entries, and a node is told at most {most}; remove some");
            return Err(NotReadable::saying(object, problem));
        }
    }
    let pairs = spec.labels.iter().chain(&spec.annotations);
    let bytes: usize = pairs.map(|(key, value)| key.len() + value.len()).sum();
    if bytes > Sandbox::MOST_BYTES {
        let most = Sandbox::MOST_BYTES;
        let problem = format!("{field} has {bytes} bytes, and a node is told at most {most}; remove some of it");
        return Err(NotReadable::saying(object, problem));
    }
    Ok(Sandbox { labels: spec.labels, annotations: spec.annotations })
}

/// The inverse of what an order is written with: no key has an equals sign there.
pub(super) fn pairs(texts: &[String]) -> BTreeMap<String, String> {
    let pairs = texts.iter().filter_map(|text| text.split_once('='));
    pairs.map(|(key, value)| (key.replace("%3D", "=").replace("%25", "%"), value.into())).collect()
}

/// A report of a NodePreheat.
pub(super) fn report(wire: WireReport) -> Result<Report, String> {
    Ok(Report {
        asked: wire.asked,
        jobs: job_ids(&wire.jobs)?,
        phase: match wire.phase {
            WirePhase::Pulling => model::Phase::Pulling,
            WirePhase::Succeeded => model::Phase::Succeeded,
            WirePhase::Resolved => model::Phase::Resolved,
            WirePhase::Failed => model::Phase::Failed,
        },
        digest: wire.digest.map(Into::into),
        pin: wire
            .pin
            .map(|wire| model::Pin { alone: false, ..pin(wire) })
            .filter(|pin| stoker_core::reference::is_digest(&pin.digest)),
        present: wire.present == Some(true),
        bytes: bytes(wire.bytes),
        from: wire.from.map(|node| model::Origin::Peer(node.into())),
        bad: named_once(wire.bad),
        attempt: wire.attempt,
        // A newer agent may have reasons that this version does not know.
        reason: wire.reason.map(|reason| reason.parse().unwrap_or(Reason::Unknown)),
        // Whoever holds the login of a node's agent may write anything here, and it is copied into jobs and events.
        message: wire.message.as_deref().map(text::message).unwrap_or_default(),
        stalled: wire.stalled,
        started: wire.started,
        finished: wire.finished,
        updated: wire.updated,
    })
}

/// The nodes that an agent names, each once: nobody counts for more because it is named more often.
fn named_once(nodes: Vec<String>) -> Vec<model::NodeName> {
    let mut named: Vec<model::NodeName> = Vec::new();
    for node in nodes.into_iter().take(model::MOST_PEERS) {
        if named.iter().all(|other| **other != *node) {
            named.push(node.into());
        }
    }
    named
}

fn pin(wire: WirePin) -> model::Pin {
    model::Pin { asked: wire.asked, digest: wire.digest, alone: wire.alone }
}

fn bytes(WireBytes { total, done, upstream, peers, mirrors }: WireBytes) -> model::Bytes {
    model::Bytes { total, done, upstream, peers, mirrors }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_node_that_an_agent_names_twice_is_named_once() {
        let wire = json!({
            "asked": "2026-01-01T00:00:00Z", "jobs": [], "phase": "Pulling", "attempt": 1, "bytes": {},
            "bad": ["n1", "n1", "n2", "n1"], "started": "2026-01-01T00:00:00Z", "updated": "2026-01-01T00:00:00Z",
        });
        let report = report(serde_json::from_value(wire).unwrap()).unwrap();
        assert_eq!(report.bad, ["n1".into(), "n2".into()]);
    }

    #[test]
    fn a_message_of_a_node_is_escaped_and_bounded_before_anything_copies_it() {
        let wire = json!({
            "asked": "2026-01-01T00:00:00Z", "jobs": [], "phase": "Failed", "attempt": 1, "bytes": {},
            "message": format!("\u{1b}[2J\n{}", "x".repeat(1 << 20)),
            "started": "2026-01-01T00:00:00Z", "updated": "2026-01-01T00:00:00Z",
        });
        let report = report(serde_json::from_value(wire).unwrap()).unwrap();
        assert!(report.message.starts_with("\\u001b[2J\\nxxx"), "{:.40}", report.message);
        assert_eq!(report.message.chars().count(), text::LONGEST);
    }
}
