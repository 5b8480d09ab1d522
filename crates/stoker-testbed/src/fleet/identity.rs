//! Who an agent is for the API server: the account of `stoker install`, on its own node. An administrator speaks for it, so
//! that five thousand need no tokens; RBAC and the admission policy see the same as with them.

use http::{HeaderMap, HeaderName, HeaderValue, Request};
use kube::Client;
use kube::client::Body;

const USER: HeaderName = HeaderName::from_static("impersonate-user");
/// `authentication.kubernetes.io/node-name`, as a part of a header's name.
const NODE: HeaderName = HeaderName::from_static("impersonate-extra-authentication.kubernetes.io%2fnode-name");
const ACCOUNT: HeaderValue = HeaderValue::from_static("system:serviceaccount:stoker-system:stoker-agent");

/// A client of the agent on this node; its requests go by the connections of the administrator's.
pub fn as_agent(administrator: &Client, node: &str) -> Client {
    let (administrator, node) = (administrator.clone(), node.to_owned());
    let service = tower::service_fn(move |mut request: Request<Body>| {
        speak_for_agent(request.headers_mut(), &node);
        let administrator = administrator.clone();
        async move { administrator.send(request).await }
    });
    Client::new(service, "default")
}

/// Makes a request of the administrator's one of the agent on this node.
pub fn speak_for_agent(headers: &mut HeaderMap, node: &str) {
    headers.insert(USER, ACCOUNT);
    // A node's name is one of a host.
    if let Ok(node) = HeaderValue::from_str(node) {
        headers.insert(NODE, node);
    }
}
