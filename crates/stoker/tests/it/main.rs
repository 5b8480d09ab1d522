//! The binary as a user runs it: real processes, real sockets, a real registry.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// Other suites use it too, and all of it.
#[allow(dead_code)]
mod bed;
mod damage;
mod delete;
mod demo;
mod escapes;
mod foreign;
mod install;
mod jobs;
mod kept;
mod kinds;
mod lasting;
mod lost_key;
mod memory;
mod metrics;
mod mistakes;
mod neighbours;
mod node_images;
mod pages;
mod pull;
mod quiet;
mod relay;
mod restored;
