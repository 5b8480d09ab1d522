//! The binary as a user runs it: real processes, real sockets, a real registry.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bed;
mod credentials;
mod demo;
mod install;
mod jobs;
mod kruise;
mod kubectl;
mod lasting;
mod metrics;
mod mistakes;
mod pages;
mod pull;
mod rotated;
