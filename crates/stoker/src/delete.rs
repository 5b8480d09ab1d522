//! `stoker delete`: jobs go, their pulls stop, images stay.

use std::process::ExitCode;

use anyhow::bail;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, DynamicObject, Preconditions};
use stoker_api::AnyObject;

use crate::cli::{ClusterArgs, DeleteArgs};
use crate::connect::{Connection, connect};
use crate::jobs;
use crate::out::{errln, outln};

/// Deletes every job that the user named; one that cannot be deleted does not save the others.
pub(crate) async fn run(cluster: &ClusterArgs, args: DeleteArgs) -> anyhow::Result<ExitCode> {
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
    let api = jobs::api(&connection.client, job.kind, Some(&connection.namespace)).await;
    let (kind, name) = (job.kind.kind.name, job.object.name_any());
    match only(&api, &job.object, DeleteParams::background()).await.map_err(jobs::explain)? {
        Deletion::Gone | Deletion::Going => {
            outln!("{kind} {name} deleted: its pulls stop, images that are on nodes stay");
            Ok(())
        }
        Deletion::Replaced => {
            bail!(
                "somebody has deleted this {kind} and made another {name}, which stays; look at it, and delete it if it may go"
            )
        }
    }
}

/// What became of an object that was to be deleted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Deletion {
    /// It is being deleted.
    Going,
    /// It was gone already.
    Gone,
    /// It was gone already, and another object has its name.
    Replaced,
}

/// Deletes the very object that was looked at: another one that got its name since then stays.
pub(crate) async fn only(
    api: &Api<AnyObject>,
    seen: &DynamicObject,
    params: DeleteParams,
) -> Result<Deletion, kube::Error> {
    let (name, uid) = (seen.name_any(), seen.uid());
    let preconditions = uid.clone().map(|uid| Preconditions { uid: Some(uid), resource_version: None });
    match api.delete(&name, &DeleteParams { preconditions, ..params }).await {
        Ok(_) => Ok(Deletion::Going),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Deletion::Gone),
        // Others may have written it at the same time, or it is another one.
        Err(kube::Error::Api(status)) if status.code == 409 => match api.get_opt(&name).await? {
            None => Ok(Deletion::Gone),
            Some(now) if now.uid() != uid => Ok(Deletion::Replaced),
            Some(_) => Err(kube::Error::Api(status)),
        },
        Err(problem) => Err(problem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::PostParams;
    use kube::core::ApiResource;
    use std::sync::Arc;

    #[tokio::test]
    async fn an_object_that_got_the_name_since_then_stays() {
        let settings = stoker_embedded::Settings::new(vec![], Arc::new(jiff::Timestamp::now));
        let client = stoker_embedded::Api::new(settings).unwrap().client("default");
        let api: Api<AnyObject> = Api::default_namespaced_with(client, &ApiResource::erase::<ConfigMap>(&()));
        let object = AnyObject(DynamicObject::new("web", &ApiResource::erase::<ConfigMap>(&())));
        let make = async || api.create(&PostParams::default(), &object).await.unwrap();
        let delete = async |AnyObject(seen): &AnyObject| only(&api, seen, DeleteParams::foreground()).await.unwrap();
        let old = make().await;
        assert_eq!(delete(&old).await, Deletion::Going);
        assert_eq!(delete(&old).await, Deletion::Gone);
        let new = make().await;
        assert_eq!(delete(&old).await, Deletion::Replaced);
        assert_eq!(api.get("web").await.unwrap().uid(), new.uid());
    }
}
