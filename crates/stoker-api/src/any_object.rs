//! An object of any kind as it is read from an API server: JSON in, a [`DynamicObject`] out, whatever strangers have written into it.
//!
//! An API server keeps texts that the types of `k8s-openapi` refuse: Go takes the date 9999-12-31T23:59:59Z, jiff ends a day before
//! it, and every writer of an object may put such a date into its managedFields. A list or a watch that fails because of one object
//! fails for all objects of the kind, so nothing in an object may fail its reading:
//! - managedFields are passed over while the text is read, however they look;
//! - a field of the metadata that cannot be read is left out;
//! - any other field that cannot be read is null. Whoever needs it says so about this object alone (`NotReadable`).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube_core::discovery::ApiResource;
use kube_core::dynamic::DynamicObject;
use kube_core::{DynamicResourceScope, Resource, TypeMeta};
use serde::de::{DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// Lets a type that holds a part of an object in `metadata` be read from where objects of a kind are.
macro_rules! is_read_of {
    ($part:ty, $kind:ty) => {
        impl kube_core::Resource for $part {
            type DynamicType = ();
            type Scope = <$kind as kube_core::Resource>::Scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube_core::Resource>::kind(&())
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube_core::Resource>::group(&())
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube_core::Resource>::version(&())
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube_core::Resource>::plural(&())
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
pub(crate) use is_read_of;

/// An object of any kind.
#[derive(Clone, Debug, Serialize)]
pub struct AnyObject(pub DynamicObject);

impl Resource for AnyObject {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn api_version(resource: &ApiResource) -> Cow<'_, str> {
        resource.api_version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.0.metadata
    }
}

impl<'de> Deserialize<'de> for AnyObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = AnyObject;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<AnyObject, A::Error> {
        let (mut api_version, mut kind, mut metadata) = (None, None, Meta::default());
        let mut data = serde_json::Map::new();
        // The text of one field at a time: a failure in the middle of one must not be the end of the others.
        while let Some((name, text)) = map.next_entry::<String, Box<RawValue>>()? {
            match name.as_str() {
                "apiVersion" => api_version = read(&text),
                "kind" => kind = read(&text),
                "metadata" => metadata = read(&text).unwrap_or_default(),
                _ => {
                    data.insert(name, read(&text).unwrap_or_default());
                }
            }
        }
        let types = api_version.zip(kind).map(|(api_version, kind)| TypeMeta { api_version, kind });
        Ok(AnyObject(DynamicObject { types, metadata: metadata.into(), data: Value::Object(data) }))
    }
}

fn read<T: DeserializeOwned>(text: &RawValue) -> Option<T> {
    serde_json::from_str(text.get()).ok()
}

/// The metadata of an object, each field by itself.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Meta {
    name: Lenient<String>,
    generate_name: Lenient<String>,
    namespace: Lenient<String>,
    uid: Lenient<String>,
    resource_version: Lenient<String>,
    generation: Lenient<i64>,
    labels: Lenient<BTreeMap<String, String>>,
    annotations: Lenient<BTreeMap<String, String>>,
    finalizers: Lenient<Vec<String>>,
    owner_references: Lenient<Vec<OwnerReference>>,
    creation_timestamp: Lenient<Time>,
    deletion_timestamp: Lenient<DeletedAt>,
}

/// When an object is deleted. That it is deleted counts: a time that cannot be read is the last one.
struct DeletedAt(Time);

impl<'de> Deserialize<'de> for DeletedAt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let time: Lenient<Time> = Lenient::deserialize(deserializer)?;
        Ok(Self(time.0.unwrap_or(Time(Timestamp::MAX))))
    }
}

impl From<Meta> for ObjectMeta {
    fn from(meta: Meta) -> Self {
        Self {
            name: meta.name.0,
            generate_name: meta.generate_name.0,
            namespace: meta.namespace.0,
            uid: meta.uid.0,
            resource_version: meta.resource_version.0,
            generation: meta.generation.0,
            labels: meta.labels.0,
            annotations: meta.annotations.0,
            finalizers: meta.finalizers.0,
            owner_references: meta.owner_references.0,
            creation_timestamp: meta.creation_timestamp.0,
            deletion_timestamp: meta.deletion_timestamp.0.map(|DeletedAt(time)| time),
            ..Self::default()
        }
    }
}

/// A value; none where it is null, or nothing that could be read as one.
pub(crate) struct Lenient<T>(pub(crate) Option<T>);

