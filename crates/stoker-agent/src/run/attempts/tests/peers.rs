//! Nodes that read from others, with real sockets and a real registry whose requests and bytes are counted.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes as Data;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use stoker_core::model::{Origin, PeerKey, PeerRef, Pin, PullSource};
use stoker_testbed::registry::{Fault, On, Pushed, Registry as FaultyRegistry, noise};
use stoker_transfer::peer::{
    Gate, PeerId, PeerIdentity, PeerLimits, PeerReader, PeerServer, PeerState, ServedPart, Shelf, Ticket, TicketError,
    TicketKeys, TicketSigner,
};
use stoker_transfer::{BlobSource, Descriptor, Digest, Growing, Reference};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::pull::Supply;

mod permission;

const SIZE: usize = 3 * 1024 * 1024 + 17;
const HALF: u64 = SIZE as u64 / 2;

/// What a node serves: what it was told to.
#[derive(Clone)]
enum Served {
    Bytes(Data),
    Growing(Growing),
}

#[derive(Default)]
struct TestShelf(Mutex<HashMap<Digest, Served>>);

impl Shelf for TestShelf {
    fn find<'a>(&'a self, _: &'a Digest, blob: &'a Digest) -> BoxFuture<'a, ServedPart> {
        let served = self.0.lock().unwrap().get(blob).cloned();
        let part = match served {
            Some(Served::Bytes(bytes)) => ServedPart::Bytes(bytes),
            Some(Served::Growing(growing)) => ServedPart::Growing(growing),
            None => ServedPart::Nothing,
        };
        std::future::ready(part).boxed()
    }

    fn state<'a>(&'a self, _: &'a Digest) -> BoxFuture<'a, Option<PeerState>> {
        std::future::ready(None).boxed()
    }
}

struct TestGate(TicketKeys);

impl Gate for TestGate {
    fn check<'a>(&'a self, ticket: &'a str, caller: PeerId) -> BoxFuture<'a, Result<Ticket, TicketError>> {
        std::future::ready(self.0.check(ticket, caller, 1)).boxed()
    }
}

/// A node that serves.
struct Source {
    peer: PeerRef,
    shelf: Arc<TestShelf>,
    stop: CancellationToken,
}

/// A registry with an image, whoever signs tickets, and a node that wants the image.
struct Scene {
    registry: FaultyRegistry,
    pushed: Pushed,
    layer: Data,
    config: Data,
    signer: TicketSigner,
    /// Of the node that wants the image.
    identity: PeerIdentity,
    node: NodeBed,
    /// How often documents were seen.
    seen: Arc<AtomicUsize>,
    /// Requests to the registry before anything was ordered.
    before: usize,
    /// That the order names.
    logins: Vec<LoginId>,
    /// Where the order lets the image come from.
    allowed: PullSource,
}

impl Scene {
    async fn new() -> Self {
        let registry = FaultyRegistry::start().await.unwrap();
        let layer = noise(SIZE, 7);
        let pushed = registry.push("team/app", "v1", std::slice::from_ref(&layer));
        let (identity, seen) = (PeerIdentity::generate().unwrap(), Arc::<AtomicUsize>::default());
        let count = seen.clone();
        let side = PeerSide {
            reader: PeerReader::new(identity.clone()),
            seen: Arc::new(move |_, _| {
                count.fetch_add(1, Ordering::Relaxed);
            }),
            readers: Arc::new(|_| 0),
        };
        let earlier = EarlierLife { tasks: BTreeMap::new(), starts: Starts::default(), spooled: 0 };
        let node = bed_with(earlier, Some(side));
        let signer = TicketSigner::generate().unwrap();
        let (config, before, logins, allowed) = (Data::new(), 0, Vec::new(), PullSource::Any);
        let mut scene = Self { registry, pushed, layer, config, signer, identity, node, seen, before, logins, allowed };
        // Whatever is needed of the registry to serve the image is read before.
        let dir = tempfile::tempdir().unwrap();
        let spool = scene.spool(dir.path());
        let image = scene.image_at_registry().await;
        let config = spool.blob(BlobSource::new(scene.reference(), None), image.config.clone());
        scene.config = config.bytes().await.unwrap();
        scene.before = scene.registry.seen().len();
        scene
    }

