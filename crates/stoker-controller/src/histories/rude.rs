//! Somebody who writes to objects that are not theirs, and what of that must never be lost.

use std::collections::BTreeMap;

use kube::api::DynamicObject;
use proptest::prelude::*;
use serde_json::{Value, json};
use stoker_testbed::paper::{Paper, PaperId};

use super::cluster::Cluster;
use super::users::{IMAGES, NAMESPACE};
use super::wire;

#[derive(Clone, Copy, Debug)]
pub(super) enum Rudeness {
    Label,
    Annotation,
    /// Holds the object when it is deleted.
    Finalizer,
    /// Lets it go.
    Release,
    StatusField,
    Condition,
    /// Another image, behind the back of its list.
    Image,
    Parallelism,
    Delete,
    /// The same again, as another object.
    Recreate,
    /// It belongs to nobody.
    Orphan,
    /// Without the label that its controller put there.
    Unlabel,
}

impl Rudeness {
    pub(super) fn any() -> impl Strategy<Value = Self> {
        use Rudeness::*;
        prop::sample::select(vec![
            Label,
            Annotation,
            Finalizer,
            Release,
            StatusField,
            Condition,
            Image,
            Parallelism,
            Delete,
            Recreate,
            Orphan,
            Unlabel,
        ])
    }
}

const HOLD: &str = "rude.test/hold";

/// What was written to objects, by uid: where it stands, and what it is. Of a condition the type.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks(BTreeMap<String, BTreeMap<String, Value>>);

impl Marks {
    /// What is lost of them, if anything.
    pub(super) fn lost(&self, paper: &Paper) -> Option<String> {
        for (id, object) in paper.all() {
            for (place, value) in self.0.get(&wire::uid(object)).into_iter().flatten() {
                if found(object, place).as_ref() != Some(value) {
                    return Some(format!(
                        "{id} has lost {place} = {value}: {}",
                        serde_json::to_string(object).unwrap()
                    ));
                }
            }
        }
        None
    }

    fn add(&mut self, object: &DynamicObject, place: &str, value: Value) {
        self.0.entry(wire::uid(object)).or_default().insert(place.into(), value);
    }
}

fn found(object: &DynamicObject, place: &str) -> Option<Value> {
    let all = serde_json::to_value(object).unwrap();
    match place {
        "condition" => {
            let conditions = all.pointer("/status/conditions")?.as_array()?;
            conditions.iter().find(|condition| condition["type"] == "Rude").map(|condition| condition["reason"].clone())
        }
        "finalizer" => {
            let finalizers = object.metadata.finalizers.as_deref().unwrap_or_default();
            finalizers.iter().any(|finalizer| finalizer == HOLD).then(|| json!(HOLD))
        }
        place => all.pointer(place).cloned(),
    }
}

impl Cluster {
    /// Writes to one of the objects that users made.
    pub(super) fn be_rude(&mut self, which: usize, rudeness: Rudeness) {
        let jobs =
            |(id, _): &(&PaperId, &DynamicObject)| id.namespace == NAMESPACE && id.kind != "Pod" && id.kind != "Event";
        let all: Vec<PaperId> = self.paper.all().filter(jobs).map(|(id, _)| id.clone()).collect();
        let Some(id) = all.get(which % all.len().max(1)) else { return };
        let Some(object) = self.paper.get(id).cloned() else { return };
        let (now, version) = (self.now(), self.paper.version());
        let going = object.metadata.deletion_timestamp.is_some();
        let mut mark = |place: &str, value: Value| self.marks.add(&object, place, value);
        let (patch, status) = match rudeness {
            Rudeness::Label => {
                mark("/metadata/labels/rude", json!(version.to_string()));
                (json!({ "metadata": { "labels": { "rude": version.to_string() } } }), false)
            }
            Rudeness::Annotation => {
                mark("/metadata/annotations/rude", json!(version.to_string()));
                (json!({ "metadata": { "annotations": { "rude": version.to_string() } } }), false)
            }
            Rudeness::Finalizer if !going => {
                mark("finalizer", json!(HOLD));
                let mut all = object.metadata.finalizers.clone().unwrap_or_default();
                all.retain(|finalizer| finalizer != HOLD);
                all.push(HOLD.into());
                // What upstream's controller leaves behind.
                all.push("apps.kruise.io/deletion-protection".into());
                all.dedup();
                (json!({ "metadata": { "finalizers": all } }), false)
            }
            Rudeness::Release => {
                self.release(id);
                return;
            }
            // Upstream's schema refuses a status without this field.
            Rudeness::StatusField if id.kind != "Preheat" && wire::field(&object, "/status/desired").is_null() => {
                return;
            }
            Rudeness::StatusField => {
                mark("/status/rude", json!(version));
                (json!({ "status": { "rude": version } }), true)
            }
            Rudeness::Condition if id.kind == "Preheat" => {
                mark("condition", json!(version.to_string()));
                let ours = wire::field(&object, "/status/conditions").as_array().cloned().unwrap_or_default();
                let mut all: Vec<Value> = ours.into_iter().filter(|condition| condition["type"] != "Rude").collect();
                all.push(json!({
                    "type": "Rude", "status": "True", "reason": version.to_string(), "message": "", "lastTransitionTime": now.to_string(),
                    "observedGeneration": 0,
                }));
                (json!({ "status": { "conditions": all } }), true)
            }
            Rudeness::Image if id.kind == "ImagePullJob" => {
                let image = IMAGES[which % IMAGES.len()];
                (json!({ "spec": { "image": image } }), false)
            }
            Rudeness::Parallelism if id.kind == "Preheat" => {
                (json!({ "spec": { "pace": { "parallelism": which % 3 } } }), false)
            }
            Rudeness::Parallelism => (json!({ "spec": { "parallelism": which % 3 } }), false),
            Rudeness::Delete | Rudeness::Recreate => {
                let _ = self.paper.delete(id, None, now);
                if matches!(rudeness, Rudeness::Recreate) && self.paper.get(id).is_none() {
                    let mut again = object.clone();
                    (again.metadata.resource_version, again.metadata.finalizers) = (None, None);
                    let _ = self.paper.create(again, now);
                }
                return;
            }
            Rudeness::Orphan => (json!({ "metadata": { "ownerReferences": null } }), false),
            Rudeness::Unlabel => (json!({ "metadata": { "labels": { "controller-revision-hash": null } } }), false),
            Rudeness::Finalizer | Rudeness::Condition | Rudeness::Image => return,
        };
        self.paper.patch(id, &patch, status).unwrap();
    }

    /// Takes back the hold on an object.
    pub(super) fn release(&mut self, id: &PaperId) {
        let Some(object) = self.paper.get(id).cloned() else { return };
        if let Some(marks) = self.marks.0.get_mut(&wire::uid(&object)) {
            marks.remove("finalizer");
        }
        let finalizers: Vec<String> =
            object.metadata.finalizers.into_iter().flatten().filter(|held| held != HOLD).collect();
        self.paper.patch(id, &json!({ "metadata": { "finalizers": finalizers } }), false).unwrap();
    }
}
