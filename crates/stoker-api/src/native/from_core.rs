//! From the core model to Stoker's own objects: status of a Preheat, orders and reports of a NodePreheat.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube_core::discovery::ApiResource;
use kube_core::dynamic::DynamicObject;
use serde_json::{Map, Value, json};
use stoker_core::model::{self, Ask, Key, LoginId, Order, Origin, PeerPast, Report, Terms};
use stoker_core::rollup::{Outcome, RefusedOrder, Stage, WaitingNode};
use stoker_core::{Reason, SecretTrouble, World, human, text};

use super::{
    AgentInfo, Condition, Disk, NodeFailure, NodePreheat, Preheat, PreheatSpec, PreheatStatus, PullPolicy, SealedLogin,
    SecretProblem, WaitingFor, WireAsk, WireBytes, WireOrder, WirePast, WirePeer, WirePhase, WirePin, WireReport,
    WireSandbox, WireSource,
};
use crate::amount::Amount;
use crate::dialect::{part, project_job, project_unreadable};
use crate::span::Span;
use crate::view::{Projected, Reader, Root};
use crate::write::{Target, Write, status_write};

/// What a Preheat asks to be written.
pub(super) fn project(root: &Root, reader: &mut Reader<'_>, world: &World, now: Timestamp) -> Projected {
    match (reader.own(root), reader.problem()) {
        (Some(object), Some(problem)) => project_unreadable((root.kind, object), problem, now, |before, message| {
            unreadable(object, before, message, now)
        }),
        _ => project_job(root, reader, world, now, status_change),
    }
}

/// The change of the status of a Preheat whose spec cannot be read. One that had ended before stays as it is.
fn unreadable(object: &DynamicObject, before: PreheatStatus, message: String, now: Timestamp) -> Option<Write> {
    let generation = object.metadata.generation.unwrap_or_default();
    if before.completion_time.is_some() && before.observed_generation == generation {
        return None;
    }
    let truths = [("Ready", false), ("Complete", false), ("Stalled", true)];
    let reason = Reason::SpecUnreadable.as_str();
    let status = PreheatStatus {
        phase: phase(Stage::Failed).into(),
        conditions: conditions(truths, (reason, &message), generation, &before.conditions, now),
        observed_generation: generation,
        start_time: None,
        completion_time: None,
        eta: None,
        waiting_for: Vec::new(),
        message,
        ..before
    };
    status_write(ApiResource::erase::<Preheat>(&()), object, &status)
}

/// The change of a Preheat's status, if there is one.
pub(super) fn status_change(object: &DynamicObject, outcome: &Outcome, now: Timestamp) -> Option<Write> {
    let before: PreheatStatus = part(object, "status").unwrap_or_default();
    let private = part::<PreheatSpec>(object, "spec")
        .is_ok_and(|spec| spec.images.iter().any(|image| !image.pull_secrets.is_empty()));
    let status = status(outcome, message(outcome, object), &before.conditions, now);
    let status = PreheatStatus { warnings: warnings(outcome, private), ..status };
    status_write(ApiResource::erase::<Preheat>(&()), object, &status)
}

fn status(outcome: &Outcome, message: String, before: &[Condition], now: Timestamp) -> PreheatStatus {
    let good = outcome.stage == Stage::Succeeded || outcome.failed == 0 && outcome.stage == Stage::Synced;
    let truths =
        [("Ready", good), ("Complete", outcome.stage == Stage::Succeeded), ("Stalled", outcome.stage == Stage::Failed)];
    let held = outcome.not_allowed.is_some() && outcome.stage == Stage::Running && outcome.pulling == 0;
    let reason = match outcome.lacks_nodes {
        true => Reason::NoNodes.as_str(),
        false if held => Reason::NotAllowed.as_str(),
        false => phase(outcome.stage),
    };
    PreheatStatus {
        phase: phase(outcome.stage).into(),
        conditions: conditions(truths, (reason, &message), outcome.generation, before, now),
        observed_generation: outcome.generation,
        desired: outcome.desired,
        waiting: outcome.waiting,
        pulling: outcome.pulling,
        succeeded: outcome.succeeded,
        failed: outcome.failed,
        selected_nodes: outcome.chosen.as_ref().map(|nodes| nodes.keys().map(ToString::to_string).collect()),
        bytes: bytes(outcome.bytes),
        received: human::bytes_in_a_word(outcome.bytes.upstream),
        digests: outcome.digests.clone(),
        failed_nodes: outcome.failures.iter().map(failed_node).collect(),
        waiting_for: outcome
            .waiting_for
            .iter()
            .map(|(reason, &nodes)| WaitingFor { reason: reason.to_string(), nodes })
            .chain(
                outcome.waits_for_nodes().then(|| WaitingFor { reason: without_nodes(outcome).to_string(), nodes: 0 }),
            )
            .collect(),
        secrets: outcome.secrets.iter().map(secret_problem).collect(),
        start_time: outcome.started,
        completion_time: outcome.completed,
        eta: outcome.eta,
        message,
        warnings: Vec::new(),
    }
}

