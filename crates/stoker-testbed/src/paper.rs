//! An API server on paper: objects in memory, changed by the writes that Stoker computes, one call after the other. It knows uids,
//! versions, generations, finalizers, owners, merge patches and preconditions as a real one does, and no schema, no access rights
//! and no time of its own. For tests of pure code: thousands of histories a minute. What speaks HTTP is tested with the embedded API.

mod change;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::DynamicObject;
use kube::core::Status;
use serde_json::Value;
use stoker_api::view::{Heard, Kind, Query};
use stoker_api::{Target, View, Write, labels};
use stoker_core::World;

/// Kind, namespace (empty for a cluster-scoped one) and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PaperId {
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl PaperId {
    /// The id of an object of this kind.
    pub fn new(kind: &str, namespace: &str, name: &str) -> Self {
        Self { kind: kind.into(), namespace: namespace.into(), name: name.into() }
    }

    /// The id of what a write changes.
    pub fn of(target: &Target) -> Self {
        Self::new(&target.resource.kind, target.namespace.as_deref().unwrap_or_default(), &target.name)
    }
}

impl std::fmt::Display for PaperId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// One entry of the history that watches read.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The version that the change made.
    pub version: u64,
    /// Of which object.
    pub id: PaperId,
    /// What it was before; none where it was made.
    pub before: Option<DynamicObject>,
    /// What it is since then; none where it is gone.
    pub after: Option<DynamicObject>,
}

/// All objects, and how they came to be.
#[derive(Clone, Debug, Default)]
pub struct Paper {
    objects: BTreeMap<PaperId, DynamicObject>,
    history: Vec<Entry>,
    /// Of the last change.
    version: u64,
    /// Objects that were ever made, for their uids.
    made: u64,
}

impl Paper {
    /// An object as it is.
    pub fn get(&self, id: &PaperId) -> Option<&DynamicObject> {
        self.objects.get(id)
    }

    /// All objects, by kind and name.
    pub fn all(&self) -> impl Iterator<Item = (&PaperId, &DynamicObject)> {
        self.objects.iter()
    }

    /// All objects of a kind.
    pub fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a DynamicObject> {
        self.objects.iter().filter(move |(id, _)| id.kind == kind).map(|(_, object)| object)
    }

    /// The version of the newest change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// What happened after this version, oldest first.
    pub fn since(&self, version: u64) -> &[Entry] {
        let from = self.history.partition_point(|entry| entry.version <= version);
        self.history.get(from..).unwrap_or_default()
    }

    /// The objects that a query gives.
    pub fn select<'a>(&'a self, query: &'a Query) -> impl Iterator<Item = &'a DynamicObject> {
        // Two groups may have kinds of one name.
        let resource = query.kind.newest();
        let is_of = move |object: &DynamicObject| {
            let types = object.types.as_ref();
            types.is_some_and(|types| types.kind == resource.kind && group(&types.api_version) == resource.group)
        };
        self.objects.values().filter(move |object| is_of(object) && selects(query, object))
    }

    /// Lists what a View wants until everything is known, as a controller that starts does. Returns what the jobs that cannot be read
    /// say.
    pub fn list_all(&self, view: &mut View, world: &mut World) -> Vec<String> {
        let mut problems = Vec::new();
        while let Some(query) = view.wanted().into_iter().find(|query| view.heard(query) == Heard::Unlisted) {
            self.select(&query).for_each(|object| view.see(&query, object.clone()));
            view.hear(&query, Heard::Listed);
            problems.extend(view.settle(world).problems);
        }
        problems
    }

    /// Puts an object there as it is, past all rules; what an API server gives every object it has from here if it has it not.
    pub fn put(&mut self, mut object: DynamicObject) {
        self.made += 1;
        object.metadata.uid.get_or_insert_with(|| format!("uid-{}", self.made));
        self.store(object);
    }

    /// Makes an object.
    pub fn create(&mut self, mut object: DynamicObject, now: Timestamp) -> Result<DynamicObject, Box<Status>> {
        let id = id_of(&object);
        if self.objects.contains_key(&id) {
            return Err(refusal(409, "AlreadyExists", format!("{id} already exists")));
        }
        self.made += 1;
        object.metadata.uid = Some(format!("uid-{}", self.made));
        object.metadata.creation_timestamp = Some(Time(Timestamp::from_second(now.as_second()).unwrap_or(now)));
        object.metadata.generation = Some(1);
        object.metadata.deletion_timestamp = None;
        if has_status(&id.kind)
            && let Some(fields) = object.data.as_object_mut()
        {
            fields.remove("status");
        }
        Ok(self.store(object))
    }

    /// Merges a patch into an object, or into its status alone.
    pub fn patch(&mut self, id: &PaperId, patch: &Value, status: bool) -> Result<DynamicObject, Box<Status>> {
        let before = self.known(id)?;
        let wanted = |field: &str| patch.pointer(&format!("/metadata/{field}")).and_then(Value::as_str);
        change::check(id, before, wanted("uid"), wanted("resourceVersion"))?;
        let after = change::patched(before, patch, status && has_status(&id.kind), has_status(&id.kind))
            .map_err(|problem| refusal(422, "Invalid", format!("{id}: {problem}")))?;
        if after == *before {
            return Ok(after);
        }
        let over = after.metadata.deletion_timestamp.is_some();
        match over && after.metadata.finalizers.as_deref().unwrap_or_default().is_empty() {
            true => Ok(self.remove(id).unwrap_or(after)),
            false => Ok(self.store(after)),
        }
    }

