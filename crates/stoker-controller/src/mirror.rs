//! The job objects as they will be when all writes under way have arrived, so that the next change is computed
//! against that and not against the past.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::json;
use stoker_api::{Dialect, Target, Write};
use stoker_core::{JobId, Outcome};

use crate::facts;

/// How far an object and our writes of it are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// The newest version that was seen.
    version: u64,
    /// The newest write that was handed out and has not ended; 0 for none.
    pending: u64,
    /// The version that was known when it was handed out.
    before: u64,
}

impl Progress {
    /// A write was handed out; what it changes is assumed from now on.
    pub(crate) fn hand_out(&mut self, number: u64) {
        (self.pending, self.before) = (number, self.version);
    }

    /// A write has ended.
    pub(crate) fn end(&mut self, number: u64) {
        if number >= self.pending {
            self.pending = 0;
        }
    }

    /// Whether what our writes change is assumed rather than seen.
    pub(crate) fn assumed(&self) -> bool {
        self.pending != 0
    }

    /// Whether a newer object was seen since the last write was handed out.
    pub(crate) fn moved_on(&self) -> bool {
        self.version > self.before
    }

    /// Notes a version of the object; false for one that is older than what is known.
    pub(crate) fn see(&mut self, version: u64) -> bool {
        let newer = version >= self.version;
        self.version = self.version.max(version);
        newer
    }
}

/// How the state of an object became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A list or a watch told it.
    Watch,
    /// It was the answer to a write. What it is about may be gone by now: only a list or a watch says that an object is there.
    Answer,
}

/// One object.
struct Known {
    dialect: &'static Dialect,
    object: DynamicObject,
    progress: Progress,
}

/// Every job object.
#[derive(Default)]
pub(crate) struct Mirror(BTreeMap<JobId, Known>);

impl Mirror {
    /// Takes an object that a watch has seen, or that answered a write. Returns it as it is assumed to be, unless it is
    /// older than what is known, or gone.
    pub(crate) fn see(
        &mut self,
        id: &JobId,
        dialect: &'static Dialect,
        mut object: DynamicObject,
        source: Source,
    ) -> Option<&DynamicObject> {
        let old = self.0.get(id).filter(|known| known.object.metadata.uid == object.metadata.uid);
        if old.is_none() && source == Source::Answer {
            return None;
        }
        let mut progress = old.map(|known| known.progress).unwrap_or_default();
        if !progress.see(facts::version(&object)) {
            return None;
        }
        if progress.assumed()
            && let Some(known) = old
            && let Some(data) = object.data.as_object_mut()
        {
            match known.object.data.get("status") {
                Some(status) => data.insert("status".into(), status.clone()),
                None => data.remove("status"),
            };
        }
        self.0.insert(id.clone(), Known { dialect, object, progress });
        self.0.get(id).map(|known| &known.object)
    }

    /// The object is gone.
    pub(crate) fn forget(&mut self, id: &JobId) {
        self.0.remove(id);
    }

    /// The writes that an outcome asks for: events, and at last the status, which from now on is assumed. `number` is
    /// that of the last write before them.
    pub(crate) fn project(&mut self, outcome: &Outcome, number: u64, now: Timestamp) -> Vec<Write> {
        let Some(known) = self.0.get_mut(&outcome.job) else { return Vec::new() };
        let Some(write) = (known.dialect.project)(&known.object, outcome, now) else { return Vec::new() };
        let mut writes = stoker_api::events(known.dialect, &known.object, outcome, now);
        if let Write::Status(_, patch) = &write {
            json_patch::merge(&mut known.object.data, &json!({ "status": patch.get("status") }));
            known.progress.hand_out(number + writes.len() as u64 + 1);
        }
        writes.push(write);
        writes
    }

    /// A write of this object has ended.
    pub(crate) fn end(&mut self, id: &JobId, number: u64) {
        if let Some(known) = self.0.get_mut(id) {
            known.progress.end(number);
        }
    }

    /// The delete of a job object, if it is still there.
    pub(crate) fn delete(&self, id: &JobId) -> Option<Write> {
        let known = self.0.get(id)?;
        let target = Target::of((known.dialect.resource)(), &known.object);
        Some(Write::Delete(target, known.object.uid()))
    }
}
