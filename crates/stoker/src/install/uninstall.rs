//! `stoker uninstall`: whatever `stoker install` made goes, and what was made from it; each stage is waited for before the
//! next begins. What is ours is found by its labels, our own CRDs by their group, so that an installation of another
//! version goes as well. Labels in a namespace count only where Stoker is installed: elsewhere anybody could have set them.
//!
//! Never touches CRDs of others and their objects, except our own finalizers on them, a namespace that was there before,
//! nor images on nodes.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use futures::future::try_join_all;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::api::rbac::v1::Role;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, ObjectList, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::wait::{await_condition, conditions::is_deleted};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use stoker_api::native::{GROUP, NodePreheat};
use stoker_api::{AnyObject, job_kinds, peer_keys, served_kinds};
use stoker_controller::home;

use super::access::{CONTROLLER, SECRETS};
use super::check::is_ours;
use super::kinds::{self, RemovalStage};
use super::manifests::{self, MANAGED_BY};
use crate::cli::{ClusterArgs, UninstallArgs};
use crate::connect::connect;
use crate::delete::{self, Deletion};
use crate::jobs;
use crate::out::outln;

/// An object that is to go.
struct FoundObject {
    stage: RemovalStage,
    resource: ApiResource,
    object: DynamicObject,
}

/// What is there of an installation.
#[derive(Default)]
struct Survey {
    found: Vec<FoundObject>,
    /// Kinds that this API server does not have, and so no objects of them either.
    lacking: Vec<String>,
    /// What would be lost besides, for people.
    held: Vec<String>,
    /// Namespaces in which something of it is.
    homes: BTreeSet<String>,
    /// Those of them that are somebody else's.
    staying: BTreeSet<String>,
}

/// Removes Stoker from the cluster.
pub(crate) async fn run(cluster: &ClusterArgs, args: UninstallArgs) -> anyhow::Result<ExitCode> {
    let client = connect(cluster).await?.client;
    let survey = survey(&client, cluster.namespace.as_deref()).await?;
    if let Some(problem) = not_there(cluster.namespace.as_deref(), &survey.homes, !survey.found.is_empty()) {
        bail!(problem);
    }
    if !survey.held.is_empty() && !args.yes {
        bail!("nothing was deleted, because this would go as well: {}. Give --yes if it may", survey.held.join("; "));
    }
    if !survey.lacking.is_empty() {
        outln!("this API server has no {}: nothing to delete there", survey.lacking.join(", "));
    }
    if survey.found.is_empty() {
        outln!("nothing of Stoker is here");
        return Ok(ExitCode::SUCCESS);
    }
    for stage in RemovalStage::ALL {
        let mut left = Vec::new();
        if stage == RemovalStage::Definitions {
            drop_finalizers(&client).await?;
            for home in &survey.staying {
                left.extend(left_in(&client, home).await?);
            }
        }
        let going = survey.found.iter().filter(|found| found.stage == stage).chain(&left);
        try_join_all(going.map(|found| remove(&client, found, args.timeout.0))).await?;
    }
    outln!("Stoker is gone. Images stay on the nodes, and so does {} with agents' ledgers", data(&survey));
    Ok(ExitCode::SUCCESS)
}

/// Why nothing is deleted for somebody who named a namespace: all that there is would go, and some of it is elsewhere.
fn not_there(named: Option<&str>, homes: &BTreeSet<String>, is_any: bool) -> Option<String> {
    let named = named?;
    if homes.is_empty() && is_any {
        return Some(format!(
            "nothing was deleted, because nothing of Stoker is in the namespace {named}. Leave --namespace out to delete what is left of \
             it in this cluster, its CRDs and all jobs among it"
        ));
    }
    let others: Vec<&str> = homes.iter().map(String::as_str).filter(|home| *home != named).collect();
    (!others.is_empty()).then(|| {
        format!(
            "nothing was deleted, because Stoker is in the namespace {} of this cluster and --namespace says {named}. Leave \
             --namespace out if it may go from there",
            others.join(", ")
        )
    })
}

