//! A service account's way into a cluster. An administrator's client and kubeconfig come in; a kubeconfig for the same cluster
//! goes out, in which nothing is left of the administrator's rights.

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{Api, PostParams};
use kube::config::{AuthInfo, Kubeconfig, NamedAuthInfo};
use kube::{Client, ResourceExt as _};

/// Longer than anything that is tested or measured.
const SECONDS: i64 = 6 * 3600;

/// Why there is no login.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server gave none.
    #[error("no token of {0}: {1}")]
    Refused(String, Box<kube::Error>),
    /// It answered without one.
    #[error("the API server answered without a token of {0}")]
    NoToken(String),
}

/// A kubeconfig of an account, given by its namespace, which is then the usual one, and its name. A token that is bound to a
/// pod says on which node that is.
pub async fn log_in(
    client: &Client,
    administrator: &Kubeconfig,
    (namespace, account): (&str, &str),
    pod: Option<&Pod>,
) -> Result<Kubeconfig, Error> {
    let bound = pod.map(|pod| BoundObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        name: Some(pod.name_any()),
        uid: pod.uid(),
    });
    let spec = TokenRequestSpec { bound_object_ref: bound, expiration_seconds: Some(SECONDS), audiences: Vec::new() };
    let request = TokenRequest { spec, ..Default::default() };
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let answer = accounts.create_token_request(account, &PostParams::default(), &request).await;
    let answer = answer.map_err(|problem| Error::Refused(account.into(), Box::new(problem)))?;
    let token = answer.status.ok_or_else(|| Error::NoToken(account.into()))?.token;

    let mut config = administrator.clone();
    let login = AuthInfo { token: Some(token.into()), ..AuthInfo::default() };
    config.auth_infos = vec![NamedAuthInfo { name: account.into(), auth_info: Some(login), ..Default::default() }];
    for context in config.contexts.iter_mut().filter_map(|named| named.context.as_mut()) {
        context.user = Some(account.into());
        context.namespace = Some(namespace.into());
    }
    Ok(config)
}
