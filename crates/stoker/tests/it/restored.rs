//! API servers that come back: from an older backup, under agents and a controller that knew more; and behind a link that breaks.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::config::Kubeconfig;
use kube::runtime::wait::await_condition;
use kube::{Client, Config, ResourceExt as _};
use serde_json::json;
use stoker_api::native::{NodePreheat, NodePreheatSpec, Preheat, WirePhase, WireReport};
use stoker_embedded::{Server, Settings};
use stoker_testbed::proxy::Proxy;
use stoker_testbed::registry::{Fault, On, Registry, noise};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::bed::{PATIENCE, stoker};

/// An API in this process, for others.
struct Served {
    client: Client,
    address: SocketAddr,
    online: CancellationToken,
    serving: JoinHandle<Result<(), stoker_embedded::Error>>,
}

impl Served {
    /// Serves what is in the journal; the same to whoever knew it before.
    async fn start(dir: &Path, journal: &str, address: SocketAddr) -> Self {
        let crds = stoker_api::crds().iter().map(|(_, crd)| serde_json::to_value(crd).unwrap()).collect();
        let settings = Settings::new(crds, Arc::new(jiff::Timestamp::now));
        let settings = Settings { journal: Some(dir.join(journal)), ..settings };
        let api = stoker_embedded::Api::new(settings).unwrap();
        let server = Server::bind_kept(api.clone(), address, &dir.join("identity")).await.unwrap();
        std::fs::write(dir.join("kubeconfig"), server.kubeconfig()).unwrap();
        let (address, online) = (server.addr(), CancellationToken::new());
        let serving = tokio::spawn(server.run(online.clone()));
        Self { client: api.client("default"), address, online, serving }
    }

    async fn stop(self) {
        self.online.cancel();
        self.serving.await.unwrap().unwrap();
    }
}

/// A process that is gone with its test.
struct Running(Child);

impl Running {
    fn start(kubeconfig: PathBuf, args: &[&str]) -> Self {
        let mut command = stoker();
        command.args(args).args(["--log", "warn", "--kubeconfig"]).arg(kubeconfig);
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn make_node(client: &Client) {
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    let node = serde_json::from_value(json!({"metadata": {"name": "edge"}, "status": ready})).unwrap();
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &node).await.unwrap();
}

async fn make(client: &Client, name: &str, image: &str) {
    let spec = json!({"images": [{ "image": image }]});
    let preheat = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    Api::<Preheat>::default_namespaced(client.clone()).create(&PostParams::default(), &preheat).await.unwrap();
}

async fn succeeds(client: &Client, name: &str) {
    let done = |object: Option<&Preheat>| {
        object.and_then(|object| object.status.as_ref()).is_some_and(|status| status.phase == "Succeeded")
    };
    let done = await_condition(Api::<Preheat>::default_namespaced(client.clone()), name, done);
    let done = tokio::time::timeout(PATIENCE, done).await;
    done.unwrap_or_else(|_| panic!("{name} does not succeed")).unwrap();
}

/// The backup is from the middle of the first pull. Since then the node has finished it, and got and finished another one.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_restored_server_lost_is_told_and_done_again() {
    let registry = Registry::start().await.unwrap();
    let pushed = registry.push("shop/one", "v1", &[noise(2 << 20, 1)]);
    registry.push("shop/two", "v1", &[noise(1_000, 2)]);
    registry.fault(On::Path(pushed.layers[0].clone()), 1, Fault::StallAfter(1 << 20));
    let image = |name: &str| format!("{}/shop/{name}:v1", registry.host());
    let scratch = tempfile::tempdir().unwrap();
    let served = Served::start(scratch.path(), "journal", ([127, 0, 0, 1], 0).into()).await;
    make_node(&served.client).await;
    let (kubeconfig, home) = (scratch.path().join("kubeconfig"), scratch.path().join("edge"));
    let home = home.to_str().unwrap();
    let _controller = Running::start(kubeconfig.clone(), &["controller"]);
    let agent = ["agent", "--node", "edge", "--runtime", "layout", "--max-disk", "99", "--data", home];
    let _agent = Running::start(kubeconfig.clone(), &agent);

