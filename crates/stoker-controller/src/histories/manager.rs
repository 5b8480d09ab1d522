//! Kruise's manager in half a hand-over: it makes NodeImages, hands out tags with versions, takes them back, and fails tags that nobody
//! answers. What of that must never be lost is said in [`super::laws::keeps_to_its_own`].

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::api::DynamicObject;
use proptest::prelude::*;
use serde_json::{Value, json};
use stoker_testbed::paper::PaperId;

use super::cluster::{Cluster, NODES, replace};
use super::makers::is_fake;
use super::users::IMAGES;
use super::wire::{self, Tag, field, node_image, tags};

/// A tag of which nothing is said for this long has failed, and one that is not done this long after its deadline, in seconds.
const PATIENCE: i64 = 600;

/// What the manager does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Managing {
    /// NodeImages come and go with Nodes, tags go whose time is over or whose jobs are gone, and tags that nobody answers fail.
    Round,
    /// A job wants an image on a node.
    HandOut { node: usize, image: usize, job: usize },
    /// A tag goes.
    TakeBack { node: usize, image: usize },
}

impl Managing {
    pub(super) fn any() -> impl Strategy<Value = Self> {
        let number = || 0..64usize;
        prop_oneof![
            2 => Just(Managing::Round),
            4 => (number(), number(), number()).prop_map(|(node, image, job)| Managing::HandOut { node, image, job }),
            1 => (number(), number()).prop_map(|(node, image)| Managing::TakeBack { node, image }),
        ]
    }
}

/// What the manager remembers for those who look at a history.
#[derive(Clone, Debug, Default)]
pub(super) struct Manager {
    /// Tags that it handed out, each with its time, but for those that were asked for again before they were answered.
    pub(super) handed: BTreeSet<(Tag, i64)>,
    /// Tags that it failed.
    pub(super) failed: Vec<Tag>,
}

/// On which terms a tag is handed out, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct TagTerms {
    pub(super) ttl: i64,
    pub(super) deadline: Option<i64>,
    /// Whether the registry is asked in any case.
    pub(super) always: bool,
}

impl Cluster {
    /// The manager does something, where there is one.
    pub(super) fn manage(&mut self, managing: Managing) {
        if self.manager.is_none() {
            return;
        }
        match managing {
            Managing::Round => self.manage_nodes(),
            Managing::HandOut { node, image, job } => {
                let jobs = self.paper.all().filter(|(id, _)| id.kind == "ImagePullJob");
                let jobs: Vec<PaperId> = jobs.map(|(id, _)| id.clone()).collect();
                if let Some(job) = jobs.get(job % jobs.len().max(1)) {
                    let terms = TagTerms { ttl: 900, deadline: None, always: false };
                    self.hand_out(NODES[node % NODES.len()], IMAGES[image % IMAGES.len()], job, terms);
                }
            }
            Managing::TakeBack { node, image } => {
                let (id, (image, tag)) = (node_image(NODES[node % NODES.len()]), split(IMAGES[image % IMAGES.len()]));
                self.rewrite(&id, |images| {
                    if let Some(tags) = images.get_mut(image).and_then(|image| image["tags"].as_array_mut()) {
                        tags.retain(|entry| entry["tag"] != tag || is_held(entry));
                    }
                });
            }
        }
    }

    fn manage_nodes(&mut self) {
        let now = self.now();
        let name = |object: &DynamicObject| object.metadata.name.clone().unwrap_or_default();
        let nodes: BTreeMap<String, Value> =
            self.paper.of_kind("Node").map(|node| (name(node), json!(node.metadata.labels))).collect();
        let images: BTreeMap<String, DynamicObject> =
            self.paper.of_kind("NodeImage").map(|image| (name(image), image.clone())).collect();
        for (name, labels) in nodes.iter().filter(|(name, _)| !images.contains_key(*name)) {
            let metadata = json!({ "name": name, "labels": labels });
            let object = json!({
                "apiVersion": "apps.kruise.io/v1beta1", "kind": "NodeImage", "metadata": metadata, "spec": {},
            });
            self.paper.create(serde_json::from_value(object).unwrap(), now).unwrap();
        }
        for (name, image) in images.iter().filter(|(_, image)| !is_fake(image)) {
            let id = node_image(name);
            match nodes.get(name) {
                None => {
                    let _ = self.paper.delete(&id, None, now);
                }
                Some(labels) => {
                    let labels = replace(&json!(image.metadata.labels), labels);
                    self.paper.patch(&id, &json!({ "metadata": { "labels": labels } }), false).unwrap();
                    self.prune(&id);
                    self.judge(&id);
                }
            }
        }
    }

