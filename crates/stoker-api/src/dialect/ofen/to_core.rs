//! From an ImagePrefetch to a job, and from a NodeImageSet that somebody wrote to one or two.

use std::collections::BTreeSet;
use std::time::Duration;

use kube_core::dynamic::DynamicObject;
use stoker_core::model::{
    Completion, Empty, Job, JobId, NodeName, Policy, Pull, PullSource, SecretId, Unreachable, Words,
};
use stoker_core::select::Selector;

use super::image_prefetch::SecretName;
use super::{
    GROUP, IMAGE_PREFETCHES, ImagePrefetchSpec, ImagePrefetchStatus, NODE_IMAGE_SETS, NodeImageSetSpec, NodeLabels,
    RegistryPolicy, part,
};
use crate::dialect::{self, Extras, NotReadable, created, status_or_why};
use crate::image;
use crate::labels;
use crate::view::{Derived, Reader, Root};

/// There are no rounds: what is there stays there, and an image that is gone is asked for again when that is seen. So this is longer than any
/// cluster lives.
const NO_ROUNDS: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// The longest that one attempt may take. What it has brought is kept for the next one.
const TIMEOUT: Duration = Duration::from_secs(600);
/// How often a failed attempt is repeated before the node counts as failed. It is asked again all the same.
const RETRIES: u32 = 3;
/// How many nodes of an ImagePrefetch pull at one time.
const PARALLELISM: u32 = 10;

/// How users of both kinds call things. Neither can be suspended.
const WORDS: Words = Words { resume: "make another object", secrets: "imagePullSecrets", orders: "NodePreheat" };

/// The part of a NodeImageSet with two policies that has the images that no registry is asked for.
const MIRROR_ONLY: &str = "mirror-only";

/// The job of an ImagePrefetch; one that is being deleted has none.
pub(super) fn derive(root: &Root, reader: &mut Reader<'_>) -> Derived {
    let Some(object) = reader.own(root).filter(|object| object.metadata.deletion_timestamp.is_none()) else {
        return Ok(Vec::new());
    };
    Ok(vec![job(object)?])
}

/// The job that an ImagePrefetch describes.
pub(super) fn job(object: &DynamicObject) -> Result<Job, NotReadable> {
    let spec: ImagePrefetchSpec = dialect::part(object, "spec")?;
    let (status, unreadable) = status_or_why(object);
    let status: ImagePrefetchStatus = status;
    let refused = |why: &str| NotReadable::saying(object, why.to_owned());
    let number = match (spec.all_nodes, spec.replicas) {
        (true, None) => None,
        (true, Some(_)) => return Err(refused("spec.replicas cannot be set when spec.allNodes is true")),
        (false, Some(replicas)) if replicas < 0 => return Err(refused("spec.replicas must be a non-negative number")),
        (false, None | Some(0)) => {
            return Err(refused("spec.replicas must be greater than 0 when spec.allNodes is false"));
        }
        (false, Some(replicas)) => Some(u32::try_from(replicas).unwrap_or(u32::MAX)),
    };
    let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    let secrets = secrets(object, namespace, spec.image_pull_secrets.as_deref())?;
    if spec.images.is_empty() {
        return Err(refused("spec.images must not be empty"));
    }
    let selector = spec.node_selector.map(|labels| selector(object, labels)).transpose()?.unwrap_or_default();
    let chosen = status.selected_nodes.map(|nodes| nodes.into_iter().map(NodeName::from).collect::<BTreeSet<_>>());
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let job = Job {
        id: JobId::new((GROUP, IMAGE_PREFETCHES.kind.name), namespace, name),
        images: image::images(spec.images.iter().map(|image| (image.as_str(), secrets.clone()))),
        selector,
        parallelism: PARALLELISM,
        unreadable,
        ..least(object)
    };
    let mut job = job.picking(number, chosen);
    Extras::of(object).apply(&mut job);
    Ok(job)
}

