//! Signs that the original controller of a dialect is at work: its Lease, and webhooks for the dialect's kinds. Says which objects
//! are looked at and what is kept of them. Whether they mean that the dialect is left alone is decided in [`crate::view`].

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::coordination::v1::Lease;
use kube_core::discovery::ApiResource;
use kube_core::dynamic::DynamicObject;
use serde_json::Value;

use crate::dialect::{self, JobKind};
use crate::view::{Kind, Row};

/// How the original controller of a dialect shows that it is at work.
#[derive(Clone, Copy, Debug)]
pub enum Sign {
    /// It renews a Lease of this name in the namespace where it is usually installed. Everybody who may edit a namespace may make a
    /// Lease of any name there, so Leases elsewhere say nothing: a controller elsewhere is known by its webhooks.
    Lease {
        /// The namespace.
        namespace: &'static str,
        /// The name.
        name: &'static str,
        /// Leases of that name alone.
        kind: &'static Kind,
    },
    /// It has the API server ask it about objects of the dialect.
    Webhooks(&'static Kind),
}

impl Sign {
    /// The objects that are looked at.
    pub fn kind(&self) -> &'static Kind {
        match self {
            Sign::Lease { kind, .. } | Sign::Webhooks(kind) => kind,
        }
    }

    /// The name of the one object that is looked at, where it is one.
    pub fn name(&self) -> Option<&'static str> {
        match self {
            Sign::Lease { name, .. } => Some(name),
            Sign::Webhooks(_) => None,
        }
    }

    /// Whether an object of this namespace can be it.
    pub fn is_in(&self, namespace: &str) -> bool {
        match self {
            Sign::Lease { namespace: own, .. } => *own == namespace,
            Sign::Webhooks(_) => true,
        }
    }

    /// Whether it says anything where the kinds were handed over like this.
    pub fn counts(&self, hand_over: HandOver) -> bool {
        match self {
            // Both work together, each on its own part.
            _ if hand_over == HandOver::Half => false,
            // A controller that goes on for other kinds renews its Lease as before.
            Sign::Lease { .. } => hand_over != HandOver::Whole,
            // Whoever refuses or changes objects of these kinds has not handed them over.
            Sign::Webhooks(_) => true,
        }
    }
}

/// What an administrator says about the kinds of a dialect whose original controller is installed too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandOver {
    /// Nothing: every sign of the original controller counts.
    #[default]
    Unsaid,
    /// All kinds of the dialect are Stoker's, and the original controller goes on for other kinds.
    Whole,
    /// The original controller goes on with the jobs. What its agents did on nodes is Stoker's.
    Half,
}

impl HandOver {
    /// All that can be said, each with its word.
    pub const WORDS: &[(&str, HandOver)] = &[("whole", HandOver::Whole), ("half", HandOver::Half)];
}

impl FromStr for HandOver {
    type Err = UnknownHandOver;

    fn from_str(text: &str) -> Result<Self, UnknownHandOver> {
        let known = HandOver::WORDS.iter().find(|(word, _)| *word == text);
        known.map(|(_, hand_over)| *hand_over).ok_or_else(|| UnknownHandOver(text.into()))
    }
}

/// A word that says nothing about a hand-over.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a way to hand a dialect over that this version knows; it knows: {known}", known = known())]
pub struct UnknownHandOver(String);

fn known() -> String {
    HandOver::WORDS.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ")
}

/// What is kept of a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    /// Who holds it, if anybody does.
    pub holder: Option<Arc<str>>,
    /// When its holder says that it was renewed. It is never compared with a clock, only with what it was before.
    renewed: Option<Arc<str>>,
}

/// Leases, in the one version that there is.
pub(crate) fn leases() -> Vec<ApiResource> {
    vec![ApiResource::erase::<Lease>(&())]
}

/// Keeps what a Lease shows of its holder.
pub(crate) fn lease_row(lease: DynamicObject) -> Row {
    let text = |path: &str| lease.data.pointer(path).and_then(Value::as_str).filter(|text| !text.is_empty());
    Row::Lease(LeaseRow {
        holder: text("/spec/holderIdentity").map(Arc::from),
        renewed: text("/spec/renewTime").map(Arc::from),
    })
}

/// All MutatingWebhookConfigurations.
pub static MUTATING_WEBHOOKS: Kind = Kind {
    name: "MutatingWebhookConfiguration",
    versions: || vec![ApiResource::erase::<MutatingWebhookConfiguration>(&())],
    keep: webhook_row,
    fields: None,
};

/// All ValidatingWebhookConfigurations.
pub static VALIDATING_WEBHOOKS: Kind = Kind {
    name: "ValidatingWebhookConfiguration",
    versions: || vec![ApiResource::erase::<ValidatingWebhookConfiguration>(&())],
    keep: webhook_row,
    fields: None,
};

/// The label of configurations that Kyverno generates. They name the kinds of its users' policies, and a policy is no controller.
const OF_KYVERNO: &str = "webhook.kyverno.io/managed-by";

/// Keeps which kinds of dialects a webhook configuration names.
fn webhook_row(configuration: DynamicObject) -> Row {
    let labels = configuration.metadata.labels.as_ref();
    if labels.is_some_and(|labels| labels.contains_key(OF_KYVERNO)) {
        return Row::Webhook(BTreeSet::new());
    }
    let all = |value: &Value, field: &str| value.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
    let webhooks = all(&configuration.data, "webhooks");
    let rules: Vec<Value> = webhooks.iter().flat_map(|webhook| all(webhook, "rules")).collect();
    let named = |kind: &&JobKind| rules.iter().any(|rule| names(rule, &kind.kind.newest()));
    Row::Webhook(dialect::served_kinds().filter(named).map(|kind| kind.kind.name).collect())
}

