//! The embedded API through `kube::Client`, behaviour by behaviour. Everything runs in this process, without a socket.
// Functions that tests share fail as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod discovery;
mod errors;
mod lifecycle;
mod lists;
mod noise;
mod schemas;
mod setup;
mod tables;
mod watches;
mod writes;
