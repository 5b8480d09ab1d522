//! A controller without an API server: two nodes that can serve each other, and a job for an image of a known digest.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use kube::ResourceExt as _;
use serde_json::{Value, json};
use stoker_api::native::{self, WireOrder};
use stoker_api::view::{Query, SeenRow};
use stoker_api::{PlainNode, Write};
use stoker_core::World;
use stoker_transfer::peer::{PeerIdentity, Ticket, TicketError, TicketKeys};
use tokio::sync::{Notify, mpsc, watch};

use super::*;
use crate::metrics::{LeaderMetrics, Metrics};
use crate::moment::{Moments, Source};
use crate::owed::Owed;
use crate::run::Shell;
use crate::secrets::Secrets;
use crate::watch::Fact;
use crate::watches::Input;
use crate::writer::{Answer, Done};

const HOUR: i64 = 60 * 60;
const BEGIN: i64 = 1_800_000_000;

struct Bed {
    shell: Shell,
    clock: Arc<AtomicI64>,
    /// The NodePreheats as an API server has them.
    objects: BTreeMap<String, Value>,
    version: u64,
    moments: Moments,
    /// What the leader signs with, for whoever checks.
    keys: TicketKeys,
    own: SignerId,
}

fn digest() -> String {
    format!("sha256:{}", "d".repeat(64))
}

impl Bed {
    fn new(peers: [PeerId; 2]) -> Self {
        let clock = Arc::new(AtomicI64::new(BEGIN));
        let (shell, keys, own) = leader(&clock);
        let (objects, moments) = (BTreeMap::new(), Moments::default());
        let mut bed = Self { shell, clock, objects, version: 0, moments, keys, own };
        for (name, key) in ["n1", "n2"].into_iter().zip(peers) {
            let agent = json!({ "version": "1", "features": ["look", "resolve", "sealed", "peers"] });
            let object = json!({ "metadata": { "name": name, "uid": name }, "spec": {}, "status": { "agent": agent } });
            bed.objects.insert(name.into(), object);
            bed.says_key(name, key);
        }
        bed.hear_all();
        bed
    }

    fn now(&self) -> i64 {
        self.clock.load(Ordering::Relaxed)
    }

    fn pass(&self, hours: i64) {
        self.clock.fetch_add(hours * HOUR, Ordering::Relaxed);
    }

