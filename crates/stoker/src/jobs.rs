//! Jobs as commands name them: `web` is a Preheat, `imagepulljob/base` another project's.

use anyhow::{Context as _, anyhow, bail};
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::response::{Status, StatusDetails};
use kube::{Client, ResourceExt as _};
use stoker_api::{DIALECTS, Dialect};
use stoker_controller::snapshot;
use stoker_core::JobId;

use crate::connect::Connection;

/// A job of some dialect.
pub(crate) struct Job {
    pub(crate) dialect: &'static Dialect,
    pub(crate) object: DynamicObject,
}

impl Job {
    pub(crate) fn id(&self) -> JobId {
        self.dialect.job_id_of(&self.object)
    }

    /// As a command would name it.
    pub(crate) fn name(&self) -> String {
        spoken(self.dialect, &self.object.name_any())
    }
}

/// The name of a Preheat alone, `kind/name` of any other.
pub(crate) fn spoken(dialect: &Dialect, name: &str) -> String {
    match dialect.kind {
        "Preheat" => name.to_string(),
        kind => format!("{}/{name}", kind.to_lowercase()),
    }
}

/// Splits what the user said.
pub(crate) fn parse(said: &str) -> anyhow::Result<(&'static Dialect, &str)> {
    let (kind, name) = said.split_once('/').unwrap_or(("preheat", said));
    let kind = kind.to_lowercase();
    let matches = |dialect: &&Dialect| {
        let resource = (dialect.resource)();
        dialect.kind.to_lowercase() == kind || resource.plural == kind || (kind == "ph" && dialect.kind == "Preheat")
    };
    let kinds: Vec<String> = DIALECTS.iter().map(|dialect| dialect.kind.to_lowercase()).collect();
    let dialect = DIALECTS.iter().find(matches).with_context(|| {
        format!("`{kind}` is not a kind of job; write a Preheat's name, or kind/name with one of: {}", kinds.join(", "))
    })?;
    if name.is_empty() {
        bail!("`{said}` names no job; write a Preheat's name, or kind/name");
    }
    Ok((dialect, name))
}

/// The API of a dialect's objects; without a namespace of all.
pub(crate) fn api(client: &Client, dialect: &Dialect, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = (dialect.resource)();
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// The job that the user named, or what there is instead.
pub(crate) async fn find(connection: &Connection, said: &str) -> anyhow::Result<Job> {
    let (dialect, name) = parse(said)?;
    let Connection { client, namespace } = connection;
    let jobs = api(client, dialect, Some(namespace));
    let found = match jobs.get_opt(name).await {
        // A kind that is not there is no object that is not there: the list tells them apart.
        Err(problem) if is_missing(&problem) => None,
        found => found.map_err(explain)?,
    };
    if let Some(mut object) = found {
        complete(dialect, &mut object);
        return Ok(Job { dialect, object });
    }
    let others = jobs.list(&ListParams::default()).await.map_err(|problem| match is_missing(&problem) {
        true => not_installed(dialect),
        false => explain(problem),
    })?;
    let names: Vec<String> = others.items.iter().map(|object| spoken(dialect, &object.name_any())).take(10).collect();
    let there = match names.is_empty() {
        true => "there are none".to_string(),
        false => format!("there are: {}", names.join(", ")),
    };
    bail!("no {} {name} in namespace {namespace}; {there} (`stoker get -A` shows all namespaces)", dialect.kind)
}

/// All jobs of a namespace or of all, by dialect and name. Of other projects' kinds those that the user may see.
pub(crate) async fn list(client: &Client, namespace: Option<&str>) -> anyhow::Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for dialect in DIALECTS {
        let objects = match api(client, dialect, namespace).list(&ListParams::default()).await {
            Err(problem) if snapshot::has_no_jobs(dialect, &problem) => continue,
            Err(problem) if is_missing(&problem) => return Err(not_installed(dialect)),
            objects => objects.map_err(explain)?,
        };
        jobs.extend(objects.items.into_iter().map(|mut object| {
            complete(dialect, &mut object);
            Job { dialect, object }
        }));
    }
    Ok(jobs)
}

/// Items of a list come without their type; printed alone they need it.
fn complete(dialect: &Dialect, object: &mut DynamicObject) {
    let resource = (dialect.resource)();
    object.types = Some(kube::core::TypeMeta { api_version: resource.api_version, kind: resource.kind });
}

fn is_missing(problem: &kube::Error) -> bool {
    matches!(problem, kube::Error::Api(status) if status.code == 404)
}

fn not_installed(dialect: &Dialect) -> anyhow::Error {
    anyhow!("this API server does not know the kind {}; `stoker install --help` says how to bring it", dialect.kind)
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
            let (dialect, parsed) = parse(said).unwrap();
            assert_eq!((dialect.kind, parsed), (kind, name), "{said}");
        }
        assert!(parse("pod/x").is_err());
        assert!(parse("preheat/").is_err());
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
