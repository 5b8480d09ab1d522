//! The cluster, one test at a time: Stoker installed on it, a namespace with somebody who may edit it, and ways to ask and
//! to break things. Commands of people run as that somebody; only what a test itself looks at or breaks, it does as
//! administrator.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::ApiResource;
use kube::runtime::wait::{Condition, await_condition};
use kube::{Client, Config};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use stoker_api::native::{NodePreheat, Preheat};
use stoker_testbed::image::{Compression, Image, ImageBuilder, LayerBuilder, Pusher, busybox};
use tokio::sync::{Mutex, MutexGuard};

use crate::embedded::{Ran, stoker};

/// Nothing here takes this long; a test that waits for it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// Where people work.
pub(crate) const SHOP: &str = "shop";
/// Where Stoker is.
pub(crate) const SYSTEM: &str = "stoker-system";
/// The cluster's own registry, as nodes and this process reach it.
pub(crate) const REGISTRY: &str = "10.77.0.1:5000";

/// Whose turn it is, and whether Stoker is installed by this process.
static TURN: Mutex<bool> = Mutex::const_new(false);

/// The cluster, for one test.
pub(crate) struct Cluster {
    /// The administrator's.
    pub(crate) client: Client,
    /// The kubeconfig of somebody who may edit the namespace, and see nodes.
    person: PathBuf,
    turn: MutexGuard<'static, bool>,
    dir: tempfile::TempDir,
}

/// What cannot be used while this lives; it is started again when this goes, also by a test that fails.
pub(crate) struct Without<'a> {
    part: String,
    /// It goes before the test's turn does.
    of: PhantomData<&'a Cluster>,
}

impl Drop for Without<'_> {
    fn drop(&mut self) {
        let ran = cluster_command(&["start", &self.part]).output().unwrap();
        assert!(ran.status.success() || std::thread::panicking(), "{} does not start: {ran:?}", self.part);
    }
}

impl Cluster {
    /// Waits for its turn. `None`, said loudly, where there is no cluster.
    pub(crate) async fn enter() -> Option<Self> {
        if std::env::var_os("STOKER_TEST_CLUSTER").is_none() {
            println!("SKIPPED: no cluster; `cargo xtask test --all` makes one where there are root and Go");
            return None;
        }
        let turn = TURN.lock().await;
        let dir = tempfile::tempdir().unwrap();
        let mut cluster = Self { client: administrator().await, person: dir.path().join("person"), turn, dir };
        cluster.mend().await;
        if !*cluster.turn {
            cluster.uninstall().await;
            cluster.install().await;
        }
        cluster.clean().await;
        cluster.invite().await;
        Some(cluster)
    }

    /// Starts what a test before this one left stopped.
    async fn mend(&self) {
        let status = self.control(&["status"]).await;
        for line in status.out.lines().filter(|line| line.contains("does not live")) {
            let part = line.split_whitespace().next().unwrap().to_owned();
            self.control(&["start", &part]).await.exits(0);
        }
        let served = || async { self.client.apiserver_version().await.is_ok() };
        self.eventually("the API server answers", served).await;
        for node in ["n1", "n2"] {
            let ready = |node: Option<&Node>| node.is_some_and(|node| stoker_api::node::to_core(node).ready);
            self.wait(&self.nodes(), node, ready).await;
        }
    }

    async fn install(&mut self) {
        let image = format!("{REGISTRY}/stoker:test");
        let binary = env!("CARGO_BIN_EXE_stoker");
        let ran = run(xtask(&["image", "--binary", binary, "--push", &image, "--insecure"])).await;
        // By digest: a tag that nodes have already is not asked for again.
        let said = ran.exits(0).out.clone();
        let digest = said.split(&format!("pushed to {image} as ")).nth(1).and_then(|rest| rest.lines().next()).unwrap();
        let image = format!("{REGISTRY}/stoker@{digest}");
        let manifests = self.administer(&["install", "--image", &image]).await;
        self.apply(&manifests.exits(0).out).await.exits(0);
        for part in ["deployment/stoker-controller", "daemonset/stoker-agent"] {
            self.kubectl(&["-n", SYSTEM, "rollout", "status", "--timeout=180s", part]).await.exits(0);
        }
        *self.turn = true;
    }

    /// Who comes next finds Stoker installed anew: this test changes how.
    pub(crate) fn spoil(&mut self) {
        *self.turn = false;
    }

    /// Takes Stoker away, whatever is there of it.
    pub(crate) async fn uninstall(&mut self) -> Ran {
        self.spoil();
        let ran = self.administer(&["uninstall", "--yes"]).await;
        ran.exits(0);
        ran
    }

    /// Nobody finds what another test made.
    async fn clean(&self) {
        let every = ["-n", SHOP, "delete", "--all", "--ignore-not-found", "--timeout=120s", "--wait"];
        self.kubectl(&[&every[..], &["preheats,pods,secrets"]].concat()).await.exits(0);
    }

