//! The name of an image, parsed once.
//!
//! What people write ("nginx") comes in; registry, repository, tag and digest go out, filled in the way
//! container runtimes do it ("docker.io/library/nginx:latest"). It never asks a registry. The grammar is the one of
//! the distribution project, read by hand: it must also take an IPv6 host, and say which part is wrong.

use std::fmt;
use std::str::FromStr;

use crate::model::Key;

const HUB: &str = "docker.io";
const LONGEST_REPOSITORY: usize = 255;
const LONGEST_TAG: usize = 128;
const LONGEST_REGISTRY: usize = 255;

/// Why a text is not the name of an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an image reference: {why}; write it like registry.example.com/team/app:v1")]
pub struct InvalidReference {
    text: String,
    why: &'static str,
}

/// A complete image reference: there is always a registry, a repository, and a tag or a digest.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference {
    name: String,
    key: Key,
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<String>,
}

impl Reference {
    /// All of it: `registry/repository:tag`, with `@digest` behind or instead of the tag where one was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where orders and reports of this image stand.
    pub fn key(&self) -> Key {
        self.key
    }

    /// The registry as users write it, with its port: `docker.io`, `127.0.0.1:5000`.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The repository inside the registry: `library/nginx`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag; absent only where a digest was given without one.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest, where the reference is pinned to one; such an image needs no resolving. Always sha256.
    pub fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl FromStr for Reference {
    type Err = InvalidReference;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map_err(|why| InvalidReference {
            // The text may be anything: a message must stay a line.
            text: text.chars().take(200).collect(),
            why,
        })
    }
}

fn parse(text: &str) -> Result<Reference, &'static str> {
    check_scheme(text)?;
    let (name, digest) = match text.split_once('@') {
        Some((name, digest)) => (name, Some(parse_digest(digest)?)),
        None => (text, None),
    };
    let (registry, rest) = split_registry(name);
    let (repository, tag) = match rest.split_once(':') {
        Some((repository, tag)) => (repository, Some(check_tag(tag)?)),
        None => (rest, None),
    };
    if !registry.is_empty() {
        check_registry(registry)?;
    }
    check_repository(repository)?;

    let registry = match registry.to_ascii_lowercase() {
        hub if hub.is_empty() || hub == "index.docker.io" => HUB.to_owned(),
        other => other,
    };
    let repository = if registry == HUB && !repository.contains('/') {
        format!("library/{repository}")
    } else {
        repository.to_owned()
    };
    let tag = match (tag, &digest) {
        (None, None) => Some("latest".to_owned()),
        (tag, _) => tag.map(str::to_owned),
    };
    let mut name = format!("{registry}/{repository}");
    if let Some(tag) = &tag {
        name += &format!(":{tag}");
    }
    if let Some(digest) = &digest {
        name += &format!("@{digest}");
    }
    Ok(Reference { key: Key::of(&name), name, registry, repository, tag, digest })
}

/// People copy addresses from browsers and other tools; a reference has no scheme.
fn check_scheme(text: &str) -> Result<(), &'static str> {
    let Some((scheme, _)) = text.split_once("://") else { return Ok(()) };
    Err(match scheme.to_ascii_lowercase().as_str() {
        "https" => "leave out https://",
        "http" => "leave out http://",
        "docker" => "leave out docker://",
        "oci" => "leave out oci://",
        _ => "leave out everything up to ://",
    })
}

/// The first part is a registry only if it cannot be a repository: that is how "team/app" means the Hub.
fn split_registry(name: &str) -> (&str, &str) {
    match name.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':', '[']) || first == "localhost" => (first, rest),
        _ => ("", name),
    }
}

fn check_registry(registry: &str) -> Result<(), &'static str> {
    if registry.len() > LONGEST_REGISTRY {
        return Err("the registry is longer than 255 characters");
    }
    let (host, port) = match registry.strip_prefix('[') {
        Some(v6) => {
            let (host, rest) = v6.split_once(']').ok_or("the IPv6 address has no closing bracket")?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| "the registry is not an IPv6 address")?;
            match rest {
                "" => (None, None),
                rest => (None, Some(rest.strip_prefix(':').ok_or("there is text after the IPv6 address")?)),
            }
        }
        None => match registry.split_once(':') {
            Some((host, port)) => (Some(host), Some(port)),
            None => (Some(registry), None),
        },
    };
    if let Some(port) = port
        && (!port.bytes().all(|b| b.is_ascii_digit()) || port.parse::<u16>().is_err())
    {
        return Err("the registry's port is not a number up to 65535");
    }
    let label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    match host {
        Some(host) if !host.split('.').all(label) => Err("the registry is not a host name"),
        _ => Ok(()),
    }
}

