//! What RBAC cannot say: an agent writes the NodePreheat of the node that it runs on, as its token proves, and no other;
//! what it is ordered it cannot order itself.
//!
//! Kubernetes 1.30 and newer put the node's name into the tokens of pods.

use serde_json::json;
use stoker_api::native;

use super::access::AGENT;
use super::manifests::{InstallDocument, metadata};

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
         !has(object.spec.upload) && (!has(object.spec.orders) || size(object.spec.orders) == 0) && \
         (!has(object.spec.logins) || size(object.spec.logins) == 0))",
        "an agent must make its NodePreheat with an empty spec: orders are the controller's",
    ),
    (
        "request.operation != 'CREATE' || (has(object.metadata.ownerReferences) && size(object.metadata.ownerReferences) == 1 && \
         object.metadata.ownerReferences[0].apiVersion == 'v1' && object.metadata.ownerReferences[0].kind == 'Node' && \
         object.metadata.ownerReferences[0].name == variables.node && \
         !(has(object.metadata.ownerReferences[0].blockOwnerDeletion) && object.metadata.ownerReferences[0].blockOwnerDeletion) && \
         !(has(object.metadata.ownerReferences[0].controller) && object.metadata.ownerReferences[0].controller) && \
         !has(object.metadata.finalizers))",
        "an agent must make its NodePreheat owned by its Node alone, without blocking the deletion of the Node, and without finalizers",
    ),
    (
        "request.operation == 'CREATE' || (request.subResource == 'status' && has(object.spec) == has(oldObject.spec) && \
         (!has(object.spec) || object.spec == oldObject.spec))",
        "an agent may only change the status of its NodePreheat, never its spec",
    ),
];

/// The policy and what puts it in force.
pub(super) fn all(namespace: &str) -> Vec<InstallDocument> {
    let rules = RULES
        .map(|(expression, message)| json!({ "expression": expression, "message": message, "reason": "Forbidden" }));
    let resources = json!([{
        "apiGroups": [native::GROUP],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["nodepreheats", "nodepreheats/status"],
    }]);
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
        InstallDocument::new("An agent writes for its own node only, and never its own orders.", policy),
        InstallDocument::new("Puts the policy in force.", binding),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube_cel::cel::{Context, Program, Value as Answer};
    use serde_json::Value;

    fn evaluate(context: &Context<'_>, expression: &str) -> Result<Answer, String> {
        Program::compile(expression).unwrap().execute(context).map_err(|problem| problem.to_string())
    }

    /// The messages of the rules that do not hold; one that cannot be computed refuses as well.
    fn refusals(request: Value, object: Value, old: Value) -> Vec<usize> {
        let mut context = Context::default();
        for (name, value) in [("request", request), ("object", object), ("oldObject", old)] {
            context.add_variable(name, value).unwrap();
        }
        let Ok(Answer::String(node)) = evaluate(&context, NODE) else { panic!("the node of the request") };
        context.add_variable("variables", json!({ "node": node.as_str() })).unwrap();
        let broken = |(_, (rule, _)): &(usize, &(&str, &str))| evaluate(&context, rule) != Ok(Answer::Bool(true));
        RULES.iter().enumerate().filter(broken).map(|(index, _)| index).collect()
    }

    fn request(node: Option<&str>, operation: &str, subresource: &str) -> Value {
        let node = node.map(|node| json!({ "authentication.kubernetes.io/node-name": [node] }));
        let user = node.map_or(json!({}), |node| json!({ "extra": node }));
        json!({ "userInfo": user, "operation": operation, "subResource": subresource })
    }

    fn preheat(name: &str, spec: Value) -> Value {
        let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": name, "uid": "u" });
        json!({ "metadata": { "name": name, "ownerReferences": [owner] }, "spec": spec })
    }

    /// A field that is added later must be thought of here.
    #[test]
    fn every_field_of_the_spec_must_be_empty_when_an_agent_makes_it() {
        let crds = stoker_api::crds();
        let (_, crd) = crds.iter().find(|(name, _)| *name == "stoker-nodepreheats").unwrap();
        let crd = serde_json::to_value(crd).unwrap();
        let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
        for field in crd.pointer(schema).and_then(Value::as_object).unwrap().keys() {
            assert!(RULES[2].0.contains(&format!("!has(object.spec.{field})")), "{field}");
        }
    }

    #[test]
    fn an_agent_makes_and_reports_for_its_own_node_alone() {
        let ordered = || preheat("n1", json!({ "epoch": 3, "orders": { "k": { "image": "a" } } }));
        let fresh = |name| preheat(name, json!({ "orders": {} }));
        let altered = |pointer: &str, value: Value| {
            let mut object = fresh("n1");
            *object.pointer_mut(pointer).unwrap() = value;
            object
        };
        let create = || request(Some("n1"), "CREATE", "");
        let mut held = fresh("n1");
        held["metadata"]["finalizers"] = json!(["x/y"]);
        let with = |field: &str, value: Value| {
            let mut object = fresh("n1");
            object["metadata"][field] = value;
            object
        };
        let owner = |field: &str, value: bool| {
            let mut object = fresh("n1");
            object["metadata"]["ownerReferences"][0][field] = value.into();
            object
        };
        let login = json!({ "logins": { "0a": { "key": "k", "box": "b" } } });
        let cases = [
            ("its own", create(), fresh("n1"), Value::Null, vec![]),
            ("its own, without a spec", create(), altered("/spec", json!({})), Value::Null, vec![]),
            ("another's", create(), fresh("n2"), Value::Null, vec![1, 3]),
            ("with orders", create(), ordered(), Value::Null, vec![2]),
            ("with a bandwidth", create(), preheat("n1", json!({ "bandwidth": "1Mi" })), Value::Null, vec![2]),
            ("with an upload", create(), preheat("n1", json!({ "upload": "1Mi" })), Value::Null, vec![2]),
            (
                "of another owner",
                create(),
                altered("/metadata/ownerReferences/0/name", "n2".into()),
                Value::Null,
                vec![3],
            ),
            ("of no Node", create(), altered("/metadata/ownerReferences/0/kind", "Pod".into()), Value::Null, vec![3]),
            ("of nobody", create(), altered("/metadata/ownerReferences", json!([])), Value::Null, vec![3]),
            ("that would never go", create(), held, Value::Null, vec![3]),
            ("with a login", create(), preheat("n1", login), Value::Null, vec![2]),
            (
                "with a label, as some webhooks give everything",
                create(),
                with("labels", json!({ "a": "b" })),
                Value::Null,
                vec![],
            ),
            ("that holds its Node", create(), owner("blockOwnerDeletion", true), Value::Null, vec![3]),
            ("that its Node controls", create(), owner("controller", true), Value::Null, vec![3]),
            ("that says so", create(), owner("blockOwnerDeletion", false), Value::Null, vec![]),
            ("its status", request(Some("n1"), "UPDATE", "status"), ordered(), ordered(), vec![]),
            ("its spec", request(Some("n1"), "UPDATE", ""), fresh("n1"), ordered(), vec![4]),
            ("its metadata", request(Some("n1"), "UPDATE", ""), ordered(), ordered(), vec![4]),
            ("another's status", request(Some("n2"), "UPDATE", "status"), ordered(), ordered(), vec![1]),
            ("from no node", request(None, "CREATE", ""), fresh("n1"), Value::Null, vec![0, 1, 3]),
        ];
        for (what, request, object, old, refused) in cases {
            assert_eq!(refusals(request, object, old), refused, "{what}");
        }
    }
}
