//! Where nodes serve images to each other. A node's agent says its port and its key, and the Node says its address: an agent that was
//! taken over cannot send others to another machine. Either may come first, change or go. Two kinds of objects come in, facts for the
//! World go out.
//!
//! Every new place is written into all orders that name the node. An agent may say another port as often as it likes: the first new place is followed
//! at once, the next one after a rest that doubles. Until then others know the old place, and where nobody answers there they read from another node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use stoker_api::native::{NodeObject, PeerInfo};
use stoker_core::Event;
use stoker_core::model::{NodeName, PeerFacts, PeerKey};
use stoker_transfer::peer::PeerId;
use tokio::time::Instant;

/// How long a node's place stays after it has changed for the first time. Each further change doubles this.
const REST: Duration = Duration::from_secs(10);
/// It stays no longer than this.
const LONGEST_REST: Duration = Duration::from_secs(600);
/// A place that has not changed for so long may change at once again.
const QUIET: Duration = Duration::from_secs(3600);

/// The fastest rate that is believed, in bytes a second: a terabit. No link is faster.
const FASTEST: u64 = 1 << 37;

/// What is known of all nodes.
#[derive(Default)]
pub(crate) struct PeerBook {
    addresses: BTreeMap<String, IpAddr>,
    said: BTreeMap<String, SaidPeer>,
    followed: BTreeMap<String, FollowedPlace>,
    /// Nodes whose followed place is not the one that is said.
    late: BTreeSet<String>,
}

/// Where an agent serves, and with which key.
type Place = (IpAddr, u16, PeerId);

/// The place of a node that others are told.
struct FollowedPlace {
    place: Place,
    /// When it last changed, and for how long it stays from then.
    changed: Option<(Instant, Duration)>,
}

impl FollowedPlace {
    /// Follows a new place, if it is time. Returns whether the new place is the one that is followed.
    fn follow(&mut self, said: Place, now: Instant) -> bool {
        if self.place == said {
            return true;
        }
        let rest = match self.changed {
            Some((at, rest)) if now < at + rest => return false,
            Some((at, rest)) if now < at + QUIET => (rest * 2).min(LONGEST_REST),
            _ => REST,
        };
        (self.place, self.changed) = (said, Some((now, rest)));
        true
    }
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
    pub(crate) fn node(&mut self, name: &str, address: Option<IpAddr>, now: Instant) -> Event {
        match address {
            Some(address) => self.addresses.insert(name.into(), address),
            None => self.addresses.remove(name),
        };
        self.facts(name, now)
    }

    /// What the agent of a node says; none where it serves nobody, or its object is gone.
    pub(crate) fn agent(&mut self, name: &str, said: Option<SaidPeer>, now: Instant) -> Event {
        match said {
            Some(said) => self.said.insert(name.into(), said),
            None => self.said.remove(name),
        };
        self.facts(name, now)
    }

    /// When a node's place is another one if nothing happens until then.
    pub(crate) fn wake(&self) -> Option<Instant> {
        let followed = self.late.iter().filter_map(|name| self.followed.get(name));
        followed.filter_map(|followed| followed.changed).map(|(at, rest)| at + rest).min()
    }

    /// The facts of the nodes whose new place may be followed by now.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Event> {
        if self.wake().is_none_or(|wake| now < wake) {
            return Vec::new();
        }
        let late: Vec<String> = self.late.iter().cloned().collect();
        late.iter().map(|name| self.facts(name, now)).collect()
    }

    fn facts(&mut self, name: &str, now: Instant) -> Event {
        self.late.remove(name);
        if !self.addresses.contains_key(name) && !self.said.contains_key(name) {
            self.followed.remove(name);
        }
        let said = self.addresses.get(name).zip(self.said.get(name));
        let facts = said.map(|(address, said)| {
            let place = (*address, said.port, said.key);
            let known = || FollowedPlace { place, changed: None };
            let followed = self.followed.entry(name.into()).or_insert_with(known);
            if !followed.follow(place, now) {
                self.late.insert(name.into());
            }
            let (address, port, key) = followed.place;
            let key = PeerKey::new(&key.to_string());
            PeerFacts { address, port, key, keeps: said.keeps, rate: said.rate, sent: said.sent }
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
        let (mut book, key, now) = (PeerBook::default(), PeerIdentity::generate().unwrap().id(), Instant::now());
        let own: IpAddr = "10.0.0.1".parse().unwrap();
        let lies =
            json!({ "port": 7447, "key": key.to_string(), "address": "10.6.6.6", "ip": "10.6.6.6", "node": "n2" });
        let lies = object(json!({}), lies);
        assert_eq!(facts(book.agent("n1", said(&lies), now)), None, "its Node is not known yet");
        let known = facts(book.node("n1", Some(own), now)).unwrap();
        assert_eq!((known.address, known.port, known.key.as_str()), (own, 7447, key.to_string().as_str()));
        let moved: IpAddr = "10.0.0.9".parse().unwrap();
        assert_eq!(facts(book.node("n1", Some(moved), now)).unwrap().address, moved);
        assert_eq!(facts(book.node("n1", None, now)), None, "its Node is gone");
        book.node("n1", Some(own), now);
        assert_eq!(facts(book.agent("n1", None, now)), None, "its agent serves no more");
        assert!(facts(book.agent("n1", said(&lies), now)).is_some(), "the address is still known");
        assert!(book.addresses.len() == 1 && book.said.len() == 1);
    }

    /// Each new place is written into all orders that name the node.
    #[test]
    fn a_place_that_changes_all_the_time_is_followed_ever_more_seldom() {
        let (mut book, start) = (PeerBook::default(), Instant::now());
        let keys = [0, 1].map(|_| PeerIdentity::generate().unwrap().id().to_string());
        let own: IpAddr = "10.0.0.1".parse().unwrap();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let place = |event: Event| facts(event).map(|facts| (facts.address, facts.port, facts.key));
        let says = |book: &mut PeerBook, port: u16, key: &str, now| {
            let object = object(json!({}), json!({ "port": port, "key": key }));
            place(book.agent("n1", said(&object), now))
        };
        book.node("n1", Some(own), start);
        let first = says(&mut book, 7000, &keys[0], start);
        let second = says(&mut book, 7001, &keys[0], start);
        assert_eq!(second.as_ref().unwrap().1, 7001, "the first change is followed at once");
        // Also where it changes the key, or says nothing in between.
        let (mut last, mut changes) = (second, Vec::new());
        for second in 1..3_600_u16 {
            let now = at(second.into());
            if second % 3 == 0 {
                book.agent("n1", None, now);
            }
            let told = says(&mut book, 7001 + second, &keys[usize::from(second % 2)], now);
            if told != last {
                changes.push(second);
                last = told;
            }
        }
        assert_eq!(changes, [10, 30, 70, 150, 310, 630, 1230, 1830, 2430, 3030]);
        assert_ne!(first, last);
        // It stays where it is from now on: that is told when the rest is over.
        let wake = book.wake().unwrap();
        assert_eq!((wake, book.due(at(3_600)).len()), (at(3_630), 0));
        let due: Vec<_> = book.due(wake).into_iter().map(place).collect();
        assert_eq!(due.first().cloned().flatten().unwrap().1, 7001 + 3_599);
        assert_eq!((due.len(), book.wake()), (1, None));
        // After an hour without a change it is followed at once.
        assert_eq!(says(&mut book, 7000, &keys[0], wake + QUIET).unwrap().1, 7000);
        book.agent("n1", None, wake);
        book.node("n1", None, wake);
        assert!(book.followed.is_empty() && book.late.is_empty());
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