async fn survey(client: &Client, named: Option<&str>) -> anyhow::Result<Survey> {
    let homes = homes(client, named).await?;
    let mut survey = Survey::default();
    for kinds::InstalledKind { stage, resource } in kinds::all() {
        let api: Api<AnyObject> = Api::all_with(client.clone(), &resource);
        // CRDs of earlier installations have other labels, and are ours all the same.
        let selected = match stage {
            RemovalStage::Definitions => ListParams::default(),
            _ => manifests::installed(),
        };
        let mut objects = match api.list(&selected).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 501) => {
                survey.lacking.push(resource.kind);
                continue;
            }
            objects => plain(objects.map_err(jobs::explain)?),
        };
        objects.retain(|object| is_installed(object, &resource, &homes));
        if stage == RemovalStage::Definitions {
            objects.retain(|object| definition(object).is_some_and(|definition| is_ours(&definition)));
            for object in &objects {
                survey.held.extend(jobs_of(client, object).await?);
            }
        }
        for namespace in objects.iter().filter(|_| stage == RemovalStage::Namespace) {
            survey.held.extend(strangers(client, &namespace.name_any()).await?);
        }
        survey.found.extend(objects.into_iter().map(|object| FoundObject {
            stage,
            resource: resource.clone(),
            object,
        }));
    }
    let going = survey.found.iter().filter(|found| found.stage == RemovalStage::Namespace);
    let going: BTreeSet<String> = going.map(|found| found.object.name_any()).collect();
    let homes: BTreeSet<String> = survey.found.iter().filter_map(|found| home(&found.object)).collect();
    survey.staying = homes.difference(&going).cloned().collect();
    survey.homes = homes.union(&going).cloned().collect();
    Ok(survey)
}

/// The namespaces whose objects may be Stoker's: the one that the controller's ClusterRoleBinding names. Where that is gone, the one of
/// the command line, or those that `stoker install` made.
async fn homes(client: &Client, named: Option<&str>) -> anyhow::Result<BTreeSet<String>> {
    let shown = home::installed_in(client).await.map_err(jobs::explain)?;
    if let Some(home) = shown.or(named.map(str::to_owned)) {
        return Ok(BTreeSet::from([home]));
    }
    let namespaces = Api::<AnyObject>::all_with(client.clone(), &ApiResource::erase::<Namespace>(&()));
    let made = plain(namespaces.list(&manifests::installed()).await.map_err(jobs::explain)?);
    Ok(made.iter().map(|namespace| namespace.name_any()).collect())
}

/// Whether an object with Stoker's labels is of the installation in these namespaces. Only administrators make what is in no namespace.
fn is_installed(object: &DynamicObject, resource: &ApiResource, homes: &BTreeSet<String>) -> bool {
    match resource.kind.as_str() {
        "Namespace" => homes.contains(&object.name_any()),
        _ => home(object).is_none_or(|home| homes.contains(&home)),
    }
}

/// The namespace in which Stoker is, by this object of it. The controller's right to read Secrets is given in namespaces of others.
fn home(object: &DynamicObject) -> Option<String> {
    let role = object.data.get("roleRef");
    let given_elsewhere = role.is_some_and(|role| role["kind"] == "ClusterRole" && role["name"] == SECRETS);
    object.namespace().filter(|_| !given_elsewhere)
}

/// What Stoker made while it ran in a namespace that stays: its Lease, the keys for tickets, and copies of logins that earlier versions made.
async fn left_in(client: &Client, namespace: &str) -> anyhow::Result<Vec<FoundObject>> {
    let lease = ListParams::default().fields(&format!("metadata.name={CONTROLLER}"));
    let copies = ListParams::default().labels(&format!("{}={}", MANAGED_BY.0, MANAGED_BY.1));
    let keys = ListParams::default().fields(&format!("metadata.name={}", peer_keys::NAME));
    let mut left = Vec::new();
    for (resource, selected) in [
        (ApiResource::erase::<Lease>(&()), lease),
        (peer_keys::resource(), keys),
        (ApiResource::erase::<Secret>(&()), copies),
    ] {
        let api: Api<AnyObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        let objects = plain(api.list(&selected).await.map_err(jobs::explain)?);
        let found = |object| FoundObject { stage: RemovalStage::Definitions, resource: resource.clone(), object };
        left.extend(objects.into_iter().map(found));
    }
    Ok(left)
}

/// The objects of a kind; of one that this API server does not have, there are none.
async fn all_of(api: &Api<AnyObject>, selected: &ListParams) -> anyhow::Result<Vec<DynamicObject>> {
    match api.list(selected).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        objects => Ok(plain(objects.map_err(jobs::explain)?)),
    }
}

fn plain(objects: ObjectList<AnyObject>) -> Vec<DynamicObject> {
    objects.items.into_iter().map(|AnyObject(object)| object).collect()
}

/// Where this object is.
fn api_of(client: &Client, resource: &ApiResource, object: &DynamicObject) -> Api<AnyObject> {
    match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}

fn definition(object: &DynamicObject) -> Option<CustomResourceDefinition> {
    object.clone().try_parse().ok()
}

