//! The orders of a node: how one is made from the jobs it serves, when it is taken back, when it is swept.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::demand::{answered, silent_from};
use super::held::HeldOrder;
use super::relay::give_registry_back;
use super::told::says_the_same;
use super::{NodeSlot, World};
use crate::model::{Ask, Job, JobId, Key, LoginId, Order, Origin, Phase, Pin, Pull, Report, Terms, after};
use crate::pace::{self, FAR_AHEAD, SLOW_ANSWER};
use crate::reference::Reference;
use crate::select::selects;

/// The keys of orders that a plan has changed or taken away, by slot.
pub(super) type Changes = BTreeMap<usize, BTreeSet<Key>>;

/// An image was handed to a node.
pub(super) struct HandedOut {
    /// Whether its order names the digest.
    pub(super) pinned: bool,
    /// The slot of a seed whose place the node takes.
    pub(super) instead_of: Option<usize>,
}

/// What one job wants of an order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct JobPart<'a> {
    /// When the job was made; not known of a job that is not known.
    created: Option<Timestamp>,
    job: &'a JobId,
}

/// What an order takes from the jobs that it serves: strictest among those of one namespace, most generous between namespaces.
/// Older jobs come first, so that no later one changes what a runtime is told for them.
fn merged<'a>(parts: impl Iterator<Item = (JobPart<'a>, &'a Pull)>) -> Option<Pull> {
    let parts: BTreeMap<JobPart<'a>, &Pull> = parts.collect();
    let mut namespaces: Vec<(&str, Pull)> = Vec::new();
    for (part, wanted) in parts {
        match namespaces.iter_mut().find(|(name, _)| *name == part.job.namespace()) {
            Some((_, pull)) => *pull = pull.strictest(wanted),
            None => namespaces.push((part.job.namespace(), wanted.clone())),
        }
    }
    namespaces.into_iter().map(|(_, pull)| pull).reduce(|one, other| one.most_generous(&other))
}

