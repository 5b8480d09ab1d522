//! A Secret by its name, and the logins in it by theirs. What is in a login never comes here.

use std::fmt;
use std::sync::Arc;

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

/// The name of one login: a salted hash of its content, so that a login that changes has another name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoginId(Arc<str>);

impl LoginId {
    /// A name that was read, or made by who has the content.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LoginId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LoginId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A login that fits an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Which login.
    pub id: LoginId,
    /// How closely its entry names the image: of the logins of one namespace the closest is tried first.
    pub closeness: u32,
}

/// What was found when a Secret was read for an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The logins that fit the image, in the order of the Secret.
    Logins(Vec<Offer>),
    /// It can be used, and what is in it is not known: for those who explain a job and read no Secrets.
    Unseen,
    /// There is no such Secret, or it is of a type that holds no logins of registries.
    Missing,
    /// The controller may not read it.
    Forbidden,
    /// It cannot be used, and why.
    Unusable(String),
}
