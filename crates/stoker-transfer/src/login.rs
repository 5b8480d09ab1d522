//! Who we are to a registry.
//!
//! A user name and a secret come in; the header that proves it goes out. The secret never goes to a log: its
//! `Debug` shows stars, and there is no `Display`.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use sha2::{Digest as _, Sha256};

/// A text that must not be shown to anybody.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text from logs from here on.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// A user name and password (or robot token) of one registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// The account's name.
    pub username: String,
    /// Its password or token.
    pub password: Secret,
}

impl Login {
    /// The value of an `Authorization: Basic` header, marked as sensitive; `None` if it cannot be one.
    pub(crate) fn basic(&self) -> Option<HeaderValue> {
        let text = STANDARD.encode(format!("{}:{}", self.username, self.password.expose()));
        sensitive(&format!("Basic {text}"))
    }

    /// Tells logins apart as keys of a map, without the password being one.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update((self.username.len() as u64).to_be_bytes());
        hash.update(self.username.as_bytes());
        hash.update(self.password.expose().as_bytes());
        hash.finalize().into()
    }
}

/// The texts of a request that must not be shown if a server repeats them: the password and the credentials in the header.
pub(crate) fn secrets<'a>(login: Option<&'a Login>, authorization: Option<&'a HeaderValue>) -> Vec<&'a str> {
    let sent = authorization.and_then(|value| value.to_str().ok());
    let sent = sent.map(|value| value.split_once(' ').map_or(value, |(_, secret)| secret));
    sent.into_iter().chain(login.map(|login| login.password.expose())).collect()
}

/// A header value that hyper's own logs leave out.
pub(crate) fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_shows_the_password() {
        let login = Login { username: "ada".into(), password: "hunter2".into() };
        assert!(!format!("{login:?} {:?}", login.basic()).contains("hunter2"));
        assert_eq!(login.basic().unwrap(), "Basic YWRhOmh1bnRlcjI=");
    }

    #[test]
    fn the_border_between_name_and_password_counts() {
        let login = |u: &str, p: &str| Login { username: u.into(), password: p.into() };
        assert_ne!(login("ab", "c").fingerprint(), login("a", "bc").fingerprint());
    }
}
