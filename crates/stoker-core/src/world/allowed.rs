//! What policies leave the jobs: which policies concern a job, whether it keeps to them, and who comes first where a namespace may have so
//! many jobs. A job that does not keep to them is held like a suspended one, and its nodes wait with `NotAllowed`.
//!
//! What follows for a job by itself is kept until the job, the policies or the labels of its namespace are others: comparing all images of a
//! namespace with all patterns may take long, and one edit of one job must not cost that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::seat::{Seat, SeatStanding};
use super::seats::JobSeats;
use super::{JobState, NodeSlot, Stale, World};
use crate::model::{Job, JobId};
use crate::policy::{Bounds, Refusal, Restriction};

/// All policies, and whom they concern.
#[derive(Clone, Debug, Default)]
pub(super) struct Policies {
    /// By name.
    restrictions: Vec<Restriction>,
    /// The labels of namespaces, as far as they are known.
    namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// The kind of objects that cannot be listed, so that nobody knows what is allowed.
    pub(super) unseen: Option<&'static str>,
    /// Namespaces whose jobs are to be judged anew; an empty name for objects without one.
    due: BTreeSet<String>,
}

impl Policies {
    /// The jobs of this namespace are to be judged anew.
    pub(super) fn touch(&mut self, namespace: &str) {
        // Where there is no policy nobody is bound.
        if !self.restrictions.is_empty() && !self.due.contains(namespace) {
            self.due.insert(namespace.to_owned());
        }
    }

    /// The policies that concern a namespace; or why nobody knows yet.
    fn concerning(&self, namespace: &str) -> Result<Vec<&Restriction>, Refusal> {
        let mut concerning = Vec::new();
        for restriction in &self.restrictions {
            let concerns = match (&restriction.namespaces, namespace) {
                (None, _) => true,
                (Some(_), "") => false,
                (Some(selector), _) => match self.namespaces.get(namespace) {
                    Some(labels) => selector.matches(labels),
                    None => return Err(restriction.namespace_unknown(namespace)),
                },
            };
            concerning.extend(concerns.then_some(restriction));
        }
        Ok(concerning)
    }
}

impl World {
    /// These are all policies.
    pub(super) fn set_policies(&mut self, mut restrictions: Vec<Restriction>) {
        restrictions.sort_by(|one, other| one.policy.cmp(&other.policy));
        if self.policies.unseen.take().is_some() {
            self.hear_again(|_| true);
        }
        if self.policies.restrictions != restrictions {
            self.policies.restrictions = restrictions;
            self.forget_verdicts(|_| true);
            self.policies.due = self.jobs.keys().map(|id| id.namespace().to_owned()).collect();
        }
    }

    /// The labels of a namespace; none where it is gone.
    pub(super) fn set_namespace(&mut self, name: String, labels: Option<BTreeMap<String, String>>) {
        if self.policies.namespaces.get(&name) == labels.as_ref() {
            return;
        }
        self.policies.touch(&name);
        self.forget_verdicts(|id| id.namespace() == name);
        match labels {
            Some(labels) => self.policies.namespaces.insert(name, labels),
            None => self.policies.namespaces.remove(&name),
        };
    }

    /// The kind of objects without which nobody knows what is allowed, where it cannot be listed. Nothing is decided about any job then.
    pub fn policies_unseen(&self) -> Option<&'static str> {
        self.policies.unseen
    }

    /// Whether something may be done for the job on the node in this slot.
    pub(super) fn allows(&self, job: &Job, at: usize) -> bool {
        job.bounds.nodes.is_empty()
            || self.slots.get(at).and_then(|slot| slot.node.as_ref()).is_some_and(|node| job.bounds.allow(node))
    }

    /// What follows from policies for these jobs is to be found out anew.
    pub(super) fn forget_verdicts(&mut self, these: impl Fn(&JobId) -> bool) {
        for (_, state) in self.jobs.iter_mut().filter(|(id, _)| these(id)) {
            state.verdict = None;
        }
    }

    /// Judges the jobs of namespaces of which something has changed.
    pub(super) fn judge(&mut self) {
        let due = std::mem::take(&mut self.policies.due);
        if due.is_empty() {
            return;
        }
        let mut namespaces: BTreeMap<&str, Vec<&mut JobState>> = BTreeMap::new();
        for (id, state) in self.jobs.iter_mut().filter(|(id, _)| due.contains(id.namespace())) {
            namespaces.entry(id.namespace()).or_default().push(state);
        }
        let policies = &self.policies;
        let judged = namespaces.into_iter().flat_map(|(namespace, states)| judged(policies, namespace, states));
        let judged: Vec<(JobId, Bounds)> = judged.collect();
        for (id, bounds) in judged {
            self.set_bounds(&id, bounds);
        }
    }

    /// How many nodes more may begin something for the job, and the slots of those that have begun. None where no policy says how many nodes
    /// a job may have.
    ///
    /// A node that has begun stays one of the job's nodes, also when it is done or has failed, for as long as it is there and may be used. So nothing
    /// that another node does, and no lower number, stops what runs.
    pub(super) fn nodes_left(&self, job: &Job, seats: &JobSeats) -> Option<(usize, BTreeSet<usize>)> {
        let (_, most) = job.bounds.most_nodes.as_ref()?;
        let begun = |at: usize, seat: &Seat| match seat.standing {
            SeatStanding::Succeeded | SeatStanding::Active | SeatStanding::Late => true,
            SeatStanding::Open(_) | SeatStanding::Failed(_) => {
                let slot = self.slots.get(at).filter(|_| self.allows(job, at));
                slot.is_some_and(|slot| pulls_for(slot, job))
            }
        };
        let begun: BTreeSet<usize> = seats.iter().filter(|(at, seat)| begun(*at, seat)).map(|(at, _)| *at).collect();
        Some((usize::try_from(*most).unwrap_or(usize::MAX).saturating_sub(begun.len()), begun))
    }

    fn set_bounds(&mut self, id: &JobId, bounds: Bounds) {
        let Some(state) = self.jobs.get_mut(id) else { return };
        state.job.bind(bounds);
        state.choice.due |= state.job.pick.is_some();
        state.stale = Stale::All;
        let keys = state.job.keys().collect();
        self.secrets.touch(&state.job);
        self.dirty_jobs.insert(id.clone());
        self.recheck_orders(&keys);
    }
}

