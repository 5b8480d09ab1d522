//! One request, one answer.
//!
//! A request comes in; what the distribution specification says about it goes out, errors in its own JSON.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::header::{ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use http::{HeaderName, HeaderValue, Method, StatusCode};

use super::ServeShared;
use super::layout::{ServedBlob, sha256};
use super::range::{RangeAnswer, part};
use crate::spool::read_piece;

const DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
const API: HeaderName = HeaderName::from_static("docker-distribution-api-version");

pub(super) async fn answer(shared: Arc<ServeShared>, request: Request) -> Response {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = error(StatusCode::METHOD_NOT_ALLOWED, "UNSUPPORTED", "this registry is read-only");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let head = request.method() == Method::HEAD;
    let path = request.uri().path();
    let Some(rest) = path.strip_prefix("/v2/") else {
        let code = if path == "/v2" { StatusCode::OK } else { StatusCode::NOT_FOUND };
        return if code.is_success() {
            api(head)
        } else {
            error(code, "NOT_FOUND", "this is a registry: ask below /v2/")
        };
    };
    if rest.is_empty() {
        return api(head);
    }
    // A repository may hold slashes: what counts is the last but one part.
    let parts = rest.rsplit_once('/').and_then(|(left, name)| Some((left.rsplit_once('/')?, name)));
    match parts {
        Some(((repository, "manifests"), name)) => manifest(&shared, repository, name, head).await,
        Some(((_, "blobs"), name)) => {
            let range = request.headers().get(RANGE).and_then(|value| value.to_str().ok());
            blob(shared, name, range, head).await
        }
        _ => error(StatusCode::NOT_FOUND, "NAME_UNKNOWN", "there is only /v2/NAME/manifests/ and /v2/NAME/blobs/"),
    }
}

fn api(head: bool) -> Response {
    let mut response = Response::new(if head { Body::empty() } else { Body::from("{}") });
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(API, HeaderValue::from_static("registry/2.0"));
    response
}

async fn manifest(shared: &ServeShared, repository: &str, name: &str, head: bool) -> Response {
    let Some(manifest) = shared.layout.manifest(repository, name).await else {
        return error(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN", "no such tag or manifest here");
    };
    let length = manifest.bytes.len();
    if !head && !shared.pass(length).await {
        return error(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", "this registry is stopping");
    }
    let body = if head { Body::empty() } else { Body::from(manifest.bytes) };
    let mut response = Response::new(body);
    set(&mut response, CONTENT_TYPE, manifest.media_type.as_ref());
    set(&mut response, CONTENT_LENGTH, &length.to_string());
    set(&mut response, DIGEST, manifest.digest.as_ref());
    response
}

async fn blob(shared: Arc<ServeShared>, name: &str, range: Option<&str>, head: bool) -> Response {
    let Some(digest) = sha256(name) else {
        return error(
            StatusCode::BAD_REQUEST,
            "DIGEST_INVALID",
            "a blob is named by sha256: and 64 hexadecimal characters",
        );
    };
    let Some(blob) = shared.layout.blob(&digest).await else {
        return error(StatusCode::NOT_FOUND, "BLOB_UNKNOWN", "no such blob here");
    };
    let size = blob.size;
    let (status, first, length) = match part(range, size) {
        RangeAnswer::Outside => {
            let mut response =
                error(StatusCode::RANGE_NOT_SATISFIABLE, "RANGE_INVALID", "the range lies outside of the blob");
            set(&mut response, CONTENT_RANGE, &format!("bytes */{size}"));
            return response;
        }
        RangeAnswer::Whole => (StatusCode::OK, 0, size),
        RangeAnswer::Some { first, last } => (StatusCode::PARTIAL_CONTENT, first, last - first + 1),
    };
    let mut response = Response::new(if head { Body::empty() } else { stream(shared, blob, first, length) });
    *response.status_mut() = status;
    set(&mut response, CONTENT_TYPE, "application/octet-stream");
    set(&mut response, CONTENT_LENGTH, &length.to_string());
    set(&mut response, ACCEPT_RANGES, "bytes");
    set(&mut response, DIGEST, digest.as_ref());
    if status == StatusCode::PARTIAL_CONTENT {
        set(&mut response, CONTENT_RANGE, &format!("bytes {first}-{}/{size}", first + length - 1));
    }
    response
}

/// A part of a file, piece by piece. An error in the middle closes the connection: the reader sees that it is not whole.
fn stream(shared: Arc<ServeShared>, blob: ServedBlob, first: u64, length: u64) -> Body {
    let state = (shared, Arc::new(blob.file), first, length);
    Body::from_stream(futures::stream::try_unfold(state, |(shared, file, at, left)| async move {
        if left == 0 {
            return Ok(None);
        }
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(shared.piece());
        let piece = read_piece(file.clone(), at, most).await?;
        if piece.is_empty() {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof));
        }
        if !shared.pass(piece.len()).await {
            return Err(std::io::Error::from(std::io::ErrorKind::ConnectionAborted));
        }
        let read = piece.len() as u64;
        Ok(Some((piece, (shared, file, at + read, left - read))))
    }))
}

fn error(status: StatusCode, code: &str, message: &str) -> Response {
    let body = serde_json::json!({"errors": [{"code": code, "message": message}]}).to_string();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    set(&mut response, CONTENT_TYPE, "application/json");
    response
}

fn set(response: &mut Response, name: HeaderName, value: &str) {
    // Media types come from files: one that cannot be a header is left out.
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}
