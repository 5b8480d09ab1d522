//! What RBAC cannot say: an agent writes the NodePreheat of the node that it runs on, as its token proves, and no other;
//! what it is ordered it cannot order itself.
//!
//! Kubernetes 1.30 and newer put the node's name into the tokens of pods.

use serde_json::json;
use stoker_api::native;

use super::access::AGENT;
use super::manifests::{Document, metadata};

const NAME: &str = "stoker-agent-own-node";
const V1: &str = "admissionregistration.k8s.io/v1";

/// The node of whoever asks; empty where the token is of no pod.
const NODE: &str = "has(request.userInfo.extra) && 'authentication.kubernetes.io/node-name' in request.userInfo.extra ? \
                    request.userInfo.extra['authentication.kubernetes.io/node-name'][0] : ''";

/// Expressions that must hold, each with what is said where it does not.
pub(super) const RULES: [(&str, &str); 5] = [
    (
        "variables.node != ''",
        "the token of this agent does not say on which node it runs; agents must run as pods, on Kubernetes 1.30 or newer",
    ),
    ("object.metadata.name == variables.node", "an agent may only write the NodePreheat of the node that it runs on"),
    (
        "request.operation != 'CREATE' || !has(object.spec) || (!has(object.spec.epoch) && !has(object.spec.bandwidth) && \
         (!has(object.spec.orders) || size(object.spec.orders) == 0))",
        "an agent must make its NodePreheat with an empty spec: orders are the controller's",
    ),
    (
        "request.operation != 'CREATE' || (has(object.metadata.ownerReferences) && size(object.metadata.ownerReferences) == 1 && \
         object.metadata.ownerReferences[0].apiVersion == 'v1' && object.metadata.ownerReferences[0].kind == 'Node' && \
         object.metadata.ownerReferences[0].name == variables.node && !has(object.metadata.finalizers))",
        "an agent must make its NodePreheat owned by its Node alone and without finalizers, so that it goes with the Node",
    ),
    (
        "request.operation == 'CREATE' || (request.subResource == 'status' && has(object.spec) == has(oldObject.spec) && \
         (!has(object.spec) || object.spec == oldObject.spec))",
        "an agent may only change the status of its NodePreheat, never its spec",
    ),
];

/// The policy and what puts it in force.
pub(super) fn all(namespace: &str) -> Vec<Document> {
    let rules = RULES
        .map(|(expression, message)| json!({ "expression": expression, "message": message, "reason": "Forbidden" }));
    let resources = [native::GROUP].map(|group| {
        json!({
            "apiGroups": [group],
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["nodepreheats", "nodepreheats/status"],
        })
    });
    let policy = json!({
        "apiVersion": V1,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata(NAME, None, "agent"),
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": resources },
            "matchConditions": [{
                "name": "asked-by-an-agent",
                "expression": format!("request.userInfo.username == 'system:serviceaccount:{namespace}:{AGENT}'"),
            }],
            "variables": [{ "name": "node", "expression": NODE }],
            "validations": rules,
        },
    });
    let binding = json!({
        "apiVersion": V1,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata(NAME, None, "agent"),
        "spec": { "policyName": NAME, "validationActions": ["Deny"] },
    });
    vec![
        Document::new("An agent writes for its own node only, and never its own orders.", policy),
        Document::new("Puts the policy in force.", binding),
    ]
}
