//! The one clock of this process.

use std::sync::Arc;

use jiff::Timestamp;
use stoker_core::Clock;

/// The system's time in whole milliseconds: what is written to objects is read back the same.
pub(crate) fn system() -> Clock {
    Arc::new(|| {
        let now = Timestamp::now();
        Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
    })
}
