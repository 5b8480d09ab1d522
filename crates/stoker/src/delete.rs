//! `stoker delete`: a job goes, its pulls stop, images stay.

use std::process::ExitCode;

use kube::ResourceExt as _;
use kube::api::DeleteParams;

use crate::cli::{Cluster, Delete};
use crate::connect::connect;
use crate::jobs;
use crate::out::outln;

/// Deletes the job that the user named.
pub(crate) async fn run(cluster: &Cluster, args: Delete) -> anyhow::Result<ExitCode> {
    let connection = connect(cluster).await?;
    let job = jobs::find(&connection, &args.name).await?;
    let api = jobs::api(&connection.client, job.dialect, Some(&connection.namespace));
    api.delete(&job.object.name_any(), &DeleteParams::background()).await.map_err(jobs::explain)?;
    outln!("{} {} deleted: its pulls stop, images that are on nodes stay", job.dialect.kind, job.object.name_any());
    Ok(ExitCode::SUCCESS)
}
