//! Pull secrets: what the core knows of one (its name, and that of its copy), and the copy itself as a write. Contents
//! pass through here from object to object and go nowhere else.

use std::fmt;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube_core::discovery::ApiResource;
use serde_json::json;
use stoker_core::{CopyName, Event, SecretId};

use crate::write::{Target, Write};

/// The types of Secret that hold logins of registries, each with the key of its data that does. No other is ever read.
pub const TYPES: [(&str, &str); 2] =
    [("kubernetes.io/dockerconfigjson", ".dockerconfigjson"), ("kubernetes.io/dockercfg", ".dockercfg")];

const MADE_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "stoker");

/// Where a copy keeps the uid of its source. The name of a copy stands in NodePreheats, which more people may read than
/// Secrets: without something that cannot be guessed in it, weak passwords could be tried against it.
const SALT: &str = "stoker.dev/source-uid";

/// A Secret of one of the [`TYPES`].
#[derive(Clone, PartialEq)]
pub struct PullSecret {
    /// Where it is.
    pub id: SecretId,
    /// The name of its copy.
    pub copy: CopyName,
    /// Its type.
    pub kind: &'static str,
    key: &'static str,
    content: ByteString,
    salt: String,
    made_by_us: bool,
    /// The namespace of copies.
    home: String,
}

impl PullSecret {
    /// Reads a Secret; `None` where it is of another type. Copies are in the namespace `home`, which is Stoker's own.
    pub fn read(secret: &Secret, home: &str) -> Option<Self> {
        let (kind, key) = TYPES.into_iter().find(|(kind, _)| secret.type_.as_deref() == Some(kind))?;
        let content = secret.data.as_ref().and_then(|data| data.get(key)).cloned().unwrap_or_default();
        let meta = &secret.metadata;
        let labels = meta.labels.as_ref();
        let made_by_us = labels.is_some_and(|labels| labels.get(MADE_BY.0).is_some_and(|maker| maker == MADE_BY.1));
        let salt = match made_by_us {
            true => meta.annotations.as_ref().and_then(|annotations| annotations.get(SALT)),
            false => meta.uid.as_ref(),
        };
        let salt = salt.cloned().unwrap_or_default();
        Some(Self {
            id: SecretId::new(meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default()),
            copy: CopyName::of(kind, &[salt.as_bytes(), &[0], &content.0].concat()),
            kind,
            key,
            content,
            salt,
            made_by_us,
            home: home.into(),
        })
    }

    /// What it means to the core: a copy that we made, or a Secret that jobs may name.
    pub fn to_core(&self) -> Event {
        match self.is_at_home() && self.made_by_us && self.id.name == self.copy.as_str() {
            true => Event::Copy(self.copy.clone()),
            false => Event::Secret(self.id.clone(), self.copy.clone()),
        }
    }

    /// Whether it is where copies are.
    pub fn is_at_home(&self) -> bool {
        self.id.namespace == self.home
    }

    /// What it means that it is gone.
    pub fn gone(&self) -> Event {
        match self.to_core() {
            Event::Copy(copy) => Event::CopyGone(copy),
            _ => Event::SecretGone(self.id.clone()),
        }
    }

    /// The write that makes its copy. Nobody can change that one: its name says what is in it.
    pub fn make_copy(&self) -> Write {
        let object = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": self.copy.as_str(),
                "namespace": self.home,
                "labels": { MADE_BY.0: MADE_BY.1 },
                "annotations": { SALT: self.salt },
            },
            "type": self.kind,
            "data": { self.key: self.content },
            "immutable": true,
        });
        Write::Create(target(&self.copy, &self.home), object)
    }
}

impl fmt::Debug for PullSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PullSecret({})", self.id)
    }
}

/// The write that removes a copy from Stoker's own namespace.
pub fn remove_copy(copy: &CopyName, home: &str) -> Write {
    Write::Delete(target(copy, home), None)
}

fn target(copy: &CopyName, home: &str) -> Target {
    Target { resource: ApiResource::erase::<Secret>(&()), namespace: Some(home.into()), name: copy.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: &str = "stoker-system";

    fn secret(namespace: &str, kind: &str, data: &str) -> Secret {
        let object = json!({
            "metadata": { "namespace": namespace, "name": "regcred" },
            "type": kind,
            "data": { ".dockerconfigjson": ByteString(data.into()), "other": ByteString("x".into()) },
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_copy_is_recognised_as_what_it_is_and_holds_only_the_logins() {
        let original = PullSecret::read(&secret("shop", "kubernetes.io/dockerconfigjson", "hunter2"), HOME).unwrap();
        assert!(matches!(original.to_core(), Event::Secret(id, _) if id == SecretId::new("shop", "regcred")));
        let Write::Create(target, object) = original.make_copy() else { panic!("not a new object") };
        assert_eq!((target.namespace.as_deref(), target.name.as_str()), (Some(HOME), original.copy.as_str()));
        assert_eq!(object["data"].as_object().unwrap().len(), 1);
        let copy = PullSecret::read(&serde_json::from_value(object).unwrap(), HOME).unwrap();
        assert!(matches!(copy.to_core(), Event::Copy(name) if name == original.copy));
        assert!(matches!(copy.gone(), Event::CopyGone(name) if name == original.copy));
        assert!(!format!("{original:?}{copy:?}").contains("hunter2"));
    }

    #[test]
    fn other_secrets_are_not_read() {
        assert_eq!(PullSecret::read(&secret("shop", "Opaque", "x"), HOME), None);
        assert_eq!(PullSecret::read(&Secret::default(), HOME), None);
    }

    #[test]
    fn a_secret_in_our_namespace_that_we_did_not_make_is_nobodys_copy() {
        let theirs = PullSecret::read(&secret(HOME, "kubernetes.io/dockerconfigjson", "x"), HOME).unwrap();
        assert!(matches!(theirs.to_core(), Event::Secret(..)));
    }
}
