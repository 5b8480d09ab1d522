//! Development only: faults, clocks and scenarios for the tests of all crates, and the real programs that some of them need.

pub mod account;
mod certificates;
pub mod containerd;
mod daemon;
pub mod docker_registry;
pub mod fleet;
pub mod image;
pub mod memory;
pub mod paper;
mod plot;
pub mod processor;
pub mod proxy;
pub mod registry;
pub mod scripted;
pub mod small_disk;
pub mod webhook;
