//! NodeImageSets: what is written to one. A part of an ImagePrefetch says what that wants of the node, and goes with it; one that somebody wrote
//! stays as it was written. Both say what came of it.

use jiff::Timestamp;
use kube_core::discovery::ApiResource;
use kube_core::dynamic::DynamicObject;
use serde_json::{Map, Value, json};
use stoker_core::model::{Ask, Job, JobId, Order};
use stoker_core::{World, text};

use super::from_core::{is_there, unprotected};
use super::said::{OnNode, WantedImage};
use super::{
    IMAGE_PREFETCHES, ImagePrefetchSpec, NODE_IMAGE_SETS, NodeImageSet, NodeImageSetSpec, NodeImageSetStatus,
    RegistryPolicy, part, to_core,
};
use crate::dialect::{self, Extras, Place, Summary, project_unreadable, status_or_why};
use crate::events;
use crate::native::from_core::SHARED;
use crate::view::{ObjectName, Projected, Reader, Root};
use crate::write::{Target, Write, status_write};

/// What a NodeImageSet asks to be written.
pub(super) fn project(root: &Root, reader: &mut Reader<'_>, world: &World, now: Timestamp) -> Projected {
    let Some(object) = reader.own(root) else { return Projected::default() };
    if object.metadata.deletion_timestamp.is_some() {
        return unprotected(&resource(), object).into_iter().collect::<Vec<_>>().into();
    }
    match part::place(object) {
        Place { node, whole: Some(whole) } => of_part(object, (&whole, &node), reader, world, now),
        Place { node, whole: None } => by_hand(root, object, &node, reader, world, now),
    }
}

fn resource() -> ApiResource {
    ApiResource::erase::<NodeImageSet>(&())
}

/// The job of an ImagePrefetch, if it is known which nodes it has.
pub(super) fn decided<'a>(id: &JobId, world: &'a World) -> Option<&'a Job> {
    let is_open = |job: &&Job| job.unreadable.is_none() && !world.is_frozen(id) && world.waits_for_sight(id).is_none();
    world.job(id).filter(is_open)
}

/// A part of an ImagePrefetch. It goes where that goes, or does not want the node any more; else it is as it should be, whoever has edited it.
fn of_part(
    object: &DynamicObject,
    (whole, node): (&ObjectName, &str),
    reader: &Reader<'_>,
    world: &World,
    now: Timestamp,
) -> Projected {
    let gone =
        || -> Projected { vec![Write::Delete(Target::of(resource(), object), object.metadata.uid.clone())].into() };
    let prefetch = reader.peek(&IMAGE_PREFETCHES.kind, whole);
    let Some(prefetch) = prefetch.filter(|prefetch| prefetch.metadata.deletion_timestamp.is_none()) else {
        // Until all are known nobody can miss one.
        return if reader.is_listed(&IMAGE_PREFETCHES.kind) { gone() } else { Projected::default() };
    };
    let id = IMAGE_PREFETCHES.job_id(&whole.0, &whole.1);
    let Some(job) = decided(&id, world) else { return Projected::default() };
    if !job.names.as_ref().is_some_and(|names| names.contains_key(node)) {
        // Before the first plan nothing is chosen.
        return if world.outcome(&id).is_some() { gone() } else { Projected::default() };
    }
    let Ok(spec) = dialect::part::<ImagePrefetchSpec>(prefetch, "spec") else { return Projected::default() };
    let own: NodeImageSetSpec = dialect::part(object, "spec").unwrap_or_default();
    let written = own.registry_policy.as_deref().and_then(RegistryPolicy::read);
    let policy = policy(job, node, world).or(written).unwrap_or(RegistryPolicy::MirrorOnly);
    let wanted = wanted_spec(&spec, prefetch.metadata.generation.unwrap_or_default(), node, policy);
    let has_failed =
        object.metadata.name.as_deref().and_then(|name| reader.failed(&NODE_IMAGE_SETS.kind, name)).is_some();
    let mended = mended(object, &wanted, (whole, node));
    // One at a time: each makes another version. Where a write has failed, both are tried: one that refuses the spec may take the status.
    if mended.is_some() && !has_failed {
        return mended.into_iter().collect::<Vec<_>>().into();
    }
    let wishes = spec.images.iter().map(|image| WantedImage { image: image.clone(), policy, job: id.clone() });
    let writes = said(object, &wishes.collect::<Vec<_>>(), OnNode { node, world, now });
    mended.into_iter().chain(writes).collect::<Vec<_>>().into()
}