fn failed_node(failure: &stoker_core::rollup::FailedNode) -> NodeFailure {
    NodeFailure { node: failure.node.to_string(), reason: failure.reason.to_string(), message: failure.message.clone() }
}

fn secret_problem(trouble: &SecretTrouble) -> SecretProblem {
    SecretProblem {
        name: trouble.secret.name.clone(),
        reason: trouble.reason.to_string(),
        message: trouble.message.clone(),
    }
}

/// The public word for a stage.
pub fn phase(stage: Stage) -> &'static str {
    match stage {
        Stage::Suspended => "Suspended",
        Stage::Running => "Running",
        Stage::Synced => "Synced",
        Stage::Succeeded => "Succeeded",
        Stage::Failed => "Failed",
    }
}

/// That no node is one of a job's, and with what a person compares what the job asks for.
pub(crate) fn no_nodes(object: &DynamicObject) -> [&'static str; 2] {
    match object.data.pointer("/spec/nodes/podSelector") {
        None | Some(Value::Null) => ["no node matches spec.nodes", "compare it with `kubectl get nodes --show-labels`"],
        Some(_) => [
            "no pod of this namespace that is on a node matches spec.nodes.podSelector",
            "compare it with `kubectl get pods -o wide --show-labels`",
        ],
    }
}

/// Why a job has no nodes, in a word.
pub(crate) fn without_nodes(outcome: &Outcome) -> Reason {
    if outcome.unseen.is_some() { Reason::CannotSee } else { Reason::NoNodes }
}

/// The same in a sentence, where it is that objects cannot be seen.
pub(crate) fn unseen(outcome: &Outcome) -> Option<String> {
    let kind = outcome.unseen?;
    Some(format!(
        "the nodes are not known, because {kind} objects of this namespace cannot be listed; `stoker install` prints the roles that \
         allow it"
    ))
}

/// Where the images of a job come with logins.
pub(crate) const SHARED: &str = "images that come with pullSecrets can be run by every pod on these nodes, unless their kubelets have \
     imagePullCredentialsVerificationPolicy: AlwaysVerify (see docs/security.md)";

/// Where one node's word is what all nodes of a job pull.
pub(crate) fn alone(image: &str) -> String {
    format!("only one node has asked the registry for the digest of {image}, and no other has confirmed it")
}

/// How much of what an API server said is repeated in a status.
const LONGEST_WORDS: usize = 400;

/// What should be known although nothing has failed.
fn warnings(outcome: &Outcome, private: bool) -> Vec<String> {
    let alone = outcome.alone.iter().map(|image| alone(image));
    let shared = private.then(|| SHARED.to_string());
    alone.chain(refused(outcome)).chain(shared).collect()
}

/// A sentence for each image whose order the API server does not take.
pub(crate) fn refused(outcome: &Outcome) -> impl Iterator<Item = String> + '_ {
    outcome.refused.iter().map(|RefusedOrder { image, node, nodes, why }| {
        let others = match nodes {
            1 => String::new(),
            _ => format!(" and {}", human::count(u32::try_from(nodes - 1).unwrap_or(u32::MAX), "other node")),
        };
        let why = text::message(why);
        let why: String = why.chars().take(LONGEST_WORDS).collect();
        format!("the API server refuses the order of {image} for node {node}{others}, and it is tried again: {why}")
    })
}

