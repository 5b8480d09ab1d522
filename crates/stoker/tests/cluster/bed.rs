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
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::ApiResource;
use kube::runtime::wait::{Condition, await_condition};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use stoker_api::PlainNode;
use stoker_api::native::{NodePreheat, Preheat};
use stoker_testbed::image::{Compression, Image, ImageBuilder, LayerBuilder, Pusher, busybox};
use tokio::sync::{Mutex, MutexGuard};

use crate::embedded::{Login, PATIENCE, Ran, eventually};

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
    administrator: Login,
    /// Somebody who may edit the namespace, and see nodes.
    pub(crate) person: Login,
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
        let administrator = Login::new(std::env::var_os("STOKER_TEST_KUBECONFIG").unwrap().into());
        let (client, person) = (administrator.client().await, Login::new(dir.path().join("person")));
        let mut cluster = Self { client, administrator, person, turn, dir };
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
        self.served().await;
        for node in ["n1", "n2"] {
            let ready = |node: Option<&PlainNode>| node.is_some_and(|node| node.ready);
            self.wait(&Api::<PlainNode>::all(self.client.clone()), node, ready).await;
        }
    }

    /// Waits until the API server answers.
    pub(crate) async fn served(&self) {
        eventually("the API server answers", async || self.client.apiserver_version().await.is_ok()).await;
    }

    async fn install(&mut self) {
        let image = format!("{REGISTRY}/stoker:test");
        let binary = env!("CARGO_BIN_EXE_stoker");
        let out = self.file("image");
        let args = ["image", "--binary", binary, "--out", out.to_str().unwrap(), "--push", &image, "--insecure"];
        let ran = Ran::by(xtask(&args)).await;
        // By digest: a tag that nodes have already is not asked for again.
        let said = ran.exits(0).out.clone();
        let digest = said.split(&format!("pushed to {image} as ")).nth(1).and_then(|rest| rest.lines().next()).unwrap();
        let image = format!("{REGISTRY}/stoker@{digest}");
        self.apply(&self.manifests(&image, &[]).await.exits(0).out).await.exits(0);
        self.rolled_out(SYSTEM).await;
        self.restored();
    }

    /// `stoker install` with the kinds of other projects and pre-download, which all tests have, and with more arguments. How full the disk of the machine is that
    /// tests run on is not their business, so agents may fill it.
    pub(crate) async fn manifests(&self, image: &str, more: &[&str]) -> Ran {
        let dialects = ["--dialects", "kruise,kruise-rollouts,ofen"];
        let mut ran = self.administer(&[&["install", "--image", image], &dialects[..], more].concat()).await;
        let wider =
            ran.out.replace("- --data=/var/lib/stoker\n", "- --max-disk=99\n        - --data=/var/lib/stoker\n");
        assert!(ran.code != Some(0) || wider != ran.out, "the agents' arguments are not where they were");
        ran.out = wider;
        ran
    }

    /// Waits until all pods of the Stoker in this namespace are as its manifests say.
    pub(crate) async fn rolled_out(&self, namespace: &str) {
        for part in ["deployment/stoker-controller", "daemonset/stoker-agent"] {
            self.kubectl(&["-n", namespace, "rollout", "status", "--timeout=180s", part]).await.exits(0);
        }
    }

    /// Stoker's own image.
    pub(crate) async fn own_image(&self) -> String {
        let path = "jsonpath={.spec.template.spec.containers[0].image}";
        let ran = self.kubectl(&["-n", SYSTEM, "get", "deployment/stoker-controller", "-o", path]).await;
        ran.exits(0).out.trim().to_owned()
    }

    /// Who comes next finds Stoker installed anew: this test changes how.
    pub(crate) fn spoil(&mut self) {
        *self.turn = false;
    }

    /// Stoker is installed as every test expects it.
    pub(crate) fn restored(&mut self) {
        *self.turn = true;
    }

    /// Takes Stoker away, whatever is there of it.
    pub(crate) async fn uninstall(&mut self) {
        self.spoil();
        self.administer(&["uninstall", "--yes"]).await.exits(0);
    }

    /// Nobody finds what another test made.
    async fn clean(&self) {
        let every = ["-n", SHOP, "delete", "--all", "--ignore-not-found", "--timeout=120s", "--wait"];
        // Before their pods, which would come back.
        let workloads = ["--cascade=foreground", "deployments,statefulsets,daemonsets"];
        self.kubectl(&[&every[..], &workloads].concat()).await.exits(0);
        let sets = ["delete", "nodeimagesets", "--all", "--ignore-not-found", "--timeout=120s", "--wait"];
        self.kubectl(&sets).await.exits(0);
        self.kubectl(
            &[&every[..], &["preheats,imagelistpulljobs,imagepulljobs,imageprefetches,pods,secrets"]].concat(),
        )
        .await
        .exits(0);
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
            json!({"apiVersion": v1, "kind": "RoleBinding", "metadata": {"name": "ada-jobs", "namespace": SHOP},
                "roleRef": role("stoker-edit"), "subjects": subject}),
            json!({"apiVersion": v1, "kind": "ClusterRoleBinding", "metadata": {"name": "shop-ada"},
                "roleRef": role("stoker-nodes-view"), "subjects": subject}),
        ];
        self.apply(&objects.map(|object| object.to_string()).join("\n---\n")).await.exits(0);
        self.administrator.account(self.person.kubeconfig().to_owned(), (SHOP, "ada"), None).await;
        let allowed = async || self.kubectl_as_person(&["auth", "can-i", "create", "preheats"]).await.code == Some(0);
        eventually("ada may make jobs", allowed).await;
    }

    /// The API server as a part of Stoker sees it: with a token of its account, bound to a pod where one is named.
    pub(crate) async fn as_part(&self, component: &str, pod: Option<&Pod>) -> Client {
        let account = format!("stoker-{component}");
        self.administrator.account(self.file("part"), (SYSTEM, &account), pod).await.client().await
    }

    /// A file of this test.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `stoker` as somebody who may edit the namespace.
    pub(crate) async fn stoker(&self, args: &[&str]) -> Ran {
        self.person.run(args).await
    }

    /// `stoker` as administrator.
    pub(crate) async fn administer(&self, args: &[&str]) -> Ran {
        self.administrator.run(args).await
    }

    /// `kubectl` as administrator.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> Ran {
        self.administrator.kubectl(self.dir.path(), args).await.unwrap()
    }

    /// `kubectl` as somebody who may edit the namespace.
    pub(crate) async fn kubectl_as_person(&self, args: &[&str]) -> Ran {
        self.person.kubectl(self.dir.path(), args).await.unwrap()
    }

    /// `kubectl apply` as administrator.
    pub(crate) async fn apply(&self, text: &str) -> Ran {
        let file = self.file("manifests.yaml");
        std::fs::write(&file, text).unwrap();
        self.kubectl(&["apply", "-f", file.to_str().unwrap()]).await
    }

    /// Makes many objects at once, as somebody who may edit the namespace.
    pub(crate) async fn apply_as_person(&self, text: &str) -> Ran {
        let file = self.file("objects.yaml");
        std::fs::write(&file, text).unwrap();
        self.kubectl_as_person(&["apply", "-f", file.to_str().unwrap()]).await
    }

    /// Makes objects as somebody who may edit the namespace.
    pub(crate) async fn create(&self, object: &Value) {
        let file = self.file("object.json");
        std::fs::write(&file, object.to_string()).unwrap();
        self.kubectl_as_person(&["create", "-f", file.to_str().unwrap()]).await.exits(0);
    }

    /// `cargo xtask cluster …`.
    pub(crate) async fn control(&self, args: &[&str]) -> Ran {
        Ran::by(cluster_command(args)).await
    }

    /// Runs a script on a node.
    pub(crate) async fn on_node(&self, node: &str, script: &str) -> Ran {
        self.control(&["exec", "--node", node, "--", "sh", "-c", script]).await
    }

    /// Whether the runtime of a node has an image of this name.
    pub(crate) async fn has(&self, node: &str, image: &str) -> bool {
        let listed = self.on_node(node, "ctr -n k8s.io images ls -q").await;
        listed.exits(0).out.lines().any(|name| name == image)
    }

    /// A page that a part of Stoker serves, asked from a node; `None` where the answer is no.
    pub(crate) async fn page(&self, node: &str, url: &str) -> Option<String> {
        let ran = self.on_node(node, &format!("/bin/busybox wget -qO- {url}")).await;
        (ran.code == Some(0)).then_some(ran.out)
    }

    /// A page that a controller serves.
    pub(crate) async fn controller_page(&self, pod: &Pod, page: &str) -> Option<String> {
        let address = pod.status.as_ref()?.pod_ip.as_ref()?;
        self.page("n1", &format!("http://{address}:8080/{page}")).await
    }

    /// Sends a signal to a part of Stoker that runs on a node.
    pub(crate) async fn signal(&self, node: &str, part: &str, signal: &str) {
        // The brackets keep the shell's own line from being found.
        let first = &part[..1];
        let script = format!("pkill -{signal} -f '^/usr/local/bin/stoker [{first}]{}'", &part[1..]);
        self.on_node(node, &script).await.exits(0);
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

    /// The pod of one part that is on this node.
    pub(crate) async fn part_on(&self, component: &str, node: &str) -> Pod {
        let pods = self.parts(component).await;
        pods.into_iter().find(|pod| node_of(pod) == Some(node)).unwrap()
    }

    /// Waits until both pods of a part are ready, and controllers say so themselves: the word of a kubelet that was stopped is
    /// an old one.
    pub(crate) async fn both_ready(&self, component: &str) {
        let ready = async || {
            let pods = self.parts(component).await;
            for pod in pods.iter().filter(|_| component == "controller") {
                if self.controller_page(pod, "readyz").await.is_none() {
                    return false;
                }
            }
            pods.len() == 2 && pods.iter().all(is_ready)
        };
        eventually(&format!("two pods of the {component} are ready"), ready).await;
    }

    /// How often the container of this pod has been started again by now.
    pub(crate) async fn restarts_of(&self, component: &str, pod: &Pod) -> i32 {
        let pods = self.parts(component).await;
        restarts(pods.iter().find(|other| other.metadata.uid == pod.metadata.uid).expect("the same pod"))
    }

    /// Fails where one of these agents is not the same that it was, or was started again.
    pub(crate) async fn lived_on(&self, agents: &[Pod]) {
        for pod in agents {
            assert_eq!(self.restarts_of("agent", pod).await, restarts(pod), "{:?}", pod.metadata.name);
        }
    }

    /// The pod that leads, its node, and the Lease's own word for it. A leader that is going leaves the Lease to nobody for a moment.
    pub(crate) async fn leader(&self) -> (Pod, String, String) {
        eventually("a controller leads", async || self.leads().await.is_some()).await;
        self.leads().await.expect("the leader does not change while a test asks for it")
    }

    async fn leads(&self) -> Option<(Pod, String, String)> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), SYSTEM);
        let holder = leases.get("stoker-controller").await.unwrap().spec?.holder_identity?;
        let pods = self.parts("controller").await;
        let pod = pods.into_iter().find(|pod| holder.starts_with(pod.metadata.name.as_deref().unwrap()))?;
        let node = node_of(&pod)?.to_owned();
        Some((pod, node, holder))
    }

    /// Waits until an object is as the test wants it. An API server that has just come back refuses for a moment.
    pub(crate) async fn wait<K>(&self, api: &Api<K>, name: &str, wanted: impl Condition<K>) -> Option<K>
    where
        K: Clone + Debug + Send + DeserializeOwned + kube::Resource + 'static,
    {
        let wanted = |object: Option<&K>| wanted.matches_object(object);
        let waiting = async {
            loop {
                match await_condition(api.clone(), name, &wanted).await {
                    Ok(object) => return object,
                    Err(problem) => println!("looking at {name} again: {problem}"),
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(object) => object,
            Err(_) => {
                let mut object = api.get_opt(name).await;
                if let Ok(Some(object)) = &mut object {
                    object.meta_mut().managed_fields = None;
                }
                panic!("{name} did not become as wanted: {object:#?}")
            }
        }
    }

    /// Waits until a job has ended. It must be well, on so many nodes.
    pub(crate) async fn succeeds(&self, name: &str, nodes: u64) {
        let ended =
            |job: Option<&DynamicObject>| job.is_some_and(|job| job.data["status"]["completionTime"].is_string());
        let status = self.wait(&self.preheats(), name, ended).await.unwrap().data["status"].clone();
        assert_eq!((&status["phase"], &status["succeeded"]), (&json!("Succeeded"), &json!(nodes)), "{status:#}");
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

/// Where it is.
pub(crate) fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
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