    /// Makes the namespace and its somebody, who has rights that every cluster's users may have.
    pub(crate) async fn invite(&self) {
        let subject = json!([{"kind": "ServiceAccount", "name": "ada", "namespace": SHOP}]);
        let role = |name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
        let v1 = "rbac.authorization.k8s.io/v1";
        let objects = [
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SHOP}}),
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "ada", "namespace": SHOP}}),
            json!({"apiVersion": v1, "kind": "RoleBinding", "metadata": {"name": "ada", "namespace": SHOP},
                "roleRef": role("edit"), "subjects": subject}),
            json!({"apiVersion": v1, "kind": "ClusterRoleBinding", "metadata": {"name": "shop-ada"},
                "roleRef": role("stoker-nodes-view"), "subjects": subject}),
        ];
        self.apply(&objects.map(|object| object.to_string()).join("\n---\n")).await.exits(0);
        let token = self.kubectl(&["-n", SHOP, "create", "token", "ada", "--duration=1h"]).await;
        self.write_kubeconfig(&self.person, token.exits(0).out.trim());
        let allowed =
            || async { self.kubectl_as_person(&["auth", "can-i", "create", "preheats"]).await.code == Some(0) };
        self.eventually("the role `edit` has Stoker's jobs", allowed).await;
    }

    /// The administrator's kubeconfig with another login.
    pub(crate) fn write_kubeconfig(&self, path: &std::path::Path, token: &str) {
        let text = std::fs::read_to_string(kubeconfig()).unwrap();
        let mut config: Value = serde_saphyr::from_str(&text).unwrap();
        config["users"][0]["user"] = json!({ "token": token });
        config["contexts"][0]["context"]["namespace"] = SHOP.into();
        std::fs::write(path, config.to_string()).unwrap();
    }

    /// A file of this test.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `stoker` as somebody who may edit the namespace.
    pub(crate) async fn stoker(&self, args: &[&str]) -> Ran {
        let mut command = stoker();
        command.arg("--kubeconfig").arg(&self.person).args(args);
        run(command).await
    }

    /// `stoker` as administrator.
    pub(crate) async fn administer(&self, args: &[&str]) -> Ran {
        let mut command = stoker();
        command.arg("--kubeconfig").arg(kubeconfig()).args(args);
        run(command).await
    }

    /// `kubectl` as administrator.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> Ran {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(kubeconfig()).args(args);
        run(command).await
    }

    /// `kubectl` as somebody who may edit the namespace.
    pub(crate) async fn kubectl_as_person(&self, args: &[&str]) -> Ran {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(&self.person).args(args);
        run(command).await
    }

    /// `kubectl apply` as administrator.
    pub(crate) async fn apply(&self, text: &str) -> Ran {
        let file = self.file("manifests.yaml");
        std::fs::write(&file, text).unwrap();
        self.kubectl(&["apply", "-f", file.to_str().unwrap()]).await
    }

    /// Makes objects as somebody who may edit the namespace.
    pub(crate) async fn create(&self, object: &Value) {
        let file = self.file("object.json");
        std::fs::write(&file, object.to_string()).unwrap();
        self.kubectl_as_person(&["create", "-f", file.to_str().unwrap()]).await.exits(0);
    }

    /// `cargo xtask cluster …`.
    pub(crate) async fn control(&self, args: &[&str]) -> Ran {
        run(cluster_command(args)).await
    }

    /// What a script prints on a node, where it succeeds.
    pub(crate) async fn try_on_node(&self, node: &str, script: &str) -> Option<String> {
        let ran = self.control(&["exec", "--node", node, "--", "sh", "-c", script]).await;
        (ran.code == Some(0)).then_some(ran.out)
    }

    /// What a script prints on a node. It must succeed.
    pub(crate) async fn on_node(&self, node: &str, script: &str) -> String {
        let ran = self.control(&["exec", "--node", node, "--", "sh", "-c", script]).await;
        ran.exits(0).out.clone()
    }

    /// Whether the runtime of a node has an image of this name.
    pub(crate) async fn has(&self, node: &str, image: &str) -> bool {
        self.on_node(node, "ctr -n k8s.io images ls -q").await.lines().any(|name| name == image)
    }

    /// A page that a part of Stoker serves, asked from a node; `None` where the answer is no.
    pub(crate) async fn page(&self, node: &str, url: &str) -> Option<String> {
        self.try_on_node(node, &format!("/bin/busybox wget -qO- {url}")).await
    }

    /// Sends a signal to a part of Stoker that runs on a node.
    pub(crate) async fn signal(&self, node: &str, part: &str, signal: &str) {
        // The brackets keep the shell's own line from being found.
        let first = &part[..1];
        let script = format!("pkill -{signal} -f '^/usr/local/bin/stoker [{first}]{}'", &part[1..]);
        self.on_node(node, &script).await;
    }

    /// Ends a part of the cluster as a crash would.
    pub(crate) async fn without(&self, part: &str) -> Without<'_> {
        self.control(&["stop", part]).await.exits(0);
        Without { part: part.to_owned(), of: PhantomData }
    }

    pub(crate) fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), SHOP)
    }

    pub(crate) fn preheats(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), SHOP, &ApiResource::erase::<Preheat>(&()))
    }

    pub(crate) fn node_preheats(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &ApiResource::erase::<NodePreheat>(&()))
    }

    /// Stoker's pods of one part.
    pub(crate) async fn parts(&self, component: &str) -> Vec<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), SYSTEM);
        let selector = format!("app.kubernetes.io/component={component}");
        pods.list(&ListParams::default().labels(&selector)).await.unwrap().items
    }

    /// The pod that leads, its node, and the Lease's own word for it.
    pub(crate) async fn leader(&self) -> (Pod, String, String) {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), SYSTEM);
        let lease = leases.get("stoker-controller").await.unwrap();
        let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        let pods = self.parts("controller").await;
        let pod = pods.into_iter().find(|pod| holder.starts_with(pod.metadata.name.as_deref().unwrap()));
        let pod = pod.unwrap_or_else(|| panic!("the leader {holder} is no pod"));
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap();
        (pod, node, holder)
    }

    /// Waits until an object is as the test wants it.
    pub(crate) async fn wait<K>(&self, api: &Api<K>, name: &str, wanted: impl Condition<K>) -> Option<K>
    where
        K: Clone + Debug + Send + DeserializeOwned + kube::Resource + 'static,
    {
        match tokio::time::timeout(PATIENCE, await_condition(api.clone(), name, wanted)).await {
            Ok(object) => object.unwrap(),
            Err(_) => panic!("{name} did not become as wanted: {:#?}", api.get_opt(name).await),
        }
    }

    /// Waits until a job has ended, and gives its status.
    pub(crate) async fn ended(&self, name: &str) -> Value {
        let ended =
            |job: Option<&DynamicObject>| job.is_some_and(|job| job.data["status"]["completionTime"].is_string());
        self.wait(&self.preheats(), name, ended).await.unwrap().data["status"].clone()
    }

    /// Waits for what no watch tells of.
    pub(crate) async fn eventually<F: Future<Output = bool>>(&self, what: &str, mut is: impl FnMut() -> F) {
        let waiting = async {
            while !is().await {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("it did not come true: {what}"));
    }

    /// An image that no node has, and its reference; in the cluster's own registry.
    pub(crate) async fn push(&self, repository: &str, bytes: u64) -> (String, Image) {
        let image = image(bytes);
        let tag = format!("v{}", unique());
        Pusher::new(&format!("http://{REGISTRY}"), None).unwrap().push(repository, &tag, &image).await.unwrap();
        (format!("{REGISTRY}/{repository}:{tag}"), image)
    }

    /// Starts a pod on a node, by an image that must be there or come.
    pub(crate) async fn start_pod(&self, name: &str, node: &str, image: &str) {
        let container = json!({
            "name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": ["/bin/busybox", "sleep", "3600"],
        });
        let spec = json!({"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0});
        let pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        self.pods().create(&PostParams::default(), &pod).await.unwrap();
    }

    /// Deletes a pod of Stoker's at once, as a node that dies would.
    pub(crate) async fn delete_part(&self, pod: &Pod) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), SYSTEM);
        pods.delete(pod.metadata.name.as_deref().unwrap(), &DeleteParams::default().grace_period(0)).await.unwrap();
    }
}

