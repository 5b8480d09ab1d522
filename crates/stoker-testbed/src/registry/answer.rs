//! What to answer, faults included.
//!
//! A request comes in; an answer as a value goes out, with where its body is cut or held.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use super::fault::{Auth, Fault, draw};
use super::{Seen, Shared, Store, digest};

/// An answer, and what happens while it is sent.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Bytes,
    /// What comes before the next answer, as if somebody had forgotten it.
    pub(super) tail: Bytes,
    /// Whether a Content-Length is sent; else the body goes in chunks.
    pub(super) declared: bool,
    /// Whether it is the answer to a HEAD: lengths are told, nothing is sent.
    pub(super) head: bool,
    pub(super) cut_after: Option<u64>,
    pub(super) stall_after: Option<u64>,
    /// Whether the connection ends instead.
    pub(super) hangs_up: bool,
    /// Whether it is held back until everything may go on.
    pub(super) held: bool,
}

impl Answer {
    fn new(status: u16, content_type: &str, body: impl Into<Bytes>) -> Self {
        let headers = vec![("Content-Type", content_type.to_owned())];
        Self { status, headers, body: body.into(), declared: true, ..Self::default() }
    }

    fn error(status: u16, code: &str) -> Self {
        Self::new(status, "application/json", json!({"errors": [{"code": code}]}).to_string())
    }

    fn set(&mut self, name: &'static str, value: impl Into<String>) {
        self.headers.retain(|(known, _)| *known != name);
        self.headers.push((name, value.into()));
    }
}

pub(super) fn answer(shared: &Shared, request: &Seen) -> Answer {
    let mut store = shared.store();
    let faults = draw(&mut store.rules, request);
    let mut answer = if request.path == "/token" {
        token(&mut store, request)
    } else if let Some(refused) = refuse(&mut store, shared, request) {
        refused
    } else {
        let ignore_range = faults.iter().any(|fault| matches!(fault, Fault::IgnoreRange));
        find(&store, request, &faults, ignore_range)
    };
    answer.head = request.method == "HEAD";
    for fault in &faults {
        spoil(&mut answer, fault, request);
    }
    answer
}

/// The thing that was asked for.
fn find(store: &Store, request: &Seen, faults: &[Fault], ignore_range: bool) -> Answer {
    let parts = request.path.strip_prefix("/v2/").and_then(|rest| rest.rsplit_once('/'));
    let Some((left, name)) = parts else { return Answer::new(200, "application/json", "{}") };
    let Some((repository, kind)) = left.rsplit_once('/') else { return Answer::error(404, "NAME_UNKNOWN") };
    if kind == "manifests" {
        let joint = if name.contains(':') { '@' } else { ':' };
        let Some((media_type, bytes)) = store.manifests.get(&format!("{repository}{joint}{name}")) else {
            return Answer::error(404, "MANIFEST_UNKNOWN");
        };
        let mut answer = Answer::new(200, media_type, bytes.clone());
        answer.set("Docker-Content-Digest", digest(bytes));
        return answer;
    }
    let Some(bytes) = store.blobs.get(name) else { return Answer::error(404, "BLOB_UNKNOWN") };
    let mut bytes = bytes.to_vec();
    for fault in faults {
        if let Fault::CorruptAt(at) = fault
            && let Some(byte) = bytes.get_mut(*at as usize)
        {
            *byte ^= 0xff;
        }
    }
    if faults.iter().any(|fault| matches!(fault, Fault::Gzip)) {
        bytes = gzip(&bytes);
    }
    let size = bytes.len();
    let from =
        request.range.as_ref().and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    match from.filter(|_| !ignore_range) {
        Some(from) if from < size => {
            let mut answer = Answer::new(206, "application/octet-stream", Bytes::from(bytes).slice(from..));
            answer.set("Content-Range", format!("bytes {from}-{}/{size}", size - 1));
            answer
        }
        Some(_) => Answer::error(416, "RANGE_INVALID"),
        None => Answer::new(200, "application/octet-stream", bytes),
    }
}

