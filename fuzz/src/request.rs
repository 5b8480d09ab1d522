//! Whole requests to the embedded API.

use std::convert::Infallible;
use std::sync::Arc;

use http::Request;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use stoker_embedded::{Api, Service, Settings};
use tower::ServiceExt as _;

/// More requests than this in one input are not read.
const MOST: usize = 6;

/// Up to six requests to a new API, each of three lines and a body, ended by a zero byte: method, address, media type. None is
/// answered with an error of the server, and afterwards a client can read the lists with everything that was stored.
pub fn request(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let clock = Arc::new(|| "2026-01-02T03:04:05Z".parse().expect("a time"));
        let api = Api::new(Settings::new(vec![definition()], clock)).expect("an API");
        let service = api.service();
        for text in bytes.split(|byte| *byte == 0).take(MOST) {
            if let Some(request) = read(text) {
                let watch = request.uri().query().is_some_and(|query| query.contains("watch"));
                let address = request.uri().clone();
                let answer = service.clone().oneshot(request).await.unwrap_or_else(|never: Infallible| match never {});
                assert!(answer.status().as_u16() < 500 || answer.status() == 501, "{} for {address}", answer.status());
                if !watch {
                    answer.into_body().collect().await.expect("a body");
                }
            }
        }
        for list in ["/apis/fuzz.example/v1/things", "/api/v1/secrets", "/api/v1/configmaps", "/api/v1/pods"] {
            check(&service, list).await;
        }
    });
}

async fn check(service: &Service, list: &str) {
    let request = Request::get(list).body(Full::<bytes::Bytes>::default()).expect("a request");
    let answer = service.clone().oneshot(request);
    let answer = answer.await.unwrap_or_else(|never: Infallible| match never {});
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    let read = serde_json::from_slice::<Value>(&body);
    assert!(read.is_ok(), "{list} cannot be read: {:?}", read.err());
}

fn read(text: &[u8]) -> Option<Request<Full<bytes::Bytes>>> {
    let mut lines = text.splitn(4, |byte| *byte == b'\n');
    let (method, address, media) = (lines.next()?, lines.next()?, lines.next()?);
    let body = bytes::Bytes::copy_from_slice(lines.next().unwrap_or_default());
    // A shorter way to the media types that matter.
    let media = match media {
        b"j" => b"application/json",
        b"m" => b"application/merge-patch+json".as_slice(),
        b"p" => b"application/json-patch+json",
        b"s" => b"application/strategic-merge-patch+json",
        b"b" => b"application/vnd.kubernetes.protobuf",
        other => other,
    };
    let address = std::str::from_utf8(address).ok()?;
    Request::builder().method(method).uri(address).header("content-type", media).body(Full::new(body)).ok()
}

/// A kind that keeps every field of one part, and has a schema and a rule for another.
fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.fuzz.example"},
        "spec": {
            "group": "fuzz.example", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    "spec": {"type": "object", "properties": {
                        "epoch": {"type": "integer", "minimum": 0},
                        "names": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}},
                    }, "x-kubernetes-validations": [
                        {"rule": "!has(oldSelf.epoch) || (has(self.epoch) && self.epoch >= oldSelf.epoch)"},
                    ]},
                }}},
            }],
        },
    })
}
