//! The one order that unit tests of this crate are about.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use stoker_core::model::{Order, Policy};

/// This second.
pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// An order without a digest, for no job, asked at the beginning of time.
pub(crate) fn order() -> Order {
    Order {
        image: "r/i:1".into(),
        pin: None,
        policy: Policy::IfNotPresent,
        timeout: Duration::from_secs(600),
        retries: 2,
        bandwidth: None,
        sandbox: Default::default(),
        progress: Duration::from_secs(20),
        jobs: BTreeSet::new(),
        asked: at(0),
        secrets: Vec::new(),
        needs: BTreeSet::new(),
    }
}
