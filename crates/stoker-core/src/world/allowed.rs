//! What policies leave the jobs: which policies concern a job, whether it keeps to them, and who comes first where a namespace may have so
//! many jobs. A job that does not keep to them is held like a suspended one, and its nodes wait with `NotAllowed`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{JobState, Stale, World};
use crate::model::{Job, JobId, Pick, Unreachable};
use crate::policy::{Bounds, Refusal, Restriction};
use crate::select::selects;

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
            self.policies.due = self.jobs.keys().map(|id| id.namespace().to_owned()).collect();
        }
    }

    /// The labels of a namespace; none where it is gone.
    pub(super) fn set_namespace(&mut self, name: String, labels: Option<BTreeMap<String, String>>) {
        if self.policies.namespaces.get(&name) == labels.as_ref() {
            return;
        }
        self.policies.touch(&name);
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

    /// Judges the jobs of namespaces of which something has changed.
    pub(super) fn judge(&mut self) {
        let due = std::mem::take(&mut self.policies.due);
        if due.is_empty() {
            return;
        }
        let mut namespaces: BTreeMap<&str, Vec<&JobState>> = BTreeMap::new();
        for state in self.jobs.values().filter(|state| due.contains(state.job.id.namespace())) {
            namespaces.entry(state.job.id.namespace()).or_default().push(state);
        }
        let judged = namespaces.into_iter().flat_map(|(namespace, states)| self.judged(namespace, states));
        let judged: Vec<(JobId, Bounds)> = judged.collect();
        for (id, bounds) in judged {
            self.set_bounds(&id, bounds);
        }
    }

    /// The bounds of jobs of a namespace that are to have others.
    fn judged(&self, namespace: &str, mut states: Vec<&JobState>) -> Vec<(JobId, Bounds)> {
        let concerning = self.policies.concerning(namespace);
        states.sort_by(|one, other| {
            let age = |state: &JobState| state.job.created;
            (age(one), one.job.id.name(), &one.job.id).cmp(&(age(other), other.job.id.name(), &other.job.id))
        });
        let (mut judged, mut jobs) = (Vec::new(), 0);
        for JobState { job, .. } in states {
            let bounds = match &concerning {
                _ if job.ended.is_some() => Bounds::default(),
                Err(refusal) => Bounds::held(refusal.clone()),
                Ok(restrictions) => {
                    let mut bounds = Bounds::of(job, restrictions.iter().copied());
                    let too_many = || self.too_many_nodes(job, &bounds);
                    bounds.refusal = bounds.refusal.clone().or_else(|| too_many().map(Arc::new));
                    // What does nothing takes no place; and nobody makes the entries of nodes one by one.
                    if bounds.refusal.is_none() && !job.suspend && !job.is_standing() {
                        let full = restrictions.iter().find_map(|restriction| {
                            restriction
                                .most
                                .jobs
                                .filter(|most| jobs >= *most)
                                .map(|most| restriction.too_many_jobs(most))
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

    /// That the job has too many nodes. Those that it may not use do not count.
    fn too_many_nodes(&self, job: &Job, bounds: &Bounds) -> Option<Refusal> {
        let (policy, most) = bounds.most_nodes.as_ref()?;
        let wanted = match &job.pick {
            Some(Pick { number: Some(number), .. }) => usize::try_from(*number).unwrap_or(usize::MAX),
            // Which of them are chosen follows from what is allowed.
            Some(pick) => self.ready_for(job, pick).filter(|node| bounds.allow(node)).count(),
            None => {
                let node = |at: usize| self.slots.get(at)?.node.as_ref().filter(|node| selects(job, node));
                let there = self.candidates(job).filter(|(at, _)| node(*at).is_some_and(|node| bounds.allow(node)));
                let unknown = if job.unreachable == Unreachable::Wait { self.unknown_names(job).count() } else { 0 };
                there.count() + unknown
            }
        };
        let most_nodes = usize::try_from(*most).unwrap_or(usize::MAX);
        (wanted > most_nodes).then(|| Restriction::too_many_nodes(policy, wanted, *most))
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
