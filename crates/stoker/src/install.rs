//! `stoker install`: everything that a cluster needs, as YAML on standard output; and its way back, `stoker uninstall`.
//!
//! Settings from the command line come in, manifests go out. What is printed depends on the settings alone; the cluster of
//! the kubeconfig is only looked at, so that nothing is printed that it cannot run, that would replace what belongs to
//! somebody else, or that an upgrade would switch on unasked. One that cannot be looked at gets nothing, unless `--offline` is given.

mod access;
mod check;
mod host;
mod kinds;
mod manifests;
mod policy;
mod preheat_policy;
mod uninstall;
mod workloads;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::process::ExitCode;

use kube::ResourceExt as _;
use kube::config::Kubeconfig;
use stoker_api::{DIALECTS, Dialect, HandOver};

use crate::cli::{ClusterArgs, CrdsArgs, InstallArgs, PEER_PORT, Switch, WrongInput};
use crate::connect::{connect, is_named};
use crate::out::{errln, outln};

pub(crate) use host::{directory, socket};
pub(crate) use uninstall::run as uninstall;

/// The image where none is said. Nobody can own this host (RFC 2606), and so nobody runs theirs on all nodes by it.
pub(crate) const NO_IMAGE: &str = concat!("stoker.invalid/stoker:v", env!("CARGO_PKG_VERSION"));

/// Prints the manifests.
pub(crate) async fn run(cluster: &ClusterArgs, mut args: InstallArgs) -> anyhow::Result<ExitCode> {
    let namespace = cluster.namespace.as_deref().unwrap_or(stoker_api::NAMESPACE);
    if args.host.agent_metrics.port() == args.host.agent_probes.port() {
        return Err(WrongInput("--agent-metrics and --agent-probes need two ports".into()).into());
    }
    let mut names = BTreeSet::new();
    if let Some(twice) = args.dialects.iter().find(|dialect| !names.insert(dialect.name)) {
        return Err(WrongInput(format!("--dialects names {} twice", twice.name)).into());
    }
    if let Some(lacks) = lacks(&args.dialects) {
        return Err(WrongInput(lacks).into());
    }
    let seen = if args.offline { None } else { Some(look(cluster, namespace, &args).await?) };
    if let Some(Switch::Off) = seen.as_ref().and_then(|seen| seen.peers).filter(|_| args.peers.is_none()) {
        args.peers = Some(Switch::Off);
        errln!(
            "note: the controller of this cluster does not tell nodes to read images from each other, and so it stays; give --peers on to              change that (agents then listen on port {PEER_PORT} of their nodes, see docs/install.md), or --peers off to leave out this note"
        );
    }
    let mut documents = manifests::all(namespace, &args)?;
    if let Some(seen) = seen {
        seen.notes.iter().for_each(|note| errln!("note: {note}"));
        if seen.edit_has_jobs && !args.aggregate_to_edit {
            errln!(
                "note: whoever has Kubernetes' role `edit` or `admin` can make jobs on this cluster, and cannot once this is applied; give \
                 --aggregate-to-edit to keep it so, or bind the ClusterRole stoker-edit to those who need it"
            );
        }
        documents.retain(|document| {
            let (kind, name) = (&document.object["kind"], &document.object["metadata"]["name"]);
            let is_kept = kind == "CustomResourceDefinition" && seen.kept.iter().any(|kept| name == kept);
            !is_kept && (!seen.foreign_home || kind != "Namespace")
        });
    }
    if args.offline
        && let Some(dialect) = args.dialects.iter().find(|dialect| dialect.hand_over != HandOver::Unsaid)
    {
        let name = dialect.name;
        errln!(
            "note: no cluster was looked at, so the CRDs of {name} are printed as Stoker has them; where those of the original project are \
             installed, take these out before you apply the rest"
        );
    }
    if args.image.name() == NO_IMAGE {
        errln!(
            "note: no image is published, so no pod of this will start: make one with `cargo xtask image --push REFERENCE` and \
             give --image REFERENCE"
        );
    }
    errln!(
        "note: to kubelets, images that Stoker brings are preloaded: every pod on a node may run them without their pull secret, unless the \
         kubelet verifies that (from Kubernetes 1.35 on, or from 1.33 on with the feature gate KubeletEnsureSecretPulledImages: set \
         imagePullCredentialsVerificationPolicy to AlwaysVerify) or the API server has the admission plugin AlwaysPullImages; see \
         docs/security.md"
    );
    outln!("{}", manifests::yaml(&documents)?.trim_end());
    Ok(ExitCode::SUCCESS)
}

