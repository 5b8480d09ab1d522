//! The orders of a node: how one is made from the jobs it serves, when it is taken back, when it is swept.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::World;
use super::demand::{answered, silent_from};
use super::held::Held;
use crate::model::{CopyName, Job, JobId, Key, LOOK, Order, Pin, Pull, Report, after};
use crate::pace;
use crate::reference::Reference;
use crate::select::selects;

/// Changes of orders by slot and key; `None` takes an order away.
pub(super) type Changes = BTreeMap<usize, BTreeMap<Key, Option<Order>>>;

/// What an order takes from the jobs that it serves.
fn terms(jobs: &[&Job]) -> Option<Pull> {
    let (first, others) = jobs.split_first()?;
    Some(others.iter().fold(first.pull.clone(), |terms, job| terms.strictest(&job.pull)))
}

impl World {
    /// The jobs that have not ended and want this image on this node.
    pub(super) fn wanted_by<'a>(&'a self, at: usize, key: Key) -> impl Iterator<Item = &'a Job> + 'a {
        let node = self.slots.get(at).and_then(|slot| slot.node.as_ref());
        let jobs = self.demand.get(&key).into_iter().flat_map(|demand| &demand.jobs);
        let jobs = jobs.filter_map(|id| self.jobs.get(id)).map(|state| &state.job);
        jobs.filter(move |job| node.is_some_and(|node| selects(job, node)))
    }

    pub(super) fn set_orders(&mut self, at: usize, orders: BTreeMap<Key, Order>) {
        let Some(slot) = self.slots.get(at) else { return };
        for key in changed(&slot.orders, &orders, Held::is) {
            let order = orders.get(&key).cloned();
            self.set_order(at, key, order);
        }
    }

    pub(super) fn set_order(&mut self, at: usize, key: Key, order: Option<Order>) {
        let order = order.map(|order| self.demand.entry(key).or_default().kinds.hold(order));
        self.change_entry(at, key, |slot| {
            match order {
                Some(order) => slot.orders.insert(key, order),
                None => slot.orders.remove(&key),
            };
        });
    }

    pub(super) fn set_reports(&mut self, at: usize, mut reports: BTreeMap<Key, Report>) {
        let Some(slot) = self.slots.get(at) else { return };
        for key in changed(&slot.reports, &reports, |old, new| **old == *new) {
            let report = reports.remove(&key);
            self.change_entry(at, key, |slot| {
                match report {
                    Some(report) => slot.reports.insert(key, Box::new(report)),
                    None => slot.reports.remove(&key),
                };
            });
        }
    }

    /// Takes back the unfinished orders of a node that nobody wants any more, and brings those up to date whose
    /// jobs were edited. Finished ones stay until [`World::sweep`].
    pub(super) fn tidy(&mut self, at: usize, now: Timestamp, changes: &mut Changes) {
        let Some(slot) = self.slots.get(at) else { return };
        let mut edits: Vec<(Key, Option<Order>)> = Vec::new();
        let mut reports = slot.reports.iter().peekable();
        for (&key, order) in &slot.orders {
            // Both maps are sorted: going along them is much cheaper than looking every order up.
            while reports.next_if(|(at, _)| **at < key).is_some() {}
            let report = reports.next_if(|(at, _)| **at == key).map(|(_, report)| &**report);
            if answered(order, report) {
                continue;
            }
            let serves: Vec<&Job> =
                self.wanted_by(at, key).filter(|job| job.runs() && order.jobs.contains(&job.id)).collect();
            match terms(&serves) {
                None => edits.push((key, None)),
                Some(Pull { policy, timeout, retries, bandwidth, sandbox }) => {
                    // Work under way cannot become stricter: its answer will not be enough, and then it is asked again.
                    let policy = policy.min(order.policy);
                    // One that fell silent keeps what it has until it is heard: a new ask would count as work under way.
                    let awake = now < silent_from(order, report, slot, now);
                    let secrets = awake.then(|| self.logins(at, key, &serves, &order.secrets)).flatten();
                    let secrets = secrets.unwrap_or_else(|| order.secrets.clone());
                    let limits = (policy, timeout, retries, bandwidth);
                    let same = limits == (order.policy, order.timeout, order.retries, order.bandwidth);
                    if !same || (&sandbox, &secrets) != (&order.sandbox, &order.secrets) {
                        let (asked, pin) = match brings_logins(order, &secrets, &serves, now) {
                            false => (order.asked, order.pin()),
                            true => self.ask_anew(order, key, &serves, now),
                        };
                        let jobs = serves.iter().map(|job| job.id.clone()).collect();
                        let before = order.order();
                        let (image, progress, needs) = (before.image, before.progress, before.needs);
                        let order = Order {
                            image,
                            pin,
                            policy,
                            timeout,
                            retries,
                            bandwidth,
                            sandbox,
                            progress,
                            jobs,
                            asked,
                            secrets,
                            needs,
                        };
                        edits.push((key, Some(order)));
                    }
                }
            }
        }
        for (key, order) in edits {
            if let (None, Some(old)) = (&order, self.slots.get(at).and_then(|slot| slot.orders.get(&key))) {
                self.taken_back.insert((at, key), old.asked);
            }
            self.set_order(at, key, order.clone());
            changes.entry(at).or_default().insert(key, order);
        }
    }

    /// The time and the digest of an order that is under way and gets new logins.
    fn ask_anew(&self, order: &Held, key: Key, jobs: &[&Job], now: Timestamp) -> (Timestamp, Option<Pin>) {
        let since = jobs.iter().map(|job| job.since(now)).max().unwrap_or(now);
        // If this is the node that resolves the tag it may have done so; its answer holds.
        let known = || self.demand.get(&key).and_then(|demand| demand.pin(since)).cloned();
        (next(order.asked, now).max(since), order.pin().or_else(known))
    }

    /// Hands one image of a job to a node. It joins a pull that is under way, and asks again only where that was
    /// asked before the job began, under a weaker policy or without its logins; else it is an ask of its own. Jobs that have their answer are not listed again: a
    /// repeated pull would hold a place of theirs that their parallelism did not allow.
    pub(super) fn hand_out(
        &mut self,
        job: &Job,
        reference: &Reference,
        at: usize,
        now: Timestamp,
        pulling: usize,
    ) -> Order {
        let key = reference.key();
        let slot = self.slots.get(at);
        let (old, report) = (slot.and_then(|slot| slot.orders.get(&key)), slot.and_then(|slot| slot.report(key)));
        let at_work =
            |old: &&Held| !answered(old, report) && slot.is_some_and(|slot| now < silent_from(old, report, slot, now));
        let running = old.filter(at_work);
        let since = job.since(now);
        let joined = running.filter(|old| counts(old, since)).filter(|old| old.policy >= job.pull.policy);
        let (mut asked, mut pin) = match joined {
            Some(joined) => (joined.asked, joined.pin()),
            None => {
                // Never before the start of the job, whatever the clocks of API server and controller say.
                let last = old.map(|old| old.asked).max(report.map(|report| report.asked));
                let last = last.max(self.taken_back.get(&(at, key)).copied());
                let asked = last.map_or(now, |last| next(last, now)).max(since);
                let known = || self.demand.get(&key).and_then(|demand| demand.pin(since)).cloned();
                let named = reference.digest().map(str::to_string).map(|digest| Pin { asked, digest });
                (asked, named.or_else(known))
            }
        };
        // Only one node asks the registry; who is handed out besides it, looks.
        let look = match joined {
            Some(joined) => joined.looks(),
            None => pin.is_none() && self.asking(key, now).is_some(),
        };
        // A digest that is too old for another job would be a wrong answer to it: that one asks by itself.
        let serves = |other: &Job| joined.is_some() || pin.as_ref().is_none_or(|pin| pin.asked >= other.since(now));
        let others = self
            .wanted_by(at, key)
            .filter(|other| other.runs() && other.id != job.id && serves(other))
            .filter(|other| running.is_some_and(|running| running.jobs.contains(&other.id)));
        let jobs: Vec<&Job> = others.chain([job]).collect();
        let had = old.map(|old| old.secrets.as_slice()).unwrap_or_default();
        // The job's own copies are there, or it would not be its turn; those of others may come later.
        let secrets = self.logins(at, key, &jobs, had).or_else(|| self.logins(at, key, &[job], had));
        let secrets = secrets.unwrap_or_default();
        if let Some(joined) = joined.filter(|joined| brings_logins(joined, &secrets, &jobs, now)) {
            (asked, pin) = self.ask_anew(joined, key, &jobs, now);
        }
        let terms = terms(&jobs).unwrap_or_else(|| job.pull.clone());
        let Pull { policy, timeout, retries, bandwidth, sandbox } = terms;
        let serves: BTreeSet<JobId> = jobs.iter().map(|job| job.id.clone()).collect();
        let order = Order {
            image: reference.name().to_string(),
            pin,
            policy,
            timeout,
            retries,
            bandwidth,
            sandbox,
            progress: pace::progress_interval(pulling),
            jobs: serves,
            asked,
            secrets,
            needs: look.then(|| LOOK.into()).into_iter().collect(),
        };
        self.set_order(at, key, Some(order.clone()));
        order
    }

    /// Adds to the writes of a node the removal of finished orders whose jobs have all ended. They never cause a
    /// write of their own; a suspended job keeps its results. Returns whether there were any.
    pub(super) fn sweep(&mut self, changes: &mut Changes) -> bool {
        let mut swept = false;
        for (&at, changes) in changes.iter_mut() {
            let Some(slot) = self.slots.get(at) else { continue };
            let keys = slot.orders.keys().copied().filter(|key| !changes.contains_key(key));
            let unwanted: Vec<Key> = keys.filter(|&key| self.wanted_by(at, key).next().is_none()).collect();
            for key in unwanted {
                self.set_order(at, key, None);
                changes.insert(key, None);
                swept = true;
            }
        }
        swept
    }
}

/// Whether the answer of an order is one for a job that counts from this time.
fn counts(order: &Held, since: Timestamp) -> bool {
    order.asked >= since && order.pinned.is_none_or(|asked| asked >= since)
}

/// Whether an order under way is about to get logins that it did not have. That is a new ask: nobody knows whether the
/// agent has just been refused without them. An order whose answer will not count is asked anew anyway.
fn brings_logins(order: &Held, logins: &[CopyName], jobs: &[&Job], now: Timestamp) -> bool {
    let new = logins.iter().any(|copy| !order.secrets.contains(copy));
    new && jobs.iter().all(|job| counts(order, job.since(now)))
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
