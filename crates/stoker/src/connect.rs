//! From the command line to a client: the current kubeconfig, or the one that is named.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context as _, anyhow};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::cli::{ClusterArgs, WrongInput};

/// A client of the cluster, and the namespace that commands mean.
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

/// Whether a cluster was named, and not only found where one usually is.
pub(crate) fn is_named(cluster: &ClusterArgs) -> bool {
    cluster.kubeconfig.is_some() || cluster.context.is_some() || of_environment().is_some()
}

fn of_environment() -> Option<OsString> {
    std::env::var_os("KUBECONFIG").filter(|files| !files.is_empty())
}

/// Reads the kubeconfig; does not yet speak to the API server. One that was named and cannot be used is wrong input.
pub(crate) async fn connect(cluster: &ClusterArgs) -> anyhow::Result<Connection> {
    let connection = read(cluster).await;
    connection.map_err(|problem| match is_named(cluster) {
        true => WrongInput(format!("{problem:#}")).into(),
        false => problem,
    })
}

async fn read(cluster: &ClusterArgs) -> anyhow::Result<Connection> {
    let options = KubeConfigOptions { context: cluster.context.clone(), cluster: None, user: None };
    let config = match &cluster.kubeconfig {
        Some(file) => {
            let kubeconfig =
                Kubeconfig::read_from(file).map_err(|problem| anyhow!(unreadable(file, &root(&problem))))?;
            Config::from_custom_kubeconfig(kubeconfig, &options).await.with_context(|| unusable(file))?
        }
        None if cluster.context.is_some() => {
            let problem = "the current kubeconfig cannot be used; check --context, or give --kubeconfig FILE";
            Config::from_kubeconfig(&options).await.context(problem)?
        }
        None => Config::infer().await.map_err(|problem| {
            tracing::debug!("{problem}");
            match of_environment() {
                Some(files) => {
                    let cause = root(&problem);
                    anyhow!("$KUBECONFIG is {}, and cannot be used ({cause}); correct or unset it", files.display())
                }
                None => anyhow!(
                    "no cluster: there is no usable kubeconfig here. Give --kubeconfig FILE, \
                     or start a cluster on this machine with `stoker up --data DIR`"
                ),
            }
        })?,
    };
    let namespace = cluster.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let client = Client::try_from(config).context("the kubeconfig's TLS or login settings cannot be used")?;
    Ok(Connection { client, namespace })
}

fn unreadable(file: &Path, cause: &str) -> String {
    format!("the kubeconfig {} cannot be read ({cause}); check --kubeconfig", file.display())
}

/// The innermost cause: the others repeat it.
fn root(problem: &dyn std::error::Error) -> String {
    let mut innermost = problem;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

fn unusable(file: &Path) -> String {
    format!("the kubeconfig {} cannot be used; check it and --context", file.display())
}
