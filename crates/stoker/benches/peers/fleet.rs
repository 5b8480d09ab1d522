//! `stoker up` for its API and controller, and a `stoker agent` on each node.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::await_condition;
use kube::{Client, Config};
use serde_json::json;
use stoker_api::native::{NodePreheat, Preheat};
use stoker_testbed::memory;
use tempfile::TempDir;
use tokio_util::task::AbortOnDropHandle;

use crate::net::{Net, machine};
use crate::{Outcome, REGISTRY};

const PATIENCE: Duration = Duration::from_secs(1800);
const API: &str = "10.79.17.254:7443";
const JOB: &str = "bench";
/// Names a directory for the logs of the agents.
const LOGS: &str = "STOKER_BENCH_LOGS";

/// A process that ends with its owner.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All of it.
pub(crate) struct Fleet<'a> {
    net: &'a Net,
    client: Client,
    agents: Vec<Killed>,
    /// What the agents keep is in memory: sixteen machines do not share one disk.
    disks: TempDir,
    _kubelets: AbortOnDropHandle<()>,
    _up: Killed,
}

/// When agents began with an image, and when they had it, in seconds since the Preheat was made.
pub(crate) struct Times {
    pub(crate) begun: Vec<f64>,
    pub(crate) ended: Vec<f64>,
}

