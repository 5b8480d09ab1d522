//! From the outcome of an ImagePrefetch to its status, in upstream's words, and to the NodeImageSets that are missing.

use std::collections::BTreeSet;

use jiff::Timestamp;
use kube_core::discovery::ApiResource;
use kube_core::dynamic::DynamicObject;
use serde_json::{Value, json};
use stoker_core::model::{Job, NodeName};
use stoker_core::rollup::Outcome;
use stoker_core::world::NodeState;
use stoker_core::{Reason, World, human, text};

use super::said::{Statement, conditions};
use super::{
    FINALIZERS, ImagePrefetch, ImagePrefetchSpec, ImagePrefetchStatus, NODE_IMAGE_SETS, NodeImageSet, part, set_name,
    sets,
};
use crate::dialect::{self, Extras, Summary, project_job, project_unreadable};
use crate::events;
use crate::native::{Condition, from_core};
use crate::view::{Projected, Reader, Root};
use crate::write::{Target, Write, status_write};

/// NodeImageSets that are made at one time, at most: there may be thousands.
const SETS_AT_ONCE: usize = 32;

/// The condition with what no condition of upstream's has a word for. It is there as long as there is something to say.
const TROUBLE: &str = "stoker.dev/Trouble";

/// What an ImagePrefetch asks to be written: its status, and NodeImageSets for nodes that have begun.
pub(super) fn project(root: &Root, reader: &mut Reader<'_>, world: &World, now: Timestamp) -> Projected {
    let Some(object) = reader.own(root) else { return Projected::default() };
    if object.metadata.deletion_timestamp.is_some() {
        return unprotected(&resource(), object).into_iter().collect::<Vec<_>>().into();
    }
    if let Some(problem) = reader.problem() {
        return project_unreadable((root.kind, object), problem, now, |before, message| {
            unreadable(object, before, &message, now)
        });
    }
    let sets = Sets::of(root, reader, world, now);
    let mut projected = project_job(root, reader, world, now, |object, outcome, now| {
        status_change(object, outcome, sets.as_ref().is_some_and(|sets| sets.are_all), now)
    });
    if let Some(event) = too_few(root, object, world, now).filter(|_| !projected.writes.is_empty()) {
        projected.writes.push(event);
    }
    projected.writes.extend(sets.into_iter().flat_map(|sets| sets.writes));
    projected
}

/// An object that is being deleted without upstream's finalizers, as long as nobody else has changed it: finalizers are one list.
pub(super) fn unprotected(resource: &ApiResource, object: &DynamicObject) -> Option<Write> {
    let all = object.metadata.finalizers.as_deref().unwrap_or_default();
    let others: Vec<&String> = all.iter().filter(|finalizer| !FINALIZERS.contains(&finalizer.as_str())).collect();
    let metadata = json!({
        "uid": object.metadata.uid, "resourceVersion": object.metadata.resource_version, "finalizers": others,
    });
    let target = Target::of(resource.clone(), object);
    (others.len() < all.len()).then(|| Write::Guarded(target, json!({ "metadata": metadata })))
}

fn resource() -> ApiResource {
    ApiResource::erase::<ImagePrefetch>(&())
}

/// The NodeImageSets of an ImagePrefetch.
struct Sets {
    /// Whether every node that was chosen has one, and no other node.
    are_all: bool,
    /// Those that are made now, and those that are given back what makes them parts.
    writes: Vec<Write>,
}

impl Sets {
    /// None as long as nobody knows which there are, or which there should be.
    fn of(root: &Root, reader: &Reader<'_>, world: &World, now: Timestamp) -> Option<Self> {
        let job = sets::decided(&root.job(), world)?;
        if !reader.was_listed(&NODE_IMAGE_SETS.kind) {
            return None;
        }
        let owner = (root.namespace.as_str(), root.name.as_str());
        let nodes: Vec<&NodeName> = job.names.iter().flat_map(|names| names.keys()).collect();
        let there = |name: &str| reader.peek(&NODE_IMAGE_SETS.kind, &(String::new(), name.to_owned()));
        let stays = |set: &DynamicObject| set.metadata.deletion_timestamp.is_none();
        let parts: BTreeSet<&str> = reader.parts(root).filter(|name| there(name).is_some_and(stays)).collect();
        let missing: Vec<(String, &NodeName)> = nodes
            .iter()
            .map(|node| (set_name(owner, node), *node))
            .filter(|(name, _)| !parts.contains(name.as_str()))
            .collect();
        let are_all = missing.is_empty() && parts.len() == nodes.len();
        let made = missing.into_iter().filter_map(|(name, node)| {
            match there(&name) {
                // Somebody has taken away its labels, or it is in the way until it is gone.
                Some(there) => relabelled(owner, node, there),
                None => {
                    has_begun(job, node, world, now).then(|| create(job, owner, name, node, reader, world)).flatten()
                }
            }
        });
        Some(Self { are_all, writes: made.take(SETS_AT_ONCE).collect() })
    }
}