/// What a part should say.
pub(super) fn wanted_spec(
    spec: &ImagePrefetchSpec,
    generation: i64,
    node: &str,
    policy: RegistryPolicy,
) -> Map<String, Value> {
    let fields = [
        ("images", json!(spec.images)),
        ("nodeName", json!(node)),
        ("registryPolicy", json!(policy.as_str())),
        ("imagePullSecrets", json!(spec.image_pull_secrets)),
        ("imagePrefetchGeneration", json!(generation)),
    ];
    fields.into_iter().filter(|(_, value)| is_there(value)).map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Where the node gets the images from, by its orders: from the registry as well where it was told to ask that for one of them, or what its tag
/// means. None where it has no orders.
pub(super) fn policy(job: &Job, node: &str, world: &World) -> Option<RegistryPolicy> {
    let keys = job.keys().flat_map(|key| [key, key.question()]);
    let policies = keys.filter_map(|key| world.order(node, key)).map(|Order { ask, upstream, .. }| match ask {
        Ask::Resolve => RegistryPolicy::Default,
        Ask::Fetch(_) if upstream => RegistryPolicy::Default,
        Ask::Fetch(_) | Ask::Look => RegistryPolicy::MirrorOnly,
    });
    policies.min()
}

/// The patch that makes a part what it should be, if it is not.
fn mended(object: &DynamicObject, wanted: &Map<String, Value>, (whole, node): (&ObjectName, &str)) -> Option<Write> {
    let own = object.data.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
    let other = wanted.iter().filter(|(key, value)| own.get(*key) != Some(value));
    let gone = own.iter().filter(|(key, value)| is_there(value) && !wanted.contains_key(*key));
    let gone = gone.map(|(key, _)| (key.clone(), Value::Null));
    let spec: Map<String, Value> = other.map(|(key, value)| (key.clone(), value.clone())).chain(gone).collect();
    let owner = (whole.0.as_str(), whole.1.as_str());
    let labels = object.metadata.labels.as_ref();
    let labelled = part::labels(owner, node);
    let labelled: Map<String, Value> = labelled
        .into_iter()
        .filter(|(key, value)| labels.and_then(|labels| labels.get(*key)) != Some(value))
        .map(|(key, value)| (key.to_owned(), value.into()))
        .collect();
    if spec.is_empty() && labelled.is_empty() {
        return None;
    }
    let mut metadata = json!({ "uid": object.metadata.uid, "resourceVersion": object.metadata.resource_version });
    if let Some(fields) = metadata.as_object_mut().filter(|_| !labelled.is_empty()) {
        fields.insert("labels".into(), Value::Object(labelled));
    }
    let mut patch = json!({ "metadata": metadata });
    if let Some(fields) = patch.as_object_mut().filter(|_| !spec.is_empty()) {
        fields.insert("spec".into(), Value::Object(spec));
    }
    Some(Write::Guarded(Target::of(resource(), object), patch))
}

/// The change of the status, if there is one, and the Events about it.
fn said(object: &DynamicObject, wishes: &[WantedImage], sight: OnNode<'_>) -> Vec<Write> {
    let (before, problem) = status_or_why::<NodeImageSetStatus>(object);
    if let Some(problem) = problem {
        return vec![events::unreadable(&NODE_IMAGE_SETS, object, &problem, sight.now)];
    }
    let (status, events) = sight.status(object, wishes, &before);
    let status = status_write(resource(), object, &status);
    // What a status says already was told.
    let events = events.into_iter().filter(|_| status.is_some());
    events.chain(status.clone()).collect()
}

/// A NodeImageSet that somebody wrote.
fn by_hand(
    root: &Root,
    object: &DynamicObject,
    node: &str,
    reader: &Reader<'_>,
    world: &World,
    now: Timestamp,
) -> Projected {
    if let Some(problem) = reader.problem() {
        return project_unreadable((root.kind, object), problem, now, |before: NodeImageSetStatus, message| {
            let generation = object.metadata.generation.unwrap_or_default();
            let spec: NodeImageSetSpec = dialect::part(object, "spec").unwrap_or_default();
            let images =
                spec.images.into_iter().flatten().chain(spec.image_set.into_iter().flatten().map(|one| one.name));
            let status = super::said::unreadable(images, before, &message, generation, now);
            status_write(resource(), object, &status)
        });
    }
    let Ok(jobs) = to_core::set_jobs(object, reader.home()) else { return Projected::default() };
    let spec: NodeImageSetSpec = dialect::part(object, "spec").unwrap_or_default();
    let images = to_core::images(&spec).unwrap_or_default();
    // A frozen job is planned no more, and nothing new is known of it.
    if jobs.iter().any(|job| decided(&job.id, world).is_none() && job.unreadable.is_none()) {
        return Projected::default();
    }
    let source = |policy: RegistryPolicy| jobs.iter().find(|job| to_core::policy_of(job) == policy);
    let wishes = images.into_iter().filter_map(|(image, policy)| {
        let job = source(policy)?.id.clone();
        Some(WantedImage { image, policy, job })
    });
    let wishes: Vec<WantedImage> = wishes.collect();
    let mut writes = said(object, &wishes, OnNode { node, world, now });
    let is_new = object.data.pointer("/status/observedGeneration").is_none_or(Value::is_null);
    if is_new && !writes.is_empty() {
        let private = jobs.iter().flat_map(|job| &job.images).any(|image| !image.secrets.is_empty());
        let shared = private.then(|| ("ImagesShared", SHARED.to_owned()));
        let ignored = Extras::of(object).problems.into_iter().map(|problem| ("Ignored", problem));
        let told = shared.into_iter().chain(ignored);
        writes.extend(told.map(|(reason, message)| events::event(root.kind, object, reason, false, &message, now)));
    }
    writes.into()
}

/// What the status of a NodeImageSet says. It counts images.
pub(super) fn summary(object: &DynamicObject) -> Summary {
    let status: NodeImageSetStatus = dialect::part(object, "status").unwrap_or_default();
    let (desired, available) = (status.desired_images, status.available_images);
    let failed = u32::from(status.download_failed_images > 0);
    let is_there = u32::from(available == desired);
    let current = status.observed_generation == object.metadata.generation;
    let phase = match status.observed_generation {
        None => "",
        Some(_) if current && is_there == 1 => "Synced",
        Some(_) => "Running",
    };
    let known = u32::from(status.observed_generation.is_some());
    let errors = status.container_image_statuses.iter().filter(|image| !image.error.is_empty());
    let error = errors.map(|image| format!("; {}: {}", image.image_ref, image.error)).next().unwrap_or_default();
    Summary {
        phase: phase.into(),
        desired: known,
        succeeded: known * is_there,
        pulling: known * (1 - is_there) * (1 - failed),
        failed,
        message: text::message(&format!("{available} of {desired} images are on the node{error}")),
        warnings: Extras::of(object).problems,
        ..Summary::default()
    }
}
