//! Bytes from node to node.
//!
//! An agent serves the blobs that it has or is just receiving to other agents, and reads from them what it was told to read there.
//! Both sides prove who they are by a key of their node, in TLS 1.3 without certificates: the API server says which key is
//! whose. A [ticket] that the controller signed says which image a node may read. This room decides neither who reads from
//! whom nor what is kept.

pub mod key;
pub mod mind;
pub mod read;
mod rules;
pub mod serve;
pub mod ticket;
pub mod ways;

pub use self::key::{NoPeerKey, NotAPeerId, PeerId, PeerIdentity};
pub use self::mind::OwnState;
pub use self::read::{Peer, PeerReader};
pub use self::serve::{Gate, OpenFrom, PeerLimits, PeerServer, PeerState, ServedPart, Shelf};
pub use self::ticket::{
    SignerId, Ticket, TicketClaims, TicketError, TicketKey, TicketKeys, TicketSigner, ticket_subject,
};
pub use self::ways::{PeerList, PeerWays};
