//! The ConfigMap with the keys by which nodes check tickets: one entry for each controller that led lately, named after its key. Its
//! text is the key and the time until which tickets of that key may live.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube_core::discovery::ApiResource;
use kube_core::dynamic::DynamicObject;
use serde_json::{Value, json};

use crate::any_object::AnyObject;
use crate::native::PeerInfo;

/// Its name, in Stoker's namespace.
pub const NAME: &str = "stoker-peer-keys";

/// How many entries it has at most.
pub const MOST: usize = 16;

/// Its kind.
pub fn resource() -> ApiResource {
    ApiResource::erase::<ConfigMap>(&())
}

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerKeyEntry {
    /// The key: ed25519, in base64. Whether it is one is not known here.
    pub key: String,
    /// No ticket of this key lives longer.
    pub until: Timestamp,
}

impl fmt::Display for PeerKeyEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.key, self.until)
    }
}

/// The text is no key with a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAPeerKeyEntry;

impl FromStr for PeerKeyEntry {
    type Err = NotAPeerKeyEntry;

    fn from_str(text: &str) -> Result<Self, NotAPeerKeyEntry> {
        let (key, until) = text.split_once(' ').ok_or(NotAPeerKeyEntry)?;
        let until = until.parse().map_err(|_| NotAPeerKeyEntry)?;
        if key.len() > PeerInfo::LONGEST_KEY { Err(NotAPeerKeyEntry) } else { Ok(Self { key: key.into(), until }) }
    }
}

/// The entries as they are written, by name.
pub fn entries(AnyObject(object): &AnyObject) -> BTreeMap<String, String> {
    let entries = object.data.get("data").and_then(Value::as_object).into_iter().flatten();
    entries.filter_map(|(name, text)| Some((name.clone(), text.as_str()?.to_owned()))).collect()
}

/// A new ConfigMap. Its labels say that it is Stoker's, so that `stoker uninstall` removes it.
pub fn object(entries: &BTreeMap<String, String>) -> AnyObject {
    let mut object = DynamicObject::new(NAME, &resource()).data(json!({ "data": entries }));
    let labels = [("name", "stoker"), ("component", "controller"), ("part-of", "stoker"), ("managed-by", "stoker")];
    let labels = labels.map(|(key, value)| (format!("app.kubernetes.io/{key}"), value.to_owned()));
    object.metadata.labels = Some(labels.into());
    AnyObject(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let until = "2026-11-19T16:00:00Z".parse().unwrap();
        let entry = PeerKeyEntry { key: "a".repeat(43) + "=", until };
        assert_eq!(entry.to_string(), format!("{} 2026-11-19T16:00:00Z", entry.key));
        let written = BTreeMap::from([("0badcafe".to_owned(), entry.to_string())]);
        let there: AnyObject = serde_json::from_value(serde_json::to_value(object(&written)).unwrap()).unwrap();
        assert_eq!(entries(&there), written);
        assert_eq!(written["0badcafe"].parse(), Ok(entry));
        let long = format!("{} 2026-11-19T16:00:00Z", "a".repeat(45));
        for text in ["", "a", "a b", &long, "a 2026-11-19T16:00:00Z b"] {
            assert_eq!(text.parse::<PeerKeyEntry>(), Err(NotAPeerKeyEntry), "{text}");
        }
    }
}
