//! Questions that a client may ask about itself: `kubectl auth can-i`, `auth can-i --list`, `auth whoami`. A create is answered
//! and nothing is stored. This server has one user, who holds the token and may do everything.

use super::{ROW, Row, readable};
use crate::protobuf::{METADATA, Wire, WireField};
use k8s_openapi::api::{authentication, authorization};

const RESOURCE: &[WireField] = &[
    (1, "namespace", Wire::Text),
    (2, "verb", Wire::Text),
    (3, "group", Wire::Text),
    (4, "version", Wire::Text),
    (5, "resource", Wire::Text),
    (6, "subresource", Wire::Text),
    (7, "name", Wire::Text),
];

pub(super) const REVIEWS: &[Row] = &[
    Row {
        group: "authorization.k8s.io",
        kind: "SelfSubjectAccessReview",
        typed: readable::<authorization::v1::SelfSubjectAccessReview>,
        plural: "selfsubjectaccessreviews",
        namespaced: false,
        review: r#"{"allowed": true, "reason": "this server has one user, who may do everything"}"#,
        wire: &[
            (1, "metadata", Wire::Message(METADATA)),
            (
                2,
                "spec",
                Wire::Message(&[
                    (1, "resourceAttributes", Wire::Message(RESOURCE)),
                    (2, "nonResourceAttributes", Wire::Message(&[(1, "path", Wire::Text), (2, "verb", Wire::Text)])),
                ]),
            ),
            (3, "status", Wire::Ignored),
        ],
        ..ROW
    },
    Row {
        group: "authorization.k8s.io",
        kind: "SelfSubjectRulesReview",
        typed: readable::<authorization::v1::SelfSubjectRulesReview>,
        plural: "selfsubjectrulesreviews",
        namespaced: false,
        review: r#"{
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": false
        }"#,
        wire: &[
            (1, "metadata", Wire::Message(METADATA)),
            (2, "spec", Wire::Message(&[(1, "namespace", Wire::Text)])),
            (3, "status", Wire::Ignored),
        ],
        ..ROW
    },
    Row {
        group: "authentication.k8s.io",
        kind: "SelfSubjectReview",
        typed: readable::<authentication::v1::SelfSubjectReview>,
        plural: "selfsubjectreviews",
        namespaced: false,
        review: r#"{"userInfo": {"username": "stoker", "groups": ["system:masters", "system:authenticated"]}}"#,
        wire: &[(1, "metadata", Wire::Message(METADATA)), (2, "status", Wire::Ignored)],
        ..ROW
    },
];