/// The jobs of a NodeImageSet that somebody wrote: one for all images of one policy. A part of an ImagePrefetch has none.
pub(super) fn derive_set(root: &Root, reader: &mut Reader<'_>) -> Derived {
    let Some(object) = reader.own(root).filter(|object| object.metadata.deletion_timestamp.is_none()) else {
        return Ok(Vec::new());
    };
    if part::place(object).whole.is_some() {
        return Ok(Vec::new());
    }
    Ok(set_jobs(object, reader.home())?)
}

/// The jobs that a NodeImageSet describes; Secrets that it names are in `home` where it does not say where.
pub(super) fn set_jobs(object: &DynamicObject, home: &str) -> Result<Vec<Job>, NotReadable> {
    let spec: NodeImageSetSpec = dialect::part(object, "spec")?;
    let (_, unreadable) = status_or_why::<super::NodeImageSetStatus>(object);
    let refused = |why: &str| NotReadable::saying(object, why.to_owned());
    let images = images(&spec).map_err(refused)?;
    if images.is_empty() {
        return Err(refused("spec.images must not be empty"));
    }
    if spec.node_name.is_empty() {
        return Err(refused("spec.nodeName must be specified and not empty"));
    }
    let namespace = part::namespace_of_secrets(object).unwrap_or(home);
    let secrets = secrets(object, namespace, spec.image_pull_secrets.as_deref())?;
    let id = JobId::new((GROUP, NODE_IMAGE_SETS.kind.name), "", object.metadata.name.as_deref().unwrap_or_default());
    let policies: BTreeSet<RegistryPolicy> = images.iter().map(|(_, policy)| *policy).collect();
    let job = |policy: &RegistryPolicy| {
        let images = images.iter().filter(|(_, of)| of == policy);
        let least = least(object);
        let second = policies.len() > 1 && *policy == RegistryPolicy::MirrorOnly;
        let mut job = Job {
            id: if second { id.with_part(MIRROR_ONLY) } else { id.clone() },
            images: image::images(images.map(|(image, _)| (image.as_str(), secrets.clone()))),
            names: Some(Job::named([spec.node_name.as_str()])),
            parallelism: u32::MAX,
            pull: Pull {
                retries: spec.image_download_retry_limit.map_or(RETRIES, |limit| u32::try_from(limit).unwrap_or(0)),
                source: match policy {
                    RegistryPolicy::Default => PullSource::Any,
                    RegistryPolicy::MirrorOnly => PullSource::MirrorsOnly,
                },
                ..least.pull
            },
            unreadable: unreadable.clone(),
            ..least
        };
        Extras::of(object).apply(&mut job);
        job
    };
    Ok(policies.iter().map(job).collect())
}

/// The policy of the images of such a job.
pub(super) fn policy_of(job: &Job) -> RegistryPolicy {
    match job.pull.source {
        PullSource::MirrorsOnly => RegistryPolicy::MirrorOnly,
        PullSource::Any | PullSource::PeersOnly | PullSource::PeersOrMirrors | PullSource::AnyOrMirrors => {
            RegistryPolicy::Default
        }
    }
}

/// The images of a NodeImageSet, each with its policy; or why that cannot be told.
pub(super) fn images(spec: &NodeImageSetSpec) -> Result<Vec<(String, RegistryPolicy)>, &'static str> {
    const NO_POLICY: &str = "spec.registryPolicy must be either 'Default' or 'MirrorOnly'";
    let read =
        |text: &Option<String>| text.as_deref().map(|text| RegistryPolicy::read(text).ok_or(NO_POLICY)).transpose();
    let of_all = read(&spec.registry_policy)?;
    let plain = spec.images.iter().flatten();
    let plain = plain.map(|image| of_all.ok_or(NO_POLICY).map(|policy| (image.clone(), policy)));
    let noted = spec.image_set.iter().flatten().map(|image| {
        let policy = read(&image.registry_policy).and_then(|own| own.or(of_all).ok_or(NO_POLICY));
        policy.map(|policy| (image.name.clone(), policy))
    });
    plain.chain(noted).collect()
}

