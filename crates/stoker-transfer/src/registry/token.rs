//! The proofs we hold, and how we get new ones.
//!
//! A registry's challenge and a login come in; the header to send goes out and is kept until it expires. There is one
//! slot for each registry, repository and login: whoever finds a token used up renews it, the others wait and share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderValue, Method, Uri};
use serde::Deserialize;
use tokio::time::Instant;

use super::challenge::{Bearer, Challenge};
use super::http::{Http, HttpFailure, HttpRequest, may_lead_to, name, place, same_host};
use super::refusal::LoginRefusal;
use crate::hosts::{RegistryNames, Trust};
use crate::login::{self, Login, sensitive};

/// A token's answer is a few kilobytes at most.
const MOST_TOKEN_BYTES: usize = 64 * 1024;
const LONGEST_SCOPE: usize = 1024;
const MOST_RENEWALS: usize = 4;
/// More slots than this are not kept: a token is cheap to get again.
const MOST_SLOTS: usize = 1024;
/// What the token specification says where the server says nothing.
const USUAL_LIFE: Duration = Duration::from_secs(60);
const LONGEST_LIFE: Duration = Duration::from_secs(24 * 3600);

/// Why there are no credentials to send. `host` is the token server.
#[derive(Debug)]
pub(crate) enum Denied {
    /// The registry's challenge cannot be met.
    Registry(LoginRefusal),
    /// The token server refused.
    TokenServer { host: String, why: LoginRefusal, said: Option<String> },
    /// The token server did not answer.
    Failure(String, HttpFailure),
    /// The token server answered with this status.
    Status { host: String, status: u16, retry_after: Option<Duration>, said: Option<String> },
}

/// Whose proof it is, and for what.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ProofKey {
    /// Scheme, name and port of whom it is for: what one host gave is no other host's business.
    pub(crate) place: String,
    pub(crate) repository: String,
    pub(crate) login: Option<[u8; 32]>,
}

/// A header that proves who we are, until it does not.
#[derive(Debug, Clone)]
struct Grant {
    header: HeaderValue,
    expires: Option<Instant>,
}

/// The place of one proof; locked while it is renewed.
#[derive(Debug, Default)]
pub(crate) struct ProofSlot {
    grant: tokio::sync::Mutex<Option<Grant>>,
    /// Whether one was ever good.
    let_in: AtomicBool,
}

impl ProofSlot {
    /// How often a refusal is answered with another proof. Who was let in before is refused for the sake of a token that is
    /// used up, and those who share it may use up the next one too; for anybody else a second refusal is meant.
    pub(crate) fn renewals(&self) -> usize {
        if self.let_in.load(Ordering::Relaxed) { MOST_RENEWALS } else { 1 }
    }

    /// We were let in.
    pub(crate) fn good(&self) {
        self.let_in.store(true, Ordering::Relaxed);
    }

    /// The header to try first.
    pub(crate) async fn current(&self) -> Option<HeaderValue> {
        let grant = self.grant.lock().await;
        grant.as_ref().filter(|grant| grant.is_fresh()).map(|grant| grant.header.clone())
    }

    /// A header other than the one that was just refused: somebody else's newer one, or a new one.
    pub(crate) async fn renew(
        &self,
        refused: Option<&HeaderValue>,
        challenges: &[Challenge],
        asker: &Asker<'_>,
    ) -> Result<HeaderValue, Denied> {
        let mut slot = self.grant.lock().await;
        if let Some(grant) = slot.as_ref()
            && grant.is_fresh()
            && Some(&grant.header) != refused
        {
            return Ok(grant.header.clone());
        }
        *slot = None;
        let grant = asker.grant(challenges).await?;
        let header = grant.header.clone();
        *slot = Some(grant);
        Ok(header)
    }
}

impl Grant {
    fn is_fresh(&self) -> bool {
        self.expires.is_none_or(|expires| Instant::now() < expires)
    }
}

/// All the proofs of this process.
#[derive(Debug, Default)]
pub(crate) struct Tokens(Mutex<HashMap<ProofKey, Arc<ProofSlot>>>);

impl Tokens {
    pub(crate) fn slot(&self, key: ProofKey) -> Arc<ProofSlot> {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= MOST_SLOTS && !slots.contains_key(&key) {
            slots.clear();
        }
        slots.entry(key).or_default().clone()
    }
}

/// Who asks for a proof, and on behalf of which registry.
#[derive(Debug)]
pub(crate) struct Asker<'a> {
    pub(crate) http: &'a Http,
    pub(crate) registry: &'a Uri,
    pub(crate) trust: &'a Arc<Trust>,
    /// The registry, where that must hear nothing: then only the host that was asked may give tokens. Token servers have names of their own, of which
    /// nobody can tell whose they are.
    pub(crate) apart_from: Option<&'a Arc<RegistryNames>>,
    pub(crate) repository: &'a str,
    pub(crate) login: Option<&'a Login>,
}

/// What a token server answers.
#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
    expires_in: Option<serde_json::Number>,
}