/// Whether something was done for the job on a node: until then its NodeImageSet would say nothing, and which policy it has is not known.
fn has_begun(job: &Job, node: &str, world: &World, now: Timestamp) -> bool {
    let view = world.seat_of(&job.id, node, now);
    view.is_some_and(|view| !matches!(view.state, NodeState::Waiting(_)))
}

fn create(
    job: &Job,
    owner: (&str, &str),
    name: String,
    node: &str,
    reader: &Reader<'_>,
    world: &World,
) -> Option<Write> {
    let prefetch = reader.peek(&super::IMAGE_PREFETCHES.kind, &(owner.0.to_owned(), owner.1.to_owned()))?;
    let spec: ImagePrefetchSpec = dialect::part(prefetch, "spec").ok()?;
    let policy = sets::policy(job, node, world).unwrap_or(super::RegistryPolicy::MirrorOnly);
    let resource = ApiResource::erase::<NodeImageSet>(&());
    let annotations = part::annotations(owner, node);
    let mut metadata = json!({ "name": name, "labels": part::labels(owner, node) });
    if let Some(fields) = metadata.as_object_mut().filter(|_| !annotations.is_empty()) {
        fields.insert("annotations".into(), json!(annotations));
    }
    let object = json!({
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": metadata,
        "spec": sets::wanted_spec(&spec, prefetch.metadata.generation.unwrap_or_default(), node, policy),
    });
    Some(Write::Create(Target { resource, namespace: None, name }, object))
}

/// A NodeImageSet with the labels of a part; one that is being deleted is in the way until it is gone.
fn relabelled(owner: (&str, &str), node: &str, there: &DynamicObject) -> Option<Write> {
    let metadata = &there.metadata;
    let patch = json!({ "metadata": {
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
        "labels": part::labels(owner, node),
        "annotations": part::annotations(owner, node),
    } });
    let target = Target::of(ApiResource::erase::<NodeImageSet>(&()), there);
    metadata.deletion_timestamp.is_none().then_some(Write::Guarded(target, patch))
}

/// The change of the status of an ImagePrefetch whose spec cannot be read.
fn unreadable(object: &DynamicObject, before: ImagePrefetchStatus, message: &str, now: Timestamp) -> Option<Write> {
    let generation = object.metadata.generation.unwrap_or_default();
    let ready = Statement {
        kind: "Ready",
        holds: false,
        yes: ("", ""),
        no: ("ImagePrefetchProgressing", "Waiting for all nodes to pull the image"),
    };
    let mut conditions = conditions(&[ready], &before.conditions, generation, now);
    tell(&mut conditions, Some((Reason::SpecUnreadable, message.to_owned())), generation, now);
    let status = ImagePrefetchStatus { observed_generation: Some(generation), conditions, ..before };
    status_write(resource(), object, &status)
}

/// The change of an ImagePrefetch's status, if there is one.
fn status_change(object: &DynamicObject, outcome: &Outcome, sets_are_all: bool, now: Timestamp) -> Option<Write> {
    let before: ImagePrefetchStatus = dialect::part(object, "status").unwrap_or_default();
    let chosen = outcome.chosen.iter().flat_map(|nodes| nodes.keys());
    let ours = [
        Statement {
            kind: "NodeImageSetsCreated",
            holds: sets_are_all && outcome.lacking == 0,
            yes: ("NodeImageSetsCreated", "All NodeImageSets have been created"),
            no: ("NodeImageSetsCreating", "Waiting for all NodeImageSets to be created"),
        },
        Statement {
            kind: "Ready",
            holds: outcome.succeeded == outcome.desired,
            yes: ("ImagePrefetchReady", "All nodes have the desired image"),
            no: ("ImagePrefetchProgressing", "Waiting for all nodes to pull the image"),
        },
        Statement {
            kind: "NoImagePullFailed",
            holds: outcome.failed == 0,
            yes: ("NoImagePullFailed", "No nodes have failed to pull the image"),
            no: ("ImagePrefetchFailed", "Some nodes failed to pull the image"),
        },
    ];
    let generation = outcome.generation;
    let mut conditions = conditions(&ours, &before.conditions, generation, now);
    tell(&mut conditions, trouble(outcome), generation, now);
    let status = ImagePrefetchStatus {
        observed_generation: Some(generation),
        selected_nodes: Some(chosen.map(ToString::to_string).collect()),
        desired_nodes: outcome.desired.into(),
        image_pulled_nodes: outcome.succeeded.into(),
        image_pulling_nodes: i64::from(outcome.pulling) + i64::from(outcome.failed),
        image_pull_failed_nodes: outcome.failed.into(),
        conditions,
    };
    status_write(resource(), object, &status)
}

