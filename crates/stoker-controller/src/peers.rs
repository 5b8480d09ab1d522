//! Where nodes serve images to each other. A node's agent says its port and its key, and the Node says its address: an agent that was
//! taken over cannot send others to another machine. Either may come first, change or go. Two kinds of objects come in, facts for the
//! World go out.

use std::collections::BTreeMap;
use std::net::IpAddr;

use stoker_api::native::{NodeObject, PeerInfo};
use stoker_core::Event;
use stoker_core::model::{NodeName, PeerFacts, PeerKey};
use stoker_transfer::peer::PeerId;

/// The fastest rate that is believed, in bytes a second: a terabit. No link is faster.
const FASTEST: u64 = 1 << 37;

/// What is known of all nodes.
#[derive(Default)]
pub(crate) struct PeerBook {
    addresses: BTreeMap<String, IpAddr>,
    said: BTreeMap<String, SaidPeer>,
}

/// What an agent says, as far as it makes sense.
pub(crate) struct SaidPeer {
    port: u16,
    key: PeerId,
    keeps: bool,
    rate: Option<u64>,
    sent: Option<u64>,
}

impl PeerBook {
    /// The address of a Node; none where it has none, or is gone.
    pub(crate) fn node(&mut self, name: &str, address: Option<IpAddr>) -> Event {
        match address {
            Some(address) => self.addresses.insert(name.into(), address),
            None => self.addresses.remove(name),
        };
        self.facts(name)
    }

    /// What the agent of a node says; none where it serves nobody, or its object is gone.
    pub(crate) fn agent(&mut self, name: &str, said: Option<SaidPeer>) -> Event {
        match said {
            Some(said) => self.said.insert(name.into(), said),
            None => self.said.remove(name),
        };
        self.facts(name)
    }

    fn facts(&self, name: &str) -> Event {
        let facts = self.addresses.get(name).zip(self.said.get(name)).map(|(address, said)| PeerFacts {
            address: *address,
            port: said.port,
            key: PeerKey::new(&said.key.to_string()),
            keeps: said.keeps,
            rate: said.rate,
            sent: said.sent,
        });
        Event::Peer(NodeName::from(name), facts)
    }
}

/// The key by which a node proves to others who it is; none where its agent neither serves others nor reads from them.
pub(crate) fn reader(object: &NodeObject) -> Option<PeerId> {
    object.peer.as_ref()?.key.parse().ok()
}

/// What the agent of a node says about serving others.
pub(crate) fn said(object: &NodeObject) -> Option<SaidPeer> {
    let key = reader(object)?;
    let PeerInfo { port, keeps, rate, sent, .. } = *object.peer.as_ref()?;
    // The limit of its owner is known before it has sent anything.
    let upload = object.upload.as_ref().ok().copied().flatten();
    let sent = [sent, upload].into_iter().flatten().min();
    Some(SaidPeer { port, key, keeps, rate: rate.and_then(coarse), sent: sent.and_then(coarse) })
}

/// The power of two below a rate: what differs by little is no news, and whoever says another number every second changes no plan.
fn coarse(rate: u64) -> Option<u64> {
    Some(1 << rate.min(FASTEST).checked_ilog2()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use stoker_transfer::peer::PeerIdentity;

    fn object(spec: Value, peer: Value) -> NodeObject {
        let status = json!({ "agent": { "version": "1", "peer": peer } });
        serde_json::from_value(json!({ "metadata": { "name": "n1" }, "spec": spec, "status": status })).unwrap()
    }

    fn facts(event: Event) -> Option<PeerFacts> {
        match event {
            Event::Peer(name, facts) if &*name == "n1" => facts,
            other => panic!("{other:?}"),
        }
    }

    /// The schema drops a field of that name; this holds also for an API server that does not.
    #[test]
    fn the_address_of_a_peer_is_that_of_its_node_whatever_its_agent_says() {
        let (mut book, key) = (PeerBook::default(), PeerIdentity::generate().unwrap().id());
        let own: IpAddr = "10.0.0.1".parse().unwrap();
        let lies =
            json!({ "port": 7447, "key": key.to_string(), "address": "10.6.6.6", "ip": "10.6.6.6", "node": "n2" });
        let lies = object(json!({}), lies);
        assert_eq!(facts(book.agent("n1", said(&lies))), None, "its Node is not known yet");
        let known = facts(book.node("n1", Some(own))).unwrap();
        assert_eq!((known.address, known.port, known.key.as_str()), (own, 7447, key.to_string().as_str()));
        let moved: IpAddr = "10.0.0.9".parse().unwrap();
        assert_eq!(facts(book.node("n1", Some(moved))).unwrap().address, moved);
        assert_eq!(facts(book.node("n1", None)), None, "its Node is gone");
        book.node("n1", Some(own));
        assert_eq!(facts(book.agent("n1", None)), None, "its agent serves no more");
        assert!(facts(book.agent("n1", said(&lies))).is_some(), "the address is still known");
        assert!(book.addresses.len() == 1 && book.said.len() == 1);
    }

    #[test]
    fn what_makes_no_sense_is_no_peer() {
        let key = PeerIdentity::generate().unwrap().id().to_string();
        let is_peer = |peer: Value| said(&object(json!({}), peer)).is_some();
        assert!(is_peer(json!({ "port": 1, "key": key })));
        for bad in [
            json!(null),
            json!("yes"),
            json!({ "port": 0, "key": key }),
            json!({ "port": 70000, "key": key }),
            json!({ "port": 1, "key": "abc" }),
            json!({ "port": 1, "key": &key[..40] }),
            json!({ "port": 1 }),
        ] {
            assert!(!is_peer(bad.clone()), "{bad}");
        }
    }

    #[test]
    fn rates_are_powers_of_two_below_the_limit_of_the_owner() {
        let key = PeerIdentity::generate().unwrap().id().to_string();
        let rates = |upload: Value, rate: Value, sent: Value| {
            let peer = json!({ "port": 1, "key": key, "rate": rate, "sent": sent });
            let said = said(&object(json!({ "upload": upload }), peer)).unwrap();
            (said.rate, said.sent)
        };
        assert_eq!(rates(json!(null), json!(null), json!(null)), (None, None));
        assert_eq!(rates(json!(null), json!(1000), json!(0)), (Some(512), None));
        assert_eq!(rates(json!("3Mi"), json!(1024), json!(null)), (Some(1024), Some(2 << 20)));
        assert_eq!(rates(json!("1Mi"), json!(null), json!(64 << 20)), (None, Some(1 << 20)));
        assert_eq!(rates(json!(null), json!(u64::MAX), json!(1_u64 << 62)), (Some(FASTEST), Some(FASTEST)));
        assert_eq!(rates(json!("much"), json!(null), json!(4096)), (None, Some(4096)));
    }
}
