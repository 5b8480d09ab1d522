//! What a PreheatPolicy does not allow is refused when it is applied, as far as an API server can tell: with the name of the policy and the
//! field. The controller holds such jobs in any case, so nothing that cannot be computed here lets anything through.
//!
//! One admission policy for all PreheatPolicies, which are its parameters. Nobody runs a webhook for it.

use serde_json::{Value, json};
use stoker_api::native;

use super::ServedDialect;
use super::access::CONTROLLER;
use super::manifests::{InstallDocument, metadata};

const NAME: &str = "stoker-preheat-policies";
const V1: &str = "admissionregistration.k8s.io/v1";
/// The dialects whose jobs are looked at beside our own, each with its group and its kinds that are in namespaces: of another object no API server
/// knows whom it concerns.
const OTHERS: [(&str, &str, &[&str]); 2] = [
    ("kruise", "apps.kruise.io", &["imagepulljobs", "imagelistpulljobs"]),
    ("ofen", "ofen.cybozu.io", &["imageprefetches"]),
];

/// What the rules look at, each with its name. Later ones look at earlier ones.
const VARIABLES: [(&str, &str); 8] = [
    ("labels", "has(namespaceObject.metadata.labels) ? namespaceObject.metadata.labels : {}"),
    (
        "concerned",
        "!has(params.spec.namespaces) || ((!has(params.spec.namespaces.matchLabels) || params.spec.namespaces.matchLabels.all(key, \
         key in variables.labels && variables.labels[key] == params.spec.namespaces.matchLabels[key])) && \
         (!has(params.spec.namespaces.matchExpressions) || params.spec.namespaces.matchExpressions.all(one, \
         one.operator == 'In' ? (one.key in variables.labels && variables.labels[one.key] in one.values) : \
         one.operator == 'NotIn' ? !(one.key in variables.labels && variables.labels[one.key] in one.values) : \
         one.operator == 'Exists' ? one.key in variables.labels : !(one.key in variables.labels))))",
    ),
    (
        "written",
        "object.kind == 'Preheat' ? object.spec.images.map(one, one.image) : \
         object.kind == 'ImagePullJob' ? [object.spec.image] : object.spec.images",
    ),
    // Without digest and tag, with the registry in small letters, and with what runtimes add where none is given.
    (
        "images",
        "variables.written.map(text, text.split('@')[0])\
         .map(text, text.lastIndexOf(':') > text.lastIndexOf('/') ? text.substring(0, text.lastIndexOf(':')) : text)\
         .map(text, text.contains('/') && (text.split('/')[0].contains('.') || text.split('/')[0].contains(':') || \
         text.split('/')[0] == 'localhost') ? text : 'docker.io/' + text)\
         .map(text, text.substring(0, text.indexOf('/')).lowerAscii() + text.substring(text.indexOf('/')))\
         .map(text, text.startsWith('index.docker.io/') ? text.substring(6) : text)\
         .map(text, text.startsWith('docker.io/') && text.lastIndexOf('/') == 9 ? 'docker.io/library/' + text.substring(10) : text)",
    ),
    // As regular expressions. Patterns have no character that means something in one but these two.
    (
        "patterns",
        "has(params.spec.images) ? params.spec.images.map(text, '^' + text.replace('.', '[.]').replace('**', '#')\
         .replace('*', '[^/]*').replace('#', '.*') + '$') : ['^']",
    ),
    ("strange", "variables.images.filter(image, !variables.patterns.exists(pattern, image.matches(pattern)))"),
    (
        "timeout",
        "has(object.spec.pull) && has(object.spec.pull.timeout) ? duration(object.spec.pull.timeout) : \
         has(object.spec.pullPolicy) && has(object.spec.pullPolicy.timeoutSeconds) ? \
         duration(string(object.spec.pullPolicy.timeoutSeconds) + 's') : duration('600s')",
    ),
    ("policy", "'PreheatPolicy ' + params.metadata.name + ' does not allow this job'"),
];

