//! Jobs that stand still: those of a kind whose objects cannot be listed, all while policies cannot be listed, those whose status cannot be read, and those that have orders
//! while the objects that decide which nodes they want cannot be listed. Nobody knows whether such a job has ended, or what its user
//! wants by now. So nothing is handed out for it, taken back from it or said of it. Other jobs are planned as ever, also in orders that
//! they share with it.

use std::collections::BTreeSet;

use super::World;
use super::held::HeldOrder;
use crate::model::{Job, JobId, Key, KindName, Order};

impl World {
    /// The objects of this kind are known again.
    pub(super) fn thaw(&mut self, kind: &KindName) {
        if !self.frozen.remove(kind) {
            return;
        }
        self.hear_again(|id| kind.has(id));
    }

    /// These jobs stand still no more. What was said of them may not be what their objects say now.
    pub(super) fn hear_again(&mut self, these: impl Fn(&JobId) -> bool) {
        for (_, state) in self.jobs.iter_mut().filter(|(id, _)| these(id)) {
            state.said = None;
        }
        self.touch_everything();
    }

    /// Whether the kind of this job is frozen; all are while nobody knows what policies allow.
    pub fn is_frozen(&self, id: &JobId) -> bool {
        self.policies.unseen.is_some() || self.frozen.iter().any(|kind| kind.has(id))
    }

    /// Whether nothing is decided about this job.
    pub(super) fn stands_still(&self, job: &Job) -> bool {
        job.unreadable.is_some() && job.ended.is_none() || self.is_frozen(&job.id) || self.lost_sight(job)
    }

    /// Whether this job has orders, and the objects that decide which nodes it wants cannot be listed. A job without orders does not stand
    /// still: its outcome says why it has no nodes.
    fn lost_sight(&self, job: &Job) -> bool {
        let ordered = |key: Key| self.slots.iter().any(|slot| slot.is_ordered(&job.id, key));
        job.unseen.is_some() && job.ended.is_none() && job.keys().any(ordered)
    }

    /// The kind of the objects without which nothing is decided about this job, although it has orders.
    pub fn waits_for_sight(&self, id: &JobId) -> Option<&'static str> {
        let job = self.job(id)?;
        job.unseen.filter(|_| self.lost_sight(job))
    }

    /// Whether this job may be given orders.
    pub(super) fn moves(&self, job: &Job) -> bool {
        job.runs() && job.unseen.is_none() && !self.is_frozen(&job.id)
    }

    /// Whether it may be given orders on the node in this slot.
    pub(super) fn may_be_served(&self, job: &Job, at: usize) -> bool {
        self.moves(job) && self.allows(job, at)
    }

    /// Whether an order names a job whose kind is frozen. Such an order stays, also a finished one: it is what the job counts.
    pub(super) fn is_kept(&self, order: &Order) -> bool {
        (self.policies.unseen.is_some() || !self.frozen.is_empty()) && order.jobs.iter().any(|id| self.is_frozen(id))
    }

    /// The jobs that stand still and that an unfinished order of this image goes on naming, whatever becomes of it: all of a frozen
    /// kind, known or not, and those that want the image there and whose status is unreadable or whose nodes are not known. A suspended
    /// job is not among the latter: its user has said that nothing is to be pulled.
    pub(super) fn kept_names(&self, at: usize, image: Key, order: &HeldOrder) -> BTreeSet<JobId> {
        let still = |job: &&Job| job.unreadable.is_some() || job.unseen.is_some() && !job.rests();
        let known = self.named_in(order, at, image).filter(still).map(|job| &job.id);
        let frozen = order.jobs.iter().filter(|id| self.is_frozen(id));
        known.chain(frozen).cloned().collect()
    }
}
