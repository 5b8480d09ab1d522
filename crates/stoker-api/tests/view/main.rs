//! What the View promises whatever happens to the objects that it is told of, and in whatever order: the same jobs, the same
//! watches and the same writes follow from the same rows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cover;
mod laws;
mod lists;
mod node_images;
mod objects;
mod policies;
mod rollouts;
mod telling;