/// Jobs that go with their CRD.
async fn jobs_of(client: &Client, object: &DynamicObject) -> anyhow::Result<Option<String>> {
    let names = definition(object).map(|definition| (definition.spec.group, definition.spec.names.plural));
    let kind = job_kinds().find(|kind| {
        let resource = kind.kind.newest();
        names.as_ref().is_some_and(|(group, plural)| *group == resource.group && *plural == resource.plural)
    });
    let Some(kind) = kind else { return Ok(None) };
    let found = all_of(&jobs::api(client, kind, None).await, &ListParams::default()).await?;
    let names = found.iter().map(|job| format!("{}/{}", job.namespace().unwrap_or_default(), job.name_any()));
    Ok(some_of(kind.kind.name, "", names.collect()))
}

/// What is in our namespace and would be missed by others; not what Kubernetes puts into every one.
async fn strangers(client: &Client, namespace: &str) -> anyhow::Result<Vec<String>> {
    const EVERYWHERE: [(&str, &str); 2] = [("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")];
    let kinds = [
        ApiResource::erase::<Pod>(&()),
        ApiResource::erase::<Secret>(&()),
        ApiResource::erase::<ConfigMap>(&()),
        ApiResource::erase::<Service>(&()),
        ApiResource::erase::<PersistentVolumeClaim>(&()),
        ApiResource::erase::<ServiceAccount>(&()),
        ApiResource::erase::<Deployment>(&()),
        ApiResource::erase::<StatefulSet>(&()),
        ApiResource::erase::<DaemonSet>(&()),
        ApiResource::erase::<Job>(&()),
        ApiResource::erase::<CronJob>(&()),
        ApiResource::erase::<Ingress>(&()),
        ApiResource::erase::<Role>(&()),
    ];
    let others = ListParams::default().labels(&format!("{}!={}", MANAGED_BY.0, MANAGED_BY.1));
    let mut strangers = Vec::new();
    for resource in kinds {
        let api: Api<AnyObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        let objects = all_of(&api, &others).await?;
        let names = objects.iter().map(|object| object.name_any());
        let names = names.filter(|name| !EVERYWHERE.contains(&(resource.kind.as_str(), name))).collect();
        strangers.extend(some_of(&format!("other {}", resource.kind), &format!(" in namespace {namespace}"), names));
    }
    Ok(strangers)
}

/// `3 Preheats (a/b, c/d, …)`.
fn some_of(what: &str, place: &str, names: Vec<String>) -> Option<String> {
    const SHOWN: usize = 3;
    let more = if names.len() > SHOWN { ", …" } else { "" };
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    let many = match names.len() {
        1 => "",
        _ if what.ends_with('s') => "es",
        _ => "s",
    };
    (!names.is_empty()).then(|| format!("{} {what}{many}{place} ({shown}{more})", names.len()))
}

/// Whoever would take our finalizers off is gone by now. This version sets none; another may have.
async fn drop_finalizers(client: &Client) -> anyhow::Result<()> {
    let own = ApiResource::erase::<NodePreheat>(&());
    for resource in served_kinds().map(|kind| kind.kind.newest()).chain([own]) {
        let all: Api<AnyObject> = Api::all_with(client.clone(), &resource);
        for object in all_of(&all, &ListParams::default()).await? {
            let ours = |finalizer: &String| finalizer.split('/').next() == Some(GROUP);
            if !object.finalizers().iter().any(ours) {
                continue;
            }
            let rest: Vec<&String> = object.finalizers().iter().filter(|finalizer| !ours(finalizer)).collect();
            // With the version that was read: others have finalizers in the same list.
            let version = object.resource_version();
            let patch = json!({ "metadata": { "finalizers": rest, "resourceVersion": version } });
            let api = api_of(client, &resource, &object);
            match api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                result => {
                    result.map_err(jobs::explain).with_context(|| {
                        format!("the finalizers of {} {} cannot be removed", resource.kind, object.name_any())
                    })?;
                }
            }
        }
    }
    Ok(())
}

