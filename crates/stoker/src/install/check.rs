//! What a cluster must be before anything is installed on it: new enough, and without CRDs of others under the names of
//! ours; and whether the namespace is somebody else's. Only reads; one that cannot be reached, or whose CRDs may not be
//! read, is told apart from one that is not fit.

use std::future::Future;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::api::{Api, ApiResource};
use kube::{Client, ResourceExt as _};
use serde_json::Value;
use stoker_api::AnyObject;
use stoker_controller::home;

use super::access::{EDITORS, aggregate_to};
use super::manifests::{self, MANAGED_BY, PART_OF, POD_SECURITY};
use crate::cli::Switch;
use crate::jobs;

/// The oldest that binds a pod's node into its token and has admission policies without a feature gate.
const OLDEST: (u32, u32) = (1, 30);
/// The same for people.
pub(super) const NEEDS: &str = "Kubernetes 1.30 or newer";
/// No answer after this long is as good as none.
const PATIENCE: Duration = Duration::from_secs(10);
/// Annotations of those who make or install CRDs: one that has such a one is theirs, whatever its labels say. Others put
/// theirs over ours, or ours were put over theirs.
const OTHER_MAKERS: [&str; 2] = ["controller-gen.kubebuilder.io/version", "meta.helm.sh/release-name"];

/// Why nothing is printed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClusterProblem {
    /// Nobody answers, or not as we need it.
    #[error(
        "the cluster cannot be checked: {0}; mend that, or give --offline if no namespace or CRD of somebody else is in the way"
    )]
    Unreachable(String),
    /// The version of the cluster.
    #[error(
        "this cluster is {0}, Stoker needs {NEEDS}: before, an agent's token does not say on which node it runs, and one node \
         could write for another"
    )]
    TooOld(String),
    /// CRDs of others, by name.
    #[error(
        "this cluster has CRDs of somebody else: {}. They and their objects are left alone: leave --dialects out; or remove the \
         other project first and then its CRDs; or have it hand these kinds over, as docs/migrate-from-openkruise.md and docs/migrate-from-ofen.md tell, and give \
         --dialects NAME=whole, or NAME=half where it keeps the jobs and Stoker only pulls. Both keep its CRDs",
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

/// What was seen of a cluster that is fit.
#[derive(Debug, Default)]
pub(super) struct ClusterFacts {
    /// What people should know, a sentence each.
    pub(super) notes: Vec<String>,
    /// Whether the namespace is there and somebody else's: it is left as it is.
    pub(super) foreign_home: bool,
    /// Whether Kubernetes' role `edit` includes making jobs.
    pub(super) edit_has_jobs: bool,
    /// CRDs of somebody else that stay as they are, by name.
    pub(super) kept: Vec<String>,
    /// Whether the controller that is there tells nodes to read images from each other; none where there is no controller.
    pub(super) peers: Option<Switch>,
}

/// The CRDs of an installation.
#[derive(Debug, Default)]
pub(super) struct Definitions {
    /// Where one of somebody else is there under such a name, nothing is installed.
    pub(super) ours: Vec<CustomResourceDefinition>,
    /// Those of dialects that were handed over: where one of somebody else is there, it stays.
    pub(super) theirs: Vec<CustomResourceDefinition>,
}

