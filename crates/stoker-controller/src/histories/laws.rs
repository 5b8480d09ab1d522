//! What holds at every moment.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::api::DynamicObject;
use stoker_api::Write;
use stoker_api::native::NodeObject;
use stoker_core::model::after;
use stoker_core::select::selects;
use stoker_core::world::NodeState;
use stoker_core::{JobId, Key, Waiting, World, pace};
use stoker_testbed::paper::{Paper, PaperId};

use super::cluster::{Cluster, NODES};
use super::wire;

/// What must be remembered of a history to say whether a law was broken.
#[derive(Clone, Debug, Default)]
pub(super) struct Laws {
    /// Time has passed after which nodes are taken for silent, and give their places away until they come back.
    silences: bool,
    /// How many nodes may pull at one time for a job of this name, at most so far.
    limits: BTreeMap<JobId, usize>,
    /// On how many nodes pulls were under way before a write.
    pulling: BTreeMap<JobId, usize>,
    /// By uid and generation: when it ended.
    ended: BTreeMap<(String, i64), String>,
}

impl Laws {
    pub(super) fn passed(&mut self, seconds: i64) {
        self.silences |= seconds > 100;
    }

    /// A plan was made; these were the orders before it.
    pub(super) fn planned(&self, before: &Asked, world: &World, now: Timestamp) -> Result<(), String> {
        for id in world.jobs() {
            let Some(job) = world.job(id).filter(|job| job.ended.is_none() && job.unreadable.is_none()) else {
                continue;
            };
            let views = world.nodes(id, now);
            if let Some(view) = views.iter().find(|view| view.state == NodeState::Waiting(Waiting::Pending)) {
                // Nothing is decided about what cannot be heard.
                if !world.is_frozen(id) {
                    return Err(format!("{id} waits on {} without a reason", view.node));
                }
            }
            drop(views);
            let _ = job;
        }
        for node in NODES {
            for (key, order) in world.orders(node).into_iter().flatten() {
                let known: Vec<_> = order.jobs.iter().filter_map(|id| world.job(id)).collect();
                let new = before.get(&(node, key)) != Some(&order.asked) && !order.hold;
                if let Some(job) = known.iter().find(|job| new && job.ended.is_some()) {
                    return Err(format!("{node} is asked for {key} by {}, which has ended", job.id));
                }
                if new && !known.is_empty() && known.iter().all(|job| job.overdue(now)) {
                    return Err(format!("{node} is asked for {key} after the deadline of {:?}", order.jobs));
                }
                let retries: Vec<u32> = known.iter().map(|job| job.pull.retries).collect();
                let most = retries.iter().max().copied().unwrap_or(u32::MAX);
                if new && order.terms.pull.retries > most {
                    return Err(format!(
                        "{node} retries {key} {} times, the job says {most}",
                        order.terms.pull.retries
                    ));
                }
            }
        }
        Ok(())
    }

    /// A write is about to be performed.
    pub(super) fn before(&mut self, write: &Write, paper: &Paper, now: Timestamp) {
        if !is_of_orders(write) {
            return;
        }
        for object in paper.all().map(|(_, object)| object) {
            let Some(id) = wire::job_id(object) else { continue };
            let most = self.limits.entry(id).or_default();
            *most = (*most).max(limit(object));
        }
        self.pulling = pulling(paper, now);
    }

    /// A write was performed.
    pub(super) fn written(&mut self, write: &Write, paper: &Paper, now: Timestamp) -> Result<(), String> {
        if self.silences || !is_of_orders(write) {
            return Ok(());
        }
        for (id, is) in pulling(paper, now) {
            let before = self.pulling.get(&id).copied().unwrap_or_default();
            // Of a job that was never seen here nobody knows the limit.
            let Some(limit) = self.limits.get(&id) else { continue };
            if is > before && is > *limit {
                return Err(format!("{id}: {before} nodes pulled, now {is} do, and {limit} may"));
            }
        }
        Ok(())
    }

