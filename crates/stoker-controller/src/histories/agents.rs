//! Agents: each reads its NodePreheat when it likes, works on what it has read, and writes its reports when it likes.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::json;
use stoker_api::native::NodeObject;
use stoker_api::native::from_core::{self, Saying};
use stoker_core::model::after;
use stoker_core::{Ask, Bytes, Key, Order, Phase, Pin, Policy, Reason, Report};
use stoker_testbed::paper::{Paper, PaperId};

use super::users::IMAGES;
use super::wire;

/// How far ahead of the clock a lie is.
const LATER: Duration = Duration::from_secs(40);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Work {
    Begin,
    /// It does what it was asked, one thing after the other.
    Succeed,
    /// An attempt fails; after the last one it gives up.
    Fail,
    /// It cannot answer what it is asked.
    Unable,
    /// It says that it has failed at what it will be asked some day.
    Lie,
    /// It has other things to do first, and says so.
    Queue,
}

impl Work {
    pub(super) fn any() -> impl Strategy<Value = Self> {
        prop_oneof![
            2 => Just(Work::Begin), 8 => Just(Work::Succeed), 3 => Just(Work::Fail), 1 => Just(Work::Unable), 1 => Just(Work::Lie),
            1 => Just(Work::Queue)
        ]
    }
}

/// An agent, as far as it remembers.
#[derive(Clone, Debug, Default)]
pub(super) struct PaperAgent {
    orders: BTreeMap<Key, Order>,
    reports: BTreeMap<Key, Report>,
}

pub(super) fn id(node: &str) -> PaperId {
    PaperId::new("NodePreheat", "", node)
}

/// Has a node register itself.
pub(super) fn register(paper: &mut Paper, node: &str, now: Timestamp) {
    if paper.get(&id(node)).is_some() {
        return;
    }
    let object = json!({
        "apiVersion": "stoker.dev/v1alpha1", "kind": "NodePreheat", "metadata": { "name": node }, "spec": { "orders": {} },
    });
    paper.create(serde_json::from_value(object).unwrap(), now).unwrap();
    let agent = json!({ "status": { "agent": { "version": "1", "features": ["look", "resolve"] } } });
    paper.patch(&id(node), &agent, true).unwrap();
}

impl PaperAgent {
    /// Reads the orders. What is ordered no more is not worked on any more; what came of it is kept.
    pub(super) fn read(&mut self, paper: &Paper, node: &str) {
        let Some(object) = paper.get(&id(node)) else { return };
        self.orders = wire::read::<NodeObject>(object).orders;
        self.reports.retain(|key, report| report.ended() || self.orders.contains_key(key));
    }

    /// The orders that it has not done.
    fn open(&self) -> Vec<Key> {
        let open = self.orders.iter().filter(|(key, order)| {
            !order.hold && self.reports.get(key).is_none_or(|report| !report.ended() || report.asked != order.asked)
        });
        open.map(|(key, _)| *key).collect()
    }

    /// Goes on with one of its orders; says with which.
    pub(super) fn work(&mut self, which: usize, work: Work, now: Timestamp) -> Option<String> {
        let open = self.open();
        self.go_on(*open.get(which % open.len().max(1))?, work, now)
    }

    /// Goes on with all of its orders, with each as its age in seconds says.
    pub(super) fn work_by_age(&mut self, now: Timestamp, work: impl Fn(&Order, i64) -> Option<Work>) {
        for key in self.open() {
            let order = self.orders.get(&key);
            if let Some(work) = order.and_then(|order| work(order, now.as_second() - order.asked.as_second())) {
                self.go_on(key, work, now);
            }
        }
    }

    fn go_on(&mut self, key: Key, work: Work, now: Timestamp) -> Option<String> {
        let order = self.orders.get(&key)?.clone();
        let earlier = self.reports.get(&key).filter(|report| report.asked == order.asked).cloned();
        let mut report = earlier.unwrap_or_else(|| begun(&order, now));
        (report.updated, report.jobs) = (now, order.jobs.clone());
        report.attempt = report.attempt.max(1);
        let content = order.terms.pull.policy == Policy::IfNotPresent;
        match (work, &order.ask) {
            (Work::Begin, _) => report.bytes.done = 50,
            (Work::Queue, _) => report.attempt = 0,
            (Work::Lie, _) => {
                fail(&mut report, Reason::NotFound, now);
                report.asked = after(now, LATER);
            }
            (Work::Succeed, Ask::Look) => report.phase = Phase::Succeeded,
            (_, Ask::Look) => fail(&mut report, Reason::Unresolved, now),
            (Work::Succeed, Ask::Resolve) if content && now.as_second() % 2 == 0 => report.phase = Phase::Succeeded,
            (Work::Succeed, Ask::Resolve) => {
                (report.phase, report.pin) = (Phase::Resolved, Some(Pin::new(order.asked, digest(&order))));
            }
            (Work::Succeed, Ask::Fetch(None)) if report.pin.is_none() => {
                report.pin = Some(Pin::new(order.asked, digest(&order)));
            }
            (Work::Succeed, Ask::Fetch(_)) => (report.phase, report.bytes.done) = (Phase::Succeeded, 100),
            (Work::Unable, Ask::Resolve) => fail(&mut report, Reason::Unsupported, now),
            (Work::Fail | Work::Unable, _) if report.attempt <= order.terms.pull.retries => {
                report.attempt += 1;
                report.reason = Some(Reason::NotFound);
            }
            (Work::Fail | Work::Unable, _) => fail(&mut report, Reason::NotFound, now),
        }
        if report.ended() {
            report.finished = Some(now);
        }
        // Every node has some image of this name; who wants another one is told that.
        report.present = !content && order.image == IMAGES[0] && report.phase != Phase::Succeeded;
        let text = format!("{} {:?}: {:?}, attempt {}", order.image, order.ask, report.phase, report.attempt);
        self.reports.insert(key, report);
        Some(text)
    }

    /// Writes what it has to say.
    pub(super) fn say(&self, paper: &mut Paper, node: &str, times: usize, now: Timestamp) {
        let Some(object) = paper.get(&id(node)) else { return };
        let said = wire::read::<NodeObject>(object).reports;
        let news = self.reports.iter().filter(|(key, report)| said.get(key) != Some(*report));
        let mut reports: BTreeMap<Key, Option<Report>> =
            news.map(|(key, report)| (*key, Some(report.clone()))).collect();
        reports.extend(said.keys().filter(|key| !self.reports.contains_key(key)).map(|key| (*key, None)));
        let write = from_core::saying(node, &Saying { reports, agent: None, disk: None });
        for _ in 0..times {
            paper.perform(&write, now).unwrap();
        }
    }
}

fn begun(order: &Order, now: Timestamp) -> Report {
    Report {
        asked: order.asked,
        jobs: order.jobs.clone(),
        phase: Phase::Pulling,
        digest: None,
        pin: None,
        present: false,
        bytes: Bytes { total: 100, ..Bytes::default() },
        from: None,
        bad: Vec::new(),
        attempt: 1,
        reason: None,
        message: String::new(),
        stalled: None,
        started: now,
        finished: None,
        updated: now,
    }
}

fn fail(report: &mut Report, reason: Reason, now: Timestamp) {
    (report.phase, report.reason, report.finished) = (Phase::Failed, Some(reason), Some(now));
}

/// What the registry says; it never changes its mind.
fn digest(order: &Order) -> String {
    format!("sha256:{:0>64}", Key::of(&order.image).to_string())
}
