//! The one order that unit tests of this crate are about.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use stoker_core::model::{Ask, Order, Policy, Pull, Terms};

/// This second.
pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// An order without a digest, for no job, asked at the beginning of time.
pub(crate) fn order() -> Order {
    let pull = Pull {
        policy: Policy::IfNotPresent,
        timeout: Duration::from_secs(600),
        retries: 2,
        bandwidth: None,
        priority: 0,
        sandbox: Default::default(),
        source: Default::default(),
        upstream_copies: None,
    };
    let terms = Terms { pull, logins: Vec::new(), progress: Duration::from_secs(20) };
    Order::new("r/i:1", BTreeSet::new(), at(0), Ask::Fetch(None), terms)
}
