//! `stoker delete`: jobs go, their pulls stop, images stay.

use std::process::ExitCode;

use kube::ResourceExt as _;
use kube::api::DeleteParams;

use crate::cli::{Cluster, Delete};
use crate::connect::{Connection, connect};
use crate::jobs;
use crate::out::{errln, outln};

/// Deletes every job that the user named; one that cannot be deleted does not save the others.
pub(crate) async fn run(cluster: &Cluster, args: Delete) -> anyhow::Result<ExitCode> {
    let connection = connect(cluster).await?;
    let mut code = ExitCode::SUCCESS;
    for name in &args.names {
        if let Err(problem) = delete(&connection, name).await {
            errln!("error: cannot delete {name}: {problem:#}");
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

async fn delete(connection: &Connection, name: &str) -> anyhow::Result<()> {
    let job = jobs::find(connection, name).await?;
    let api = jobs::api(&connection.client, job.dialect, Some(&connection.namespace));
    api.delete(&job.object.name_any(), &DeleteParams::background()).await.map_err(jobs::explain)?;
    outln!("{} {} deleted: its pulls stop, images that are on nodes stay", job.dialect.kind, job.object.name_any());
    Ok(())
}