impl<T> Default for Lenient<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(Self(Some(value).filter(|value| !value.is_null()).and_then(|value| serde_json::from_value(value).ok())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::PlainNode;
    use kube_core::{ObjectList, WatchEvent};
    use serde_json::json;

    /// A date that an API server keeps and that jiff cannot hold.
    const LATE: &str = "9999-12-31T23:59:59Z";

    fn late_preheat() -> Value {
        // A namespace editor may patch this in. Go reads 10,000 levels, serde_json 128.
        let mut deep = json!({});
        (0..200).for_each(|_| deep = json!({ "f:a": deep.take() }));
        let managed = json!([{ "manager": "x", "operation": "Update", "time": LATE, "fieldsV1": deep }]);
        json!({
            "apiVersion": "stoker.dev/v1alpha1",
            "kind": "Preheat",
            "metadata": {
                "name": "poison", "namespace": "evil", "uid": "u", "resourceVersion": "7", "generation": 2,
                "labels": { "a": "b" }, "annotations": { "c": 5 }, "creationTimestamp": LATE, "managedFields": managed,
            },
            "spec": { "images": [{ "image": "r.example/a:1" }] },
        })
    }

    fn late_node() -> Value {
        json!({
            "metadata": { "name": "n9", "labels": { "zone": "a" }, "resourceVersion": "7", "uid": "u" },
            "status": {
                "images": "not even a list",
                "conditions": [
                    { "type": "Evil", "status": "True", "lastHeartbeatTime": LATE, "lastTransitionTime": LATE },
                    5,
                    { "type": "Ready", "status": "True", "lastHeartbeatTime": LATE, "lastTransitionTime": LATE },
                ],
            },
        })
    }

    fn good_node() -> Value {
        let ready = json!({ "type": "Ready", "status": "False", "lastTransitionTime": "2026-01-02T03:04:05Z" });
        json!({ "metadata": { "name": "n1" }, "status": { "conditions": [ready] } })
    }

    /// As API servers write them.
    fn listed<K: Clone + DeserializeOwned>(items: &[Value]) -> Vec<K> {
        let list =
            json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "9" }, "items": items });
        serde_json::from_str::<ObjectList<K>>(&list.to_string()).unwrap().items
    }

    fn watched<K: DeserializeOwned + fmt::Debug>(object: &Value) -> K {
        let event = format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}");
        match serde_json::from_str::<WatchEvent<K>>(&event).unwrap() {
            WatchEvent::Modified(object) => object,
            event => panic!("{event:?}"),
        }
    }

    #[test]
    fn a_date_past_the_range_of_jiff_fails_no_list_and_no_watch_of_jobs() {
        let strict = serde_json::from_str::<DynamicObject>(&late_preheat().to_string());
        assert!(strict.is_err(), "with a date that can be read this test shows nothing");
        let good =
            json!({ "metadata": { "name": "web", "namespace": "shop", "creationTimestamp": "2026-01-02T03:04:05Z" } });
        let mut items: Vec<AnyObject> = listed(&[late_preheat(), good]);
        let good = items.pop().unwrap().0.metadata;
        assert_eq!((good.name.as_deref(), good.creation_timestamp.is_some()), (Some("web"), true));
        for AnyObject(object) in [items.remove(0), watched(&late_preheat())] {
            let meta = &object.metadata;
            assert_eq!((meta.name.as_deref(), meta.namespace.as_deref()), (Some("poison"), Some("evil")));
            assert_eq!((meta.uid.as_deref(), meta.resource_version.as_deref()), (Some("u"), Some("7")));
            assert_eq!((meta.generation, meta.labels.as_ref().map(BTreeMap::len)), (Some(2), Some(1)));
            assert_eq!((&meta.managed_fields, &meta.creation_timestamp, &meta.annotations), (&None, &None, &None));
            assert_eq!(object.types.as_ref().map(|types| types.kind.as_str()), Some("Preheat"));
            let job = crate::native::to_core::job(&object).unwrap();
            assert_eq!(job.images.len(), 1);
        }
    }

    #[test]
    fn a_date_past_the_range_of_jiff_fails_no_list_and_no_watch_of_nodes() {
        let strict = serde_json::from_value::<k8s_openapi::api::core::v1::Node>(late_node());
        assert!(strict.is_err(), "with a date that can be read this test shows nothing");
        let mut items: Vec<PlainNode> = listed(&[late_node(), good_node()]);
        let good = items.pop().unwrap().into_core();
        assert_eq!((good.name.as_ref(), good.ready, good.ready_changed.is_some()), ("n1", false, true));
        for node in [items.remove(0), watched(&late_node())] {
            assert_eq!(node.metadata.resource_version.as_deref(), Some("7"));
            let node = node.into_core();
            assert_eq!((node.name.as_ref(), node.ready, node.ready_changed), ("n9", true, None));
            assert_eq!(node.labels.len(), 1);
        }
    }

    /// A pod may be given thousands of years to end.
    #[test]
    fn an_object_that_is_deleted_at_an_unreadable_time_is_deleted() {
        for (at, deleted) in [(json!(LATE), true), (json!("2026-01-02T03:04:05Z"), true), (Value::Null, false)] {
            let AnyObject(object) = watched(&json!({ "metadata": { "name": "web", "deletionTimestamp": at } }));
            assert_eq!(object.metadata.deletion_timestamp.is_some(), deleted, "{at}");
        }
    }

    /// Not gone: the job of an object that is gone loses its orders in silence. This one is named (`NotReadable`).
    #[test]
    fn a_part_that_cannot_be_read_is_said_of_its_object_alone() {
        let mut deep = json!({});
        (0..200).for_each(|_| deep = json!({ "a": deep.take() }));
        let AnyObject(object) =
            watched(&json!({ "kind": "Preheat", "apiVersion": "v", "metadata": { "name": "web" }, "spec": deep }));
        assert_eq!(object.metadata.name.as_deref(), Some("web"));
        let problem = crate::native::to_core::job(&object).unwrap_err().to_string();
        assert!(problem.contains("web") && problem.contains("spec"), "{problem}");
    }

    #[test]
    fn an_object_is_written_as_it_was_read() {
        let object =
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web" }, "spec": { "nodeName": "n1" } });
        assert_eq!(serde_json::to_value(watched::<AnyObject>(&object)).unwrap(), object);
    }
}