/// Whether the node has or had an order to pull an image of the job that names it.
fn pulls_for(slot: &NodeSlot, job: &Job) -> bool {
    job.keys().filter_map(|key| slot.orders.get(&key)).any(|order| order.jobs.contains(&job.id))
}

/// The bounds of jobs of a namespace that are to have others.
fn judged(policies: &Policies, namespace: &str, mut states: Vec<&mut JobState>) -> Vec<(JobId, Bounds)> {
    let concerning = policies.concerning(namespace);
    states.sort_by(|one, other| {
        let age = |state: &JobState| state.job.created;
        (age(one), one.job.id.name(), &one.job.id).cmp(&(age(other), other.job.id.name(), &other.job.id))
    });
    let (mut judged, mut jobs) = (Vec::new(), 0);
    for JobState { job, verdict, .. } in states {
        let bounds = match &concerning {
            _ if job.ended.is_some() => Bounds::default(),
            Err(refusal) => Bounds::held(refusal.clone()),
            Ok(restrictions) => {
                let of_itself = verdict.get_or_insert_with(|| Bounds::of(job, restrictions.iter().copied()));
                let mut bounds = of_itself.clone();
                // What does nothing takes no place; and nobody makes the entries of nodes one by one.
                if bounds.refusal.is_none() && !job.suspend && !job.is_standing() {
                    let full = restrictions.iter().find_map(|restriction| {
                        let most = restriction.most.jobs.filter(|most| jobs >= *most);
                        most.map(|most| restriction.too_many_jobs(most))
                    });
                    bounds.refusal = full.map(Arc::new);
                    jobs += u32::from(bounds.refusal.is_none());
                }
                bounds
            }
        };
        if bounds != job.bounds {
            judged.push((job.id.clone(), bounds));
        }
    }
    judged
}

#[cfg(test)]
mod tests {
    use crate::model::testing::{at, job};
    use crate::model::{Job, Node};
    use crate::policy::{ImagePattern, Restriction};
    use crate::world::{Event, World};

    /// How many jobs are compared with all policies in the next plan.
    fn unjudged(world: &World) -> usize {
        world.jobs.values().filter(|state| state.verdict.is_none()).count()
    }

    #[test]
    fn one_edit_compares_the_images_of_one_job() {
        let mut world = World::new();
        let policy = |pattern: &str, jobs: u32| {
            let mut policy = Restriction { policy: "p".into(), ..Restriction::default() };
            policy.images = vec![ImagePattern::new(pattern)];
            (policy.most.jobs, policy.most.nodes) = (Some(jobs), Some(2));
            Event::Policies(vec![policy])
        };
        world.apply(policy("r.test/*", 10));
        let jobs: Vec<Job> = (0..20).map(|number| job(&format!("j{number}"), None)).collect();
        jobs.iter().for_each(|job| world.apply(Event::Job(Box::new(job.clone()))));
        assert_eq!(unjudged(&world), 20);
        world.plan(at(0));
        assert_eq!(unjudged(&world), 0);
        let edited = Job { generation: 2, parallelism: 3, ..jobs[7].clone() };
        world.apply(Event::Job(Box::new(edited)));
        assert_eq!(unjudged(&world), 1);
        let held = |world: &World| world.jobs.values().filter(|state| state.job.bounds.refusal.is_some()).count();
        world.plan(at(1));
        assert_eq!((unjudged(&world), held(&world)), (0, 10), "who comes first is found out anew");
        let node = Node {
            name: "n".into(),
            labels: Default::default(),
            ready: true,
            ready_changed: None,
            cordoned: false,
            foreign: false,
        };
        world.apply(Event::Node(node));
        assert!(world.policies.due.is_empty(), "a node is no matter of the verdict");
        world.apply(Event::JobGone(jobs[0].id.clone()));
        assert_eq!((unjudged(&world), world.policies.due.len()), (0, 1));
        world.apply(policy("other.test/*", 10));
        assert_eq!(unjudged(&world), 19);
        world.plan(at(2));
        assert_eq!(held(&world), 19);
    }
}
