//! A Secret by its name, and its copy in Stoker's own namespace by its content. The content itself never comes here.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

/// Namespace and name of a Secret that a job names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretId {
    /// That of the job.
    pub namespace: String,
    /// Its name there.
    pub name: String,
}

impl SecretId {
    /// From the two parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for SecretId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The name of a copy: made from what is in it, so that a copy never changes; whoever makes it adds a salt.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CopyName(Arc<str>);

impl CopyName {
    /// The name of the copy of this content.
    pub fn of(kind: &str, content: &[u8]) -> Self {
        let hash = Sha256::new().chain_update(kind).chain_update([0]).chain_update(content).finalize();
        let digits: String = hash.iter().take(20).map(|byte| format!("{byte:02x}")).collect();
        Self(format!("pull-{digits}").into())
    }

    /// A name that was read.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CopyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for CopyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_contents_have_one_name_and_others_another() {
        let name = CopyName::of("kubernetes.io/dockercfg", b"{}");
        assert_eq!(name, CopyName::of("kubernetes.io/dockercfg", b"{}"));
        assert_ne!(name, CopyName::of("kubernetes.io/dockerconfigjson", b"{}"));
        assert_ne!(name, CopyName::of("kubernetes.io/dockercfg", b"{ }"));
        assert_eq!(name.as_str().len(), "pull-".len() + 40);
    }
}
