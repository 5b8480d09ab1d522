//! A NodePreheat as it is read: JSON in, what the core model knows of it out. managedFields, and whatever else nobody looks at, are passed
//! over while the text is read: of thousands of these objects they are the larger part. Each entry is read by itself, so that
//! one that makes no sense is named and passed over, and the others count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use stoker_core::model::{Key, LoginId, Order, Report};

use super::from_core::Tickets;
use super::{AgentInfo, NodePreheat, PeerInfo, SealedLogin, WireOrder, WireReport, to_core};
use crate::amount::Amount;
use crate::any_object::is_read_of;

/// A NodePreheat, as far as anybody looks at it.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "NodePreheatText")]
pub struct NodeObject {
    /// Name, uid, resourceVersion and generation; nothing else.
    pub metadata: ObjectMeta,
    /// The epoch of the controller that last wrote its orders.
    pub epoch: i64,
    /// The limit of all transfers of the node together, in bytes a second; or why it cannot be read.
    pub bandwidth: Result<Option<u64>, String>,
    /// The limit of what the node sends to others, in bytes a second; or why it cannot be read.
    pub upload: Result<Option<u64>, String>,
    /// Its orders.
    pub orders: BTreeMap<Key, Order>,
    /// What it shows to the peers that they name.
    pub tickets: Tickets,
    /// The logins that they name.
    pub logins: BTreeMap<LoginId, SealedLogin>,
    /// Whether an order names copies of Secrets, as earlier versions made them.
    pub names_copies: bool,
    /// What came of them.
    pub reports: BTreeMap<Key, Report>,
    /// Whether its agent has said what it is.
    pub introduced: bool,
    /// The features of its agent; none where it published none.
    pub features: BTreeSet<String>,
    /// The key of its agent, to which logins are sealed.
    pub key: Option<String>,
    /// How other nodes read from it, where its agent serves.
    pub peer: Option<PeerInfo>,
    /// A sentence for each entry that cannot be read.
    pub broken: Vec<String>,
}

impl Default for NodeObject {
    fn default() -> Self {
        NodePreheatText::default().into()
    }
}

is_read_of!(NodeObject, NodePreheat);

/// What is taken from the text.
#[derive(Default, Deserialize)]
struct NodePreheatText {
    #[serde(default)]
    metadata: NodePreheatMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: NodePreheatReports,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodePreheatMeta {
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
}

#[derive(Default, Deserialize)]
struct Spec {
    #[serde(default)]
    epoch: i64,
    bandwidth: Option<Value>,
    upload: Option<Value>,
    #[serde(default)]
    orders: Entries<WireOrder>,
    #[serde(default)]
    logins: Entries<SealedLogin>,
}

#[derive(Default, Deserialize)]
struct NodePreheatReports {
    agent: Option<Value>,
    #[serde(default)]
    reports: Entries<WireReport>,
}

impl From<NodePreheatText> for NodeObject {
    fn from(NodePreheatText { metadata, spec, status }: NodePreheatText) -> Self {
        let NodePreheatMeta { name, uid, resource_version, generation } = metadata;
        let mut broken = Vec::new();
        let mut problem = |what: &str, problem: String| {
            broken.push(format!("NodePreheat {} {what}: {problem}", name.as_deref().unwrap_or_default()));
        };
        let (bandwidth, upload) = (limit("bandwidth", spec.bandwidth), limit("upload", spec.upload));
        let copies = |(_, order): &(String, Result<WireOrder, String>)| {
            order.as_ref().is_ok_and(|order| !order.secrets.is_empty())
        };
        let names_copies = spec.orders.0.iter().any(copies);
        let tickets = spec.orders.0.iter().filter_map(|(key, order)| {
            let ticket = order.as_ref().ok()?.ticket.as_ref()?;
            Some((key.parse().ok()?, ticket.clone())).filter(|_| ticket.len() <= WireOrder::LONGEST_TICKET)
        });
        let tickets = tickets.collect();
        let orders = spec.orders.read("spec.orders", to_core::order, &mut problem);
        let logins = spec.logins.0.into_iter().filter_map(|(id, login)| match login {
            Ok(login) if login.is_bounded() => Some((LoginId::new(&id), login)),
            Ok(_) => {
                problem(&format!("spec.logins.{id}"), "it is longer than a sealed login".into());
                None
            }
            Err(why) => {
                problem(&format!("spec.logins.{id}"), why);
                None
            }
        });
        let logins = logins.collect();
        let reports = status.reports.read("status.reports", to_core::report, &mut problem);
        let (introduced, agent) = (status.agent.is_some(), status.agent.unwrap_or_default());
        let features = agent.get("features").and_then(Value::as_array).into_iter().flatten();
        let features = features.filter_map(Value::as_str).map(str::to_string).collect();
        let key = agent.get("key").and_then(Value::as_str).filter(|key| key.len() <= AgentInfo::LONGEST_KEY);
        let key = key.map(str::to_string);
        let peer: Option<PeerInfo> = agent.get("peer").and_then(|peer| PeerInfo::deserialize(peer).ok());
        let peer = peer.filter(|peer| peer.port > 0 && peer.key.len() <= PeerInfo::LONGEST_KEY);
        let metadata = ObjectMeta { name, uid, resource_version, generation, ..ObjectMeta::default() };
        Self {
            metadata,
            epoch: spec.epoch,
            bandwidth,
            upload,
            orders,
            tickets,
            logins,
            names_copies,
            reports,
            introduced,
            features,
            key,
            peer,
            broken,
        }
    }
}

fn limit(field: &str, value: Option<Value>) -> Result<Option<u64>, String> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => {
            text.parse::<Amount>().map(|amount| Some(amount.0)).map_err(|problem| problem.to_string())
        }
        Some(_) => Err(format!("spec.{field} is not a text such as 20Mi")),
    }
}

