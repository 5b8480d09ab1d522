//! The one order that unit tests of this crate are about.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::{Ask, JobId, Order, Policy, Pull, Terms};

/// This second.
pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// An order without a digest, tried at most three times, asked at this second.
pub(crate) fn order(asked: i64) -> Order {
    let pull = Pull {
        policy: Policy::IfNotPresent,
        timeout: Duration::from_secs(600),
        retries: 2,
        bandwidth: None,
        sandbox: Default::default(),
    };
    let terms = Terms { pull, logins: Vec::new(), progress: Duration::from_secs(1) };
    let jobs = BTreeSet::from([JobId::new(("stoker.dev", "Preheat"), "default", "j")]);
    Order::new("r/i:1", jobs, at(asked), Ask::Fetch(None), terms)
}