impl<'a> Fleet<'a> {
    pub(crate) async fn start(net: &'a Net, scratch: &Path) -> Outcome<Self> {
        let hosts = scratch.join("hosts");
        std::fs::create_dir_all(hosts.join(REGISTRY))?;
        std::fs::write(hosts.join(REGISTRY).join("hosts.toml"), format!("[host.\"http://{REGISTRY}\"]\n"))?;
        let stoker = |machine: &str, log: &str| {
            let mut command = net.program(machine, env!("CARGO_BIN_EXE_stoker"));
            command.stdout(Stdio::null()).args(["--log", log]);
            command
        };
        let logs = std::env::var_os(LOGS);
        let data = scratch.join("up");
        let mut up = Killed(stoker("hub", "error").args(["up", "--listen", API, "--data"]).arg(&data).spawn()?);
        let kubeconfig = data.join("kubeconfig");
        // It is written when everything is ready.
        while !kubeconfig.exists() {
            if let Some(status) = up.0.try_wait()? {
                return Err(format!("`stoker up` ended: {status}; see what it said above").into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let config = Kubeconfig::read_from(&kubeconfig)?;
        let client = Client::try_from(Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?)?;
        let disks = tempfile::tempdir_in("/dev/shm")?;
        let mut agents = Vec::new();
        for at in 1..=net.nodes {
            let (name, ready) = (machine(at), json!({"type": "Ready", "status": "True"}));
            let addresses = json!([{"type": "InternalIP", "address": net.address(at)}]);
            let node = json!({
                "metadata": {"name": name, "labels": {"bench": "peers", "stoker.dev/peer-group": "bench"}},
                "status": {"conditions": [ready], "addresses": addresses},
            });
            Api::<Node>::all(client.clone()).create(&PostParams::default(), &serde_json::from_value(node)?).await?;
            let mut agent = stoker(&name, if logs.is_some() { "debug,stoker_transfer=trace" } else { "error" });
            if let Some(logs) = &logs {
                agent.stderr(File::create(Path::new(logs).join(&name))?);
            }
            agent
                .args(["agent", "--node", &name, "--runtime", "layout", "--max-disk", "95", "--data"])
                .arg(disks.path().join(&name));
            agent.arg("--registry-hosts").arg(&hosts).arg("--kubeconfig").arg(&kubeconfig);
            agents.push(Killed(agent.spawn()?));
        }
        for at in 1..=net.nodes {
            let known = |object: Option<&NodePreheat>| object.is_some_and(|object| object.status.is_some());
            let preheats = Api::<NodePreheat>::all(client.clone());
            tokio::time::timeout(PATIENCE, await_condition(preheats, &machine(at), known)).await??;
        }
        let kubelets = AbortOnDropHandle::new(tokio::spawn(renew_leases(client.clone(), net.nodes)));
        Ok(Self { net, client, agents, disks, _kubelets: kubelets, _up: up })
    }

    /// All nodes are in this peer group.
    pub(crate) async fn group(&self, group: &str) -> Outcome<()> {
        let nodes = Api::<Node>::all(self.client.clone());
        for at in 1..=self.net.nodes {
            let patch = Patch::Merge(json!({"metadata": {"labels": {"stoker.dev/peer-group": group}}}));
            nodes.patch(&machine(at), &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }

    /// Brings an image to the first nodes.
    pub(crate) async fn pull(&self, image: &str, nodes: usize) -> Outcome<Times> {
        let jobs: Api<Preheat> = Api::default_namespaced(self.client.clone());
        let names: Vec<String> = (1..=nodes).map(machine).collect();
        let spec = json!({
            "images": [{"image": image}], "nodes": {"names": names},
            "pace": {"parallelism": nodes}, "pull": {"timeout": "1h"},
        });
        let job =
            json!({"apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": JOB}, "spec": spec});
        let created = jiff::Timestamp::now();
        jobs.create(&PostParams::default(), &serde_json::from_value(job)?).await?;
        let over = |job: Option<&Preheat>| {
            job.and_then(|job| job.status.as_ref()).is_some_and(|status| status.completion_time.is_some())
        };
        let ended = tokio::time::timeout(PATIENCE, await_condition(jobs.clone(), JOB, over)).await??;
        let status = ended.and_then(|job| job.status).ok_or("the job is gone")?;
        if usize::try_from(status.succeeded).ok() != Some(nodes) {
            return Err(format!("the job should succeed: {}, {}", status.phase, status.message).into());
        }
        let mut times = Times { begun: vec![f64::NAN; nodes], ended: vec![f64::NAN; nodes] };
        let since = |time: Option<jiff::Timestamp>| time.map(|time| time.duration_since(created).as_secs_f64());
        for object in Api::<NodePreheat>::all(self.client.clone()).list(&ListParams::default()).await? {
            let at = object.metadata.name.as_deref().and_then(|name| name.strip_prefix('n')?.parse::<usize>().ok());
            let Some(at) = at.filter(|at| (1..=nodes).contains(at)) else { continue };
            let reports = object.status.map(|status| status.reports).unwrap_or_default();
            let Some(last) = reports.values().max_by_key(|report| report.finished) else { continue };
            times.begun[at - 1] = since(Some(last.started)).unwrap_or(f64::NAN);
            times.ended[at - 1] = since(last.finished).unwrap_or(f64::NAN);
        }
        jobs.delete(JOB, &DeleteParams::default()).await?;
        tokio::time::timeout(PATIENCE, await_condition(jobs, JOB, |job: Option<&Preheat>| job.is_none())).await??;
        self.forget()?;
        Ok(times)
    }

    /// Removes all layers from the nodes: their disks are small.
    fn forget(&self) -> Outcome<()> {
        for at in 1..=self.net.nodes {
            let blobs = self.disks.path().join(format!("{}/images/blobs/sha256", machine(at)));
            for blob in std::fs::read_dir(blobs).into_iter().flatten() {
                let blob = blob?;
                if blob.metadata()?.len() > 1 << 20 {
                    std::fs::remove_file(blob.path())?;
                }
            }
        }
        Ok(())
    }

    /// The same; the most anonymous memory of any agent meanwhile, in MiB.
    pub(crate) async fn peak_while_pulling(&self, image: &str, nodes: usize, look: Duration) -> Outcome<f64> {
        let mut pull = std::pin::pin!(self.pull(image, nodes));
        let mut peak: f64 = 0.0;
        loop {
            tokio::select! {
                pulled = &mut pull => return pulled.map(|_| peak),
                () = tokio::time::sleep(look) => {
                    let all = self.agents.iter().filter_map(|agent| memory::of(agent.0.id(), "RssAnon"));
                    peak = all.fold(peak, f64::max);
                }
            }
        }
    }
}

/// What kubelets do: without it the nodes would not be ready for long.
async fn renew_leases(client: Client, nodes: usize) {
    let leases: Api<Lease> = Api::namespaced(client, "kube-node-lease");
    let manager = PatchParams::default();
    for at in 1..=nodes {
        let lease =
            Lease { metadata: ObjectMeta { name: Some(machine(at)), ..ObjectMeta::default() }, ..Lease::default() };
        if let Err(problem) = leases.create(&PostParams::default(), &lease).await {
            eprintln!("cannot make the lease of n{at}: {problem}");
        }
    }
    loop {
        let renewed = Patch::Merge(json!({"spec": {"renewTime": format!("{:.6}", jiff::Timestamp::now())}}));
        for at in 1..=nodes {
            // A failed one is renewed with the next turn.
            let _ = leases.patch(&machine(at), &manager, &renewed).await;
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
}
