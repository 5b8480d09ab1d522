//! Nodes that read from each other, on real sockets, with the bytes counted.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};
use oci_spec::image::Digest;
use stoker_testbed::registry::{Fault, On, noise};
use stoker_transfer::peer::{
    Gate, OwnState, Peer, PeerId, PeerIdentity, PeerLimits, PeerList, PeerReader, PeerServer, PeerState, PeerWays,
    ServedPart, Shelf, Ticket, TicketError, TicketKeys, TicketSigner,
};
use stoker_transfer::{BlobSource, Growing, Platform, Registry, Spool};
use tempfile::TempDir;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::{Bench, SIZE, open, settings};

mod droughts;
mod strangers;

const HOUR: u32 = 3600;

/// What a node of these tests serves: what it was told to.
#[derive(Default)]
struct TestShelf {
    image: Mutex<Option<Digest>>,
    blobs: Mutex<HashMap<Digest, Given>>,
    /// How often it was asked how far it is.
    looks: watch::Sender<u32>,
    /// How long it takes to answer that.
    late: Mutex<Duration>,
}

#[derive(Clone)]
enum Given {
    Growing(Growing),
    Bytes(Bytes),
    Expected,
    /// It says that it has all, and gives a byte a second.
    Drips,
    /// It says that it has nothing, and gives nothing.
    Waits,
}

/// A byte each second, of a blob of the test's size.
fn drips(from: u64) -> BoxStream<'static, std::io::Result<Bytes>> {
    let drip = |at: u64| async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        (at < SIZE as u64).then(|| (Ok(Bytes::from_static(b"x")), at + 1))
    };
    futures::stream::unfold(from, drip).boxed()
}

/// What a node says of itself that reads one blob.
fn own_state(read: &Growing, usual: Option<u64>) -> OwnState {
    let progress = read.progress();
    // The image is to be here within ten minutes.
    let least = SIZE as u64 / 600;
    OwnState { have: progress.have(), growing: true, readers: 0, usual, least, waits: progress.waits() }
}

impl Shelf for TestShelf {
    fn find<'a>(&'a self, root: &'a Digest, blob: &'a Digest) -> BoxFuture<'a, ServedPart> {
        let given = self.blobs.lock().unwrap().get(blob).cloned();
        let here = self.image.lock().unwrap().as_ref() == Some(root);
        async move {
            match given.filter(|_| here) {
                Some(Given::Growing(growing)) => ServedPart::Growing(growing),
                Some(Given::Bytes(bytes)) => ServedPart::Bytes(bytes),
                Some(Given::Expected) => ServedPart::Expected,
                Some(Given::Drips) => ServedPart::Stream(Box::new(drips), SIZE as u64),
                Some(Given::Waits) => ServedPart::Stream(Box::new(|_| futures::stream::pending().boxed()), SIZE as u64),
                None => ServedPart::Nothing,
            }
        }
        .boxed()
    }

    fn state<'a>(&'a self, root: &'a Digest) -> BoxFuture<'a, Option<PeerState>> {
        self.looks.send_modify(|looks| *looks += 1);
        let here = self.image.lock().unwrap().as_ref() == Some(root);
        let blobs = self.blobs.lock().unwrap();
        let have = blobs.values().map(|given| match given {
            Given::Growing(growing) => growing.progress().have(),
            Given::Bytes(bytes) => bytes.len() as u64,
            Given::Expected | Given::Waits => 0,
            Given::Drips => SIZE as u64,
        });
        let whole = blobs.values().all(|given| matches!(given, Given::Bytes(_) | Given::Drips));
        let state = here.then(|| PeerState { have: have.sum(), whole, readers: 0 });
        tokio::time::sleep(*self.late.lock().unwrap()).map(move |()| state).boxed()
    }
}

struct TestGate(TicketKeys);

impl Gate for TestGate {
    fn check<'a>(&'a self, ticket: &'a str, caller: PeerId) -> BoxFuture<'a, Result<Ticket, TicketError>> {
        std::future::ready(self.0.check(ticket, caller, 1)).boxed()
    }
}

