//! Responses. In: JSON, bytes or a stream. Out: an HTTP response with the right headers.

use crate::refusal::Refusal;
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WARNING};
use http::{HeaderValue, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use serde_json::Value;
use std::convert::Infallible;

/// The body of every response.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Warnings beyond this many are left out: headers have bounds.
const MAX_WARNINGS: usize = 16;

/// A response in the making.
pub(super) struct Answer {
    code: u16,
    content_type: String,
    body: Body,
    warnings: Vec<String>,
    /// When it may be better, in seconds.
    retry_after: Option<u64>,
}

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

impl Answer {
    fn new(code: u16, content_type: impl Into<String>, body: Body) -> Self {
        Self { code, content_type: content_type.into(), body, warnings: Vec::new(), retry_after: None }
    }

    pub(super) fn text(code: u16, text: &str) -> Self {
        Self::new(code, "text/plain; charset=utf-8", full(text.to_owned()))
    }

    pub(super) fn json(value: &Value) -> Self {
        Self::object(200, value.to_string())
    }

    pub(super) fn object(code: u16, json: impl Into<Bytes>) -> Self {
        Self::new(code, "application/json", full(json))
    }

    pub(super) fn discovery(value: &Value, form: &str) -> Self {
        let media = format!("application/json;g=apidiscovery.k8s.io;v={form};as=APIGroupDiscoveryList");
        Self::new(200, media, full(value.to_string()))
    }

    pub(super) fn stream(lines: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        let frames = lines.map(|line| Ok(Frame::data(line)));
        Self::new(200, "application/json", StreamBody::new(frames).boxed_unsync())
    }

    pub(super) fn refusal(refusal: &Refusal) -> Self {
        if let Some(text) = refusal.text() {
            return Self::text(refusal.code, text);
        }
        let mut answer = Self::object(refusal.code, refusal.status().to_string());
        let details = refusal.details.as_ref();
        answer.retry_after = details.and_then(|details| details.get("retryAfterSeconds")).and_then(Value::as_u64);
        answer
    }

    pub(super) fn with_warnings(mut self, warnings: &[String]) -> Self {
        self.warnings = warnings.iter().take(MAX_WARNINGS).map(|text| warning(text)).collect();
        self
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(self.body);
        *response.status_mut() = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        if let Ok(media) = HeaderValue::from_str(&self.content_type) {
            headers.insert(CONTENT_TYPE, media);
        }
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        for text in self.warnings {
            if let Ok(value) = HeaderValue::from_str(&text) {
                headers.append(WARNING, value);
            }
        }
        response
    }
}

/// RFC 7234: code, agent, quoted text.
fn warning(text: &str) -> String {
    let mut quoted = String::from("299 - \"");
    for c in text.chars().filter(|c| !c.is_control()).take(256) {
        if matches!(c, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted.push('"');
    quoted
}

/// The response to a request that may not come in.
pub(crate) fn refused(refusal: &Refusal) -> Response<Body> {
    Answer::refusal(refusal).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_refusal_says_when_to_come_again() {
        let mut refusal = Refusal::new(504, "Timeout", "Too large resource version");
        assert_eq!(refused(&refusal).headers().get(RETRY_AFTER), None);
        refusal.details = Some(json!({"retryAfterSeconds": 1}));
        assert_eq!(refused(&refusal).headers()[RETRY_AFTER], "1");
    }
}
