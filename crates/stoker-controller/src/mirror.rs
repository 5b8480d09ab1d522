//! The job objects as they will be when all writes under way have arrived, so that the next change is computed
//! against that and not against the past.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;
use stoker_api::{Dialect, Target, Write};
use stoker_core::{JobId, Outcome};

/// One object.
struct Known {
    dialect: &'static Dialect,
    object: DynamicObject,
    version: u64,
    /// Its status is assumed: a write of it is under way.
    assumed: bool,
}

/// Every job object.
#[derive(Default)]
pub(crate) struct Mirror(BTreeMap<JobId, Known>);

/// The resource version as a number; they only grow.
pub(crate) fn version(object: &DynamicObject) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

impl Mirror {
    /// Takes an object that a watch has seen, or that answered a write. `settled`: no write of it is under way.
    /// Returns the object as it is assumed to be, unless it is older than what is known.
    pub(crate) fn see(
        &mut self,
        id: &JobId,
        dialect: &'static Dialect,
        mut object: DynamicObject,
        settled: bool,
    ) -> Option<&DynamicObject> {
        let version = version(&object);
        let assumed = match self.0.get(id) {
            Some(known) if version < known.version => return None,
            Some(known) => known.assumed && !settled,
            None => false,
        };
        if assumed && let Some(known) = self.0.get(id) {
            let status = known.object.data.get("status").cloned().unwrap_or_default();
            set_status(&mut object, status);
        }
        self.0.insert(id.clone(), Known { dialect, object, version, assumed });
        self.0.get(id).map(|known| &known.object)
    }

    /// The object is gone.
    pub(crate) fn forget(&mut self, id: &JobId) {
        self.0.remove(id);
    }

    /// The write that an outcome asks for; from now on it is assumed.
    pub(crate) fn project(&mut self, outcome: &Outcome, now: Timestamp) -> Option<Write> {
        let known = self.0.get_mut(&outcome.job)?;
        let write = (known.dialect.project)(&known.object, outcome, now)?;
        if let Write::Status(_, patch) = &write {
            json_patch::merge(&mut known.object.data, patch);
            known.assumed = true;
        }
        Some(write)
    }

    /// The delete of a job object, if it is still there.
    pub(crate) fn delete(&self, id: &JobId) -> Option<Write> {
        let known = self.0.get(id)?;
        let target = Target::of((known.dialect.resource)(), &known.object);
        Some(Write::Delete(target, known.object.uid()))
    }
}

fn set_status(object: &mut DynamicObject, status: Value) {
    if let Some(data) = object.data.as_object_mut() {
        match status.is_null() {
            true => data.remove("status"),
            false => data.insert("status".into(), status),
        };
    }
}
