//! The cluster under test: clients by account, the controller as a process of its own, jobs, and the API server's own counts.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use futures::{Stream, StreamExt as _};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Client, Config, ResourceExt as _};
use serde_json::json;
use stoker_api::dialect::kruise::ImagePullJob;
use stoker_api::native::{NodePreheat, Preheat};
use stoker_testbed::{account, memory};

use crate::Outcome;

/// The controller's, by namespace and name.
const ACCOUNT: (&str, &str) = ("stoker-system", "stoker-controller");
/// No cap: more than any API server takes.
const WRITES_PER_SECOND: &str = "1000000";
/// Nobody listens there, and agents leave the pull to their runtime.
const REGISTRY: &str = "127.0.0.1:1";
/// No part of it takes this long.
const PATIENCE: Duration = Duration::from_secs(300);

/// Writes that the API server has answered.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Orders: of NodePreheats.
    pub(crate) orders: f64,
    /// Reports: of their status.
    pub(crate) reports: f64,
    /// Of the status of jobs.
    pub(crate) outcomes: f64,
    /// Of NodeImages, spec and status.
    pub(crate) node_images: f64,
    /// Of all of these, not taken.
    pub(crate) refused: f64,
}

impl Counts {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            orders: self.orders - before.orders,
            reports: self.reports - before.reports,
            outcomes: self.outcomes - before.outcomes,
            node_images: self.node_images - before.node_images,
            refused: self.refused - before.refused,
        }
    }
}

/// In which words a job is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Our own.
    Preheat,
    /// OpenKruise's. The cluster must have been taught them, see [`Cluster::learn_kruise`].
    ImagePullJob,
}

impl Form {
    fn resource(self) -> ApiResource {
        match self {
            Form::Preheat => ApiResource::erase::<Preheat>(&()),
            Form::ImagePullJob => ApiResource::erase::<ImagePullJob>(&()),
        }
    }
}

pub(crate) struct Cluster {
    /// The administrator's.
    pub(crate) client: Client,
    /// Of an account as the controller's.
    pub(crate) controllers: Client,
    /// The names of the nodes.
    pub(crate) nodes: Vec<String>,
    /// Where the fleet tells the ends of pulls.
    pub(crate) ends: PathBuf,
    /// In the name of every image: none is there already, also when this runs a second time.
    run: u128,
    kubeconfig: tempfile::NamedTempFile,
}

impl Cluster {
    pub(crate) async fn connect(ends: PathBuf) -> Outcome<Self> {
        let admin = Kubeconfig::read()?;
        let client = client(admin.clone()).await?;
        let config = account::log_in(&client, &admin, ACCOUNT, None).await?;
        let kubeconfig = tempfile::NamedTempFile::new()?;
        std::fs::write(kubeconfig.path(), serde_json::to_string(&config)?)?;
        let controllers = self::client(config).await?;
        let all: Api<NodePreheat> = Api::all(client.clone());
        let nodes = all.list_metadata(&ListParams::default()).await?;
        let nodes = nodes.items.iter().map(|object| object.name_any()).collect();
        let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_millis();
        Ok(Self { client, controllers, nodes, ends, run, kubeconfig })
    }

    /// Starts a controller, without a cap on its writes or with the usual one. It leads when the first job moves.
    pub(crate) fn controller(&self, capped: bool) -> Outcome<Controller> {
        self.controller_with(capped, &[])
    }

