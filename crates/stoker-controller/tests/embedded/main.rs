//! The controller against the embedded API, in process and with a paused clock.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bed;
mod deleted;
mod foreign;
mod late;
mod leading;
mod node_images;
mod ofen;
mod peers;
mod policies;
mod prompt;
mod refused;
mod rolled_back;
mod rollouts;
mod sealed;
mod term;
mod turns;
mod unreadable;
mod unseen;
mod watching;