/// What every job of this dialect has in common.
fn least(object: &DynamicObject) -> Job {
    let metadata = &object.metadata;
    Job {
        id: JobId::new((GROUP, ""), "", ""),
        uid: metadata.uid.clone().unwrap_or_default(),
        words: &WORDS,
        generation: metadata.generation.unwrap_or_default(),
        created: created(object),
        images: Vec::new(),
        names: None,
        pick: None,
        selector: Selector::default(),
        foreign_nodes: false,
        parallelism: 0,
        percent: false,
        tolerance: None,
        pull: Pull {
            // A tag that was moved is not pulled again.
            policy: Policy::IfNotPresent,
            timeout: TIMEOUT,
            retries: RETRIES,
            bandwidth: None,
            priority: 0,
            sandbox: Default::default(),
            source: PullSource::Any,
            upstream_copies: None,
        },
        completion: Completion::Continuous { resync: NO_ROUNDS },
        suspend: false,
        unreachable: Unreachable::Wait,
        empty: Empty::Completes,
        unseen: None,
        // No status says when it began.
        started: Some(created(object)),
        ended: None,
        unreadable: None,
        bounds: Default::default(),
    }
}

fn secrets(
    object: &DynamicObject,
    namespace: &str,
    names: Option<&[SecretName]>,
) -> Result<Vec<SecretId>, NotReadable> {
    let names = names.unwrap_or_default();
    if names.iter().any(|secret| secret.name.is_empty()) {
        let problem = "spec.imagePullSecrets must be a list of non-empty names";
        return Err(NotReadable::saying(object, problem.into()));
    }
    Ok(names.iter().map(|secret| SecretId::new(namespace, &secret.name)).collect())
}

