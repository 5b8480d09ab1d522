//! What holds at every moment.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::api::DynamicObject;
use serde_json::Value;
use stoker_api::Write;
use stoker_api::native::NodeObject;
use stoker_core::model::{Job, after};
use stoker_core::select::selects;
use stoker_core::world::NodeState;
use stoker_core::{JobId, Key, Node, Order, Waiting, World, pace};
use stoker_testbed::paper::{Paper, PaperId};

use super::cluster::{Cluster, NODES};
use super::makers::{EDGE, is_fake};
use super::policies;
use super::users::NAMES;
use super::wire;

/// What must be remembered of a history to say whether a law was broken.
#[derive(Clone, Debug, Default)]
pub(super) struct Laws {
    /// Time has passed after which nodes are taken for silent, and give their places away until they come back.
    silences: bool,
    /// The clock was set back.
    pub(super) set_back: bool,
    /// How many nodes may pull at one time for a job of this name, at most so far.
    limits: BTreeMap<JobId, usize>,
    /// On how many nodes pulls were under way before a write.
    pulling: BTreeMap<JobId, usize>,
    /// Pulls under way that name a job and go on for other jobs alone.
    left: BTreeSet<JobPull>,
    /// By uid: the number of the controller's last write when it was first told of that object.
    told: BTreeMap<String, u64>,
    /// By uid and generation: when it ended.
    ended: BTreeMap<(String, i64), String>,
}

impl Laws {
    pub(super) fn passed(&mut self, seconds: i64) {
        self.silences |= seconds > 100;
        self.set_back |= seconds < 0;
    }

    /// The controller is told of the object with this uid, after its write of this number.
    pub(super) fn told(&mut self, uid: &str, last_write: u64) {
        self.told.entry(uid.to_owned()).or_insert(last_write);
    }

    /// Another controller begins, and knows nothing.
    pub(super) fn forget_told(&mut self) {
        self.told.clear();
    }

    /// The write of this number has changed an object: it was meant for that one, and not for one of the same name before it.
    pub(super) fn knew(&self, object: &DynamicObject, number: u64) -> Result<(), String> {
        let Some(kind) = wire::job_kind(object) else { return Ok(()) };
        let (uid, name) = (wire::uid(object), object.metadata.name.as_deref().unwrap_or_default());
        match self.told.get(&uid).is_some_and(|last| *last < number) {
            true => Ok(()),
            false => Err(format!("a write for an earlier object has changed {} {name} ({uid})", kind.kind.name)),
        }
    }