/// The whole outcome in a sentence.
fn message(outcome: &Outcome, object: &DynamicObject) -> String {
    let Outcome { desired, succeeded, failed, pulling, waiting, .. } = outcome;
    if let Some(unseen) = unseen(outcome).filter(|_| *desired == 0) {
        return unseen;
    }
    let [none, compare] = no_nodes(object);
    let first = outcome.failures.first().map(|failure| format!("{}: {}", failure.node, failure.message));
    let first = first.or_else(|| too_few(outcome));
    match outcome.stage {
        Stage::Failed if outcome.lacks_nodes => {
            format!("{none}, and the job's deadline has passed; {compare}, then edit the Preheat or make it anew")
        }
        _ if *desired == 0 => format!("{none}; {compare}"),
        Stage::Suspended => "suspended; set spec.suspend to false to go on".into(),
        Stage::Succeeded if *failed > 0 => {
            format!(
                "{succeeded} of {desired} nodes have all images; {failed} failed, which spec.pace.failureTolerance allows; {}",
                first.unwrap_or_else(|| "see failedNodes".into())
            )
        }
        Stage::Succeeded => format!("all images are on all {desired} nodes"),
        Stage::Failed => {
            format!("{failed} of {desired} nodes failed; {}", first.unwrap_or_else(|| "see failedNodes".into()))
        }
        Stage::Synced if *failed == 0 => format!("all images are on all {desired} nodes; they are looked at again"),
        Stage::Synced => format!("{succeeded} of {desired} nodes have all images, {failed} failed and are asked again"),
        Stage::Running => {
            let trouble = if *failed > 0 { format!(", {failed} failed") } else { String::new() };
            let (reasons, sentences) = (reasons_to_wait(outcome), sentences_on_waits(outcome));
            let lacking = too_few(outcome).map(|lacking| format!("; {lacking}")).unwrap_or_default();
            let refusal = not_allowed(outcome).map(|refusal| format!("; {refusal}")).unwrap_or_default();
            format!(
                "{succeeded} of {desired} nodes done, {pulling} pulling, {waiting} waiting{reasons}{trouble}{sentences}{lacking}{refusal}"
            )
        }
    }
}

/// Which policy holds the job, or keeps it off some of its nodes.
pub(crate) fn not_allowed(outcome: &Outcome) -> Option<String> {
    outcome.not_allowed.as_ref().map(ToString::to_string)
}

/// That a job wants more nodes than there are.
fn too_few(outcome: &Outcome) -> Option<String> {
    let lacking = outcome.lacking;
    (lacking > 0).then(|| {
        format!(
            "spec.nodes.replicas wants {} more: no other node matches spec.nodes, is Ready and not cordoned, has an agent and is allowed by \
             the PreheatPolicies of the namespace",
            human::count(lacking, "node")
        )
    })
}

/// What nodes wait for, in brackets: the word alone where it is the same for all.
fn reasons_to_wait(outcome: &Outcome) -> String {
    let waits = &outcome.waiting_for;
    let each = waits
        .iter()
        .map(|(reason, nodes)| if waits.len() == 1 { reason.to_string() } else { format!("{nodes} {reason}") });
    if waits.is_empty() { String::new() } else { format!(" ({})", each.collect::<Vec<_>>().join(", ")) }
}

/// Why nodes wait that do not go on by themselves, a sentence for each reason.
fn sentences_on_waits(outcome: &Outcome) -> String {
    let waits = outcome.waits.iter();
    waits.map(|WaitingNode { node, reason, message }| format!("; {node}: {reason}: {message}")).collect()
}

/// The conditions that are ours, with the one reason and message of all, and those of others.
fn conditions(
    ours: [(&str, bool); 3],
    (reason, message): (&str, &str),
    generation: i64,
    before: &[Condition],
    now: Timestamp,
) -> Vec<Condition> {
    let conditions = ours.map(|(kind, holds)| {
        let status = if holds { "True" } else { "False" };
        let since = before.iter().find(|condition| condition.kind == kind && condition.status == status);
        Condition {
            kind: kind.into(),
            status: status.into(),
            reason: reason.into(),
            message: message.into(),
            last_transition_time: since.map_or(now, |condition| condition.last_transition_time),
            observed_generation: generation,
        }
    });
    let others = before.iter().filter(|condition| !ours.iter().any(|(kind, _)| condition.kind == *kind)).cloned();
    conditions.into_iter().chain(others).collect()
}

fn node_target(node: &str) -> Target {
    Target { resource: ApiResource::erase::<NodePreheat>(&()), namespace: None, name: node.into() }
}

/// Changes of a node's logins; `None` takes one away.
pub type LoginChanges = BTreeMap<LoginId, Option<SealedLogin>>;

/// What a node shows to those that it reads from, by the order that names them.
pub type Tickets = BTreeMap<Key, String>;

