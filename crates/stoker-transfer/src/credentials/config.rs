//! The two shapes of pull secrets that Kubernetes has, read.
//!
//! Bytes come in; patterns with logins go out, in the order of the file. Errors say where and what, never the content:
//! a file that is broken may hold its password anywhere.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use super::pattern::Pattern;
use crate::login::{Login, Secret};

/// An API server keeps no larger Secret.
const MOST_BYTES: usize = 1024 * 1024;
const MOST_ENTRIES: usize = 1000;

/// Which of the two shapes a secret has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretKind {
    /// `kubernetes.io/dockerconfigjson`: the file `~/.docker/config.json`.
    DockerConfigJson,
    /// `kubernetes.io/dockercfg`: its older form, without `auths` around it.
    DockerCfg,
}

impl SecretKind {
    /// The shape that a type of Kubernetes Secret has.
    pub fn of_type(name: &str) -> Option<Self> {
        match name {
            "kubernetes.io/dockerconfigjson" => Some(Self::DockerConfigJson),
            "kubernetes.io/dockercfg" => Some(Self::DockerCfg),
            _ => None,
        }
    }

    /// The key of the Secret's data that holds the file.
    pub fn data_key(self) -> &'static str {
        match self {
            Self::DockerConfigJson => ".dockerconfigjson",
            Self::DockerCfg => ".dockercfg",
        }
    }
}

/// What is wrong with a pull secret. The content is not in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Too large to be one.
    #[error("it is larger than 1 MiB")]
    TooLarge,
    /// Not JSON, or not of this shape.
    #[error("its {file} is not of the right form (line {line}, column {column})")]
    Json {
        /// Which key of the Secret.
        file: &'static str,
        /// Where, counted from 1.
        line: usize,
        /// Where, counted from 1.
        column: usize,
    },
    /// More than anybody has.
    #[error("it has more than 1000 entries")]
    TooMany,
    /// The name before a login is no place.
    #[error("entry {0} is not for a registry: its name is no host")]
    NotAPlace(usize),
    /// `auth` cannot be decoded.
    #[error("the auth of entry {0} is not the base64 of user:password")]
    Auth(usize),
    /// Nothing to log in with.
    #[error("no entry has a login; credential helpers of a docker configuration work on its own machine only")]
    NoLogin,
}

#[derive(Deserialize)]
struct ConfigFile {
    auths: ConfigEntries,
}

/// The entries in the order of the file.
struct ConfigEntries(Vec<(String, ConfigEntry)>);

#[derive(Deserialize, Default)]
#[serde(default)]
struct ConfigEntry {
    username: Option<String>,
    password: Option<String>,
    auth: Option<String>,
    identitytoken: Option<String>,
}

impl<'de> Deserialize<'de> for ConfigEntries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = ConfigEntries;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("logins by registry")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ConfigEntries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(ConfigEntries(entries))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// The logins of a secret, each with where it may be sent.
pub(crate) fn read(kind: SecretKind, bytes: &[u8]) -> Result<Vec<(Pattern, Login)>, Malformed> {
    if bytes.len() > MOST_BYTES {
        return Err(Malformed::TooLarge);
    }
    let parsed = match kind {
        SecretKind::DockerConfigJson => serde_json::from_slice::<ConfigFile>(bytes).map(|file| file.auths),
        SecretKind::DockerCfg => serde_json::from_slice::<ConfigEntries>(bytes),
    };
    // The error's own text may quote the content.
    let ConfigEntries(entries) = parsed.map_err(|error| Malformed::Json {
        file: kind.data_key(),
        line: error.line(),
        column: error.column(),
    })?;
    if entries.len() > MOST_ENTRIES {
        return Err(Malformed::TooMany);
    }
    let mut logins = Vec::new();
    for (number, (place, entry)) in entries.into_iter().enumerate() {
        let Some(login) = login(entry).ok_or(Malformed::Auth(number + 1))? else { continue };
        logins.push((Pattern::read(&place).ok_or(Malformed::NotAPlace(number + 1))?, login));
    }
    if logins.is_empty() { Err(Malformed::NoLogin) } else { Ok(logins) }
}

