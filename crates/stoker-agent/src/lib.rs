//! The agent's shell: orders of one node become pulls into its image store, outcomes become reports.
//!
//! What to do next is core's `step`; how bytes come is `stoker-transfer`; where they go is `stoker-runtime`. This
//! crate watches one object, performs, and writes that object's status with one write in flight.

#[doc(hidden)]
pub mod fuzzing;
mod guard;
mod key;
mod ledger;
mod leftovers;
mod logins;
mod messages;
mod meter;
mod metrics;
mod node;
mod pull;
mod pulls;
mod refused;
mod register;
mod report;
mod run;
mod serving;
mod settings;
mod starts;
mod sweep;
#[cfg(test)]
mod testing;
mod truth;
mod watch;
mod ways;

pub use metrics::Metrics;
pub use node::{LEASE_DURATION, LEASE_NAMESPACE};
pub use run::{Error, run};
pub use settings::{Limits, PeerSettings, Settings};
