//! Development only: faults, clocks and scenarios for the tests of all crates.

pub mod registry;
