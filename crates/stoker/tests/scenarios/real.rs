//! A real API server with Stoker's kinds, accounts, roles and policy on it, by `stoker install`, but without the pods: the
//! controller and an agent for every node are processes here, each with a token of its own account. An administrator's
//! kubeconfig comes in; beds go out. Nodes are the cluster's own and as many of the test's as make three, at least one.
//!
//! What a run leaves, killed in its middle or not, goes before the next one begins; see [`crate::own`].

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use stoker_api::native::NodePreheat;
use stoker_testbed::small_disk::SmallDisk;
use tokio::task::JoinHandle;

use crate::bed::{Bed, Running, Wishes};
use crate::rights::Rights;
use crate::up::{Login, eventually};
use crate::{heartbeat, own};

/// Where Stoker's own objects are.
pub(crate) const SYSTEM: &str = "stoker-system";
/// What stays out of an installation whose parts are processes of the test.
const PODS: [&str; 3] = ["DaemonSet", "Deployment", "PodDisruptionBudget"];
/// There are at least this many nodes.
const NODES: usize = 5;

/// A server that was cleaned, with Stoker's objects and with nodes.
pub(crate) struct Real {
    client: Client,
    administrator: Login,
    rights: Rights,
    nodes: Vec<String>,
    own_node: String,
    /// Those of the controller and of each node's agent.
    controller: Login,
    agents: Vec<Login>,
    heartbeats: JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Real {
    pub(crate) async fn new(kubeconfig: &str) -> Self {
        let administrator = Login::new(kubeconfig.into());
        let client = administrator.client().await;
        own::or_refuse(&client).await;
        own::clean(&administrator).await;
        install(&administrator).await;
        let (nodes, own) = make_nodes(&client).await;
        let heartbeats = tokio::spawn(heartbeat::keep(client.clone(), own.clone()));
        let rights = Rights::new(client.clone(), administrator.clone());
        let dir = tempfile::tempdir().unwrap();
        let controller = rights.login(dir.path(), (SYSTEM, "stoker-controller"), None).await;
        let mut agents = Vec::new();
        for node in &nodes {
            let pod = place(&client, node).await;
            agents.push(rights.login(dir.path(), (SYSTEM, "stoker-agent"), Some(&pod)).await);
        }
        let own_node = own[0].clone();
        Self { client, administrator, rights, nodes, own_node, controller, agents, heartbeats, _dir: dir }
    }

    /// Nothing of an earlier scenario is there, and everything runs.
    pub(crate) async fn bed(&self, wishes: Wishes) -> Bed {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        own::forget(&self.client).await;
        let namespace = format!("scenario-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let mut object = json!({"metadata": {"name": namespace}});
        own::mark(&mut object);
        let object: Namespace = serde_json::from_value(object).unwrap();
        Api::all(self.client.clone()).create(&PostParams::default(), &object).await.unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let homes = scratch.path().join("nodes");
        let person = self.rights.person(scratch.path(), &namespace).await;
        let operator = self.rights.operator(scratch.path(), &namespace).await;
        let disk = wishes.small_disk.then(|| SmallDisk::mount(homes.join(&self.nodes[1]), "2m")).flatten();
        let parts = self.start(scratch.path(), &homes, wishes);
        self.wait_until_all_run().await;
        Bed {
            person,
            operator,
            administrator: self.client.clone(),
            namespace,
            nodes: self.nodes.clone(),
            own_node: self.own_node.clone(),
            homes,
            logs: parts.iter().map(|part| part.log.clone()).collect(),
            disk,
            _running: Running::Parts(parts),
            relays: false,
            scratch,
        }
    }

    fn start(&self, dir: &Path, homes: &Path, wishes: Wishes) -> Vec<Part> {
        let mut parts = vec![Part::start("controller", &["controller"], &self.controller, dir, wishes.trace)];
        for (node, login) in self.nodes.iter().zip(&self.agents) {
            let home = homes.join(node);
            let mut args = vec!["agent", "--node", node, "--data", home.to_str().unwrap(), "--runtime", "layout"];
            // How full the machine is that tests run on is not their business.
            args.extend(["--max-disk", "99"]);
            // All of them are on one machine: they would fight for the port.
            args.extend(["--peer-port", "0"]);
            args.extend(wishes.agents);
            parts.push(Part::start(&format!("agent-{node}"), &args, login, dir, wishes.trace));
        }
        parts
    }

    /// Every agent has introduced itself, and the controller leads.
    async fn wait_until_all_run(&self) {
        let preheats: Api<NodePreheat> = Api::all(self.client.clone());
        let introduced = async || {
            let all = preheats.list(&ListParams::default()).await.unwrap().items;
            let known = all.iter().filter(|one| one.status.as_ref().is_some_and(|status| status.agent.is_some()));
            known.count() == self.nodes.len()
        };
        eventually("all agents introduced themselves", introduced).await;
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), SYSTEM);
        let led = async || leases.get_opt("stoker-controller").await.unwrap().is_some();
        eventually("the controller leads", led).await;
    }

