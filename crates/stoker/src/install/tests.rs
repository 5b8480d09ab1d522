//! Everything that is installed, as the types of Kubernetes read it, and for a person to judge.

use std::collections::BTreeSet;

use clap::Parser as _;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::flowcontrol::v1::FlowSchema;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::serde::Serialize;
use k8s_openapi::serde::de::DeserializeOwned;
use serde_json::{Value, json};
use stoker_runtime::{Otherwise, RuntimeWish};

use super::{access, kinds, manifests};
use crate::cli::{Cli, Command, InstallArgs, PEER_PORT, Switch};

fn install(args: &[&str]) -> InstallArgs {
    let said = ["stoker", "install", "--image", "registry.example/stoker:v1"].iter().chain(args);
    match Cli::try_parse_from(said).unwrap().command {
        Command::Install(args) => *args,
        _ => panic!("not an install"),
    }
}

/// Every object, as somebody who reads the YAML gets it.
fn objects(args: &[&str]) -> Vec<Value> {
    let documents = manifests::all(stoker_api::NAMESPACE, &install(args)).unwrap();
    let text = manifests::yaml(&documents).unwrap();
    let read: Vec<Value> = text.split("---\n").skip(1).map(|part| serde_saphyr::from_str(part).unwrap()).collect();
    assert_eq!(read, documents.into_iter().map(|document| document.object).collect::<Vec<_>>(), "YAML says the same");
    read
}

fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap()
}

/// Nothing is lost on the way through the type: no field is misspelt.
fn is<K: DeserializeOwned + Serialize>(object: &Value) {
    let typed: K = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(serde_json::to_value(&typed).unwrap(), *object);
}

#[test]
fn the_whole_of_it_reads_well() {
    let documents = manifests::all(stoker_api::NAMESPACE, &install(&[])).unwrap();
    // The CRDs are a page of their own: deploy/crds.
    let own: Vec<_> =
        documents.into_iter().filter(|document| kind(&document.object) != "CustomResourceDefinition").collect();
    insta::assert_snapshot!(manifests::yaml(&own).unwrap());
}

#[test]
fn the_login_of_the_image_is_that_of_both() {
    let secrets = |args: &[&str]| -> Vec<Value> {
        let workloads = objects(args).into_iter().filter(|object| matches!(kind(object), "Deployment" | "DaemonSet"));
        workloads.map(|object| object["spec"]["template"]["spec"]["imagePullSecrets"].clone()).collect()
    };
    assert_eq!(secrets(&[]), [Value::Null, Value::Null]);
    let named = json!([{ "name": "regcred" }]);
    assert_eq!(secrets(&["--image-pull-secret", "regcred"]), [named.clone(), named]);
    assert!(Cli::try_parse_from(["stoker", "install", "--image-pull-secret", "Reg Cred"]).is_err());
}

#[test]
fn where_no_image_is_said_it_is_one_that_nobody_can_own() {
    let Command::Install(args) = Cli::try_parse_from(["stoker", "install"]).unwrap().command else { panic!() };
    assert_eq!(args.image.name(), super::NO_IMAGE);
    assert!(super::NO_IMAGE.split('/').next().unwrap().ends_with(".invalid"));
}

#[test]
fn only_the_agent_of_a_machine_without_a_cluster_may_end_in_a_layout() {
    let Command::Agent(args) = Cli::try_parse_from(["stoker", "agent", "--node", "a", "--data", "b"]).unwrap().command
    else {
        panic!()
    };
    assert_eq!((args.settings.wish(), args.settings.otherwise), (RuntimeWish::Auto, Otherwise::Refuse));
}

#[test]
fn in_another_namespace_nothing_is_left_that_names_the_usual_one() {
    let documents = manifests::all("warm", &install(&["--dialects", "kruise"])).unwrap();
    let text = manifests::yaml(&documents).unwrap();
    assert!(!text.contains(stoker_api::NAMESPACE), "{text}");
    assert_eq!(text.matches("--namespace=warm").count(), 2, "the controller and agents are told");
}

