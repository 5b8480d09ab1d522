//! The controller's shell: watches become events of core's World, its plans become writes.
//!
//! Decides nothing. Only the watches and the writer hold a client; time comes from the clock that is handed in.

mod apart;
mod due;
mod facts;
mod hearing;
#[cfg(test)]
mod histories;
pub mod home;
mod leading;
mod lease;
mod lifecycle;
mod metrics;
mod moment;
mod owed;
mod peer_keys;
mod peers;
mod problem;
mod reading;
mod run;
mod secrets;
mod sight;
pub mod snapshot;
mod watch;
mod watches;
mod writer;

pub use lifecycle::watch_over_nodes;
pub use metrics::Metrics;
pub use run::{Error, Settings, run};
pub use writer::Limits;