    /// Takes everything away again.
    pub(crate) async fn leave(self) {
        self.heartbeats.abort();
        own::clean(&self.administrator).await;
    }
}

/// A process of Stoker; killed when dropped.
pub(crate) struct Part {
    child: Child,
    /// What it says.
    pub(crate) log: PathBuf,
}

impl Part {
    fn start(name: &str, args: &[&str], login: &Login, dir: &Path, trace: bool) -> Self {
        let log = dir.join(format!("{name}.log"));
        let mut command = login.command(args);
        if trace {
            command.env("STOKER_LOG", "trace");
        }
        let child = command.stdout(Stdio::null()).stderr(File::create(&log).unwrap()).spawn().unwrap();
        Self { child, log }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let said = std::fs::read_to_string(&self.log).unwrap_or_default();
            let end: Vec<&str> = said.lines().rev().take(15).collect();
            println!("the end of {}:", self.log.display());
            end.iter().rev().for_each(|line| println!("  {line}"));
        }
    }
}

/// Applies what `stoker install` prints, as its users do, but with a mark: that it is this suite's.
async fn install(administrator: &Login) {
    let printed = administrator.run(&["install", "--dialects", "kruise,ofen"]).await;
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(&printed.exits(0).out).unwrap();
    objects.retain(|object| !PODS.iter().any(|kind| object["kind"] == *kind));
    let namespace = objects.iter_mut().find(|object| object["kind"] == "Namespace").unwrap();
    own::mark(namespace);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("stoker.json");
    std::fs::write(&file, list.to_string()).unwrap();
    let run = async |args: &[&str]| {
        let ran = administrator.kubectl(dir.path(), args).await;
        ran.expect("kubectl 1.28 or newer on the PATH or in $KUBECTL")
    };
    run(&["apply", "-f", file.to_str().unwrap()]).await.exits(0);
    let ours = ["crd", "-l", "app.kubernetes.io/part-of=stoker"];
    run(&[&["wait", "--for=condition=Established", "--timeout=60s"][..], &ours].concat()).await.exits(0);
}

/// Names of all nodes, in order, and of those that are the test's own.
async fn make_nodes(client: &Client) -> (Vec<String>, Vec<String>) {
    let nodes: Api<Node> = Api::all(client.clone());
    let mut all: Vec<String> = nodes.list(&ListParams::default()).await.unwrap().iter().map(|n| n.name_any()).collect();
    let missing = NODES.saturating_sub(all.len()).max(1);
    let own: Vec<String> = (1..=missing).map(|number| format!("test-node-{number}")).collect();
    for name in &own {
        let labels = json!({"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"});
        let ready =
            json!([{"type": "Ready", "status": "True", "reason": "Test", "lastHeartbeatTime": jiff::Timestamp::now()}]);
        let mut node = json!({"metadata": {"name": name, "labels": labels}, "status": {"conditions": ready}});
        own::mark(&mut node);
        nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    }
    all.extend(own.iter().cloned());
    all.sort();
    (all, own)
}

/// The pod that an agent would be in: a token is bound to it, and so to its node. No kubelet starts it.
async fn place(client: &Client, node: &str) -> Pod {
    let spec = json!({
        "nodeName": node, "nodeSelector": {own::LABEL: "never"}, "serviceAccountName": "stoker-agent",
        "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "agent", "image": "registry.example/nothing:v1"}],
    });
    let pod = json!({"metadata": {"name": format!("agent-{node}")}, "spec": spec});
    let pods: Api<Pod> = Api::namespaced(client.clone(), SYSTEM);
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap()
}