fn spoil(answer: &mut Answer, fault: &Fault, request: &Seen) {
    match fault {
        Fault::Status(status, retry_after) => {
            *answer = Answer { head: answer.head, ..Answer::error(*status, "FAULT") };
            if let Some(retry_after) = retry_after {
                answer.set("Retry-After", retry_after.clone());
            }
        }
        Fault::Explain(status, body) => {
            *answer = Answer { head: answer.head, ..Answer::new(*status, "application/json", body.clone()) };
        }
        Fault::Header(name, value) => answer.set(name, value.clone()),
        Fault::HangUp => answer.hangs_up = true,
        Fault::Hold => answer.held = true,
        Fault::Gzip => {
            // A blob was compressed before its range was taken.
            if answer.status >= 400 || !request.path.contains("/blobs/") {
                answer.body = gzip(&answer.body).into();
            }
            answer.set("Content-Encoding", "gzip");
        }
        // Only a real body is spoiled: a 401 in between is not the thing.
        _ if answer.status >= 400 => {}
        Fault::CutAfter(bytes) => answer.cut_after = Some(*bytes),
        Fault::StallAfter(bytes) => answer.stall_after = Some(*bytes),
        Fault::IgnoreRange | Fault::CorruptAt(_) => {}
        Fault::Redirect(base) => {
            redirect(answer, format!("{base}{}?X-Signature=signed-secret", request.path));
        }
        Fault::Location(location) => redirect(answer, location.clone()),
        Fault::Longer { by, declared } => {
            let mut body = answer.body.to_vec();
            body.resize(body.len() + *by as usize, b' ');
            answer.body = body.into();
            answer.declared = *declared;
        }
        Fault::LateTail(by) => {
            answer.tail = answer.body.split_off(answer.body.len().saturating_sub(*by as usize));
        }
        Fault::ShorterBy(by) => answer.body.truncate(answer.body.len().saturating_sub(*by as usize)),
        Fault::WrongContentRange => {
            let last = answer.body.len();
            answer.status = 206;
            answer.set("Content-Range", format!("bytes 1-{last}/{}", last + 1));
        }
        Fault::SayDigest(text) if text.is_empty() => {
            answer.headers.retain(|(name, _)| *name != "Docker-Content-Digest");
        }
        Fault::SayDigest(text) => answer.set("Docker-Content-Digest", text.clone()),
        Fault::Serve(body) => answer.body = body.clone(),
        Fault::SayNothing => *answer = Answer { status: 200, declared: true, head: answer.head, ..Answer::default() },
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // A vector takes everything.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

fn redirect(answer: &mut Answer, location: String) {
    *answer = Answer { head: answer.head, ..Answer::new(307, "text/plain", "elsewhere") };
    answer.set("Location", location);
}

/// A 401, where there must be one.
fn refuse(store: &mut Store, shared: &Shared, request: &Seen) -> Option<Answer> {
    let given = request.authorization.as_deref();
    let challenge = match store.auth.clone() {
        Auth::Open => return None,
        Auth::Refuse => "Basic realm=\"testbed\"".to_owned(),
        Auth::Basic { login } => {
            if given == Some(&format!("Basic {}", STANDARD.encode(login))) {
                return None;
            }
            "Basic realm=\"testbed\"".to_owned()
        }
        Auth::Bearer { uses, realm, .. } => {
            let used = given.and_then(|given| store.tokens.get_mut(given.strip_prefix("Bearer ")?));
            if let Some(used) = used.filter(|used| **used < uses) {
                *used += 1;
                return None;
            }
            let realm = realm.unwrap_or_else(|| format!("http://{}/token", shared.addr));
            let path = request.path.trim_start_matches("/v2/");
            let repository = path.rsplitn(3, '/').nth(2).unwrap_or("");
            format!("Bearer realm=\"{realm}\",service=\"testbed\",scope=\"repository:{repository}:pull\"")
        }
    };
    let mut answer = Answer::error(401, "UNAUTHORIZED");
    answer.set("WWW-Authenticate", challenge);
    Some(answer)
}

fn token(store: &mut Store, request: &Seen) -> Answer {
    let Auth::Bearer { login, expires_in, .. } = store.auth.clone() else { return Answer::error(404, "NOT_FOUND") };
    let wanted = login.map(|login| format!("Basic {}", STANDARD.encode(login)));
    if wanted.is_some() && wanted != request.authorization {
        return Answer::error(401, "UNAUTHORIZED");
    }
    let token = format!("token-{}", store.tokens.len() + 1);
    store.tokens.insert(token.clone(), 0);
    Answer::new(200, "application/json", json!({"token": token, "expires_in": expires_in}).to_string())
}
