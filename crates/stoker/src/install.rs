//! `stoker install`: everything that a cluster needs, as YAML on standard output; and its way back, `stoker uninstall`.
//!
//! Settings from the command line come in, manifests go out. What is printed depends on the settings alone; a cluster
//! that can be reached is only looked at, so that nothing is printed that it cannot run or that would replace what
//! belongs to somebody else.

mod access;
mod check;
mod host;
mod kinds;
mod manifests;
mod policy;
mod uninstall;
mod workloads;

#[cfg(test)]
mod tests;

use std::process::ExitCode;

use anyhow::bail;

use crate::cli::{Cluster, Install};
use crate::connect::connect;
use crate::out::outln;

pub(crate) use host::{directory, socket};
pub(crate) use uninstall::run as uninstall;

/// Prints the manifests.
pub(crate) async fn run(cluster: &Cluster, args: Install) -> anyhow::Result<ExitCode> {
    let namespace = namespace(cluster)?;
    let documents = manifests::all(&namespace, &args)?;
    if !args.offline {
        look(cluster, &args).await?;
    }
    outln!("{}", manifests::yaml(&documents)?.trim_end());
    Ok(ExitCode::SUCCESS)
}

/// Checks the cluster, where there is one. Somebody who named one means it; else none is no problem.
async fn look(cluster: &Cluster, args: &Install) -> anyhow::Result<()> {
    let named = cluster.kubeconfig.is_some() || cluster.context.is_some();
    let client = match connect(cluster).await {
        Ok(connection) => connection.client,
        Err(problem) if named => return Err(problem),
        Err(_) => {
            eprintln!(
                "note: no cluster was looked at, because there is no kubeconfig here; it must be {}",
                check::NEEDS
            );
            return Ok(());
        }
    };
    match check::cluster(&client, &manifests::definitions(&args.dialects)).await {
        Err(check::Problem::Unreachable(why)) if !named => {
            eprintln!("note: the cluster was not looked at ({why}); it must be {}", check::NEEDS);
            Ok(())
        }
        result => Ok(result?),
    }
}

/// Where Stoker's own objects are.
fn namespace(cluster: &Cluster) -> anyhow::Result<String> {
    match cluster.namespace.as_deref() {
        // Controller and agents look for their Lease and for copies of Secrets there and nowhere else.
        Some(other) if other != stoker_api::NAMESPACE => bail!(
            "this version runs in the namespace {} alone, not in {other}; leave --namespace out",
            stoker_api::NAMESPACE
        ),
        _ => Ok(stoker_api::NAMESPACE.into()),
    }
}

/// A dialect by its name on the command line.
pub(crate) fn dialect(text: &str) -> Result<String, String> {
    let known = manifests::dialects();
    match known.contains(text) {
        true => Ok(text.into()),
        false => {
            let known: Vec<&str> = known.into_iter().collect();
            Err(format!("no such dialect; this version serves {}", known.join(", ")))
        }
    }
}
