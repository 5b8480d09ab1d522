//! Nodes that read images from each other: an agent each, in a process of its own, that can be killed by itself. What left the registry is
//! counted there.

mod by_cri;
mod full_disk;
mod halves;
mod partition;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command};

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DynamicObject, PostParams};
use serde_json::{Value, json};
use stoker_testbed::registry::{Registry, noise};

use crate::bed::{Up, eventually, stoker};
use crate::demo::hash_again;
use halves::{Halves, Link};

const SIZE: usize = 48 << 20;
/// Slow enough that a node can be killed in the middle.
const PACE: u64 = 12 << 20;
/// What a kill may cost: what kernels held.
const A_KILL: u64 = 1 << 20;

/// `stoker up` for the API and the controller, and agents.
struct Fleet {
    up: Up,
    agents: BTreeMap<String, Agent>,
    registry: Registry,
    /// Where nodes are in two halves of a network, and how they reach the registry.
    apart: Option<(Halves, Link)>,
    home: tempfile::TempDir,
}

struct Agent {
    child: Child,
    /// What it was started with.
    args: Vec<String>,
    data: PathBuf,
}

/// The store that most nodes have.
const LAYOUT: &[&str] = &["--runtime", "layout", "--max-disk", "99"];

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Fleet {
    async fn start(nodes: usize) -> Self {
        Self::start_in(None, nodes).await
    }

    async fn start_in(net: Option<Halves>, nodes: usize) -> Self {
        // The same port after a restart: agents are not told of another one.
        let address = net.as_ref().map_or("127.0.0.1", |_| halves::HUB);
        let listen = format!("{address}:{}", free_port());
        let up = Up::start_with(tempfile::tempdir().unwrap(), 1, &["--listen", &listen]);
        let (home, registry) = (tempfile::tempdir().unwrap(), Registry::start().await.unwrap());
        let apart = match net {
            Some(net) => Some((net, Link::to(&registry, home.path()).await)),
            None => None,
        };
        let mut fleet = Self { up, agents: BTreeMap::new(), registry, apart, home };
        for at in 1..=nodes {
            fleet.join(&format!("n{at:02}")).await;
        }
        fleet
    }

    /// One more node.
    async fn join(&mut self, name: &str) {
        self.join_in(name, self.home.path().join(name)).await;
    }

    /// The same with its files in this directory.
    async fn join_in(&mut self, name: &str, data: PathBuf) {
        self.join_with(name, data, LAYOUT).await;
        let serves = |object: &DynamicObject| object.data.pointer("/status/agent/peer/port").is_some();
        self.up.wait("NodePreheat", name, serves).await;
    }

    /// The same with this store, which may be one that serves nobody.
    async fn join_with(&mut self, name: &str, data: PathBuf, store: &[&str]) {
        let address = self.apart.as_ref().map_or("127.0.0.1", |_| halves::address(name));
        let node = json!({
            "metadata": {"name": name, "labels": {"fleet": "relay"}},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "InternalIP", "address": address}],
            },
        });
        let node: Node = serde_json::from_value(node).unwrap();
        Api::<Node>::all(self.up.client().await).create(&PostParams::default(), &node).await.unwrap();
        let port = free_port().to_string();
        let args = [&["--node", name, "--peer-port", &port], store].concat();
        let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
        let child = self.command(name, &args, &data).spawn().unwrap();
        self.agents.insert(name.into(), Agent { child, args, data });
        let is_there = |object: &DynamicObject| object.data.pointer("/status/agent").is_some();
        self.up.wait("NodePreheat", name, is_there).await;
    }

    fn command(&self, name: &str, args: &[String], data: &std::path::Path) -> Command {
        let mut command = stoker();
        command.arg("--kubeconfig").arg(self.up.kubeconfig()).arg("agent").args(args).arg("--data").arg(data);
        match &self.apart {
            Some((net, link)) => {
                command.arg("--registry-hosts").arg(&link.hosts);
                net.of(name, &command)
            }
            None => command,
        }
    }

    /// Ends an agent as a power cut would.
    fn kill(&mut self, name: &str) {
        let agent = self.agents.get_mut(name).unwrap();
        agent.child.kill().unwrap();
        agent.child.wait().unwrap();
    }

    fn restart(&mut self, name: &str) {
        let agent = &self.agents[name];
        let child = self.command(name, &agent.args, &agent.data).spawn().unwrap();
        self.agents.get_mut(name).unwrap().child = child;
    }

    /// A new image of one layer. Returns its reference.
    fn push(&self, name: &str, seed: u64) -> String {
        self.registry.push(name, "v1", &[noise(SIZE, seed)]);
        let host = self.apart.as_ref().map_or_else(|| self.registry.host(), |(_, link)| link.host());
        format!("{host}/{name}:v1")
    }

    async fn preheat(&self, name: &str, image: &str, pull: Value) {
        let spec = json!({
            "images": [{"image": image}], "nodes": {"selector": {"matchLabels": {"fleet": "relay"}}},
            "pace": {"parallelism": 100}, "pull": pull,
        });
        let job =
            json!({"apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": name}, "spec": spec});
        self.up.create(&job.to_string()).await;
    }

    /// Bytes of layers that left the registry.
    fn left(&self) -> u64 {
        self.registry.body_bytes("/blobs/")
    }

    /// The report of a node about the image that it was last asked for.
    async fn report(&self, node: &str) -> Value {
        let object = self.up.api("NodePreheat").await.get(node).await.unwrap();
        let reports = object.data["status"]["reports"].as_object().cloned().unwrap_or_default();
        let fetches = reports.into_iter().map(|(_, report)| report).filter(|report| report["phase"] != "Resolved");
        fetches.max_by_key(|report| report["asked"].to_string()).unwrap_or_default()
    }

    /// The node that goes upstream, and those that read from others, in the order of the chain as far as it is known.
    async fn chain(&self) -> Vec<String> {
        let mut reads: BTreeMap<String, Option<String>> = BTreeMap::new();
        for name in self.agents.keys() {
            let object = self.up.api("NodePreheat").await.get(name).await.unwrap();
            let orders = object.data["spec"]["orders"].as_object().cloned().unwrap_or_default();
            let fetch = orders.values().find(|order| order["ask"] == "Fetch").cloned().unwrap_or_default();
            let source = fetch.pointer("/peers/0/node").and_then(Value::as_str).map(str::to_owned);
            if !fetch.is_null() {
                reads.insert(name.clone(), source);
            }
        }
        let mut chain: Vec<String> =
            reads.iter().filter(|(_, source)| source.is_none()).map(|(name, _)| name.clone()).collect();
        while let Some(next) =
            reads.iter().find(|(name, source)| source.as_ref() == chain.last() && !chain.contains(name))
        {
            chain.push(next.0.clone());
        }
        chain
    }

    /// How many bytes a node has of what it fetches now.
    fn spooled(&self, node: &str) -> u64 {
        let files = std::fs::read_dir(self.agents[node].data.join("spool")).into_iter().flatten().flatten();
        files.filter_map(|file| file.metadata().ok()).filter(|file| file.is_file()).map(|file| file.len()).sum()
    }

    /// Waits until this many bytes of layers have left the registry.
    async fn until_left(&self, bytes: u64) {
        eventually("the registry has sent half", async || self.left() >= bytes).await;
    }

    /// Everything that every node has is right.
    fn verify(&self, images: usize) {
        for agent in self.agents.values() {
            assert_eq!(hash_again(&agent.data.join("images/blobs/sha256")), 3 * images, "{}", agent.data.display());
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Half of an image has come, and all nodes have their orders.
async fn halfway(fleet: &Fleet) -> Vec<String> {
    fleet.until_left(SIZE as u64 / 2).await;
    eventually("all nodes have their orders", async || fleet.chain().await.len() == fleet.agents.len()).await;
    fleet.chain().await
}

async fn succeeds(fleet: &Fleet, job: &str) -> Value {
    let status = fleet.up.ended("Preheat", job).await;
    assert_eq!(status["succeeded"], fleet.agents.len(), "{status:#}");
    status
}

#[tokio::test]
async fn an_image_leaves_the_registry_once_and_all_nodes_have_it() {
    let mut fleet = Fleet::start(6).await;
    let image = fleet.push("shop/web", 1);
    fleet.registry.pace(PACE);
    fleet.preheat("web", &image, json!({"upstreamCopies": 1})).await;
    let status = succeeds(&fleet, "web").await;
    let config = fleet.left() - SIZE as u64;
    assert!(config < 4096, "{config} bytes more than the layer left the registry");
    assert_eq!(status["bytes"]["upstream"], fleet.left(), "{status:#}");
    assert_eq!(status["bytes"]["peers"], 5 * fleet.left(), "{status:#}");
    fleet.verify(1);
    let shown = fleet.up.run(&["get", "web", "-o", "wide"]).await;
    shown.exits(0).says("REGISTRY").says("PEERS").says("FROM");
    // A node that comes later reads from those that have it.
    fleet.join("n99").await;
    fleet.preheat("again", &image, json!({"source": "PeersOnly"})).await;
    succeeds(&fleet, "again").await;
    assert_eq!(fleet.left(), SIZE as u64 + config);
    fleet.verify(1);
}

#[tokio::test]
async fn a_seed_that_dies_is_replaced_and_what_came_is_not_fetched_again() {
    let mut fleet = Fleet::start(4).await;
    let image = fleet.push("shop/web", 2);
    fleet.registry.pace(PACE);
    fleet.preheat("web", &image, json!({"upstreamCopies": 1})).await;
    let chain = halfway(&fleet).await;
    let why = fleet.up.run(&["why", "web"]).await;
    why.exits(0).says("from the registry").says(&format!("from node {}", chain[0]));
    fleet.kill(&chain[0]);
    // The others go on without it.
    for node in &chain[1..] {
        eventually("a node has the image", async || fleet.report(node).await["phase"] == "Succeeded").await;
    }
    fleet.restart(&chain[0]);
    succeeds(&fleet, "web").await;
    let most = SIZE as u64 + SIZE as u64 / 50 + A_KILL;
    assert!(fleet.left() <= most, "{} left the registry, and {most} is the most", fleet.left());
    fleet.verify(1);
}

#[tokio::test]
async fn nodes_in_the_middle_of_a_chain_that_die_cost_the_registry_nothing() {
    let mut fleet = Fleet::start(7).await;
    let image = fleet.push("shop/web", 3);
    fleet.registry.pace(PACE);
    fleet.preheat("web", &image, json!({"upstreamCopies": 1})).await;
    let chain = halfway(&fleet).await;
    for node in &chain[2..5] {
        fleet.kill(node);
    }
    for node in chain[..2].iter().chain(&chain[5..]) {
        eventually("a node has the image", async || fleet.report(node).await["phase"] == "Succeeded").await;
    }
    for node in &chain[2..5] {
        fleet.restart(node);
    }
    succeeds(&fleet, "web").await;
    assert!(fleet.left() < SIZE as u64 + 4096, "{} left the registry", fleet.left());
    fleet.verify(1);
}

#[tokio::test]
async fn a_controller_that_is_killed_in_the_middle_changes_nothing() {
    let mut fleet = Fleet::start(4).await;
    let image = fleet.push("shop/web", 4);
    fleet.registry.pace(PACE);
    fleet.preheat("web", &image, json!({"upstreamCopies": 1})).await;
    halfway(&fleet).await;
    fleet.up.kill();
    fleet.until_left(SIZE as u64 / 4 * 3).await;
    fleet.up.restart();
    succeeds(&fleet, "web").await;
    assert!(fleet.left() < SIZE as u64 + 4096, "{} left the registry", fleet.left());
    fleet.verify(1);
}

#[tokio::test]
async fn a_node_that_may_not_ask_the_registry_waits_until_another_node_has_the_image() {
    let fleet = Fleet::start(3).await;
    let image = fleet.push("shop/web", 5);
    fleet.preheat("web", &image, json!({"source": "PeersOnly"})).await;
    let waits = |object: &DynamicObject| {
        let waiting = object.data.pointer("/status/waitingFor").and_then(Value::as_array).cloned().unwrap_or_default();
        waiting.iter().any(|waiting| waiting["reason"] == "NoSource" && waiting["nodes"] == 3)
    };
    fleet.up.wait("Preheat", "web", waits).await;
    assert_eq!(fleet.left(), 0);
    fleet.up.run(&["why", "web"]).await.exits(0).says("NoSource");
    fleet.up.run(&["get", "web"]).await.exits(0).says("3 waiting (NoSource); n01: NoSource: the job takes");
    let pull = fleet.up.run(&["pull", &image, "--source", "PeersOnly", "--timeout", "5s"]).await;
    pull.exits(1).says("4 waiting (NoSource); n01: NoSource: the job takes");
    assert!(!pull.err.contains("Unresolved, "), "a node that looked for the image has not failed: {}", pull.err);
    assert_eq!(pull.err.matches("last: NoSource").count(), 4, "{}", pull.err);
    fleet.up.run(&["pull", &image, "--node", "n02"]).await.exits(0);
    let status = succeeds(&fleet, "web").await;
    assert!(fleet.left() < SIZE as u64 + 4096, "{} left the registry: {status:#}", fleet.left());
    fleet.verify(1);
}

#[tokio::test]
async fn promised_copies_are_the_most_that_leave_the_registry() {
    let fleet = Fleet::start(5).await;
    let image = fleet.push("shop/web", 6);
    fleet.registry.pace(PACE);
    fleet.preheat("web", &image, json!({"upstreamCopies": 2})).await;
    succeeds(&fleet, "web").await;
    assert!(fleet.left() <= 2 * (SIZE as u64 + 4096), "{} left the registry", fleet.left());
    fleet.verify(1);
}

/// Two halves of a network: nodes of one group do not read from the other.
#[tokio::test]
async fn each_peer_group_has_its_own_seed() {
    let fleet = Fleet::start(4).await;
    let nodes: Api<Node> = Api::all(fleet.up.client().await);
    let groups = [("n01", "a"), ("n02", "a"), ("n03", "b"), ("n04", "none")];
    for (node, group) in groups {
        let patch = json!({"metadata": {"labels": {"stoker.dev/peer-group": group}}});
        nodes.patch(node, &Default::default(), &kube::api::Patch::Merge(patch)).await.unwrap();
    }
    let wide = fleet.up.run(&["get", "nodes", "-o", "wide"]).await.exits(0).says("PEER GROUP").out.clone();
    for (node, group) in groups {
        let line = wide.lines().find(|line| line.starts_with(node)).unwrap();
        assert!(line.split_whitespace().any(|cell| cell == group), "{node} is in {group}: {wide}");
    }
    let image = fleet.push("shop/web", 7);
    fleet.preheat("web", &image, json!({"upstreamCopies": 1})).await;
    succeeds(&fleet, "web").await;
    let copies = fleet.left() / SIZE as u64;
    assert_eq!(copies, 3, "one for a, one for b, and one for the node without a group");
    fleet.verify(1);
}

/// For whoever wants to see what relaying changes.
#[tokio::test]
async fn up_without_peers_has_each_node_ask_the_registry() {
    let registry = Registry::start().await.unwrap();
    let up = Up::start_with(tempfile::tempdir().unwrap(), 3, &["--peers", "off"]);
    registry.push("shop/web", "v1", &[noise(100_000, 8)]);
    let image = format!("{}/shop/web:v1", registry.host());
    up.run(&["pull", &image, "--name", "web"]).await.exits(0).says("received from the registry\n");
    assert!(registry.body_bytes("/blobs/") >= 300_000, "{} left the registry", registry.body_bytes("/blobs/"));
    let pull = ["pull", &image, "--source", "PeersOnly", "--policy", "Always", "--name", "others", "--no-wait"];
    up.run(&pull).await.exits(0);
    eventually("the reason names the switch", async || {
        up.run(&["why", "others"]).await.out.contains("the controller runs with --peers off")
    })
    .await;
}
