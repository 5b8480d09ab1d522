//! `stoker pull`: a new Preheat, followed to its end.

use std::process::ExitCode;

use anyhow::bail;
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, ResourceExt as _};
use stoker_api::native::from_core::phase;
use stoker_api::native::{
    CompletionSpec, ImageSpec, NodesSpec, PaceSpec, Preheat, PreheatSpec, PullPolicy, PullSpec, SecretRef, SourceSpec,
};
use stoker_api::{PlainNode, Span};
use stoker_core::{Stage, human};

use crate::cli::{ClusterArgs, PolicyWord, PullArgs, SourceWord, WrongInput};
use crate::connect::connect;
use crate::follow::{JobEnd, failures, follow};
use crate::out::{errln, outln};
use crate::screen::Screen;
use crate::{clock, jobs};

/// A Preheat without a name of its own goes this long after its end.
const TTL: Span = Span(std::time::Duration::from_secs(3600));

/// Makes the Preheat, and follows it unless told otherwise.
pub(crate) async fn run(cluster: &ClusterArgs, args: PullArgs) -> anyhow::Result<ExitCode> {
    if matches!(args.source, SourceWord::PeersOnly) && args.upstream_copies.is_some() {
        bail!(WrongInput(
            "with --source PeersOnly no node fetches from the registry; leave out --upstream-copies or --source".into()
        ));
    }
    let connection = connect(cluster).await?;
    check_nodes(&connection.client, &args.nodes).await?;
    let preheats: Api<Preheat> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let made = preheats.create(&PostParams::default(), &preheat(&args)).await;
    let name = made.map_err(|problem| refused(problem, args.name.as_deref()))?.name_any();
    if args.no_wait {
        outln!("Preheat {name} made; `stoker get {name}` shows how it goes, `stoker why {name}` what it waits for");
        return Ok(ExitCode::SUCCESS);
    }
    let mut screen = Screen::new();
    let clock = clock::system();
    let end = tokio::select! {
        end = follow(&connection.client, &connection.namespace, &name, &clock, &mut screen) => end,
        _ = tokio::signal::ctrl_c() => {
            screen.close();
            errln!("\nno longer following; Preheat {name} goes on. `stoker get {name}` shows how, `stoker delete {name}` stops it");
            return Ok(ExitCode::from(130));
        }
    };
    screen.close();
    conclude(&end?)
}

/// Nodes that are named must exist: a misspelt one would be waited for.
async fn check_nodes(client: &Client, names: &[String]) -> anyhow::Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let nodes = Api::<PlainNode>::all(client.clone()).list(&ListParams::default()).await.map_err(jobs::explain)?;
    let there: Vec<String> = nodes.items.iter().map(|node| node.name_any()).collect();
    let unknown: Vec<&str> = names.iter().filter(|name| !there.contains(name)).map(String::as_str).collect();
    if !unknown.is_empty() {
        let some: Vec<&str> = there.iter().take(10).map(String::as_str).collect();
        bail!("no node {}; there are: {} (`stoker get nodes` shows all)", unknown.join(", "), some.join(", "));
    }
    Ok(())
}

fn preheat(args: &PullArgs) -> Preheat {
    let mut secrets: Vec<SecretRef> = Vec::new();
    for name in &args.secrets {
        if !secrets.iter().any(|known| known.name == *name) {
            secrets.push(SecretRef { name: name.clone() });
        }
    }
    let mut images: Vec<ImageSpec> = Vec::new();
    for image in &args.images {
        if !images.iter().any(|known| known.image == *image) {
            images.push(ImageSpec { image: image.clone(), pull_secrets: secrets.clone() });
        }
    }
    let spec = PreheatSpec {
        images,
        nodes: NodesSpec {
            names: (!args.nodes.is_empty()).then(|| args.nodes.clone()),
            selector: args.selector.clone(),
            pod_selector: args.pods.clone(),
            replicas: args.replicas,
        },
        pace: PaceSpec {
            parallelism: args.parallelism,
            bandwidth: args.bandwidth,
            failure_tolerance: args.failure_tolerance,
            priority: args.priority,
        },
        pull: PullSpec {
            policy: match args.policy {
                PolicyWord::IfNotPresent => PullPolicy::IfNotPresent,
                PolicyWord::Always => PullPolicy::Always,
            },
            retries: args.retries,
            source: match args.source {
                SourceWord::Any => SourceSpec::Any,
                SourceWord::PeersOnly => SourceSpec::PeersOnly,
            },
            upstream_copies: args.upstream_copies,
            ..PullSpec::default()
        },
        completion: CompletionSpec {
            deadline: args.timeout,
            ttl: args.name.is_none().then_some(TTL),
            ..CompletionSpec::default()
        },
        suspend: false,
    };
    let mut preheat = Preheat::new(args.name.as_deref().unwrap_or_default(), spec);
    if args.name.is_none() {
        preheat.metadata.name = None;
        preheat.metadata.generate_name = Some("pull-".into());
    }
    preheat
}