    /// A plan was made; these were the orders before it.
    pub(super) fn planned(&mut self, before: &Asked, world: &World, now: Timestamp) -> Result<(), String> {
        // Nothing is decided about what cannot be heard.
        let moving = |id: &&JobId| {
            let job = world.job(id).filter(|job| job.ended.is_none() && job.unreadable.is_none());
            job.is_some() && !world.is_frozen(id)
        };
        for id in world.jobs().filter(moving) {
            for view in world.nodes(id, now) {
                if view.state == NodeState::Waiting(Waiting::Pending) {
                    return Err(format!("{id} waits on {} without a reason", view.node));
                }
            }
            keeps_its_parallelism(before, world, id, now)?;
        }
        self.notice_left(world, now);
        policies::nothing_new_for_held_jobs(before, world)?;
        for node in all_nodes() {
            for (key, order) in world.orders(node).into_iter().flatten() {
                let known: Vec<_> = order.jobs.iter().filter_map(|id| world.job(id)).collect();
                let new = before.get(&(node, key)).map(|order| order.asked) != Some(order.asked) && !order.hold;
                if let Some(job) = known.iter().find(|job| new && job.ended.is_some()) {
                    return Err(format!("{node} is asked for {key} by {}, which has ended", job.id));
                }
                if new && !known.is_empty() && known.iter().all(|job| job.overdue(now)) {
                    return Err(format!("{node} is asked for {key} after the deadline of {:?}", order.jobs));
                }
                // After a failure an order has the patience of all that want the image.
                let wants = |job: &&Job| job.images.iter().any(|image| image.written == order.image);
                let wanting = world.jobs().filter_map(|id| world.job(id)).filter(wants).chain(known.iter().copied());
                let most = wanting.map(|job| job.pull.retries).max().unwrap_or(u32::MAX);
                // What a job of a kind that cannot be listed allows is unknown: the order keeps what it had for that job.
                let hidden = order.jobs.iter().any(|id| world.is_frozen(id));
                if new && !hidden && order.terms.pull.retries > most {
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
        if is_of_orders(write) {
            self.notice_limits(paper);
            self.pulling = self.pulling(paper, now);
        }
    }

    /// An order is not written again only because one of its jobs has left it, so it may go on naming a job for which it holds no place of
    /// the parallelism: one that does not want the node any more; one that has failed there on its own terms while the terms of other
    /// namespaces keep the pull going; or one that is content with the image that is there, while others want the newest (docs/decisions/0028).
    /// The job may use that place from this plan on, even if it wants the node again before the write arrives. A new ask counts again.
    fn notice_left(&mut self, world: &World, now: Timestamp) {
        for node in all_nodes() {
            for (key, order) in world.orders(node).into_iter().flatten() {
                for job in order.jobs.iter().filter_map(|id| world.job(id)).filter(|job| job.ended.is_none()) {
                    let views = world.nodes(&job.id, now);
                    let left = match views.iter().find(|view| &*view.node == node).map(|view| &view.state) {
                        None => true,
                        Some(NodeState::Failed(..)) => {
                            let (shared, own) = (&order.terms.pull, &job.pull);
                            shared.timeout > own.timeout || shared.retries > own.retries
                        }
                        Some(NodeState::Succeeded) => order.terms.pull.policy > job.pull.policy,
                        Some(_) => false,
                    };
                    if left {
                        self.left.insert((job.id.clone(), node.into(), key, order.asked));
                    }
                }
            }
        }
    }

    /// Orders may be on their way that were made when more was allowed.
    fn notice_limits(&mut self, paper: &Paper) {
        let edge = paper.get(&wire::node_image(EDGE)).is_some();
        let nodes = NODES.len() + usize::from(edge);
        for object in paper.all().map(|(_, object)| object) {
            let Some(id) = wire::job_id(object) else { continue };
            let most = self.limits.entry(id).or_default();
            *most = (*most).max(limit(object, nodes));
        }
    }

    /// A write was performed.
    pub(super) fn written(&mut self, write: &Write, paper: &Paper, now: Timestamp) -> Result<(), String> {
        if self.silences || !is_of_orders(write) {
            return Ok(());
        }
        for (id, is) in self.pulling(paper, now) {
            let before = self.pulling.get(&id).copied().unwrap_or_default();
            // Of a job that was never seen here nobody knows the limit.
            let Some(limit) = self.limits.get(&id) else { continue };
            if is > before && is > *limit {
                return Err(format!("{id}: {before} nodes pulled, now {is} do, and {limit} may"));
            }
        }
        Ok(())
    }

    /// On how many nodes objects show a pull for each job that is under way. A pull that goes on for others may name a job that was edited and
    /// does not want its image any more.
    fn pulling(&self, paper: &Paper, now: Timestamp) -> BTreeMap<JobId, usize> {
        let mut count: BTreeMap<JobId, usize> = BTreeMap::new();
        let jobs = paper
            .all()
            .filter_map(|(_, object)| Some((wire::job_id(object)?, wire::field(object, "/spec").to_string())));
        let specs: BTreeMap<JobId, String> = jobs.collect();
        let wants = |id: &JobId, image: &str| specs.get(id).is_some_and(|spec| spec.contains(image));
        for object in paper.of_kind("NodePreheat") {
            let NodeObject { orders, reports, .. } = wire::read(object);
            let node = object.metadata.name.clone().unwrap_or_default();
            let runs = orders.iter().filter(|(key, order)| {
                let report = reports.get(key);
                let ended = report.is_some_and(|report| report.ended() && report.asked == order.asked);
                let seen = report.map_or(order.asked, |report| report.updated.max(order.asked));
                !order.ask.is_question() && !order.hold && !ended && now < after(seen, pace::SILENCE)
            });
            let (node, wants) = (&node, &wants);
            let jobs = runs.flat_map(|(key, order)| {
                let left = |id: &JobId| self.left.contains(&(id.clone(), node.clone(), *key, order.asked));
                order.jobs.iter().filter(move |id| wants(id, &order.image) && !left(id))
            });
            let jobs: BTreeSet<&JobId> = jobs.collect();
            jobs.into_iter().for_each(|id| *count.entry(id.clone()).or_default() += 1);
        }
        count
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

/// A pull for a job: the job, the node, and the key and the time of the order.
type JobPull = (JobId, String, Key, Timestamp);

/// Every order, by node.
pub(super) type Asked = BTreeMap<(&'static str, Key), Order>;

pub(super) fn asked(world: &World) -> Asked {
    let orders = |node| world.orders(node).into_iter().flatten().map(move |(key, order)| ((node, key), order));
    all_nodes().flat_map(orders).collect()
}

/// Every name that a node of the World may have.
pub(super) fn all_nodes() -> impl Iterator<Item = &'static str> {
    NODES.into_iter().chain([EDGE])
}

/// A plan that tells another node to pull for a job leaves no more of them at work than the job allows now, whatever it allowed before,
/// and whatever became of nodes that were silent. These were the orders before the plan.
fn keeps_its_parallelism(before: &Asked, world: &World, id: &JobId, now: Timestamp) -> Result<(), String> {
    let Some(job) = world.job(id) else { return Ok(()) };
    let keys: BTreeSet<Key> = job.keys().collect();
    let pulls = |key: &Key, order: &Order| {
        keys.contains(key) && order.jobs.contains(id) && !order.ask.is_question() && !order.hold
    };
    let views = world.nodes(id, now);
    let at_work = views.iter().filter(|view| view.state == NodeState::Pulling).map(|view| &*view.node);
    let mut holding: Vec<&str> = Vec::new();
    let mut begun: Vec<&str> = Vec::new();
    for node in at_work {
        let orders = world.orders(node).unwrap_or_default();
        let mut own = orders.iter().filter(|(key, order)| pulls(key, order));
        let keeps = |order: &Order| pace::keeps_place(&order.terms.pull).min(pace::keeps_place(&job.pull));
        if own.any(|(_, order)| now < after(order.asked, keeps(order))) {
            holding.push(node);
        }
        let was = before.iter().any(|((at, key), order)| *at == node && pulls(key, order));
        if !was && orders.iter().any(|(key, order)| pulls(key, order)) {
            begun.push(node);
        }
    }
    let places = job.places(views.len());
    match begun.is_empty() || holding.len() <= places {
        true => Ok(()),
        false => Err(format!("{id}: {begun:?} begin, so {holding:?} pull, and {places} may")),
    }
}

impl Cluster {
    /// What holds whatever has just happened.
    pub(super) fn check(&mut self) -> Result<(), String> {
        self.laws.notice_limits(&self.paper);
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

/// How many of so many nodes an object lets pull at one time.
fn limit(object: &DynamicObject, nodes: usize) -> usize {
    let said = [wire::field(object, "/spec/pace/parallelism"), wire::field(object, "/spec/parallelism")];
    let number = said.iter().find_map(|value| value.as_u64()).unwrap_or(nodes as u64);
    // A percentage is half of the nodes here.
    let percent = said.iter().any(|value| value.is_string());
    if percent { nodes.div_ceil(2) } else { usize::try_from(number).unwrap() }
}

/// A write of the controller has made the second object of the first. How a version has ended stays as it is, whoever wrote that. The status
/// of a NodeImage without a Node is its maker's. Where Kruise's manager goes on (`half`), all but the status of NodeImages is the manager's.
pub(super) fn keeps_to_its_own(
    before: &DynamicObject,
    after: Option<&DynamicObject>,
    half: bool,
) -> Result<(), String> {
    let kind = before.types.as_ref().map(|types| types.kind.as_str()).unwrap_or_default();
    let name = before.metadata.name.as_deref().unwrap_or_default();
    if half && wire::job_kind(before).is_some_and(|kind| kind.is_foreign()) {
        return Err(format!("{kind} {name} is the manager's, and was written"));
    }
    if kind != "NodeImage" {
        return Ok(());
    }
    let Some(after) = after else {
        return if half { Err(format!("the NodeImage {name} is the manager's, and was deleted")) } else { Ok(()) };
    };
    let is_same = |path: &str| wire::field(before, path) == wire::field(after, path);
    if half && !(is_same("/spec") && before.metadata.labels == after.metadata.labels) {
        return Err(format!("the spec of NodeImage {name} is the manager's, and was written"));
    }
    if is_fake(before) && !is_same("/status") {
        return Err(format!("the status of NodeImage {name} is its maker's, and was written"));
    }
    let (tags, said) = (wire::tags(after), wire::entries(after));
    for entry in wire::entries(before).into_iter().filter(|(_, entry)| wire::is_done(entry)) {
        let is_of = |(image, tag): &(&String, &Value)| {
            *image == entry.0 && tag["tag"] == entry.1["tag"] && wire::version(tag) == wire::version(entry.1)
        };
        if tags.iter().any(is_of) && !said.contains(&entry) {
            return Err(format!("NodeImage {name} has lost {} of {}", entry.1, entry.0));
        }
    }
    Ok(())
}

/// The nodes that a job wants, as far as the World knows, which `world` has forgotten.
pub(super) fn forgotten(world: &World, nodes: &[Node], now: Timestamp) -> Option<String> {
    for id in world.jobs() {
        let Some(job) = world.job(id).filter(|job| job.ended.is_none()) else { continue };
        let views = world.nodes(id, now);
        for node in nodes {
            if selects(job, node) && !views.iter().any(|view| view.node == node.name) {
                return Some(format!("{id} has forgotten {}", node.name));
            }
        }
    }
    None
}

/// Children that somebody has taken away from their lists, and that are in the way of others with the same names.
pub(super) fn stray_children(paper: &Paper) -> Vec<PaperId> {
    let jobs = paper.all().filter(|(id, _)| id.kind == "ImagePullJob" && !NAMES.contains(&id.name.as_str()));
    jobs.filter(|(_, object)| object.metadata.owner_references.is_none()).map(|(id, _)| id.clone()).collect()
}