impl World {
    /// The jobs that have not ended and want this image on this node. A job whose nodes are not known wants it where it was ordered.
    pub(super) fn wanted_by<'a>(&'a self, at: usize, key: Key) -> impl Iterator<Item = &'a Job> + 'a {
        let slot = self.slots.get(at).and_then(|slot| Some((slot, slot.node.as_ref()?)));
        let jobs = self.demand.get(&key).into_iter().flat_map(|demand| &demand.jobs);
        let jobs = jobs.filter_map(|id| self.jobs.get(id)).map(|state| &state.job);
        jobs.filter(move |job| {
            slot.is_some_and(|(slot, node)| selects(job, node) || job.unseen.is_some() && slot.is_ordered(&job.id, key))
        })
    }

    /// Those of the jobs that want this image on this node that the order names. Thousands of jobs may want an image, and an order names a
    /// few of them.
    pub(super) fn named_in<'a>(&'a self, order: &'a Order, at: usize, key: Key) -> impl Iterator<Item = &'a Job> + 'a {
        let node = self.slots.get(at).and_then(|slot| slot.node.as_ref());
        let demand = self.demand.get(&key);
        let named = order.jobs.iter().filter(move |id| demand.is_some_and(|demand| demand.jobs.contains(*id)));
        let jobs = named.filter_map(|id| self.jobs.get(id)).map(|state| &state.job);
        // As in `wanted_by`: a job whose nodes are not known wants the image where it was ordered.
        jobs.filter(move |job| node.is_some_and(|node| job.unseen.is_some() || selects(job, node)))
    }

    /// Forgets the orders of foreign nodes that were asked far ahead: their times are what somebody has written, and such an order would hold a
    /// place of its jobs until then.
    pub(super) fn forget_far_orders(&mut self, now: Timestamp) {
        let latest = after(now, FAR_AHEAD);
        let slots = self.dirty_slots.iter().filter_map(|at| Some((*at, self.slots.get(*at)?)));
        let foreign = slots.filter(|(_, slot)| slot.is_foreign());
        let far = foreign.flat_map(|(at, slot)| {
            let far = slot.orders.iter().filter(move |(_, order)| order.asked > latest);
            far.map(move |(key, _)| (at, *key))
        });
        for (at, key) in far.collect::<Vec<(usize, Key)>>() {
            self.set_order(at, key, None);
        }
    }

    pub(super) fn set_orders(&mut self, at: usize, orders: BTreeMap<Key, Order>) {
        let Some(slot) = self.slots.get(at) else { return };
        for key in changed(&slot.orders, &orders, HeldOrder::is) {
            let order = orders.get(&key).cloned();
            self.set_order(at, key, order);
        }
    }

    pub(super) fn set_order(&mut self, at: usize, key: Key, order: Option<Order>) {
        let order = order.map(|order| {
            let demand = self.demand.entry(image_key(key, &order)).or_default();
            demand.kinds.hold(order, &mut self.peer_refs)
        });
        let (crowded, taken) = (self.is_crowded(at), self.taken(at));
        let old = self.slots.get(at).and_then(|slot| slot.orders.get(&key));
        // A question counts for the image that it is about.
        let question = [old, order.as_ref()].into_iter().flatten().any(|order| order.ask.is_question());
        let image = if question { key.question() } else { key };
        self.tell_node(at);
        self.change_entry(at, image, |slot| {
            match order {
                Some(order) => slot.orders.insert(key, order),
                None => slot.orders.remove(&key),
            };
        });
        if crowded && self.taken(at) < taken {
            // Whoever waited for room may have it now.
            self.touch_node(at);
        }
        match self.slots.get(at).is_some_and(|slot| slot.orders.values().any(|order| order.hold)) {
            true => self.holding.insert(at),
            false => self.holding.remove(&at),
        };
    }

    pub(super) fn set_reports(&mut self, at: usize, mut reports: BTreeMap<Key, Report>) {
        let Some(slot) = self.slots.get(at) else { return };
        for key in changed(&slot.reports, &reports, |old, new| **old == *new) {
            let mut report = reports.remove(&key);
            if let Some(Origin::Peer(name)) = report.as_mut().and_then(|report| report.from.as_mut())
                && let Some((known, _)) = self.by_name.get_key_value(name)
            {
                // The name is kept once, whoever reads from that node.
                *name = known.clone();
            }
            if let Some(digest) = report.as_mut().and_then(|report| report.digest.as_mut())
                && let Some(demand) = self.demand.get_mut(&key)
            {
                demand.digests.share(digest);
            }
            let old = self.slots.get(at).and_then(|slot| slot.reports.get(&key));
            if self.told_nodes.is_some() && !old.zip(report.as_ref()).is_some_and(|(old, new)| says_the_same(old, new))
            {
                self.tell_node(at);
            }
            let order = self.slots.get(at).and_then(|slot| slot.orders.get(&key));
            let image = order.map_or(key, |order| image_key(key, order));
            self.change_entry(at, image, |slot| {
                match report {
                    Some(report) => slot.reports.insert(key, Box::new(report)),
                    None => slot.reports.remove(&key),
                };
            });
        }
    }

    /// Takes back the unfinished orders of a node that nobody wants any more, holds those whose jobs are suspended, and
    /// brings those up to date whose jobs were edited. Finished ones stay until [`World::sweep`].
    pub(super) fn tidy(&mut self, at: usize, now: Timestamp, changes: &mut Changes) {
        let Some(slot) = self.slots.get(at) else { return };
        let mut edits: Vec<(Key, Option<Order>)> = Vec::new();
        let mut grown = 0;
        let mut reports = slot.reports.iter().peekable();
        for (&key, order) in &slot.orders {
            // Both maps are sorted: going along them is much cheaper than looking every order up.
            while reports.next_if(|(at, _)| **at < key).is_some() {}
            let report = reports.next_if(|(at, _)| **at == key).map(|(_, report)| &**report);
            let report = report.filter(|report| report.asked <= order.asked);
            if answered(order, report) {
                continue;
            }
            let image = image_key(key, order);
            let wanting = || self.named_in(order, at, image);
            let serves: Vec<&Job> = wanting().filter(|job| self.may_be_served(job, at)).collect();
            let kept = self.kept_names(at, image, order);
            let edit = match serves.is_empty() {
                // The plan decides when it goes on: that takes a place.
                false if order.hold => continue,
                false => {
                    // One that fell silent keeps its logins until it is heard: a new ask would count as work under way.
                    let awake = now < silent_from(order, report, slot, now);
                    let amended = self.amended(order, at, image, &serves, &kept, awake, now);
                    let amended = amended.map(|amended| self.fitting(at, order, amended, &mut grown));
                    let amended = amended.filter(|amended| amended.terms != order.terms);
                    self.revised(order, amended, now).map(Some)
                }
                // Nobody knows whether such a job has ended: what it was given stays.
                true if !kept.is_empty() => continue,
                true => {
                    let jobs: BTreeSet<JobId> = wanting().map(|job| job.id.clone()).collect();
                    let mut held = Order { hold: true, jobs, ..order.order() };
                    // What is suspended lends no login; a new ask has those of then.
                    held.terms.logins.clear();
                    // A question has nothing to keep.
                    let keeps = !order.ask.is_question() && !held.jobs.is_empty();
                    (!keeps || !order.is(&held)).then(|| keeps.then_some(held))
                }
            };
            edits.extend(edit.map(|edit| (key, edit)));
        }
        for (key, order) in edits {
            if let Some((slot, old)) = self.slots.get(at).and_then(|slot| Some((slot, slot.orders.get(&key)?))) {
                // A silent node has given its place away.
                let awake = now < silent_from(old, slot.report(key), slot, now);
                let stops = awake && !old.hold && order.as_ref().is_none_or(|order| order.hold);
                if stops && !old.ask.is_question() {
                    self.leaving.entry(at).or_default().extend(old.jobs.iter().cloned());
                }
                if order.is_none() {
                    self.taken_back.insert((at, key), old.asked);
                }
            }
            self.set_order(at, key, order);
            changes.entry(at).or_default().insert(key);
        }
    }

    /// An unfinished order with the terms that its jobs have now, if they are others.
    #[allow(clippy::too_many_arguments, reason = "one caller, which has all of it in hand")]
    fn amended(
        &self,
        order: &HeldOrder,
        at: usize,
        image: Key,
        serves: &[&Job],
        kept: &BTreeSet<JobId>,
        awake: bool,
        now: Timestamp,
    ) -> Option<Order> {
        let pull = self.pull(serves, kept, Some(order))?;
        // What it was given for the sake of others it keeps as long as they want the image.
        let mut pull = pull.up_to(&order.terms.pull, &self.generous(&pull, &names(serves, kept), at, image));
        // Work under way cannot become stricter: its answer will not be enough, and then it is asked again.
        pull.policy = pull.policy.min(order.terms.pull.policy);
        if order.ask.is_question() {
            pull.timeout = pull.timeout.max(SLOW_ANSWER);
        }
        let had = &order.terms.logins;
        let logins = if awake { self.logins(at, image, serves, kept, had) } else { had.clone() };
        let terms = Terms { pull, logins, progress: order.terms.progress };
        if terms == order.terms {
            return None;
        }
        let since = self.latest_since(serves, at, now);
        let (asked, ask) = match brings_logins(order, &terms.logins, since) {
            false => (order.asked, order.order().ask),
            true => ask_anew(order, since, now),
        };
        Some(Order { asked, ask, jobs: names(serves, kept), terms, ..order.order() })
    }

    /// These terms of an order for the jobs of these names, at least as generous as those of each job of another namespace that wants the image
    /// on the node. Who would have had more patience takes the failure of others for none and asks again. If both sides had more
    /// patience than the other one in one way or the other, they would ask for ever; so what follows a failure is tried on these terms,
    /// and its failure is one for all. Each job still judges the order by its own terms. A job whose nodes are not known does not count: it
    /// wants the node only as long as the order names it, and this order may be about to take the place of that one.
    fn generous(&self, pull: &Pull, named: &BTreeSet<JobId>, at: usize, image: Key) -> Pull {
        let moves = |job: &Job| job.runs() && job.unseen.is_none() && self.allows(job, at);
        let strange = |job: &&Job| moves(job) && named.iter().all(|id| id.namespace() != job.id.namespace());
        self.wanted_by(at, image).filter(strange).fold(pull.clone(), |pull, job| pull.at_least(&job.pull))
    }

    /// How to pull for these jobs and for those that stand still in an order. Of one that is not known nobody knows what it
    /// wants: what the order says counts as its wish, so that others change the order only where its wish cannot matter.
    fn pull(&self, jobs: &[&Job], kept: &BTreeSet<JobId>, order: Option<&HeldOrder>) -> Option<Pull> {
        let known = kept.iter().filter_map(|id| self.jobs.get(id)).map(|state| &state.job);
        let known = jobs.iter().copied().chain(known);
        let known = known.map(|job| (JobPart { created: Some(job.created), job: &job.id }, &job.pull));
        let unknown = kept.iter().filter(|id| !self.jobs.contains_key(id));
        let unknown = unknown.filter_map(|job| Some((JobPart { created: None, job }, &order?.terms.pull)));
        merged(known.chain(unknown))
    }

    /// Asks a node about an image: what its tag means, or whether it is there. Jobs that wait for the answer to an older
    /// question of theirs get this one. The answer counts for nodes that count from `since`.
    pub(super) fn ask(
        &mut self,
        job: &Job,
        reference: &Reference,
        at: usize,
        (ask, since): (Ask, Timestamp),
        now: Timestamp,
    ) {
        let key = reference.key().question();
        let slot = self.slots.get(at);
        let (old, report) = (slot.and_then(|slot| slot.orders.get(&key)), slot.and_then(|slot| slot.report(key)));
        let open = old.filter(|old| !answered(old, report));
        let others = open.into_iter().flat_map(|open| self.named_in(open, at, reference.key()));
        let others = others.filter(|other| self.may_be_served(other, at) && other.id != job.id);
        let jobs: Vec<&Job> = others.chain([job]).collect();
        let kept = open.map(|open| self.kept_names(at, reference.key(), open)).unwrap_or_default();
        let asked = self.new_ask(at, key, since.max(self.since(job, at, now)), now);
        let mut terms = self.terms(job, &jobs, &kept, (at, reference.key()), (old, report), 1);
        // All jobs go by the answer: one that is in a hurry does not make it fail.
        terms.pull.timeout = terms.pull.timeout.max(SLOW_ANSWER);
        let order = Order::new(reference.name(), names(&jobs, &kept), asked, ask, terms);
        self.set_order(at, key, Some(order));
    }

    /// From when on answers of the node in this slot count for the job.
    pub(super) fn since(&self, job: &Job, at: usize, now: Timestamp) -> Timestamp {
        self.slots.get(at).map_or_else(|| job.began(now), |slot| job.since(&slot.name, now))
    }

    /// From when on an answer of the node in this slot counts for all of these jobs.
    fn latest_since(&self, jobs: &[&Job], at: usize, now: Timestamp) -> Timestamp {
        jobs.iter().map(|job| self.since(job, at, now)).max().unwrap_or(now)
    }

    /// The time of a new ask: later than the last one under this key, and never before `since`, whatever the clocks of API
    /// server and controller say. No agent moves it: a report answers the ask that it names, so it is enough that the new ask is another
    /// one than what was answered last.
    fn new_ask(&self, at: usize, key: Key, since: Timestamp, now: Timestamp) -> Timestamp {
        let slot = self.slots.get(at);
        let ordered = slot.and_then(|slot| slot.orders.get(&key)).map(|order| order.asked);
        let last = ordered.max(self.taken_back.get(&(at, key)).copied());
        let asked = last.map_or(now, |last| next(last, now)).max(since);
        let reported = slot.and_then(|slot| slot.reports.get(&key)).map(|report| report.asked);
        if reported == Some(asked) { next(asked, now) } else { asked }
    }

    /// What an order takes from the jobs that it serves, `job` among them. It takes the place of the old one.
    fn terms(
        &self,
        job: &Job,
        jobs: &[&Job],
        kept: &BTreeSet<JobId>,
        (at, key): (usize, Key),
        (old, report): (Option<&HeldOrder>, Option<&Report>),
        pulling: usize,
    ) -> Terms {
        let had = old.map(|old| old.terms.logins.as_slice()).unwrap_or_default();
        let pull = self.pull(jobs, kept, old).unwrap_or_else(|| job.pull.clone());
        let failed = report.is_some_and(|report| report.phase == Phase::Failed);
        Terms {
            pull: if failed { self.generous(&pull, &names(jobs, kept), at, key) } else { pull },
            logins: self.logins(at, key, jobs, kept, had),
            progress: pace::progress_interval(pulling),
        }
    }

    /// The order under way for this image on a node, if it is not held and the node is heard.
    fn running(&self, at: usize, key: Key, now: Timestamp) -> Option<&HeldOrder> {
        let slot = self.slots.get(at)?;
        let (order, report) = (slot.orders.get(&key)?, slot.report(key));
        let at_work = !order.hold && !answered(order, report) && now < silent_from(order, report, slot, now);
        at_work.then_some(order)
    }

    /// Whether the job would join an order that is under way, and leave it its source.
    pub(super) fn may_join(&self, job: &Job, at: usize, key: Key, now: Timestamp) -> bool {
        let since = self.since(job, at, now);
        let running = self.running(at, key, now).filter(|order| joins(job, order, since));
        running.is_some_and(|order| !order.upstream || self.leaves_registry(job, order, at, key))
    }

    /// Whether an order that this job joins may still go upstream. In one namespace the strictest terms hold: the job would stop a seed of others, and
    /// nobody would have the image that it waits for.
    fn leaves_registry(&self, job: &Job, order: &HeldOrder, at: usize, key: Key) -> bool {
        let served = self.named_in(order, at, key).filter(|other| self.may_be_served(other, at));
        let jobs: Vec<&Job> = served.chain([job]).collect();
        let pull = self.pull(&jobs, &self.kept_names(at, key, order), Some(order));
        pull.is_some_and(|pull| !pull.is_from_peers_alone())
    }

    /// Hands one image of a job to a node. It joins a pull that is under way, and asks again only where that was
    /// asked before the job began, under a weaker policy or without its logins; else it is an ask of its own. Jobs that have
    /// their answer are not listed again: a repeated pull would hold a place of theirs that their parallelism did not allow.
    pub(super) fn hand_out(
        &mut self,
        job: &Job,
        image: usize,
        at: usize,
        now: Timestamp,
        pulling: usize,
    ) -> Option<HandedOut> {
        let reference = job.images.get(image)?.reference.as_ref().ok()?;
        let key = reference.key();
        if self.is_full(job, at, key).is_some() {
            return None;
        }
        let slot = self.slots.get(at);
        let (old, report) = (slot.and_then(|slot| slot.orders.get(&key)), slot.and_then(|slot| slot.report(key)));
        let running = self.running(at, key, now);
        let since = self.since(job, at, now);
        let joined = running.filter(|old| joins(job, old, since));
        let (mut asked, mut ask) = match joined {
            Some(joined) => (joined.asked, joined.order().ask),
            None => {
                let asked = self.new_ask(at, key, since, now);
                let named = reference.digest().map(|digest| Pin::new(asked, digest));
                // Who plays the agent of a foreign node is told a tag and nothing else: a digest beside it would only be ignored.
                let foreign = slot.is_some_and(NodeSlot::is_foreign);
                let pin = || if foreign { None } else { self.pin(job, image, since, now) };
                (asked, Ask::Fetch(named.or_else(pin)))
            }
        };
        // A digest that is too old for another job would be a wrong answer to it: that one asks by itself.
        let serves =
            |other: &Job| joined.is_some() || ask.pin().is_none_or(|pin| pin.asked >= self.since(other, at, now));
        let others = running.into_iter().flat_map(|running| self.named_in(running, at, key));
        let others = others.filter(|other| self.may_be_served(other, at) && other.id != job.id && serves(other));
        let jobs: Vec<&Job> = others.chain([job]).collect();
        let open = old.filter(|old| !answered(old, report));
        let kept = open.map(|open| self.kept_names(at, key, open)).unwrap_or_default();
        let terms = self.terms(job, &jobs, &kept, (at, key), (old, report), pulling);
        let since = self.latest_since(&jobs, at, now);
        if let Some(joined) = joined.filter(|joined| brings_logins(joined, &terms.logins, since)) {
            (asked, ask) = ask_anew(joined, since, now);
        }
        let mut order = Order::new(reference.name(), names(&jobs, &kept), asked, ask, terms);
        let mut instead_of = None;
        match joined.map(HeldOrder::order) {
            Some(Order { upstream, peers, expect, past, .. }) => {
                (order.upstream, order.peers, order.expect, order.past) = (upstream, peers, expect, past);
                give_registry_back(&mut order);
            }
            None => {
                let since = self.since(job, at, now);
                instead_of = self.route(&mut order, (at, key), since, now);
            }
        }
        let pinned = order.pin().is_some();
        self.set_order(at, key, Some(order));
        Some(HandedOut { pinned, instead_of })
    }

    /// Adds to the writes of a node the removal of finished orders whose jobs have all ended. They never cause a
    /// write of their own; a suspended job keeps its results. Returns whether there were any.
    pub(super) fn sweep(&mut self, changes: &mut Changes) -> bool {
        let mut swept = false;
        for (&at, changes) in changes.iter_mut() {
            let Some(slot) = self.slots.get(at) else { continue };
            let orders = slot.orders.iter().filter(|(key, _)| !changes.contains(key));
            let unwanted = orders.filter(|(key, order)| {
                self.wanted_by(at, image_key(**key, order)).next().is_none() && !self.is_kept(order)
            });
            let unwanted: Vec<Key> = unwanted.map(|(key, _)| *key).collect();
            for key in unwanted {
                self.set_order(at, key, None);
                changes.insert(key);
                swept = true;
            }
        }
        swept
    }
}

