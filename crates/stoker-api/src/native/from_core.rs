//! From the core model to Stoker's own objects: status of a Preheat, orders and reports of a NodePreheat.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube_core::discovery::ApiResource;
use kube_core::dynamic::DynamicObject;
use serde_json::{Map, Value, json};
use stoker_core::model::{self, Ask, Key, LoginId, Order, Report, Terms};
use stoker_core::rollup::{Outcome, Stage};
use stoker_core::{Reason, SecretTrouble, human};

use super::{
    AgentInfo, Condition, Disk, FailedNode, NodePreheat, Preheat, PreheatSpec, PreheatStatus, PullPolicy, SealedLogin,
    SecretProblem, WaitingFor, WireAsk, WireBytes, WireOrder, WirePhase, WirePin, WireReport, WireSandbox,
};
use crate::amount::Amount;
use crate::dialect::part;
use crate::span::Span;
use crate::write::{Target, Write, status_write};

/// The change of a Preheat's status, if there is one.
pub(super) fn status_change(object: &DynamicObject, outcome: &Outcome, now: Timestamp) -> Option<Write> {
    let before: PreheatStatus = part(object, "status").unwrap_or_default();
    let private = part::<PreheatSpec>(object, "spec")
        .is_ok_and(|spec| spec.images.iter().any(|image| !image.pull_secrets.is_empty()));
    let status = PreheatStatus { warnings: warnings(outcome, private), ..status(outcome, &before.conditions, now) };
    status_write(ApiResource::erase::<Preheat>(&()), object, &status)
}