/// Deletes one object with what depends on it, and waits until it is gone.
async fn remove(client: &Client, found: &FoundObject, patience: Duration) -> anyhow::Result<()> {
    let FoundObject { resource, object, .. } = found;
    let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
    let api = api_of(client, resource, object);
    let what = format!("{} {name}", resource.kind);
    let deleted = delete::only(&api, object, DeleteParams::foreground()).await;
    match deleted.map_err(jobs::explain).with_context(|| format!("cannot delete {what}"))? {
        Deletion::Going => {}
        Deletion::Gone => return Ok(()),
        Deletion::Replaced => bail!(
            "somebody has deleted {what} and made another of this name, which stays; look at it, and run `stoker uninstall` \
             again if it may go"
        ),
    }
    let gone = await_condition(api.clone(), &name, is_deleted(&uid));
    match tokio::time::timeout(patience, gone).await {
        Ok(Ok(_)) => {
            outln!("{what} deleted");
            Ok(())
        }
        Ok(Err(problem)) => Err(anyhow!("{what} is being deleted, but cannot be watched: {problem}")),
        Err(_) => {
            let now = api.get_opt(&name).await.map_err(jobs::explain);
            let now = now.with_context(|| format!("{what} was not gone after {} s", patience.as_secs()))?;
            // It went after the last look, or another has its name.
            let Some(now) = now.filter(|now| now.uid().as_ref() == Some(&uid)) else {
                outln!("{what} deleted");
                return Ok(());
            };
            let mut held = held_by(&now.0);
            held.extend(left_of(client, object).await);
            let held = if held.is_empty() { String::new() } else { format!(" ({})", held.join("; ")) };
            bail!(
                "{what} is still there after {} s{held}; look with `kubectl describe`, then run `stoker uninstall` again",
                patience.as_secs()
            )
        }
    }
}

/// What an object that does not go says of it: its finalizers, and what a namespace or a CRD still holds.
fn held_by(object: &DynamicObject) -> Vec<String> {
    let finalizers = object.finalizers().iter().map(|finalizer| format!("held by the finalizer {finalizer}"));
    let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array);
    let telling = conditions.into_iter().flatten().filter(|condition| {
        let kind = condition["type"].as_str().unwrap_or_default();
        condition["status"] == "True" && ["Remaining", "Failure", "Terminating"].iter().any(|end| kind.ends_with(end))
    });
    let telling = telling.filter_map(|condition| condition["message"].as_str().map(str::to_string));
    finalizers.chain(telling).collect()
}

/// Objects of a CRD that do not go, with what holds them.
async fn left_of(client: &Client, object: &DynamicObject) -> Option<String> {
    let spec = definition(object)?.spec;
    let version = &spec.versions.iter().find(|version| version.served)?.name;
    let gvk = GroupVersionKind::gvk(&spec.group, version, &spec.names.kind);
    let resource = ApiResource::from_gvk_with_plural(&gvk, &spec.names.plural);
    let left = Api::<AnyObject>::all_with(client.clone(), &resource).list(&ListParams::default()).await.ok()?;
    let names = left.items.iter().map(|object| {
        let namespace = object.namespace().map(|namespace| namespace + "/").unwrap_or_default();
        format!("{namespace}{} with finalizers {}", object.name_any(), object.finalizers().join(", "))
    });
    some_of("object", " left", names.collect())
}

/// Where agents keep their data, as the DaemonSet says it.
fn data(survey: &Survey) -> String {
    let agents = survey.found.iter().filter(|found| found.resource.kind == "DaemonSet");
    let args =
        agents.filter_map(|found| found.object.data.pointer("/spec/template/spec/containers/0/args")?.as_array());
    let mut data = args.flatten().filter_map(|arg| arg.as_str()?.strip_prefix("--data="));
    data.next().unwrap_or("/var/lib/stoker").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser as _;

    #[test]
    fn who_names_a_namespace_deletes_what_is_there_alone() {
        let homes = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<BTreeSet<_>>();
        let cases = [
            (None, &["a"][..], true, None),
            (Some("a"), &["a"], true, None),
            (Some("b"), &["a"], true, Some("Stoker is in the namespace a")),
            (Some("a"), &["a", "b"], true, Some("Stoker is in the namespace b")),
            // CRDs alone, as `stoker up` has them, or of an installation that is gone but for them.
            (Some("a"), &[], true, Some("nothing of Stoker is in the namespace a")),
            (None, &[], true, None),
            (Some("a"), &[], false, None),
        ];
        for (named, there, is_any, refusal) in cases {
            let said = not_there(named, &homes(there), is_any);
            assert_eq!(said.is_some(), refusal.is_some(), "{named:?} {there:?}: {said:?}");
            assert!(said.unwrap_or_default().contains(refusal.unwrap_or_default()));
        }
    }

    #[test]
    fn stoker_is_not_in_the_namespaces_whose_secrets_it_reads() {
        let line = ["stoker", "install", "--secrets-from", "shop,team-b"];
        let Command::Install(args) = Cli::try_parse_from(line).unwrap().command else { panic!("not an install") };
        let documents = manifests::all("warm", &args).unwrap();
        let objects = documents.into_iter().map(|document| serde_json::from_value(document.object).unwrap());
        let objects: Vec<DynamicObject> = objects.collect();
        assert!(objects.iter().any(|object| object.namespace().as_deref() == Some("shop")));
        assert_eq!(objects.iter().filter_map(home).collect::<BTreeSet<_>>(), BTreeSet::from(["warm".to_string()]));
    }
}