/// The patch of a node's orders, with the logins that they name and the tickets for their peers; `None` takes one away. An order with
/// peers and without a new ticket keeps the one that it has. The epoch is that of the controller that writes.
pub fn orders(
    node: &str,
    changes: &BTreeMap<Key, Option<Order>>,
    logins: &LoginChanges,
    tickets: &Tickets,
    epoch: i64,
) -> Write {
    let orders = changes.iter().map(|(key, order)| {
        let mut order = order.as_ref().map_or(Value::Null, |order| wire_order(order, tickets.get(key)));
        // What an earlier version wrote stays for agents of that version, until the order has sealed logins.
        if let Some(fields) = order.as_object_mut().filter(|fields| fields.get("logins") != Some(&json!([]))) {
            fields.insert("secrets".into(), Value::Null);
        }
        if let Some(fields) = order.as_object_mut().filter(|fields| fields.get("peers") != Some(&json!([]))) {
            fields.retain(|name, value| name != "ticket" || !value.is_null());
        }
        (key.to_string(), order)
    });
    let orders: Map<String, Value> = orders.collect();
    let mut spec = json!({ "epoch": epoch, "orders": orders });
    if let Some(fields) = spec.as_object_mut().filter(|_| !logins.is_empty()) {
        let logins: Map<String, Value> = logins.iter().map(|(id, login)| (id.to_string(), json!(login))).collect();
        fields.insert("logins".into(), Value::Object(logins));
    }
    Write::Patch(node_target(node), json!({ "spec": spec }))
}

/// Orders, tickets, logins and reports as a NodePreheat holds them: what an agent keeps on disk.
pub fn node_preheat(
    orders: &BTreeMap<Key, Order>,
    tickets: &Tickets,
    logins: &BTreeMap<LoginId, SealedLogin>,
    reports: &BTreeMap<Key, Report>,
) -> Value {
    let logins: Map<String, Value> = logins.iter().map(|(id, login)| (id.to_string(), json!(login))).collect();
    let orders = orders.iter().map(|(key, order)| (key.to_string(), wire_order(order, tickets.get(key))));
    let orders: Map<String, Value> = orders.collect();
    let reports: Map<String, Value> =
        reports.iter().map(|(key, report)| (key.to_string(), wire_report(report))).collect();
    json!({ "spec": { "orders": orders, "logins": logins }, "status": { "reports": reports } })
}

fn wire_order(order: &Order, ticket: Option<&String>) -> Value {
    let Order { image, jobs, asked, ask, hold, terms, needs: _, upstream, peers, expect, past } = order;
    let PeerPast { lists, seed, out, moved, mended } = *past;
    let Terms { pull, logins, progress } = terms;
    json!(WireOrder {
        image: image.clone(),
        ask: Some(match ask {
            Ask::Resolve => WireAsk::Resolve,
            Ask::Look => WireAsk::Look,
            Ask::Fetch(_) => WireAsk::Fetch,
        }),
        pin: ask.pin().map(wire_pin),
        hold: *hold,
        policy: match pull.policy {
            model::Policy::IfNotPresent => PullPolicy::IfNotPresent,
            model::Policy::Always => PullPolicy::Always,
        },
        timeout: Span(pull.timeout),
        retries: pull.retries,
        bandwidth: pull.bandwidth.map(Amount),
        priority: Some(pull.priority).filter(|priority| *priority != 0),
        sandbox: WireSandbox { labels: pairs(&pull.sandbox.labels), annotations: pairs(&pull.sandbox.annotations) },
        progress: Span(*progress),
        jobs: jobs.iter().map(ToString::to_string).collect(),
        asked: *asked,
        logins: logins.iter().map(ToString::to_string).collect(),
        secrets: Vec::new(),
        needs: order.features().map(str::to_string).collect(),
        upstream: Some(false).filter(|_| !upstream),
        peers: peers.iter().map(wire_peer).collect(),
        ticket: ticket.cloned(),
        expect: expect.map(|bytes| bytes.min(i64::MAX.unsigned_abs())),
        past: (*past != PeerPast::default()).then_some(WirePast { lists, seed, out, moved, mended }),
        source: match pull.source {
            model::PullSource::Any => None,
            model::PullSource::PeersOnly => Some(WireSource::PeersOnly),
            model::PullSource::MirrorsOnly => Some(WireSource::MirrorsOnly),
            model::PullSource::PeersOrMirrors => Some(WireSource::PeersOrMirrors),
            model::PullSource::AnyOrMirrors => Some(WireSource::AnyOrMirrors),
        },
        upstream_copies: pull.upstream_copies,
    })
}

