//! The two names that everything is found by: of a job, and of an order with its report. Text in and out, both ways
//! exact.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

/// Identifies a job of any dialect: the object that it was read from and, where an object means several jobs, which of
/// them. Rendered `Kind.group/namespace/name`, with `#part` at the end where there is a part.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(Arc<str>);

impl JobId {
    /// The job that an object of this group and kind means.
    pub fn new(kind: (&str, &str), namespace: &str, name: &str) -> Self {
        Self(format!("{}/{namespace}/{name}", KindName::new(kind)).into())
    }

    /// The same object's job for this part of it.
    pub fn with_part(&self, part: &str) -> Self {
        Self(format!("{}#{part}", self.object()).into())
    }

    /// The whole of it, as it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The kind of the object that the job was read from.
    pub fn kind(&self) -> &str {
        self.segment(0).split('.').next().unwrap_or_default()
    }

    /// The API group of that object.
    pub fn group(&self) -> &str {
        self.segment(0).split_once('.').map(|(_, group)| group).unwrap_or_default()
    }

    /// The namespace of that object; empty where its kind has none.
    pub fn namespace(&self) -> &str {
        self.segment(1)
    }

    /// The name of that object.
    pub fn name(&self) -> &str {
        self.segment(2)
    }

    /// Which of the object's jobs, where it means several.
    pub fn part(&self) -> Option<&str> {
        self.0.split_once('#').map(|(_, part)| part)
    }

    fn object(&self) -> &str {
        self.0.split('#').next().unwrap_or_default()
    }

    fn segment(&self, n: usize) -> &str {
        self.object().splitn(3, '/').nth(n).unwrap_or_default()
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

/// A kind of objects that jobs are read from, with its API group.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindName(Arc<str>);

impl KindName {
    /// The kind of this group and name.
    pub fn new((group, kind): (&str, &str)) -> Self {
        let dot = if group.is_empty() { "" } else { "." };
        Self(format!("{kind}{dot}{group}").into())
    }

    /// Whether the job was read from an object of this kind.
    pub fn has(&self, id: &JobId) -> bool {
        *self.0 == *id.segment(0)
    }
}

impl fmt::Display for KindName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for KindName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A string that is not `Kind.group/namespace/name`.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not of the form Kind.group/namespace/name or Kind.group/namespace/name#part")]
pub struct NotAJobId(String);

impl FromStr for JobId {
    type Err = NotAJobId;
    fn from_str(s: &str) -> Result<Self, NotAJobId> {
        let object = s.split('#').next().unwrap_or_default();
        let segments: Vec<&str> = object.split('/').collect();
        match segments.as_slice() {
            [kind, _, name] if !kind.is_empty() && !kind.starts_with('.') && !name.is_empty() => Ok(Self(s.into())),
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

impl Key {
    /// The key under which the question stands what the image with this key is: a node may answer it while it pulls the
    /// image. Every bit is inverted, so that each of both leads to the other.
    #[must_use]
    pub fn question(self) -> Self {
        Self(self.0.map(|byte| !byte))
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
pub struct NotAnOrderKey(String);

impl FromStr for Key {
    type Err = NotAnOrderKey;
    fn from_str(s: &str) -> Result<Self, NotAnOrderKey> {
        let bad = || NotAnOrderKey(s.into());
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
    fn keys_survive_their_text() {
        let key = Key::of("docker.io/library/nginx:1");
        assert_eq!(key.to_string().parse::<Key>().unwrap(), key);
        assert_ne!(key.question(), key);
        assert_eq!(key.question().question(), key);
        assert!("xyz".parse::<Key>().is_err());
        assert!("ABCDEF0123456789abcd".parse::<Key>().is_err(), "upper case would be a second name");
    }

    #[test]
    fn a_job_is_found_by_object_and_part() {
        let id = JobId::new(("stoker.dev", "Preheat"), "shop", "web");
        assert_eq!((id.group(), id.kind(), id.namespace(), id.name()), ("stoker.dev", "Preheat", "shop", "web"));
        assert_eq!((id.to_string().as_str(), id.part()), ("Preheat.stoker.dev/shop/web", None));
        let part = JobId::new(("", "Node"), "", "n1").with_part("shop/web:1#x");
        assert_eq!((part.group(), part.kind(), part.namespace(), part.name()), ("", "Node", "", "n1"));
        assert_eq!(part.part(), Some("shop/web:1#x"));
        let group = JobId::new(("apps.kruise.io", "NodeImage"), "", "group").with_part("reg.io:5000/shop/web:1");
        assert_eq!(group.as_str(), "NodeImage.apps.kruise.io//group#reg.io:5000/shop/web:1");
        assert_eq!((group.namespace(), group.name(), group.part()), ("", "group", Some("reg.io:5000/shop/web:1")));
        let kinds =
            [KindName::new(("stoker.dev", "Preheat")), KindName::new(("", "Node")), KindName::new(("dev", "Preheat"))];
        assert_eq!(kinds.each_ref().map(|kind| kind.has(&id)), [true, false, false]);
        assert_eq!(kinds.each_ref().map(|kind| kind.has(&part)), [false, true, false]);
        for id in [&id, &part, &group, &id.with_part("1").with_part("2")] {
            assert_eq!(id.to_string().parse::<JobId>().unwrap(), *id);
        }
        assert_eq!(id.with_part("1").with_part("2").part(), Some("2"), "a part has no parts");
        for wrong in ["a/b", "/b/c", ".g/b/c", "a/b/", "a/b/c/d", "a/b#c/d"] {
            assert!(wrong.parse::<JobId>().is_err(), "{wrong}");
        }
    }
}