/// The nodes of either shape.
fn selector(object: &DynamicObject, NodeLabels { mut selector, labels }: NodeLabels) -> Result<Selector, NotReadable> {
    for (key, value) in labels {
        match value.as_str() {
            Some(value) if !key.is_empty() && !value.is_empty() => {
                // Where a label is to have two values, none has.
                let other = selector.match_labels.get(&key).filter(|other| *other != value);
                if other.is_some() {
                    let problem = format!("spec.nodeSelector wants two values of the label {key}");
                    return Err(NotReadable::saying(object, problem));
                }
                selector.match_labels.insert(key, value.to_owned());
            }
            _ => {
                let problem = "spec.nodeSelector must be a map with non-empty keys and values";
                return Err(NotReadable::saying(object, problem.into()));
            }
        }
    }
    match labels::problem(&selector) {
        Some(problem) => Err(NotReadable::new(object, "spec.nodeSelector", &problem)),
        None => Ok(labels::to_core(&selector)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn object(kind: &str, spec: Value) -> DynamicObject {
        let metadata = json!({ "name": "sample", "namespace": "shop", "uid": "u" });
        serde_json::from_value(
            json!({ "apiVersion": "ofen.cybozu.io/v1", "kind": kind, "metadata": metadata, "spec": spec }),
        )
        .unwrap()
    }

    fn prefetch(nodes: Value) -> Result<Job, String> {
        let mut spec = json!({ "images": ["nginx"], "replicas": 1 });
        for (key, value) in nodes.as_object().unwrap() {
            spec[key] = value.clone();
        }
        job(&object("ImagePrefetch", spec)).map_err(|problem| problem.problem)
    }

    /// A CRD of ofen's refuses none of this, and neither does an old object.
    #[test]
    fn what_ofens_policies_refuse_is_refused_in_their_words() {
        for (nodes, wanted) in [
            (json!({ "allNodes": true }), "spec.replicas cannot be set when spec.allNodes is true"),
            (json!({ "allNodes": true, "replicas": 0 }), "spec.replicas cannot be set when spec.allNodes is true"),
            (json!({ "replicas": 0 }), "spec.replicas must be greater than 0 when spec.allNodes is false"),
            (json!({ "replicas": null }), "spec.replicas must be greater than 0 when spec.allNodes is false"),
            (json!({ "replicas": -1 }), "spec.replicas must be a non-negative number"),
            (json!({ "images": [] }), "spec.images must not be empty"),
            (
                json!({ "imagePullSecrets": [{ "name": "a" }, {}] }),
                "spec.imagePullSecrets must be a list of non-empty names",
            ),
            (
                json!({ "nodeSelector": { "zone": "" } }),
                "spec.nodeSelector must be a map with non-empty keys and values",
            ),
            (
                json!({ "nodeSelector": { "zone": { "a": "b" } } }),
                "spec.nodeSelector must be a map with non-empty keys and values",
            ),
            (
                json!({ "nodeSelector": { "zone": "a", "matchLabels": { "zone": "b" } } }),
                "spec.nodeSelector wants two values of the label zone",
            ),
        ] {
            assert_eq!(prefetch(nodes.clone()).unwrap_err(), wanted, "{nodes}");
        }
    }

    #[test]
    fn both_shapes_of_a_selector_mean_the_same() {
        let flat = prefetch(json!({ "nodeSelector": { "zone": "a", "pool": "web" } })).unwrap();
        let selector = json!({ "matchLabels": { "zone": "a", "pool": "web" } });
        assert_eq!(prefetch(json!({ "nodeSelector": selector })).unwrap().selector, flat.selector);
        let both = json!({ "zone": "a", "matchLabels": { "pool": "web" } });
        assert_eq!(prefetch(json!({ "nodeSelector": both })).unwrap().selector, flat.selector);
        assert_eq!(prefetch(json!({ "nodeSelector": {} })).unwrap().selector, Selector::default());
    }

    fn sources(spec: Value) -> Result<Vec<(String, PullSource, Vec<String>)>, String> {
        let jobs = set_jobs(&object("NodeImageSet", spec), "stoker-system").map_err(|problem| problem.problem)?;
        let said = |job: Job| {
            let images = job.images.iter().map(|image| image.written.clone()).collect();
            (job.id.part().unwrap_or_default().to_owned(), job.pull.source, images)
        };
        Ok(jobs.into_iter().map(said).collect())
    }

    #[test]
    fn both_shapes_of_a_set_mean_what_they_say() {
        let any =
            |images: &[&str]| vec![(String::new(), PullSource::Any, images.iter().map(ToString::to_string).collect())];
        let mirrors = |part: &str, images: &[&str]| {
            (part.to_owned(), PullSource::MirrorsOnly, images.iter().map(ToString::to_string).collect())
        };
        let with = |more: Value| {
            let mut spec = json!({ "nodeName": "n1" });
            for (key, value) in more.as_object().unwrap() {
                spec[key] = value.clone();
            }
            sources(spec)
        };
        assert_eq!(with(json!({ "images": ["a", "b"], "registryPolicy": "Default" })).unwrap(), any(&["a", "b"]));
        for policy in ["Mirror", "MirrorOnly"] {
            let set = json!({ "images": ["a"], "registryPolicy": policy });
            assert_eq!(with(set).unwrap(), [mirrors("", &["a"])]);
            let set = json!({ "imageSet": [{ "name": "a", "registryPolicy": policy }, { "name": "b" }], "registryPolicy": "Default" });
            assert_eq!(with(set).unwrap(), [any(&["b"]), vec![mirrors("mirror-only", &["a"])]].concat());
        }
        let policy = "spec.registryPolicy must be either 'Default' or 'MirrorOnly'";
        for (set, wanted) in [
            (json!({ "images": ["a"] }), policy),
            (json!({ "images": ["a"], "registryPolicy": "Any" }), policy),
            (json!({ "imageSet": [{ "name": "a" }] }), policy),
            (json!({ "images": [], "registryPolicy": "Default" }), "spec.images must not be empty"),
            (
                json!({ "images": ["a"], "registryPolicy": "Default", "nodeName": "" }),
                "spec.nodeName must be specified and not empty",
            ),
        ] {
            assert_eq!(with(set.clone()).unwrap_err(), wanted, "{set}");
        }
    }
}