struct Node {
    key: PeerIdentity,
    spool: Spool,
    shelf: Arc<TestShelf>,
    peer: Peer,
    stop: CancellationToken,
    _dir: TempDir,
}

impl Node {
    async fn start(name: &str, client: &Registry, keys: &TicketKeys, limits: PeerLimits) -> Self {
        let (key, dir, shelf) =
            (PeerIdentity::generate().unwrap(), TempDir::new().unwrap(), Arc::<TestShelf>::default());
        let gate = Arc::new(TestGate(keys.clone()));
        let bound = PeerServer::bind(([127, 0, 0, 1], 0).into(), &key, shelf.clone(), gate, limits);
        let server = bound.await.unwrap();
        let peer = Peer { node: name.into(), addr: server.addr(), id: key.id(), far: false };
        let stop = CancellationToken::new();
        tokio::spawn(server.run(stop.clone()));
        let spool = open(dir.path(), client);
        Self { key, spool, shelf, peer, stop, _dir: dir }
    }

    fn serves(&self, root: &Digest, blob: &str, given: Given) {
        *self.shelf.image.lock().unwrap() = Some(root.clone());
        self.shelf.blobs.lock().unwrap().insert(blob.parse().unwrap(), given);
    }

    /// No connection is served any more.
    fn dies(&self) {
        self.stop.cancel();
    }
}

/// A registry with an image, whoever signs tickets, and nodes.
struct Fleet {
    bench: Bench,
    signer: TicketSigner,
    root: Digest,
}

impl Fleet {
    async fn new() -> Self {
        let bench = Bench::new().await;
        let root = bench.pushed.manifest.parse().unwrap();
        Self { bench, signer: TicketSigner::generate().unwrap(), root }
    }

    async fn node(&self, name: &str) -> Node {
        self.limited_node(name, PeerLimits::default()).await
    }

    async fn limited_node(&self, name: &str, limits: PeerLimits) -> Node {
        Node::start(name, &self.bench.client, &[self.signer.public()].into_iter().collect(), limits).await
    }

    /// What a node reads from these.
    fn ways(&self, reader: &Node, peers: &[&Node]) -> PeerWays {
        PeerWays::new(PeerReader::new(reader.key.clone()), self.list(reader, peers))
    }

    fn list(&self, reader: &Node, peers: &[&Node]) -> PeerList {
        let ticket = self.signer.sign(&self.root, reader.key.id(), HOUR).unwrap();
        PeerList { upstream: false, ticket: ticket.into(), peers: peers.iter().map(|node| node.peer.clone()).collect() }
    }

    /// Fetches the layer as the node's own, and serves it.
    fn reads(&self, node: &Node, ways: Option<&PeerWays>) -> Growing {
        let source = BlobSource::new(self.bench.image(), None);
        let source = match ways {
            Some(ways) => source.by(ways.clone()),
            None => source,
        };
        let growing = node.spool.blob(source, self.bench.descriptor());
        node.serves(&self.root, &self.bench.pushed.layers[0], Given::Growing(growing.clone()));
        growing
    }

    async fn has_it(&self, growing: &Growing) {
        let file = growing.complete().await.unwrap();
        assert!(std::fs::read(file).unwrap() == self.bench.layer, "other bytes");
    }
}

/// Waits until a fetch has this much.
async fn has(growing: &Growing, bytes: u64) {
    let progress = growing.progress();
    while progress.have() < bytes {
        let seen = progress.have();
        tokio::time::timeout(Duration::from_secs(30), progress.changed(seen)).await.unwrap();
        assert!(progress.have() != seen || progress.have() >= bytes, "it ended at {seen}");
    }
}

