//! A running `stoker up`, and somebody's way into it or any other cluster: commands, and objects to make and to wait for.

use std::io::{BufRead as _, BufReader};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Client, Config};
use serde_json::{Value, json};
use stoker_testbed::account;

/// Nothing takes this long, not on a real cluster either; a test that waits for it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// The binary under test, without the user's own settings.
pub(crate) fn stoker() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
    command.env_remove("KUBECONFIG").env_remove("STOKER_LOG").env("HOME", "/nonexistent").stdin(Stdio::null());
    command
}

/// `stoker up` on a directory of its own; killed when dropped.
pub(crate) struct Up {
    child: Child,
    data: tempfile::TempDir,
    login: Login,
    nodes: u16,
    /// What else it is told.
    more: Vec<String>,
}

impl Up {
    pub(crate) fn start(nodes: u16) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), nodes)
    }

    pub(crate) fn start_in(data: tempfile::TempDir, nodes: u16) -> Self {
        Self::start_with(data, nodes, &[])
    }

    /// Starts it with more arguments, which it also has after a restart.
    pub(crate) fn start_with(data: tempfile::TempDir, nodes: u16, more: &[&str]) -> Self {
        let more: Vec<String> = more.iter().map(|arg| arg.to_string()).collect();
        let child = Self::spawn(data.path(), nodes, &more, stoker(), Stdio::inherit());
        let login = Login::new(data.path().join("kubeconfig"));
        Self { child, data, login, nodes, more }
    }

    /// Started by another command, which ends in the binary.
    pub(crate) fn start_by(command: Command, data: tempfile::TempDir, more: &[&str]) -> Self {
        let more: Vec<String> = more.iter().map(|arg| arg.to_string()).collect();
        let child = Self::spawn(data.path(), 1, &more, command, Stdio::inherit());
        let login = Login::new(data.path().join("kubeconfig"));
        Self { child, data, login, nodes: 1, more }
    }

    /// With more arguments and more of an environment; all that it has to say, and as much as it can say, goes to a file.
    pub(crate) fn start_in_env(nodes: u16, more: &[&str], env: &[(&str, String)], log: &Path) -> Self {
        let data = tempfile::tempdir().unwrap();
        let more: Vec<String> = more.iter().map(|arg| arg.to_string()).collect();
        let mut command = stoker();
        command.env("STOKER_LOG", "trace").envs(env.iter().map(|(name, value)| (name, value)));
        let child = Self::spawn(data.path(), nodes, &more, command, std::fs::File::create(log).unwrap().into());
        let login = Login::new(data.path().join("kubeconfig"));
        Self { child, data, login, nodes, more }
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as a power cut would, and starts it again on the same directory.
    pub(crate) fn kill_and_restart(&mut self) {
        self.kill();
        self.restart();
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts one that was killed again, on the same directory.
    pub(crate) fn restart(&mut self) {
        self.child = Self::spawn(self.data.path(), self.nodes, &self.more, stoker(), Stdio::inherit());
    }

    fn spawn(data: &Path, nodes: u16, more: &[String], mut stoker: Command, log: Stdio) -> Child {
        // How full the machine is that tests run on is not their business.
        let disk: &[&str] = if more.iter().any(|arg| arg == "--max-disk") { &[] } else { &["--max-disk", "99"] };
        let listen: &[&str] = if more.iter().any(|arg| arg == "--listen") { &[] } else { &["--listen", "127.0.0.1:0"] };
        let mut child = stoker
            .args(["up", "--nodes", &nodes.to_string(), "--data"])
            .arg(data)
            .args(more)
            .args(disk)
            .args(listen)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert!(line.starts_with("Stoker is up at https://"), "{line}");
        // What it says later goes nowhere, but must not fill the pipe.
        std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
        child
    }

    pub(crate) fn data(&self) -> &Path {
        self.data.path()
    }

    /// The image store of a node.
    pub(crate) fn images(&self, node: &str) -> PathBuf {
        self.data.path().join("nodes").join(node).join("images")
    }

    /// Sends a signal and waits for the end.
    pub(crate) fn stop(mut self, signal: &str) -> std::process::ExitStatus {
        let id = self.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        self.child.wait().unwrap()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a login can do, can be done here: it is the only one.
impl Deref for Up {
    type Target = Login;

    fn deref(&self) -> &Login {
        &self.login
    }
}

/// Somebody's way into a cluster, and into the namespace that the kubeconfig says.
#[derive(Clone)]
pub(crate) struct Login {
    kubeconfig: PathBuf,
}

impl Login {
    pub(crate) fn new(kubeconfig: PathBuf) -> Self {
        Self { kubeconfig }
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A command against this cluster.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = stoker();
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(args);
        command
    }

    /// Runs a command, away from the executor.
    pub(crate) async fn run(&self, args: &[&str]) -> Ran {
        Ran::by(self.command(args)).await
    }

    /// Runs kubectl, with nobody's settings and a cache below this folder. None where there is none.
    pub(crate) async fn kubectl(&self, home: &Path, args: &[&str]) -> Option<Ran> {
        let mut command = Command::new(kubectl()?);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(args).env("HOME", home);
        Some(Ran::by(command).await)
    }

    /// The way of a service account, given by its namespace and name, kept in this file. This one is an administrator's. A login
    /// that is bound to a pod says on which node that is.
    pub(crate) async fn account(&self, file: PathBuf, account: (&str, &str), pod: Option<&Pod>) -> Self {
        let own = Kubeconfig::read_from(&self.kubeconfig).unwrap();
        let config = account::log_in(&self.client().await, &own, account, pod).await.unwrap();
        std::fs::write(&file, serde_json::to_string(&config).unwrap()).unwrap();
        Self::new(file)
    }

    pub(crate) async fn client(&self) -> Client {
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        Client::try_from(config).unwrap()
    }

    /// Makes an object of a manifest.
    pub(crate) async fn create(&self, manifest: &str) -> DynamicObject {
        let object: DynamicObject = serde_saphyr::from_str(manifest).unwrap();
        let types = object.types.as_ref().unwrap();
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types).unwrap());
        let api = match (types.kind.as_str(), &object.metadata.namespace) {
            ("NodePreheat", _) => Api::all_with(self.client().await, &resource),
            (_, Some(namespace)) => Api::namespaced_with(self.client().await, namespace, &resource),
            (_, None) => Api::default_namespaced_with(self.client().await, &resource),
        };
        api.create(&PostParams::default(), &object).await.unwrap()
    }

    pub(crate) async fn api(&self, kind: &str) -> Api<DynamicObject> {
        let resource: ApiResource = match stoker_api::job_kinds().find(|job| job.kind.name == kind) {
            Some(job) => job.kind.newest(),
            None => ApiResource::erase::<stoker_api::native::NodePreheat>(&()),
        };
        match kind {
            "NodePreheat" => Api::all_with(self.client().await, &resource),
            _ => Api::default_namespaced_with(self.client().await, &resource),
        }
    }

    /// Waits until an object is as the test wants it, and returns it.
    pub(crate) async fn wait(&self, kind: &str, name: &str, wanted: impl Fn(&DynamicObject) -> bool) -> DynamicObject {
        let api = self.api(kind).await;
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut objects = watcher(api, config).default_backoff().applied_objects().boxed();
        let mut last = None;
        let found = tokio::time::timeout(PATIENCE, async {
            loop {
                match objects.next().await.unwrap() {
                    Ok(object) if wanted(&object) => return object,
                    // After an error the watch begins anew.
                    other => last = Some(other),
                }
            }
        });
        match found.await {
            Ok(object) => object,
            Err(_) => panic!("{kind} {name} did not become as wanted; last seen: {last:#?}"),
        }
    }

    /// Waits until a job has ended, and gives its status.
    pub(crate) async fn ended(&self, kind: &str, name: &str) -> Value {
        let ended = |object: &DynamicObject| object.data.pointer("/status/completionTime").is_some();
        self.wait(kind, name, ended).await.data["status"].clone()
    }

    /// Makes a Secret with a login of a registry.
    pub(crate) async fn docker_secret(&self, name: &str, content: &str) {
        self.make_secret(name, "kubernetes.io/dockerconfigjson", ".dockerconfigjson", content).await;
    }

    pub(crate) async fn make_secret(&self, name: &str, kind: &str, key: &str, content: &str) {
        let secret = json!({"metadata": {"name": name}, "type": kind, "stringData": {key: content}});
        let secret: Secret = serde_json::from_value(secret).unwrap();
        let secrets: Api<Secret> = Api::default_namespaced(self.client().await);
        secrets.create(&PostParams::default(), &secret).await.unwrap();
    }
}

/// What a command said.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// Runs a command, away from the executor.
    pub(crate) async fn by(mut command: Command) -> Self {
        Self::of(tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap())
    }

    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The exit code, with everything that was said where it is another.
    #[track_caller]
    pub(crate) fn exits(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "out:\n{}\nerr:\n{}", self.out, self.err);
        self
    }

    #[track_caller]
    pub(crate) fn says(&self, text: &str) -> &Self {
        let all = format!("{}{}", self.out, self.err);
        assert!(all.contains(text), "no `{text}` in:\n{all}");
        self
    }
}