    make(&served.client, "one", &image("one")).await;
    registry.wait_for_bytes(&pushed.layers[0], 1 << 20).await;
    std::fs::copy(scratch.path().join("journal"), scratch.path().join("backup")).unwrap();
    registry.let_go();
    succeeds(&served.client, "one").await;
    make(&served.client, "two", &image("two")).await;
    succeeds(&served.client, "two").await;
    // More is lost than will be written soon: versions stay lower than those that were known.
    let preheats: Api<NodePreheat> = Api::all(served.client.clone());
    for number in 0..500 {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"example/number": number.to_string()}}}));
        preheats.patch("edge", &PatchParams::default(), &patch).await.unwrap();
    }
    let before = preheats.get("edge").await.unwrap();
    let address = served.address;
    served.stop().await;

    let served = Served::start(scratch.path(), "backup", address).await;
    let preheats: Api<NodePreheat> = Api::all(served.client.clone());
    let restored = preheats.get("edge").await.unwrap();
    assert_eq!(restored.uid(), before.uid());
    assert!(
        restored.metadata.generation < before.metadata.generation,
        "orders are older than those in the agent's hand"
    );
    let of_a_pull = |report: &&WireReport| report.phase != WirePhase::Resolved;
    let reports = restored.status.unwrap_or_default().reports;
    let lost = reports.values().filter(of_a_pull).all(|report| report.finished.is_none());
    assert!(lost, "what it said of the first is lost");
    succeeds(&served.client, "one").await;
    make(&served.client, "three", &image("two")).await;
    succeeds(&served.client, "three").await;
    served.stop().await;
}

/// Every connection of the controller is cut again and again; each time there is something to do then.
#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_breaks_costs_a_controller_no_list() {
    let scratch = tempfile::tempdir().unwrap();
    let served = Served::start(scratch.path(), "journal", ([127, 0, 0, 1], 0).into()).await;
    make_node(&served.client).await;
    let preheats: Api<NodePreheat> = Api::all(served.client.clone());
    preheats.create(&PostParams::default(), &NodePreheat::new("edge", NodePreheatSpec::default())).await.unwrap();
    let link = Proxy::start(served.address).await.unwrap();
    let kubeconfig = std::fs::read_to_string(scratch.path().join("kubeconfig")).unwrap();
    let kubeconfig = kubeconfig.replace(&served.address.to_string(), &link.host());
    let config = Config::from_custom_kubeconfig(Kubeconfig::from_yaml(&kubeconfig).unwrap(), &Default::default()).await;
    let linked = Client::try_from(config.unwrap()).unwrap();
    let lists = Arc::new(AtomicUsize::new(0));
    let counted = lists.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let uri = request.uri();
        let lists = uri.path().ends_with("/nodepreheats") && !uri.query().unwrap_or_default().contains("watch=true");
        counted.fetch_add(usize::from(lists), Ordering::Relaxed);
        let linked = linked.clone();
        async move { linked.send(request).await }
    });
    let settings = stoker_controller::Settings {
        client: Client::new(service, "default"),
        clock: Arc::new(jiff::Timestamp::now),
        limits: Default::default(),
        namespace: stoker_api::NAMESPACE.into(),
        identity: "test".into(),
        trust_one_witness: false,
        peers: false,
        handed_over: Default::default(),
        serve: Default::default(),
        metrics: Default::default(),
    };
    let cancel = CancellationToken::new();
    let controlling = tokio::spawn(stoker_controller::run(settings, cancel.clone()));
    for count in 1..=4 {
        make(&served.client, &format!("job-{count}"), &format!("registry.example/job-{count}:v1")).await;
        let ordered = move |object: Option<&NodePreheat>| object.is_some_and(|it| it.spec.orders.len() == count);
        let ordered = await_condition(preheats.clone(), "edge", ordered);
        tokio::time::timeout(PATIENCE, ordered).await.expect("it plans on").unwrap();
        link.down().await;
        link.up().await;
    }
    assert_eq!(lists.load(Ordering::Relaxed), 1, "the first");
    cancel.cancel();
    controlling.await.unwrap().unwrap();
    served.stop().await;
}
