//! Who may do what: service accounts of controller and agents with the rights for exactly the requests that they make,
//! and roles for people. A rule here without such a request is a mistake, and so is a wildcard.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::ApiResource;
use serde_json::{Value, json};
use stoker_api::{DIALECTS, Dialect, HandOver, Sign, native, peer_keys};
use stoker_controller::home;

use super::ServedDialect;
use super::manifests::{InstallDocument, merged, metadata};
use crate::cli::InstallArgs;

/// The service account, and the name of everything else of the controller.
pub(super) const CONTROLLER: &str = home::CONTROLLER;
/// The same of the agents.
pub(super) const AGENT: &str = "stoker-agent";

const RBAC: &str = "rbac.authorization.k8s.io";
const RBAC_V1: &str = "rbac.authorization.k8s.io/v1";
const NODE_PREHEATS: &str = "nodepreheats";
const CONFIG_MAPS: &str = "configmaps";
const LEASES: (&str, &str) = ("coordination.k8s.io", "leases");
/// What the controller does with its Lease once it is there.
const OF_ITS_LEASE: [&str; 4] = ["get", "list", "update", "watch"];

/// The role with which the controller reads Secrets in some namespaces only.
pub(super) const SECRETS: &str = "stoker-controller-secrets";
/// The role with which people make jobs.
pub(super) const EDITORS: &str = "stoker-edit";

/// Accounts, roles and bindings. `definitions` are the CRDs that are installed with them.
pub(super) fn all(
    namespace: &str,
    args: &InstallArgs,
    definitions: &[CustomResourceDefinition],
) -> Vec<InstallDocument> {
    let mut documents = controller(namespace, &args.secrets_from, &args.dialects);
    documents.extend(agent(namespace));
    documents.extend(people(args.aggregate_to_edit, definitions));
    documents
}

/// Secrets are read in the namespaces of `secrets_from`, or in all where it is empty. What else is read and written is what the kinds
/// of our own and of these dialects say.
fn controller(namespace: &str, secrets_from: &[String], dialects: &[ServedDialect]) -> Vec<InstallDocument> {
    // By name, as jobs give them; nobody may list them.
    let secrets = rule("", &["secrets"], &["get"]);
    let mut rules = vec![
        rule("", &["nodes"], &["list", "watch"]),
        rule("", &["events"], &["create"]),
        rule(native::GROUP, &[NODE_PREHEATS], &["list", "patch", "watch"]),
    ];
    let served =
        |dialect: &&Dialect| dialect.name == native::DIALECT || dialects.iter().any(|one| one.name == dialect.name);
    let served: Vec<&Dialect> = DIALECTS.iter().filter(served).collect();
    for kind in served.iter().flat_map(|dialect| dialect.kinds.iter().chain(dialect.nodes)) {
        let ApiResource { group, plural, .. } = kind.kind.newest();
        let half = dialects.iter().any(|one| one.name == kind.dialect && one.hand_over == HandOver::Half);
        if half && !kind.in_half {
            continue;
        }
        // There the original controller writes everything but the status.
        let writes = if half { &[] } else { kind.verbs };
        let mut verbs = [&["list", "watch"], writes].concat();
        verbs.sort_unstable();
        rules.push(rule(&group, &[&plural], &verbs));
        rules.push(rule(&group, &[&format!("{plural}/status")], &["patch"]));
    }
    // Nothing is written to workloads.
    let workloads = served.iter().flat_map(|dialect| dialect.workloads).map(|kind| &kind.kind);
    let asked = served.iter().flat_map(|dialect| dialect.asks).copied();
    for kind in asked.chain(workloads).collect::<BTreeSet<_>>() {
        let ApiResource { group, plural, .. } = kind.newest();
        rules.push(rule(&group, &[&plural], &["list", "watch"]));
    }
    for sign in served.iter().flat_map(|dialect| signs(dialect, dialects)) {
        let ApiResource { group, plural, .. } = sign.kind().newest();
        let rule = rule(&group, &[&plural], &["list", "watch"]);
        rules.push(sign.name().map_or(rule.clone(), |name| named(rule, name)));
    }
    if secrets_from.is_empty() {
        rules.push(secrets.clone());
    }
    let own = vec![
        rule(LEASES.0, &[LEASES.1], &["create"]),
        named(rule(LEASES.0, &[LEASES.1], &OF_ITS_LEASE), CONTROLLER),
        // Kubernetes has no permission to create an object of one name.
        rule("", &[CONFIG_MAPS], &["create"]),
        named(rule("", &[CONFIG_MAPS], &["get", "patch"]), peer_keys::NAME),
        // For one release: copies of logins that earlier versions made here are deleted.
        rule("", &["secrets"], &["delete", "list"]),
    ];
    let mut documents = vec![
        account(namespace, CONTROLLER, "controller"),
        InstallDocument::new(
            "The controller sees nodes and jobs, reads the Secrets that jobs name, writes orders, and says in jobs what came of them.",
            cluster_role(CONTROLLER, "controller", rules),
        ),
        cluster_binding(namespace, CONTROLLER, "controller"),
        InstallDocument::new(
            "In its own namespace it holds the Lease that only one controller has, publishes the key by which nodes check who may \
             read from them, and deletes copies of logins that earlier versions made.",
            role(namespace, CONTROLLER, "controller", own),
        ),
        binding(namespace, CONTROLLER, "controller"),
        InstallDocument::new(
            "On a busy API server renewals of that Lease go the way of Kubernetes' own leader elections, instead of queueing with \
             the requests of all service accounts. It allows nothing that the roles above do not allow.",
            flow_schema(namespace),
        ),
    ];
    if !secrets_from.is_empty() {
        documents.push(InstallDocument::new(
            "Secrets with logins of registries, in the namespaces of --secrets-from alone.",
            cluster_role(SECRETS, "controller", vec![secrets]),
        ));
    }
    documents.extend(secrets_from.iter().map(|place| {
        let mut binding = bound("Role", metadata(SECRETS, Some(place), "controller"), namespace, CONTROLLER);
        binding.object["roleRef"] = json!({ "apiGroup": RBAC, "kind": "ClusterRole", "name": SECRETS });
        binding
    }));
    documents
}

