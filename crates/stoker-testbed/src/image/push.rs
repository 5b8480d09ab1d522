//! Pushes images to a registry, as any client does: each blob by POST and PUT, manifests by PUT.
//!
//! An image comes in, its reference goes out. Blobs that are there are not sent again. It never asks for tokens: a login goes
//! with every request.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::{Blob, Image};

/// Why an image is not in the registry.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The CA's certificate is none.
    #[error("the registry's CA cannot be used: {0}")]
    Ca(String),
    /// No answer.
    #[error("{method} {url} got no answer: {source}")]
    Unreachable {
        /// The request's method.
        method: Method,
        /// Where it went.
        url: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An answer that is no success.
    #[error("{method} {url} was answered {status}: {body}")]
    Refused {
        /// The request's method.
        method: Method,
        /// Where it went.
        url: String,
        /// The answer's status.
        status: StatusCode,
        /// The beginning of its body.
        body: String,
    },
}

/// Pushes to one registry.
pub struct Pusher {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    base: String,
    authorization: Option<String>,
}

impl Pusher {
    /// To `http://127.0.0.1:5000` or the like; for https with the CA that signed its certificate, as PEM.
    pub fn new(base: &str, ca: Option<&str>) -> Result<Self, PushError> {
        let wrong = |error: &dyn std::fmt::Display| PushError::Ca(error.to_string());
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca.unwrap_or_default().as_bytes()) {
            roots.add(certificate.map_err(|error| wrong(&error))?).map_err(|error| wrong(&error))?;
        }
        let tls = rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(&error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { client, base: base.trim_end_matches('/').to_owned(), authorization: None })
    }

    /// With this login.
    pub fn login(mut self, name: &str, password: &str) -> Self {
        self.authorization = Some(format!("Basic {}", STANDARD.encode(format!("{name}:{password}"))));
        self
    }

    /// Pushes an image under a tag.
    pub async fn push(&self, repository: &str, tag: &str, image: &Image) -> Result<(), PushError> {
        for blob in image.layers.iter().chain(&image.configs) {
            self.blob(repository, blob).await?;
        }
        for manifest in &image.manifests {
            self.manifest(repository, &manifest.digest, manifest).await?;
        }
        self.manifest(repository, tag, &image.root).await
    }

    async fn blob(&self, repository: &str, blob: &Blob) -> Result<(), PushError> {
        let there = format!("{}/v2/{repository}/blobs/{}", self.base, blob.digest);
        if self.send(Method::HEAD, &there, "", Bytes::new()).await.is_ok() {
            return Ok(());
        }
        let start = format!("{}/v2/{repository}/blobs/uploads/", self.base);
        let answer = self.send(Method::POST, &start, "", Bytes::new()).await?;
        let place = answer.headers().get(header::LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let place = if place.starts_with('/') { format!("{}{place}", self.base) } else { place.to_owned() };
        let joint = if place.contains('?') { '&' } else { '?' };
        let end = format!("{place}{joint}digest={}", blob.digest.replace(':', "%3A"));
        self.send(Method::PUT, &end, "application/octet-stream", blob.bytes.clone()).await?;
        Ok(())
    }

    async fn manifest(&self, repository: &str, name: &str, manifest: &Blob) -> Result<(), PushError> {
        let url = format!("{}/v2/{repository}/manifests/{name}", self.base);
        self.send(Method::PUT, &url, manifest.media_type, manifest.bytes.clone()).await?;
        Ok(())
    }

    async fn send(
        &self,
        method: Method,
        url: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<Response<()>, PushError> {
        let unreachable = |source: Box<dyn std::error::Error + Send + Sync>| PushError::Unreachable {
            method: method.clone(),
            url: url.to_owned(),
            source,
        };
        let mut request = Request::builder().method(method.clone()).uri(url);
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        if !content_type.is_empty() {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let request = request.body(Full::new(body)).map_err(|error| unreachable(error.into()))?;
        let answer = self.client.request(request).await.map_err(|error| unreachable(error.into()))?;
        let (head, body) = answer.into_parts();
        let body = body.collect().await.map_err(|error| unreachable(error.into()))?.to_bytes();
        if !head.status.is_success() {
            let body = String::from_utf8_lossy(&body).chars().take(500).collect();
            return Err(PushError::Refused { method, url: url.to_owned(), status: head.status, body });
        }
        Ok(Response::from_parts(head, ()))
    }
}
