//! Objects in the form a client asked for. In: stored objects, the served version, the `Accept` form. Out: JSON. The stored
//! form is copied from the object's own bytes and never serialised twice.

use crate::kind::Served;
use crate::object::{Object, object_mut};
use crate::read::Page;
use crate::request::{Form, Include};
use crate::table;
use crate::write::{Clock, present};
use bytes::{BufMut as _, Bytes, BytesMut};
use serde_json::{Value, json};
use std::sync::Arc;

/// Writes objects of one kind and version in one form.
#[derive(Clone)]
pub(crate) struct Encoder {
    pub(crate) served: Served,
    pub(crate) form: Form,
    pub(crate) include: Include,
    pub(crate) clock: Clock,
}

impl Encoder {
    /// Whether the client gets objects exactly as they are stored.
    pub(crate) fn takes_stored_form(&self) -> bool {
        matches!(self.form, Form::Plain | Form::Discovery(_)) && self.serves_stored_version()
    }

    fn serves_stored_version(&self) -> bool {
        self.served.version().storage && self.served.kind.table == self.served.kind.id()
    }

    /// The object in its plain form.
    fn plain(&self, object: &Object) -> Bytes {
        match self.serves_stored_version() {
            true => object.json(),
            false => Bytes::from(present(&self.served, &object.value).to_string()),
        }
    }

    /// One object as the answer to a get or a write.
    pub(crate) fn one(&self, object: &Arc<Object>) -> Bytes {
        match self.form {
            Form::Plain | Form::Discovery(_) => self.plain(object),
            Form::Metadata => Bytes::from(metadata_of(&object.value, "PartialObjectMetadata").to_string()),
            Form::Table => {
                let meta = json!({"resourceVersion": object.revision.to_string()});
                Bytes::from(self.table(std::slice::from_ref(object), meta, true).to_string())
            }
        }
    }

    /// One object inside a watch event.
    pub(crate) fn event(&self, object: &Arc<Object>) -> Bytes {
        self.one(object)
    }

    /// One object inside a list. A list of a built-in kind says once what its items are; custom kinds say it in each.
    fn item(&self, object: &Arc<Object>) -> Bytes {
        if self.served.kind.custom || self.form != Form::Plain {
            return self.one(object);
        }
        let mut value = present(&self.served, &object.value);
        let map = object_mut(&mut value);
        map.remove("apiVersion");
        map.remove("kind");
        Bytes::from(value.to_string())
    }

    /// One page of a list.
    pub(crate) fn list(&self, page: &Page) -> Bytes {
        let mut meta = json!({"resourceVersion": page.revision.to_string()});
        if let Some(next) = &page.next {
            meta["continue"] = json!(next);
        }
        if let Some(remaining) = page.remaining {
            meta["remainingItemCount"] = json!(remaining);
        }
        if self.form == Form::Table {
            return Bytes::from(self.table(&page.objects, meta, true).to_string());
        }
        let (api_version, kind) = match self.form {
            Form::Metadata => ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadataList"),
            _ => (self.served.api_version(), self.served.kind.list_kind.as_str()),
        };
        let head = json!({"kind": kind, "apiVersion": api_version, "metadata": meta}).to_string();
        let mut out = BytesMut::with_capacity(head.len() + 16 + page.objects.len() * 1024);
        out.put_slice(head.strip_suffix('}').unwrap_or(&head).as_bytes());
        out.put_slice(b",\"items\":[");
        for (at, object) in page.objects.iter().enumerate() {
            if at > 0 {
                out.put_u8(b',');
            }
            out.put(self.item(object));
        }
        out.put_slice(b"]}");
        out.freeze()
    }

    fn table(&self, objects: &[Arc<Object>], meta: Value, columns: bool) -> Value {
        let now = (self.clock)();
        let rows = objects.iter().map(|object| {
            let attached = match self.include {
                Include::None => None,
                Include::Metadata => Some(metadata_of(&object.value, "PartialObjectMetadata")),
                Include::Object => Some(present(&self.served, &object.value)),
            };
            table::row(self.served.version(), &object.value, attached, now)
        });
        table::table(self.served.version(), rows.collect(), meta, columns)
    }

    /// An object of this kind with nothing in it, for bookmarks.
    pub(crate) fn empty(&self) -> Value {
        json!({"kind": self.served.kind.kind, "apiVersion": self.served.api_version()})
    }

    /// A bookmark in the form of the watch.
    pub(crate) fn bookmark(&self, object: Value) -> Value {
        match self.form {
            Form::Plain | Form::Discovery(_) => object,
            Form::Metadata => metadata_of(&object, "PartialObjectMetadata"),
            Form::Table => {
                let meta = object["metadata"].clone();
                let mut table = table::table(self.served.version(), Vec::new(), json!({}), false);
                let attached = metadata_of(&object, "PartialObjectMetadata");
                table["rows"] = json!([{"cells": [], "object": attached}]);
                table["metadata"]["resourceVersion"] = meta["resourceVersion"].clone();
                table
            }
        }
    }
}

fn metadata_of(value: &Value, kind: &str) -> Value {
    let metadata = value.get("metadata").cloned().unwrap_or_else(|| json!({}));
    json!({"kind": kind, "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
}