/// The jobs that an order names.
fn names(serves: &[&Job], kept: &BTreeSet<JobId>) -> BTreeSet<JobId> {
    serves.iter().map(|job| &job.id).chain(kept).cloned().collect()
}

/// The time of an order that is under way and gets new logins, and what it asks then.
fn ask_anew(order: &HeldOrder, since: Timestamp, now: Timestamp) -> (Timestamp, Ask) {
    (next(order.asked, now).max(since), order.order().ask)
}

/// The key of the image that the order under this key is about.
pub(super) fn image_key(key: Key, order: &Order) -> Key {
    if order.ask.is_question() { key.question() } else { key }
}

/// Whether the job has the answer that it wants when this order has one.
fn joins(job: &Job, order: &HeldOrder, since: Timestamp) -> bool {
    counts(order, since) && order.terms.pull.policy >= job.pull.policy
}

/// Whether the answer of an order is one for a job that counts from this time.
fn counts(order: &HeldOrder, since: Timestamp) -> bool {
    order.asked >= since && order.pinned.is_none_or(|asked| asked >= since)
}

/// Whether an order under way is about to get logins that it did not have. That is a new ask: nobody knows whether the
/// agent has just been refused without them. An order whose answer will not count is asked anew anyway.
fn brings_logins(order: &HeldOrder, logins: &[LoginId], since: Timestamp) -> bool {
    let new = logins.iter().any(|login| !order.terms.logins.contains(login));
    new && counts(order, since)
}

/// The time of a new ask: later than the last one, or the old answer would pass for the new.
fn next(last: Timestamp, now: Timestamp) -> Timestamp {
    now.max(after(last, Duration::from_millis(1)))
}

/// The keys at which two maps differ.
fn changed<T, U>(old: &BTreeMap<Key, T>, new: &BTreeMap<Key, U>, same: impl Fn(&T, &U) -> bool) -> Vec<Key> {
    let gone = old.keys().filter(|key| !new.contains_key(key));
    let differs = |key: &Key, value: &U| old.get(key).is_none_or(|old| !same(old, value));
    let different = new.iter().filter(|(key, value)| differs(key, value)).map(|(key, _)| key);
    gone.chain(different).copied().collect()
}