fn wire_peer(peer: &model::PeerRef) -> WirePeer {
    let model::PeerRef { node, address, key, far } = peer;
    WirePeer { node: node.to_string(), address: address.to_string(), key: key.to_string(), far: *far }
}

fn pairs(map: &BTreeMap<String, String>) -> Vec<String> {
    map.iter().map(|(key, value)| format!("{}={value}", key.replace('%', "%25").replace('=', "%3D"))).collect()
}

/// What an agent says in one write: reports that changed (`None` takes one away), and of itself what is given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Saying {
    /// Reports by key.
    pub reports: BTreeMap<Key, Option<Report>>,
    /// The agent itself.
    pub agent: Option<AgentInfo>,
    /// The disk that holds the images.
    pub disk: Option<Disk>,
}

/// The patch of a node's status.
pub fn saying(node: &str, saying: &Saying) -> Write {
    let mut status = Map::new();
    let reports = saying.reports.iter();
    let reports: Map<String, Value> =
        reports.map(|(key, report)| (key.to_string(), report.as_ref().map_or(Value::Null, wire_report))).collect();
    if !reports.is_empty() {
        status.insert("reports".into(), Value::Object(reports));
    }
    if let Some(agent) = &saying.agent {
        status.insert("agent".into(), json!(agent));
    }
    if let Some(disk) = &saying.disk {
        status.insert("disk".into(), json!(disk));
    }
    Write::Status(node_target(node), json!({ "status": status }))
}

fn wire_report(report: &Report) -> Value {
    json!(WireReport {
        asked: report.asked,
        jobs: report.jobs.iter().map(ToString::to_string).collect(),
        phase: match report.phase {
            model::Phase::Pulling => WirePhase::Pulling,
            model::Phase::Succeeded => WirePhase::Succeeded,
            model::Phase::Resolved => WirePhase::Resolved,
            model::Phase::Failed => WirePhase::Failed,
        },
        digest: report.digest.as_deref().map(Into::into),
        pin: report.pin.as_ref().map(wire_pin),
        present: report.present.then_some(true),
        bytes: bytes(report.bytes),
        from: report.from.as_ref().and_then(|from| match from {
            Origin::Peer(node) => Some(node.to_string()),
            Origin::Upstream => None,
        }),
        bad: report.bad.iter().take(model::MOST_PEERS).map(ToString::to_string).collect(),
        attempt: report.attempt,
        reason: report.reason.map(|reason| reason.to_string()),
        message: Some(report.message.clone()).filter(|message| !message.is_empty()),
        stalled: report.stalled,
        started: report.started,
        finished: report.finished,
        updated: report.updated,
    })
}

fn wire_pin(pin: &model::Pin) -> WirePin {
    WirePin { asked: pin.asked, digest: pin.digest.clone(), alone: pin.alone }
}

