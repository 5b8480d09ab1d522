//! The binary as a user runs it: real processes, real sockets, a real registry.

mod bed;
mod demo;
mod jobs;
mod kruise;
mod kubectl;
mod pull;
