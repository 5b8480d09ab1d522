//! A cluster on paper with real agents: the API in a box, a registry, whoever signs tickets, and nodes that read.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use stoker_agent::{Limits, Metrics, PeerSettings, Settings};
use stoker_api::Write;
use stoker_api::native::{NodeObject, from_core};
use stoker_core::model::{Ask, Key, Order, Phase, Pin, Policy, Pull, Terms};
use stoker_runtime::{Layout, Runtime};
use stoker_testbed::fleet;
use stoker_testbed::registry as testbed;
use stoker_transfer::credentials::Providers;
use stoker_transfer::peer::{Peer, PeerIdentity, PeerList, PeerReader, PeerWays, TicketSigner, ticket_subject};
use stoker_transfer::{
    BlobSource, Digest, Growing, Platform, PlatformImage, Reference, Registry, Spool, SpoolSettings,
};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Nothing takes this long; a test that waits for it has failed.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
pub(crate) const KEYS: &str = "stoker-peer-keys";

pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) registry: testbed::Registry,
    pub(crate) signer: TicketSigner,
}

impl Cluster {
    pub(crate) async fn new() -> Self {
        let crds = stoker_api::crds().iter().map(|(_, crd)| serde_json::to_value(crd).unwrap()).collect();
        let api = stoker_embedded::Api::new(stoker_embedded::Settings::new(crds, fleet::clock())).unwrap();
        let client = api.client("default");
        let leases = json!({ "metadata": { "name": stoker_agent::LEASE_NAMESPACE } });
        let leases: Namespace = serde_json::from_value(leases).unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &leases).await.unwrap();
        let registry = testbed::Registry::start().await.unwrap();
        Self { client, registry, signer: TicketSigner::generate().unwrap() }
    }

    fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), stoker_api::NAMESPACE)
    }

    /// What a controller does before its first ticket.
    pub(crate) async fn publish_key(&self) {
        let until = fleet::clock()() + Duration::from_secs(24 * 3600);
        let key = self.signer.public();
        let data = BTreeMap::from([(key.id().to_string(), format!("{} {until}", key.0))]);
        let map = json!({ "metadata": { "name": KEYS }, "data": data });
        self.maps().create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
    }

    pub(crate) async fn remove_keys(&self) {
        self.maps().delete(KEYS, &DeleteParams::default()).await.unwrap();
    }

    pub(crate) fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.registry.host())
    }

    /// What tickets for the image name.
    pub(crate) fn subject(&self, root: &str) -> Digest {
        ticket_subject(&self.image("team/app:v1"), &root.parse().unwrap())
    }

    /// Orders the agent of a node to fetch this digest.
    pub(crate) async fn order(&self, node: &str, image: &str, digest: &str) {
        self.order_from(node, image, digest, true).await;
    }

    /// The same, and says whether it may ask the registry for it.
    pub(crate) async fn order_from(&self, node: &str, image: &str, digest: &str, upstream: bool) {
        let pull = Pull {
            policy: Policy::IfNotPresent,
            timeout: Duration::from_secs(600),
            retries: 2,
            bandwidth: None,
            priority: 0,
            sandbox: Default::default(),
            source: Default::default(),
            upstream_copies: None,
        };
        let terms = Terms { pull, logins: Vec::new(), progress: Duration::from_secs(20) };
        let asked = fleet::clock()();
        let ask = Ask::Fetch(Some(Pin::new(asked, digest)));
        let order = Order { upstream, ..Order::new(image, Default::default(), asked, ask, terms) };
        self.change(node, BTreeMap::from([(Key::of(image), Some(order))])).await;
    }

    pub(crate) async fn take_back(&self, node: &str, image: &str) {
        self.change(node, BTreeMap::from([(Key::of(image), None)])).await;
    }

    async fn change(&self, node: &str, changes: BTreeMap<Key, Option<Order>>) {
        let Write::Patch(_, patch) = from_core::orders(node, &changes, &BTreeMap::new(), &BTreeMap::new(), 1) else {
            panic!("orders are a patch");
        };
        self.objects().patch(node, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub(crate) fn objects(&self) -> Api<NodeObject> {
        Api::all(self.client.clone())
    }

    /// Waits until the NodePreheat of a node is as it should be.
    pub(crate) async fn until(&self, node: &str, is: impl Fn(&NodeObject) -> bool) -> NodeObject {
        let objects = self.objects();
        eventually(async || objects.get_opt(node).await.unwrap().filter(&is)).await
    }

    pub(crate) async fn until_done(&self, node: &str, image: &str) {
        let key = Key::of(image);
        self.until(node, |object| object.reports.get(&key).is_some_and(|report| report.phase == Phase::Succeeded))
            .await;
    }

    pub(crate) fn settings(&self, node: &str, home: &Path) -> Settings {
        let registry = Registry::new(stoker_transfer::Settings::default()).unwrap();
        let here = Ipv4Addr::LOCALHOST.into();
        Settings {
            client: self.client.clone(),
            clock: fleet::clock(),
            node: node.into(),
            platform: Platform::host(),
            spool: Spool::open(home.join("spool"), registry.clone(), SpoolSettings::default()).unwrap(),
            registry,
            providers: Providers::default(),
            runtime: Runtime::Layout(Layout::open(home.join("images")).unwrap()),
            why_runtime: "a test".into(),
            limits: Limits { disk: 100, ..Limits::default() },
            ledger: home.join("ledger.json"),
            node_labels: Some(BTreeMap::new()),
            node_ip: Some(here),
            peers: Some(PeerSettings {
                listen: SocketAddr::new(here, 0),
                namespace: stoker_api::NAMESPACE.into(),
                linger: Duration::from_secs(300),
            }),
            metrics: Metrics::new(),
        }
    }
}

/// An agent; it ends when this is dropped.
pub(crate) struct Agent {
    cancel: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Agent {
    pub(crate) fn start(settings: Settings) -> Self {
        let cancel = CancellationToken::new();
        let run = stoker_agent::run(settings, cancel.clone());
        let task = tokio::spawn(async move { run.await.unwrap() });
        Self { cancel, task: Some(task) }
    }

    pub(crate) async fn stop(mut self) {
        self.cancel.cancel();
        self.task.take().unwrap().await.unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// The agent of this object, as others know it.
pub(crate) fn peer(object: &NodeObject) -> Peer {
    let info = object.peer.as_ref().unwrap();
    Peer {
        node: "server".into(),
        addr: (Ipv4Addr::LOCALHOST, info.port).into(),
        id: info.key.parse().unwrap(),
        far: false,
    }
}

/// A node that reads, and has no registry to ask.
pub(crate) struct Reader {
    pub(crate) key: PeerIdentity,
    spool: Spool,
    _dir: TempDir,
}

impl Reader {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::new(stoker_transfer::Settings::default()).unwrap();
        let spool = Spool::open(dir.path().join("spool"), registry, SpoolSettings::default()).unwrap();
        Self { key: PeerIdentity::generate().unwrap(), spool, _dir: dir }
    }

    /// The way to an image, with the ticket that the controller signs for this reader.
    pub(crate) fn ways(&self, cluster: &Cluster, root: &str, peer: &Peer) -> PeerWays {
        self.ways_with(cluster.signer.sign(&cluster.subject(root), self.key.id(), u32::MAX).unwrap(), peer)
    }

    pub(crate) fn ways_with(&self, ticket: String, peer: &Peer) -> PeerWays {
        let list = PeerList { upstream: false, ticket: ticket.into(), peers: vec![peer.clone()] };
        PeerWays::new(PeerReader::new(self.key.clone()), list)
    }

    /// The documents, once the node has them.
    pub(crate) async fn documents(&self, ways: &PeerWays, root: &str) -> PlatformImage {
        let (image, root): (Reference, Digest) = ("127.0.0.1:1/team/app:v1".parse().unwrap(), root.parse().unwrap());
        ways.image(&image, &root, &Platform::host()).await.unwrap().unwrap()
    }

    /// Why the node gives nothing of an image.
    pub(crate) async fn refused(&self, ways: &PeerWays, root: &str) -> String {
        tokio::select! {
            _ = self.documents(ways, root) => panic!("it gives the image"),
            why = eventually(async || ways.exhausted()) => why,
        }
    }

    pub(crate) fn begin(&self, ways: &PeerWays, image: &PlatformImage, blob: &str) -> Growing {
        let blob = image.blobs().find(|part| part.digest().as_ref() == blob).unwrap().clone();
        // Nobody is asked there: the list allows no registry.
        let source = BlobSource::new("127.0.0.1:1/team/app:v1".parse().unwrap(), None);
        self.spool.blob(source.by(ways.clone()), blob)
    }

    /// All blobs of an image.
    pub(crate) async fn read(&self, ways: &PeerWays, root: &str) -> Vec<Vec<u8>> {
        let image = self.documents(ways, root).await;
        let mut all = Vec::new();
        for blob in image.blobs() {
            let growing = self.begin(ways, &image, blob.digest().as_ref());
            let file = tokio::time::timeout(PATIENCE, growing.complete()).await.unwrap().unwrap();
            all.push(std::fs::read(file).unwrap());
        }
        all
    }
}

/// Waits until there is something.
pub(crate) async fn eventually<T>(look: impl AsyncFn() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("it did not come in time")
}
