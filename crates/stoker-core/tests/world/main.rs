//! What the World promises: tables that read as sentences (`scene` builds them), and laws that hold in every
//! history (`sim` makes random ones).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what went wrong by panicking")]

mod allowed;
mod build;
mod choosing;
mod crowds;
mod digest;
mod ending;
mod foreign;
mod frozen;
mod history;
mod laws;
mod pacing;
mod presence;
mod relay;
mod room;
mod sandbox;
mod scene;
mod secrets;
mod sharing;
mod sim;
mod standing;
mod telling;
mod tolerance;
mod unseen;
mod witness;