/// Expressions that must hold where the policy concerns the namespace, each with what is said where one does not.
const RULES: [(&str, &str); 5] = [
    ("size(variables.strange) == 0", "variables.policy + ' (spec.images): no pattern matches ' + variables.strange[0]"),
    (
        // Of an ImageListPullJob each image is a job of its own.
        "!has(params.spec.max) || !has(params.spec.max.images) || (object.kind in ['Preheat', 'ImagePrefetch'] ? size(object.spec.images) : 1) <= \
         params.spec.max.images",
        "variables.policy + ' (spec.max.images): a job may have ' + string(params.spec.max.images)",
    ),
    (
        "!has(params.spec.max) || !has(params.spec.max.timeout) || variables.timeout <= duration(params.spec.max.timeout)",
        "variables.policy + ' (spec.max.timeout): an attempt may take ' + params.spec.max.timeout",
    ),
    (
        "!has(params.spec.max) || !has(params.spec.max.bandwidth) || !has(object.spec.pace) || !has(object.spec.pace.bandwidth) || \
         quantity(object.spec.pace.bandwidth).compareTo(quantity(params.spec.max.bandwidth)) <= 0",
        "variables.policy + ' (spec.max.bandwidth): a job may ask each node for ' + params.spec.max.bandwidth + ' a second'",
    ),
    (
        // Which nodes there are, and which labels they have, nobody knows here. So names count only where nothing is left out of them.
        "!has(params.spec.max) || !has(params.spec.max.nodes) || \
         (object.kind == 'ImagePrefetch' ? (has(object.spec.replicas) ? object.spec.replicas : 0) : \
         object.kind != 'Preheat' || !has(object.spec.nodes) ? 0 : \
         has(object.spec.nodes.replicas) ? object.spec.nodes.replicas : has(object.spec.nodes.names) && \
         !has(object.spec.nodes.selector) && !has(object.spec.nodes.podSelector) && !has(params.spec.nodes) ? \
         size(object.spec.nodes.names) : 0) <= params.spec.max.nodes",
        "variables.policy + ' (spec.max.nodes): a job may have ' + string(params.spec.max.nodes)",
    ),
];

/// Requests that are looked at. Whoever edits anything but the spec of a job, or suspends it, is not kept from that by a policy that came
/// later. What the controller makes of the objects of people it holds by itself.
fn conditions(namespace: &str) -> Value {
    json!([
        { "name": "not-by-stoker", "expression": format!("request.userInfo.username != 'system:serviceaccount:{namespace}:{CONTROLLER}'") },
        { "name": "wants-something-else", "expression": "request.operation == 'CREATE' || object.spec != oldObject.spec" },
        { "name": "not-suspended", "expression": "!(has(object.spec.suspend) && object.spec.suspend)" },
    ])
}