/// Checks the cluster, where there is one. One that `kubectl apply` would reach and that cannot be seen from here is a problem:
/// its namespace may be somebody's, and would be ours by what is printed.
async fn look(cluster: &ClusterArgs, namespace: &str, args: &InstallArgs) -> anyhow::Result<check::ClusterFacts> {
    let client = match connect(cluster).await {
        Ok(connection) => connection.client,
        Err(problem) if is_named(cluster) => return Err(problem),
        Err(problem) if has_context() => {
            return Err(problem
                .context("the cluster of the current kubeconfig cannot be checked; mend that, or give --offline"));
        }
        Err(_) => {
            let note = "no cluster was looked at, because there is no usable kubeconfig here; it must be";
            let notes = vec![format!("{note} {}, without a namespace {namespace} of somebody else", check::NEEDS)];
            return Ok(check::ClusterFacts { notes, ..check::ClusterFacts::default() });
        }
    };
    let (handed_over, others): (Vec<ServedDialect>, Vec<ServedDialect>) =
        args.dialects.iter().cloned().partition(|dialect| dialect.hand_over != HandOver::Unsaid);
    let ours = manifests::definitions(&others);
    let mut theirs = manifests::definitions(&handed_over);
    theirs.retain(|definition| ours.iter().all(|our| our.name_any() != definition.name_any()));
    Ok(check::cluster(&client, namespace, &check::Definitions { ours, theirs }).await?)
}

/// Whether there is a kubeconfig with a current context, which others may be able to use where we are not.
fn has_context() -> bool {
    Kubeconfig::read().is_ok_and(|file| file.current_context.is_some_and(|context| !context.is_empty()))
}

/// `stoker crds`: our own, and those of the dialects that were asked for.
pub(crate) fn crds(args: &CrdsArgs) -> anyhow::Result<ExitCode> {
    for (name, crd) in manifests::files(&args.dialects) {
        outln!("---\n# {name}.yaml\n{}", serde_saphyr::to_string(&crd)?.trim_end());
    }
    Ok(ExitCode::SUCCESS)
}

/// A dialect that is served, and how its original controller has handed it over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServedDialect {
    pub(crate) name: &'static str,
    pub(crate) hand_over: HandOver,
}

/// A dialect on the command line: its name, and `=` with how it was handed over.
pub(crate) fn dialect(text: &str) -> Result<ServedDialect, String> {
    let (name, how) = text.split_once('=').map_or((text, None), |(name, how)| (name, Some(how)));
    let known = manifests::dialects();
    let dialect = Dialect::named(name).filter(|dialect| known.contains(dialect.name));
    let Some(dialect) = dialect else {
        let known: Vec<&str> = known.into_iter().collect();
        return Err(format!("no such dialect; this version serves {}", known.join(", ")));
    };
    let hand_over = how.map(str::parse).transpose().map_err(|problem: stoker_api::sign::UnknownHandOver| {
        format!("{problem}; where its original controller has handed nothing over, write {name} alone")
    })?;
    if hand_over.is_some() && dialect.signs.is_empty() {
        return Err(format!("{name} is not handed over by itself; write {name} alone"));
    }
    let in_half = || dialect.kinds.iter().chain(dialect.nodes).any(|kind| kind.in_half);
    if hand_over == Some(HandOver::Half) && !in_half() {
        return Err(format!("{name} cannot be handed over in half; write {name} or {name}=whole"));
    }
    Ok(ServedDialect { name: dialect.name, hand_over: hand_over.unwrap_or_default() })
}

/// A dialect whose CRDs are wanted, on the command line: how it was handed over makes no difference to these.
pub(crate) fn definitions_of(text: &str) -> Result<ServedDialect, String> {
    match (dialect(text)?, text.contains('=')) {
        (ServedDialect { name, .. }, true) => {
            Err(format!("CRDs are the same however it was handed over; write {name}"))
        }
        (dialect, false) => Ok(dialect),
    }
}

/// A dialect with workloads, on the command line of a controller.
pub(crate) fn with_workloads(text: &str) -> Result<&'static str, String> {
    let known = || DIALECTS.iter().filter(|dialect| !dialect.workloads.is_empty()).map(|dialect| dialect.name);
    known().find(|name| *name == text).ok_or_else(|| {
        let known: Vec<&str> = known().collect();
        format!("there is nothing of that name to follow; this version follows {}", known.join(", "))
    })
}

/// Workloads have objects of another dialect made for them: that one must be served as well, and not by its original controller.
fn lacks(dialects: &[ServedDialect]) -> Option<String> {
    let served = |name: &str| dialects.iter().any(|one| one.name == name);
    let asked = DIALECTS.iter().filter(|dialect| served(dialect.name));
    let mut needs = asked.flat_map(|dialect| dialect.workloads.iter().map(move |kind| (dialect.name, kind.dialect)));
    let in_half = |name: &str| dialects.iter().any(|one| one.name == name && one.hand_over == HandOver::Half);
    if let Some((name, needed)) = needs.clone().find(|(_, needed)| in_half(needed)) {
        return Some(format!(
            "--dialects {name} makes objects of {needed}, which {needed}=half leaves to their original controller; write --dialects \
             {needed}=whole,{name}"
        ));
    }
    let (name, needed) = needs.find(|(_, needed)| !served(needed))?;
    Some(format!("--dialects {name} makes objects of {needed}; write --dialects {needed},{name}"))
}

/// A dialect that was handed over, on the command line of a controller.
pub(crate) fn handed_over(text: &str) -> Result<ServedDialect, String> {
    match dialect(text)? {
        ServedDialect { name, hand_over: HandOver::Unsaid } => {
            let words = HandOver::WORDS.iter().map(|(word, _)| format!("{name}={word}"));
            Err(format!("say how it was handed over: {}", words.collect::<Vec<_>>().join(", ")))
        }
        dialect => Ok(dialect),
    }
}