/// The signs of a dialect that count for how it was handed over.
fn signs(dialect: &Dialect, dialects: &[ServedDialect]) -> impl Iterator<Item = &'static Sign> + use<> {
    let hand_over = dialects.iter().find(|one| one.name == dialect.name).map(|one| one.hand_over).unwrap_or_default();
    dialect.signs.iter().filter(move |sign| sign.counts(hand_over))
}

/// Requests for the Lease are few and small, and a leader whose renewals stand in a queue loses the lease when the API server has
/// most to do. Every cluster has the priority level, and Kubernetes' own schemas for it have this precedence.
fn flow_schema(namespace: &str) -> Value {
    let verbs: Vec<&str> = ["create"].into_iter().chain(OF_ITS_LEASE).collect();
    let leases = json!({ "apiGroups": [LEASES.0], "resources": [LEASES.1], "namespaces": [namespace], "verbs": verbs });
    let account = json!({ "name": CONTROLLER, "namespace": namespace });
    json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "FlowSchema",
        "metadata": metadata("stoker-leader-election", None, "controller"),
        "spec": {
            "priorityLevelConfiguration": { "name": "leader-election" },
            "matchingPrecedence": 200,
            "distinguisherMethod": { "type": "ByUser" },
            "rules": [{
                "subjects": [{ "kind": "ServiceAccount", "serviceAccount": account }],
                "resourceRules": [leases],
            }],
        },
    })
}

fn agent(namespace: &str) -> Vec<InstallDocument> {
    let rules = vec![
        rule("", &["nodes"], &["get"]),
        rule(native::GROUP, &[NODE_PREHEATS], &["create", "get", "list", "watch"]),
        rule(native::GROUP, &[&format!("{NODE_PREHEATS}/status")], &["patch"]),
    ];
    vec![
        account(namespace, AGENT, "agent"),
        InstallDocument::new(
            "An agent makes the NodePreheat of its node and says there what came of its orders. That it is the one of its own \
             node, and no other, is what the ValidatingAdmissionPolicy below sees to.",
            cluster_role(AGENT, "agent", rules),
        ),
        cluster_binding(namespace, AGENT, "agent"),
        InstallDocument::new(
            "An agent reads no Secrets. In Stoker's namespace it gets the public keys by which it checks whether another node may read \
             from its own.",
            role(namespace, AGENT, "agent", vec![named(rule("", &[CONFIG_MAPS], &["get"]), peer_keys::NAME)]),
        ),
        binding(namespace, AGENT, "agent"),
    ]
}

