//! The one order that unit tests of this crate are about.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::{JobId, Order, Policy};

/// This second.
pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// An order without a digest, tried at most three times, asked at this second.
pub(crate) fn order(asked: i64) -> Order {
    Order {
        image: "r/i:1".into(),
        pin: None,
        policy: Policy::IfNotPresent,
        timeout: Duration::from_secs(600),
        retries: 2,
        bandwidth: None,
        sandbox: Default::default(),
        progress: Duration::from_secs(1),
        jobs: BTreeSet::from([JobId::new("Preheat", "default", "j")]),
        asked: at(asked),
        secrets: Vec::new(),
        needs: BTreeSet::new(),
    }
}
