//! Pull secrets as Kubernetes has them: which types hold logins of registries, and what of such an object is looked at.

use std::fmt;

use k8s_openapi::api::core::v1::Secret;

/// The types of Secret that hold logins of registries, each with the key of its data that does. No other is ever read.
pub const TYPES: [(&str, &str); 2] =
    [("kubernetes.io/dockerconfigjson", ".dockerconfigjson"), ("kubernetes.io/dockercfg", ".dockercfg")];

/// The label of the copies of pull secrets that earlier versions made in Stoker's own namespace. For one release they are
/// deleted; then this goes, too.
pub const COPIES: &str = "app.kubernetes.io/managed-by=stoker";

/// How the names of such copies begin.
pub const COPY_PREFIX: &str = "pull-";

/// A Secret of one of the [`TYPES`].
#[derive(Clone, PartialEq, Eq)]
pub struct PullSecret {
    /// Its type.
    pub kind: &'static str,
    /// The file with the logins.
    pub content: Vec<u8>,
    /// Its uid, which only those know who may read the Secret: the salt of the names of its logins.
    pub uid: String,
}

impl PullSecret {
    /// Reads a Secret; `None` where it is of another type.
    pub fn read(secret: Secret) -> Option<Self> {
        let (kind, key) = TYPES.into_iter().find(|(kind, _)| secret.type_.as_deref() == Some(kind))?;
        let content = secret.data.and_then(|mut data| data.remove(key)).unwrap_or_default().0;
        Some(Self { kind, content, uid: secret.metadata.uid.unwrap_or_default() })
    }
}

impl fmt::Debug for PullSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PullSecret(***)")
    }
}

/// Whether this can be the name of a Secret. A name that a job gives goes into the path of a request: one that is none must not
/// lead to another object.
pub fn is_name(name: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let label = |label: &str| {
        let ends = [label.bytes().next(), label.bytes().next_back()];
        label.bytes().all(inside) && ends.into_iter().all(|end| end.is_some_and(|byte| byte != b'-'))
    };
    name.len() <= 253 && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;
    use serde_json::json;

    fn secret(kind: &str, data: &str) -> Secret {
        let object = json!({
            "metadata": { "namespace": "shop", "name": "regcred", "uid": "u" },
            "type": kind,
            "data": { ".dockerconfigjson": ByteString(data.into()), "other": ByteString("x".into()) },
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn only_the_logins_of_a_pull_secret_are_read() {
        let read = PullSecret::read(secret("kubernetes.io/dockerconfigjson", "hunter2")).unwrap();
        assert_eq!((read.content.as_slice(), read.uid.as_str()), (&b"hunter2"[..], "u"));
        assert!(!format!("{read:?}").contains("hunter2"));
        assert_eq!(PullSecret::read(secret("Opaque", "x")), None);
        assert_eq!(PullSecret::read(Secret::default()), None);
    }

    #[test]
    fn what_leads_to_another_object_is_no_name() {
        for name in ["regcred", "reg-cred.v1", "0"] {
            assert!(is_name(name), "{name}");
        }
        let long = "a".repeat(254);
        for name in
            ["", ".", "..", "a/../b", "../kube-system/secrets/token", "a?b", "a%2fb", "A", "-a", "a.", "a b", &long]
        {
            assert!(!is_name(name), "{name}");
        }
    }
}