fn check_repository(repository: &str) -> Result<(), &'static str> {
    if repository.is_empty() {
        return Err("the repository is missing");
    }
    if repository.len() > LONGEST_REPOSITORY {
        return Err("the repository is longer than 255 characters");
    }
    if repository.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err("the repository must be lowercase");
    }
    if repository.split('/').all(is_component) {
        Ok(())
    } else {
        Err("the repository may hold a-z, 0-9 and single separators ('.', '_', '__', dashes) between them")
    }
}

/// Alphanumerics joined by ".", "_", "__" or any number of dashes.
fn is_component(component: &str) -> bool {
    let alnum = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = component.as_bytes();
    let ends = |b: Option<&u8>| b.is_some_and(|b| alnum(*b));
    ends(bytes.first())
        && ends(bytes.last())
        && bytes
            .split(|b| alnum(*b))
            .all(|joint| matches!(joint, b"" | b"." | b"_" | b"__") || joint.iter().all(|b| *b == b'-'))
}

fn check_tag(tag: &str) -> Result<&str, &'static str> {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    match tag.as_bytes() {
        [] => Err("the tag is empty"),
        bytes if bytes.len() > LONGEST_TAG => Err("the tag is longer than 128 characters"),
        [first, rest @ ..] if word(*first) && rest.iter().all(|b| word(*b) || matches!(b, b'.' | b'-')) => Ok(tag),
        _ => Err("the tag may hold letters, digits, '_', '.' and '-', and starts with a letter, digit or '_'"),
    }
}

/// Whether this is a digest as registries and nodes may say it: sha256, in full.
pub fn is_digest(text: &str) -> bool {
    parse_digest(text).is_ok()
}

fn parse_digest(text: &str) -> Result<String, &'static str> {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    match text.split_once(':') {
        Some(("sha256", digits)) if digits.len() == 64 && digits.bytes().all(hex) => Ok(text.to_owned()),
        Some(("sha384" | "sha512", _)) => Err("only sha256 digests are supported, name that one or a tag"),
        _ => Err("the digest is not sha256: and 64 lowercase hexadecimal characters"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn names_are_filled_in_as_runtimes_do() {
        let pinned = format!("reg.example.com/a/b@{DIGEST}");
        let both = format!("nginx:1.29@{DIGEST}");
        let both_full = format!("docker.io/library/nginx:1.29@{DIGEST}");
        for (text, full) in [
            ("nginx", "docker.io/library/nginx:latest"),
            ("nginx:1.29", "docker.io/library/nginx:1.29"),
            ("team/app", "docker.io/team/app:latest"),
            ("index.docker.io/nginx", "docker.io/library/nginx:latest"),
            ("Index.Docker.io/nginx", "docker.io/library/nginx:latest"),
            ("localhost/app:v1", "localhost/app:v1"),
            ("127.0.0.1:5000/a/b/c:v1", "127.0.0.1:5000/a/b/c:v1"),
            ("[::1]:5000/app:v1", "[::1]:5000/app:v1"),
            ("Reg.Example.com:443/a--b/c__d.e:V_1", "reg.example.com:443/a--b/c__d.e:V_1"),
            (&pinned, &pinned),
            (&both, &both_full),
        ] {
            let parsed: Reference = text.parse().unwrap();
            assert_eq!(parsed.to_string(), full);
            assert_eq!(full.parse::<Reference>().unwrap(), parsed, "canonical text parses to the same");
        }
    }

    #[test]
    fn wrong_names_are_refused() {
        let long = "a".repeat(256);
        for text in [
            "",
            "/",
            ":",
            "@",
            "UPPER",
            "UPPER/a",
            "a//b",
            "a/",
            "-a",
            "a..b",
            "a___b",
            "a:",
            "a:-x",
            "a b",
            "a\n",
            "nginx@sha256:12",
            "reg.io:99999/a",
            "reg.io:x/a",
            "[::1/a",
            "[zz]:1/a",
            "[::1]x/a",
            "re_g.io/a",
            "-reg.io/a",
            "a:é",
            &long,
        ] {
            let error = text.parse::<Reference>().unwrap_err();
            assert!(error.to_string().len() < 500, "{error}");
        }
        for (text, advice) in [
            ("https://registry.example/shop/web:v1", "leave out https://;"),
            ("HTTPS://registry.example/shop/web:v1", "leave out https://;"),
            ("http://127.0.0.1:5000/web", "leave out http://;"),
            ("docker://registry.example/web", "leave out docker://;"),
            ("oci://registry.example/web", "leave out oci://;"),
            ("s3://bucket/web", "leave out everything up to ://;"),
        ] {
            let said = text.parse::<Reference>().unwrap_err().to_string();
            assert!(said.contains(advice) && said.contains(text), "{said}");
        }
        let sha512 = format!("a@sha512:{}", "0".repeat(128));
        assert!(sha512.parse::<Reference>().unwrap_err().to_string().contains("only sha256"));
    }
}