    async fn image_at_registry(&self) -> stoker_transfer::PlatformImage {
        let (client, root) = (&self.node.attempts.tools.registry, self.root());
        client.image(&self.reference(), &root, &Platform::host(), None).await.unwrap()
    }

    fn spool(&self, dir: &std::path::Path) -> Spool {
        Spool::open(dir.join("s"), self.node.attempts.tools.registry.clone(), SpoolSettings::default()).unwrap()
    }

    fn reference(&self) -> Reference {
        format!("{}/team/app:v1", self.registry.host()).parse().unwrap()
    }

    fn root(&self) -> Digest {
        self.pushed.manifest.parse().unwrap()
    }

    fn layer_digest(&self) -> Digest {
        self.pushed.layers[0].parse().unwrap()
    }

    fn total(&self) -> u64 {
        (self.layer.len() + self.config.len()) as u64
    }

    /// A node that serves the documents, and this layer.
    async fn source(&self, name: &str, layer: Served) -> Source {
        let shelf = Arc::<TestShelf>::default();
        let parts = [
            (self.root(), Served::Bytes(self.pushed.bytes.clone())),
            (self.pushed.config.parse().unwrap(), Served::Bytes(self.config.clone())),
            (self.layer_digest(), layer),
        ];
        shelf.0.lock().unwrap().extend(parts);
        let (key, gate) = (PeerIdentity::generate().unwrap(), TestGate([self.signer.public()].into_iter().collect()));
        let bound =
            PeerServer::bind(([127, 0, 0, 1], 0).into(), &key, shelf.clone(), Arc::new(gate), PeerLimits::default());
        let (server, stop) = (bound.await.unwrap(), CancellationToken::new());
        let key = PeerKey::new(&key.id().to_string());
        let peer = PeerRef { node: name.into(), address: server.addr(), key, far: false };
        tokio::spawn(server.run(stop.clone()));
        Source { peer, shelf, stop }
    }

    async fn whole(&self, name: &str) -> Source {
        self.source(name, Served::Bytes(self.layer.clone())).await
    }

    fn tickets(&self) -> Tickets {
        Tickets::from([(key(), self.signer.sign(&self.root(), self.identity.id(), 3600).unwrap())])
    }

    /// The order says this about its sources, for the first time or while it runs.
    fn tell(&mut self, upstream: bool, sources: &[&Source]) {
        let pin = Pin::new(at(0), self.pushed.manifest.clone());
        let image = self.reference().to_string();
        let peers = sources.iter().map(|source| source.peer.clone()).collect();
        let mut order = Order { image, ask: Ask::Fetch(Some(pin)), upstream, peers, ..order() };
        order.terms.logins.clone_from(&self.logins);
        order.terms.pull.source = self.allowed;
        self.node.orders.insert(key(), order);
        let tickets = self.tickets();
        self.node.attempts.follow(&self.node.orders, &tickets);
        self.node.turn(100);
    }

    /// Waits until this much of the image is there.
    async fn has(&mut self, bytes: u64) {
        while self.node.task().report.bytes.done < bytes {
            tokio::time::sleep(Duration::from_millis(5)).await;
            self.node.attempts.read_meters(at(100));
        }
    }

    async fn until(&mut self, is: impl Fn(&Report) -> bool) -> Report {
        let until = self.node.until(|task| is(&task.report));
        tokio::time::timeout(Duration::from_secs(60), until).await.unwrap();
        self.node.task().report.clone()
    }

    async fn succeeds(&mut self) -> Report {
        let report = self.until(Report::ended).await;
        assert_eq!((report.phase, report.attempt), (Phase::Succeeded, 1), "{report:?}");
        assert_eq!(report.digest.as_deref(), Some(self.pushed.manifest.as_str()));
        report
    }

