//! The model and every decision of Stoker: pure, synchronous, total and deterministic.
//!
//! Facts come in as [`world::Event`]s, decisions go out as values: [`world::Plan`] for the controller,
//! [`step::Step`] for an agent. Time is always an argument. Nothing here does IO, reads a clock or the
//! environment, or depends on the order of a hash map.

pub mod human;
pub mod model;
pub mod pace;
pub mod policy;
pub mod reason;
pub mod reference;
pub mod rollup;
pub mod select;
pub mod spread;
pub mod step;
pub mod text;
pub mod world;

pub use model::{
    Ask, Bytes, Completion, Empty, Found, Image, Job, JobId, Key, KindName, LoginId, Node, Offer, Order, Origin,
    PeerFacts, PeerKey, PeerPast, PeerRef, Phase, Pin, Policy, Pull, PullSource, Report, Sandbox, SecretId, Terms,
    Unreachable, Words,
};
pub use policy::{Bounds, Ceilings, ImagePattern, Refusal, Restriction};
pub use reason::{Readable, Reason, WAITING_FOR_ROOM, Waiting};
pub use reference::Reference;
pub use rollup::{Outcome, SecretTrouble, Stage};
pub use world::{Event, Plan, World};

/// The one clock of a process, handed in to whoever needs the time. Core itself never calls it.
pub type Clock = std::sync::Arc<dyn Fn() -> jiff::Timestamp + Send + Sync>;