    /// Deletes an object, the one with this uid where one is given. One with finalizers stays until they are gone.
    pub fn delete(&mut self, id: &PaperId, uid: Option<&str>, now: Timestamp) -> Result<(), Box<Status>> {
        let object = self.known(id)?;
        change::check(id, object, uid, None)?;
        if object.metadata.finalizers.as_deref().unwrap_or_default().is_empty() {
            self.remove(id);
        } else if object.metadata.deletion_timestamp.is_none() {
            let mut object = object.clone();
            object.metadata.deletion_timestamp = Some(Time(Timestamp::from_second(now.as_second()).unwrap_or(now)));
            object.metadata.generation = object.metadata.generation.map(|generation| generation + 1);
            self.store(object);
        }
        Ok(())
    }

    /// Performs a write. The answer is the object as it is then, in the version that the write names; none for a deletion.
    pub fn perform(&mut self, write: &Write, now: Timestamp) -> Result<Option<DynamicObject>, Box<Status>> {
        let id = PaperId::of(write.target());
        let answer = match write {
            Write::Create(_, object) => {
                let object = serde_json::from_value(object.clone());
                let object = object.map_err(|problem| refusal(400, "BadRequest", format!("{id}: {problem}")))?;
                Some(self.create(object, now)?)
            }
            Write::Patch(_, patch) | Write::Guarded(_, patch) => Some(self.patch(&id, patch, false)?),
            Write::Status(_, patch) | Write::GuardedStatus(_, patch) => Some(self.patch(&id, patch, true)?),
            Write::Delete(_, uid) => {
                self.delete(&id, uid.as_deref(), now)?;
                None
            }
        };
        Ok(answer.map(|object| in_version(object, &write.target().resource.api_version)))
    }

    /// Deletes what belongs to objects that are gone, as Kubernetes' garbage collector does some time later.
    pub fn collect(&mut self, now: Timestamp) {
        loop {
            let there: BTreeSet<&str> =
                self.objects.values().filter_map(|object| object.metadata.uid.as_deref()).collect();
            let orphan = |object: &DynamicObject| {
                let owners = object.metadata.owner_references.as_deref().unwrap_or_default();
                !owners.is_empty() && !owners.iter().any(|owner| there.contains(owner.uid.as_str()))
            };
            let going = |object: &DynamicObject| object.metadata.deletion_timestamp.is_some();
            let orphan = self.objects.iter().find(|(_, object)| orphan(object) && !going(object));
            let Some(id) = orphan.map(|(id, _)| id.clone()) else { return };
            let _ = self.delete(&id, None, now);
        }
    }

    fn known(&self, id: &PaperId) -> Result<&DynamicObject, Box<Status>> {
        self.objects.get(id).ok_or_else(|| refusal(404, "NotFound", format!("{id} not found")))
    }

    fn store(&mut self, mut object: DynamicObject) -> DynamicObject {
        self.version += 1;
        object.metadata.resource_version = Some(self.version.to_string());
        let id = id_of(&object);
        let before = self.objects.insert(id.clone(), object.clone());
        self.history.push(Entry { version: self.version, id, before, after: Some(object.clone()) });
        object
    }

    fn remove(&mut self, id: &PaperId) -> Option<DynamicObject> {
        let before = self.objects.remove(id)?;
        self.version += 1;
        self.history.push(Entry { version: self.version, id: id.clone(), before: Some(before.clone()), after: None });
        Some(before)
    }
}

/// Whether a query gives this object, which is of its kind.
pub fn selects(query: &Query, object: &DynamicObject) -> bool {
    let within = query.namespace.is_none() || query.namespace == object.metadata.namespace;
    let labelled = || match labels::parse(&query.labels) {
        Ok(selector) => {
            let labels = object.metadata.labels.clone().unwrap_or_default();
            labels::to_core(&selector).matches(&labels)
        }
        Err(_) => query.labels.is_empty(),
    };
    within && labelled() && has_fields(query.kind, object)
}

/// The one field selector that there is: pods with a node that have not ended.
fn has_fields(kind: &Kind, object: &DynamicObject) -> bool {
    let text = |path: &str| object.data.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let ended = || matches!(text("/status/phase"), "Succeeded" | "Failed");
    kind.fields.is_none() || !text("/spec/nodeName").is_empty() && !ended()
}

/// The object as it is read in a version of its API: all versions of a kind have the same fields.
pub fn in_version(mut object: DynamicObject, api_version: &str) -> DynamicObject {
    if let Some(types) = &mut object.types {
        types.api_version = api_version.into();
    }
    object
}

/// The group of a version of an API.
fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// Kinds whose status is written by itself.
fn has_status(kind: &str) -> bool {
    !matches!(kind, "Node" | "Pod" | "Event")
}

fn id_of(object: &DynamicObject) -> PaperId {
    let kind = object.types.as_ref().map(|types| types.kind.as_str()).unwrap_or_default();
    let metadata = &object.metadata;
    PaperId::new(kind, metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}

fn refusal(code: u16, reason: &str, message: String) -> Box<Status> {
    Status::failure(&message, reason).with_code(code).boxed()
}