    /// What was fetched from the registry since the image was ordered. Whether the node may have the image it asks by a HEAD.
    fn requests(&self) -> Vec<(String, Option<String>)> {
        let seen = self.registry.seen().into_iter().skip(self.before).filter(|seen| seen.method != "HEAD");
        seen.map(|seen| (seen.path, seen.range)).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_comes_from_another_node_and_nothing_is_fetched_from_the_registry() {
    let mut scene = Scene::new().await;
    let a = scene.whole("a").await;
    scene.tell(false, &[&a]);
    let report = scene.succeeds().await;
    let Bytes { upstream, peers, mirrors, done, .. } = report.bytes;
    assert_eq!((upstream, peers, mirrors, done), (0, scene.total(), 0, scene.total()));
    assert_eq!((report.from, report.bad), (Some(Origin::Peer("a".into())), Vec::new()));
    assert_eq!(scene.requests(), []);
    assert_eq!(scene.seen.load(Ordering::Relaxed), 1, "whoever serves knows the documents");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_without_source_says_so_and_goes_on_with_another_list() {
    let mut scene = Scene::new().await;
    // Half of the layer, and then the node is gone.
    let path = scene.layer_digest().to_string();
    scene.registry.fault(On::Path(path), 1, Fault::StallAfter(HALF));
    let dir = tempfile::tempdir().unwrap();
    let layer = Descriptor::new(stoker_transfer::MediaType::ImageLayer, SIZE as u64, scene.layer_digest());
    let growing = scene.spool(dir.path()).blob(BlobSource::new(scene.reference(), None), layer);
    let a = scene.source("a", Served::Growing(growing)).await;
    scene.tell(false, &[&a]);
    scene.has(HALF).await;
    scene.before = scene.registry.seen().len();
    a.stop.cancel();
    a.shelf.0.lock().unwrap().clear();
    let report = scene.until(|report| report.reason.is_some()).await;
    assert_eq!((report.reason, report.phase), (Some(Reason::NoSource), Phase::Pulling));
    assert_eq!(report.bad, ["a".into()]);
    assert!(report.message.contains("a cannot be read from: "), "{}", report.message);
    let b = scene.whole("b").await;
    scene.tell(false, &[&b]);
    let report = scene.succeeds().await;
    assert_eq!((report.bytes.peers, report.bytes.upstream), (scene.total(), 0), "nothing was read twice");
    assert_eq!((report.from, report.reason), (Some(Origin::Peer("b".into())), None));
    assert_eq!(scene.requests(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_becomes_a_seed_fetches_the_tail_only() {
    let mut scene = Scene::new().await;
    let a = scene.source("a", Served::Bytes(scene.layer.clone())).await;
    // It gives half of the layer.
    let path = scene.layer_digest().to_string();
    scene.registry.fault(On::Path(path), 1, Fault::StallAfter(HALF));
    let dir = tempfile::tempdir().unwrap();
    let layer = Descriptor::new(stoker_transfer::MediaType::ImageLayer, SIZE as u64, scene.layer_digest());
    let growing = scene.spool(dir.path()).blob(BlobSource::new(scene.reference(), None), layer);
    a.shelf.0.lock().unwrap().insert(scene.layer_digest(), Served::Growing(growing));
    scene.tell(false, &[&a]);
    scene.has(HALF).await;
    a.stop.cancel();
    a.shelf.0.lock().unwrap().clear();
    scene.until(|report| report.reason == Some(Reason::NoSource)).await;
    scene.before = scene.registry.seen().len();
    scene.tell(true, &[]);
    let report = scene.succeeds().await;
    let peers = report.bytes.peers;
    assert_eq!((report.bytes.upstream, report.from), (scene.total() - peers, Some(Origin::Upstream)));
    assert!(peers >= HALF, "{peers}");
    let from = SIZE as u64 - report.bytes.upstream;
    let layer = format!("/v2/team/app/blobs/{}", scene.layer_digest());
    assert_eq!(scene.requests(), [(layer, Some(format!("bytes={from}-")))], "one request, at its byte");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_that_may_no_longer_ask_the_registry_reads_on_from_a_node() {
    let mut scene = Scene::new().await;
    let path = scene.layer_digest().to_string();
    scene.registry.fault(On::Path(path), 1, Fault::StallAfter(HALF));
    scene.tell(true, &[]);
    scene.has(HALF).await;
    scene.before = scene.registry.seen().len();
    let b = scene.whole("b").await;
    scene.tell(false, &[&b]);
    let report = scene.succeeds().await;
    assert_eq!(scene.requests(), [], "no request after that");
    assert_eq!(report.from, Some(Origin::Peer("b".into())));
    assert_eq!(report.bytes.upstream + report.bytes.peers, scene.total(), "nothing was fetched twice");
    assert!(report.bytes.upstream >= HALF, "{:?}", report.bytes);
    assert_eq!(*scene.node.attempts.starts(), Starts::default(), "it was no crash");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lied_is_named_and_nobody_else() {
    let mut scene = Scene::new().await;
    let [liar, honest] = [scene.source("liar", Served::Bytes(noise(SIZE, 99))).await, scene.whole("honest").await];
    scene.tell(false, &[&liar]);
    let report = scene.until(|report| report.reason.is_some()).await;
    assert_eq!((report.reason, report.bad), (Some(Reason::PeerLied), vec!["liar".into()]));
    assert!(report.message.contains("node liar"), "{}", report.message);
    assert_eq!(scene.node.attempts.counts.lies(), 1);
    scene.tell(false, &[&liar, &honest]);
    let report = scene.succeeds().await;
    assert_eq!((report.from, scene.requests()), (Some(Origin::Peer("honest".into())), Vec::new()));
    assert_eq!(scene.node.attempts.counts.lies(), 1, "it is counted once for the image");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_sources_cannot_be_told_to_the_runtime_nothing_is_pulled() {
    let scene = Scene::new().await;
    let mut tools = scene.node.attempts.tools.clone();
    tools.peers = None;
    let image = scene.reference().to_string();
    let order = Order { image, upstream: false, ..order() };
    let supply = Supply { pace: Arc::new(stoker_transfer::limit::Pace::unlimited()), ways: None };
    let failure = tools.attempt(&order, &Meter::new(Arc::default()), &supply).await.unwrap_err();
    assert_eq!((failure.reason, failure.retryable), (Reason::SourceNotEnforceable, false));
    assert_eq!(scene.requests(), []);
}

/// Such an agent has no ways that a demotion could close. The attempt ends, and the next one says that the order cannot be done here.
#[tokio::test]
async fn a_seed_that_reads_from_nobody_stops_when_it_may_no_longer_ask_the_registry() {
    let mut node = new_node();
    assert!(node.attempts.tools.peers.is_none());
    node.orders.insert(key(), waits());
    node.turn(0);
    assert_eq!(node.task().report.phase, Phase::Pulling);
    node.orders.insert(key(), Order { upstream: false, ..waits() });
    node.attempts.follow(&node.orders, &Tickets::new());
    node.turn(100);
    let until = node.until(|task| task.report.ended());
    tokio::time::timeout(Duration::from_secs(60), until).await.unwrap();
    let report = &node.task().report;
    assert_eq!((report.phase, report.reason), (Phase::Failed, Some(Reason::Unsupported)), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_without_a_digest_does_not_ask_the_registry_for_it() {
    let mut scene = Scene::new().await;
    let a = scene.whole("a").await;
    let (image, peers) = (scene.reference().to_string(), vec![a.peer.clone()]);
    for ask in [Ask::Fetch(None), Ask::Resolve] {
        scene
            .node
            .orders
            .insert(key(), Order { image: image.clone(), upstream: false, peers: peers.clone(), ask, ..order() });
        scene.node.turn(0);
        let report = scene.until(Report::ended).await;
        assert_eq!((report.phase, report.reason), (Phase::Failed, Some(Reason::InvalidContent)));
        scene.node.orders.clear();
        scene.node.turn(1);
    }
    assert_eq!(scene.requests(), []);
}