/// An integer of the API server has 63 bits. It refuses a whole write in which one number has more.
fn bytes(model::Bytes { total, done, upstream, peers, mirrors }: model::Bytes) -> WireBytes {
    let all = [total, done, upstream, peers, mirrors].map(|bytes| bytes.min(i64::MAX.unsigned_abs()));
    let [total, done, upstream, peers, mirrors] = all;
    WireBytes { total, done, upstream, peers, mirrors }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoker_core::{Event, Node, World};

    /// A Preheat of one image.
    fn object(secrets: Value) -> DynamicObject {
        let object = json!({
            "apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat",
            "metadata": { "name": "web", "namespace": "shop", "uid": "u", "generation": 1 },
            "spec": { "images": [{ "image": "r.example/web:1", "pullSecrets": secrets }] },
        });
        serde_json::from_value(object).unwrap()
    }

    /// The status that is written for it on so many nodes, of which one word was taken.
    fn warned(nodes: usize, secrets: Value, alone: bool) -> Vec<String> {
        let mut object = object(secrets);
        let mut world = World::new();
        world.apply(Event::Job(Box::new(super::super::to_core::job(&object).unwrap())));
        for n in 0..nodes {
            let name = format!("n{n}").into();
            world.apply(Event::Node(Node {
                name,
                labels: BTreeMap::new(),
                ready: true,
                ready_changed: None,
                cordoned: false,
                foreign: false,
            }));
        }
        let mut outcome = world.plan(Timestamp::UNIX_EPOCH).outcomes.remove(0);
        outcome.alone = if alone { vec!["r.example/web:1".into()] } else { Vec::new() };
        let Some(Write::Status(_, patch)) = status_change(&object, &outcome, Timestamp::UNIX_EPOCH) else {
            panic!("no status")
        };
        object.data["status"] = patch["status"].clone();
        super::super::to_core::summary(&object).warnings
    }

    /// Else the controller would take each order that it reads for another one than it wrote, and write it again for ever.
    #[test]
    fn what_a_runtime_is_told_is_read_as_it_was_written() {
        let map: BTreeMap<String, String> = [("a=b", "c=d"), ("a%3Db", ""), ("%25", "%"), ("plain", "x")]
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .into();
        assert_eq!(super::super::to_core::pairs(&pairs(&map)), map);
    }

    /// The same of what the plan remembers of an order's sources.
    #[test]
    fn the_past_of_an_order_is_read_as_it_was_written() {
        let time = |millis| Timestamp::from_millisecond(millis).unwrap();
        let pull = super::super::to_core::job(&object(json!([]))).unwrap().pull;
        let terms = Terms { pull, logins: Vec::new(), progress: std::time::Duration::from_secs(1) };
        let order = Order::new("r.example/web:1", Default::default(), time(1_800_000_000_000), Ask::Fetch(None), terms);
        for past in [
            PeerPast::default(),
            PeerPast { moved: Some(time(1_800_000_000_123)), ..PeerPast::default() },
            PeerPast { mended: Some(time(1_800_000_000_456)), ..PeerPast::default() },
            PeerPast { lists: 2, seed: true, out: true, moved: None, mended: None },
        ] {
            let order = Order { past, ..order.clone() };
            let wire = serde_json::from_value(wire_order(&order, None)).unwrap();
            assert_eq!(super::super::to_core::order(wire), Ok(order));
        }
    }

    #[test]
    fn what_should_be_known_is_in_the_status() {
        assert_eq!(warned(2, json!([]), false), Vec::<String>::new());
        let alone = "only one node has asked the registry for the digest of r.example/web:1";
        assert!(warned(2, json!([]), true)[0].contains(alone));
        assert!(warned(2, json!([{ "name": "regcred" }]), false)[0].contains("AlwaysVerify"));
    }

    #[test]
    fn the_message_says_what_nodes_wait_for() {
        let mut world = World::new();
        world.apply(Event::Job(Box::new(super::super::to_core::job(&object(json!([]))).unwrap())));
        let node = |name: &str, ready| Node {
            name: name.into(),
            labels: BTreeMap::new(),
            ready,
            ready_changed: None,
            cordoned: false,
            foreign: false,
        };
        world.apply(Event::Node(node("n1", true)));
        let outcome = world.plan(Timestamp::UNIX_EPOCH).outcomes.remove(0);
        let sentence = "n1: NoAgent: no Stoker agent runs on this node; it is asked when one does";
        let said = format!("0 of 1 nodes done, 0 pulling, 1 waiting (NoAgent); {sentence}");
        assert_eq!(message(&outcome, &object(json!([]))), said);
        world.apply(Event::Orders("n1".into(), BTreeMap::new()));
        world.apply(Event::Node(node("n2", false)));
        world.apply(Event::Orders("n2".into(), BTreeMap::new()));
        let outcome = world.plan(Timestamp::UNIX_EPOCH).outcomes.remove(0);
        let message = message(&outcome, &object(json!([])));
        let counts = "0 of 2 nodes done, 0 pulling, 2 waiting (1 Unresolved, 1 NodeNotReady); n2: NodeNotReady: ";
        assert!(message.starts_with(counts), "an answer about the digest comes by itself: {message}");
    }

    #[test]
    fn no_number_is_larger_than_the_api_server_takes() {
        let most = i64::MAX.unsigned_abs();
        for (there, said) in [(0, 0), (most, most), (most + 1, most), (u64::MAX, most)] {
            let wire = bytes(model::Bytes { total: there, done: there, upstream: there, peers: there, mirrors: there });
            assert_eq!([wire.total, wire.done, wire.upstream, wire.peers, wire.mirrors], [said; 5]);
            let disk = crate::native::Disk::new(there, there);
            assert_eq!((disk.total, disk.free), (said, said));
        }
    }
}
