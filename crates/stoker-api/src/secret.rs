//! Pull secrets as Kubernetes has them: which types hold logins of registries, and what of such an object is looked at.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube_core::ObjectMeta;
use serde::Deserialize;

use crate::any_object::{Lenient, Meta, is_read_of};

/// The types of Secret that hold logins of registries, each with the key of its data that does. No other is ever read.
pub const TYPES: [(&str, &str); 2] =
    [("kubernetes.io/dockerconfigjson", ".dockerconfigjson"), ("kubernetes.io/dockercfg", ".dockercfg")];

/// The label of the copies of pull secrets that earlier versions made in Stoker's own namespace. For one release they are
/// deleted; then this goes, too.
pub const COPIES: &str = "app.kubernetes.io/managed-by=stoker";

/// How the names of such copies begin.
pub const COPY_PREFIX: &str = "pull-";

/// A Secret of any type, as far as anybody looks at it. Nothing in it can fail its reading: the client would log it.
#[derive(Clone, Deserialize)]
#[serde(from = "SecretText")]
pub struct SecretObject {
    metadata: ObjectMeta,
    logins: Option<PullSecret>,
}

impl SecretObject {
    /// What it holds; `None` where it is of another type than the [`TYPES`].
    pub fn into_logins(self) -> Option<PullSecret> {
        self.logins
    }
}

impl fmt::Debug for SecretObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretObject(***)")
    }
}

is_read_of!(SecretObject, Secret);

/// What is taken from the text.
#[derive(Deserialize)]
struct SecretText {
    #[serde(default)]
    metadata: Meta,
    #[serde(default, rename = "type")]
    kind: Lenient<String>,
    #[serde(default)]
    data: Lenient<BTreeMap<String, Lenient<ByteString>>>,
}

impl From<SecretText> for SecretObject {
    fn from(SecretText { metadata, kind, data }: SecretText) -> Self {
        let ObjectMeta { name, namespace, uid, .. } = metadata.into();
        let metadata = ObjectMeta { name, namespace, uid, ..ObjectMeta::default() };
        let known = TYPES.into_iter().find(|(known, _)| kind.0.as_deref() == Some(known));
        let logins = known.map(|(kind, key)| {
            let content = data.0.and_then(|mut data| data.remove(key)?.0).unwrap_or_default().0;
            PullSecret { kind, content, uid: metadata.uid.clone().unwrap_or_default() }
        });
        Self { metadata, logins }
    }
}

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
    use serde_json::{Value, json};

    fn read(secret: Value) -> Option<PullSecret> {
        serde_json::from_str::<SecretObject>(&secret.to_string()).unwrap().into_logins()
    }

    fn secret(kind: &str, data: &str) -> Value {
        json!({
            "metadata": { "namespace": "shop", "name": "regcred", "uid": "u" },
            "type": kind,
            "data": { ".dockerconfigjson": ByteString(data.into()), "other": ByteString("x".into()) },
        })
    }

    #[test]
    fn only_the_logins_of_a_pull_secret_are_read() {
        let found = read(secret("kubernetes.io/dockerconfigjson", "hunter2")).unwrap();
        assert_eq!((found.content.as_slice(), found.uid.as_str()), (&b"hunter2"[..], "u"));
        assert!(!format!("{found:?}").contains("hunter2"));
        assert_eq!(read(secret("Opaque", "x")), None);
        assert_eq!(read(json!({})), None);
    }

    /// Who may edit a Secret can put this into its managedFields, and the client logs the body of what cannot be read.
    #[test]
    fn nothing_in_a_secret_fails_its_reading() {
        let mut late = secret("kubernetes.io/dockerconfigjson", "hunter2");
        late["metadata"]["managedFields"] = json!([{ "manager": "x", "time": "9999-12-31T23:59:59Z" }]);
        late["metadata"]["creationTimestamp"] = "9999-12-31T23:59:59Z".into();
        late["data"]["other"] = 5.into();
        assert!(serde_json::from_value::<Secret>(late.clone()).is_err(), "the test shows nothing otherwise");
        assert_eq!(read(late).unwrap().content, b"hunter2");
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