const HALF: u64 = SIZE as u64 / 2;

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_nodes_takes_one_copy_from_the_registry() {
    let fleet = Fleet::new().await;
    let [a, b, c] = [fleet.node("a").await, fleet.node("b").await, fleet.node("c").await];
    let (to_a, to_b) = (fleet.ways(&b, &[&a]), fleet.ways(&c, &[&b]));
    let all = [fleet.reads(&a, None), fleet.reads(&b, Some(&to_a)), fleet.reads(&c, Some(&to_b))];
    for growing in &all {
        fleet.has_it(growing).await;
    }
    assert_eq!(fleet.bench.sent(), SIZE as u64);
    let counts = all.map(|growing| (growing.progress().upstream(), growing.progress().peers()));
    assert_eq!(counts, [(SIZE as u64, 0), (0, SIZE as u64), (0, SIZE as u64)]);
    assert_eq!((to_b.from().as_deref(), to_b.exhausted()), (Some("b"), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_pass_on_what_they_are_just_receiving() {
    let fleet = Fleet::new().await;
    let [a, b, c] = [fleet.node("a").await, fleet.node("b").await, fleet.node("c").await];
    fleet.bench.registry.fault(On::Blobs, 1, Fault::StallAfter(HALF));
    let first = fleet.reads(&a, None);
    let (to_a, to_b) = (fleet.ways(&b, &[&a]), fleet.ways(&c, &[&b]));
    let (second, third) = (fleet.reads(&b, Some(&to_a)), fleet.reads(&c, Some(&to_b)));
    has(&third, HALF).await;
    assert!(first.progress().have() < SIZE as u64);
    fleet.bench.registry.let_go();
    for growing in [&first, &second, &third] {
        fleet.has_it(growing).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_goes_on_at_its_byte_when_its_source_dies() {
    let fleet = Fleet::new().await;
    let [a, b, c] = [fleet.node("a").await, fleet.node("b").await, fleet.node("c").await];
    fleet.bench.registry.fault(On::Blobs, 1, Fault::StallAfter(HALF));
    let first = fleet.reads(&a, None);
    let (to_a, to_both) = (fleet.ways(&b, &[&a]), fleet.ways(&c, &[&b, &a]));
    let second = fleet.reads(&b, Some(&to_a));
    let third = fleet.reads(&c, Some(&to_both));
    has(&third, HALF).await;
    b.dies();
    drop(second);
    fleet.bench.registry.let_go();
    fleet.has_it(&third).await;
    fleet.has_it(&first).await;
    assert_eq!(third.progress().peers(), SIZE as u64, "nothing was read twice");
    assert_eq!(to_both.from().as_deref(), Some("a"));
    assert_eq!(fleet.bench.sent(), SIZE as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_seed_fetches_the_missing_tail_only() {
    let fleet = Fleet::new().await;
    let [a, b] = [fleet.node("a").await, fleet.node("b").await];
    fleet.bench.registry.fault(On::Blobs, 1, Fault::StallAfter(HALF));
    let first = fleet.reads(&a, None);
    let ways = fleet.ways(&b, &[&a]);
    let second = fleet.reads(&b, Some(&ways));
    has(&second, HALF).await;
    a.dies();
    drop(first);
    while ways.exhausted().is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(ways.exhausted().unwrap().starts_with("a cannot be read from: "), "{:?}", ways.exhausted());
    assert!(!second.progress().trouble().is_some_and(|trouble| trouble.text.contains("registry")));
    ways.set(PeerList { upstream: true, ..fleet.list(&b, &[]) });
    fleet.has_it(&second).await;
    assert_eq!((second.progress().peers(), second.progress().upstream()), (HALF, SIZE as u64 - HALF));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_that_may_no_longer_ask_the_registry_leaves_it_in_the_middle() {
    let fleet = Fleet::new().await;
    let [a, b] = [fleet.node("a").await, fleet.node("b").await];
    let first = fleet.reads(&a, None);
    fleet.has_it(&first).await;
    fleet.bench.registry.fault(On::Blobs, 1, Fault::StallAfter(HALF));
    let ways = PeerWays::new(PeerReader::new(b.key.clone()), PeerList { upstream: true, ..PeerList::default() });
    let second = fleet.reads(&b, Some(&ways));
    has(&second, HALF).await;
    let requests = fleet.bench.registry.seen().len();
    ways.set(fleet.list(&b, &[&a]));
    fleet.has_it(&second).await;
    assert_eq!((second.progress().upstream(), second.progress().peers()), (HALF, SIZE as u64 - HALF));
    assert_eq!(fleet.bench.registry.seen().len(), requests, "it was not asked again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_no_longer_listed_is_left_in_the_middle() {
    let fleet = Fleet::new().await;
    let [slow, whole, reader] = [fleet.node("slow").await, fleet.node("whole").await, fleet.node("reader").await];
    let all = fleet.reads(&whole, None);
    fleet.has_it(&all).await;
    fleet.bench.registry.fault(On::Blobs, 1, Fault::StallAfter(HALF));
    let half = fleet.reads(&slow, None);
    let ways = fleet.ways(&reader, &[&slow]);
    let read = fleet.reads(&reader, Some(&ways));
    has(&read, HALF).await;
    ways.set(fleet.list(&reader, &[&whole]));
    fleet.has_it(&read).await;
    assert_eq!((read.progress().peers(), ways.from().as_deref()), (SIZE as u64, Some("whole")));
    assert!(half.progress().have() < SIZE as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_other_nodes_is_read_from_its_first() {
    let fleet = Fleet::new().await;
    let [slow, whole, reader] = [fleet.node("slow").await, fleet.node("whole").await, fleet.node("reader").await];
    whole.serves(&fleet.root, &fleet.bench.pushed.layers[0], Given::Bytes(fleet.bench.layer.clone()));
    fleet.bench.registry.fault(On::Blobs, 1, Fault::StallAfter(HALF));
    let half = fleet.reads(&slow, None);
    let ways = fleet.ways(&reader, &[&slow]);
    let read = fleet.reads(&reader, Some(&ways));
    has(&read, HALF).await;
    ways.set(fleet.list(&reader, &[&whole, &slow]));
    fleet.has_it(&read).await;
    assert_eq!((read.progress().peers(), ways.from().as_deref()), (SIZE as u64, Some("whole")));
    assert!(half.progress().have() < SIZE as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_without_source_does_not_hold_up_another_that_wants_the_same_blob() {
    let fleet = Fleet::new().await;
    let [empty, node] = [fleet.node("empty").await, fleet.node("node").await];
    let ways = fleet.ways(&node, &[&empty]);
    let waits = fleet.reads(&node, Some(&ways));
    while ways.exhausted().is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let other = format!("{}/team/app:other", fleet.bench.registry.host()).parse().unwrap();
    let joined = node.spool.blob(BlobSource::new(other, None), fleet.bench.descriptor());
    assert!(joined.is_same_fetch(&waits));
    fleet.has_it(&joined).await;
    assert_eq!(joined.progress().upstream(), SIZE as u64);
}

async fn an_image_moves_on(answers: Duration) {
    let fleet = Fleet::new().await;
    let [slow, whole, reader] = [fleet.node("slow").await, fleet.node("whole").await, fleet.node("reader").await];
    whole.serves(&fleet.root, &fleet.bench.pushed.layers[0], Given::Bytes(fleet.bench.layer.clone()));
    fleet.bench.registry.pace(50_000);
    *slow.shelf.late.lock().unwrap() = answers;
    let trickles = fleet.reads(&slow, None);
    let ways = fleet.ways(&reader, &[&slow, &whole]);
    let read = fleet.reads(&reader, Some(&ways));
    let own = || own_state(&read, Some(100 << 20));
    tokio::select! {
        () = fleet.has_it(&read) => {}
        never = ways.mind(own) => match never {},
    }
    assert_eq!((ways.from().as_deref(), ways.lags()), (Some("whole"), false));
    assert_eq!(read.progress().peers(), SIZE as u64, "nothing was read twice");
    assert!(trickles.progress().have() < HALF, "the source was left while it gave bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_moves_to_a_listed_node_that_is_much_further() {
    an_image_moves_on(Duration::ZERO).await;
}

/// The link of a slow node is full: what it says of itself comes later than the next question would.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_moves_away_from_a_node_that_answers_late() {
    an_image_moves_on(Duration::from_millis(400)).await;
}

/// Hundreds of nodes may have the same one in their lists.
#[tokio::test(flavor = "multi_thread")]
async fn a_listed_node_that_has_all_of_the_image_is_asked_once_how_far_it_is() {
    let fleet = Fleet::new().await;
    let [slow, whole, reader] = [fleet.node("slow").await, fleet.node("whole").await, fleet.node("reader").await];
    whole.serves(&fleet.root, &fleet.bench.pushed.layers[0], Given::Bytes(fleet.bench.layer.clone()));
    fleet.bench.registry.pace(50_000);
    let _trickles = fleet.reads(&slow, None);
    let ways = fleet.ways(&reader, &[&slow, &whole]);
    let read = fleet.reads(&reader, Some(&ways));
    // Nobody has said what is usual: it stays where it is.
    let own = || own_state(&read, None);
    let mut looks = slow.shelf.looks.subscribe();
    let looked = async { looks.wait_for(|looks| *looks >= 6).await.map(|looks| *looks) };
    tokio::select! {
        looked = looked => { looked.unwrap(); }
        never = ways.mind(own) => match never {},
    }
    assert_eq!(ways.from().as_deref(), Some("slow"));
    assert_eq!(*whole.shelf.looks.borrow(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lies_is_found_out_and_named() {
    let fleet = Fleet::new().await;
    let [liar, honest, reader] = [fleet.node("liar").await, fleet.node("honest").await, fleet.node("reader").await];
    liar.serves(&fleet.root, &fleet.bench.pushed.layers[0], Given::Bytes(noise(SIZE, 99)));
    let first = fleet.reads(&honest, None);
    fleet.has_it(&first).await;
    let ways = fleet.ways(&reader, &[]);
    ways.begin(fleet.list(&reader, &[&liar, &honest]));
    let read = fleet.reads(&reader, Some(&ways));
    fleet.has_it(&read).await;
    assert_eq!(ways.liars(), [Arc::from("liar")]);
    assert_eq!(ways.from().as_deref(), Some("honest"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_left_for_the_next_node() {
    let fleet = Fleet::new().await;
    let [short, awaits, honest, reader] =
        [fleet.node("short").await, fleet.node("awaits").await, fleet.node("honest").await, fleet.node("reader").await];
    let layer = &fleet.bench.pushed.layers[0];
    short.serves(&fleet.root, layer, Given::Bytes(fleet.bench.layer.slice(..SIZE - 1)));
    awaits.serves(&fleet.root, layer, Given::Expected);
    let first = fleet.reads(&honest, None);
    fleet.has_it(&first).await;
    let ways = fleet.ways(&reader, &[&short, &awaits, &honest]);
    let read = fleet.reads(&reader, Some(&ways));
    fleet.has_it(&read).await;
    assert_eq!((read.progress().peers(), ways.liars().len()), (SIZE as u64, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_come_from_whichever_node_has_them() {
    let fleet = Fleet::new().await;
    let [empty, liar, honest, reader] =
        [fleet.node("empty").await, fleet.node("liar").await, fleet.node("honest").await, fleet.node("reader").await];
    let bytes = fleet.bench.client.image(&fleet.bench.image(), &fleet.root, &Platform::host(), None).await.unwrap();
    let manifest = &fleet.bench.pushed.manifest;
    liar.serves(&fleet.root, manifest, Given::Bytes(Bytes::from_static(b"{}")));
    honest.serves(&fleet.root, manifest, Given::Bytes(bytes.documents[0].bytes.clone()));
    let ways = fleet.ways(&reader, &[&empty, &liar, &honest]);
    let image = ways.image(&fleet.bench.image(), &fleet.root, &Platform::host()).await.unwrap().unwrap();
    assert_eq!((image.root.digest(), image.layers), (&fleet.root, bytes.layers));
    assert_eq!(ways.liars(), [Arc::from("liar")]);
    // Nobody has them: the reader waits, says so, and goes on with the next list.
    let news = Arc::new(Notify::new());
    let ways = fleet.ways(&reader, &[&empty]).telling(news.clone());
    let (name, host) = (fleet.bench.image(), Platform::host());
    let helped = async {
        news.notified().await;
        assert_eq!(ways.exhausted().as_deref(), Some("empty does not have it"));
        ways.set(fleet.list(&reader, &[&honest]));
    };
    let (found, ()) = tokio::join!(ways.image(&name, &fleet.root, &host), helped);
    assert!(found.unwrap().is_some() && ways.exhausted().is_none());
    ways.set(PeerList { upstream: true, ..PeerList::default() });
    assert!(ways.image(&name, &fleet.root, &host).await.unwrap().is_none(), "the registry is to be asked");
}

/// What a node answers to a request of this key with this ticket.
async fn answer(node: &Node, key: &PeerIdentity, ticket: &str, digest: &str) -> String {
    let blob = crate::descriptor(digest, SIZE as u64);
    let dir = TempDir::new().unwrap();
    let list = PeerList { upstream: false, ticket: ticket.into(), peers: vec![node.peer.clone()] };
    let ways = PeerWays::new(PeerReader::new(key.clone()), list);
    let spool = open(Path::new(dir.path()), &Registry::new(settings()).unwrap());
    let image = "127.0.0.1:1/team/app:v1".parse().unwrap();
    let growing = spool.blob(BlobSource::new(image, None).by(ways.clone()), blob);
    while ways.exhausted().is_none() {
        assert_eq!(growing.progress().peers(), 0, "bytes came");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    ways.exhausted().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_served_without_a_good_ticket() {
    let fleet = Fleet::new().await;
    let [node, other] = [fleet.node("node").await, fleet.node("other").await];
    let first = fleet.reads(&node, None);
    fleet.has_it(&first).await;
    let layer = &fleet.bench.pushed.layers[0];
    let [reader, thief] = [0; 2].map(|_| PeerIdentity::generate().unwrap());
    let sign = |signer: &TicketSigner, root: &Digest, expires| signer.sign(root, reader.id(), expires).unwrap();
    let good = sign(&fleet.signer, &fleet.root, HOUR);
    let another: Digest = format!("sha256:{}", "7".repeat(64)).parse().unwrap();
    let stranger = TicketSigner::generate().unwrap();
    let absent = stoker_testbed::registry::digest(b"absent");
    for (key, ticket, blob, says) in [
        (&reader, String::new(), layer, "show a ticket"),
        (&reader, "x".into(), layer, "it is not a ticket"),
        (&thief, good.clone(), layer, "it was made for another node"),
        (&reader, sign(&fleet.signer, &fleet.root, 1), layer, "its time is over"),
        (&reader, sign(&stranger, &fleet.root, HOUR), layer, "is not known here"),
        (&reader, sign(&fleet.signer, &another, HOUR), layer, "does not have it"),
        (&reader, good.clone(), &absent, "does not have it"),
    ] {
        let said = answer(&node, key, &ticket, blob).await;
        assert!(said.contains(says), "{said} instead of {says}");
    }
    // Somebody else at the address of the node.
    let impostor = Node { peer: Peer { addr: other.peer.addr, ..node.peer.clone() }, ..other };
    let said = answer(&impostor, &reader, &good, layer).await;
    assert!(said.contains("cannot be read from"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_has_no_more_readers_than_a_node_can_serve() {
    let fleet = Fleet::new().await;
    let node = fleet.node("node").await;
    fleet.bench.registry.fault(On::Blobs, 1, Fault::StallAfter(HALF));
    let first = fleet.reads(&node, None);
    let readers = [fleet.node("1").await, fleet.node("2").await, fleet.node("3").await, fleet.node("4").await];
    let mut reading = Vec::new();
    for reader in &readers {
        let growing = fleet.reads(reader, Some(&fleet.ways(reader, &[&node])));
        has(&growing, HALF).await;
        reading.push(growing);
    }
    let fifth = fleet.node("5").await;
    let ways = fleet.ways(&fifth, &[&node, &readers[0]]);
    let late = fleet.reads(&fifth, Some(&ways));
    has(&late, HALF).await;
    assert_eq!(ways.from().as_deref(), Some("1"), "the first one is busy");
    fleet.bench.registry.let_go();
    for growing in reading.iter().chain([&first, &late]) {
        fleet.has_it(growing).await;
    }
    assert_eq!(fleet.bench.sent(), SIZE as u64);
}