fn refused(problem: kube::Error, name: Option<&str>) -> anyhow::Error {
    match (&problem, name) {
        (kube::Error::Api(status), Some(name)) if status.code == 409 => anyhow::anyhow!(
            "there is a Preheat {name} already; follow it with `stoker get {name} -w`, delete it, or choose another --name"
        ),
        // What the schema does not allow was said on the command line: there is no other manifest.
        (kube::Error::Api(status), _) if matches!(status.code, 400 | 422) => WrongInput(status.message.clone()).into(),
        _ => jobs::explain(problem),
    }
}

/// What came of it, for people, and the exit code.
fn conclude(end: &JobEnd) -> anyhow::Result<ExitCode> {
    let JobEnd { summary, object, rows } = end;
    let name = object.name_any();
    summary.warnings.iter().for_each(|warning| errln!("warning: {warning}"));
    if summary.failed > 0 {
        errln!("Preheat {name}: {} of {} nodes failed:", summary.failed, summary.desired);
        let lines = failures(object)?;
        let more = usize::try_from(summary.failed)?.saturating_sub(lines.len());
        lines.iter().for_each(|line| errln!("  {line}"));
        if more > 0 {
            errln!("  and {more} more; `stoker get {name}` shows all");
        }
        // As many as the Preheat tolerates are no failure of it.
        if summary.phase != phase(Stage::Succeeded) {
            return Ok(ExitCode::FAILURE);
        }
    }
    let bytes = |part: &str| object.data.pointer(part).and_then(|bytes| bytes.as_u64()).unwrap_or(0);
    match (summary.desired, bytes("/status/bytes/upstream"), bytes("/status/bytes/peers")) {
        (0, ..) => {
            errln!("Preheat {name}: {}", summary.message);
            if !summary.ended {
                errln!("It goes on when a node matches; `stoker delete {name}` removes it.");
            }
            return Ok(ExitCode::FAILURE);
        }
        (nodes, 0, 0) if !rows.is_empty() => {
            outln!("Preheat {name}: already on all {nodes} nodes, nothing was fetched");
        }
        (nodes, upstream, 0) => {
            outln!("Preheat {name}: on all {nodes} nodes, {} received from the registry", human::bytes(upstream));
        }
        (nodes, upstream, peers) => outln!(
            "Preheat {name}: on all {nodes} nodes, {} received from the registry, {} from other nodes",
            human::bytes(upstream),
            human::bytes(peers)
        ),
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser as _;

    fn spec(options: &[&str]) -> Option<PullSpec> {
        let line = [&["stoker", "pull", "web:v42"], options].concat();
        match Cli::try_parse_from(line).ok()?.command {
            Command::Pull(args) => Some(preheat(&args).spec.pull),
            _ => None,
        }
    }

    #[test]
    fn policy_and_retries_are_those_of_the_preheat() {
        assert_eq!(spec(&[]), Some(PullSpec::default()));
        let always = PullSpec { policy: PullPolicy::Always, retries: 0, ..PullSpec::default() };
        assert_eq!(spec(&["--policy", "Always", "--retries", "0"]), Some(always.clone()));
        assert_eq!(spec(&["--policy", "always", "--retries", "100"]), Some(PullSpec { retries: 100, ..always }));
        for wrong in [["--policy", "Never"], ["--retries", "101"], ["--retries", "-1"], ["--retries", "many"]] {
            assert_eq!(spec(&wrong), None, "{wrong:?}");
        }
    }
}