impl Asker<'_> {
    async fn grant(&self, challenges: &[Challenge]) -> Result<Grant, Denied> {
        // A token says less about us than a password: take it where both are offered.
        let bearer = challenges.iter().find_map(|challenge| match challenge {
            Challenge::Bearer(bearer) => Some(bearer),
            Challenge::Basic => None,
        });
        match (bearer, self.login) {
            (Some(bearer), _) => self.token(bearer).await,
            (None, _) if challenges.is_empty() => Err(Denied::Registry(LoginRefusal::UnknownScheme)),
            (None, None) => Err(Denied::Registry(LoginRefusal::NoLogin)),
            (None, Some(login)) => {
                let header = login.basic().ok_or(Denied::Registry(LoginRefusal::Unsendable))?;
                Ok(Grant { header, expires: None })
            }
        }
    }

    async fn token(&self, bearer: &Bearer) -> Result<Grant, Denied> {
        let uri = self.token_uri(bearer).ok_or(Denied::Registry(LoginRefusal::TokenServer))?;
        // The token server gets the password: it must be as trustworthy as the way to the registry itself.
        if !may_lead_to(self.registry, &uri) {
            return Err(Denied::Registry(LoginRefusal::UnsafeTokenServer));
        }
        if self.apart_from.is_some_and(|registry| !same_host(self.registry, &uri) || registry.has(&name(&uri))) {
            return Err(Denied::Registry(LoginRefusal::ForeignTokenServer));
        }
        let authorization = match self.login {
            Some(login) => Some(login.basic().ok_or(Denied::Registry(LoginRefusal::Unsendable))?),
            None => None,
        };
        let trust = if same_host(self.registry, &uri) { self.trust.clone() } else { self.trust.abroad() };
        let accept = Some("application/json");
        let apart_from = self.apart_from.cloned();
        let ask = HttpRequest { accept, authorization, apart_from, ..HttpRequest::new(Method::GET, uri, trust) };
        tracing::debug!(server = place(&ask.uri), repository = self.repository, "asking for a token");
        let (host, sent) = (name(&ask.uri), ask.authorization.clone());
        let mut answer = self.http.send(ask).await.map_err(|failure| Denied::Failure(host.clone(), failure))?;
        let host = answer.elsewhere.clone().unwrap_or(host);
        let status = answer.status;
        if !status.is_success() {
            let retry_after = super::retry::retry_after(&answer.headers);
            let said = self.http.explanation(&mut answer, &login::secrets(self.login, sent.as_ref())).await;
            return Err(match (status.as_u16(), self.login) {
                (400 | 401, Some(_)) => Denied::TokenServer { host, why: LoginRefusal::Login, said },
                (400 | 401, None) => Denied::TokenServer { host, why: LoginRefusal::NoLogin, said },
                (403, _) => Denied::TokenServer { host, why: LoginRefusal::Forbidden, said },
                (status, _) => Denied::Status { host, status, retry_after, said },
            });
        }
        let body = self.http.read(&mut answer, MOST_TOKEN_BYTES).await;
        let body = body.map_err(|failure| Denied::Failure(host.clone(), failure))?;
        read_token(&body).ok_or_else(|| {
            answer.body.spoiled();
            Denied::TokenServer { host, why: LoginRefusal::NoToken, said: None }
        })
    }

    fn token_uri(&self, bearer: &Bearer) -> Option<Uri> {
        let ours = format!("repository:{}:pull", self.repository);
        let scope = bearer.scope.as_deref().filter(|scope| scope.len() <= LONGEST_SCOPE).unwrap_or(&ours);
        let mut text = bearer.realm.split('#').next()?.to_owned();
        if text.contains('@') {
            return None;
        }
        let mut separator = if text.contains('?') { '&' } else { '?' };
        for (name, value) in [("service", bearer.service.as_deref()), ("scope", Some(scope))] {
            if let Some(value) = value {
                text.push(separator);
                text.push_str(&format!("{name}={}", encode(value)));
                separator = '&';
            }
        }
        text.parse().ok()
    }
}

fn read_token(body: &[u8]) -> Option<Grant> {
    let answer: TokenAnswer = serde_json::from_slice(body).ok()?;
    let token = answer.token.or(answer.access_token).filter(|token| !token.is_empty())?;
    let life = match answer.expires_in.and_then(|seconds| seconds.as_u64()) {
        Some(seconds) if seconds > 0 => Duration::from_secs(seconds).min(LONGEST_LIFE),
        _ => USUAL_LIFE,
    };
    // Renewed a little early, so that it is still good when it arrives.
    let expires = Instant::now() + life - life / 10;
    Some(Grant { header: sensitive(&format!("Bearer {token}"))?, expires: Some(expires) })
}

/// Percent-encodes all but what is safe in the value of a query.
pub(crate) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' | b':' | b',' => {
                out.push(byte as char)
            }
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tokens_live_as_long_as_they_say() {
        for (body, seconds) in [
            (r#"{"token":"t","expires_in":300}"#, 270),
            (r#"{"access_token":"t"}"#, 54),
            (r#"{"token":"t","expires_in":-5}"#, 54),
            (r#"{"token":"t","expires_in":1e300}"#, 54),
            (r#"{"token":"t","expires_in":18446744073709551615}"#, 24 * 3600 * 9 / 10),
        ] {
            let grant = read_token(body.as_bytes()).unwrap();
            assert_eq!(grant.expires.unwrap() - Instant::now(), Duration::from_secs(seconds), "{body}");
        }
        for body in ["", "{}", "[]", r#"{"token":""}"#, "{\"token\":\"a\\nb\"}"] {
            assert!(read_token(body.as_bytes()).is_none(), "{body}");
        }
    }

    #[test]
    fn queries_are_encoded() {
        assert_eq!(encode("repository:a/b:pull x&y=é"), "repository:a/b:pull%20x%26y%3D%C3%A9");
    }
}
