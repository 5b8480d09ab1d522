//! Configurations of admission webhooks. Others look at them to learn who refuses or changes which objects; this server calls no
//! webhook, and whoever makes one is warned of that.

use super::{ROW, Row, readable};
use k8s_openapi::api::admissionregistration::v1;

const WEBHOOK: Row = Row {
    group: "admissionregistration.k8s.io",
    categories: &["api-extensions"],
    namespaced: false,
    generation: true,
    stored_only: true,
    ..ROW
};

pub(super) const WEBHOOKS: &[Row] = &[
    Row {
        kind: "MutatingWebhookConfiguration",
        typed: readable::<v1::MutatingWebhookConfiguration>,
        plural: "mutatingwebhookconfigurations",
        ..WEBHOOK
    },
    Row {
        kind: "ValidatingWebhookConfiguration",
        typed: readable::<v1::ValidatingWebhookConfiguration>,
        plural: "validatingwebhookconfigurations",
        ..WEBHOOK
    },
];