    /// What has ended has ended at that time, and stays so.
    fn ends(&mut self, paper: &Paper) -> Result<(), String> {
        for (id, object) in paper.all() {
            let Some(kind) = wire::job_kind(object) else { continue };
            // Only a Preheat begins again when it is edited.
            let generation = if kind.is_foreign() { 0 } else { object.metadata.generation.unwrap_or_default() };
            let at = (wire::uid(object), generation);
            let time = wire::field(object, "/status/completionTime").as_str();
            let is = time.filter(|_| wire::has_ended(object));
            match (self.ended.get(&at), is) {
                (Some(was), is) if Some(was.as_str()) != is => {
                    return Err(format!("{id} ended at {was}, and now at {is:?}"));
                }
                (None, Some(is)) => {
                    self.ended.insert(at, is.to_string());
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// When each order was asked for.
pub(super) type Asked = BTreeMap<(&'static str, Key), Timestamp>;

pub(super) fn asked(world: &World) -> Asked {
    let orders = |node| world.orders(node).into_iter().flatten().map(move |(key, order)| ((node, key), order.asked));
    NODES.into_iter().flat_map(orders).collect()
}

impl Cluster {
    /// What holds whatever has just happened.
    pub(super) fn check(&mut self) -> Result<(), String> {
        self.laws.ends(&self.paper)?;
        match self.marks.lost(&self.paper) {
            Some(lost) => Err(lost),
            None => Ok(()),
        }
    }
}

fn is_of_orders(write: &Write) -> bool {
    write.target().resource.kind == "NodePreheat"
}

/// On how many nodes objects show a pull for each job that is under way.
fn pulling(paper: &Paper, now: Timestamp) -> BTreeMap<JobId, usize> {
    let mut count: BTreeMap<JobId, usize> = BTreeMap::new();
    for object in paper.of_kind("NodePreheat") {
        let NodeObject { orders, reports, .. } = wire::read(object);
        let runs = orders.iter().filter(|(key, order)| {
            let report = reports.get(key);
            let ended = report.is_some_and(|report| report.ended() && report.asked >= order.asked);
            let seen = report.map_or(order.asked, |report| report.updated.max(order.asked));
            !order.ask.is_question() && !order.hold && !ended && now < after(seen, pace::SILENCE)
        });
        let jobs: BTreeSet<&JobId> = runs.flat_map(|(_, order)| &order.jobs).collect();
        jobs.into_iter().for_each(|id| *count.entry(id.clone()).or_default() += 1);
    }
    count
}

/// How many nodes an object lets pull at one time.
fn limit(object: &DynamicObject) -> usize {
    let said = [wire::field(object, "/spec/pace/parallelism"), wire::field(object, "/spec/parallelism")];
    let number = said.iter().find_map(|value| value.as_u64()).unwrap_or(NODES.len() as u64);
    // A percentage is half of the nodes here.
    let percent = said.iter().any(|value| value.is_string());
    if percent { NODES.len().div_ceil(2) } else { usize::try_from(number).unwrap() }
}

/// The nodes that a job wants, as far as the World knows, which `world` has forgotten.
pub(super) fn forgotten(world: &World, paper: &Paper, now: Timestamp) -> Option<String> {
    for id in world.jobs() {
        let Some(job) = world.job(id).filter(|job| job.ended.is_none()) else { continue };
        let views = world.nodes(id, now);
        for object in paper.of_kind("Node") {
            let node = wire::read::<stoker_api::node::PlainNode>(object).into_core();
            if selects(job, &node) && !views.iter().any(|view| view.node == node.name) {
                return Some(format!("{id} has forgotten {}", node.name));
            }
        }
    }
    None
}

/// An object that stands in the way of another one.
pub(super) fn stray_children(paper: &Paper) -> Vec<PaperId> {
    let stray = |object: &&DynamicObject| {
        let labelled =
            object.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key("controller-revision-hash"));
        labelled && object.metadata.owner_references.is_none()
    };
    let name = |object: &DynamicObject| object.metadata.name.clone().unwrap_or_default();
    let jobs = paper.of_kind("ImagePullJob").filter(stray);
    jobs.map(|object| PaperId::new("ImagePullJob", super::users::NAMESPACE, &name(object))).collect()
}
