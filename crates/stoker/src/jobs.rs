//! Jobs as commands name them: `web` is a Preheat, `imagepulljob/base` another project's.

use std::collections::BTreeMap;

use anyhow::{Context as _, anyhow, bail};
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::core::response::{Status, StatusDetails};
use kube::{Client, ResourceExt as _};
use stoker_api::native::PREHEAT_POLICIES;
use stoker_api::view::controls;
use stoker_api::{AnyObject, Dialect, JobKind, MadeOf, MissingJob, job_kinds};
use stoker_controller::snapshot;
use stoker_core::{JobId, Reason};

use crate::connect::Connection;
use crate::errln;

/// A job of any kind.
pub(crate) struct JobObject {
    pub(crate) kind: &'static JobKind,
    pub(crate) object: DynamicObject,
}

impl JobObject {
    pub(crate) fn id(&self) -> JobId {
        self.kind.job_id_of(&self.object)
    }

    /// As a command would name it.
    pub(crate) fn name(&self) -> String {
        spoken(self.kind, &self.object.name_any())
    }
}

/// The name of a Preheat alone, `kind/name` of any other.
pub(crate) fn spoken(kind: &JobKind, name: &str) -> String {
    match kind.kind.name {
        "Preheat" => name.to_string(),
        kind => format!("{}/{name}", kind.to_lowercase()),
    }
}

/// The node whose NodeImage the user named, where it is one. A NodeImage is no job: what people write there is asked about by node.
pub(crate) fn node_image(said: &str) -> Option<&str> {
    let (word, name) = said.split_once('/')?;
    let word = word.to_lowercase();
    matches!(word.as_str(), "nodeimage" | "nodeimages").then_some(name).filter(|name| !name.is_empty())
}

/// Splits what the user said.
pub(crate) fn parse(said: &str) -> anyhow::Result<(&'static JobKind, &str)> {
    let is_named = |kind: &JobKind, word: &str| {
        let name = kind.kind.name;
        name.to_lowercase() == word || kind.kind.newest().plural == word || (word == "ph" && name == "Preheat")
    };
    let (word, name) = said.split_once('/').unwrap_or(("preheat", said));
    let word = word.to_lowercase();
    if let Some(node) = node_image(said) {
        bail!(
            "`{said}` is no job; `kubectl get nodeimage {node} -o yaml` shows it, and `stoker why nodeimage/{node}` says which of its \
             tags wait or have failed"
        );
    }
    if let Some(kind) = job_kinds().find(|kind| said != "ph" && is_named(kind, said)) {
        let kind = kind.kind.name.to_lowercase();
        bail!(
            "`{said}` is a kind and names no job; `stoker get` shows all jobs, and `stoker get {kind}/NAME` one of these"
        );
    }
    let matches = |kind: &&JobKind| is_named(kind, &word);
    let kinds: Vec<String> = job_kinds().map(|kind| kind.kind.name.to_lowercase()).collect();
    let kind = job_kinds().find(matches).with_context(|| {
        format!("`{word}` is not a kind of job; write a Preheat's name, or kind/name with one of: {}", kinds.join(", "))
    })?;
    if name.is_empty() {
        bail!("`{said}` names no job; write a Preheat's name, or kind/name");
    }
    Ok((kind, name))
}

/// The API of the objects of a kind; without a namespace of all.
pub(crate) async fn api(client: &Client, kind: &JobKind, namespace: Option<&str>) -> Api<AnyObject> {
    let resource = served(client, kind).await;
    api_of(client, kind, &resource, namespace)
}

