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
    /// The namespaces that it concerns, by their labels. If not given: all, and jobs of objects that are in no namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<LabelSelector>,
    /// The images that are allowed; every image if not given. Compared with registry and repository, without tag and digest, as container
    /// runtimes fill them in: nginx is docker.io/library/nginx. `*` stands for any text without a slash, `**` for any text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 50),
        inner(length(min = 1, max = 256), regex(pattern = PATTERN)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub images: Option<Vec<String>>,
    /// The nodes that may be used, by their labels; all if not given. A job that wants others goes on without them: they wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<LabelSelector>,
    /// How much is allowed.
    #[serde(default)]
    pub max: MaxSpec,
}

/// What an image pattern is written with, and at least one slash or `**`: a registry is part of every name.
pub(crate) const PATTERN: &str = r"^([a-zA-Z0-9._:*-]+/[a-zA-Z0-9._:*/-]+|\*\*[a-zA-Z0-9._:*/-]*)$";

/// How much a policy allows; what is not given has no ceiling.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MaxSpec {
    /// Images of one job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub images: Option<i32>,
    /// Nodes of one job. Nodes that it may not use do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub nodes: Option<i32>,
    /// Unfinished jobs of one namespace at one time, of all kinds together. The oldest go, the others wait. Suspended jobs do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub jobs: Option<i32>,
    /// How long one attempt to pull an image may take. A job that does not say has 10 minutes.
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

/// What a policy restricts. One that cannot be read restricts everything.
pub(crate) fn restriction(object: &DynamicObject) -> Restriction {
    let policy: Arc<str> = object.metadata.name.as_deref().unwrap_or_default().into();
    match spec(object) {
        Ok(spec) => Restriction { policy, ..to_core(spec) },
        Err(problem) => Restriction { policy, unreadable: Some(problem.problem), ..Restriction::default() },
    }
}

fn spec(object: &DynamicObject) -> Result<PreheatPolicySpec, NotReadable> {
    let spec: PreheatPolicySpec = part(object, "spec")?;
    for (field, selector) in [("spec.namespaces", &spec.namespaces), ("spec.nodes", &spec.nodes)] {
        if let Some(problem) = selector.as_ref().and_then(labels::problem) {
            return Err(NotReadable::new(object, field, &problem));
        }
    }
    Ok(spec)
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
        ] {
            let problem = read(spec).unreadable.unwrap();
            assert!(problem.starts_with(field), "{problem}");
        }
    }
}
