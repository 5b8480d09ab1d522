//! What only the embedded API has, through `kube::Client`: its bounds, its history, its stance on noise. Everything runs in this
//! process, without a socket. What it has in common with a real server is in `tests/conformance`.
// Functions that tests share fail as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bounds;
mod noise;
mod setup;
mod watches;