    pub(crate) fn controller_with(&self, capped: bool, options: &[&str]) -> Outcome<Controller> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
        // As in the Deployment of `stoker install`.
        command.env("MALLOC_ARENA_MAX", "1");
        command.args(["controller", "--log", "warn,kube_client=off,kube_runtime=off"]).args(options);
        if !capped {
            command.args(["--max-writes-per-second", WRITES_PER_SECOND]);
        }
        command.arg("--kubeconfig").arg(self.kubeconfig.path()).env_remove("KUBECONFIG").stdin(Stdio::null());
        Ok(Controller(command.spawn()?))
    }

    /// The image of this name and tag.
    pub(crate) fn image(&self, name: &str, tag: &str) -> String {
        format!("{REGISTRY}/scale-{}/{name}:{tag}", self.run)
    }

    /// Brings the kinds of OpenKruise, and the controller's rights to them. Where there is no kind NodeImage, its jobs go without.
    pub(crate) async fn learn_kruise(&self, node_images: bool) -> Outcome<()> {
        let install = Command::new(env!("CARGO_BIN_EXE_stoker"))
            .args(["install", "--offline", "--dialects", "kruise"])
            .stderr(Stdio::null())
            .output()?;
        // Agents as pods are only objects here, as before.
        let mut kubectl =
            Command::new("kubectl").args(["apply", "-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        kubectl.stdin.take().ok_or("no input")?.write_all(&install.stdout)?;
        if !kubectl.wait()?.success() {
            return Err("kubectl could not apply what `stoker install` prints".into());
        }
        if !node_images {
            let kinds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
            kinds.delete("nodeimages.apps.kruise.io", &DeleteParams::default()).await?;
        }
        Ok(())
    }

    /// Waits until every node has a NodeImage: a controller makes them when it has found the kind.
    pub(crate) async fn node_images(&self) -> Outcome<()> {
        let kind = GroupVersionKind::gvk("apps.kruise.io", "v1beta1", "NodeImage");
        let all: Api<DynamicObject> = Api::all_with(self.client.clone(), &ApiResource::from_gvk(&kind));
        let start = Instant::now();
        while all.list_metadata(&ListParams::default()).await.map_or(0, |all| all.items.len()) < self.nodes.len() {
            if start.elapsed() > PATIENCE {
                return Err("not every node has a NodeImage".into());
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Ok(())
    }

    fn jobs(&self, form: Form) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), "default", &form.resource())
    }

    /// Makes a job for all nodes, or for one.
    pub(crate) async fn order(&self, form: Form, name: &str, image: &str, node: Option<&str>) -> Outcome<()> {
        let names = node.map(|node| json!({ "names": [node] }));
        let parallelism = self.nodes.len();
        let mut spec = match form {
            Form::Preheat => json!({ "images": [{ "image": image }], "pace": { "parallelism": parallelism } }),
            Form::ImagePullJob => json!({ "image": image, "parallelism": parallelism, "completionPolicy": {} }),
        };
        if let Some(names) = names {
            spec[if form == Form::Preheat { "nodes" } else { "selector" }] = names;
        }
        let mut job = DynamicObject::new(name, &form.resource());
        job.data = json!({ "spec": spec });
        self.jobs(form).create(&PostParams::default(), &job).await?;
        Ok(())
    }

    /// Waits until so many jobs are over, all of them without a failure.
    pub(crate) async fn settle(&self, form: Form, count: usize) -> Outcome<()> {
        let jobs = self.jobs(form);
        let mut events = watcher(jobs.clone(), watcher::Config::default()).default_backoff().applied_objects().boxed();
        let mut over = std::collections::BTreeSet::new();
        while over.len() < count {
            let job = next(&mut events, "a job did not end").await?;
            let Some(status) = job.data.get("status") else { continue };
            if status["failed"].as_u64().is_some_and(|failed| failed > 0) {
                return Err(format!("nodes failed: {status}").into());
            }
            if status["completionTime"].is_string() {
                over.insert(job.name_any());
            }
        }
        Ok(())
    }

    /// Removes all jobs. What they ordered is over, so that costs no other write.
    pub(crate) async fn clear(&self, form: Form) -> Outcome<()> {
        self.jobs(form).delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        Ok(())
    }

    /// Waits until nobody writes any more: tags of deleted jobs are taken out of NodeImages.
    pub(crate) async fn quiet(&self) -> Outcome<()> {
        let mut before = self.counts().await?;
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let now = self.counts().await?;
            if now.since(before).node_images == 0.0 {
                return Ok(());
            }
            before = now;
        }
    }

    /// What the API server has counted until now.
    pub(crate) async fn counts(&self) -> Outcome<Counts> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let text = self.client.request_text(request).await?;
        let mut counts = Counts::default();
        for line in text.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
            let has = |label: &str| line.contains(label);
            let value: f64 = line.rsplit_once(' ').and_then(|(_, value)| value.parse().ok()).unwrap_or_default();
            let ours = has("group=\"stoker.dev\"") || has("group=\"apps.kruise.io\"");
            if !ours || !has("verb=\"PATCH\"") {
                continue;
            }
            match (has("resource=\"nodepreheats\""), has("subresource=\"status\"")) {
                _ if !has("code=\"200\"") => counts.refused += value,
                _ if has("resource=\"nodeimages\"") => counts.node_images += value,
                (true, true) => counts.reports += value,
                (true, false) => counts.orders += value,
                (false, _) => counts.outcomes += value,
            }
        }
        Ok(counts)
    }

    /// When the pull of this image, on this node or the last on any, ended: in seconds since 1970.
    pub(crate) fn pulled(&self, image: &str, node: Option<&str>) -> Outcome<f64> {
        let text = std::fs::read_to_string(&self.ends)?;
        let ends = text.lines().rev().filter_map(|line| {
            let mut words = line.split(' ');
            let (at, who, what) = (words.next()?.parse::<u128>().ok()?, words.next()?, words.next()?);
            (what == image && node.is_none_or(|node| node == who)).then_some(at)
        });
        let last = ends.max().ok_or_else(|| format!("the fleet told no end of {image}"))?;
        Ok(Duration::from_nanos(u64::try_from(last)?).as_secs_f64())
    }
}

async fn client(kubeconfig: Kubeconfig) -> Outcome<Client> {
    Ok(Client::try_from(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)?)
}

/// A controller's process; it ends with its owner.
pub(crate) struct Controller(Child);

impl Controller {
    /// Anonymous memory in MiB.
    pub(crate) fn memory(&self) -> Outcome<f64> {
        memory::of(self.0.id(), "RssAnon").ok_or_else(|| "the controller is gone; see what it said above".into())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a watch sees next; nothing for minutes is an error, in these words.
pub(crate) async fn next<K>(
    seen: &mut (impl Stream<Item = Result<K, watcher::Error>> + Unpin),
    nothing: &str,
) -> Outcome<K> {
    let next = tokio::time::timeout(PATIENCE, seen.next()).await;
    Ok(next.map_err(|_| nothing.to_string())?.ok_or("the watch ended")??)
}