/// Roles for jobs, one that Kubernetes adds to its own `view` and one that it adds to `edit` where that is asked for, and a role
/// for the nodes' side, which is nobody's namespace.
fn people(aggregate_to_edit: bool, definitions: &[CustomResourceDefinition]) -> Vec<InstallDocument> {
    const READ: &[&str] = &["get", "list", "watch"];
    const EDIT: &[&str] = &["get", "list", "watch", "create", "delete", "deletecollection", "patch", "update"];
    let rules = |verbs| jobs(definitions).map(|(group, plural)| rule(group, &[plural], verbs)).collect::<Vec<_>>();
    let aggregated = |name: &str, to: &str, rules| {
        let mut role = cluster_role(name, "access", rules);
        let labels = role["metadata"]["labels"].take();
        role["metadata"]["labels"] = merged(labels, json!({ aggregate_to(to): "true" }));
        role
    };
    let edit = if aggregate_to_edit {
        InstallDocument::new("Who may edit a namespace makes jobs in it.", aggregated(EDITORS, "edit", rules(EDIT)))
    } else {
        InstallDocument::new(
            "Makes jobs. Bound to nobody: bind it in a namespace to people who may have images pulled on all nodes.",
            cluster_role(EDITORS, "access", rules(EDIT)),
        )
    };
    vec![
        InstallDocument::new("Who may view a namespace sees its jobs.", aggregated("stoker-view", "view", rules(READ))),
        edit,
        InstallDocument::new(
            "What `stoker get` and `stoker why` also look at. Bound to nobody: bind it to people who may see all nodes.",
            cluster_role(
                "stoker-nodes-view",
                "access",
                [rule("", &["nodes"], READ)]
                    .into_iter()
                    .chain(of_nodes(definitions).map(|(group, plural)| rule(group, &[plural], READ)))
                    // The binding names the namespace of the Lease, whose annotation says which kinds the controller leaves to
                    // their original controllers.
                    .chain([
                        named(rule(RBAC, &["clusterrolebindings"], &["get"]), CONTROLLER),
                        named(rule(LEASES.0, &[LEASES.1], &["get"]), CONTROLLER),
                    ])
                    .collect(),
            ),
        ),
    ]
}

/// The label by which Kubernetes adds a role to its own role `to`.
pub(super) fn aggregate_to(to: &str) -> String {
    format!("{RBAC}/aggregate-to-{to}")
}

/// Group and plural of every kind that is a job: these are in namespaces.
fn jobs(definitions: &[CustomResourceDefinition]) -> impl Iterator<Item = (&str, &str)> {
    of_scope(definitions, "Namespaced")
}

/// Group and plural of every kind that has an object for each node. Whoever writes a NodeImage names Secrets of any namespace.
fn of_nodes(definitions: &[CustomResourceDefinition]) -> impl Iterator<Item = (&str, &str)> {
    of_scope(definitions, "Cluster")
}

fn of_scope<'a>(
    definitions: &'a [CustomResourceDefinition],
    scope: &'static str,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let such = definitions.iter().filter(move |definition| definition.spec.scope == scope);
    such.map(|definition| (definition.spec.group.as_str(), definition.spec.names.plural.as_str()))
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": resources, "verbs": verbs })
}

/// The same for one object. Lists and watches of it must select it by name.
fn named(rule: Value, name: &str) -> Value {
    merged(rule, json!({ "resourceNames": [name] }))
}

fn account(namespace: &str, name: &str, component: &str) -> InstallDocument {
    InstallDocument::new(
        "Who it is for the API server.",
        json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata(name, Some(namespace), component),
            // Only pods that ask for its token have it.
            "automountServiceAccountToken": false,
        }),
    )
}

fn cluster_role(name: &str, component: &str, rules: Vec<Value>) -> Value {
    json!({ "apiVersion": RBAC_V1, "kind": "ClusterRole", "metadata": metadata(name, None, component), "rules": rules })
}

fn role(namespace: &str, name: &str, component: &str, rules: Vec<Value>) -> Value {
    let metadata = metadata(name, Some(namespace), component);
    json!({ "apiVersion": RBAC_V1, "kind": "Role", "metadata": metadata, "rules": rules })
}

fn cluster_binding(namespace: &str, name: &str, component: &str) -> InstallDocument {
    bound("ClusterRole", metadata(name, None, component), namespace, name)
}

fn binding(namespace: &str, name: &str, component: &str) -> InstallDocument {
    bound("Role", metadata(name, Some(namespace), component), namespace, name)
}

fn bound(kind: &str, metadata: Value, namespace: &str, name: &str) -> InstallDocument {
    InstallDocument::new(
        "Gives it to the account.",
        json!({
            "apiVersion": RBAC_V1,
            "kind": format!("{kind}Binding"),
            "metadata": metadata,
            "roleRef": { "apiGroup": RBAC, "kind": kind, "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": namespace }],
        }),
    )
}
