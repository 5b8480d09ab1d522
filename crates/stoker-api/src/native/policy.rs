//! Who may preheat what, as an administrator says. A policy has no status: what it does not allow is said in the jobs.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube_core::discovery::ApiResource;
use kube_core::dynamic::DynamicObject;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stoker_core::{Ceilings, ImagePattern, Restriction};

use crate::amount::Amount;
use crate::dialect::{NotReadable, part};
use crate::labels::{self, LabelSelector};
use crate::span::Span;
use crate::view::{Kind, Row};

/// Who may preheat what. Every policy that concerns a namespace must allow its jobs, of whatever kind they are.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "stoker.dev",
    version = "v1alpha1",
    kind = "PreheatPolicy",
    plural = "preheatpolicies",
    shortname = "php",
    category = "stoker",
    derive = "PartialEq",
    doc = "Says which images which namespaces may have on which nodes, and how much. Jobs that it does not allow are held.",
    crates(kube_core = "::kube_core"),
    printcolumn(name = "Jobs", type_ = "integer", json_path = ".spec.max.jobs"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".spec.max.nodes"),
    printcolumn(name = "Images", type_ = "string", json_path = ".spec.images", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct PreheatPolicySpec {
    /// The namespaces whose jobs this policy restricts, by their labels. If not given: all namespaces, and objects that are in no namespace (NodeImages).
    /// Every policy that concerns a namespace must allow a job; another policy never allows more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<LabelSelector>,
    /// The images that are allowed, as patterns such as ghcr.io/acme/** or docker.io/library/nginx; every image if not given. A pattern is compared
    /// with registry and repository in small letters, without tag and digest, as container runtimes fill them in: nginx is docker.io/library/nginx.
    /// `*` stands for any text without a slash, `**` for any text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 50),
        inner(length(min = 1, max = 256), regex(pattern = PATTERN)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub images: Option<Vec<String>>,
    /// The nodes that may be used, by their labels; all if not given. Other nodes of a job wait with the reason NotAllowed, and the job goes on without
    /// them. Such a job does not end before its deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<LabelSelector>,
    /// How much is allowed.
    #[serde(default)]
    pub max: MaxSpec,
}

/// What an image pattern is written with, and at least one slash or `**`: a registry is part of every name. No capital letters: registries are compared in
/// small letters and repositories have no others, so such a pattern would match nothing.
pub(crate) const PATTERN: &str = r"^([a-z0-9._:*-]+/[a-z0-9._:*/-]+|\*\*[a-z0-9._:*/-]*)$";

/// How much a policy allows; what is not given has no ceiling.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MaxSpec {
    /// How many images a job may name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub images: Option<i32>,
    /// How many nodes a job may have. When it has begun on as many, its other nodes wait with the reason NotAllowed; what has begun is not stopped. A node
    /// counts until it leaves the cluster or the job, also after it is done or has failed. A job whose nodes.replicas is higher is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub nodes: Option<i32>,
    /// How many unfinished jobs a namespace may have at one time, of all kinds together. The oldest go, the others wait. Suspended jobs do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub jobs: Option<i32>,
    /// The longest time that a job may give one attempt to pull an image (pull.timeout). A job that does not say one has 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    /// The most bytes a second that a job may ask a node for, such as 50Mi. A job that asks for no limit gets this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Amount>,
}

/// Policies.
pub static PREHEAT_POLICIES: Kind = Kind {
    name: "PreheatPolicy",
    versions: || vec![ApiResource::erase::<PreheatPolicy>(&())],
    keep: Row::whole,
    fields: None,
};

/// Namespaces, of which only labels are kept. Watched while a policy selects by them.
pub static NAMESPACES: Kind = Kind {
    name: "Namespace",
    versions: || vec![ApiResource::erase::<Namespace>(&())],
    keep: |object| {
        let mut kept = DynamicObject { types: None, metadata: Default::default(), data: Default::default() };
        (kept.metadata.name, kept.metadata.labels) = (object.metadata.name, object.metadata.labels);
        Row::Whole(Box::new(kept))
    },
    fields: None,
};

/// What a policy restricts. One that cannot be read allows nothing to the namespaces that it concerns, as far as these can be read.
pub(crate) fn restriction(object: &DynamicObject) -> Restriction {
    let policy: Arc<str> = object.metadata.name.as_deref().unwrap_or_default().into();
    match spec(object) {
        Ok(spec) => Restriction { policy, ..to_core(spec) },
        Err(problem) => {
            let namespaces = namespaces(object).ok().flatten().as_ref().map(labels::to_core);
            Restriction { policy, namespaces, unreadable: Some(problem.problem), ..Restriction::default() }
        }
    }
}

/// The one field that tells whom a policy concerns.
#[derive(Default, Deserialize)]
struct Concerning {
    #[serde(default)]
    namespaces: Option<LabelSelector>,
}

/// Whom a policy concerns, whatever the rest of it is.
fn namespaces(object: &DynamicObject) -> Result<Option<LabelSelector>, NotReadable> {
    let Concerning { namespaces } = part(object, "spec")?;
    match namespaces.as_ref().and_then(labels::problem) {
        Some(problem) => Err(NotReadable::new(object, "spec.namespaces", &problem)),
        None => Ok(namespaces),
    }
}

fn spec(object: &DynamicObject) -> Result<PreheatPolicySpec, NotReadable> {
    let spec: PreheatPolicySpec = part(object, "spec")?;
    namespaces(object)?;
    match spec.nodes.as_ref().and_then(labels::problem) {
        Some(problem) => Err(NotReadable::new(object, "spec.nodes", &problem)),
        None => Ok(spec),
    }
}

fn to_core(PreheatPolicySpec { namespaces, images, nodes, max }: PreheatPolicySpec) -> Restriction {
    let MaxSpec { images: most_images, nodes: most_nodes, jobs, timeout, bandwidth } = max;
    let count = |number: i32| u32::try_from(number).unwrap_or_default();
    Restriction {
        policy: Arc::default(),
        // A selector without conditions takes every namespace, but nothing that is in none.
        namespaces: namespaces.as_ref().map(labels::to_core),
        images: images.iter().flatten().map(|pattern| ImagePattern::new(pattern)).collect(),
        nodes: nodes.as_ref().map(labels::to_core).map(Arc::new),
        most: Ceilings {
            images: most_images.map(count),
            nodes: most_nodes.map(count),
            jobs: jobs.map(count),
            timeout: timeout.map(|timeout| timeout.0),
            bandwidth: bandwidth.map(|bandwidth| bandwidth.0),
        },
        unreadable: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(spec: Value) -> Restriction {
        let object = json!({ "metadata": { "name": "p" }, "spec": spec });
        restriction(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_policy_becomes_a_restriction() {
        let read_one = read(json!({
            "namespaces": { "matchLabels": { "team": "a" } },
            "images": ["ghcr.io/acme/**"],
            "nodes": { "matchExpressions": [{ "key": "gpu", "operator": "DoesNotExist" }] },
            "max": { "images": 20, "nodes": 500, "jobs": 10, "timeout": "1h", "bandwidth": "50Mi" },
        }));
        assert_eq!(&*read_one.policy, "p");
        assert!(read_one.namespaces.unwrap().matches(&[("team".to_string(), "a".to_string())].into()));
        assert_eq!(read_one.images, [ImagePattern::new("ghcr.io/acme/**")]);
        assert!(read_one.nodes.unwrap().matches(&Default::default()));
        let timeout = Some(std::time::Duration::from_secs(3600));
        let most = Ceilings { images: Some(20), nodes: Some(500), jobs: Some(10), timeout, bandwidth: Some(50 << 20) };
        assert_eq!(read_one.most, most);
        assert_eq!(read(json!({})), Restriction { policy: "p".into(), ..Restriction::default() });
    }

    #[test]
    fn a_policy_that_cannot_be_read_allows_nothing() {
        for (spec, field) in [
            (json!({ "images": "all" }), "spec.images"),
            (json!({ "max": { "timeout": "soon" } }), "spec.max.timeout"),
            (json!({ "nodes": { "matchLabels": { "a b": "c" } } }), "spec.nodes"),
            (json!({ "namespaces": { "matchLabels": { "a b": "c" } } }), "spec.namespaces"),
        ] {
            let read = read(spec);
            let problem = read.unreadable.unwrap();
            assert!(problem.starts_with(field), "{problem}");
            assert_eq!(read.namespaces, None, "it may concern anybody");
        }
    }

    #[test]
    fn a_policy_that_cannot_be_read_concerns_the_namespaces_that_it_names() {
        for rest in
            [json!({ "images": "all" }), json!({ "nodes": { "matchLabels": { "a b": "c" } } }), json!({ "max": 1 })]
        {
            let mut spec = rest;
            spec["namespaces"] = json!({ "matchLabels": { "team": "a" } });
            let read = read(spec);
            assert!(read.unreadable.is_some());
            let concerned = |team: &str| {
                read.namespaces.as_ref().unwrap().matches(&[("team".to_string(), team.to_string())].into())
            };
            assert!(concerned("a") && !concerned("b"));
        }
    }
}