    /// Everything is listed.
    fn hear_all(&mut self) {
        for (name, address) in [("n1", "10.0.0.1"), ("n2", "10.0.0.2")] {
            let node: PlainNode = serde_json::from_value(json!({
                "metadata": { "name": name },
                "status": {
                    "conditions": [{ "type": "Ready", "status": "True" }],
                    "addresses": [{ "type": "InternalIP", "address": address }],
                },
            }))
            .unwrap();
            self.shell.hear(Input::Node(Fact::There(node.into(), Source::Watch)));
        }
        self.shell.hear(Input::Node(Fact::Listed));
        for name in ["n1", "n2"] {
            self.hear_node(name);
        }
        self.shell.hear(Input::NodePreheat(Fact::Listed));
        let created = Timestamp::from_second(BEGIN).unwrap().to_string();
        let job = json!({
            "metadata": { "name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "1", "creationTimestamp": created },
            "spec": { "images": [{ "image": format!("reg.test/web@{}", digest()) }] },
        });
        let jobs = Query::all(&native::PREHEATS.kind);
        let job = Fact::There(SeenRow::of(&jobs, serde_json::from_value(job).unwrap()), Source::Watch);
        self.shell.hear(Input::Row(jobs, job));
        // What is known of kinds may want more to be listed.
        while !self.shell.hearing.view.is_known() {
            let wanted = self.shell.hearing.view.wanted();
            wanted.into_iter().for_each(|query| self.shell.hear(Input::Row(query, Fact::Listed)));
            self.shell.hearing.settle();
        }
    }

    fn read(&self, name: &str) -> Box<NodeObject> {
        Box::new(serde_json::from_value(self.objects[name].clone()).unwrap())
    }

    fn hear_node(&mut self, name: &str) {
        let object = self.read(name);
        self.shell.hear(Input::NodePreheat(Fact::There(object, Source::Watch)));
    }

    fn patch(&mut self, name: &str, patch: &Value) {
        let object = self.objects.get_mut(name).unwrap();
        json_patch::merge(object, patch);
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
    }

    fn says_key(&mut self, name: &str, key: PeerId) {
        let peer = json!({ "port": 7447, "key": key.to_string(), "keeps": true });
        self.patch(name, &json!({ "status": { "agent": { "peer": peer } } }));
    }

    /// The key is published, with those of others.
    fn publish(&mut self, others: &[SignerId]) {
        let until = after(Timestamp::from_second(self.now()).unwrap(), TICKET_LIFE * 2);
        let signers = others.iter().copied().chain([self.own]).collect();
        self.shell.hear(Input::PeerKeys(Some(PublishedKeys { until, signers })));
    }

    /// Plans, and performs all orders. Returns the nodes that were written to.
    fn lead(&mut self) -> Vec<String> {
        self.shell.lead().expect("enough is known");
        let mut written = Vec::new();
        while self.shell.leading.owes() {
            let Some((number, write)) = self.shell.leading.next_owed(&mut self.shell.hearing) else { continue };
            let Write::Patch(target, patch) = write else { panic!("{write:?}") };
            self.patch(&target.name, &patch);
            written.push(target.name.clone());
            let answer = Answer::Node(self.read(&target.name));
            self.shell.acknowledge(Done { target, number, answer, at: self.moments.now() });
        }
        written
    }

    fn order(&self, name: &str) -> WireOrder {
        let orders = self.objects[name]["spec"]["orders"].as_object().unwrap();
        serde_json::from_value(orders.values().next().unwrap().clone()).unwrap()
    }

    /// The node that reads, and the one that it reads from.
    fn reader(&self) -> (&'static str, &'static str) {
        match self.order("n1").upstream {
            Some(false) => ("n1", "n2"),
            _ => ("n2", "n1"),
        }
    }
}

/// A controller that knows nothing, and who checks its tickets.
fn leader(clock: &Arc<AtomicI64>) -> (Shell, TicketKeys, SignerId) {
    let time = clock.clone();
    let clock: stoker_core::Clock = Arc::new(move || Timestamp::from_second(time.load(Ordering::Relaxed)).unwrap());
    let secrets = Secrets::new(watch::Sender::new(Arc::default()), mpsc::unbounded_channel().0);
    let hearing = Hearing::new(clock, World::new(), LeaderMetrics::new(&Metrics::new()), 0);
    let mut leading = Leading::new(secrets, Arc::new(Notify::new()), Owed::default(), mpsc::unbounded_channel().0);
    let signer = TicketSigner::generate().unwrap();
    let public = signer.public();
    leading.sign_with(signer);
    (Shell { hearing, leading }, [public].into_iter().collect(), public.id())
}

fn keys() -> [PeerId; 2] {
    [(); 2].map(|()| PeerIdentity::generate().unwrap().id())
}

#[tokio::test(start_paused = true)]
async fn a_ticket_is_for_the_digest_of_the_order_and_for_its_node_alone() {
    let peers = keys();
    let mut bed = Bed::new(peers);
    assert!(bed.shell.lead().is_none(), "whether tickets can be made is not known yet");
    bed.publish(&[]);
    let mut written = bed.lead();
    written.sort_unstable();
    assert_eq!(written, ["n1", "n2"]);
    let (reader, source) = bed.reader();
    let [own, other] = if reader == "n1" { peers } else { [peers[1], peers[0]] };
    assert_eq!((bed.order(source).upstream, bed.order(source).ticket), (None, None), "it goes upstream");
    let order = bed.order(reader);
    assert_eq!((order.peers[0].node.as_str(), order.peers[0].key.as_str()), (source, other.to_string().as_str()));
    assert_eq!(order.peers[0].address, if source == "n1" { "10.0.0.1:7447" } else { "10.0.0.2:7447" });
    let (ticket, now) = (order.ticket.unwrap(), u64::try_from(bed.now()).unwrap());
    let expires = u32::try_from(bed.now() + 24 * HOUR).unwrap();
    let root = ticket_subject(&order.image, &digest().parse().unwrap());
    let good = Ticket { root, expires };
    assert_eq!(bed.keys.check(&ticket, own, now), Ok(good));
    assert_eq!(bed.keys.check(&ticket, other, now), Err(TicketError::OtherReader));
    assert_eq!(bed.keys.check(&ticket, own, u64::from(expires)), Err(TicketError::Expired));
    assert_eq!(bed.lead(), Vec::<String>::new(), "nothing is written again");
}

#[tokio::test(start_paused = true)]
async fn where_no_key_is_published_every_node_goes_upstream() {
    let mut bed = Bed::new(keys());
    bed.shell.hear(Input::PeerKeys(None));
    assert_eq!(bed.lead().len(), 2, "nothing waits for the key");
    for name in ["n1", "n2"] {
        let order = bed.order(name);
        assert_eq!((order.upstream, order.peers.len(), order.ticket), (None, 0, None), "{name}");
    }
    assert!(!bed.shell.hearing.relays);
    bed.publish(&[]);
    assert!(bed.shell.hearing.relays);
}

#[tokio::test(start_paused = true)]
async fn a_node_with_another_key_has_its_tickets_made_anew() {
    let mut bed = Bed::new(keys());
    bed.publish(&[]);
    bed.lead();
    let (reader, _) = bed.reader();
    let (first, [second, third]) = (bed.order(reader).ticket, keys());
    bed.says_key(reader, second);
    bed.hear_node(reader);
    assert_eq!(bed.lead(), [reader]);
    let ticket = bed.order(reader).ticket;
    assert_ne!(ticket, first);
    assert!(bed.keys.check(&ticket.unwrap(), second, 0).is_ok());
    bed.says_key(reader, third);
    bed.hear_node(reader);
    assert_eq!(bed.lead(), Vec::<String>::new(), "a key that changes all the time is followed once in ten seconds");
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(bed.lead(), [reader]);
    assert!(bed.keys.check(&bed.order(reader).ticket.unwrap(), third, 0).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_ticket_is_renewed_when_three_quarters_of_its_life_are_over() {
    let mut bed = Bed::new(keys());
    bed.publish(&[]);
    bed.lead();
    let (reader, _) = bed.reader();
    let first = bed.order(reader).ticket.unwrap();
    bed.pass(17);
    bed.publish(&[]);
    assert_eq!(bed.lead(), Vec::<String>::new());
    bed.pass(1);
    bed.publish(&[]);
    assert_eq!(bed.lead(), [reader]);
    let expires = |ticket: &str| i64::from(TicketClaims::read(ticket).unwrap().expires);
    let second = bed.order(reader).ticket.unwrap();
    assert_eq!((expires(&first), expires(&second)), (BEGIN + 24 * HOUR, BEGIN + 42 * HOUR));
    bed.publish(&[]);
    assert_eq!(bed.lead(), Vec::<String>::new(), "once");
}

/// Also where the key was published for a shorter time than a ticket lives: a ticket never outlives what agents can check it by.
#[tokio::test(start_paused = true)]
async fn a_ticket_lives_no_longer_than_its_key_is_published() {
    let mut bed = Bed::new(keys());
    let until = Timestamp::from_second(BEGIN + 2 * HOUR).unwrap();
    let published = || Some(PublishedKeys { until, signers: BTreeSet::new() });
    bed.shell.hear(Input::PeerKeys(published().map(|keys| PublishedKeys { signers: [bed.own].into(), ..keys })));
    bed.lead();
    let (reader, _) = bed.reader();
    let ticket = TicketClaims::read(&bed.order(reader).ticket.unwrap()).unwrap();
    assert_eq!(i64::from(ticket.expires), BEGIN + 2 * HOUR);
    bed.pass(1);
    bed.shell.hear(Input::PeerKeys(None));
    assert_eq!(bed.lead(), Vec::<String>::new(), "a new one would be no better");
    assert!(bed.shell.hearing.relays);
    bed.pass(1);
    bed.shell.hear(Input::PeerKeys(None));
    assert!(!bed.shell.hearing.relays, "nobody could check a ticket any more");
}

#[tokio::test(start_paused = true)]
async fn tickets_of_earlier_leaders_stay_good_as_long_as_their_keys_are_published() {
    let mut bed = Bed::new(keys());
    bed.publish(&[]);
    bed.lead();
    let (reader, _) = bed.reader();
    let (earlier, first) = (bed.own, bed.order(reader).ticket);
    (bed.shell, bed.keys, bed.own) = leader(&bed.clock);
    bed.hear_all();
    bed.publish(&[earlier]);
    assert_eq!(bed.lead(), Vec::<String>::new());
    assert_eq!(bed.order(reader).ticket, first);
    bed.publish(&[]);
    assert_eq!(bed.lead(), [reader], "agents that have not seen that key cannot get it any more");
    assert_eq!(TicketClaims::read(&bed.order(reader).ticket.unwrap()).unwrap().signer, bed.own);
}

/// A controller that can make no tickets must not take away those that are there.
#[tokio::test(start_paused = true)]
async fn an_order_that_is_written_without_a_new_ticket_keeps_the_one_that_it_has() {
    let mut bed = Bed::new(keys());
    bed.publish(&[]);
    bed.lead();
    let (reader, _) = bed.reader();
    let first = bed.order(reader).ticket;
    (bed.shell, bed.keys, bed.own) = leader(&bed.clock);
    bed.hear_all();
    bed.shell.hear(Input::PeerKeys(None));
    bed.lead();
    let name = bed.read(reader).name_any();
    let orders = bed.shell.hearing.world.orders(&name).unwrap();
    bed.shell.leading.owed.add(&name, orders.into_keys());
    assert_eq!(bed.lead(), [reader]);
    assert!(first.is_some() && bed.order(reader).ticket == first);
}

/// An object that loses its tickets, as that of an API server with other rules might.
#[tokio::test(start_paused = true)]
async fn an_order_whose_ticket_is_lost_is_not_written_for_ever() {
    let mut bed = Bed::new(keys());
    bed.publish(&[]);
    bed.lead();
    let (reader, _) = bed.reader();
    let key = bed.read(reader).orders.into_keys().next().unwrap().to_string();
    let mut writes = 0;
    for _ in 0..100 {
        bed.patch(reader, &json!({ "spec": { "orders": { (key.clone()): { "ticket": null } } } }));
        bed.hear_node(reader);
        writes += bed.lead().len();
        tokio::time::advance(Duration::from_secs(6)).await;
    }
    assert_eq!(writes, 2, "in ten minutes");
}
