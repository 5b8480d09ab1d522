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
use crate::moment::{Moment, Source};

/// What a state of an object is, compared with what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// The newest.
    New,
    /// Older than what is known, or of an object that is gone.
    Old,
    /// Older than what was known before it was asked for: the API server has lost what came after it.
    RolledBack,
}

/// How far an object and our writes of it are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// The newest version that was seen.
    version: u64,
    /// When it came, if it was the answer to a write.
    answered: Option<Moment>,
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

    /// Notes a version of the object.
    pub(crate) fn see(&mut self, version: u64, source: Source) -> Sight {
        if version >= self.version {
            self.version = version;
            self.answered = if let Source::Answer(at) = source { Some(at) } else { None };
            return Sight::New;
        }
        match source {
            // Lists and watches tell one after the other, so what they told before was known when this was asked for.
            Source::List(asked) if self.answered.is_none_or(|at| at < asked) => Sight::RolledBack,
            _ => Sight::Old,
        }
    }
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
    /// Takes an object that a watch has seen, or that answered a write. Returns it as it is assumed to be, if it is the
    /// newest state of an object that is there.
    pub(crate) fn see(
        &mut self,
        id: &JobId,
        dialect: &'static Dialect,
        mut object: DynamicObject,
        source: Source,
    ) -> Result<&DynamicObject, Sight> {
        let old = self.0.get(id).filter(|known| known.object.metadata.uid == object.metadata.uid);
        if old.is_none() && matches!(source, Source::Answer(_)) {
            return Err(Sight::Old);
        }
        let mut progress = old.map(|known| known.progress).unwrap_or_default();
        match progress.see(facts::version(&object), source) {
            Sight::New => {}
            other => return Err(other),
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
        let known = Known { dialect, object, progress };
        Ok(&self.0.entry(id.clone()).insert_entry(known).into_mut().object)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moment::Moments;

    #[test]
    fn an_older_version_is_old_unless_the_newer_one_was_known_when_it_was_asked_for() {
        let moments = Moments::default();
        let mut progress = Progress::default();
        assert_eq!(progress.see(5, Source::List(moments.now())), Sight::New);
        assert_eq!(progress.see(7, Source::Watch), Sight::New);
        let asked = moments.now();
        assert_eq!(progress.see(9, Source::Answer(moments.now())), Sight::New);
        assert_eq!(progress.see(8, Source::List(asked)), Sight::Old, "the answer came while the list was under way");
        assert_eq!(progress.see(8, Source::Watch), Sight::Old);
        assert_eq!(progress.see(8, Source::Answer(moments.now())), Sight::Old);
        assert_eq!(progress.see(9, Source::Watch), Sight::New, "the same again");
        assert_eq!(progress.see(8, Source::List(moments.now())), Sight::RolledBack);
        let mut answered = Progress::default();
        assert_eq!(answered.see(9, Source::Answer(moments.now())), Sight::New);
        assert_eq!(answered.see(8, Source::List(moments.now())), Sight::RolledBack);
    }
}