/// Whether a rule is about this kind in particular. Policy engines ask for every group (`*`), and are no sign of anybody.
fn names(rule: &Value, resource: &ApiResource) -> bool {
    let any = |field: &str, is: &dyn Fn(&str) -> bool| {
        rule.get(field).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).any(is)
    };
    let of_kind = |text: &str| match text.split_once('/') {
        None => text == resource.plural || text == "*",
        Some(("*", part)) => part == "*",
        Some((plural, _)) => plural == resource.plural,
    };
    any("apiGroups", &|group| group == resource.group) && any("resources", &of_kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn named(object: Value) -> Vec<&'static str> {
        match webhook_row(serde_json::from_value(object).unwrap()) {
            Row::Webhook(kinds) => kinds.into_iter().collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn webhooks_count_for_the_kinds_that_they_name() {
        let both = &["ImageListPullJob", "ImagePullJob"][..];
        let all = &["ImageListPullJob", "ImagePullJob", "NodeImage"][..];
        let cases: [(&[&str], &[&str], &[&str]); 15] = [
            (&["apps.kruise.io"], &["imagepulljobs"], &["ImagePullJob"]),
            (&["apps.kruise.io"], &["imagelistpulljobs"], &["ImageListPullJob"]),
            (&["apps.kruise.io"], &["clonesets", "imagepulljobs", "imagelistpulljobs"], both),
            (&["apps", "apps.kruise.io"], &["imagepulljobs"], &["ImagePullJob"]),
            (&["apps.kruise.io"], &["imagepulljobs/status"], &["ImagePullJob"]),
            (&["apps.kruise.io"], &["imagepulljobs/*"], &["ImagePullJob"]),
            (&["apps.kruise.io"], &["*"], all),
            (&["apps.kruise.io"], &["*/*"], all),
            (&["apps.kruise.io"], &["nodeimages"], &["NodeImage"]),
            (&["apps.kruise.io"], &["*/scale"], &[]),
            (&["apps.kruise.io"], &["clonesets", "sidecarsets"], &[]),
            // Kyverno's and Gatekeeper's own.
            (&["*"], &["*"], &[]),
            (&["*"], &["*/*"], &[]),
            (&["*"], &["imagepulljobs"], &[]),
            (&[], &[], &[]),
        ];
        for (groups, resources, kinds) in cases {
            let rule = json!({
                "apiGroups": groups, "resources": resources, "apiVersions": ["v1alpha1"], "operations": ["CREATE"],
            });
            let other = json!({ "name": "mpod.kb.io", "rules": [{ "apiGroups": [""], "resources": ["pods"] }] });
            let object =
                json!({ "metadata": { "name": "x" }, "webhooks": [other, { "name": "v.kb.io", "rules": [rule] }] });
            assert_eq!(named(object), kinds, "{groups:?} {resources:?}");
        }
    }

    #[test]
    fn webhooks_of_policies_and_without_rules_name_nothing() {
        let rule = json!({ "apiGroups": ["apps.kruise.io"], "resources": ["imagepulljobs"] });
        let kyverno = json!({ "name": "kyverno-resource-validating-webhook-cfg", "labels": { OF_KYVERNO: "kyverno" } });
        assert_eq!(named(json!({ "metadata": kyverno, "webhooks": [{ "rules": [rule] }] })), [""; 0]);
        assert_eq!(named(json!({ "metadata": { "name": "x" } })), [""; 0]);
        assert_eq!(named(json!({ "metadata": { "name": "x" }, "webhooks": [{ "name": "y" }] })), [""; 0]);
    }

    #[test]
    fn a_lease_that_was_given_back_has_no_holder() {
        let row = |spec: Value| lease_row(serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap());
        let renewed = Some(Arc::from("2026-01-01T00:00:00.000000Z"));
        let held = json!({ "holderIdentity": "m_1", "renewTime": "2026-01-01T00:00:00.000000Z" });
        assert_eq!(row(held), Row::Lease(LeaseRow { holder: Some("m_1".into()), renewed: renewed.clone() }));
        let free = json!({ "holderIdentity": "", "renewTime": "2026-01-01T00:00:00.000000Z" });
        assert_eq!(row(free), Row::Lease(LeaseRow { holder: None, renewed }));
        assert_eq!(row(json!({})), Row::Lease(LeaseRow { holder: None, renewed: None }));
    }

    #[test]
    fn a_lease_is_selected_by_the_name_that_it_is_allowed_by() {
        for sign in dialect::DIALECTS.iter().flat_map(|dialect| dialect.signs) {
            let selected = sign.name().map(|name| format!("metadata.name={name}"));
            assert_eq!(sign.kind().fields, selected.as_deref(), "{sign:?}");
        }
    }

    #[test]
    fn a_hand_over_that_is_not_known_is_refused_with_those_that_are() {
        assert_eq!("whole".parse::<HandOver>().unwrap(), HandOver::Whole);
        assert_eq!("half".parse::<HandOver>().unwrap(), HandOver::Half);
        let refused = "a third".parse::<HandOver>().unwrap_err().to_string();
        assert!(refused.contains("`a third`") && refused.ends_with("it knows: whole, half"), "{refused}");
    }
}