fn api_of(client: &Client, kind: &JobKind, resource: &ApiResource, namespace: Option<&str>) -> Api<AnyObject> {
    match namespace.filter(|_| kind.namespaced) {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}

/// The newest version of a kind that the API server has; the newest of all where it has none.
async fn served(client: &Client, kind: &JobKind) -> ApiResource {
    let versions = (kind.kind.versions)();
    if versions.len() > 1 {
        for resource in versions {
            let there = client.list_api_group_resources(&resource.api_version).await;
            if there.is_ok_and(|there| there.resources.iter().any(|there| there.name == resource.plural)) {
                return resource;
            }
        }
    }
    kind.kind.newest()
}

/// The job that the user named, or what there is instead.
pub(crate) async fn find(connection: &Connection, said: &str) -> anyhow::Result<JobObject> {
    let (kind, name) = parse(said)?;
    let Connection { client, namespace } = connection;
    let jobs = api(client, kind, Some(namespace)).await;
    let found = match jobs.get_opt(name).await {
        // A kind that is not there is no object that is not there: the list tells them apart.
        Err(problem) if is_missing(&problem) => None,
        found => found.map_err(explain)?,
    };
    if let Some(AnyObject(mut object)) = found {
        complete(kind, &mut object);
        return Ok(JobObject { kind, object });
    }
    let others = jobs.list(&ListParams::default()).await.map_err(|problem| match is_missing(&problem) {
        true => not_installed(kind),
        false => explain(problem),
    })?;
    let names: Vec<String> = others.items.iter().map(|object| spoken(kind, &object.name_any())).take(10).collect();
    let there = match names.is_empty() {
        true => "there are none".to_string(),
        false => format!("there are: {}", names.join(", ")),
    };
    for other in job_kinds().filter(|other| *other != kind && !said.contains('/')) {
        if let Ok(Some(_)) = api(client, other, Some(namespace)).await.get_opt(name).await {
            bail!("no Preheat {name} in namespace {namespace}; did you mean {}?", spoken(other, name));
        }
    }
    let kind_name = kind.kind.name;
    match kind.namespaced {
        true => bail!("no {kind_name} {name} in namespace {namespace}; {there} (`stoker get -A` shows all namespaces)"),
        false => bail!("no {kind_name} {name}; {there}"),
    }
}

/// All jobs of a namespace or of all, by kind and name. Of other projects' kinds those that the user may see. An object that only shows on a node
/// what another one wants is none of them.
pub(crate) async fn list(client: &Client, namespace: Option<&str>) -> anyhow::Result<Vec<JobObject>> {
    let mut jobs = Vec::new();
    for kind in job_kinds() {
        let objects = match api(client, kind, namespace).await.list(&ListParams::default()).await {
            Err(problem) if snapshot::has_no_jobs(kind, &problem) => continue,
            Err(problem) if is_missing(&problem) => return Err(not_installed(kind)),
            // As where a conversion webhook is away. The others can be shown.
            Err(problem) if matches!(&problem, kube::Error::Api(status) if status.code >= 500) => {
                tell_unheard(&[(kind.kind.name, problem)]);
                continue;
            }
            objects => objects.map_err(explain)?,
        };
        let own = objects.items.into_iter().filter(|AnyObject(object)| kind.part_of(object).is_none());
        jobs.extend(own.map(|AnyObject(mut object)| {
            complete(kind, &mut object);
            JobObject { kind, object }
        }));
    }
    Ok(jobs)
}

/// The jobs that this one is made of, by name. None where it is made of none.
pub(crate) async fn parts(client: &Client, job: &JobObject) -> anyhow::Result<Option<Vec<JobObject>>> {
    let Some(MadeOf { kind, .. }) = job.kind.made_of else { return Ok(None) };
    let objects = api(client, kind, job.object.namespace().as_deref()).await.list(&ListParams::default()).await;
    let objects = objects.map_err(explain)?.items.into_iter().map(|AnyObject(object)| object);
    let own = objects.filter(|object| controls(&job.object, object)).map(|mut object| {
        complete(kind, &mut object);
        JobObject { kind, object }
    });
    Ok(Some(own.collect()))
}

/// Of the jobs that this one is made of and that are not among these: how a command would name each, and what it is waiting for.
pub(crate) fn missing(job: &JobObject, parts: &[JobObject]) -> Vec<(String, String)> {
    let Some(MadeOf { kind, missing }) = job.kind.made_of else { return Vec::new() };
    let parts: Vec<&DynamicObject> = parts.iter().map(|part| &part.object).collect();
    let missing = missing(&job.object, &parts).into_iter().map(|MissingJob { name, image }| {
        let (list, owner) = (job.kind.kind.name.to_lowercase(), job.object.name_any());
        let why = format!(
            "the {} for {image} is not there; where the API server refuses it, `kubectl describe {list} {owner}` says why",
            kind.kind.name
        );
        (spoken(kind, &name), why)
    });
    missing.collect()
}

/// Says of which kinds nothing is known.
pub(crate) fn tell_unheard(unheard: &[(&'static str, kube::Error)]) {
    for (kind, problem) in unheard {
        let so = match *kind == PREHEAT_POLICIES.name {
            true => "so what they do not allow is not told here",
            false => "so what was ordered for them stays as it is, and nothing new is",
        };
        errln!("{kind} objects cannot be listed, {so}: {problem}");
    }
}

/// Why nothing is done for the jobs of a kind, where they are left to their original controller; of these dialects that was seen.
pub(crate) fn left_alone(kind: &JobKind, seen: &BTreeMap<&'static str, String>) -> Option<String> {
    let (dialect, seen) = (Dialect::named(kind.dialect)?, seen.get(kind.dialect)?);
    Some(format!("{}: {}", Reason::ForeignController, dialect.left_alone(seen)))
}

/// Says which of these jobs are left to their original controllers, once for each of these.
pub(crate) async fn tell_left_alone(client: &Client, jobs: &[JobObject]) {
    let foreign: BTreeMap<&str, &JobKind> =
        jobs.iter().filter(|job| job.kind.is_foreign()).map(|job| (job.kind.dialect, job.kind)).collect();
    if foreign.is_empty() {
        return;
    }
    let seen = snapshot::left_alone(client).await;
    foreign.values().filter_map(|kind| left_alone(kind, &seen)).for_each(|why| errln!("{why}"));
}

/// Items of a list come without their type; printed alone they need it.
fn complete(kind: &JobKind, object: &mut DynamicObject) {
    let resource = kind.kind.resource_of(object);
    object.types = Some(kube::core::TypeMeta { api_version: resource.api_version, kind: resource.kind });
}

fn is_missing(problem: &kube::Error) -> bool {
    matches!(problem, kube::Error::Api(status) if status.code == 404)
}

fn not_installed(kind: &JobKind) -> anyhow::Error {
    anyhow!("this API server does not know the kind {}; `stoker install --help` says how to bring it", kind.kind.name)
}

/// What is forbidden; of nodes, which are in nobody's namespace, also how it is allowed.
pub(crate) fn forbidden(status: &Status) -> String {
    let of_nodes = |details: &StatusDetails| matches!(details.kind.as_str(), "nodes" | "nodepreheats");
    match status.details.as_ref().is_some_and(of_nodes) {
        true => format!(
            "{}. The ClusterRole stoker-nodes-view allows it; an administrator gives it: `kubectl create clusterrolebinding \
             NAME --clusterrole=stoker-nodes-view --user=USER`",
            status.message
        ),
        false => status.message.clone(),
    }
}

/// An API error as a sentence for somebody who did not write the client.
pub(crate) fn explain(problem: kube::Error) -> anyhow::Error {
    match problem {
        kube::Error::Api(status) => match status.code {
            401 => anyhow!("the API server refused the login of the kubeconfig (401); is it the newest one?"),
            404 if status.message.contains("page not found") => {
                anyhow!("this API server does not know Stoker's kinds; `stoker install --help` says how to bring them")
            }
            403 => anyhow!("the API server says that this user may not do that: {}", forbidden(&status)),
            _ => anyhow!("{}", status.message),
        },
        kube::Error::Service(source) => {
            anyhow!("the API server cannot be reached; is it running? ({})", chain(source.as_ref()))
        }
        kube::Error::HyperError(source) => anyhow!("the connection to the API server broke ({})", chain(&source)),
        problem => anyhow::Error::new(problem),
    }
}

fn chain(problem: &dyn std::error::Error) -> String {
    let mut text = problem.to_string();
    let mut source = problem.source();
    while let Some(inner) = source {
        let next = inner.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        source = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_jobs() {
        for (said, kind, name) in [
            ("web", "Preheat", "web"),
            ("preheat/web", "Preheat", "web"),
            ("ph/web", "Preheat", "web"),
            ("ImagePullJob/base", "ImagePullJob", "base"),
            ("imagepulljobs/base", "ImagePullJob", "base"),
        ] {
            let (found, parsed) = parse(said).unwrap();
            assert_eq!((found.kind.name, parsed), (kind, name), "{said}");
        }
        let plural = parse("imagepulljobs").unwrap_err().to_string();
        assert!(plural.contains("`stoker get imagepulljob/NAME`"), "{plural}");
        assert!(parse("pod/x").is_err());
        assert!(parse("preheat/").is_err());
    }

    #[test]
    fn jobs_that_are_left_alone_say_why_and_how_they_are_handed_over() {
        let seen = [("kruise", "the Lease kruise-system/kruise-manager is renewed by manager-abc".to_string())].into();
        let (kind, _) = parse("imagepulljob/base").unwrap();
        insta::assert_snapshot!(left_alone(kind, &seen).unwrap());
        let (preheat, _) = parse("web").unwrap();
        assert_eq!(left_alone(preheat, &seen), None);
    }

    /// No kind of jobs is without namespaces yet.
    #[tokio::test]
    async fn jobs_without_a_namespace_are_found_without_one() {
        fn resource() -> ApiResource {
            ApiResource {
                group: "example.dev".into(),
                version: "v1".into(),
                api_version: "example.dev/v1".into(),
                kind: "Everywhere".into(),
                plural: "everywheres".into(),
            }
        }
        static EVERYWHERE: JobKind = JobKind {
            kind: stoker_api::view::Kind {
                name: "Everywhere",
                versions: || vec![resource()],
                keep: stoker_api::view::Row::whole,
                fields: None,
            },
            dialect: "test",
            namespaced: false,
            verbs: &[],
            made_of: None,
            roots: stoker_api::RootsOf::Objects,
            in_half: true,
            derive: |_, _| Ok(Vec::new()),
            project: |_, _, _, _| Default::default(),
            summary: |_| Default::default(),
        };
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("nobody is asked"))
        });
        let client = Client::new(service, "default");
        let (preheat, _) = parse("web").unwrap();
        for (kind, namespace, url) in [
            (&EVERYWHERE, Some("shop"), "/apis/example.dev/v1/everywheres"),
            (&EVERYWHERE, None, "/apis/example.dev/v1/everywheres"),
            (preheat, Some("shop"), "/apis/example.dev/v1/namespaces/shop/everywheres"),
            (preheat, None, "/apis/example.dev/v1/everywheres"),
        ] {
            assert_eq!(api_of(&client, kind, &resource(), namespace).resource_url(), url);
        }
        let job = JobObject { kind: &EVERYWHERE, object: DynamicObject::new("x", &resource()) };
        assert_eq!((job.id().to_string(), job.name()), ("Everywhere.example.dev//x".into(), "everywhere/x".into()));
    }

    #[test]
    fn who_may_not_see_nodes_is_told_how_that_is_allowed() {
        let refused = |kind: &str| {
            let status = serde_json::json!({"code": 403, "message": "no", "details": {"kind": kind}});
            explain(kube::Error::Api(serde_json::from_value(status).unwrap())).to_string()
        };
        for kind in ["nodes", "nodepreheats"] {
            assert!(refused(kind).contains("--clusterrole=stoker-nodes-view"), "{kind}: {}", refused(kind));
        }
        assert!(refused("preheats").ends_with("may not do that: no"), "{}", refused("preheats"));
    }
}