/// Puts what is to be said into its condition, or takes that away.
fn tell(conditions: &mut Vec<Condition>, trouble: Option<(Reason, String)>, generation: i64, now: Timestamp) {
    let before = conditions.iter().position(|condition| condition.kind == TROUBLE).map(|at| conditions.remove(at));
    conditions.extend(trouble.map(|(reason, message)| Condition {
        kind: TROUBLE.into(),
        status: "True".into(),
        reason: reason.as_str().into(),
        message: text::message(&message),
        last_transition_time: before.map_or(now, |before| before.last_transition_time),
        observed_generation: generation,
    }));
}

/// What keeps an ImagePrefetch from being ready that does not end by itself.
fn trouble(outcome: &Outcome) -> Option<(Reason, String)> {
    if let Some(refusal) = from_core::not_allowed(outcome) {
        return Some((Reason::NotAllowed, refusal));
    }
    if outcome.lacking > 0 {
        return Some((Reason::TooFewNodes, lacking(outcome)));
    }
    if let Some(first) = outcome.failures.first() {
        return Some((first.reason, format!("{}: {}", first.node, first.message)));
    }
    let refused = from_core::refused(outcome).next().map(|refused| (Reason::Pending, refused));
    let waits = || outcome.waits.first().map(|wait| (wait.reason, format!("{}: {}", wait.node, wait.message)));
    refused.or_else(waits)
}

fn lacking(outcome: &Outcome) -> String {
    format!(
        "spec.replicas wants {} more: no other node matches spec.nodeSelector, is Ready and not cordoned, and has an agent",
        human::count(outcome.lacking, "node")
    )
}

/// That there are too few nodes, where the status does not say it yet.
fn too_few(root: &Root, object: &DynamicObject, world: &World, now: Timestamp) -> Option<Write> {
    let outcome = world.outcome(&root.job()).filter(|outcome| outcome.lacking > 0)?;
    let (reason, message) = (Reason::TooFewNodes.as_str(), lacking(&outcome));
    let before: ImagePrefetchStatus = dialect::part(object, "status").unwrap_or_default();
    let told = before.conditions.iter().any(|condition| condition.kind == TROUBLE && condition.message == message);
    (!told).then(|| events::event(root.kind, object, reason, false, &message, now))
}

/// What an ImagePrefetch's status says. It has no phase of its own; these are the words of the others.
pub(super) fn summary(object: &DynamicObject) -> Summary {
    let status: ImagePrefetchStatus = dialect::part(object, "status").unwrap_or_default();
    let count = |nodes: i64| u32::try_from(nodes).unwrap_or(if nodes < 0 { 0 } else { u32::MAX });
    let is =
        |kind: &str| status.conditions.iter().any(|condition| condition.kind == kind && condition.status == "True");
    let current = status.observed_generation == object.metadata.generation;
    let phase = match status.observed_generation {
        None => "",
        Some(_) if current && is("Ready") => "Synced",
        Some(_) => "Running",
    };
    let (desired, pulled) = (count(status.desired_nodes), count(status.image_pulled_nodes));
    let failed = count(status.image_pull_failed_nodes);
    let trouble = status.conditions.iter().find(|condition| condition.kind == TROUBLE);
    let trouble = trouble.map(|condition| format!("; {}: {}", condition.reason, condition.message));
    let message = format!("{pulled} of {desired} nodes have all images{}", trouble.unwrap_or_default());
    Summary {
        phase: phase.into(),
        desired,
        succeeded: pulled,
        pulling: count(status.image_pulling_nodes).saturating_sub(failed),
        failed,
        message: text::message(&message),
        warnings: Extras::of(object).problems,
        ..Summary::default()
    }
}

/// Whether a value is there: a null is a field that was left out.
pub(super) fn is_there(value: &Value) -> bool {
    !value.is_null()
}
