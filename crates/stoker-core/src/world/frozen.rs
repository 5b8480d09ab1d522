//! Jobs that stand still: those of a kind whose objects cannot be listed, and those whose status cannot be read. Nobody knows
//! whether such a job has ended, or what its user wants by now. So nothing is handed out for it, taken back from it or said of it.
//! Other jobs are planned as ever, also in orders that they share with it.

use std::collections::BTreeSet;

use super::World;
use super::held::HeldOrder;
use crate::model::{Job, JobId, Key, KindName, Order};

impl World {
    /// The objects of this kind are known again. What was said of its jobs may not be what they say now.
    pub(super) fn thaw(&mut self, kind: &KindName) {
        if !self.frozen.remove(kind) {
            return;
        }
        for (_, state) in self.jobs.iter_mut().filter(|(id, _)| kind.has(id)) {
            state.said = None;
        }
        self.touch_everything();
    }

    /// Whether the kind of this job is frozen.
    pub fn is_frozen(&self, id: &JobId) -> bool {
        self.frozen.iter().any(|kind| kind.has(id))
    }

    /// Whether nothing is decided about this job.
    pub(super) fn stands_still(&self, job: &Job) -> bool {
        job.unreadable.is_some() && job.ended.is_none() || self.is_frozen(&job.id)
    }

    /// Whether this job may be given orders.
    pub(super) fn may_be_served(&self, job: &Job) -> bool {
        job.runs() && !self.is_frozen(&job.id)
    }

    /// Whether an order names a job whose kind is frozen. Such an order stays, also a finished one: it is what the job counts.
    pub(super) fn is_kept(&self, order: &Order) -> bool {
        !self.frozen.is_empty() && order.jobs.iter().any(|id| self.is_frozen(id))
    }

    /// The jobs that stand still and that an unfinished order of this image goes on naming, whatever becomes of it: all of a frozen
    /// kind, known or not, and those with an unreadable status that want the image there.
    pub(super) fn kept_names(&self, at: usize, image: Key, order: &HeldOrder) -> BTreeSet<JobId> {
        let unreadable = self.wanted_by(at, image).filter(|job| job.unreadable.is_some()).map(|job| &job.id);
        let unreadable = unreadable.filter(|id| order.jobs.contains(*id));
        let frozen = order.jobs.iter().filter(|id| self.is_frozen(id));
        unreadable.chain(frozen).cloned().collect()
    }
}
