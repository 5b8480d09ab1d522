//! A conversion webhook for CustomResourceDefinitions, over HTTPS. It gives objects the `apiVersion` that the API server asks for and
//! changes nothing else, or answers 500 to everything, as told while it runs.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::certificates::Certificates;

/// Why there is no webhook.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// No port.
    #[error("the webhook cannot listen: {0}")]
    Io(#[from] io::Error),
    /// No certificate.
    #[error("no certificate for the webhook: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A certificate that cannot be used.
    #[error("the webhook cannot speak TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// A certificate that cannot be read.
    #[error("the certificate of the webhook cannot be read: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
}

#[derive(Debug, Default)]
struct WebhookState {
    broken: AtomicBool,
    converted: AtomicU64,
    refused: AtomicU64,
}

/// A webhook that works until it is told otherwise; it stops when dropped.
#[derive(Debug)]
pub struct Webhook {
    addr: SocketAddr,
    /// The certificate of its CA as PEM.
    ca: String,
    state: Arc<WebhookState>,
    task: AbortHandle,
}

impl Webhook {
    /// Listens on a free port of this address.
    pub async fn start_at(address: Ipv4Addr) -> Result<Self, WebhookError> {
        let certificates = Certificates::make(&[&address.to_string()])?;
        let chain = vec![CertificateDer::from_pem_slice(certificates.certificate.as_bytes())?];
        let key = PrivateKeyDer::from_pem_slice(certificates.key.as_bytes())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let acceptor = TlsAcceptor::from(Arc::new(tls.with_no_client_auth().with_single_cert(chain, key)?));
        let listener = TcpListener::bind((address, 0)).await?;
        let (addr, state) = (listener.local_addr()?, Arc::new(WebhookState::default()));
        let task = tokio::spawn(serve(listener, acceptor, state.clone()));
        Ok(Self { addr, ca: certificates.ca, state, task: task.abort_handle() })
    }

    /// The `clientConfig` with which an API server finds it. It answers under every path.
    pub fn client_config(&self, path: &str) -> Value {
        json!({ "url": format!("https://{}/{path}", self.addr), "caBundle": STANDARD.encode(&self.ca) })
    }

    /// From now on it answers 500.
    pub fn breaks(&self) {
        self.state.broken.store(true, Ordering::Relaxed);
    }

    /// From now on it works.
    pub fn works(&self) {
        self.state.broken.store(false, Ordering::Relaxed);
    }

    /// Requests that it has answered as it should.
    pub fn converted(&self) -> u64 {
        self.state.converted.load(Ordering::Relaxed)
    }

    /// Requests that it has answered with 500.
    pub fn refused(&self) -> u64 {
        self.state.refused.load(Ordering::Relaxed)
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, state: Arc<WebhookState>) {
    // The set goes with the task, and all connections with the set.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, state) = (acceptor.clone(), state.clone());
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let answers = service_fn(|request| answer(request, &state));
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answers).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(request: Request<Incoming>, state: &WebhookState) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let review = serde_json::from_slice(&body).ok().filter(|_| !state.broken.load(Ordering::Relaxed));
    let mut response = Response::new(Full::default());
    match review {
        Some(review) => {
            state.converted.fetch_add(1, Ordering::Relaxed);
            *response.body_mut() = Full::new(converted(review).to_string().into());
        }
        None => {
            state.refused.fetch_add(1, Ordering::Relaxed);
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        }
    }
    Ok(response)
}

/// The answer to a ConversionReview: its objects in the version that it asks for.
fn converted(mut review: Value) -> Value {
    let mut request = review["request"].take();
    let wanted = request["desiredAPIVersion"].take();
    let mut objects = request["objects"].take();
    for object in objects.as_array_mut().into_iter().flatten() {
        object["apiVersion"] = wanted.clone();
    }
    let response = json!({ "uid": request["uid"], "result": { "status": "Success" }, "convertedObjects": objects });
    json!({ "apiVersion": review["apiVersion"], "kind": "ConversionReview", "response": response })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_get_the_version_that_is_asked_for_and_stay_the_same_otherwise() {
        let object = |version: &str| json!({ "apiVersion": version, "kind": "K", "metadata": { "name": "a" } });
        let review = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
            "request": { "uid": "u", "desiredAPIVersion": "g/v2", "objects": [object("g/v1")] },
        });
        let answer = converted(review);
        assert_eq!(answer["apiVersion"], "apiextensions.k8s.io/v1");
        assert_eq!(
            (&answer["response"]["uid"], &answer["response"]["result"]["status"]),
            (&json!("u"), &json!("Success"))
        );
        assert_eq!(answer["response"]["convertedObjects"], json!([object("g/v2")]));
    }
}