/// A map whose entries are read one by one: each is there, or why it is not.
struct Entries<W>(Vec<(String, Result<W, String>)>);

impl<W> Default for Entries<W> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<W> Entries<W> {
    fn read<T>(
        self,
        place: &str,
        to_core: impl Fn(W) -> Result<T, String>,
        problem: &mut impl FnMut(&str, String),
    ) -> BTreeMap<Key, T> {
        let mut entries = BTreeMap::new();
        for (key, entry) in self.0 {
            match (key.parse::<Key>(), entry.and_then(&to_core)) {
                (Ok(key), Ok(entry)) => {
                    entries.insert(key, entry);
                }
                (Err(why), _) => problem(place, why.to_string()),
                (_, Err(why)) => problem(&format!("{place}.{key}"), why),
            }
        }
        entries
    }
}

impl<'de, W: DeserializeOwned> Deserialize<'de> for Entries<W> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor(PhantomData))
    }
}

struct EntriesVisitor<W>(PhantomData<W>);

impl<'de, W: DeserializeOwned> Visitor<'de> for EntriesVisitor<W> {
    type Value = Entries<W>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of entries")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        // The text of one entry at a time: a failure in the middle of one must not be the end of the others.
        while let Some((key, text)) = map.next_entry::<String, Box<RawValue>>()? {
            entries.push((key, serde_json::from_str(text.get()).map_err(|problem| problem.to_string())));
        }
        Ok(Entries(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube_core::{ObjectList, WatchEvent};
    use serde_json::json;

    const KEY: &str = "9bc536163ead1dce3b5d";

    /// With fields that nobody looks at, and that make no sense to those who do.
    fn text() -> Value {
        let order = json!({
            "image": "registry.example/web:v1", "policy": "Always", "timeout": "10m", "retries": 3, "progress": "20s",
            "jobs": ["Preheat/default/web"], "asked": "2026-01-02T03:04:05Z", "of a later version": {"a": [1]},
        });
        let mut late = order.clone();
        late["asked"] = "tomorrow".into();
        let report = json!({
            "asked": "2026-01-02T03:04:05Z", "phase": "Pulling", "attempt": 1,
            "started": "2026-01-02T03:04:05Z", "updated": "2026-01-02T03:04:06Z",
        });
        json!({
            "apiVersion": "stoker.dev/v1alpha1",
            "kind": "NodePreheat",
            "metadata": {
                "name": "n1", "uid": "u", "resourceVersion": "7", "generation": 3, "managedFields": "not even a list",
            },
            "spec": {
                "epoch": 2,
                "bandwidth": "much",
                "logins": { "0a": {"key": "k", "box": "b"}, "0b": 5 },
                "orders": { KEY: order, "0000000000000000000a": late, "0000000000000000000b": 5, "no key": order },
            },
            "status": {
                "agent": {"version": "0.1.0", "features": ["sealed", 5], "key": "public"},
                "reports": { KEY: report, "0000000000000000000c": {"phase": "Unheard"} },
            },
        })
    }

    fn check(object: &NodeObject) {
        let ObjectMeta { name, uid, resource_version, generation, .. } = object.metadata.clone();
        assert_eq!((name.as_deref(), uid.as_deref(), generation), (Some("n1"), Some("u"), Some(3)));
        assert_eq!((resource_version.as_deref(), object.epoch, object.introduced), (Some("7"), 2, true));
        let key: Key = KEY.parse().unwrap();
        assert_eq!(object.orders.keys().collect::<Vec<_>>(), [&key]);
        assert_eq!(object.reports.keys().collect::<Vec<_>>(), [&key]);
        assert_eq!(object.orders[&key].image, "registry.example/web:v1");
        assert!(object.bandwidth.is_err());
        assert_eq!(object.logins.keys().map(LoginId::as_str).collect::<Vec<_>>(), ["0a"]);
        assert_eq!((object.features.len(), object.key.as_deref()), (1, Some("public")));
        let places =
            ["logins.0b", "orders.0000000000000000000a", "orders.0000000000000000000b", "orders: ", "reports.00"];
        assert_eq!(object.broken.len(), places.len(), "{:#?}", object.broken);
        for place in places {
            let named = |problem: &String| problem.starts_with("NodePreheat n1 ") && problem.contains(place);
            assert!(object.broken.iter().any(named), "{place}: {:#?}", object.broken);
        }
    }

    #[test]
    fn what_makes_no_sense_is_named_and_the_rest_is_read_from_a_list_a_watch_or_a_value() {
        let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "9"}, "items": [text(), text()]});
        let list: ObjectList<NodeObject> = serde_json::from_str(&list.to_string()).unwrap();
        assert_eq!(list.items.len(), 2);
        list.items.iter().for_each(check);
        // As API servers write it: the type comes first.
        let event = format!("{{\"type\":\"MODIFIED\",\"object\":{}}}", text());
        let event: WatchEvent<NodeObject> = serde_json::from_str(&event).unwrap();
        let WatchEvent::Modified(object) = event else { panic!("{event:?}") };
        check(&object);
        check(&serde_json::from_value(text()).unwrap());
    }

    #[test]
    fn keys_and_logins_that_are_longer_than_any_are_none() {
        for (key, name, sealed, taken) in [(44, 16, 12 * 1024, 1), (45, 17, 1, 0), (1_000_000, 16, 12 * 1024 + 1, 0)] {
            let login = json!({ "key": "k".repeat(name), "box": "b".repeat(sealed) });
            let spec = json!({ "logins": { "0a": login } });
            let status = json!({ "agent": { "key": "A".repeat(key) } });
            let object = json!({ "metadata": { "name": "n1" }, "spec": spec, "status": status });
            let object: NodeObject = serde_json::from_value(object).unwrap();
            assert_eq!((object.logins.len(), object.key.iter().count()), (taken, taken), "{key}");
        }
    }

    #[test]
    fn an_object_that_nobody_has_written_yet_is_empty() {
        let object: NodeObject = serde_json::from_value(json!({"metadata": {"name": "n1"}, "spec": {}})).unwrap();
        assert!(
            object.orders.is_empty() && object.reports.is_empty() && !object.introduced && object.broken.is_empty()
        );
    }
}
