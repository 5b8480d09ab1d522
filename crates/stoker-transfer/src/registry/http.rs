//! One request and where it leads.
//!
//! A method and an address come in; the head of the final answer goes out, with its body still to come. Redirects
//! are followed here, because they decide who may see our credentials. It knows nothing of images or logins, and
//! never shows an address: it may be signed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, LOCATION, PROXY_AUTHORIZATION, RANGE, USER_AGENT,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::timeout;

use super::body::{AnswerBody, Broken, is_packed};
use super::connect::Connect;
use super::location::resolve;
use super::silence::within;
use super::tls::Unusable;
use super::{Error, Settings, said, tls};
use crate::hosts::{RegistryNames, Trust};
use crate::proxy::{Proxy, Way};
use crate::reference::{is_loopback, is_this_machine};

const MOST_HOPS: usize = 5;
/// What we read of an answer that we do not need, to keep the connection.
const MOST_DISCARDED: usize = 64 * 1024;
/// The longest wait for a body that is optional.
const A_MOMENT: Duration = Duration::from_secs(1);
/// What one read takes from a socket: much, or little where a limit counts each byte.
const READ: usize = 256 * 1024;
const SMALL_READ: usize = 16 * 1024;
/// What is read from a socket for TLS, which asks for less.
const READ_AHEAD: usize = 64 * 1024;
/// More sorts of hosts than this are not remembered: a client is cheap to make again.
const MOST_CLIENTS: usize = 64;

/// Why there is no answer, and which host failed. The caller knows what was asked for.
#[derive(Debug)]
pub(crate) struct HttpFailure {
    /// The host that failed, if it is the target of a redirect.
    pub(crate) elsewhere: Option<String>,
    pub(crate) why: HttpProblem,
}

#[derive(Debug)]
pub(crate) enum HttpProblem {
    Unreachable(String),
    Stalled,
    Refused(String),
    /// Over the bound; with its Content-Length, if it has one.
    TooLarge(Option<u64>),
    Settings(Unusable),
}

/// The head of an answer, with its body still to come.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: AnswerBody,
    /// The host that answered, if it is the target of a redirect. It got none of our credentials.
    pub(crate) elsewhere: Option<String>,
}

impl HttpAnswer {
    fn new(response: Response<Incoming>, connection: CaptureConnection) -> Self {
        let (head, incoming) = response.into_parts();
        let body = AnswerBody::new(&head.headers, incoming, connection);
        Self { status: head.status, headers: head.headers, body, elsewhere: None }
    }
}

/// What to ask, and as whom.
#[derive(Debug, Clone)]
pub(crate) struct HttpRequest {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) accept: Option<&'static str>,
    pub(crate) from: u64,
    pub(crate) authorization: Option<HeaderValue>,
    pub(crate) trust: Arc<Trust>,
    /// What else this address wants to hear.
    pub(crate) headers: HeaderMap,
    /// Whether the body is taken in small pieces.
    pub(crate) small: bool,
    /// The registry to which no redirect may lead.
    pub(crate) apart_from: Option<Arc<RegistryNames>>,
}

impl HttpRequest {
    /// Just this, as nobody.
    pub(crate) fn new(method: Method, uri: Uri, trust: Arc<Trust>) -> Self {
        let headers = HeaderMap::new();
        Self { method, uri, accept: None, from: 0, authorization: None, trust, headers, small: false, apart_from: None }
    }
}

type Connections = Client<HttpsConnector<Connect>, Empty<Bytes>>;

/// The connections of this process: of each sort of host with those of its kind.
#[derive(Debug)]
pub(crate) struct Http {
    clients: Mutex<HashMap<([u8; 32], bool), Connections>>,
    user_agent: HeaderValue,
    stall: Duration,
    connect: Duration,
    proxy: Proxy,
    extra_ca: Vec<u8>,
}

impl Http {
    pub(crate) fn new(settings: &Settings) -> Result<Self, Error> {
        let user_agent = HeaderValue::from_str(&settings.user_agent)
            .map_err(|_| Error::Setup { why: "the user agent cannot be a header".to_owned() })?;
        let http = Self {
            clients: Mutex::default(),
            user_agent,
            stall: settings.stall_timeout,
            connect: settings.connect_timeout,
            proxy: settings.proxy.clone(),
            extra_ca: settings.extra_ca.clone(),
        };
        // What is wrong with the settings is said now and not at the first pull.
        http.connections(&Trust::default(), false).map_err(|unusable| unusable.for_image("any image"))?;
        Ok(http)
    }

