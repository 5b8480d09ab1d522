//! Somebody who writes to objects that are not theirs, and what of that must never be lost.

use std::collections::BTreeMap;

use kube::api::DynamicObject;
use proptest::prelude::*;
use serde_json::{Value, json};
use stoker_testbed::paper::{Paper, PaperId};

use super::cluster::Cluster;
use super::manager::whole;
use super::users::IMAGES;
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
    /// A tag in a NodeImage.
    Tag,
    /// One more who wants a tag of an ImagePullJob.
    TagOwner,
    /// An entry in the status of a NodeImage.
    TagStatus,
    /// A NodeImage without tags.
    NoTags,
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
            Tag,
            TagOwner,
            TagStatus,
            NoTags,
        ])
    }
}

const HOLD: &str = "rude.test/hold";
const PROTECTION: &str = "apps.kruise.io/deletion-protection";

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

    /// Somebody has taken away what stood at these places.
    fn forget(&mut self, object: &DynamicObject, places: &[&str]) {
        if let Some(marks) = self.0.get_mut(&wire::uid(object)) {
            marks.retain(|place, _| !places.contains(&place.as_str()));
        }
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
        "tag" | "owner" => found_in_node_image(&all, place),
        "finalizer" => {
            let finalizers = object.metadata.finalizers.as_deref().unwrap_or_default();
            finalizers.iter().any(|finalizer| finalizer == HOLD).then(|| json!(HOLD))
        }
        place => all.pointer(place).cloned(),
    }
}

/// Puts a tag in the place of the one of the same name.
fn push_tag(image: &mut Value, tag: Value) {
    let mut tags = image["tags"].as_array().cloned().unwrap_or_default();
    tags.retain(|other| other["tag"] != tag["tag"]);
    tags.push(tag);
    image["tags"] = Value::Array(tags);
}

/// A tag or an owner of somebody else in a NodeImage.
fn found_in_node_image(object: &Value, place: &str) -> Option<Value> {
    let images = object.pointer("/spec/images")?.as_object()?;
    let mut tags = images.values().filter_map(|image| image["tags"].as_array()).flatten();
    match place {
        "owner" => {
            let mut owners = tags.filter_map(|tag| tag["ownerReferences"].as_array()).flatten();
            owners.find(|owner| owner["kind"] == "Robot").cloned()
        }
        _ => tags.find(|tag| tag["tag"] == RUDE_TAG).cloned().map(|mut tag| {
            // It is written without a time, and given one.
            tag.as_object_mut().map(|fields| fields.remove("createdAt"));
            tag
        }),
    }
}

/// What stands beside it.
const SANDBOXES: [&str; 2] = ["/spec/images/nginx/sandboxConfig", "/spec/images/registry.test~1rude/sandboxConfig"];

/// A tag that no job wants.
const RUDE_TAG: &str = "rude";

impl Cluster {
    /// Writes to a NodeImage.
    fn be_rude_to_a_node(&mut self, which: usize, rudeness: Rudeness) {
        let all: Vec<DynamicObject> = self.paper.of_kind("NodeImage").cloned().collect();
        let Some(object) = all.get(which % all.len().max(1)) else { return };
        let version = self.paper.version();
        let mut data = object.data.clone();
        let ttl = json!({ "ttlSecondsAfterFinished": i32::MAX, "timeoutSeconds": 600, "backoffLimit": 3 });
        match rudeness {
            Rudeness::Tag => {
                let tag = json!({ "tag": RUDE_TAG, "version": version, "x": "y", "pullPolicy": ttl });
                let image = &mut data["spec"]["images"][["nginx", "registry.test/rude"][which % 2]];
                // No pullSecrets: nobody reads Secrets here, and a controller that starts waits for them.
                image["sandboxConfig"] = json!({ "labels": { "x": "y" } });
                let mut stamped = tag.clone();
                if self.manager.is_some() {
                    // Kruise's webhook does that.
                    stamped["createdAt"] = json!(whole(self.now()));
                }
                push_tag(image, stamped);
                // The same tag of the other repository goes.
                let other = &mut data["spec"]["images"][["registry.test/rude", "nginx"][which % 2]];
                match other["tags"].as_array_mut() {
                    Some(tags) => tags.retain(|tag| tag["tag"] != RUDE_TAG),
                    None => *other = json!({ "tags": [] }),
                }
                self.marks.add(object, "tag", tag);
                self.marks.add(object, SANDBOXES[which % 2], json!({ "labels": { "x": "y" } }));
            }
            Rudeness::TagOwner => {
                let images = data["spec"]["images"].as_object_mut().into_iter().flat_map(|images| images.values_mut());
                let mut tags = images.filter_map(|image| image["tags"].as_array_mut()).flatten();
                let of_job = |tag: &&mut Value| tag["ownerReferences"][0]["kind"] == "ImagePullJob";
                let Some(tag) = tags.find(of_job) else { return };
                let owner = json!({ "kind": "Robot", "name": "r2" });
                if let Some(owners) = tag["ownerReferences"].as_array_mut() {
                    owners.retain(|owner| owner["kind"] != "Robot");
                    owners.push(owner.clone());
                }
                tag["pullPolicy"] = ttl;
                self.marks.add(object, "owner", owner);
            }
            Rudeness::TagStatus => {
                let entry =
                    json!({ "tag": RUDE_TAG, "phase": "Waiting", "message": version.to_string(), "version": -1 });
                push_tag(&mut data["status"]["imageStatuses"]["registry.test/other"], entry.clone());
                data["status"]["desired"] = data["status"]["desired"].as_i64().unwrap_or(0).into();
                self.marks.add(object, "/status/imageStatuses/registry.test~1other/tags/0", entry);
            }
            _ => {
                data["spec"] = json!({ "images": null });
                self.marks.forget(object, &["tag", "owner", SANDBOXES[0], SANDBOXES[1]]);
            }
        }
        let id = PaperId::new("NodeImage", "", object.metadata.name.as_deref().unwrap_or_default());
        let status = matches!(rudeness, Rudeness::TagStatus);
        let part = if status { "status" } else { "spec" };
        self.paper.patch(&id, &json!({ part: data[part] }), status).unwrap();
    }

    /// Writes to one of the objects that users made.
    pub(super) fn be_rude(&mut self, which: usize, rudeness: Rudeness) {
        if matches!(rudeness, Rudeness::Tag | Rudeness::TagOwner | Rudeness::TagStatus | Rudeness::NoTags) {
            return self.be_rude_to_a_node(which, rudeness);
        }
        let jobs = |(_, object): &(&PaperId, &DynamicObject)| wire::job_kind(object).is_some();
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
                if id.kind == "ImagePullJob" {
                    all.retain(|finalizer| finalizer != PROTECTION);
                    all.push(PROTECTION.into());
                }
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
            Rudeness::Tag | Rudeness::TagOwner | Rudeness::TagStatus | Rudeness::NoTags => return,
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