#[test]
fn every_object_is_what_it_says_it_is_and_can_be_found_again() {
    let removed: BTreeSet<String> = kinds::all().into_iter().map(|kind| kind.resource.kind).collect();
    let provider =
        ["--credential-provider-config", "/etc/c/config.json", "--credential-provider-bin-dir", "/etc/c/bin"];
    for args in [
        &[][..],
        &["--dialects", "kruise"],
        &["--dialects", "kruise,kruise-rollouts"],
        &["--image-pull-secret", "regcred"],
        &["--secrets-from", "shop"],
        &provider,
    ] {
        for object in objects(args) {
            match kind(&object) {
                "Namespace" => is::<Namespace>(&object),
                "CustomResourceDefinition" => is::<CustomResourceDefinition>(&object),
                "ServiceAccount" => is::<ServiceAccount>(&object),
                "ClusterRole" => is::<ClusterRole>(&object),
                "ClusterRoleBinding" => is::<ClusterRoleBinding>(&object),
                "Role" => is::<Role>(&object),
                "RoleBinding" => is::<RoleBinding>(&object),
                "ValidatingAdmissionPolicy" => is::<ValidatingAdmissionPolicy>(&object),
                "ValidatingAdmissionPolicyBinding" => is::<ValidatingAdmissionPolicyBinding>(&object),
                "FlowSchema" => is::<FlowSchema>(&object),
                "PodDisruptionBudget" => is::<PodDisruptionBudget>(&object),
                "Deployment" => is::<Deployment>(&object),
                "DaemonSet" => is::<DaemonSet>(&object),
                other => panic!("{other}"),
            }
            assert!(removed.contains(kind(&object)), "uninstall knows no {}", kind(&object));
            for (key, value) in [manifests::MANAGED_BY, manifests::PART_OF] {
                assert_eq!(object["metadata"]["labels"][key], value, "{object}");
            }
        }
    }
}

#[test]
fn crds_of_a_dialect_come_with_it_alone() {
    let names = |args: &[&str]| -> Vec<String> {
        let all = objects(args).into_iter().filter(|object| kind(object) == "CustomResourceDefinition");
        all.map(|object| object["metadata"]["name"].as_str().unwrap().to_string()).collect()
    };
    let own = ["preheats.stoker.dev", "nodepreheats.stoker.dev", "preheatpolicies.stoker.dev"];
    assert_eq!(names(&[]), own);
    let with = names(&["--dialects", "kruise"]);
    let kruise = ["imagepulljobs.apps.kruise.io", "imagelistpulljobs.apps.kruise.io", "nodeimages.apps.kruise.io"];
    assert_eq!(with, own.into_iter().chain(kruise).collect::<Vec<_>>());
    let groups = |args: &[&str]| rules(args).into_iter().flat_map(|(_, rule)| rule.api_groups.unwrap_or_default());
    assert!(!groups(&[]).any(|group| group == "apps.kruise.io"), "without it the controller may not see them");
    assert!(groups(&["--dialects", "kruise"]).any(|group| group == "apps.kruise.io"));
    let said = ["stoker", "install", "--dialects", "nobody"];
    let refused = Cli::try_parse_from(said).err().unwrap().to_string();
    assert!(refused.contains("this version serves kruise"), "{refused}");
}

