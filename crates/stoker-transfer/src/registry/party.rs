//! The host behind an error.
//!
//! The registry of an image, the host that was asked and the host that answered come in; a text for error messages goes
//! out. It shows names and ports only, because a whole address may be signed.

use std::fmt;

/// Who failed: a registry, or a host that it named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Party {
    /// The registry's name in image references.
    registry: String,
    /// Name and port of the host that was asked, which the node's hosts.toml may choose.
    asked: String,
    /// The host that failed, if it is one that the asked host named.
    beyond: Option<(OtherHost, String)>,
    /// What other hosts of the registry did before.
    earlier: Vec<String>,
}

/// How the registry named another host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OtherHost {
    Redirect,
    Tokens,
}

impl Party {
    pub(crate) fn new(registry: &str, asked: &str) -> Box<Self> {
        Box::new(Self { registry: registry.to_owned(), asked: asked.to_owned(), beyond: None, earlier: Vec::new() })
    }

    /// The host that was redirected to, if any.
    pub(crate) fn redirected(self: Box<Self>, host: Option<String>) -> Box<Self> {
        self.beyond(OtherHost::Redirect, host)
    }

    /// The token server that was asked on behalf of the registry, if any.
    pub(crate) fn token_server(self: Box<Self>, host: Option<String>) -> Box<Self> {
        self.beyond(OtherHost::Tokens, host)
    }

    fn beyond(mut self: Box<Self>, role: OtherHost, host: Option<String>) -> Box<Self> {
        self.beyond = host.map(|host| (role, host)).or(self.beyond);
        self
    }

    /// Adds what other hosts of the registry did before.
    pub(crate) fn after(&mut self, earlier: &[String]) {
        self.earlier = earlier.to_vec();
    }

    /// The registry's name in image references.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Name and port of the host that failed.
    pub fn host(&self) -> &str {
        self.beyond.as_ref().map_or(&self.asked, |(_, host)| host)
    }

    pub(crate) fn is_redirect_target(&self) -> bool {
        matches!(self.beyond, Some((OtherHost::Redirect, _)))
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.beyond {
            Some((OtherHost::Redirect, host)) => write!(f, "{host} (to which ")?,
            Some((OtherHost::Tokens, host)) => write!(f, "{host} (the token server of ")?,
            None => {}
        }
        f.write_str(&self.registry)?;
        if self.asked != self.registry {
            write!(f, " at {}", self.asked)?;
        }
        match &self.beyond {
            Some((OtherHost::Redirect, _)) => f.write_str(" redirects)")?,
            Some((OtherHost::Tokens, _)) => f.write_str(")")?,
            None => {}
        }
        if !self.earlier.is_empty() {
            write!(f, " (after {})", self.earlier.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_that_failed_comes_first_and_how_we_came_to_it_follows() {
        let registry = || Party::new("reg.test", "reg.test");
        let mirror = || Party::new("reg.test", "mirror.test:5000");
        let host = || Some("other.test".to_owned());
        let mut after = registry();
        after.after(&["mirror.test answered 503".to_owned()]);
        for (party, host, text) in [
            (registry(), "reg.test", "reg.test"),
            (registry().redirected(None), "reg.test", "reg.test"),
            (mirror(), "mirror.test:5000", "reg.test at mirror.test:5000"),
            (registry().redirected(host()), "other.test", "other.test (to which reg.test redirects)"),
            (registry().token_server(host()), "other.test", "other.test (the token server of reg.test)"),
            (mirror().redirected(host()), "other.test", "other.test (to which reg.test at mirror.test:5000 redirects)"),
            (after, "reg.test", "reg.test (after mirror.test answered 503)"),
        ] {
            assert_eq!((party.host(), party.to_string().as_str()), (host, text));
        }
    }
}