/// Waits for what no watch tells of.
pub(crate) async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("it did not come true: {what}"));
}

/// The file that `docker login` writes.
pub(crate) fn docker_login(host: &str, user: &str, password: &str) -> String {
    json!({"auths": {host: {"username": user, "password": password}}}).to_string()
}

/// Every object that is not a Secret, as text.
pub(crate) async fn every_object(client: &Client) -> String {
    let kinds = [
        ("stoker.dev", "v1alpha1", "Preheat"),
        ("stoker.dev", "v1alpha1", "NodePreheat"),
        ("apps.kruise.io", "v1beta1", "ImagePullJob"),
        ("apps.kruise.io", "v1beta1", "ImageListPullJob"),
        ("", "v1", "Event"),
        ("", "v1", "Node"),
        ("", "v1", "ConfigMap"),
        ("coordination.k8s.io", "v1", "Lease"),
    ];
    let mut text = String::new();
    for (group, version, kind) in kinds {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        for object in api.list(&ListParams::default()).await.unwrap().items {
            text += &serde_json::to_string(&object).unwrap();
        }
    }
    text
}

/// Everything that a child writes to one of its pipes, once it ended.
pub(crate) fn rest(mut pipe: impl std::io::Read) -> String {
    let mut text = String::new();
    pipe.read_to_string(&mut text).unwrap();
    text
}

/// A kubectl that is new enough, from $KUBECTL or the PATH.
pub(crate) fn kubectl() -> Option<&'static str> {
    static FOUND: OnceLock<Option<String>> = OnceLock::new();
    FOUND.get_or_init(find_kubectl).as_deref()
}

fn find_kubectl() -> Option<String> {
    let program = std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".into());
    let output = Command::new(&program).args(["version", "--client", "-o", "json"]).output().ok()?;
    let version: Value = serde_json::from_slice(&output.stdout).ok()?;
    let minor = version["clientVersion"]["minor"].as_str()?.trim_end_matches('+').parse::<u32>().ok()?;
    (minor >= 28).then_some(program)
}