fn status(outcome: &Outcome, before: &[Condition], now: Timestamp) -> PreheatStatus {
    let message = message(outcome);
    PreheatStatus {
        phase: phase(outcome.stage).into(),
        conditions: conditions(outcome, &message, before, now),
        observed_generation: outcome.generation,
        desired: outcome.desired,
        waiting: outcome.waiting,
        pulling: outcome.pulling,
        succeeded: outcome.succeeded,
        failed: outcome.failed,
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

fn failed_node(failure: &stoker_core::rollup::FailedNode) -> FailedNode {
    FailedNode { node: failure.node.to_string(), reason: failure.reason.to_string(), message: failure.message.clone() }
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

const NO_NODES: &str = "no node matches spec.nodes";
const COMPARE_NODES: &str = "compare it with `kubectl get nodes --show-labels`";

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

/// What should be known although nothing has failed.
fn warnings(outcome: &Outcome, private: bool) -> Vec<String> {
    let alone = outcome.alone.iter().map(|image| {
        format!("the digest of {image} is the word of one node alone, because no other could ask the registry")
    });
    let shared = private.then(|| {
        "images that come with pullSecrets can be run by every pod on these nodes, unless their kubelets have \
         imagePullCredentialsVerificationPolicy: AlwaysVerify (see docs/security.md)"
            .to_string()
    });
    alone.chain(shared).collect()
}

/// The whole outcome in a sentence.
fn message(outcome: &Outcome) -> String {
    let Outcome { desired, succeeded, failed, pulling, waiting, .. } = outcome;
    if let Some(unseen) = unseen(outcome).filter(|_| *desired == 0) {
        return unseen;
    }
    let first = outcome.failures.first().map(|failure| format!("{}: {}", failure.node, failure.message));
    match outcome.stage {
        Stage::Failed if outcome.lacks_nodes => {
            format!(
                "{NO_NODES}, and the job's deadline has passed; {COMPARE_NODES}, then edit the Preheat or make it anew"
            )
        }
        _ if *desired == 0 => format!("{NO_NODES}; {COMPARE_NODES}"),
        Stage::Suspended => "suspended; set spec.suspend to false to go on".into(),
        Stage::Succeeded => format!("all images are on all {desired} nodes"),
        Stage::Failed => {
            format!("{failed} of {desired} nodes failed; {}", first.unwrap_or_else(|| "see failedNodes".into()))
        }
        Stage::Synced if *failed == 0 => format!("all images are on all {desired} nodes; they are looked at again"),
        Stage::Synced => format!("{succeeded} of {desired} nodes have all images, {failed} failed and are asked again"),
        Stage::Running => {
            let trouble = if *failed > 0 { format!(", {failed} failed") } else { String::new() };
            format!("{succeeded} of {desired} nodes done, {pulling} pulling, {waiting} waiting{trouble}")
        }
    }
}

fn conditions(outcome: &Outcome, message: &str, before: &[Condition], now: Timestamp) -> Vec<Condition> {
    let good = outcome.failed == 0 && matches!(outcome.stage, Stage::Succeeded | Stage::Synced);
    let all =
        [("Ready", good), ("Complete", outcome.stage == Stage::Succeeded), ("Stalled", outcome.stage == Stage::Failed)];
    let reason = match outcome.lacks_nodes {
        true => Reason::NoNodes.as_str(),
        false => phase(outcome.stage),
    };
    let conditions = all.map(|(kind, holds)| {
        let status = if holds { "True" } else { "False" };
        let since = before.iter().find(|condition| condition.kind == kind && condition.status == status);
        Condition {
            kind: kind.into(),
            status: status.into(),
            reason: reason.into(),
            message: message.into(),
            last_transition_time: since.map_or(now, |condition| condition.last_transition_time),
            observed_generation: outcome.generation,
        }
    });
    let others = before.iter().filter(|condition| !all.iter().any(|(kind, _)| condition.kind == *kind)).cloned();
    conditions.into_iter().chain(others).collect()
}

fn node_target(node: &str) -> Target {
    Target { resource: ApiResource::erase::<NodePreheat>(&()), namespace: None, name: node.into() }
}

/// Changes of a node's logins; `None` takes one away.
pub type LoginChanges = BTreeMap<LoginId, Option<SealedLogin>>;

/// The patch of a node's orders, with the logins that they name; `None` takes one away. The epoch is that of the controller that
/// writes.
pub fn orders(node: &str, changes: &BTreeMap<Key, Option<Order>>, logins: &LoginChanges, epoch: i64) -> Write {
    let orders = changes.iter().map(|(key, order)| {
        let mut order = order.as_ref().map_or(Value::Null, wire_order);
        // What an earlier version wrote stays for agents of that version, until the order has sealed logins.
        if let Some(fields) = order.as_object_mut().filter(|fields| fields.get("logins") != Some(&json!([]))) {
            fields.insert("secrets".into(), Value::Null);
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

/// Orders, logins and reports as a NodePreheat holds them: what an agent keeps on disk.
pub fn node_preheat(
    orders: &BTreeMap<Key, Order>,
    logins: &BTreeMap<LoginId, SealedLogin>,
    reports: &BTreeMap<Key, Report>,
) -> Value {
    let logins: Map<String, Value> = logins.iter().map(|(id, login)| (id.to_string(), json!(login))).collect();
    let orders: Map<String, Value> = orders.iter().map(|(key, order)| (key.to_string(), wire_order(order))).collect();
    let reports: Map<String, Value> =
        reports.iter().map(|(key, report)| (key.to_string(), wire_report(report))).collect();
    json!({ "spec": { "orders": orders, "logins": logins }, "status": { "reports": reports } })
}

fn wire_order(order: &Order) -> Value {
    let Order { image, jobs, asked, ask, hold, terms, .. } = order;
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
        sandbox: WireSandbox { labels: pairs(&pull.sandbox.labels), annotations: pairs(&pull.sandbox.annotations) },
        progress: Span(*progress),
        jobs: jobs.iter().map(ToString::to_string).collect(),
        asked: *asked,
        logins: logins.iter().map(ToString::to_string).collect(),
        secrets: Vec::new(),
        needs: order.features().map(str::to_string).collect(),
    })
}

fn pairs(map: &BTreeMap<String, String>) -> Vec<String> {
    map.iter().map(|(key, value)| format!("{key}={value}")).collect()
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
        digest: report.digest.clone(),
        pin: report.pin.as_ref().map(wire_pin),
        bytes: bytes(report.bytes),
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
fn bytes(model::Bytes { total, done, upstream, peers }: model::Bytes) -> WireBytes {
    let [total, done, upstream, peers] = [total, done, upstream, peers].map(|bytes| bytes.min(i64::MAX.unsigned_abs()));
    WireBytes { total, done, upstream, peers }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoker_core::{Event, Node, World};

    /// The status that is written for a Preheat of one image on so many nodes, of which one word was taken.
    fn warned(nodes: usize, secrets: Value, alone: bool) -> Vec<String> {
        let mut object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat",
            "metadata": { "name": "web", "namespace": "shop", "uid": "u", "generation": 1 },
            "spec": { "images": [{ "image": "r.example/web:1", "pullSecrets": secrets }] },
        }))
        .unwrap();
        let mut world = World::new();
        world.apply(Event::Job(Box::new(super::super::to_core::job(&object).unwrap())));
        for n in 0..nodes {
            let name = format!("n{n}").into();
            world.apply(Event::Node(Node { name, labels: BTreeMap::new(), ready: true, ready_changed: None }));
        }
        let mut outcome = world.plan(Timestamp::UNIX_EPOCH).outcomes.remove(0);
        outcome.alone = if alone { vec!["r.example/web:1".into()] } else { Vec::new() };
        let Some(Write::Status(_, patch)) = status_change(&object, &outcome, Timestamp::UNIX_EPOCH) else {
            panic!("no status")
        };
        object.data["status"] = patch["status"].clone();
        super::super::to_core::summary(&object).warnings
    }

    #[test]
    fn what_should_be_known_is_in_the_status() {
        assert_eq!(warned(2, json!([]), false), Vec::<String>::new());
        assert!(warned(2, json!([]), true)[0].contains("r.example/web:1 is the word of one node alone"));
        assert!(warned(2, json!([{ "name": "regcred" }]), false)[0].contains("AlwaysVerify"));
    }

    #[test]
    fn no_number_is_larger_than_the_api_server_takes() {
        let most = i64::MAX.unsigned_abs();
        for (there, said) in [(0, 0), (most, most), (most + 1, most), (u64::MAX, most)] {
            let wire = bytes(model::Bytes { total: there, done: there, upstream: there, peers: there });
            assert_eq!([wire.total, wire.done, wire.upstream, wire.peers], [said; 4]);
            let disk = crate::native::Disk::new(there, there);
            assert_eq!((disk.total, disk.free), (said, said));
        }
    }
}