/// The admission policy and what puts it in force.
pub(super) fn all(namespace: &str, dialects: &[ServedDialect]) -> Vec<InstallDocument> {
    let jobs = |group: &str, plurals: &[&str]| {
        json!({
            "apiGroups": [group],
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE"],
            "resources": plurals,
        })
    };
    let own = jobs(native::GROUP, &["preheats"]);
    let others = OTHERS.iter().filter(|(name, ..)| dialects.iter().any(|dialect| dialect.name == *name));
    let others = others.map(|(_, group, plurals)| jobs(group, plurals));
    let resources: Vec<Value> = [own].into_iter().chain(others).collect();
    let variables = VARIABLES.map(|(name, expression)| json!({ "name": name, "expression": expression }));
    let rules = RULES.map(|(expression, message)| {
        let expression = format!("!variables.concerned || {expression}");
        json!({ "expression": expression, "messageExpression": message, "reason": "Forbidden" })
    });
    let policy = json!({
        "apiVersion": V1,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata(NAME, None, "controller"),
        "spec": {
            "failurePolicy": "Ignore",
            "paramKind": { "apiVersion": format!("{}/{}", native::GROUP, native::VERSION), "kind": "PreheatPolicy" },
            "matchConstraints": { "resourceRules": resources },
            "matchConditions": conditions(namespace),
            "variables": variables,
            "validations": rules,
        },
    });
    let binding = json!({
        "apiVersion": V1,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata(NAME, None, "controller"),
        "spec": {
            "policyName": NAME,
            "validationActions": ["Deny"],
            "paramRef": { "selector": {}, "parameterNotFoundAction": "Allow" },
        },
    });
    vec![
        InstallDocument::new(
            "What a PreheatPolicy does not allow is refused when it is applied. It is for people, who hear at once what is wrong: where it \
             cannot tell, the job is made, and the controller holds it.",
            policy,
        ),
        InstallDocument::new("Puts it in force for every PreheatPolicy.", binding),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    use kube_cel::KubeCelExt as _;
    use kube_cel::cel::{Context, Program, Value as Answer};

    /// A context with the functions that API servers have.
    fn context(object: &Value, policy: &Value, labels: &Value) -> Context<'static> {
        let mut context = Context::default();
        context.register_all();
        let params = json!({ "metadata": { "name": "team-a" }, "spec": policy });
        let namespace = json!({ "metadata": { "name": "shop", "labels": labels } });
        for (name, value) in [("object", object), ("params", &params), ("namespaceObject", &namespace)] {
            context.add_variable(name.to_string(), value.clone()).unwrap();
        }
        let mut variables: HashMap<String, Answer> = HashMap::new();
        for (name, expression) in VARIABLES {
            context.add_variable_from_value("variables", variables.clone());
            let value = Program::compile(expression).unwrap().execute(&context);
            variables.insert(name.into(), value.unwrap_or_else(|problem| panic!("{name}: {problem}")));
        }
        context.add_variable_from_value("variables", variables);
        context
    }

    /// What is said about an object under a policy; nothing where it is let through.
    fn refusals(object: Value, policy: Value, labels: Value) -> Vec<String> {
        let context = context(&object, &policy, &labels);
        let evaluate = |expression: &str| Program::compile(expression).unwrap().execute(&context).unwrap();
        let broken =
            RULES.iter().filter(|(rule, _)| evaluate(&format!("!variables.concerned || {rule}")) != Answer::Bool(true));
        let said = broken.map(|(_, message)| match evaluate(message) {
            Answer::String(text) => {
                text.strip_prefix("PreheatPolicy team-a does not allow this job ").unwrap().to_string()
            }
            other => panic!("{other:?}"),
        });
        said.collect()
    }

    fn preheat(spec: Value) -> Value {
        json!({ "kind": "Preheat", "metadata": { "name": "web", "namespace": "shop" }, "spec": spec })
    }

    /// API servers compare images as the controller does.
    #[test]
    fn images_are_those_of_the_plan() {
        let patterns = [
            "docker.io/library/*",
            "docker.io/**",
            "ghcr.io/acme/*",
            "ghcr.io/**/web",
            "**/web",
            "reg.test:5000/*",
            "*.test/web",
            "localhost/a.b",
            "**",
        ];
        let digest = format!("sha256:{}", "0".repeat(64));
        let images = [
            "nginx",
            "nginx:1",
            "index.docker.io/nginx:1",
            "team/web",
            "docker.io/team/web@DIGEST",
            "GHCR.io/acme/web:v1@DIGEST",
            "ghcr.io/acme/team/web",
            "ghcrxio/acme/web",
            "reg.test:5000/web",
            "reg.test:5000/web:2",
            "a.test/web",
            "localhost/a.b:3",
            "localhost/axb",
            "localhost:5000",
            "[::1]:5000/web",
        ];
        for image in images.map(|image| image.replace("DIGEST", &digest)) {
            let reference: stoker_core::Reference = image.parse().unwrap();
            for pattern in patterns {
                let takes = stoker_core::ImagePattern::new(pattern).takes(&reference);
                let said = refusals(
                    preheat(json!({ "images": [{ "image": image }] })),
                    json!({ "images": [pattern] }),
                    json!({}),
                );
                let name = format!("{}/{}", reference.registry(), reference.repository());
                let wanted = if takes { vec![] } else { vec![format!("(spec.images): no pattern matches {name}")] };
                assert_eq!(said, wanted, "{image} {pattern}");
            }
        }
    }

    #[test]
    fn ceilings() {
        let images = json!([{ "image": "a" }, { "image": "b" }]);
        let with = |field: &str, value: Value| {
            let mut spec = json!({ "images": images.clone() });
            spec[field] = value;
            preheat(spec)
        };
        let plain = || preheat(json!({ "images": images.clone() }));
        let names = || json!({ "names": ["n1", "n2", "n3"] });
        let kruise = |kind: &str, spec: Value| json!({ "kind": kind, "metadata": { "name": "j" }, "spec": spec });
        let prefetch = |mut spec: Value| {
            spec["images"] = json!(["a", "b"]);
            kruise("ImagePrefetch", spec)
        };
        for (object, max, said) in [
            (plain(), json!({ "images": 2, "nodes": 0, "jobs": 0 }), ""),
            (plain(), json!({ "images": 1 }), "(spec.max.images): a job may have 1"),
            (plain(), json!({ "timeout": "10m" }), ""),
            (plain(), json!({ "timeout": "9m" }), "(spec.max.timeout): an attempt may take 9m"),
            (with("pull", json!({ "timeout": "9m" })), json!({ "timeout": "9m" }), ""),
            (
                with("pull", json!({ "timeout": "1h" })),
                json!({ "timeout": "30m" }),
                "(spec.max.timeout): an attempt may take 30m",
            ),
            (plain(), json!({ "bandwidth": "1" }), ""),
            (with("pace", json!({ "bandwidth": "1Mi" })), json!({ "bandwidth": "1024Ki" }), ""),
            (
                with("pace", json!({ "bandwidth": "2Mi" })),
                json!({ "bandwidth": "2M" }),
                "(spec.max.bandwidth): a job may ask each node for 2M a second",
            ),
            (with("nodes", names()), json!({ "nodes": 3 }), ""),
            (with("nodes", names()), json!({ "nodes": 2 }), "(spec.max.nodes): a job may have 2"),
            (with("nodes", json!({ "names": ["n1", "n2"], "selector": {} })), json!({ "nodes": 1 }), ""),
            (with("nodes", json!({ "replicas": 2 })), json!({ "nodes": 1 }), "(spec.max.nodes): a job may have 1"),
            (kruise("ImagePullJob", json!({ "image": "a" })), json!({ "images": 1, "timeout": "10m" }), ""),
            (
                kruise("ImagePullJob", json!({ "image": "a", "pullPolicy": { "timeoutSeconds": 60 } })),
                json!({ "timeout": "59s" }),
                "(spec.max.timeout): an attempt may take 59s",
            ),
            (kruise("ImageListPullJob", json!({ "images": ["a", "b"] })), json!({ "images": 1 }), ""),
            (prefetch(json!({ "allNodes": true })), json!({ "images": 2, "nodes": 1 }), ""),
            (prefetch(json!({ "allNodes": true })), json!({ "images": 1 }), "(spec.max.images): a job may have 1"),
            (prefetch(json!({ "replicas": 2 })), json!({ "nodes": 1 }), "(spec.max.nodes): a job may have 1"),
        ] {
            let refused = refusals(object.clone(), json!({ "max": max }), json!({}));
            assert_eq!(refused.join(", "), said, "{object} {max}");
        }
        let elsewhere = json!({ "nodes": { "matchLabels": {} }, "max": { "nodes": 2 } });
        assert!(
            refusals(with("nodes", names()), elsewhere, json!({})).is_empty(),
            "nobody knows how many of these it may use"
        );
    }

    #[test]
    fn kinds_of_other_projects_are_held_to_the_images() {
        let policy = || json!({ "images": ["ghcr.io/acme/**"] });
        for (kind, field, value) in [
            ("ImagePullJob", "image", json!("nginx")),
            ("ImageListPullJob", "images", json!(["ghcr.io/acme/web:1", "nginx"])),
            ("ImagePrefetch", "images", json!(["ghcr.io/acme/web:1", "nginx"])),
        ] {
            let object = json!({ "kind": kind, "spec": { field: value } });
            assert_eq!(
                refusals(object, policy(), json!({})),
                ["(spec.images): no pattern matches docker.io/library/nginx"]
            );
        }
    }

    #[test]
    fn a_policy_concerns_namespaces_by_their_labels() {
        let expression = |operator: &str, values: Value| {
            let mut one = json!({ "key": "team", "operator": operator });
            if values != json!([]) {
                one["values"] = values;
            }
            json!({ "matchExpressions": [one] })
        };
        for (selector, concerned, others) in [
            (json!({}), true, true),
            (json!({ "matchLabels": { "team": "a" } }), true, false),
            (json!({ "matchLabels": { "team": "b" } }), false, false),
            (expression("In", json!(["a", "b"])), true, false),
            (expression("NotIn", json!(["a", "b"])), false, true),
            (expression("Exists", json!([])), true, false),
            (expression("DoesNotExist", json!([])), false, true),
        ] {
            let policy = json!({ "namespaces": selector, "images": ["ghcr.io/*"] });
            let refused = |labels: Value| {
                !refusals(preheat(json!({ "images": [{ "image": "nginx" }] })), policy.clone(), labels).is_empty()
            };
            assert_eq!((refused(json!({ "team": "a" })), refused(json!({}))), (concerned, others), "{policy}");
        }
    }

    #[test]
    fn nobody_is_kept_from_editing_anything_else() {
        let all = |user: &str, operation: &str, object: Value, old: Value| {
            let mut context = Context::default();
            context.register_all();
            let request = json!({ "userInfo": { "username": user }, "operation": operation });
            for (name, value) in [("request", request), ("object", object), ("oldObject", old)] {
                context.add_variable(name.to_string(), value).unwrap();
            }
            let conditions = conditions("stoker-system");
            let expressions =
                conditions.as_array().unwrap().iter().map(|one| one["expression"].as_str().unwrap().to_string());
            expressions
                .map(|one| Program::compile(&one).unwrap().execute(&context).unwrap())
                .all(|one| one == Answer::Bool(true))
        };
        let spec = |images: u8| json!({ "metadata": {}, "spec": { "images": images } });
        assert!(all("ann", "CREATE", spec(1), Value::Null));
        assert!(all("ann", "UPDATE", spec(2), spec(1)));
        let mut finalized = spec(1);
        finalized["metadata"]["finalizers"] = json!(["x/y"]);
        assert!(!all("ann", "UPDATE", finalized, spec(1)));
        let mut suspended = spec(2);
        suspended["spec"]["suspend"] = true.into();
        assert!(!all("ann", "UPDATE", suspended, spec(1)));
        assert!(!all("system:serviceaccount:stoker-system:stoker-controller", "CREATE", spec(1), Value::Null));
    }
}