    /// Writes the images of a spec anew.
    fn rewrite(&mut self, id: &PaperId, change: impl FnOnce(&mut serde_json::Map<String, Value>)) {
        let Some(object) = self.paper.get(id) else { return };
        let before = field(object, "/spec").clone();
        let mut images = before["images"].as_object().cloned().unwrap_or_default();
        change(&mut images);
        images.retain(|_, image| {
            let has_tags = image["tags"].as_array().is_some_and(|tags| !tags.is_empty());
            has_tags || !image["sandboxConfig"].is_null()
        });
        let spec = replace(&before, &json!({ "images": images }));
        self.paper.patch(id, &json!({ "spec": spec }), false).unwrap();
    }

    /// Takes out the tags whose time to live is over, and those whose jobs are gone.
    fn prune(&mut self, id: &PaperId) {
        let (now, Some(object)) = (self.now(), self.paper.get(id).cloned()) else { return };
        let jobs: BTreeSet<String> = self.paper.of_kind("ImagePullJob").map(wire::uid).collect();
        let is_gone = |owner: &Value| {
            owner["kind"] == "ImagePullJob" && !jobs.contains(owner["uid"].as_str().unwrap_or_default())
        };
        self.rewrite(id, |images| {
            for (image, of) in images.iter_mut() {
                let Some(tags) = of.get_mut("tags").and_then(Value::as_array_mut) else { continue };
                tags.retain_mut(|tag| {
                    let said = wire::said(&object, image, tag);
                    let ended = said.and_then(|said| time(&said["completionTime"]));
                    let ttl = tag["pullPolicy"]["ttlSecondsAfterFinished"].as_i64();
                    let is_over = ended.zip(ttl).is_some_and(|(ended, ttl)| ended + ttl <= now.as_second());
                    let owners = tag.get_mut("ownerReferences").and_then(Value::as_array_mut);
                    let Some(owners) = owners else { return !is_over };
                    let had = owners.len();
                    owners.retain(|owner| !is_gone(owner));
                    !is_over && (had == 0 || !owners.is_empty()) || is_held(tag)
                });
            }
        });
    }

    /// Fails the tags that nobody answers.
    fn judge(&mut self, id: &PaperId) {
        let (now, Some(object)) = (self.now(), self.paper.get(id).cloned()) else { return };
        let mut statuses = field(&object, "/status/imageStatuses").clone();
        for (image, tag) in tags(&object) {
            let Some(created) = time(&tag["createdAt"]) else { continue };
            let is_late = |seconds: i64| created + seconds + PATIENCE <= now.as_second();
            let deadline = tag["pullPolicy"]["activeDeadlineSeconds"].as_i64();
            let message = match wire::said(&object, image, tag) {
                None if is_late(0) => "node has not responded for a long time",
                Some(said) if !wire::is_done(said) && deadline.is_some_and(is_late) => {
                    "pulling exceeds the activeDeadlineSeconds"
                }
                _ => continue,
            };
            let mut entry = json!({
                "tag": tag["tag"], "phase": "Failed", "completionTime": whole(now), "message": message,
            });
            if wire::version(tag) != 0 {
                entry["version"] = json!(wire::version(tag));
            }
            let mut entries = statuses[image]["tags"].as_array().cloned().unwrap_or_default();
            entries.retain(|other| other["tag"] != tag["tag"]);
            entries.push(entry);
            statuses[image]["tags"] = Value::Array(entries);
            let failed = (id.name.clone(), image.clone(), text(&tag["tag"]), wire::version(tag));
            self.say(format!("the manager fails {failed:?}: {message}"));
            self.manager.iter_mut().for_each(|manager| manager.failed.push(failed.clone()));
        }
        if statuses != *field(&object, "/status/imageStatuses") {
            let desired = tags(&object).len();
            let status = json!({ "desired": desired, "imageStatuses": statuses });
            self.paper.patch(id, &json!({ "status": status }), true).unwrap();
        }
    }