/// The login of an entry; `Some(None)` where it has none, `None` where it cannot be decoded.
fn login(entry: ConfigEntry) -> Option<Option<Login>> {
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let (mut username, mut password) = (given(entry.username), given(entry.password));
    // `auth` wins, as it does for the kubelet.
    if let Some(auth) = given(entry.auth) {
        let bytes = STANDARD.decode(auth.trim()).or_else(|_| STANDARD_NO_PAD.decode(auth.trim())).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let (user, pass) = text.trim_end_matches('\0').split_once(':')?;
        (username, password) = (given(Some(user.to_owned())), given(Some(pass.to_owned())));
    }
    // Registries that hand out identity tokens take them in the place of the password too.
    let password = password.or(given(entry.identitytoken));
    if username.is_none() && password.is_none() {
        return Some(None);
    }
    let username = username.unwrap_or_default();
    Some(Some(Login { username, password: Secret::from(password.unwrap_or_default()) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(text: &str) -> Result<(String, String), Malformed> {
        let logins = read(SecretKind::DockerConfigJson, text.as_bytes())?;
        let (_, login) = logins.into_iter().next().unwrap();
        Ok((login.username, login.password.expose().to_owned()))
    }

    #[test]
    fn every_way_to_write_a_login() {
        let auth = STANDARD.encode("ada:hunter2:x");
        let bare = auth.trim_end_matches('=').to_owned();
        let token = STANDARD.encode("00000000-0000-0000-0000-000000000000:");
        for (entry, user, password) in [
            (format!(r#"{{"auth": "{auth}"}}"#), "ada", "hunter2:x"),
            (format!(r#"{{"auth": "{bare}", "email": "a@b"}}"#), "ada", "hunter2:x"),
            (format!(r#"{{"username": "eve", "password": "no", "auth": "{auth}"}}"#), "ada", "hunter2:x"),
            (r#"{"username": "ada", "password": "hunter2"}"#.to_owned(), "ada", "hunter2"),
            (r#"{"username": "ada", "password": "h", "auth": ""}"#.to_owned(), "ada", "h"),
            (format!(r#"{{"auth": "{token}", "identitytoken": "t"}}"#), "00000000-0000-0000-0000-000000000000", "t"),
        ] {
            let text = format!(r#"{{"auths": {{"reg.io": {entry}}}, "credsStore": "desktop"}}"#);
            assert_eq!(one(&text).unwrap(), (user.to_owned(), password.to_owned()), "{text}");
            let old = format!(r#"{{"reg.io": {entry}}}"#);
            assert_eq!(read(SecretKind::DockerCfg, old.as_bytes()).unwrap().len(), 1, "{old}");
        }
    }

    #[test]
    fn entries_without_a_login_are_passed_over() {
        let text = r#"{"auths": {"a.io": {}, "b.io": {"username": "u", "password": "p"}}}"#;
        assert_eq!(read(SecretKind::DockerConfigJson, text.as_bytes()).unwrap().len(), 1);
    }

    #[test]
    fn what_is_wrong_is_named_and_the_content_is_not() {
        let json = |line, column| Malformed::Json { file: ".dockerconfigjson", line, column };
        for (text, problem) in [
            ("hunter2", json(1, 1)),
            ("", json(1, 0)),
            (r#"{"auths": "hunter2"}"#, json(1, 19)),
            (r#"{"reg.io": {"password": "hunter2"}}"#, json(1, 35)),
            ("{\"auths\": {\"reg.io\":\n{\"password\": [\"hunter2\"]}}}", json(2, 13)),
            (r#"{"auths": {"reg.io": {"auth": "hunter2!"}}}"#, Malformed::Auth(1)),
            (r#"{"auths": {"a": {}, "reg.io": {"auth": "aHVudGVyMg=="}}}"#, Malformed::Auth(2)),
            (r#"{"auths": {"hunter2@": {"username": "u"}}}"#, Malformed::NotAPlace(1)),
            (r#"{"auths": {}}"#, Malformed::NoLogin),
            (r#"{"auths": {"reg.io": {}}, "credsStore": "hunter2"}"#, Malformed::NoLogin),
        ] {
            let found = one(text).unwrap_err();
            assert_eq!(found, problem, "{text}");
            assert!(!format!("{found} {found:?}").contains("hunter2"), "{found}");
        }
        let many: Vec<String> = (0..1001).map(|n| format!(r#""r{n}.io": {{}}"#)).collect();
        let many = format!("{{{}}}", many.join(","));
        assert_eq!(read(SecretKind::DockerCfg, many.as_bytes()), Err(Malformed::TooMany));
        assert_eq!(read(SecretKind::DockerCfg, &vec![b' '; MOST_BYTES + 1]), Err(Malformed::TooLarge));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(SecretKind::DockerConfigJson, &bytes);
            let _ = read(SecretKind::DockerCfg, &bytes);
        }

        #[test]
        fn any_entry_is_read_without_panic(place in ".{0,60}", auth in ".{0,40}", image in "[a-z.:0-9*\\[\\]]{1,20}/[a-z]{1,5}") {
            let text = serde_json::json!({ place: { "auth": auth } }).to_string();
            let logins = read(SecretKind::DockerCfg, text.as_bytes()).unwrap_or_default();
            if let Ok(image) = image.parse::<crate::Reference>() {
                logins.iter().for_each(|(pattern, _)| { pattern.matches(&image); });
            }
        }
    }
}