    /// The connections to hosts of this sort.
    fn connections(&self, trust: &Trust, small: bool) -> Result<Connections, Unusable> {
        let key = (trust.fingerprint(), small);
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&key) {
            return Ok(client.clone());
        }
        let usual = tls::config(&Trust::default(), &self.extra_ca)?;
        let ahead = if small { SMALL_READ } else { READ_AHEAD };
        let connect = Connect::new(self.proxy.clone(), self.connect, usual, ahead);
        let tls = tls::config(trust, &self.extra_ca)?;
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(connect);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_max_idle_per_host(8)
            .http1_read_buf_exact_size(if small { SMALL_READ } else { READ })
            .build(connector);
        if clients.len() >= MOST_CLIENTS {
            clients.clear();
        }
        clients.insert(key, client.clone());
        Ok(client)
    }

    /// Sends, and follows redirects to the last answer.
    ///
    /// Credentials and headers go only to the address that was asked for: once a redirect leads to another scheme, host or port
    /// they are dropped, and stay dropped even if it leads back.
    pub(crate) async fn send(&self, ask: HttpRequest) -> Result<HttpAnswer, HttpFailure> {
        let origin = ask.uri.clone();
        let mut ask = ask;
        let mut elsewhere = None;
        for _ in 0..=MOST_HOPS {
            let failed = |why| HttpFailure { elsewhere: elsewhere.clone(), why };
            let mut answer = self.send_once(&ask).await.map_err(failed)?;
            let redirect = matches!(answer.status.as_u16(), 301 | 302 | 303 | 307 | 308);
            let Some(location) = answer.headers.get(LOCATION).filter(|_| redirect) else {
                return Ok(HttpAnswer { elsewhere, ..answer });
            };
            let refused =
                |why: &str| HttpFailure { elsewhere: elsewhere.clone(), why: HttpProblem::Refused(why.to_owned()) };
            let next = resolve(&ask.uri, location)
                .ok_or_else(|| refused("it redirects to something that is no http or https address"))?;
            if !may_lead_to(&origin, &next) {
                return Err(refused(&format!(
                    "it redirects to {}, which is plain HTTP or this machine itself",
                    place(&next)
                )));
            }
            if ask.apart_from.as_ref().is_some_and(|registry| registry.has(&name(&next))) {
                return Err(refused(&format!(
                    "it redirects to {}, which is the registry itself, and only mirrors may be asked: let it give images itself",
                    name(&next)
                )));
            }
            if !same_place(&origin, &next) {
                (ask.authorization, ask.headers) = (None, HeaderMap::new());
            }
            if !same_host(&origin, &next) {
                ask.trust = ask.trust.abroad();
            }
            self.discard(&mut answer).await;
            elsewhere = (!same_place(&origin, &next)).then(|| name(&next));
            ask.uri = next;
        }
        Err(HttpFailure { elsewhere: None, why: HttpProblem::Refused("it redirects more than 5 times".to_owned()) })
    }

    async fn send_once(&self, ask: &HttpRequest) -> Result<HttpAnswer, HttpProblem> {
        let mut request = Request::new(Empty::new());
        *request.method_mut() = ask.method.clone();
        *request.uri_mut() = ask.uri.clone();
        let headers = request.headers_mut();
        *headers = ask.headers.clone();
        headers.entry(USER_AGENT).or_insert_with(|| self.user_agent.clone());
        // A digest is of the bytes as stored, and a range is one of them. Some proxies compress all the same: see `body`.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(accept) = ask.accept {
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
        }
        if ask.from > 0
            && let Ok(range) = HeaderValue::from_str(&format!("bytes={}-", ask.from))
        {
            headers.insert(RANGE, range);
        }
        if let Some(authorization) = &ask.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        // Where the proxy only tunnels, it hears this when the tunnel is made, and nobody else does.
        if ask.uri.scheme_str() == Some("http")
            && let Way::Through(_, Some(login)) = self.proxy.way(&ask.uri)
        {
            headers.insert(PROXY_AUTHORIZATION, login);
        }
        let connections = self.connections(&ask.trust, ask.small).map_err(HttpProblem::Settings)?;
        let connection = capture_connection(&mut request);
        match within(self.stall, connections.request(request)).await {
            Some(Ok(response)) => Ok(HttpAnswer::new(response, connection)),
            Some(Err(error)) => Err(HttpProblem::Unreachable(causes(&error))),
            None => Err(HttpProblem::Stalled),
        }
    }

    /// Reads a body that must be small.
    pub(crate) async fn read(&self, answer: &mut HttpAnswer, most: usize) -> Result<Bytes, HttpFailure> {
        self.read_body(answer, most).await.map_err(|why| HttpFailure { elsewhere: answer.elsewhere.clone(), why })
    }

    async fn read_body(&self, answer: &mut HttpAnswer, most: usize) -> Result<Bytes, HttpProblem> {
        let length = content_length(&answer.headers);
        if length.is_some_and(|length| length > most as u64) {
            return Err(HttpProblem::TooLarge(length.filter(|_| !is_packed(&answer.headers))));
        }
        let mut bytes = BytesMut::new();
        loop {
            match within(self.stall, answer.body.next()).await.ok_or(HttpProblem::Stalled)? {
                None => return Ok(bytes.freeze()),
                Some(Err(Broken::Cut(cause))) => return Err(HttpProblem::Unreachable(cause)),
                Some(Err(Broken::Packed(why))) => return Err(HttpProblem::Refused(why)),
                Some(Ok(piece)) if bytes.len() + piece.bytes.len() > most => return Err(HttpProblem::TooLarge(None)),
                Some(Ok(piece)) => bytes.extend_from_slice(&piece.bytes),
            }
        }
    }

    /// Reads the rest of a short answer, so that its connection can be used again.
    pub(crate) async fn discard(&self, answer: &mut HttpAnswer) {
        // Whatever happens: at worst the connection is closed instead of kept.
        let _ = timeout(A_MOMENT, self.read(answer, MOST_DISCARDED)).await;
    }

    /// The explanation in the body of an error answer, without these secrets. Waits for a moment only.
    pub(crate) async fn explanation(&self, answer: &mut HttpAnswer, secrets: &[&str]) -> Option<String> {
        let body = timeout(A_MOMENT, self.read(answer, MOST_DISCARDED)).await.ok()?.ok()?;
        said::explanation(&body, secrets)
    }
}