/// An image of random bytes that no one has seen before, with a shell.
pub(crate) fn image(bytes: u64) -> Image {
    let base = busybox().unwrap().build(Compression::Gzip).unwrap();
    let own = LayerBuilder::new().noise("noise", bytes, unique()).build(Compression::Gzip).unwrap();
    ImageBuilder::new().layer(&base).layer(&own).build()
}

/// Different each time, also on a cluster that earlier runs have used.
pub(crate) fn unique() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

/// How often its container was started again.
pub(crate) fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.into_iter().flatten().map(|status| status.restart_count).sum()
}

/// Whether it is ready.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

async fn administrator() -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig()).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

fn kubeconfig() -> PathBuf {
    std::env::var_os("STOKER_TEST_KUBECONFIG").unwrap().into()
}

fn xtask(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("STOKER_TEST_XTASK").unwrap());
    command.args(args);
    command
}

fn cluster_command(args: &[&str]) -> Command {
    let dir = std::env::var("STOKER_TEST_CLUSTER").unwrap();
    let (verb, rest) = args.split_first().unwrap();
    let mut command = xtask(&["cluster", verb, "--dir", &dir]);
    command.args(rest);
    command
}

/// Runs a command, away from the executor.
async fn run(mut command: Command) -> Ran {
    Ran::of(tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap())
}