/// Looks at the version, at CRDs of the same names as ours, for an installation in another namespace, and at this one.
pub(super) async fn cluster(
    client: &Client,
    namespace: &str,
    definitions: &Definitions,
) -> Result<ClusterFacts, ClusterProblem> {
    let mut seen = ClusterFacts::default();
    let version = answer(client.apiserver_version()).await?;
    match version_of(&version) {
        Some(known) if known < OLDEST => {
            return Err(ClusterProblem::TooOld(format!("Kubernetes {}", version.git_version)));
        }
        Some(_) => {}
        None => seen.notes.push(format!(
            "the version of this cluster cannot be read (major `{}`, minor `{}`, `{}`); it must be {NEEDS}",
            version.major, version.minor, version.git_version
        )),
    }
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let foreign = of_others(&api, &definitions.ours).await?;
    if !foreign.is_empty() {
        return Err(ClusterProblem::Foreign(foreign));
    }
    seen.kept = of_others(&api, &definitions.theirs).await?;
    if !seen.kept.is_empty() {
        let kept = seen.kept.join(", ");
        seen.notes
            .push(format!("CRDs of the project that handed them over stay as they are, and are not printed: {kept}"));
    }
    // Nothing in a namespace tells: whoever may edit it could keep everybody else from installing Stoker.
    match answer(home::installed_in(client)).await? {
        Some(other) if other != namespace => return Err(ClusterProblem::Elsewhere(other)),
        Some(_) => seen.peers = peers(client, namespace).await,
        None => {}
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let home = answer(namespaces.get_opt(namespace)).await?;
    if let Some(home) = home.filter(|home| !is_our_home(home)) {
        seen.foreign_home = true;
        seen.notes.push(left_alone(&home));
    }
    let roles: Api<ClusterRole> = Api::all(client.clone());
    // Who may not read roles is not kept from printing manifests: this is for a note alone.
    let editors = answer(roles.get_opt(EDITORS)).await.ok().flatten();
    seen.edit_has_jobs = editors.is_some_and(|role| role.labels().contains_key(&aggregate_to("edit")));
    Ok(seen)
}

/// Whether the controller in this namespace tells nodes to read from each other. One that cannot be seen does not: an upgrade opens no port
/// unasked.
async fn peers(client: &Client, namespace: &str) -> Option<Switch> {
    let resource = ApiResource::erase::<Deployment>(&());
    let controllers: Api<AnyObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    match answer(controllers.get_opt(home::CONTROLLER)).await {
        Ok(controller) => controller.map(|AnyObject(controller)| peers_of(&controller.data)),
        Err(_) => Some(Switch::Off),
    }
}

/// The same by its Deployment. One without the option is of an earlier version.
fn peers_of(controller: &Value) -> Switch {
    let containers = controller.pointer("/spec/template/spec/containers").and_then(Value::as_array);
    let args = containers.into_iter().flatten().filter_map(|container| container["args"].as_array()).flatten();
    let args: Vec<&str> = args.filter_map(Value::as_str).collect();
    let on = args.contains(&"--peers=on") || args.windows(2).any(|pair| pair == ["--peers", "on"]);
    if on { Switch::On } else { Switch::Off }
}

/// The names of those of these CRDs that are there and somebody else's.
async fn of_others(
    api: &Api<CustomResourceDefinition>,
    definitions: &[CustomResourceDefinition],
) -> Result<Vec<String>, ClusterProblem> {
    let mut names = Vec::new();
    for definition in definitions {
        let there = answer(api.get_opt(&definition.name_any())).await?;
        names.extend(there.filter(|there| !is_ours(there)).map(|there| there.name_any()));
    }
    Ok(names)
}

/// Whether a namespace is one that `stoker install` made, and `uninstall` removes.
fn is_our_home(home: &Namespace) -> bool {
    [MANAGED_BY, PART_OF].into_iter().all(|(key, value)| home.labels().get(key).is_some_and(|there| there == value))
}

/// What a namespace of somebody else must allow, and how.
fn left_alone(home: &Namespace) -> String {
    let (name, (label, needed)) = (home.name_any(), POD_SECURITY);
    let left = format!(
        "the namespace {name} was there before Stoker: it is left as it is, and `stoker uninstall` leaves it. Agents need \
         the Pod Security level `{needed}` in it"
    );
    let mend = format!("kubectl label --overwrite namespace {name} {label}={needed}");
    match home.labels().get(label) {
        Some(level) if level == needed => format!("{left}, which it has"),
        Some(level) => format!("{left}, and it has `{level}`: {mend}"),
        None => {
            format!("{left}, and it has no label {label}, so the cluster's default holds; if pods are refused: {mend}")
        }
    }
}

/// Whether a CRD is Stoker's: of its own group, or one of another that is marked as `install` does it and by nobody else.
pub(super) fn is_ours(definition: &CustomResourceDefinition) -> bool {
    let marked = || {
        let (labels, annotations) = (definition.labels(), definition.annotations());
        let ours = manifests::api_labels().iter().all(|(key, value)| labels.get(key) == Some(value));
        ours && !OTHER_MAKERS.iter().any(|maker| annotations.contains_key(*maker))
    };
    definition.spec.group == stoker_api::native::GROUP || marked()
}

/// Vendors put signs behind the number.
fn version_of(info: &Info) -> Option<(u32, u32)> {
    let number = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok();
    Some((number(&info.major)?, number(&info.minor)?))
}

async fn answer<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ClusterProblem> {
    match tokio::time::timeout(PATIENCE, request).await {
        Ok(answer) => answer.map_err(|problem| ClusterProblem::Unreachable(jobs::explain(problem).to_string())),
        Err(_) => Err(ClusterProblem::Unreachable(format!("no answer after {} s", PATIENCE.as_secs()))),
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

    #[test]
    fn an_upgrade_keeps_what_the_controller_was_told_about_peers() {
        let told = |args: &[&str]| {
            let containers = serde_json::json!([{ "name": "proxy" }, { "name": "controller", "args": args }]);
            peers_of(&serde_json::json!({ "spec": { "template": { "spec": { "containers": containers } } } }))
        };
        assert_eq!(told(&["controller", "--peers=on"]), Switch::On);
        assert_eq!(told(&["controller", "--peers", "on"]), Switch::On);
        assert_eq!(told(&["controller", "--peers=off"]), Switch::Off);
        assert_eq!(told(&["controller"]), Switch::Off, "of a version that does not know the option");
        assert_eq!(peers_of(&Value::Null), Switch::Off);
    }

    #[test]
    fn a_crd_of_another_project_is_ours_only_as_install_makes_it() {
        let named = |name: &str| {
            let all = manifests::definitions(&[super::super::dialect("kruise").unwrap()]);
            all.into_iter().find(|definition| definition.name_any() == name).unwrap()
        };
        let mut own = named("preheats.stoker.dev");
        own.metadata.labels = None;
        assert!(is_ours(&own), "of earlier installations as well");
        let theirs = || named("imagepulljobs.apps.kruise.io");
        assert!(is_ours(&theirs()));
        for label in manifests::api_labels().keys() {
            let mut theirs = theirs();
            theirs.labels_mut().remove(label);
            assert!(!is_ours(&theirs), "without {label}");
        }
        for maker in OTHER_MAKERS {
            let mut theirs = theirs();
            theirs.annotations_mut().insert(maker.into(), "x".into());
            assert!(!is_ours(&theirs), "with {maker}");
        }
    }

    #[test]
    fn what_a_namespace_of_somebody_else_lacks_is_named() {
        let with = |level: Option<&str>| {
            let mut home = Namespace::default();
            home.metadata.name = Some("platform".into());
            home.labels_mut().extend(level.map(|level| (POD_SECURITY.0.to_string(), level.to_string())));
            assert!(!is_our_home(&home));
            left_alone(&home)
        };
        let command = "kubectl label --overwrite namespace platform pod-security.kubernetes.io/enforce=privileged";
        assert!(!with(Some("privileged")).contains("kubectl"));
        let refused = with(Some("baseline"));
        assert!(refused.contains("`baseline`") && refused.ends_with(command), "{refused}");
        assert!(with(None).ends_with(command));
    }
}
