//! The one order and the one job that unit tests of this crate are about.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::{Ask, Completion, Empty, Image, Job, JobId, Order, Policy, Pull, Terms, Unreachable, Words};
use crate::select::Selector;

/// This second.
pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pull() -> Pull {
    Pull {
        policy: Policy::IfNotPresent,
        timeout: Duration::from_secs(600),
        retries: 2,
        bandwidth: None,
        priority: 0,
        sandbox: Default::default(),
        source: Default::default(),
        upstream_copies: None,
    }
}

/// A job for one image on the nodes of these names, or on all.
pub(crate) fn job(name: &str, names: Option<&[&str]>) -> Job {
    Job {
        id: JobId::new(("stoker.dev", "Preheat"), "default", name),
        uid: name.into(),
        words: &Words { resume: "resume it", secrets: "secrets", orders: "Orders" },
        generation: 1,
        created: at(0),
        images: vec![Image {
            written: "r/i:1".into(),
            reference: "r.test/i:1".parse().map_err(|_| String::new()),
            secrets: Vec::new(),
        }],
        names: names.map(|names| Job::named(names.iter().copied())),
        pick: None,
        selector: Selector::default(),
        foreign_nodes: false,
        parallelism: 10,
        percent: false,
        tolerance: None,
        unseen: None,
        pull: pull(),
        completion: Completion::Once { deadline: None, ttl: None },
        suspend: false,
        unreachable: Unreachable::Wait,
        bounds: Default::default(),
        empty: Empty::Waits,
        started: None,
        ended: None,
        unreadable: None,
    }
}

/// An order without a digest, tried at most three times, asked at this second.
pub(crate) fn order(asked: i64) -> Order {
    let terms = Terms { pull: pull(), logins: Vec::new(), progress: Duration::from_secs(1) };
    let jobs = BTreeSet::from([JobId::new(("stoker.dev", "Preheat"), "default", "j")]);
    Order::new("r/i:1", jobs, at(asked), Ask::Fetch(None), terms)
}