#[test]
fn how_a_dialect_was_handed_over_is_told_to_the_controller_and_decides_what_it_looks_at() {
    let args = |said: &str| -> Vec<String> {
        let deployment =
            objects(&["--dialects", said]).into_iter().find(|object| kind(object) == "Deployment").unwrap();
        let args = &deployment["spec"]["template"]["spec"]["containers"][0]["args"];
        serde_json::from_value(args.clone()).unwrap()
    };
    let told = |said: &str| args(said).iter().any(|arg| arg == "--handed-over=kruise=whole");
    assert_eq!((told("kruise"), told("kruise=whole")), (false, true));
    let leases = |said: &str| {
        let all = rules(&["--dialects", said]).into_iter().filter(|(role, _)| role == "ClusterRole stoker-controller");
        let mut all = all.filter(|(_, rule)| rule.resources == Some(vec!["leases".into()]));
        all.next().map(|(_, rule)| (rule.verbs, rule.resource_names))
    };
    let may = |said: &str, resource: &str| {
        let all = rules(&["--dialects", said]).into_iter().filter(|(role, _)| role == "ClusterRole stoker-controller");
        let own = all.filter(|(_, rule)| rule.resources == Some(vec![resource.into()]));
        own.map(|(_, rule)| rule.verbs.join(" ")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(may("kruise", "nodeimages"), "create delete list patch watch");
    assert_eq!(may("kruise=half", "nodeimages"), "list watch", "OpenKruise's manager writes them");
    assert_eq!(may("kruise=half", "nodeimages/status"), "patch");
    assert_eq!(may("kruise=half", "imagepulljobs"), "");
    assert_eq!(may("kruise=half", "mutatingwebhookconfigurations"), "");
    let verbs = vec!["list".to_string(), "watch".into()];
    assert_eq!(leases("kruise"), Some((verbs, Some(vec!["kruise-manager".into()]))));
    assert_eq!(leases("kruise=whole"), None, "it is not looked at");
    let refused = |words: &[&str]| {
        let said = ["stoker"].iter().chain(words);
        Cli::try_parse_from(said).err().unwrap().to_string()
    };
    let third = refused(&["install", "--dialects", "kruise=third"]);
    let known = "it knows: whole, half; where its original controller has handed nothing over, write kruise alone";
    assert!(third.contains(known), "{third}");
    let unsaid = refused(&["controller", "--handed-over", "kruise"]);
    assert!(unsaid.contains("say how it was handed over: kruise=whole, kruise=half"), "{unsaid}");
}

/// Whoever reads all workloads of a cluster must have been asked to, and writes to none of them.
#[test]
fn rollouts_are_followed_only_where_that_was_asked_for() {
    let rights = |args: &[&str]| -> BTreeSet<String> {
        let all = rules(args).into_iter().filter(|(role, _)| role == "ClusterRole stoker-controller");
        let words = |rule: PolicyRule| {
            let (groups, resources) = (rule.api_groups.unwrap_or_default(), rule.resources.unwrap_or_default());
            format!("{}.{}: {}", resources.join(","), groups.join(","), rule.verbs.join(" "))
        };
        all.map(|(_, rule)| words(rule)).collect()
    };
    let (without, with) = (rights(&["--dialects", "kruise"]), rights(&["--dialects", "kruise,kruise-rollouts"]));
    assert!(without.is_subset(&with));
    let more: Vec<&String> = with.difference(&without).collect();
    insta::assert_snapshot!(more.into_iter().map(|line| format!("{line}\n")).collect::<String>());
    let told = |said: &str| {
        let all = objects(&["--dialects", said]).into_iter().filter(|object| kind(object) == "Deployment");
        all.map(|object| object.to_string()).any(|text| text.contains("\"--serve=kruise-rollouts\""))
    };
    assert_eq!((told("kruise"), told("kruise,kruise-rollouts")), (false, true));
    assert_eq!(super::lacks(&install(&["--dialects", "kruise=whole,kruise-rollouts"]).dialects), None);
    let lacks = super::lacks(&install(&["--dialects", "kruise-rollouts"]).dialects).unwrap();
    assert!(lacks.ends_with("write --dialects kruise,kruise-rollouts"), "{lacks}");
    let lacks = super::lacks(&install(&["--dialects", "kruise=half,kruise-rollouts"]).dialects).unwrap();
    assert!(lacks.ends_with("write --dialects kruise=whole,kruise-rollouts"), "{lacks}");
    let refused = |words: &[&str]| {
        let said = ["stoker"].iter().chain(words);
        Cli::try_parse_from(said).err().unwrap().to_string()
    };
    let whole = refused(&["install", "--dialects", "kruise,kruise-rollouts=whole"]);
    assert!(whole.contains("kruise-rollouts is not handed over by itself"), "{whole}");
    let other = refused(&["controller", "--serve", "kruise"]);
    assert!(other.contains("this version follows kruise-rollouts"), "{other}");
}

/// Every rule, with kind and name of its role.
fn rules(args: &[&str]) -> Vec<(String, PolicyRule)> {
    let roles = objects(args).into_iter().filter(|object| matches!(kind(object), "Role" | "ClusterRole"));
    let rules = roles.flat_map(|role| {
        let name = format!("{} {}", kind(&role), role["metadata"]["name"].as_str().unwrap());
        let rules: Vec<PolicyRule> = serde_json::from_value(role["rules"].clone()).unwrap();
        rules.into_iter().map(move |rule| (name.clone(), rule))
    });
    rules.collect()
}

#[test]
fn nobody_may_more_than_they_do() {
    let may = |role: &str, resource: &str| -> Vec<String> {
        let rules = rules(&["--dialects", "kruise"]);
        let rules = rules.into_iter().filter(|(name, _)| name == role).map(|(_, rule)| rule);
        let rules =
            rules.filter(|rule| rule.resources.as_ref().is_some_and(|all| all.iter().any(|one| one == resource)));
        rules.flat_map(|rule| rule.verbs).collect()
    };
    for (name, rule) in rules(&["--dialects", "kruise"]) {
        let said: Vec<String> =
            [rule.api_groups, rule.resources, Some(rule.verbs)].into_iter().flatten().flatten().collect();
        assert!(!said.iter().any(|word| word.contains('*')), "{name}: {said:?}");
        assert!(!said.iter().any(|word| ["bind", "escalate", "impersonate"].contains(&word.as_str())), "{name}");
        assert!(rule.non_resource_urls.is_none(), "{name}");
    }
    let cases: [(&str, &str, &[&str]); 29] = [
        ("ClusterRole stoker-controller", "preheatpolicies", &["list", "watch"]),
        ("ClusterRole stoker-controller", "namespaces", &["list", "watch"]),
        ("ClusterRole stoker-edit", "preheatpolicies", &[]),
        ("ClusterRole stoker-agent", "secrets", &[]),
        ("Role stoker-agent", "secrets", &[]),
        ("Role stoker-agent", "configmaps", &["get"]),
        ("ClusterRole stoker-agent", "configmaps", &[]),
        ("Role stoker-controller", "configmaps", &["create", "get", "patch"]),
        ("ClusterRole stoker-controller", "configmaps", &[]),
        ("ClusterRole stoker-agent", "nodes", &["get"]),
        ("ClusterRole stoker-agent", "nodepreheats", &["create", "get", "list", "watch"]),
        ("ClusterRole stoker-agent", "nodepreheats/status", &["patch"]),
        ("ClusterRole stoker-agent", "preheats", &[]),
        ("ClusterRole stoker-controller", "secrets", &["get"]),
        ("Role stoker-controller", "secrets", &["delete", "list"]),
        ("ClusterRole stoker-controller", "nodepreheats", &["list", "patch", "watch"]),
        ("ClusterRole stoker-controller", "nodepreheats/status", &[]),
        ("ClusterRole stoker-controller", "nodes", &["list", "watch"]),
        ("ClusterRole stoker-controller", "imagepulljobs/status", &["patch"]),
        ("ClusterRole stoker-controller", "leases", &["list", "watch"]),
        ("ClusterRole stoker-controller", "mutatingwebhookconfigurations", &["list", "watch"]),
        ("ClusterRole stoker-controller", "validatingwebhookconfigurations", &["list", "watch"]),
        ("ClusterRole stoker-view", "preheats", &["get", "list", "watch"]),
        ("ClusterRole stoker-edit", "nodepreheats", &[]),
        // Whoever writes a NodeImage names Secrets of any namespace.
        ("ClusterRole stoker-edit", "nodeimages", &[]),
        ("ClusterRole stoker-view", "nodeimages", &[]),
        ("ClusterRole stoker-nodes-view", "nodeimages", &["get", "list", "watch"]),
        ("ClusterRole stoker-nodes-view", "leases", &["get"]),
        ("ClusterRole stoker-nodes-view", "clusterrolebindings", &["get"]),
    ];
    for (role, resource, verbs) in cases {
        assert_eq!(may(role, resource), verbs, "{role}: {resource}");
    }
}

/// Whoever writes there can make tickets for every image.
#[test]
fn agents_read_the_keys_for_tickets_and_write_none() {
    let maps = |role: &str| -> Vec<(Vec<String>, Option<Vec<String>>)> {
        let all = rules(&[]).into_iter().filter(|(name, _)| name.ends_with(role));
        let maps = all.filter(|(_, rule)| rule.resources == Some(vec!["configmaps".into()]));
        maps.map(|(_, rule)| (rule.verbs, rule.resource_names)).collect()
    };
    let named = Some(vec![stoker_api::peer_keys::NAME.to_string()]);
    assert_eq!(maps("stoker-agent"), [(vec!["get".into()], named.clone())]);
    let own = [(vec!["create".into()], None), (vec!["get".into(), "patch".into()], named)];
    assert_eq!(maps("stoker-controller"), own);
    let bound = objects(&[]).into_iter().filter(|object| kind(object) == "RoleBinding");
    let bound: Vec<Value> = bound.filter(|object| object["roleRef"]["name"] == "stoker-agent").collect();
    let agents = json!([{ "kind": "ServiceAccount", "name": "stoker-agent", "namespace": stoker_api::NAMESPACE }]);
    assert_eq!(bound.iter().map(|binding| &binding["subjects"]).collect::<Vec<_>>(), [&agents]);
}

#[test]
fn nodes_read_from_each_other_unless_somebody_says_otherwise() {
    let args = |said: &[&str], of: &str| -> Vec<String> {
        let workload = objects(said).into_iter().find(|object| kind(object) == of).unwrap();
        serde_json::from_value(workload["spec"]["template"]["spec"]["containers"][0]["args"].clone()).unwrap()
    };
    for (said, peers, port) in
        [(&[][..], "--peers=on", "--peer-port=7447"), (&["--peers", "off"], "--peers=off", "--peer-port=0")]
    {
        assert!(args(said, "Deployment").iter().any(|arg| arg == peers), "{said:?}");
        assert!(args(said, "DaemonSet").iter().any(|arg| arg == port), "{said:?}");
    }
    let Command::Controller(bare) = Cli::try_parse_from(["stoker", "controller"]).unwrap().command else { panic!() };
    assert_eq!(bare.peers, Switch::Off);
}

#[test]
fn secrets_are_read_in_the_namespaces_that_are_given_alone() {
    let args = ["--secrets-from", "shop,team-b"];
    for (role, rule) in rules(&args) {
        let secrets = rule.resources.is_some_and(|resources| resources.contains(&"secrets".to_string()));
        assert!(!secrets || role != "ClusterRole stoker-controller", "{:?}", rule.verbs);
        assert!(!secrets || role != "ClusterRole stoker-controller-secrets" || rule.verbs == ["get"]);
    }
    let bindings = objects(&args).into_iter().filter(|object| object["roleRef"]["name"] == "stoker-controller-secrets");
    let bindings: Vec<RoleBinding> = bindings.map(|object| serde_json::from_value(object).unwrap()).collect();
    let places: Vec<&str> = bindings.iter().map(|binding| binding.metadata.namespace.as_deref().unwrap()).collect();
    assert_eq!(places, ["shop", "team-b"]);
    for binding in &bindings {
        let subject = &binding.subjects.as_ref().unwrap()[0];
        assert_eq!(
            (subject.name.as_str(), subject.namespace.as_deref()),
            ("stoker-controller", Some(stoker_api::NAMESPACE))
        );
        assert_eq!(binding.role_ref.kind, "ClusterRole");
    }
    assert!(!objects(&[]).iter().any(|object| object["metadata"]["name"] == "stoker-controller-secrets"));
    assert!(Cli::try_parse_from(["stoker", "install", "--secrets-from", "Not A Name"]).is_err());
}

/// Whoever makes a job has images pulled on all nodes, which is more than a namespace.
#[test]
fn who_may_edit_a_namespace_makes_jobs_only_where_that_was_asked_for() {
    let aggregated = |args: &[&str], to: &str| {
        let labelled = |object: &Value| object["metadata"]["labels"][access::aggregate_to(to)] == "true";
        let roles = objects(args).into_iter().filter(labelled);
        roles.map(|role| role["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((aggregated(&[], "view"), aggregated(&[], "edit")), (vec!["stoker-view".into()], vec![]));
    assert_eq!(aggregated(&["--aggregate-to-edit"], "edit"), [access::EDITORS]);
}

/// A right without a place in the flow schema would stand in the queue of all service accounts.
#[test]
fn every_request_for_the_lease_has_the_priority_of_leader_elections() {
    let schemas = objects(&[]).into_iter().filter(|object| kind(object) == "FlowSchema");
    let schemas: Vec<FlowSchema> = schemas.map(|object| serde_json::from_value(object).unwrap()).collect();
    let spec = schemas[0].spec.clone().unwrap();
    assert_eq!((schemas.len(), spec.priority_level_configuration.name.as_str()), (1, "leader-election"));
    let rule = &spec.rules.unwrap()[0];
    let account = rule.subjects[0].service_account.clone().unwrap();
    assert_eq!((account.name.as_str(), account.namespace.as_str()), ("stoker-controller", stoker_api::NAMESPACE));
    let leases = &rule.resource_rules.as_ref().unwrap()[0];
    assert_eq!(leases.namespaces, Some(vec![stoker_api::NAMESPACE.to_string()]));
    let role = rules(&[]).into_iter().filter(|(role, _)| role == "Role stoker-controller").map(|(_, rule)| rule);
    let role = role.filter(|rule| rule.resources == Some(leases.resources.clone()));
    let mut may: Vec<String> = role.flat_map(|rule| rule.verbs).collect();
    let mut first = leases.verbs.clone();
    may.sort();
    first.sort();
    assert_eq!(first, may);
}

#[test]
fn what_runs_understands_its_arguments() {
    let more = [
        "--runtime-endpoint",
        "/x/y.sock",
        "--max-disk=90",
        "--max-pulls=5",
        "--bandwidth=20Mi",
        "--upload=10Mi",
        "--credential-provider-config",
        "/c/f",
        "--credential-provider-bin-dir",
        "/c",
    ];
    for said in [&[][..], &more, &["--dialects", "kruise=whole,kruise-rollouts"]] {
        let workloads = objects(said).into_iter().filter(|object| matches!(kind(object), "Deployment" | "DaemonSet"));
        for object in workloads {
            let args = object["spec"]["template"]["spec"]["containers"][0]["args"].as_array().unwrap();
            let args = args.iter().map(|arg| arg.as_str().unwrap().replace("$(NODE_NAME)", "n1"));
            let command = Cli::try_parse_from(["stoker".to_string()].into_iter().chain(args)).unwrap().command;
            match (kind(&object), command) {
                ("Deployment", Command::Controller(args)) => {
                    assert_eq!((args.metrics.unwrap().port(), args.probes.unwrap().port()), (8080, 8081));
                    assert_eq!(probes(&object), [json!({ "port": "probes" }), json!({ "port": "probes" })]);
                }
                ("DaemonSet", Command::Agent(args)) => {
                    assert_eq!(args.node, "n1");
                    assert_ne!(args.metrics, args.probes);
                    assert_eq!(args.peer_port, PEER_PORT);
                    let limits =
                        [args.settings.bandwidth, args.settings.upload].map(|bytes| bytes.map(|bytes| bytes.0));
                    assert_eq!(limits, if said == more { [Some(20 << 20), Some(10 << 20)] } else { [None, None] });
                    // The kubelet is on the node's network, as the agent is.
                    let at = json!({ "host": "127.0.0.1", "port": args.probes.unwrap().port() });
                    assert_eq!(probes(&object), [at.clone(), at]);
                }
                (kind, _) => panic!("{kind} runs another command"),
            }
        }
    }
}

/// Where the kubelet asks whether a workload's pod lives and is ready.
fn probes(workload: &Value) -> [Value; 2] {
    ["livenessProbe", "readinessProbe"].map(|probe| {
        let mut at = workload["spec"]["template"]["spec"]["containers"][0][probe]["httpGet"].clone();
        at.as_object_mut().unwrap().retain(|key, _| key == "host" || key == "port");
        at
    })
}