    /// Hands out a tag for a job. One that is there is asked for again, in the next version.
    pub(super) fn hand_out(&mut self, node: &str, image: &str, job: &PaperId, terms: TagTerms) {
        let (now, id, (image, tag)) = (self.now(), node_image(node), split(image));
        let (Some(object), Some(uid)) = (self.paper.get(&id).cloned(), self.paper.get(job).map(wire::uid)) else {
            return;
        };
        if is_fake(&object) {
            return;
        }
        let owner = json!({
            "apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "namespace": job.namespace, "name": job.name, "uid": uid,
        });
        let there = tags(&object).into_iter().find(|(of, entry)| *of == image && entry["tag"] == tag);
        if there.is_some_and(|(_, entry)| is_held(entry)) {
            return;
        }
        let mut version = match &there {
            Some((_, entry)) => Some(wire::version(entry)),
            None => wire::entry(&object, image, tag).map(wire::version),
        };
        version = version.map(|version| version.max(0) + 1);
        let mut owners = match &there {
            Some((_, entry)) => entry["ownerReferences"].as_array().cloned().unwrap_or_default(),
            None => Vec::new(),
        };
        if !owners.contains(&owner) {
            owners.push(owner);
        }
        let mut entry = json!({
            "tag": tag, "createdAt": whole(now), "ownerReferences": owners,
            "imagePullPolicy": if terms.always { "Always" } else { "IfNotPresent" },
            "pullPolicy": { "timeoutSeconds": 7200, "backoffLimit": 3, "ttlSecondsAfterFinished": terms.ttl },
        });
        if let Some(version) = version {
            entry["version"] = json!(version);
        }
        if let Some(deadline) = terms.deadline {
            entry["pullPolicy"]["activeDeadlineSeconds"] = json!(deadline);
        }
        if let Some(manager) = &mut self.manager {
            // Nobody need answer a version that is asked for again.
            if let Some((_, before)) =
                there.filter(|(_, tag)| !wire::said(&object, image, tag).is_some_and(wire::is_done))
            {
                let old: Tag = (node.into(), image.into(), tag.into(), wire::version(before));
                manager.handed.remove(&(old, time(&before["createdAt"]).unwrap_or_default()));
            }
            let new: Tag = (node.into(), image.into(), tag.into(), version.unwrap_or_default());
            manager.handed.insert((new, now.as_second()));
        }
        self.rewrite(&id, |images| {
            let mut tags = images.get(image).and_then(|image| image["tags"].as_array().cloned()).unwrap_or_default();
            tags.retain(|other| other["tag"] != tag);
            tags.push(entry);
            tags.sort_by_key(|tag| tag["tag"].to_string());
            images.entry(image).or_insert_with(|| json!({}))["tags"] = Value::Array(tags);
        });
    }
}

/// Whether somebody else wants a tag, too. Upstream's manager keeps such a tag, and here it does nothing else to it.
fn is_held(tag: &Value) -> bool {
    tag["ownerReferences"].as_array().is_some_and(|owners| owners.iter().any(|owner| owner["kind"] == "Robot"))
}

/// The repository and the tag.
fn split(image: &str) -> (&str, &str) {
    image.rsplit_once(':').unwrap()
}

/// A time as Kubernetes writes it.
pub(super) fn whole(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap().to_string()
}

/// A time in seconds.
pub(super) fn time(value: &Value) -> Option<i64> {
    value.as_str()?.parse::<Timestamp>().ok().map(|time| time.as_second())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
