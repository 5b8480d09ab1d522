//! What a cluster must be before anything is installed on it: new enough, and without CRDs of others under the names of
//! ours. Only reads; one that cannot be reached, or whose CRDs may not be read, is told apart from one that is not fit.

use std::future::Future;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::api::Api;
use kube::{Client, ResourceExt as _};

use super::manifests::{self, MANAGED_BY};
use crate::jobs;

/// The oldest that binds a pod's node into its token and has admission policies without a feature gate.
const OLDEST: (u32, u32) = (1, 30);
/// The same for people.
pub(super) const NEEDS: &str = "Kubernetes 1.30 or newer";
/// No answer after this long is as good as none.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why nothing is printed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    /// Nobody answers, or not as we need it.
    #[error("the cluster cannot be checked: {0}; mend that, or give --offline")]
    Unreachable(String),
    /// The version of the cluster.
    #[error(
        "this cluster is {0}, Stoker needs {NEEDS}: before, an agent's token does not say on which node it runs, and one node \
         could write for another"
    )]
    TooOld(String),
    /// CRDs of others, by name.
    #[error(
        "this cluster has CRDs of somebody else: {}. They and their objects are left alone: leave --dialects out, or remove the \
         other project first and then its CRDs",
        .0.join(", ")
    )]
    Foreign(Vec<String>),
    /// The namespace of another installation.
    #[error(
        "Stoker is in the namespace {0} of this cluster already; one is enough. Leave --namespace out or give that one, or \
         `stoker uninstall` first"
    )]
    Elsewhere(String),
}

/// Looks at the version, at CRDs of the same names as ours, and for an installation in another namespace.
pub(super) async fn cluster(
    client: &Client,
    namespace: &str,
    ours: &[CustomResourceDefinition],
) -> Result<(), Problem> {
    let version = answer(client.apiserver_version()).await?;
    if version_of(&version).is_some_and(|version| version < OLDEST) {
        return Err(Problem::TooOld(format!("Kubernetes {}", version.git_version)));
    }
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut foreign = Vec::new();
    for definition in ours {
        let there = answer(api.get_opt(&definition.name_any())).await?;
        foreign.extend(there.filter(|there| !is_ours(there)).map(|there| there.name_any()));
    }
    if !foreign.is_empty() {
        return Err(Problem::Foreign(foreign));
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let homes = answer(namespaces.list(&manifests::installed())).await?;
    match homes.items.iter().map(|home| home.name_any()).find(|home| home != namespace) {
        Some(other) => Err(Problem::Elsewhere(other)),
        None => Ok(()),
    }
}

/// Whether a CRD is Stoker's: of its own group, or labelled so.
pub(super) fn is_ours(definition: &CustomResourceDefinition) -> bool {
    let own = definition.spec.group == stoker_api::native::GROUP;
    own || definition.labels().get(MANAGED_BY.0).is_some_and(|manager| manager == MANAGED_BY.1)
}

/// Vendors put signs behind the number.
fn version_of(info: &Info) -> Option<(u32, u32)> {
    let number = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok();
    Some((number(&info.major)?, number(&info.minor)?))
}

async fn answer<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Problem> {
    match tokio::time::timeout(PATIENCE, request).await {
        Ok(answer) => answer.map_err(|problem| Problem::Unreachable(jobs::explain(problem).to_string())),
        Err(_) => Err(Problem::Unreachable(format!("no answer after {} s", PATIENCE.as_secs()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_vendors_are_understood() {
        let of = |major: &str, minor: &str| {
            version_of(&Info { major: major.into(), minor: minor.into(), ..Info::default() })
        };
        assert_eq!(of("1", "34"), Some((1, 34)));
        assert_eq!(of("1", "29+"), Some((1, 29)));
        assert_eq!(of("", ""), None);
        for (version, too_old) in [((1, 9), true), ((1, 29), true), ((1, 30), false), ((2, 0), false)] {
            assert_eq!(version < OLDEST, too_old, "{version:?}");
        }
    }
}