/// The declared length of an answer, where it has one.
pub(crate) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The causes of an error of the HTTP client in one line, without the outermost, which only says that it is one.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    chain(error.source().unwrap_or(error))
}

/// All the causes of an error in one line. (hyper's and rustls' errors name no addresses.)
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Whether somebody at `origin` may send us to `target`, be it for a blob or for a token.
///
/// Only a registry on this machine may lead to this machine: else any registry on the internet could make us talk to the
/// services that trust loopback. And only who is spoken to without TLS, because somebody wrote so, may lead to plain HTTP.
pub(crate) fn may_lead_to(origin: &Uri, target: &Uri) -> bool {
    let from_here = origin.host().is_some_and(is_loopback);
    let to_here = target.host().is_some_and(is_this_machine);
    match target.scheme_str() {
        Some("https") => from_here || !to_here,
        Some("http") => from_here == to_here && origin.scheme_str() == Some("http"),
        _ => false,
    }
}

fn same_place(a: &Uri, b: &Uri) -> bool {
    place(a) == place(b)
}

/// Whether it is one host, on whatever port.
pub(crate) fn same_host(a: &Uri, b: &Uri) -> bool {
    a.host().is_some_and(|host| b.host().is_some_and(|other| host.eq_ignore_ascii_case(other)))
}

/// Host and port as in the address.
pub(crate) fn name(uri: &Uri) -> String {
    uri.authority().map(|authority| authority.as_str().to_ascii_lowercase()).unwrap_or_default()
}

/// Scheme, host and port: all of an address that may be shown.
pub(crate) fn place(uri: &Uri) -> String {
    let scheme = uri.scheme_str().unwrap_or("");
    let port = uri.port_u16().unwrap_or(if scheme == "http" { 80 } else { 443 });
    format!("{scheme}://{}:{port}", uri.host().unwrap_or("").to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    #[test]
    fn who_may_lead_where() {
        for (origin, target, may) in [
            ("https://reg.io/", "https://cdn.io/", true),
            ("https://reg.io/", "http://cdn.io/", false),
            ("https://reg.io/", "http://127.0.0.1:80/", false),
            ("https://reg.io/", "https://localhost/", false),
            ("https://reg.io/", "https://[::1]/", false),
            ("https://reg.io/", "https://0.0.0.0/", false),
            ("https://reg.io/", "https://[::]/", false),
            ("https://reg.io/", "https://[::ffff:127.0.0.1]/", false),
            ("https://reg.io/", "https://LOCALHOST./", false),
            ("https://reg.io/", "https://a.localhost/", false),
            ("https://reg.io/", "https://127.1/", false),
            ("https://reg.io/", "https://2130706433/", false),
            ("https://reg.io/", "https://0x7f.0.0.0x1/", false),
            ("https://reg.io/", "https://10.0.0.1/", true),
            ("https://reg.io/", "https://7.cdn.io/", true),
            ("http://127.0.0.1:5000/", "http://127.0.0.1:5001/", true),
            ("http://127.0.0.1:5000/", "http://10.0.0.1/", false),
            ("http://127.0.0.1:5000/", "https://cdn.io/", true),
            ("https://127.0.0.1:5000/", "http://127.0.0.1/", false),
            ("http://10.0.0.1:5000/", "http://10.0.0.2/", true),
            ("http://10.0.0.1:5000/", "http://127.0.0.1/", false),
        ] {
            assert_eq!(may_lead_to(&uri(origin), &uri(target)), may, "{origin} -> {target}");
        }
        assert!(same_place(&uri("https://a.io/x"), &uri("https://A.io:443/y")));
        assert!(!same_place(&uri("https://a.io/x"), &uri("https://a.io:444/x")));
    }
}
