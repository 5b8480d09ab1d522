//! The two names that everything is found by: of a job, and of an order with its report. Text in and out, both ways
//! exact.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

/// Identifies a job of any dialect: its kind, namespace and name, rendered `Kind/namespace/name`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(Arc<str>);

impl JobId {
    /// Joins the three parts.
    pub fn new(kind: &str, namespace: &str, name: &str) -> Self {
        Self(format!("{kind}/{namespace}/{name}").into())
    }

    /// The kind of the object that the job was read from.
    pub fn kind(&self) -> &str {
        self.part(0)
    }

    /// The namespace of that object.
    pub fn namespace(&self) -> &str {
        self.part(1)
    }

    /// The name of that object.
    pub fn name(&self) -> &str {
        self.part(2)
    }

    fn part(&self, n: usize) -> &str {
        self.0.splitn(3, '/').nth(n).unwrap_or_default()
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A string that is not `Kind/namespace/name`.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not of the form Kind/namespace/name")]
pub struct NotAJobId(String);

impl FromStr for JobId {
    type Err = NotAJobId;
    fn from_str(s: &str) -> Result<Self, NotAJobId> {
        let parts: Vec<&str> = s.split('/').collect();
        match parts.as_slice() {
            [kind, _, name] if !kind.is_empty() && !name.is_empty() => Ok(Self(s.into())),
            _ => Err(NotAJobId(s.into())),
        }
    }
}

/// The key under which an order and its report stand: a short hash of the effective reference, so that all
/// jobs that want one image on one node share one pull, whatever their dialect.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u8; 10]);

impl Key {
    /// The key of a canonical reference.
    pub fn of(reference: &str) -> Self {
        let hash = Sha256::digest(reference.as_bytes());
        let mut short = [0; 10];
        for (to, from) in short.iter_mut().zip(hash.iter()) {
            *to = *from;
        }
        Self(short)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A string that is not 20 hexadecimal digits.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not an order key (20 lower-case hexadecimal digits)")]
pub struct NotAKey(String);

impl FromStr for Key {
    type Err = NotAKey;
    fn from_str(s: &str) -> Result<Self, NotAKey> {
        let bad = || NotAKey(s.into());
        let digits = s.as_bytes();
        if digits.len() != 20 || !digits.iter().all(|d| d.is_ascii_digit() || (b'a'..=b'f').contains(d)) {
            return Err(bad());
        }
        let mut bytes = [0; 10];
        for (to, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| bad())?;
            *to = u8::from_str_radix(pair, 16).map_err(|_| bad())?;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_job_ids_survive_their_text() {
        let key = Key::of("docker.io/library/nginx:1");
        assert_eq!(key.to_string().parse::<Key>().unwrap(), key);
        assert!("xyz".parse::<Key>().is_err());
        assert!("ABCDEF0123456789abcd".parse::<Key>().is_err(), "upper case would be a second name");
        let id = JobId::new("Preheat", "shop", "web");
        assert_eq!((id.kind(), id.namespace(), id.name()), ("Preheat", "shop", "web"));
        assert_eq!(id.to_string().parse::<JobId>().unwrap(), id);
        assert!("a/b".parse::<JobId>().is_err());
    }
}
